//! Backends of SGLang's `bench_serving`: one name for a server type, its route and its default port.

use clap::ValueEnum;

use crate::commands::bench::multi_turn::args::Api;
use crate::commands::error::Failure;

/// Default port of SGLang.
pub(super) const DEFAULT_PORT: u16 = 30_000;

/// A backend, with the names of `bench_serving` 0.5.23.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// SGLang, native route /generate
    Sglang,
    /// Same as the backend sglang
    SglangNative,
    /// SGLang, OpenAI route /v1/completions
    SglangOai,
    /// SGLang, OpenAI route /v1/chat/completions
    SglangOaiChat,
    /// Rejected: embeddings generate no tokens
    SglangEmbedding,
    /// vLLM, OpenAI route /v1/completions
    Vllm,
    /// vLLM, OpenAI route /v1/chat/completions
    VllmChat,
    /// Rejected: embeddings generate no tokens
    VllmEmbedding,
    /// LMDeploy, OpenAI route /v1/completions
    Lmdeploy,
    /// LMDeploy, OpenAI route /v1/chat/completions
    LmdeployChat,
    /// TensorRT-LLM ensemble, generate_stream route
    Trt,
    /// Rejected: bench_serving has no client for it
    Gserver,
    /// Truss server, completions route
    Truss,
}

impl Backend {
    /// Returns the API of the backend's route.
    pub fn api(self) -> Api {
        match self {
            Backend::Sglang | Backend::SglangNative => Api::Generate,
            Backend::SglangOaiChat | Backend::VllmChat | Backend::LmdeployChat => Api::Chat,
            Backend::SglangOai | Backend::Vllm | Backend::Lmdeploy => Api::Completions,
            Backend::Truss => Api::Truss,
            Backend::Trt => Api::TensorRt,
            // `measurable` rejects these before anything is sent.
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

    /// Rejects backends that cannot be measured.
    ///
    /// # Errors
    /// The backend does not generate tokens, or no client for it exists.
    pub fn measurable(self) -> Result<(), Failure> {
        let refused = |found: &str, next: &str| {
            Err(Failure::usage(format!("--backend {} is not supported", self.name())).found(found).next(next))
        };
        match self {
            Backend::SglangEmbedding | Backend::VllmEmbedding => refused(
                "embeddings have no KV cache hits, no TTFT and no time per token to measure",
                "measure a generating model, or run sglang.bench_serving for embeddings",
            ),
            Backend::Gserver => refused(
                "bench_serving names it, but has no client for it",
                "name the server's HTTP route with another backend, e.g. --backend sglang",
            ),
            _ => Ok(()),
        }
    }
}
