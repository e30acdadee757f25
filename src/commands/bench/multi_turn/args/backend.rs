//! Backends of SGLang's `bench_serving`: a server, its route and its usual port by one name.

use clap::ValueEnum;

use crate::commands::bench::multi_turn::args::Api;
use crate::commands::error::Failure;

/// The port of SGLang.
pub(super) const DEFAULT_PORT: u16 = 30_000;

/// A backend. The names are those of `bench_serving` 0.5.23.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// SGLang's native route, /generate
    Sglang,
    /// Another name of sglang
    SglangNative,
    /// The completions route of SGLang
    SglangOai,
    /// The chat route of SGLang
    SglangOaiChat,
    /// Refused, since embeddings have no tokens to time
    SglangEmbedding,
    /// The completions route of vLLM
    Vllm,
    /// The chat route of vLLM
    VllmChat,
    /// Refused, since embeddings have no tokens to time
    VllmEmbedding,
    /// The completions route of LMDeploy
    Lmdeploy,
    /// The chat route of LMDeploy
    LmdeployChat,
    /// The streaming route of a TensorRT-LLM ensemble
    Trt,
    /// Refused: bench_serving has no client for it
    Gserver,
    /// The completions route of a Truss server
    Truss,
}

impl Backend {
    /// The route that requests go to.
    pub fn api(self) -> Api {
        match self {
            Backend::Sglang | Backend::SglangNative => Api::Generate,
            Backend::SglangOaiChat | Backend::VllmChat | Backend::LmdeployChat => Api::Chat,
            Backend::SglangOai | Backend::Vllm | Backend::Lmdeploy => Api::Completions,
            Backend::Truss => Api::Truss,
            Backend::Trt => Api::TensorRt,
            // Refused before anything is sent.
            Backend::SglangEmbedding | Backend::VllmEmbedding | Backend::Gserver => Api::Generate,
        }
    }

    /// The port where none is given, as `bench_serving` has it.
    pub fn port(self) -> u16 {
        match self {
            Backend::Vllm | Backend::VllmEmbedding | Backend::Trt => 8000,
            Backend::Lmdeploy => 23_333,
            Backend::Gserver => 9988,
            Backend::Truss => 8080,
            _ => DEFAULT_PORT,
        }
    }

    /// The name on the command line and in result files.
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Can it be measured?
    ///
    /// # Errors
    /// It does not generate tokens, or has no client.
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
