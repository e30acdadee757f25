//! The flags that describe the pools on the device, SGLang's automatic size, and states.

/// The flags.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolArgs {
    /// Tokens in the device pool of window layers (swa_layer_tokens in SGLang's log) [default:
    /// SGLang's share of --device-pool-tokens]
    #[arg(long, value_name = "N", requires_all = ["device_pool_tokens", "model"])]
    pub(crate) device_swa_tokens: Option<u64>,
    /// Number of state slots on the device, for models with a state per prefix
    /// (max_mamba_cache_size in SGLang's log)
    #[arg(long, value_name = "N", requires = "model")]
    pub(crate) device_mamba_slots: Option<u64>,
    /// Part of the available memory for SGLang's automatic L2 size (above 0, up to 1), with
    /// --device-pool-tokens and neither --hicache-size nor --hicache-ratio [default: 0.8]
    #[arg(long, value_name = "FRACTION", requires_all = ["device_pool_tokens", "model"], conflicts_with_all = ["hicache_size", "hicache_ratio", "max_fit"])]
    pub(crate) hicache_host_memory_fraction: Option<f64>,
    /// What L2 is for: cache, or buffer_only, which lowers SGLang's default ratio from 2 to 1.2
    #[arg(long, value_name = "MODE", default_value = "cache", value_parser = ["cache", "buffer_only"])]
    pub(crate) hicache_host_memory_mode: String,
    /// Type of the temporal state: float32, bfloat16 or float16 [default: that of the model]
    #[arg(long, value_name = "TYPE", value_parser = ["float32", "bfloat16", "float16"], requires = "model")]
    pub(crate) mamba_ssm_dtype: Option<String>,
    /// Number of prefixes whose states should stay in L2, to show the size that avoids a hit rate
    /// of 0
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) live_prefixes: Option<u64>,
    /// Number of state slots per prefix [default: one per chunk of 8192 tokens in
    /// --conversation-tokens, plus one]
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) states_per_prefix: Option<u64>,
}

/// SGLang's default of `--chunked-prefill-size` on GPUs with less than 100 GB of memory.
const CHUNK_TOKENS: u64 = 8_192;

impl PoolArgs {
    /// Slots that one prefix of `tokens` tokens needs: SGLang keeps a state after each chunk, and
    /// after the answer.
    pub(super) fn per_prefix(&self, tokens: u64) -> u64 {
        self.states_per_prefix.unwrap_or_else(|| tokens.div_ceil(CHUNK_TOKENS).saturating_add(1))
    }
}
