//! The API that requests use.

use clap::ValueEnum;

use crate::engine::load::answer::Dialect;

/// API used to send requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// SGLang native route /generate, with token IDs
    #[value(alias = "sglang")]
    Generate,
    /// OpenAI route /v1/chat/completions, with messages
    #[value(alias = "openai")]
    Chat,
    /// OpenAI route /v1/completions, with text
    Completions,
    /// Truss: the completions dialect at a different path
    #[value(skip)]
    Truss,
    /// TensorRT-LLM ensemble route generate_stream
    #[value(skip)]
    TensorRt,
}

impl Api {
    /// Returns the dialect and the URL path.
    pub fn dialect(self) -> (Dialect, &'static str) {
        let dialect = match self {
            Api::Generate => Dialect::Generate,
            Api::Chat => Dialect::Chat,
            Api::Completions => Dialect::Completions,
            Api::Truss => return (Dialect::Completions, "/v1/models/model:predict"),
            Api::TensorRt => Dialect::TensorRt,
        };
        (dialect, dialect.route())
    }
}
