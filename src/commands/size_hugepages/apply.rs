//! `--apply` and `--persist`: reserve the missing huge pages now and at the next boot.

use std::io;
use std::path::PathBuf;

use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::whole_file::{self, IfExists};
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::report::SizingReport;
use crate::engine::base::ByteSize;
use crate::engine::plan::client::GIB1;
use crate::engine::sys::reserve::{PoolTarget, ReserveError, SysfsPools, kept_bytes, leaves_enough, reserve};

/// Prints what `--apply` and `--persist` would do.
///
/// # Errors
/// The same as [`apply`] and [`persist`], for errors that can be determined in advance.
pub(super) fn dry_run(args: &Args, host: &TargetHost, report: &SizingReport) -> Result<(), Failure> {
    if args.apply {
        check(host, report)?;
        let raised: Vec<_> = report.nodes.iter().filter(|node| node.target > node.total).collect();
        if raised.is_empty() {
            output::say("nothing to reserve: the pool has enough pages");
        }
        for node in raised {
            let kib = report.hugepage_bytes / 1024;
            let sys = args.root.join("sys");
            let file = crate::engine::sys::hugetlb::node_folder(&sys, node.node, kib).join("nr_hugepages");
            output::say(format_args!("would write {} to {} (now {})", node.target, file.display(), node.total));
        }
    }
    if args.persist {
        check_memory(host, report)?;
        let (path, text) = lasting(args, report);
        output::say(format_args!("would write {}: {}", path.display(), text.lines().last().unwrap_or_default()));
    }
    Ok(())
}

/// Reserves the missing pages on each NUMA node and prints the changes.
///
/// # Errors
/// There is not enough memory, privileges are missing, or the kernel allocated fewer pages.
pub(super) fn apply(args: &Args, host: &TargetHost, report: &SizingReport) -> Result<(), Failure> {
    check(host, report)?;
    let sys = args.root.join("sys");
    let targets: Vec<PoolTarget> =
        report.nodes.iter().map(|node| PoolTarget { node: node.node, pages: node.target }).collect();
    let pools = SysfsPools { root: &sys, kib: report.hugepage_bytes / 1024 };
    let raised = reserve(&pools, &targets, args.keep_partial).map_err(|error| failed(&error))?;
    if raised.is_empty() {
        output::say("nothing to reserve: the pool has enough pages");
    }
    for step in raised {
        output::say(format_args!("node {}: {} huge pages, {} before", step.node, step.after, step.before));
    }
    Ok(())
}

fn check(host: &TargetHost, report: &SizingReport) -> Result<(), Failure> {
    if report.nodes.is_empty() {
        return Err(Failure::host("no NUMA node has a huge page pool of this size").tried(format!(
            "devices/system/node/node*/hugepages/hugepages-{}kB in sysfs",
            report.hugepage_bytes / 1024
        )));
    }
    if report.host_other_hugepages > 0 {
        return Err(Failure::usage("--apply reserves pages of only one size, but the arenas need a different one")
            .next("omit --arena-pool-size: an arena provides no benefit in this deployment"));
    }
    check_memory(host, report)
}

/// Rejects reservations that would use nearly all memory: the operating system and the processes
/// need some of it.
fn check_memory(host: &TargetHost, report: &SizingReport) -> Result<(), Failure> {
    let missing = match report.nodes.is_empty() {
        true => report.host_hugepages.most.saturating_sub(host.pool.available.unwrap_or(0)),
        false => report.nodes.iter().map(|node| node.target - node.total).fold(0, u64::saturating_add),
    };
    let bytes = missing.saturating_mul(report.hugepage_bytes);
    // Use the smaller value: a command-line value does not add memory to this host.
    let Some(memory) = host.memory.into_iter().chain(host.memory_here).min().filter(|_| missing > 0) else {
        return Ok(());
    };
    if leaves_enough(bytes, 0, memory) {
        return Ok(());
    }
    let kept = kept_bytes(memory);
    Err(Failure::host("not enough memory for the huge pages")
        .tried(format!("{missing} more pages, {}", ByteSize(bytes)))
        .found(format!("{} available, of which {} must stay free for the system", ByteSize(memory), ByteSize(kept)))
        .next("lower --hicache-size or --global-segment-size; nothing was changed"))
}

fn failed(error: &ReserveError) -> Failure {
    let back = |undone: bool| {
        if undone { "all pools were restored" } else { "pools that were already enlarged were not restored" }
    };
    match error {
        ReserveError::File { source, undone, .. } => {
            let failure = Failure::host(error.to_string()).found(source.to_string());
            match source.kind() {
                io::ErrorKind::PermissionDenied => failure.next(format!(
                    "run as root: only root may resize huge page pools (capabilities such as CAP_IPC_LOCK do not suffice); {}",
                    back(*undone)
                )),
                io::ErrorKind::ReadOnlyFilesystem => {
                    failure.next(format!("run on the host: a container's sysfs is read-only; {}", back(*undone)))
                }
                _ => failure.next(back(*undone)),
            }
        }
        ReserveError::Short { undone, .. } => {
            let next = "not enough free memory, or it is too fragmented: reserve the huge pages right after boot, or on the kernel command line";
            Failure::host(error.to_string()).found(back(*undone)).next(next)
        }
    }
}

/// Writes the file that reserves the pages at the next boot.
///
/// # Errors
/// The file cannot be written, or the pages would use nearly all memory at boot.
pub(super) fn persist(args: &Args, host: &TargetHost, report: &SizingReport) -> Result<(), Failure> {
    check_memory(host, report)?;
    let (path, text) = lasting(args, report);
    let failed = |error: io::Error| {
        let failure = Failure::host("cannot persist the huge page reservation").tried(path.display().to_string());
        let failure = failure.found(error.to_string());
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.next("run as root"),
            _ => failure.next(format!("add this to your system's configuration: {}", text.trim_end())),
        }
    };
    whole_file::write(&path, text.as_bytes(), IfExists::Replace).map_err(failed)?;
    output::say(format_args!("wrote {}", path.display()));
    if report.hugepage_bytes == GIB1 {
        output::say(
            "run update-grub (or grub2-mkconfig) and reboot: 1 GiB pages are reserved on the kernel command line",
        );
    }
    Ok(())
}

/// The file and its content: a sysctl for 2 MiB pages, the kernel command line for 1 GiB pages.
fn lasting(args: &Args, report: &SizingReport) -> (PathBuf, String) {
    let pages = report.pool_pages;
    let etc = args.root.join("etc");
    if report.hugepage_bytes == GIB1 {
        let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages={pages}\"\n");
        return (etc.join("default/grub.d/90-mcctl-hugepages.cfg"), line);
    }
    let text = format!("# written by mcctl size-hugepages --persist\nvm.nr_hugepages = {pages}\n");
    (etc.join("sysctl.d/90-mcctl-hugepages.conf"), text)
}
