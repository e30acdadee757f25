//! Reserving huge pages, on a simulated sysfs and on the real one.

use std::fs;
use std::path::Path;

use super::{POOL, REAL_POOL, RealPool, is_root};
use crate::cli::{Run, mcctl};

const LINE: &[&str] = &[
    "size-hugepages",
    "--hicache-size",
    "1",
    "--model",
    "Qwen3-8B",
    "--page-size",
    "64",
    "--global-segment-size",
    "67108864",
];

/// A host whose NUMA nodes have these numbers of free 2 MiB pages.
fn host(nodes: &[u64]) -> tempfile::TempDir {
    host_of(nodes, 2048)
}

/// Like [`host`], with pages of `kib` KiB.
fn host_of(nodes: &[u64], kib: u64) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let all: u64 = nodes.iter().sum();
    let write = |folder: &Path, pages: u64| {
        fs::create_dir_all(folder).unwrap();
        for (name, value) in [("nr_hugepages", pages), ("free_hugepages", pages), ("resv_hugepages", 0)] {
            fs::write(folder.join(name), format!("{value}\n")).unwrap();
        }
    };
    write(&root.path().join(format!("sys/kernel/mm/hugepages/hugepages-{kib}kB")), all);
    for (node, pages) in nodes.iter().enumerate() {
        let node = root.path().join(format!("sys/devices/system/node/node{node}"));
        write(&node.join(format!("hugepages/hugepages-{kib}kB")), *pages);
    }
    fs::write(root.path().join("sys/devices/system/node/has_memory"), format!("0-{}\n", nodes.len() - 1)).unwrap();
    fs::create_dir_all(root.path().join("etc/sysctl.d")).unwrap();
    root
}

fn total(root: &Path, node: usize) -> u64 {
    let file = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
    fs::read_to_string(root.join(file)).unwrap().trim().parse().unwrap()
}

fn run(root: &Path, more: &[&str]) -> Run {
    let mut args = LINE.to_vec();
    args.extend(["--available-memory", "64gb", "--root", root.to_str().unwrap()]);
    args.extend(more);
    mcctl(&args)
}

/// Pages for L2 of 1 GB with its padding page, the segment, and the local buffer.
const NEEDED: u64 = 477 + 32 + 8;

#[test]
fn pages_are_reserved_evenly_and_larger_pools_are_kept() {
    let host = host(&[0, 400]);
    let result = run(host.path(), &["--apply"]);
    assert!(result.stderr.contains("node 0: 259 huge pages, 0 before"), "{result:?}");
    assert_eq!((total(host.path(), 0), total(host.path(), 1)), (NEEDED.div_ceil(2), 400));
}

#[test]
fn a_dry_run_prints_the_changes_without_making_them() {
    let host = host(&[0, 0]);
    let result = run(host.path(), &["--apply", "--persist", "--dry-run"]);
    assert!(
        result.stderr.contains("would write 259 to ") && result.stderr.contains("vm.nr_hugepages = 517"),
        "{result:?}"
    );
    assert_eq!((total(host.path(), 0), total(host.path(), 1)), (0, 0));
    assert!(fs::read_dir(host.path().join("etc/sysctl.d")).unwrap().next().is_none());
    assert!(run(host.path(), &["--dry-run"]).fails(2).contains("--apply"));
}

#[test]
fn persist_writes_the_pages_of_the_whole_host() {
    let host = host(&[0, 400]);
    let result = run(host.path(), &["--persist"]);
    assert!(result.stderr.contains("wrote "), "{result:?}");
    let text = fs::read_to_string(host.path().join("etc/sysctl.d/90-mcctl-hugepages.conf")).unwrap();
    assert!(text.ends_with("\nvm.nr_hugepages = 659\n"), "{text}");
    assert_eq!(total(host.path(), 0), 0);
}

#[test]
fn persist_of_1_gib_pages_uses_the_kernel_command_line() {
    let host = host_of(&[0, 0], 1 << 20);
    let boot = host.path().join("etc/default/grub.d");
    let ask = |more: &[&str]| run(host.path(), &[&["--hugepage-size", "1gb", "--persist"], more].concat());
    let absent = ask(&[]);
    // The folder does not exist: the error contains the line to add elsewhere.
    assert!(absent.fails(4).contains("hugepagesz=1G hugepages=3"), "{absent:?}");
    fs::create_dir_all(&boot).unwrap();
    let dry = ask(&["--dry-run"]);
    assert!(dry.stderr.contains("would write ") && dry.stderr.contains("hugepages=3"), "{dry:?}");
    assert!(fs::read_dir(&boot).unwrap().next().is_none());
    let result = ask(&[]);
    assert!(result.stderr.contains("wrote ") && result.stderr.contains("update-grub"), "{result:?}");
    // L2 of 1 GB, the segment, and a whole page for the 16 MiB buffer.
    let text = fs::read_to_string(boot.join("90-mcctl-hugepages.cfg")).unwrap();
    assert_eq!(text, "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages=3\"\n");
    assert!(fs::read_dir(host.path().join("etc/sysctl.d")).unwrap().next().is_none());
    let now = run(host.path(), &["--hugepage-size", "1gb", "--apply"]);
    assert!(now.stderr.contains("node 0: 2 huge pages, 0 before"), "{now:?}");
}

#[test]
fn a_reservation_above_the_memory_is_refused() {
    let host = host(&[0]);
    let mut args = LINE.to_vec();
    args.extend(["--available-memory", "1gb", "--root", host.path().to_str().unwrap(), "--apply"]);
    let refused = mcctl(&args);
    assert!(refused.fails(4).contains("not enough memory for the huge pages"), "{refused:?}");
    assert_eq!(total(host.path(), 0), 0);
}

#[test]
fn a_reservation_leaves_memory_for_the_system() {
    let host = host(&[0]);
    // The pages need 1034 MiB: 1100 MiB would suffice, but almost nothing would remain.
    for (memory, code) in [("1100mb", 4), ("2gb", 0)] {
        for action in ["--apply", "--persist"] {
            let mut args = LINE.to_vec();
            args.extend(["--available-memory", memory, "--root", host.path().to_str().unwrap(), "--dry-run", action]);
            let run = mcctl(&args);
            // Code 1 means that SGLang would not start; only code 4 means that the reservation is
            // refused.
            assert_eq!(run.code == 4, code == 4, "{memory} {action}: {run:?}");
        }
    }
    assert_eq!(total(host.path(), 0), 0);
}

#[test]
fn apply_without_root_is_refused_with_a_reason() {
    let host = host(&[0]);
    let file = host.path().join("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    let refused = by_nobody(host.path(), &["--available-memory", "64gb", "--root", host.path().to_str().unwrap()]);
    assert!(refused.fails(4).contains("run as root: only root may"), "{refused:?}");
}

/// Runs `--apply` as an unprivileged user, with a copy of the program in the world-readable
/// `folder`.
fn by_nobody(folder: &Path, more: &[&str]) -> Run {
    let args = [LINE, &["--apply"], more].concat();
    if !is_root() {
        return mcctl(&args);
    }
    use std::os::unix::process::CommandExt;
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.join("mcctl");
    // Copied by a child process. If this process wrote the file, a child of another test could
    // inherit it open and block its execution.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_mcctl")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let mut command = std::process::Command::new(copy);
    crate::cli::finish(command.args(args).uid(65534).gid(65534).output().unwrap())
}

/// The size of the real pool of the first NUMA node, and the available memory in kB.
fn real_host() -> (Option<u64>, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
    (fs::read_to_string(REAL_POOL).ok().and_then(|text| text.trim().parse::<u64>().ok()), available)
}

#[test]
#[ignore = "needs a pool of 2 MiB pages and 4 GiB of available memory"]
fn the_real_pool_is_unchanged_without_memory_or_privileges() {
    let _alone = POOL.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (pool, available) = real_host();
    let before = pool.unwrap_or_else(|| panic!("{REAL_POOL} cannot be read"));
    assert!(before < NEEDED, "the pool has {before} pages, so that none are missing");
    assert!(available > 4 << 20, "only {available} kB of memory are available");
    let _restore = RealPool(before);
    // More than this host has.
    let size = (available * 1024 / 1_000_000_000 * 2 + 10).to_string();
    let short = mcctl(&["size-hugepages", "--hicache-size", &size, "--model", "Qwen3-8B", "--apply"]);
    assert!(short.fails(4).contains("not enough memory for the huge pages"), "{short:?}");
    assert_eq!(real_host().0, Some(before));
    let folder = tempfile::tempdir().unwrap();
    let refused = by_nobody(folder.path(), &[]);
    let message = refused.fails(4);
    assert!(message.contains("run as root") || message.contains("run on the host"), "{refused:?}");
    assert!(message.contains("all pools were restored"), "{refused:?}");
    assert_eq!(real_host().0, Some(before));
}

#[test]
fn a_cgroup_limit_below_the_pool_size_is_respected() {
    let host = host(&[1_000]);
    assert_eq!(run(host.path(), &[]).code, 0);
    // Both cgroup versions, because the host determines which one applies.
    let groups = host.path().join("sys/fs/cgroup");
    fs::create_dir_all(groups.join("hugetlb")).unwrap();
    fs::write(groups.join("hugetlb.2MB.max"), format!("{}\n", (NEEDED - 1) << 21)).unwrap();
    fs::write(groups.join("hugetlb/hugetlb.2MB.limit_in_bytes"), format!("{}\n", (NEEDED - 1) << 21)).unwrap();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let has_cgroup = own.lines().any(|line| line.starts_with("0::") || line.contains("hugetlb"));
    assert!(has_cgroup, "needs a kernel with cgroups: /proc/self/cgroup has {own:?}");
    let refused = run(host.path(), &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.contains("allows 516 (hugetlb.*.max)"), "{refused:?}");
}

#[test]
fn pages_bound_to_nic_nodes_must_be_on_those_nodes() {
    let enough = host(&[1_000, 10]);
    let args = ["--protocol", "rdma", "--nic-numa-nodes", "0,1"];
    let short = run(enough.path(), &args);
    assert_eq!(short.code, 1, "{short:?}");
    assert!(short.stdout.contains("needs 16 free huge pages but has 10"), "{short:?}");
    let absent = run(enough.path(), &["--protocol", "rdma", "--nic-numa-nodes", "0,7"]);
    assert!(absent.fails(2).contains("--nic-numa-nodes 7"), "{absent:?}");
}

#[test]
#[ignore = "needs root, a pool of 2 MiB pages and 14 GiB of available memory"]
fn the_real_kernel_grants_the_reservation() {
    let _alone = POOL.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (pool, available) = real_host();
    assert!(is_root(), "run as root");
    let before = pool.unwrap_or_else(|| panic!("{REAL_POOL} cannot be read"));
    assert!(available > 14 << 20, "only {available} kB of memory are available");
    let _restore = RealPool(before);
    // Fragmented memory has too few huge pages.
    fs::write("/proc/sys/vm/compact_memory", "1").expect("a kernel with memory compaction");
    let mut args = LINE.to_vec();
    args.push("--apply");
    let done = mcctl(&args);
    let now: u64 = fs::read_to_string(REAL_POOL).unwrap().trim().parse().unwrap();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("it fits") && now >= NEEDED && now >= before, "{done:?}");
    // A second run finds the pages and reserves no more.
    let again = mcctl(&args);
    assert!(again.code == 0 && again.stderr.contains("nothing to reserve"), "{again:?}");
    assert_eq!(fs::read_to_string(REAL_POOL).unwrap().trim(), now.to_string());
}
