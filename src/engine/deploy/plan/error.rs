//! Errors from the sizing calculation.

use mcctl_base::text::Quoted;

/// The reason why the sizes cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// The string does not match the size grammar of the program that reads it.
    #[error("invalid size {} for {reader}: expected {grammar}", Quoted(text))]
    NotASize {
        text: String,
        /// The program that reads the string.
        reader: &'static str,
        grammar: &'static str,
    },
    /// A size flag's value has an unknown unit or is not a number.
    #[error(
        "invalid size {} for {flag}: use {bare}, or a number with a kb, mb, gb or tb suffix (powers of 1024), e.g. 64gb",
        Quoted(given)
    )]
    NotAFlagSize {
        /// The flag, including its dashes.
        flag: &'static str,
        /// The value of the flag.
        given: String,
        /// The meaning of a bare number, with an example.
        bare: &'static str,
    },
    /// The size is below 1 GB, the smallest `--hicache-size` that SGLang accepts.
    #[error("--hicache-size {} is less than 1 GB (10^9 bytes), the minimum that SGLang accepts", Quoted(given))]
    BelowOneGb { given: String },
    /// The value exceeds the capacity of any real host.
    #[error("{what} is out of range")]
    TooLarge { what: &'static str },
    /// A count that must be positive is 0.
    #[error("{what} must be at least 1")]
    Zero { what: &'static str },
    /// SGLang rejects this combination of sizes.
    #[error("SGLang requires {what} ({value}) to be divisible by {by} ({divisor})")]
    NotDivisible { what: &'static str, value: u64, by: &'static str, divisor: u64 },
    /// SGLang rejects data parallelism across several hosts without DP attention.
    #[error("SGLang requires DP attention for dp {dp} across {nnodes} hosts")]
    DataParallelHosts { dp: u64, nnodes: u64 },
    /// There are more pipeline stages than layers.
    #[error("{pp} pipeline stages exceed the model's {layers} layers")]
    TooManyStages { pp: u64, layers: u64 },
    /// A field of config.json is missing or invalid.
    #[error("missing or invalid field {field} in the model's config.json")]
    ConfigField { field: &'static str },
    /// The config.json is not a JSON object.
    #[error("the model's config.json is invalid: {found}")]
    ConfigSyntax { found: String },
    /// The host pool for this type of cache cannot be computed.
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
    #[error("the HiCache ratio must be a positive number")]
    Ratio,
}

/// Returns the reason why a type of cache is not supported.
fn known(what: &str) -> &'static str {
    match what {
        LINEAR | MAMBA => {
            "they also keep per-slot state (layers x (convolution and temporal shape, each x its \
             element size)), whose share of --hicache-size is unknown until the server is running"
        }
        COMPRESSED => {
            "SGLang rejects --hicache-size for them, and bytes per token depend on each layer's compression ratio"
        }
        SLIDING => {
            "their sliding layers keep only a window of tokens, and how much of it is used depends on the requests"
        }
        _ => "they store more than keys and values per token",
    }
}

/// Linear attention (Qwen3-Next, Kimi-Linear).
pub const LINEAR: &str = "linear attention";
pub const MAMBA: &str = "mamba layers";
pub const COMPRESSED: &str = "compressed attention";
/// Sliding-window layers, if an exact token count is required.
pub const SLIDING: &str = "sliding layers";

/// Converts `u128` to `u64`.
///
/// # Errors
/// The value does not fit.
pub(crate) fn narrow(value: u128, what: &'static str) -> Result<u64, SizingError> {
    u64::try_from(value).map_err(|_| SizingError::TooLarge { what })
}
