//! `mcctl size-hugepages`: how much memory and how many huge pages a SGLang HiCache deployment takes, and whether this host has them.
//!
//! Only asks and prints; the arithmetic is [`crate::engine::plan`]'s.

mod apply;
mod beside;
pub mod compat;
mod curve;
mod curve_html;
mod curve_svg;
mod fit;
mod host;
mod observed;
mod paste;
mod per_request;
mod question;
mod report;
mod summary;
mod table;
mod trace_file;
mod verdict;

use std::path::{Path, PathBuf};

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::size_hugepages::host::Host;
use crate::commands::size_hugepages::report::Report;
use crate::commands::size_hugepages::verdict::Verdict;

/// The deployment to size, with the flags of SGLang and of upstream's sizing script.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Tensor parallel size
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) tp_size: u64,
    /// L2 per rank. A bare number is whole GB (10^9 bytes), as SGLang reads it. With a unit (64gb) it is powers of 1024, as upstream's
    /// sizing script reads it; SGLang then gets the whole GB below
    #[arg(long, value_name = "SIZE", conflicts_with = "hicache_ratio", allow_hyphen_values = true)]
    pub(crate) hicache_size: Option<String>,
    /// L2 as a multiple of the device's pool; with --device-pool-tokens and --model
    #[arg(long, value_name = "RATIO", requires = "device_pool_tokens", allow_hyphen_values = true)]
    pub(crate) hicache_ratio: Option<f64>,
    /// Tokens of the device's pool (max_total_num_tokens in SGLang's log)
    #[arg(long, value_name = "N")]
    pub(crate) device_pool_tokens: Option<u64>,
    /// Memory that one TP x PP group contributes to the store: bytes, or with a unit powers of 1024 (4gb); 0 contributes none
    #[arg(long, value_name = "SIZE", default_value = "4gb", allow_hyphen_values = true)]
    pub(crate) global_segment_size: String,
    /// MC_MMAP_ARENA_POOL_SIZE of each process: bytes, or with a unit powers of 1024; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "0", allow_hyphen_values = true)]
    pub(crate) arena_pool_size: String,
    /// Size of a huge page: 2mb or 1gb
    #[arg(long, value_name = "SIZE", default_value = "2mb", allow_hyphen_values = true)]
    pub(crate) hugepage_size: String,
    /// Free huge pages of the host that is planned for: bytes, or with a unit powers of 1024 (512gb) [default: those of this host]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) available_hugetlb: Option<String>,
    /// MemAvailable of the host that is planned for, without its huge pages: bytes, or with a unit powers of 1024 [default: this host's,
    /// unless --available-hugetlb is given]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) available_memory: Option<String>,
    /// A config.json, a folder with one, or the name of a known model; without it only bounds are known
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Tokens of a page (SGLang's default on CUDA and ROCm is 1)
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) page_size: u64,
    /// Element type of the cache: auto, bf16, fp8_e4m3 or fp8_e5m2
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub(crate) kv_cache_dtype: String,
    /// Pipeline parallel size
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) pp_size: u64,
    /// Data parallel size
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) dp_size: u64,
    /// Data parallel ranks are groups within tp
    #[arg(long)]
    pub(crate) enable_dp_attention: bool,
    /// Decode context parallel size: ranks that share the rows of an MLA cache
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "per_request")]
    pub(crate) dcp_size: u64,
    /// Layers of a draft (MTP) that SGLang packs into the model's own pools
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) packed_draft_layers: u64,
    /// Rows of sparse attention in fp8: scaled, or raw (kernels of TRT-LLM, ROCm, TileLang)
    #[arg(long, value_name = "LAYOUT", default_value = "scaled", value_parser = ["scaled", "raw"])]
    pub(crate) dsa_fp8_layout: String,
    /// MC_MAX_MR_SIZE, the largest memory region: bytes, or with a unit powers of 1024. A larger buffer is several regions
    #[arg(long, value_name = "SIZE", default_value = "1tb", allow_hyphen_values = true)]
    pub(crate) max_mr_size: String,
    /// Hosts of the deployment
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) nnodes: u64,
    /// Store services on the same host
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) store_services: u64,
    /// Segment of each store service, which is not divided: bytes, or with a unit powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "3355443200", requires = "store_services")]
    pub(crate) store_segment_size: String,
    /// Local buffer of each store service: bytes, or with a unit powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "1073741824", requires = "store_services")]
    pub(crate) store_local_buffer_size: String,
    /// How bytes are moved: tcp or rdma
    #[arg(long, value_name = "PROTOCOL", default_value = "tcp", value_parser = ["tcp", "rdma"])]
    pub(crate) protocol: String,
    /// NUMA nodes with NICs, e.g. 0,1: an RDMA segment is spread over them
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    pub(crate) nic_numa_nodes: Vec<u32>,
    /// Tokens of a conversation, for the count of conversations that a tier holds
    #[arg(long, value_name = "N", default_value = "8192")]
    pub(crate) conversation_tokens: u64,
    /// Find the largest balanced sizes that fit the host: L2, and a segment as large
    #[arg(long, alias = "max-fit", conflicts_with_all = ["hicache_size", "hicache_ratio", "global_segment_size"])]
    pub(crate) fit: bool,
    /// A request trace in Mooncake's format (a JSON object with hash_ids on each line; the records of a bench are not read): show the
    /// hit rate of any cache size on it, instead of what a deployment takes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fit", "apply", "persist", "available_hugetlb", "available_memory"])]
    pub(crate) trace: Option<String>,
    /// Tokens of a block of the trace
    #[arg(long, value_name = "N", default_value = "512", requires = "trace", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) trace_block_tokens: u64,
    /// Hit rates from 0 to 1 whose smallest sizes are named, e.g. 0.5,0.8
    #[arg(long, value_name = "RATES", value_delimiter = ',', requires = "trace", value_parser = hit_rate)]
    pub(crate) hit_rate: Vec<f64>,
    /// Write the curve as a picture
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the curve as an HTML page: picture and table
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) html: Option<PathBuf>,
    /// Show what each tier serves of each request of the trace, asked one after the other: needs --device-pool-tokens, and
    /// --hicache-ratio or --hicache-size with --model
    #[arg(long, requires = "trace", conflicts_with_all = ["hit_rate", "svg", "html"])]
    pub(crate) per_request: bool,
    /// Tokens that a fetch from storage must bring (prefetch_threshold of SGLang's extra config)
    #[arg(long, value_name = "N", default_value = "256", requires = "per_request")]
    pub(crate) prefetch_threshold: u64,
    /// Tokens of a step of a prompt, as SGLang's log says; 0: prompts are not cut
    #[arg(long, value_name = "N", default_value = "8192", requires = "per_request")]
    pub(crate) chunked_prefill_size: u64,
    /// There is no storage behind L2
    #[arg(long, requires = "per_request")]
    pub(crate) no_storage: bool,
    /// Keys that a master reports (master_key_count): show what so many keys of the model take beside --observed-bytes
    #[arg(long, value_name = "N", requires_all = ["observed_bytes", "model"], conflicts_with_all = ["trace", "fit", "apply", "persist"])]
    pub(crate) observed_keys: Option<u64>,
    /// Bytes that it reports for them (master_allocated_bytes), or with a unit powers of 1024: the master's own GB are 1024^3 bytes
    #[arg(long, value_name = "SIZE", requires = "observed_keys", allow_hyphen_values = true)]
    pub(crate) observed_bytes: Option<String>,
    /// Reserve the huge pages that are missing, per NUMA node, check what the kernel granted, and undo it when that is less
    #[arg(long, conflicts_with = "available_hugetlb")]
    pub(crate) apply: bool,
    /// Write the file that reserves them at boot: sysctl.d, or the kernel's command line for 1 GiB pages
    #[arg(long, conflicts_with = "available_hugetlb")]
    pub(crate) persist: bool,
    /// Say what --apply and --persist would write
    #[arg(long)]
    dry_run: bool,
    /// Keep what --apply got when that is less than what was asked for
    #[arg(long, requires = "apply")]
    pub(crate) keep_partial: bool,
    /// Folder that holds the host's sys and etc
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub(crate) root: PathBuf,
    /// One JSON document on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Answer as upstream's script does: its reading of sizes, its output, its exit codes (0, 1, 2, 64). Takes its six options only
    #[arg(long)]
    compat: bool,
}

fn hit_rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| format!("'{text}' is not a hit rate: write a number from 0 to 1, e.g. 0.8"))
}

/// The arguments of upstream's script, when the command line asks for it: by the program's name, or with `--compat`.
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

impl Args {
    /// Answer.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        if self.dry_run && !self.apply && !self.persist {
            return Err(
                Failure::usage("--dry-run says what --apply and --persist would do").next("give one of them, too")
            );
        }
        // Seen before clap where it stands, except behind options of mcctl itself.
        if self.compat {
            return Err(Failure::usage("--compat takes upstream's options only")
                .next("begin with mcctl size-hugepages --compat"));
        }
        match &self.trace {
            Some(path) if self.per_request => return per_request::run(&self, path),
            Some(path) => return curve::run(&self, path),
            None => {}
        }
        if let (Some(keys), Some(bytes)) = (self.observed_keys, &self.observed_bytes) {
            return observed::run(&self, keys, bytes);
        }
        if self.fit {
            // The sizes were found, also where their pages are not reserved yet.
            return fit::fitted(&self)?.run().map(|_| Exit::Done);
        }
        let question = question::read(&self)?;
        let mut host = Host::look(&self, &question)?;
        let mut report = Report::new(&self, &question, &host)?;
        if self.dry_run {
            apply::dry_run(&self, &host, &report)?;
        } else {
            if self.apply {
                apply::apply(&self, &host, &report)?;
                host = Host::look(&self, &question)?;
                report = Report::new(&self, &question, &host)?;
            }
            if self.persist {
                apply::persist(&self, &host, &report)?;
            }
        }
        if self.json {
            output::json(&report)?;
        } else {
            output::data(table::render(&report))?;
        }
        Ok(match report.verdict {
            Verdict::Fits | Verdict::Unknown => Exit::Done,
            Verdict::HugepagesShort | Verdict::MemoryShort | Verdict::NotCertain => Exit::No,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_or_the_flag_asks_for_the_script() {
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
