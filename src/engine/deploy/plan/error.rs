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
    /// The architecture's cache is unknown.
    #[error("the cache of {} (field architectures in config.json) is unknown: {why}", Quoted(found))]
    Architecture { found: String, why: &'static str },
    /// SGLang has no such cache for the model.
    #[error("--kv-cache-dtype {cache} does not apply to this model: {why}")]
    CacheType { cache: &'static str, why: &'static str },
    /// A pipeline stage, or the model, has no layers that keep all tokens.
    #[error("a pipeline stage has no full attention layers, so SGLang cannot create its L2")]
    NoAttention,
    /// A pool has no pages.
    #[error("the ratio leaves no pages for the pool {pool}, so SGLang cannot create it")]
    EmptyPool { pool: &'static str },
    /// What the draft layers of this model keep is unknown.
    #[error("draft layers in the pools are not supported for this model: what they keep is unknown")]
    DraftLayers,
    /// SGLang cannot split the model into pipeline stages.
    #[error("SGLang 0.5.23 does not split this model into pipeline stages")]
    Stages,
    /// A known model whose checkpoint may select the cache's type.
    #[error("the checkpoint {} may select an fp8 cache, which depends on its files", Quoted(name))]
    CacheTypeUnknown { name: String },
    /// SGLang rejects a fixed L2 size for DeepSeek-V4.
    #[error("SGLang 0.5.23 rejects --hicache-size for DeepSeek-V4 (\"currently does not support --hicache-size\")")]
    FixedSize,
    /// A ratio applies to a pool whose size on the device is unknown.
    #[error("a ratio also applies to the state slots on the device, whose number is unknown")]
    DeviceSlots,
    /// SGLang sets the page size for DeepSeek-V4.
    #[error("SGLang uses pages of 256 tokens for DeepSeek-V4, not {found}")]
    CompressedPage { found: u64 },
    /// The question has an answer only if all layers keep all tokens.
    #[error("the number of tokens is undefined for this model: {why}")]
    NotPerToken { why: &'static str },
    /// SGLang's automatic size leaves nothing for L2.
    #[error("no memory is left for L2 after SGLang's reserve of 10 GiB")]
    NoMemory,
    /// The model name is unknown.
    #[error("unknown model {}{}", Quoted(name), did_you_mean(nearest))]
    UnknownModel {
        name: String,
        /// The most similar names.
        nearest: Vec<String>,
    },
    /// The ratio is not a positive number.
    #[error("the HiCache ratio must be a positive number")]
    Ratio,
}

fn did_you_mean(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean {}?", nearest.join(", ")) }
}

/// Why bytes per token do not describe a cache with windows.
pub const SLIDING: &str =
    "its sliding layers keep only a window of tokens, and how much of it is used depends on the requests";
/// Why bytes per token do not describe a cache with states.
pub const STATES: &str = "its states are kept per prefix, and the number of prefixes depends on the requests";

/// Converts `u128` to `u64`.
///
/// # Errors
/// The value does not fit.
pub(crate) fn narrow(value: u128, what: &'static str) -> Result<u64, SizingError> {
    u64::try_from(value).map_err(|_| SizingError::TooLarge { what })
}
