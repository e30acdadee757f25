//! Commands to paste into a shell. If this host cannot run them, every line is a comment.

use std::path::Path;

use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::report::{SizeRow, SizingReport};
use crate::commands::size_hugepages::verdict::SizingVerdict;
use crate::engine::deploy::render::shell_quoted;
use crate::engine::plan::client::GIB1;
use crate::engine::plan::sizing_input::REGION_BYTES;

/// The commands: reserve the missing pages now and at boot, set the environment, start SGLang.
pub(super) fn commands(args: &Args, report: &SizingReport) -> Vec<String> {
    let mut lines = if report.regular.is_none() { reservation(args, report) } else { Vec::new() };
    lines.extend(environment(args, report));
    lines.extend(report.sizes.iter().filter_map(difference));
    lines.extend(hints(args));
    let command = sglang(args, report);
    // Without a model, the command has a placeholder.
    lines.push(if args.model.is_some() { command } else { comment(command) });
    if report.pasteable { lines } else { lines.into_iter().map(comment).collect() }
}

fn comment(line: String) -> String {
    if line.starts_with('#') { line } else { format!("# {line}") }
}

fn reservation(args: &Args, report: &SizingReport) -> Vec<String> {
    let page = report.hugepage_bytes;
    let kib = report.hugepage_bytes / 1024;
    let mut lines = Vec::new();
    for node in report.nodes.iter().filter(|node| node.target > node.total) {
        lines.push(format!(
            "echo {} | sudo tee /sys/devices/system/node/node{}/hugepages/hugepages-{kib}kB/nr_hugepages",
            node.target, node.node
        ));
    }
    if report.nodes.is_empty() && report.verdict == SizingVerdict::HugepagesShort {
        let target = report.pool_pages;
        lines.push(format!("echo {target} | sudo tee /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"));
    }
    // The pool of another host is already large enough.
    if args.available_hugetlb.is_some() && report.verdict != SizingVerdict::HugepagesShort {
        return lines;
    }
    let total = report.pool_pages;
    lines.push(if page == GIB1 {
        format!("# kernel command line, to survive a reboot: hugepagesz=1G hugepages={total}")
    } else {
        format!(
            "echo 'vm.nr_hugepages = {total}' | sudo tee /etc/sysctl.d/90-mcctl-hugepages.conf   # survives a reboot"
        )
    });
    lines
}

/// The variables of the ranks' store clients. A variable without a value is a comment.
fn environment(args: &Args, report: &SizingReport) -> Vec<String> {
    let page = if report.hugepage_bytes == GIB1 { "1GB" } else { "2MB" };
    let mut lines = match report.regular {
        None => vec!["export MC_STORE_USE_HUGEPAGE=1".to_owned(), format!("export MC_STORE_HUGEPAGE_SIZE={page}")],
        Some(_) => vec!["unset MC_STORE_USE_HUGEPAGE   # any value, also 0, would enable huge pages".to_owned()],
    };
    let variables =
        [("--arena-pool-size", "MC_MMAP_ARENA_POOL_SIZE"), ("--global-segment-size", "MOONCAKE_GLOBAL_SEGMENT_SIZE")];
    for (flag, variable) in variables {
        // The store interprets 0 as 8 GiB, so without an arena, the variable is left unset.
        let size = report.sizes.iter().find(|size| size.flag == flag);
        if let Some(size) = size.filter(|size| size.used_bytes > 0 || flag != "--arena-pool-size") {
            lines.push(format!("export {variable}={}", size.setting));
        }
    }
    // SGLang's default is rdma.
    lines.push(format!("export MOONCAKE_PROTOCOL={}", args.protocol));
    let settings = &args.settings;
    match &settings.device_name {
        Some(devices) => lines.push(format!("export MOONCAKE_DEVICE={}", quoted(devices))),
        None if args.protocol == "rdma" => {
            lines
                .push("# and the devices, as listed by mcctl devices: export MOONCAKE_DEVICE=mlx5_0,mlx5_1".to_owned());
        }
        None => {}
    }
    lines.push(match settings.master_address() {
        Some(address) => format!("export MOONCAKE_MASTER={}", quoted(&address)),
        None => "# and the address of the master: export MOONCAKE_MASTER=HOST:50051".to_owned(),
    });
    lines.push(match &settings.metadata_server {
        Some(server) => format!("export MOONCAKE_TE_META_DATA_SERVER={}", quoted(server)),
        None => "# and the metadata service, unless it is P2PHANDSHAKE: export \
                 MOONCAKE_TE_META_DATA_SERVER=http://HOST:8080/metadata"
            .to_owned(),
    });
    if report.region_bytes != REGION_BYTES {
        lines.push(format!("export MC_MAX_MR_SIZE={}", report.region_bytes));
    }
    if args.store_services > 0 {
        lines.push(format!(
            "# each store service: MOONCAKE_GLOBAL_SEGMENT_SIZE={} MOONCAKE_LOCAL_BUFFER_SIZE={}",
            report.store_segment_bytes, report.store_local_buffer_bytes
        ));
    }
    lines
}

/// The comment for a size that the program rounds.
fn difference(size: &SizeRow) -> Option<String> {
    let why = if size.flag == "--hicache-size" {
        "SGLang accepts only whole GB (10^9 bytes)"
    } else {
        "the store rounds up to 2 MiB"
    };
    let (by, which) = match size.difference_bytes {
        0 => return None,
        less @ ..0 => (less.unsigned_abs(), "less"),
        more => (more.unsigned_abs(), "more"),
    };
    let flag = size.flag;
    let given = size.given.trim();
    let asked = size.asked_bytes;
    let setting = &size.setting;
    Some(format!("# {flag} {given} is {asked} bytes; {why}: {setting} is {by} bytes {which}"))
}

/// What the command does not contain, because it depends on the host or is not a size.
fn hints(args: &Args) -> Vec<String> {
    let mut lines = Vec::new();
    if args.nnodes > 1 {
        let text =
            "# and on each host, its rank and the address of the first: --node-rank RANK --dist-init-addr HOST:PORT";
        lines.push(text.to_owned());
    }
    if args.packed_draft_layers > 0 {
        lines.push("# and the flags of the draft model, such as --speculative-algorithm".to_owned());
    }
    if let Some(model) = args.model.as_deref().filter(|model| !model.contains('/') && !Path::new(model).exists()) {
        let model = quoted(model);
        lines.push(format!(
            "# the model must be a directory or a name on the Hugging Face Hub: replace {model} if it is not"
        ));
    }
    lines
}

fn sglang(args: &Args, report: &SizingReport) -> String {
    let model = args.model.as_deref().map_or("MODEL".to_owned(), |model| match Path::new(model) {
        // SGLang reads the directory of the file.
        path if path.is_file() => match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => folder.display().to_string(),
            None => ".".to_owned(),
        },
        _ => match model.split_once("://") {
            // The last two parts of an address on the Hub are the name.
            Some((_, address)) => {
                let parts: Vec<&str> = address.trim_end_matches('/').rsplitn(3, '/').take(2).collect();
                parts.into_iter().rev().collect::<Vec<_>>().join("/")
            }
            None => model.to_owned(),
        },
    });
    let mut words = vec!["python3 -m sglang.launch_server --model-path".to_owned(), quoted(&model)];
    let mut number = |flag: &str, value: u64, default: u64| {
        if value != default {
            words.push(format!("{flag} {value}"));
        }
    };
    number("--tp-size", args.tp_size, 1);
    number("--pp-size", args.pp_size, 1);
    number("--dp-size", args.dp_size, 1);
    number("--dcp-size", args.dcp_size, 1);
    number("--page-size", args.page_size, 1);
    number("--nnodes", args.nnodes, 1);
    if args.enable_dp_attention {
        words.push("--enable-dp-attention".to_owned());
    }
    if args.kv_cache_dtype != "auto" {
        words.push(format!("--kv-cache-dtype {}", args.kv_cache_dtype));
    }
    words.push("--enable-hierarchical-cache".to_owned());
    let l2 = report.sizes.iter().find(|size| size.flag == "--hicache-size");
    match (l2, args.hicache_ratio) {
        (Some(size), _) => words.push(format!("--hicache-size {}", size.setting)),
        (None, Some(ratio)) => words.push(format!("--hicache-ratio {ratio}")),
        (None, None) => {
            if let Some(fraction) = args.pools.hicache_host_memory_fraction {
                words.push(format!("--hicache-host-memory-fraction {fraction}"));
            }
        }
    }
    if args.pools.hicache_host_memory_mode != "cache" {
        words.push(format!("--hicache-host-memory-mode {}", args.pools.hicache_host_memory_mode));
    }
    if let Some(element) = &args.pools.mamba_ssm_dtype {
        words.push(format!("--mamba-ssm-dtype {element}"));
    }
    let (layout, backend) = args.settings.layout_and_backend();
    words.push(format!("--hicache-mem-layout {layout} --hicache-io-backend {backend}"));
    words.push("--hicache-storage-backend mooncake".to_owned());
    words.join(" ")
}

/// Quotes `text` as one shell word without line breaks, which would end the comment.
fn quoted(text: &str) -> String {
    shell_quoted(text).replace(['\n', '\r'], " ")
}
