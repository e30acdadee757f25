//! Reserving huge pages: on a made-up sysfs, and on the real one where that is possible.

use std::fs;
use std::io::Write;
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

/// A host with NUMA nodes that have so many pages of 2 MiB, all of them free.
fn host(nodes: &[u64]) -> tempfile::TempDir {
    host_of(nodes, 2048)
}

/// The same with pages of `kib` KiB.
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

/// L2 of 1 GB with its page of tokens, the segment, the buffer.
const NEEDED: u64 = 477 + 32 + 8;

#[test]
fn pages_are_reserved_evenly_and_a_pool_that_is_larger_stays() {
    let host = host(&[0, 400]);
    let said = run(host.path(), &["--apply"]);
    assert!(said.stderr.contains("node 0: 259 huge pages, 0 before"), "{said:?}");
    assert_eq!((total(host.path(), 0), total(host.path(), 1)), (NEEDED.div_ceil(2), 400));
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_would_be_written() {
    let host = host(&[0, 0]);
    let said = run(host.path(), &["--apply", "--persist", "--dry-run"]);
    assert!(said.stderr.contains("would write 259 to ") && said.stderr.contains("vm.nr_hugepages = 517"), "{said:?}");
    assert_eq!((total(host.path(), 0), total(host.path(), 1)), (0, 0));
    assert!(fs::read_dir(host.path().join("etc/sysctl.d")).unwrap().next().is_none());
    assert!(run(host.path(), &["--dry-run"]).fails(2).contains("--apply"));
}

#[test]
fn what_lasts_names_all_pages_of_the_host() {
    let host = host(&[0, 400]);
    let said = run(host.path(), &["--persist"]);
    assert!(said.stderr.contains("wrote "), "{said:?}");
    let text = fs::read_to_string(host.path().join("etc/sysctl.d/90-mcctl-hugepages.conf")).unwrap();
    assert!(text.ends_with("\nvm.nr_hugepages = 659\n"), "{text}");
    assert_eq!(total(host.path(), 0), 0);
}

#[test]
fn pages_of_1_gib_last_by_the_kernels_command_line() {
    let host = host_of(&[0, 0], 1 << 20);
    let boot = host.path().join("etc/default/grub.d");
    let ask = |more: &[&str]| run(host.path(), &[&["--hugepage-size", "1gb", "--persist"], more].concat());
    let absent = ask(&[]);
    // No folder for it: said with the line itself, to be written elsewhere.
    assert!(absent.fails(4).contains("hugepagesz=1G hugepages=3"), "{absent:?}");
    fs::create_dir_all(&boot).unwrap();
    let dry = ask(&["--dry-run"]);
    assert!(dry.stderr.contains("would write ") && dry.stderr.contains("hugepages=3"), "{dry:?}");
    assert!(fs::read_dir(&boot).unwrap().next().is_none());
    let said = ask(&[]);
    assert!(said.stderr.contains("wrote ") && said.stderr.contains("update-grub"), "{said:?}");
    // L2 of 1 GB, the segment, and a whole page for the buffer of 16 MiB.
    let text = fs::read_to_string(boot.join("90-mcctl-hugepages.cfg")).unwrap();
    assert_eq!(text, "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX hugepagesz=1G hugepages=3\"\n");
    assert!(fs::read_dir(host.path().join("etc/sysctl.d")).unwrap().next().is_none());
    let now = run(host.path(), &["--hugepage-size", "1gb", "--apply"]);
    assert!(now.stderr.contains("node 0: 2 huge pages, 0 before"), "{now:?}");
}

#[test]
fn more_than_the_memory_is_refused_before_anything_is_written() {
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
    // The pages need 1034 MiB: they fit into the first, and would leave nearly nothing of it.
    for (memory, code) in [("1100mb", 4), ("2gb", 0)] {
        for action in ["--apply", "--persist"] {
            let mut args = LINE.to_vec();
            args.extend(["--available-memory", memory, "--root", host.path().to_str().unwrap(), "--dry-run", action]);
            let run = mcctl(&args);
            // Whether SGLang then starts is another matter (1), and not that of the reservation (4).
            assert_eq!(run.code == 4, code == 4, "{memory} {action}: {run:?}");
        }
    }
    assert_eq!(total(host.path(), 0), 0);
}

#[test]
fn whoever_is_not_root_is_told_what_is_lacking() {
    let host = host(&[0]);
    let file = host.path().join("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    let refused = by_nobody(host.path(), &["--available-memory", "64gb", "--root", host.path().to_str().unwrap()]);
    assert!(refused.fails(4).contains("run it as root: only root may write"), "{refused:?}");
}

/// `--apply` by somebody who is not root, with a copy of the program in `folder`, which everybody may read.
fn by_nobody(folder: &Path, more: &[&str]) -> Run {
    let args = [LINE, &["--apply"], more].concat();
    if !is_root() {
        return mcctl(&args);
    }
    use std::os::unix::process::CommandExt;
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.join("mcctl");
    // Not by this process: a child of another test could hold the file open for writing, and then nobody may run it.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_mcctl")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let mut command = std::process::Command::new(copy);
    crate::cli::finish(command.args(args).uid(65534).gid(65534).output().unwrap())
}

/// Pages in the real pool of the first node, and kB of memory that are available.
fn real_host() -> (Option<u64>, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
    (fs::read_to_string(REAL_POOL).ok().and_then(|text| text.trim().parse::<u64>().ok()), available)
}

#[test]
fn the_real_pool_stays_where_memory_is_short_and_where_nobody_asks() {
    let _alone = POOL.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (Some(before), available) = real_host() else {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: this host has no pool of 2 MiB pages on its first node");
        return;
    };
    let _restore = RealPool(before);
    // More than this host has, whatever it has.
    let size = (available * 1024 / 1_000_000_000 * 2 + 10).to_string();
    let short = mcctl(&["size-hugepages", "--hicache-size", &size, "--model", "Qwen3-8B", "--apply"]);
    assert!(short.fails(4).contains("not enough memory for the huge pages"), "{short:?}");
    assert_eq!(real_host().0, Some(before));
    if before >= NEEDED || available < 4 << 20 {
        let why = format!("{before} pages, {available} kB available");
        let _ = writeln!(std::io::stderr(), "NOT TESTED: nothing is missing, or too much ({why})");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = by_nobody(folder.path(), &[]);
    let said = refused.fails(4);
    assert!(said.contains("run it as root") || said.contains("run it on the host"), "{refused:?}");
    assert!(said.contains("the pools are as they were"), "{refused:?}");
    assert_eq!(real_host().0, Some(before));
}

#[test]
fn a_control_group_that_allows_fewer_pages_says_no_where_the_pool_is_large_enough() {
    let host = host(&[1_000]);
    assert_eq!(run(host.path(), &[]).code, 0);
    // Both versions: which of them this process is in, the host decides. One without either has no limit to show.
    let groups = host.path().join("sys/fs/cgroup");
    fs::create_dir_all(groups.join("hugetlb")).unwrap();
    fs::write(groups.join("hugetlb.2MB.max"), format!("{}\n", (NEEDED - 1) << 21)).unwrap();
    fs::write(groups.join("hugetlb/hugetlb.2MB.limit_in_bytes"), format!("{}\n", (NEEDED - 1) << 21)).unwrap();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if !own.lines().any(|line| line.starts_with("0::") || line.contains("hugetlb")) {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: this process is in no control group ({own:?})");
        return;
    }
    let refused = run(host.path(), &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.contains("the control group of this process allows 516 (hugetlb.*.max)"), "{refused:?}");
}

#[test]
fn pages_that_are_bound_to_a_nodes_nics_must_be_on_that_node() {
    let enough = host(&[1_000, 10]);
    let args = ["--protocol", "rdma", "--nic-numa-nodes", "0,1"];
    let short = run(enough.path(), &args);
    assert_eq!(short.code, 1, "{short:?}");
    assert!(short.stdout.contains("NUMA node 1 needs 16 free huge pages and has 10"), "{short:?}");
    let absent = run(enough.path(), &["--protocol", "rdma", "--nic-numa-nodes", "0,7"]);
    assert!(absent.fails(2).contains("--nic-numa-nodes 7"), "{absent:?}");
}

#[test]
fn the_real_kernel_grants_what_is_reserved_and_gives_it_back() {
    let _alone = POOL.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (pool, available) = real_host();
    let is_root = is_root();
    let (true, Some(before), true) = (is_root, pool, available > 14 << 20) else {
        // Not through the test's captured output: nobody would see it.
        let why = format!("root {is_root}, pool {pool:?}, {available} kB available");
        let _ =
            writeln!(std::io::stderr(), "NOT TESTED: reserving real huge pages needs root, a pool and 14 GiB ({why})");
        return;
    };
    let _restore = RealPool(before);
    let mut args = LINE.to_vec();
    args.push("--apply");
    let done = mcctl(&args);
    let now: u64 = fs::read_to_string(REAL_POOL).unwrap().trim().parse().unwrap();
    if done.code == 4 && done.stderr.contains("fragmented") {
        let _ =
            writeln!(std::io::stderr(), "NOT TESTED: the kernel has no 1 GB in huge pages to give: {}", done.stderr);
        assert_eq!(now, before, "a grant that is short is undone");
        return;
    }
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("it fits") && now >= NEEDED && now >= before, "{done:?}");
    // Asked again, it finds them and takes no more.
    let again = mcctl(&args);
    assert!(again.code == 0 && again.stderr.contains("nothing to reserve"), "{again:?}");
    assert_eq!(fs::read_to_string(REAL_POOL).unwrap().trim(), now.to_string());
}
