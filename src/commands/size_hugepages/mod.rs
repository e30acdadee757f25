//! `mcctl size-hugepages`: computes the memory and huge pages for an SGLang HiCache deployment, and
//! compares them with this host.
//!
//! This module parses and prints; the arithmetic is in [`crate::engine::plan`].

mod apply;
mod beside;
mod build;
pub mod compat;
mod deployment;
mod host;
mod max_fit;
mod model;
mod observed;
mod paste;
mod pool_args;
mod pools_table;
mod report;
mod request;
mod settings;
mod summary;
mod table;
mod trace;
mod verdict;

use std::path::{Path, PathBuf};

use crate::commands::cli::error::{Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::max_fit::FittedSizes;
use crate::commands::size_hugepages::pool_args::PoolArgs;
use crate::commands::size_hugepages::report::SizingReport;
use crate::commands::size_hugepages::settings::SettingArgs;
use crate::commands::size_hugepages::trace::args::TraceArgs;

/// Describes how command-line sizes are interpreted, for `--help`.
const SIZES_HELP: &str = "How sizes are interpreted (1gb = 1024^3 bytes, 1 GB = 10^9 bytes):

  flag                        64         64gb       used by
  --hicache-size              64 GB      64 GiB     SGLang, as a whole number of GB
  --hugepage-size             -          (2mb/1gb)  store
  --observed-bytes            64 bytes   64 GiB     mcctl
  --available-hugetlb         64 bytes   64 GiB     mcctl
  --available-memory          64 bytes   64 GiB     mcctl
  --global-segment-size       64 bytes   64 GiB     SGLang and the store
  --arena-pool-size           64 bytes   64 GiB     store, rounded up to 2 MiB
  --store-segment-size        64 bytes   64 GiB     store
  --store-local-buffer-size   64 bytes   64 GiB     store
  --max-mr-size               64 bytes   64 GiB     transfer engine

Units are b, kb, mb, gb and tb (powers of 1024); kib, mib, gib and tib are aliases.
The report shows every size that a program adjusts.

Exit codes, also of --max-fit:

  0  the deployment fits the host as it is now, or too little is known about the host
  1  it does not fit, it fits only some models, or huge pages must still be reserved

With --trace: 0, or 1 if a rate of --hit-rate is not reachable, or no size was found for --out";

/// The deployment to size, with the same flags as SGLang and upstream's sizing script.
#[derive(Clone, Debug, clap::Args)]
#[command(before_help = "model tp-size hicache-size hicache-ratio global-segment-size page-size max-fit apply json")]
#[command(
    before_long_help = "mcctl size-hugepages --model Qwen3-32B --tp-size 4 --hicache-size 64  # memory and huge pages for a server with 64 GB of L2 per rank\n\
    mcctl size-hugepages --model Qwen3-32B --hicache-size 64 --apply  # also reserve the huge pages"
)]
#[command(after_long_help = SIZES_HELP)]
pub struct Args {
    /// Deployment file (.toml or .yaml) with all sizes: show what each of its hosts needs, and
    /// whether [host] in the file has it
    #[arg(value_name = "FILE", conflicts_with_all = ["tp_size", "hicache_size", "hicache_ratio", "device_pool_tokens", "global_segment_size", "arena_pool_size", "hugepage_size", "available_hugetlb", "available_memory", "model", "page_size", "kv_cache_dtype", "pp_size", "dp_size", "enable_dp_attention", "dcp_size", "packed_draft_layers", "dsa_fp8_layout", "max_mr_size", "nnodes", "store_services", "store_segment_size", "store_local_buffer_size", "protocol", "nic_numa_nodes", "no_hugepages", "device_name", "master", "metadata_server", "hicache_mem_layout", "hicache_io_backend", "device_swa_tokens", "device_mamba_slots", "hicache_host_memory_fraction", "hicache_host_memory_mode", "mamba_ssm_dtype", "live_prefixes", "states_per_prefix", "conversation_tokens", "max_fit", "trace", "block_size", "time_unit", "skip_bad", "live_sessions", "sample_blocks", "hicache_write_policy", "hit_rate", "gpu_hour", "dram_gb_month", "ssd_gb_month", "prefill_tokens_per_second", "gpus", "trace_hours", "choose", "servers", "out", "force", "svg", "html", "per_request", "prefetch_threshold", "chunked_prefill_size", "no_storage", "observed_keys", "observed_bytes", "apply", "persist", "keep_partial", "dry_run", "compat", "root"])]
    pub(crate) file: Option<PathBuf>,
    /// Tensor parallel size (tp): number of ranks
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) tp_size: u64,
    /// L2 per rank: 64 means 64 GB (10^9 bytes each), the same as in SGLang; 64gb means 64 GiB, the
    /// same as in upstream's sizing script. SGLang receives a whole number of GB, rounded down
    #[arg(long, value_name = "SIZE", conflicts_with = "hicache_ratio", allow_hyphen_values = true)]
    pub(crate) hicache_size: Option<String>,
    /// L2 as a multiple of the device pool; requires --device-pool-tokens and --model
    #[arg(long, value_name = "RATIO", requires = "device_pool_tokens", allow_hyphen_values = true)]
    pub(crate) hicache_ratio: Option<f64>,
    /// Device pool size in tokens (max_total_num_tokens in SGLang's log). With several pools, it
    /// makes their shares of --hicache-size exact; without a size, SGLang's automatic size applies
    #[arg(long, value_name = "N")]
    pub(crate) device_pool_tokens: Option<u64>,
    /// Memory that one TP x PP group contributes to the store, in bytes or with a binary unit
    /// (4gb); 0 for none [default: 4gb]
    #[arg(long, visible_alias = "segment-size", value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) global_segment_size: Option<String>,
    /// MC_MMAP_ARENA_POOL_SIZE for each process, in bytes or with a binary unit (4gb); 0 for none
    #[arg(long, value_name = "SIZE", default_value = "0", allow_hyphen_values = true)]
    pub(crate) arena_pool_size: String,
    /// Huge page size: 2mb or 1gb
    #[arg(long, value_name = "SIZE", default_value = "2mb", allow_hyphen_values = true)]
    pub(crate) hugepage_size: String,
    /// Plan for regular memory instead of huge pages: SGLang and the store run without
    /// MC_STORE_USE_HUGEPAGE
    #[arg(long, conflicts_with_all = ["hugepage_size", "available_hugetlb", "arena_pool_size", "apply", "persist", "observed_keys"])]
    pub(crate) no_hugepages: bool,
    /// Available huge page memory on the target host, in bytes or with a binary unit (512gb)
    /// [default: this host's]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) available_hugetlb: Option<String>,
    /// MemAvailable on the target host, not counting huge pages, in bytes or with a binary unit
    /// (4gb) [default: this host's, unless --available-hugetlb is set]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) available_memory: Option<String>,
    /// A config.json, a directory that contains one, or the name of a known model; without a model,
    /// only bounds are computed
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Tokens per page (SGLang's default on CUDA and ROCm is 1)
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) page_size: u64,
    /// Cache element type: auto, bf16, fp8_e4m3, fp8_e5m2 or mxfp8
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub(crate) kv_cache_dtype: String,
    /// Pipeline parallel size (pp): number of ranks
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) pp_size: u64,
    /// Data parallel size (dp): number of ranks
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) dp_size: u64,
    /// Treat the data parallel ranks as groups within tp
    #[arg(long)]
    pub(crate) enable_dp_attention: bool,
    /// Decode context parallel size: number of ranks that the rows of an MLA cache are split across
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "per_request")]
    pub(crate) dcp_size: u64,
    /// Number of draft model (MTP) layers that SGLang adds to the main model's pools
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) packed_draft_layers: u64,
    /// Row format for sparse attention in fp8: scaled, or raw (TRT-LLM, ROCm and TileLang kernels)
    #[arg(long, value_name = "LAYOUT", default_value = "scaled", value_parser = ["scaled", "raw"])]
    pub(crate) dsa_fp8_layout: String,
    /// MC_MAX_MR_SIZE, the maximum memory region size, in bytes or with a binary unit (4gb). Larger
    /// buffers are split
    #[arg(long, value_name = "SIZE", default_value = "1tb", allow_hyphen_values = true)]
    pub(crate) max_mr_size: String,
    /// Number of hosts in the deployment
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) nnodes: u64,
    /// Number of store services on the same host
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u64).range(..=65536))]
    pub(crate) store_services: u64,
    /// Segment size of each store service (not divided), in bytes or with a binary unit (4gb)
    #[arg(long, value_name = "SIZE", default_value = "3355443200", requires = "store_services")]
    pub(crate) store_segment_size: String,
    /// Local buffer size of each store service, in bytes or with a binary unit (4gb)
    #[arg(long, value_name = "SIZE", default_value = "1073741824", requires = "store_services")]
    pub(crate) store_local_buffer_size: String,
    /// Transport: tcp or rdma
    #[arg(long, value_name = "PROTOCOL", default_value = "tcp", value_parser = ["tcp", "rdma"])]
    pub(crate) protocol: String,
    /// NUMA nodes with NICs, e.g. 0,1; an RDMA segment is spread across them
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    pub(crate) nic_numa_nodes: Vec<u32>,
    #[command(flatten)]
    pub(crate) pools: PoolArgs,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    /// Tokens per conversation, to show how many conversations a tier holds
    #[arg(long, value_name = "N", default_value = "8192")]
    pub(crate) conversation_tokens: u64,
    /// Find the largest sizes that fit the host: L2, the segment, or both
    ///
    /// If the size of L2 is set, the segment is searched, and if --global-segment-size is set, L2.
    /// Otherwise, L2 and the segment have about the same size. With --available-hugetlb, the result
    /// never needs more huge pages than that. Without it, it may need pages that must still be
    /// reserved on this host.
    #[arg(long, alias = "fit")]
    pub(crate) max_fit: bool,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Number of keys that a master reports (master_key_count); their computed size is compared
    /// with --observed-bytes
    #[arg(long, value_name = "N", requires_all = ["observed_bytes", "model"], conflicts_with_all = ["trace", "max_fit", "apply", "persist"])]
    pub(crate) observed_keys: Option<u64>,
    /// Allocated size that the master reports (master_allocated_bytes), in bytes or with a binary
    /// unit (4gb); the master's GB is 1024^3 bytes
    #[arg(long, value_name = "SIZE", requires = "observed_keys", allow_hyphen_values = true)]
    pub(crate) observed_bytes: Option<String>,
    /// Reserve the missing huge pages per NUMA node, verify the number that the kernel allocated,
    /// and undo a partial reservation
    #[arg(long, conflicts_with = "available_hugetlb")]
    pub(crate) apply: bool,
    /// Write the file that reserves the huge pages at boot: sysctl.d, or the kernel command line
    /// for 1 GiB pages
    #[arg(long, conflicts_with = "available_hugetlb")]
    pub(crate) persist: bool,
    /// Print what --apply and --persist would write
    #[arg(long)]
    dry_run: bool,
    /// With --apply, keep a partial reservation
    #[arg(long, requires = "apply")]
    pub(crate) keep_partial: bool,
    /// Directory that contains the host's /sys and /etc
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Print one JSON document to stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Behave like upstream's script: its size syntax, output and exit codes (0, 1, 2, 64). Accepts
    /// only its six options
    #[arg(long)]
    compat: bool,
}

/// The program name and arguments for upstream's script, if it is requested by the program name or
/// with `--compat`.
pub fn compat_of(args: &[String]) -> Option<(String, Vec<String>)> {
    let (program, rest) = args.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    if [compat::PROGRAM, "check_hicache_hugepage_requirements", "check_hicache_hugepage_requirements.py"]
        .contains(&name)
    {
        return Some((name.to_owned(), rest.to_vec()));
    }
    let (command, rest) = rest.split_first()?;
    let at = rest.iter().position(|arg| arg == "--compat").filter(|_| command == "size-hugepages")?;
    let mut rest = rest.to_vec();
    rest.remove(at);
    Some((compat::PROGRAM.to_owned(), rest))
}

/// SGLang's default for `MOONCAKE_GLOBAL_SEGMENT_SIZE`.
const SEGMENT_DEFAULT: &str = "4gb";

impl Args {
    /// `--global-segment-size` or its default.
    fn segment_text(&self) -> &str {
        self.global_segment_size.as_deref().unwrap_or(SEGMENT_DEFAULT)
    }

    /// Computes and prints the report.
    ///
    /// # Errors
    /// The command line is invalid, a file cannot be read, or the reservation fails.
    pub fn run(self) -> Outcome {
        if self.dry_run && !self.apply && !self.persist {
            return Err(Failure::usage("--dry-run requires --apply or --persist").next("add one of them"));
        }
        // `compat_of` handles the flag before clap, unless it follows mcctl's own options.
        if self.compat {
            return Err(Failure::usage("--compat accepts only upstream's options")
                .next("put --compat first: mcctl size-hugepages --compat"));
        }
        if let Some(path) = &self.file {
            return deployment::run(&self, path);
        }
        if let Some(path) = &self.trace.trace {
            return trace::run(&self, path);
        }
        if let (Some(keys), Some(bytes)) = (self.observed_keys, &self.observed_bytes) {
            return observed::run(&self, keys, bytes);
        }
        if self.max_fit {
            let (args, found) = max_fit::fitted(&self)?;
            return args.size(Some(&found));
        }
        self.size(None)
    }

    /// Sizes a deployment whose sizes are all set. `found` are those that `--max-fit` has found.
    fn size(&self, found: Option<&FittedSizes>) -> Outcome {
        let request = request::read(self)?;
        let mut host = TargetHost::read(self, &request)?;
        let mut report = SizingReport::new(self, &request, &host, found)?;
        if self.dry_run {
            apply::dry_run(self, &host, &report)?;
        } else {
            if self.apply {
                apply::apply(self, &host, &report)?;
                host = TargetHost::read(self, &request)?;
                report = SizingReport::new(self, &request, &host, found)?;
            }
            if self.persist {
                apply::persist(self, &host, &report)?;
            }
        }
        if self.json {
            output::json(&report)?;
        } else {
            output::data(table::render(&report))?;
        }
        Ok(report.verdict.exit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_file_excludes_every_flag_that_it_would_ignore() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("size-hugepages"));
        let file = command.get_arguments().find(|arg| arg.get_id() == "file").unwrap();
        let excluded: Vec<&str> =
            command.get_arg_conflicts_with(file).iter().map(|arg| arg.get_id().as_str()).collect();
        // The output format is the only flag that applies to both.
        let expected: Vec<&str> = command
            .get_arguments()
            .map(|arg| arg.get_id().as_str())
            .filter(|id| !["file", "json"].contains(id))
            .collect();
        let missing: Vec<&&str> = expected.iter().filter(|id| !excluded.contains(id)).collect();
        assert!(missing.is_empty() && excluded.len() == expected.len(), "{missing:?}");
    }

    #[test]
    fn a_symlink_or_the_flag_selects_the_script() {
        let of = |line: &str| {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            compat_of(&args).map(|(program, rest)| (program, rest.join(" ")))
        };
        let script = |name: &str, rest: &str| Some((name.to_owned(), rest.to_owned()));
        assert_eq!(of("/usr/bin/mooncake-hicache-sizing --tp 1"), script("mooncake-hicache-sizing", "--tp 1"));
        let long = "check_hicache_hugepage_requirements";
        assert_eq!(of(&format!("{long} -h")), script(long, "-h"));
        assert_eq!(of("mcctl size-hugepages --tp 1 --compat -h"), script("mooncake-hicache-sizing", "--tp 1 -h"));
        assert_eq!(of("mcctl size-hugepages --tp-size 1"), None);
        assert_eq!(of("mcctl up --compat"), None);
    }
}
