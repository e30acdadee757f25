//! Process metrics on a service's `/metrics` page: the release, and the standard `process_*`
//! families.

use std::fmt::Write;

use crate::process_stats;
use mcctl_base::upstream::SERIES;

/// The metric families as Prometheus text.
pub fn exposition() -> String {
    let found = process_stats::read();
    let mut text = format!(
        "# HELP mcctl_build_info mcctl release, and the compatible Mooncake release\n\
         # TYPE mcctl_build_info gauge\n\
         mcctl_build_info{{version=\"{}\",mooncake=\"{SERIES}\"}} 1\n",
        env!("CARGO_PKG_VERSION")
    );
    let whole = |value: Option<u64>| value.map(|value| value.to_string());
    for (name, kind, help, value) in [
        (
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds",
            Some(found.cpu.as_secs_f64().to_string()),
        ),
        ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes", whole(found.resident_bytes)),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes", whole(found.virtual_bytes)),
        ("process_threads", "gauge", "Number of threads", whole(found.threads)),
        ("process_open_fds", "gauge", "Number of open file descriptors", whole(found.open_files)),
        ("process_max_fds", "gauge", "Maximum number of open file descriptors", whole(found.files_max)),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since the Unix epoch in seconds",
            found.started.map(|started| started.to_string()),
        ),
    ] {
        let Some(value) = value else { continue };
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text
}
