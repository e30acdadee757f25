//! `--apply` and `--persist`: the pages that are missing, reserved now and for the next boot.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::commands::error::Failure;
use crate::commands::output;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::Host;
use crate::commands::size_hugepages::report::Report;
use crate::engine::base::ByteSize;
use crate::engine::plan::client::GIB1;
use crate::engine::sys::reserve::{PoolTarget, ReserveError, SysfsPools, reserve};

/// What the two flags would do, as lines, without doing it.
///
/// # Errors
/// As [`apply`] and [`persist`], as far as it can be seen before.
pub fn dry_run(args: &Args, host: &Host, report: &Report) -> Result<(), Failure> {
    if args.apply {
        check(host, report)?;
        let raised: Vec<_> = report.nodes.iter().filter(|node| node.target > node.total).collect();
        if raised.is_empty() {
            output::say("would reserve nothing: the pages are in the pool");
        }
        for node in raised {
            let (kib, sys) = (report.hugepage_bytes / 1024, args.root.join("sys"));
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

/// Reserve what is missing on each node; says what was raised.
///
/// # Errors
/// Memory is short, rights are missing, or the kernel granted less.
pub fn apply(args: &Args, host: &Host, report: &Report) -> Result<(), Failure> {
    check(host, report)?;
    let sys = args.root.join("sys");
    let targets: Vec<PoolTarget> =
        report.nodes.iter().map(|node| PoolTarget { node: node.node, pages: node.target }).collect();
    let pools = SysfsPools { root: &sys, kib: report.hugepage_bytes / 1024 };
    let raised = reserve(&pools, &targets, args.keep_partial).map_err(|error| failed(&error))?;
    if raised.is_empty() {
        output::say("nothing to reserve: the pages are in the pool");
    }
    for step in raised {
        output::say(format_args!("node {}: {} huge pages, {} before", step.node, step.after, step.before));
    }
    Ok(())
}

fn check(host: &Host, report: &Report) -> Result<(), Failure> {
    if report.nodes.is_empty() {
        return Err(Failure::host("no pool of huge pages found for any NUMA node").tried(format!(
            "devices/system/node/node*/hugepages/hugepages-{}kB in sysfs",
            report.hugepage_bytes / 1024
        )));
    }
    if report.host_other_hugepages > 0 {
        return Err(Failure::usage("--apply reserves pages of one size, and the arenas need another")
            .next("leave --arena-pool-size out: an arena gains nothing here"));
    }
    check_memory(host, report)
}

/// Pages that would take nearly all memory stop the host: some is left for the operating system and the processes.
fn check_memory(host: &Host, report: &Report) -> Result<(), Failure> {
    let missing = match report.nodes.is_empty() {
        true => report.host_hugepages.most.saturating_sub(host.pool.available.unwrap_or(0)),
        false => report.nodes.iter().map(|node| node.target - node.total).fold(0, u64::saturating_add),
    };
    let bytes = missing.saturating_mul(report.hugepage_bytes);
    // What the command line promises adds no memory to this host.
    let Some(memory) = host.memory.into_iter().chain(host.memory_here).min().filter(|_| missing > 0) else {
        return Ok(());
    };
    let kept = KEPT_BYTES.min(memory / 4);
    if bytes <= memory - kept {
        return Ok(());
    }
    Err(Failure::host("not enough memory for the huge pages")
        .tried(format!("{missing} more pages, {}", ByteSize(bytes)))
        .found(format!("{} available, of which {} stay free for the system", ByteSize(memory), ByteSize(kept)))
        .next("lower --hicache-size or --global-segment-size; nothing was changed"))
}

/// Memory that no reservation may take; a quarter of the memory on a small host.
const KEPT_BYTES: u64 = 2 << 30;

fn failed(error: &ReserveError) -> Failure {
    let back = |undone: bool| if undone { "the pools are as they were" } else { "pools that were raised stay raised" };
    match error {
        ReserveError::File { source, undone, .. } => {
            let failure = Failure::host(error.to_string()).found(source.to_string());
            match source.kind() {
                io::ErrorKind::PermissionDenied => failure.next(format!(
                    "run it as root: only root may write the pools of huge pages (CAP_IPC_LOCK and the like do not help); {}",
                    back(*undone)
                )),
                io::ErrorKind::ReadOnlyFilesystem => {
                    failure.next(format!("run it on the host: a container's sysfs is read-only; {}", back(*undone)))
                }
                _ => failure.next(back(*undone)),
            }
        }
        ReserveError::Short { undone, .. } => {
            let next = "free memory is too fragmented, or too little: reserve right after boot, or on the kernel's command line";
            Failure::host(error.to_string()).found(back(*undone)).next(next)
        }
    }
}

/// Write the file that reserves the pages at the next boot.
///
/// # Errors
/// The file cannot be written, or the pages would take nearly all memory at boot.
pub fn persist(args: &Args, host: &Host, report: &Report) -> Result<(), Failure> {
    check_memory(host, report)?;
    let (path, text) = lasting(args, report);
    let failed = |error: io::Error| {
        let failure = Failure::host("the reservation cannot be made to last").tried(path.display().to_string());
        let failure = failure.found(error.to_string());
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.next("run it as root"),
            _ => failure.next(format!("write this where your system reads it: {}", text.trim_end())),
        }
    };
    write_whole(&path, &text).map_err(failed)?;
    output::say(format_args!("wrote {}", path.display()));
    if report.hugepage_bytes == GIB1 {
        output::say(
            "run update-grub (or grub2-mkconfig) and boot again: pages of 1 GiB are reserved by the kernel's command line",
        );
    }
    Ok(())
}

/// The file, and what stands in it: a sysctl for pages of 2 MiB, the kernel's command line for those of 1 GiB.
fn lasting(args: &Args, report: &Report) -> (PathBuf, String) {
    let pages = report.pool_pages();
    let etc = args.root.join("etc");
    if report.hugepage_bytes == GIB1 {
        let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages={pages}\"\n");
        return (etc.join("default/grub.d/90-mcctl-hugepages.cfg"), line);
    }
    let text = format!("# written by mcctl size-hugepages --persist\nvm.nr_hugepages = {pages}\n");
    (etc.join("sysctl.d/90-mcctl-hugepages.conf"), text)
}

/// The file has its old content or the new one, never a part.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
