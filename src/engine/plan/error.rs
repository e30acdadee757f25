//! Why there is no plan.

use crate::engine::base::text::Quoted;

/// A condition that stands between the question and an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A text is not in the grammar of the program that would read it.
    #[error("{} is not what {reader} reads: {grammar}", Quoted(text))]
    NotASize {
        text: String,
        /// The program that would read it.
        reader: &'static str,
        grammar: &'static str,
    },
    /// A size flag's text has a unit that upstream's script does not read, or is not a number.
    #[error(
        "{flag} {}: invalid size: write {bare}, or a number with kb, mb, gb or tb (powers of 1024), e.g. 64gb",
        Quoted(given)
    )]
    NotAFlagSize {
        /// The flag, with its dashes.
        flag: &'static str,
        /// The text after it.
        given: String,
        /// What a bare number is, with an example.
        bare: &'static str,
    },
    /// SGLang's `--hicache-size` counts whole GB.
    #[error("--hicache-size {} is less than 1 GB (10^9 bytes), the least that SGLang accepts", Quoted(given))]
    BelowOneGb { given: String },
    /// A figure is larger than any host.
    #[error("{what} is absurdly large")]
    TooLarge { what: &'static str },
    /// A count that must be positive is 0.
    #[error("{what} must be at least 1")]
    Zero { what: &'static str },
    /// SGLang refuses these sizes together.
    #[error("{what} {value} cannot be divided by {by} {divisor}: SGLang refuses that")]
    NotDivisible { what: &'static str, value: u64, by: &'static str, divisor: u64 },
    /// SGLang refuses data parallelism over several hosts without DP attention.
    #[error("dp {dp} over {nnodes} hosts needs DP attention: SGLang refuses it otherwise")]
    DataParallelHosts { dp: u64, nnodes: u64 },
    /// More pipeline stages than layers.
    #[error("{pp} pipeline stages are more than the {layers} layers of the model")]
    TooManyStages { pp: u64, layers: u64 },
    /// A model's description lacks something.
    #[error("the model's config.json has no usable {field}")]
    ConfigField { field: &'static str },
    /// A model's description is no JSON object.
    #[error("the model's config.json is not a JSON object: {found}")]
    ConfigSyntax {
        /// What the parser says.
        found: String,
    },
    /// A kind of cache whose host pool has rules that are not known here.
    #[error("models with {what} are not sized: {}", known(what))]
    Unsupported { what: &'static str },
    /// No model of that name is known.
    #[error("no model is known as {}; nearest: {}", Quoted(name), nearest.join(", "))]
    UnknownModel {
        name: String,
        /// Names that are nearest.
        nearest: Vec<&'static str>,
    },
    /// A ratio is not usable.
    #[error("a HiCache ratio must be a positive number")]
    Ratio,
}

/// What is known of kinds of cache that are not sized.
fn known(what: &str) -> &'static str {
    match what {
        LINEAR | MAMBA => {
            "they keep a state per slot beside the keys (layers x (the convolution's shapes and the temporal shape, each x its \
             element)), which shares --hicache-size by what both take on the device, and only the running server knows that"
        }
        COMPRESSED => "SGLang refuses --hicache-size for them, and what a token takes depends on the layers' ratios",
        SLIDING => "their sliding layers keep a window only, and how much of it is held the requests decide",
        _ => "they keep more than keys and values per token",
    }
}

/// Linear attention (Qwen3-Next, Kimi-Linear).
pub const LINEAR: &str = "linear attention";
/// Mamba layers.
pub const MAMBA: &str = "mamba layers";
/// Compressed attention (DeepSeek-V4).
pub const COMPRESSED: &str = "compressed attention";
/// Sliding layers, where tokens are asked for.
pub const SLIDING: &str = "sliding layers";

/// `u128` to `u64`.
///
/// # Errors
/// It does not fit.
pub(crate) fn narrow(value: u128, what: &'static str) -> Result<u64, PlanError> {
    u64::try_from(value).map_err(|_| PlanError::TooLarge { what })
}
