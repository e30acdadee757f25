//! `mcctl serve sim`: a simulated SGLang server. Flag names match SGLang where SGLang has the same
//! flag.

use std::time::Duration;

use crate::commands::cli::args;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::logging::LogFileOptions;
use crate::commands::cli::output;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::serve::simulator::{self, WARNING};
use crate::commands::target::connect::{self, ClientArgs};
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::env::{RealEnv, processors};
use crate::engine::sim::{Config, Cost};
use crate::engine::store::{StoreClient, StoreClientBuilder};

/// Flags of `mcctl serve sim`.
#[derive(Debug, clap::Args)]
#[command(before_help = "port host enable-hierarchical-cache master max-total-tokens hicache-ratio page-size")]
#[command(before_long_help = "mcctl serve sim  # simulate an SGLang server with a device cache (L1) on port 30000\n\
    mcctl serve sim --enable-hierarchical-cache --master 127.0.0.1:50051  # add a host cache (L2) and a Mooncake store (L3)")]
pub struct Args {
    /// Address to listen on
    #[arg(long, visible_alias = "bind", value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 means any free port
    #[arg(long, value_name = "PORT", default_value_t = 30_000)]
    port: u16,
    #[command(flatten)]
    shape: SimShape,
    /// Simulate a host cache (L2) behind the device cache (L1)
    #[arg(long)]
    enable_hierarchical_cache: bool,
    /// L3 storage backend: mooncake uses the store at --master [default: mooncake if --master is
    /// set, otherwise none]
    #[arg(long, value_name = "NAME", value_parser = ["mooncake"])]
    hicache_storage_backend: Option<String>,
    #[command(flatten)]
    link: ClientArgs,
    #[command(flatten)]
    accepted: SglangCompatFlags,
    #[command(flatten)]
    pub(in crate::commands) log: LogFileOptions,
}

/// A simulator's cache sizes, limits and cost model.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Simulated server")]
pub struct SimShape {
    /// Model name
    #[arg(long, visible_alias = "model-path", value_name = "NAME", default_value = "sim")]
    served_model_name: String,
    /// Tokens per page
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    page_size: u32,
    /// Device cache (L1) size in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(16..=1 << 30))]
    max_total_tokens: u32,
    /// L2 size as a multiple of L1, plus one page, the same as in SGLang
    #[arg(long, value_name = "RATIO", default_value_t = 2.0, value_parser = args::positive)]
    hicache_ratio: f64,
    /// L2 size in tokens, rounded down to whole pages; overrides --hicache-ratio
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=HOST_TOKENS_MAX))]
    hicache_size_tokens: Option<u64>,
    /// L2 size in GB (10^9 bytes), plus one page, the same as in SGLang; overrides --hicache-ratio
    #[arg(long, value_name = "GB", value_parser = args::positive)]
    hicache_size: Option<f64>,
    /// Minimum number of uncached tokens for an L3 lookup
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    prefetch_threshold: u32,
    /// Size of one token's keys and values in L3
    #[arg(long, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..=4 << 20))]
    bytes_per_token: u32,
    /// Maximum total number of tokens in prompt and output
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    context_length: u32,
    /// Maximum number of running requests
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_running_requests: u32,
    /// Maximum number of queued requests; further requests are rejected with 503
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_queued_requests: u32,
    /// Maximum prompt tokens per step, across all prompts
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    chunked_prefill_size: u32,
    /// Number of output tokens if the request does not set a limit
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    output_tokens: u32,
    /// Stream only the new text in each /generate event
    #[arg(long)]
    incremental_streaming_output: bool,
    /// Prompt tokens computed per second
    #[arg(long, value_name = "TOKENS", default_value_t = 20_000.0, value_parser = args::positive)]
    prefill_tokens_per_s: f64,
    /// Duration of a step, in which either each running request generates one token, or prompts are
    /// computed
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = args::not_negative)]
    decode_step_ms: f64,
    /// Additional step duration per running request
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = args::not_negative)]
    decode_step_us_per_request: f64,
    /// Tokens loaded from L2 to L1 per second
    #[arg(long, value_name = "TOKENS", default_value_t = 400_000.0, value_parser = args::positive)]
    load_back_tokens_per_s: f64,
    /// Maximum tokens read from L3 per second; 0 means no limit
    #[arg(long, value_name = "TOKENS", default_value_t = 0.0, value_parser = args::not_negative)]
    storage_tokens_per_s: f64,
}

/// SGLang flags that are accepted so that SGLang command lines work unchanged. The features are
/// always on.
#[derive(Debug, clap::Args)]
struct SglangCompatFlags {
    /// (no effect) Serve /metrics: it is always served
    #[arg(long, hide = true)]
    enable_metrics: bool,
    /// (no effect) Report cached tokens: they are always reported
    #[arg(long, hide = true)]
    enable_cache_report: bool,
    /// When L1 is written to L2: only write_through
    #[arg(long, hide = true, value_name = "POLICY", value_parser = ["write_through"])]
    hicache_write_policy: Option<String>,
    /// How long a request waits for L3: only wait_complete
    #[arg(long, hide = true, value_name = "POLICY", value_parser = ["wait_complete"])]
    hicache_storage_prefetch_policy: Option<String>,
    /// (no effect) How pages are copied between L1 and L2
    #[arg(long, hide = true, value_name = "NAME")]
    hicache_io_backend: Option<String>,
    /// (no effect) Layout of pages in L2
    #[arg(long, hide = true, value_name = "NAME")]
    hicache_mem_layout: Option<String>,
}

/// Threads for requests, storage and the engine.
const THREADS_MAX: usize = 4;
/// Maximum L2 size in tokens.
const HOST_TOKENS_MAX: u64 = 1 << 34;
/// Maximum object size. A page is stored as two objects.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

impl SimShape {
    /// The engine configuration.
    ///
    /// # Errors
    /// The sizes contradict each other or exceed a limit.
    pub(in crate::commands) fn config(&self, hicache: bool) -> Result<Config, Failure> {
        let page = u64::from(self.page_size);
        let device = u64::from(self.max_total_tokens);
        let bytes = u64::from(self.bytes_per_token);
        if device < 2 * page {
            return Err(Failure::usage(format!("--max-total-tokens {device} is less than two pages of {page} tokens"))
                .next("raise --max-total-tokens, or lower --page-size"));
        }
        let pages = |tokens: u64| tokens / page * page;
        let host = match (self.hicache_size_tokens, self.hicache_size) {
            // At least one page.
            (Some(tokens), _) => pages(tokens).max(page),
            // SGLang adds one padding page to its pool.
            (None, Some(gb)) => pages((gb * 1e9 / bytes as f64) as u64).saturating_add(page),
            (None, None) => pages((device as f64 * self.hicache_ratio) as u64).saturating_add(page),
        };
        if host > HOST_TOKENS_MAX {
            return Err(Failure::usage(format!("an L2 of {host} tokens exceeds the maximum of {HOST_TOKENS_MAX}"))
                .next("lower --hicache-ratio, --hicache-size or --hicache-size-tokens"));
        }
        let host = if hicache { host } else { 0 };
        let config = Config {
            model: self.served_model_name.clone(),
            page_size: page,
            device_tokens: device / page * page,
            host_tokens: host,
            storage: false,
            prefetch_threshold: u64::from(self.prefetch_threshold),
            bytes_per_token: bytes,
            context_length: u64::from(self.context_length),
            running_max: self.max_running_requests as usize,
            queue_max: self.max_queued_requests as usize,
            prefill_batch_tokens: u64::from(self.chunked_prefill_size),
            output_tokens: self.output_tokens,
            incremental: self.incremental_streaming_output,
            cost: Cost {
                prefill_tokens_per_s: self.prefill_tokens_per_s,
                step: time(self.decode_step_ms / 1e3),
                step_per_request: time(self.decode_step_us_per_request / 1e6),
                load_back_tokens_per_s: self.load_back_tokens_per_s,
                storage_tokens_per_s: self.storage_tokens_per_s,
            },
        };
        if config.object_bytes() > OBJECT_BYTES_MAX {
            let found = format!("a page is stored as two objects of {}", ByteSize(config.object_bytes()));
            return Err(Failure::usage(format!(
                "a page does not fit into two objects of {}",
                ByteSize(OBJECT_BYTES_MAX)
            ))
            .found(found)
            .next("lower --page-size or --bytes-per-token"));
        }
        Ok(config)
    }
}

/// `seconds` as a duration, limited to a day so that sums do not overflow.
fn time(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.min(86_400.0))
}

impl Args {
    /// Runs the simulator until it receives SIGINT or SIGTERM.
    ///
    /// # Errors
    /// The sizes are invalid, the port cannot be bound, or the store is unreachable.
    pub fn run(self) -> Outcome {
        let has_storage = self.hicache_storage_backend.is_some() || self.link.connect.master.master.is_some();
        let config = self.shape.config(self.enable_hierarchical_cache || has_storage)?;
        output::say(format!("mcctl serve sim: {WARNING}"));
        runtime::block_on(processors().clamp(2, THREADS_MAX), async {
            let mut signals = Signals::take_for_service()?;
            let client = match has_storage {
                true => match connect(&self.link, &mut signals).await? {
                    Some(client) => Some(client),
                    None => return Ok(Exit::Done),
                },
                false => None,
            };
            let served = self.serve(&config, client.as_ref(), &mut signals).await;
            if let Some(client) = client {
                runtime::stop_in_time("the client", client.stop()).await;
            }
            served
        })
    }

    async fn serve(&self, config: &Config, client: Option<&StoreClient<RealEnv>>, signals: &mut Signals) -> Outcome {
        let listen = ListenAddress {
            what: "the simulator",
            at: HostPort::new(self.host.clone(), self.port),
            origin: format!("--port {}", self.port),
            host_origin: format!("--host {}", self.host),
        };
        let running = simulator::start(config, client, &listen).await?;
        output::line(format!(
            "ready: simulated SGLang server at http://{}; {}",
            running.at(),
            tiers(config, client.is_some())
        ))?;
        let signal = signals.next().await;
        output::say(format!("{signal}: stopping"));
        runtime::stop_in_time("the simulator", running.stop()).await;
        Ok(Exit::Done)
    }
}

/// The cache tier sizes, for the ready line.
fn tiers(config: &Config, storage: bool) -> String {
    let mut text = format!("L1 {} tokens", config.device_tokens);
    if config.host_tokens > 0 {
        text.push_str(&format!(", L2 {} tokens", config.host_tokens));
    }
    if storage {
        text.push_str(&format!(", L3 store with {} per page", ByteSize(2 * config.object_bytes())));
    }
    text
}

/// A client of the store that `link` selects; `None` if a signal arrives first.
async fn connect(link: &ClientArgs, signals: &mut Signals) -> Result<Option<StoreClient<RealEnv>>, Failure> {
    let start = async {
        let (master, plan) = link.planned().await?;
        match StoreClientBuilder::from(plan.config.clone()).start(RealEnv::new()).await {
            Ok(client) => {
                plan.log_note();
                Ok(Some(client))
            }
            Err(error) => Err(connect::unstarted(&master, &plan, error).await),
        }
    };
    tokio::select! {
        started = start => started,
        signal = signals.next() => {
            output::say(format!("{signal}: stopped before the simulator was ready"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ShapeCommand {
        #[command(flatten)]
        shape: SimShape,
    }

    #[test]
    fn l2_has_the_given_tokens_or_sglangs_size_for_a_ratio_or_gb() {
        let host = |hicache: bool, flags: &[&str]| {
            let line = ShapeCommand::try_parse_from([&["sim", "--page-size=16"], flags].concat()).expect("flags");
            line.shape.config(hicache).expect("sizes").host_tokens
        };
        assert_eq!(host(true, &["--hicache-size-tokens=32768"]), 32_768);
        assert_eq!(host(true, &["--hicache-size-tokens=32783"]), 32_768, "whole pages");
        assert_eq!(host(true, &["--hicache-size-tokens=5"]), 16, "at least one page");
        // A real SGLang server with an L1 of 4096 tokens reports an L2 of 8208 tokens.
        assert_eq!(host(true, &["--max-total-tokens=4096"]), 8_208);
        assert_eq!(host(true, &["--hicache-size=0.067108864"]), 32_784);
        assert_eq!(host(false, &["--hicache-size-tokens=32768"]), 0);
    }
}
