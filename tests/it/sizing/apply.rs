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
    let root = tempfile::tempdir().unwrap();
    let all: u64 = nodes.iter().sum();
    let write = |folder: &Path, pages: u64| {
        fs::create_dir_all(folder).unwrap();
        for (name, value) in [("nr_hugepages", pages), ("free_hugepages", pages), ("resv_hugepages", 0)] {
            fs::write(folder.join(name), format!("{value}\n")).unwrap();
        }
    };
    write(&root.path().join("sys/kernel/mm/hugepages/hugepages-2048kB"), all);
    for (node, pages) in nodes.iter().enumerate() {
        let node = root.path().join(format!("sys/devices/system/node/node{node}"));
        write(&node.join("hugepages/hugepages-2048kB"), *pages);
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
fn more_than_the_memory_is_refused_before_anything_is_written() {
    let host = host(&[0]);
    let mut args = LINE.to_vec();
    args.extend(["--available-memory", "1gb", "--root", host.path().to_str().unwrap(), "--apply"]);
    let refused = mcctl(&args);
    assert!(refused.fails(4).contains("not enough memory for the huge pages"), "{refused:?}");
    assert_eq!(total(host.path(), 0), 0);
}

#[test]
fn whoever_is_not_root_is_told_what_is_lacking() {
    let host = host(&[0]);
    let file = host.path().join("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    let refused = if is_root() {
        // Root may write everything, so nobody runs the program, from a place where nobody may.
        use std::os::unix::process::CommandExt;
        fs::set_permissions(host.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let copy = host.path().join("mcctl");
        fs::copy(env!("CARGO_BIN_EXE_mcctl"), &copy).unwrap();
        let mut command = std::process::Command::new(copy);
        command.args(LINE).args(["--available-memory", "64gb", "--apply", "--root"]).arg(host.path());
        crate::cli::finish(command.uid(65534).gid(65534).output().unwrap())
    } else {
        run(host.path(), &["--apply"])
    };
    assert!(refused.fails(4).contains("run it as root: only root may write"), "{refused:?}");
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
    assert!(short.stdout.contains("node 1 has 10 huge pages free where 16 are bound to it"), "{short:?}");
    let absent = run(enough.path(), &["--protocol", "rdma", "--nic-numa-nodes", "0,7"]);
    assert!(absent.fails(2).contains("--nic-numa-nodes 7"), "{absent:?}");
}

#[test]
fn the_real_kernel_grants_what_is_reserved_and_gives_it_back() {
    let _alone = POOL.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let free = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = free.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
    let pool = fs::read_to_string(REAL_POOL).ok().and_then(|text| text.trim().parse::<u64>().ok());
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
    assert!(done.stdout.starts_with("It fits.") && now >= NEEDED && now >= before, "{done:?}");
}
