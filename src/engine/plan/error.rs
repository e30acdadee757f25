//! Errors of the sizing calculation.

use crate::engine::base::text::Quoted;

/// Why the sizes cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// A text does not match the grammar of the program that reads it.
    #[error("invalid size {} for {reader}: expected {grammar}", Quoted(text))]
    NotASize {
        text: String,
        /// The program that reads it.
        reader: &'static str,
        grammar: &'static str,
    },
    /// The text of a size flag has an unknown unit, or is not a number.
    #[error(
        "{flag} {}: invalid size: write {bare}, or a number with kb, mb, gb or tb (powers of 1024), e.g. 64gb",
        Quoted(given)
    )]
    NotAFlagSize {
        /// The flag with its dashes.
        flag: &'static str,
        /// The value of the flag.
        given: String,
        /// The meaning of a bare number, with an example.
        bare: &'static str,
    },
    /// SGLang's `--hicache-size` counts whole GB.
    #[error("--hicache-size {} is less than 1 GB (10^9 bytes), the minimum that SGLang accepts", Quoted(given))]
    BelowOneGb { given: String },
    /// A value exceeds any real host.
    #[error("{what} is out of range")]
    TooLarge { what: &'static str },
    /// A count that must be positive is 0.
    #[error("{what} must be at least 1")]
    Zero { what: &'static str },
    /// SGLang rejects this combination of sizes.
    #[error("{what} {value} is not divisible by {by} {divisor}, which SGLang requires")]
    NotDivisible { what: &'static str, value: u64, by: &'static str, divisor: u64 },
    /// SGLang rejects data parallelism over several hosts without DP attention.
    #[error("dp {dp} over {nnodes} hosts requires DP attention in SGLang")]
    DataParallelHosts { dp: u64, nnodes: u64 },
    /// There are more pipeline stages than layers.
    #[error("{pp} pipeline stages exceed the {layers} layers of the model")]
    TooManyStages { pp: u64, layers: u64 },
    /// A field of config.json is missing or invalid.
    #[error("the model's config.json has no valid {field}")]
    ConfigField { field: &'static str },
    /// The config.json is not a JSON object.
    #[error("the model's config.json is not a JSON object: {found}")]
    ConfigSyntax { found: String },
    /// The host pool of this kind of cache cannot be computed.
    #[error("models with {what} are not supported: {}", known(what))]
    Unsupported { what: &'static str },
    /// The model name is unknown.
    #[error("unknown model {}; did you mean {}?", Quoted(name), nearest.join(", "))]
    UnknownModel {
        name: String,
        /// The most similar names.
        nearest: Vec<&'static str>,
    },
    /// The ratio is not a positive number.
    #[error("a HiCache ratio must be a positive number")]
    Ratio,
}

/// Why a kind of cache is not supported.
fn known(what: &str) -> &'static str {
    match what {
        LINEAR | MAMBA => {
            "they also keep a state per slot (layers x (convolution and temporal shape, each x its \
             element size)), whose share of --hicache-size depends on the running server"
        }
        COMPRESSED => "SGLang rejects --hicache-size for them, and bytes per token depend on the layers' ratios",
        SLIDING => "their sliding layers keep only a window of tokens, whose size in use depends on the requests",
        _ => "they keep more than keys and values per token",
    }
}

/// Linear attention (Qwen3-Next, Kimi-Linear).
pub const LINEAR: &str = "linear attention";
pub const MAMBA: &str = "mamba layers";
pub const COMPRESSED: &str = "compressed attention";
/// Sliding layers, if a number of tokens is required.
pub const SLIDING: &str = "sliding layers";

/// Converts `u128` to `u64`.
///
/// # Errors
/// The value does not fit.
pub(crate) fn narrow(value: u128, what: &'static str) -> Result<u64, SizingError> {
    u64::try_from(value).map_err(|_| SizingError::TooLarge { what })
}
