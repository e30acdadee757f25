//! Lines to paste into a shell.

use crate::commands::size_hugepages::host::Host;
use crate::commands::size_hugepages::report::Report;
use crate::commands::size_hugepages::verdict::Verdict;
use crate::engine::plan::client::GIB1;

/// The reservation that is missing, the one that lasts, and the environment that makes SGLang use it.
pub fn commands(report: &Report, host: &Host) -> Vec<String> {
    let (page, kib) = (report.hugepage_bytes, report.hugepage_bytes / 1024);
    let mut lines = Vec::new();
    for node in report.nodes.iter().filter(|node| node.target > node.total) {
        lines.push(format!(
            "echo {} | sudo tee /sys/devices/system/node/node{}/hugepages/hugepages-{kib}kB/nr_hugepages",
            node.target, node.node
        ));
    }
    if host.is_this && lines.is_empty() && report.nodes.is_empty() && report.verdict == Verdict::HugepagesShort {
        let most = report.host_hugepages.most;
        lines.push(format!("echo {most} | sudo tee /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"));
    }
    let total = report.pool_pages();
    lines.push(if page == GIB1 {
        format!("# on the kernel's command line, to last: hugepagesz=1G hugepages={total}")
    } else {
        format!("echo 'vm.nr_hugepages = {total}' | sudo tee /etc/sysctl.d/90-mcctl-hugepages.conf   # to last")
    });
    lines.push("export MC_STORE_USE_HUGEPAGE=1".to_owned());
    lines.push(format!("export MC_STORE_HUGEPAGE_SIZE={}", if page == GIB1 { "1GB" } else { "2MB" }));
    let segment = report.group_segment_bytes;
    lines.push(if segment > 0 && segment.is_multiple_of(1 << 30) {
        format!("export MOONCAKE_GLOBAL_SEGMENT_SIZE={}gb", segment >> 30)
    } else {
        format!("export MOONCAKE_GLOBAL_SEGMENT_SIZE={segment}")
    });
    lines
}
