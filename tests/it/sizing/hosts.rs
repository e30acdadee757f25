//! Hosts as they are: without huge pages, with a pool that cannot grow, with one size fixed, and
//! with settings that the printed commands must contain.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::cli::{Run, finish, mcctl};

const GIB: u64 = 1 << 30;

fn ask(line: &str) -> Run {
    let mut args = vec!["size-hugepages"];
    args.extend(line.split_whitespace());
    mcctl(&args)
}

#[track_caller]
fn document(line: &str, code: i32) -> Value {
    let run = ask(&format!("{line} --json"));
    assert_eq!(run.code, code, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// A server of the first contact: 8 GPUs, of which each has a cache.
const SERVER: &str = "--model Qwen3-235B-A22B --tp-size 8 --page-size 64";

/// The commands of `found`, without the comment signs of a host that cannot run them.
fn commands(found: &Value) -> Vec<String> {
    let strip = |line: &Value| {
        let line = line.as_str().unwrap();
        let command = line.strip_prefix("# ").filter(|text| {
            ["export MC_", "export MOONCAKE_", "unset ", "echo ", "python3 "].iter().any(|word| text.starts_with(word))
        });
        command.unwrap_or(line).to_owned()
    };
    found["commands"].as_array().unwrap().iter().map(strip).collect()
}

#[test]
fn without_huge_pages_all_memory_is_regular() {
    // A ratio of 0.5 on a host with 3 TiB: 706 GiB of L2, and no page that is missing.
    let ratio = "--hicache-ratio 0.5 --device-pool-tokens 3932160 --global-segment-size 128gb";
    let line = format!("{SERVER} --no-hugepages {ratio}");
    let found = document(&format!("{line} --available-memory 3tb"), 0);
    assert_eq!((&found["verdict"], &found["hugepage_bytes"]), (&"fits".into(), &0.into()));
    assert_eq!(found["host_hugepages"], serde_json::json!({"least": 0, "most": 0}));
    let regular = &found["regular"];
    let bytes = |name: &str| regular[name].as_u64().unwrap();
    let l2 = 8 * found["ranks"][0]["l2_bytes"]["most"].as_u64().unwrap();
    let clients = 128 * GIB + 8 * (16 << 20);
    assert_eq!((regular["l2_bytes"]["most"].as_u64().unwrap(), bytes("clients_bytes")), (l2, clients));
    let needed = regular["needed_bytes"]["most"].as_u64().unwrap();
    assert_eq!(needed, l2 + clients + 10 * GIB);
    assert_eq!(found["host_bytes_min"], needed);
    assert_eq!(bytes("last_rank_bytes"), needed + l2 / 8 * 7);
    assert_eq!(found["guard"]["needed_bytes"], l2 + 10 * GIB);
    // Exactly enough, and one byte less.
    assert_eq!(document(&format!("{line} --available-memory {needed}"), 0)["verdict"], "fits");
    assert_eq!(document(&format!("{line} --available-memory {}", needed - 1), 1)["verdict"], "memory-short");
    // The commands and the texts do not speak of huge pages.
    let commands = commands(&found);
    assert!(commands[0].starts_with("unset MC_STORE_USE_HUGEPAGE"), "{commands:?}");
    assert!(commands.iter().all(|line| !line.contains("HUGEPAGE_SIZE") && !line.contains("nr_hugepages")));
    assert!(found["nodes"].as_array().unwrap().is_empty() && found["upstream"].is_null());
}

#[test]
fn a_late_rank_is_a_caveat_until_the_memory_suffices_for_it() {
    let line = format!("{SERVER} --no-hugepages --hicache-size 64 --global-segment-size 64gb --available-memory");
    let late = document(&format!("{line} 1tb"), 0)["regular"]["last_rank_bytes"].as_u64().unwrap();
    let caveats = |memory: u64| document(&format!("{line} {memory}"), 0)["reasons"].to_string();
    assert!(
        caveats(late - 1).contains("a rank that starts late") && !caveats(late).contains("a rank that starts late")
    );
}

#[test]
fn without_huge_pages_a_small_segment_is_not_a_fit() {
    let line = "--no-hugepages --model Qwen3-8B --tp-size 4 --hicache-size 1 --available-memory 1tb";
    for (more, verdict, code) in [
        ("--global-segment-size 67108863", "segment-rejected", 1),
        ("--global-segment-size 67108864", "fits", 0),
        ("--global-segment-size 0", "fits", 0),
        ("--store-services 1 --store-segment-size 1mb", "segment-rejected", 1),
    ] {
        assert_eq!(document(&format!("{line} {more}"), code)["verdict"], verdict, "{more}");
    }
    let none = ask(&format!("{line} --max-fit --global-segment-size 8mb").replace("--hicache-size 1 ", ""));
    assert!(none.fails(1).contains("rejects segments below 16 MiB"), "{none:?}");
}

#[test]
fn a_segment_on_several_nodes_is_rounded_to_base_pages() {
    let line = "--no-hugepages --model Qwen3-8B --tp-size 2 --hicache-size 1 --available-memory 1tb";
    let spread = "--protocol rdma --nic-numa-nodes 0,1 --global-segment-size 67108866";
    let found = document(&format!("{line} {spread}"), 0);
    let mounted = (32 << 20) + 8_192;
    assert_eq!((&found["rank_mounted_bytes"], &found["regular"]["nic_node_bytes"]), (&mounted.into(), &mounted.into()));
    let one = document(&format!("{line} --global-segment-size 67108866"), 0);
    assert_eq!((&one["rank_mounted_bytes"], &one["regular"]["nic_node_bytes"]), (&((32 << 20) + 1).into(), &0.into()));
}

#[test]
fn flags_for_huge_pages_exclude_no_hugepages() {
    for more in ["--apply", "--persist", "--hugepage-size 2mb", "--available-hugetlb 1gb", "--arena-pool-size 1gb"] {
        let run = ask(&format!("--no-hugepages --hicache-size 1 {more}"));
        assert!(run.fails(2).contains("'--no-hugepages' cannot be used with"), "{run:?}");
    }
}

/// The flags of the sizes that were found, and those of one unit more of each searched size.
fn sizes(found: &Value) -> (String, String) {
    let fit = &found["max_fit"];
    let searched = fit["searched"].as_str().unwrap();
    let (gb, gib) = (fit["hicache_gb"].as_u64(), fit["group_segment_bytes"].as_u64().unwrap() / GIB);
    let flags = |more: u64| {
        let l2 = gb.filter(|_| searched != "segment").map(|gb| format!("--hicache-size {}", gb + more));
        let matching =
            if searched == "l2-and-segment" { (gb.unwrap() + more) * 8_000_000_000 / GIB } else { gib + more };
        let segment = (searched != "l2").then(|| format!("--global-segment-size {matching}gb"));
        l2.into_iter().chain(segment).collect::<Vec<_>>().join(" ")
    };
    (flags(0), flags(1))
}

#[test]
fn max_fit_searches_the_sizes_that_are_not_fixed() {
    for host in ["--available-hugetlb 512gb --available-memory 450gb", "--no-hugepages --available-memory 715gb"] {
        for (fixed, searched) in [
            ("", "l2-and-segment"),
            ("--hicache-size 32", "segment"),
            ("--hicache-ratio 0.5 --device-pool-tokens 500000", "segment"),
            ("--global-segment-size 200gb", "l2"),
        ] {
            let line = format!("{SERVER} {host} {fixed}");
            let found = document(&format!("{line} --max-fit"), 0);
            assert_eq!(
                (&found["verdict"], &found["max_fit"]["searched"]),
                (&"fits".into(), &searched.into()),
                "{line}"
            );
            let (same, more) = sizes(&found);
            // The same sizes as flags have the same result, and more does not fit.
            let again = document(&format!("{line} {same}"), 0);
            assert_eq!(again["host_bytes_min"], found["host_bytes_min"]);
            assert!(again["max_fit"].is_null());
            document(&format!("{line} {more}"), 1);
            assert!(found["host_hugepages"]["most"].as_u64().unwrap() <= 262_144);
        }
    }
    let both = ask("--max-fit --hicache-size 4 --global-segment-size 4gb --model Qwen3-32B --available-memory 1tb");
    assert!(both.fails(2).contains("no size to search"), "{both:?}");
    assert!(ask(&format!("{SERVER} --max-fit --available-hugetlb 512gb")).fails(2).contains("--available-memory"));
}

#[test]
fn one_command_says_what_fits_into_the_given_huge_pages() {
    let run = ask(&format!("{SERVER} --available-hugetlb 512gb --available-memory 450gb --max-fit"));
    let text = run.succeeds();
    let lines: Vec<&str> = text.lines().rev().take(4).collect();
    assert_eq!(lines[3], "largest    --hicache-size 34 --global-segment-size 253gb");
    assert!(lines[1].starts_with("available  262144 huge pages") && lines[1].ends_with(": it fits"), "{text}");
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("size_max_fit", text);
        let line = format!("{SERVER} --no-hugepages --available-memory 64tb --max-fit --store-services 1");
        insta::assert_snapshot!("size_no_hugepages", ask(&line).succeeds());
    });
}

#[test]
fn if_nothing_fits_the_error_has_the_smallest_need() {
    for (host, part) in [
        ("--available-hugetlb 1gb --available-memory 80gb", "needs 7464 2 MiB huge pages (14.58 GiB)"),
        ("--no-hugepages --available-memory 20gb", "needs 24.58 GiB of regular memory"),
        ("--available-hugetlb 512gb --available-memory 450gb --hicache-size 70", "a segment of 1 GiB per group"),
    ] {
        let none = ask(&format!("{SERVER} --max-fit {host}").replace("Qwen3-235B-A22B", "Qwen3-32B"));
        let message = none.fails(1);
        assert!(message.contains("not even the smallest sizes fit") && message.contains(part), "{message}");
    }
}

/// A host with one NUMA node and a pool of `total` huge pages, of which `free` are free.
fn host(total: u64, free: u64, has_nodes: bool) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut folders = vec!["sys/kernel/mm/hugepages/hugepages-2048kB"];
    folders.extend(has_nodes.then_some("sys/devices/system/node/node0/hugepages/hugepages-2048kB"));
    for folder in folders {
        let folder = root.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        for (name, value) in [("nr_hugepages", total), ("free_hugepages", free), ("resv_hugepages", 0)] {
            fs::write(folder.join(name), format!("{value}\n")).unwrap();
        }
    }
    fs::create_dir_all(root.path().join("etc/sysctl.d")).unwrap();
    root
}

#[test]
fn pages_that_must_still_be_reserved_are_not_a_fit_yet() {
    let line = |root: &tempfile::TempDir| {
        format!("--max-fit --model Qwen3-32B --available-memory 1tb --root {}", root.path().display())
    };
    let empty = document(&line(&host(0, 0, true)), 1);
    assert_eq!((&empty["verdict"], &empty["reservable"]), (&"hugepages-short".into(), &true.into()));
    let summary = empty["summary"]["available"].as_str().unwrap();
    assert!(summary.ends_with("the huge pages must still be reserved"), "{summary}");
    let needed = empty["host_hugepages"]["most"].as_u64().unwrap();
    // Once they are reserved, the same sizes fit.
    let gb = &empty["max_fit"]["hicache_gb"];
    let segment = &empty["max_fit"]["group_segment_bytes"];
    let reserved = host(needed, needed, true);
    let same = format!("{} --hicache-size {gb} --global-segment-size {segment}", line(&reserved));
    assert_eq!(document(&same.replace("--max-fit", ""), 0)["verdict"], "fits");
    // A kernel without such a pool.
    let none = tempfile::tempdir().unwrap();
    assert!(ask(&line(&none)).fails(2).contains("--no-hugepages"));
}

#[test]
fn a_reservation_that_exists_is_never_shrunk() {
    let small = "--model Qwen3-8B --hicache-size 1 --page-size 64 --global-segment-size 64mb";
    let sysctl = |found: &Value| {
        let line = commands(found).into_iter().find(|line| line.contains("vm.nr_hugepages")).unwrap();
        line.split([' ', '\'']).filter_map(|word| word.parse::<u64>().ok()).next().unwrap()
    };
    // The pool of another host is large enough: its size is not a command for this one.
    let given = document(&format!("{small} --available-hugetlb 512gb"), 0);
    assert!(commands(&given).iter().all(|line| !line.contains("vm.nr_hugepages")));
    // 517 pages are needed, and the others are in use.
    for (total, free, has_nodes, target) in [
        (9_000, 9_000, true, 9_000),
        (9_000, 9_000, false, 9_000),
        (9_000, 17, true, 9_500),
        (9_000, 17, false, 9_500),
        (0, 0, false, 517),
    ] {
        let host = host(total, free, has_nodes);
        let line = format!("{small} --available-memory 64gb --root {}", host.path().display());
        let run = ask(&format!("{line} --persist --json"));
        let found: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(sysctl(&found), target, "{total} {free} {has_nodes}");
        let text = fs::read_to_string(host.path().join("etc/sysctl.d/90-mcctl-hugepages.conf")).unwrap();
        assert!(text.ends_with(&format!("\nvm.nr_hugepages = {target}\n")), "{text}");
    }
}

/// What a shell passes to `python3`, one argument per line, and then its environment.
fn pasted(found: &Value) -> String {
    let lines: Vec<String> = commands(found).into_iter().filter(|line| !line.starts_with("echo ")).collect();
    let script = format!("python3() {{ printf '%s\\n' \"$@\"; env; }}\n{}\n", lines.join("\n"));
    let mut shell = Command::new("bash");
    let run = finish(shell.args(["-euc", &script]).env("MC_STORE_USE_HUGEPAGE", "0").output().unwrap());
    run.succeeds().to_owned()
}

#[test]
fn the_commands_contain_every_setting_that_was_asked_for() {
    let line = "--model moonshotai/Kimi-K2 --tp-size 8 --pp-size 2 --nnodes 2 --dp-size 2 --enable-dp-attention \
                --dcp-size 2 --page-size 64 --kv-cache-dtype fp8_e4m3 --hicache-size 30 --global-segment-size 8gb \
                --protocol rdma --device-name mlx5_0,mlx5_1 --master m1 --metadata-server http://m1:8080/metadata \
                --hicache-io-backend kernel --max-mr-size 64gb --available-hugetlb 1tb --arena-pool-size 5gb";
    let output = pasted(&document(line, 0));
    let words: Vec<&str> = output.lines().collect();
    for setting in [
        "MC_STORE_USE_HUGEPAGE=1",
        "MC_STORE_HUGEPAGE_SIZE=2MB",
        "MC_MMAP_ARENA_POOL_SIZE=5gb",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb",
        "MOONCAKE_PROTOCOL=rdma",
        "MOONCAKE_DEVICE=mlx5_0,mlx5_1",
        "MOONCAKE_MASTER=m1:50051",
        "MOONCAKE_TE_META_DATA_SERVER=http://m1:8080/metadata",
        "MC_MAX_MR_SIZE=68719476736",
        "--enable-dp-attention",
        "--enable-hierarchical-cache",
    ] {
        assert!(words.contains(&setting), "{setting} is not in\n{output}");
    }
    for flag in [
        ["--model-path", "moonshotai/Kimi-K2"],
        ["--tp-size", "8"],
        ["--pp-size", "2"],
        ["--dp-size", "2"],
        ["--dcp-size", "2"],
        ["--nnodes", "2"],
        ["--page-size", "64"],
        ["--kv-cache-dtype", "fp8_e4m3"],
        ["--hicache-size", "30"],
        ["--hicache-mem-layout", "page_first"],
        ["--hicache-io-backend", "kernel"],
        ["--hicache-storage-backend", "mooncake"],
    ] {
        assert!(words.windows(2).any(|pair| pair == flag), "{flag:?} is not in\n{output}");
    }
}

#[test]
fn settings_that_were_not_given_are_comments() {
    let found = document("--hicache-size 30 --nnodes 2 --tp-size 2 --protocol rdma --available-hugetlb 1tb", 0);
    let commands = commands(&found).join("\n");
    for part in [
        "# and the devices, as listed by mcctl devices: export MOONCAKE_DEVICE=",
        "# and the address of the master: export MOONCAKE_MASTER=HOST:50051",
        "unless it is P2PHANDSHAKE: export MOONCAKE_TE_META_DATA_SERVER=",
        "--node-rank RANK --dist-init-addr HOST:PORT",
        "--hicache-mem-layout page_first_direct --hicache-io-backend direct",
    ] {
        assert!(commands.contains(part), "{part} is not in\n{commands}");
    }
    // SGLang's default is rdma, so tcp is always written.
    let regular = pasted(&document("--model Qwen/Qwen3-8B --hicache-size 1 --no-hugepages --available-memory 1tb", 0));
    let has = |part: &str| regular.lines().any(|line| line.starts_with(part));
    assert!(has("MOONCAKE_PROTOCOL=tcp") && !has("MC_STORE_USE_HUGEPAGE") && !has("MC_MAX_MR_SIZE"), "{regular}");
}

#[test]
fn invalid_settings_are_refused() {
    for (line, part) in [
        ("--device-name mlx5_0", "requires --protocol rdma"),
        ("--protocol rdma --device-name mlx5_0,,mlx5_1", "empty or invalid name"),
        ("--master a:b:c", "not a valid address"),
        ("--metadata-server redis://m1", "unsupported metadata service"),
        ("--hicache-mem-layout layer_first", "invalid value 'layer_first'"),
        ("--hicache-io-backend gpu", "invalid value 'gpu'"),
        ("--hicache-mem-layout page_first --hicache-io-backend direct", "SGLang replaces one of these"),
        ("--hicache-mem-layout page_first_direct --hicache-io-backend kernel", "SGLang replaces one of these"),
    ] {
        let run = ask(&format!("--hicache-size 1 {line}"));
        assert!(run.fails(2).contains(part), "{line}: {run:?}");
    }
}
