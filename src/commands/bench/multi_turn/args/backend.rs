//! Backends of SGLang's `bench_serving`. Each backend represents a server type with its route and
//! default port.

use clap::ValueEnum;

use crate::commands::bench::multi_turn::args::api::Api;
use crate::commands::cli::error::Failure;

/// The default port of an SGLang server.
pub(super) const DEFAULT_PORT: u16 = 30_000;

/// A backend, named as in `bench_serving` 0.5.23.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// SGLang, native route /generate
    Sglang,
    /// Same as sglang
    SglangNative,
    /// SGLang, OpenAI route /v1/completions
    SglangOai,
    /// SGLang, OpenAI route /v1/chat/completions
    SglangOaiChat,
    /// Rejected: embedding requests generate no tokens
    SglangEmbedding,
    /// vLLM, OpenAI route /v1/completions
    Vllm,
    /// vLLM, OpenAI route /v1/chat/completions
    VllmChat,
    /// Rejected: embedding requests generate no tokens
    VllmEmbedding,
    /// LMDeploy, OpenAI route /v1/completions
    Lmdeploy,
    /// LMDeploy, OpenAI route /v1/chat/completions
    LmdeployChat,
    /// TensorRT-LLM ensemble, generate_stream route
    Trt,
    /// Rejected: bench_serving does not implement a client for it
    Gserver,
    /// Truss server, completions route
    Truss,
}

impl Backend {
    /// Returns the API that the backend's route uses.
    pub fn api(self) -> Api {
        match self {
            Backend::Sglang | Backend::SglangNative => Api::Generate,
            Backend::SglangOaiChat | Backend::VllmChat | Backend::LmdeployChat => Api::Chat,
            Backend::SglangOai | Backend::Vllm | Backend::Lmdeploy => Api::Completions,
            Backend::Truss => Api::Truss,
            Backend::Trt => Api::TensorRt,
            // `measurable` rejects these backends before anything is sent.
            Backend::SglangEmbedding | Backend::VllmEmbedding | Backend::Gserver => Api::Generate,
        }
    }

    /// Returns the default port, the same as in `bench_serving`.
    pub fn port(self) -> u16 {
        match self {
            Backend::Vllm | Backend::VllmEmbedding | Backend::Trt => 8000,
            Backend::Lmdeploy => 23_333,
            Backend::Gserver => 9988,
            Backend::Truss => 8080,
            _ => DEFAULT_PORT,
        }
    }

    /// Returns the name used on the command line and in result files.
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Rejects backends that cannot be benchmarked.
    ///
    /// # Errors
    /// The backend does not generate tokens, or there is no client for it.
    pub fn measurable(self) -> Result<(), Failure> {
        let refused = |found: &str, next: &str| {
            Err(Failure::usage(format!("--backend {} is not supported", self.name())).found(found).next(next))
        };
        match self {
            Backend::SglangEmbedding | Backend::VllmEmbedding => refused(
                "embedding requests have no KV cache hits, TTFT or ITL to measure",
                "benchmark a generative model, or use sglang.bench_serving for embeddings",
            ),
            Backend::Gserver => refused(
                "bench_serving lists this backend but does not implement a client for it",
                "select the server's HTTP route with another backend, e.g. --backend sglang",
            ),
            _ => Ok(()),
        }
    }
}
