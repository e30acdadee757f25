//! Models with several pools, through the command line.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::answer::{ask, document};

/// Names in the table of SGLang's pools, one or more of each kind of layer.
const CONFIGS: [&str; 22] = [
    "DeepSeek-V3.2",
    "Falcon-H1-7B",
    "GLM-5.2",
    "GLM-5.3-Flash",
    "Inkling",
    "Kimi-K3",
    "Kimi-Linear-48B-A3B",
    "LFM2-1.2B",
    "LFM2.5-VL-1.6B",
    "Ling-3.0-tiny",
    "Llama-4-Maverick-17B-128E-Instruct",
    "LongCat-Flash-Chat",
    "MiMo-V2-Flash",
    "MiniMax-M3-NVFP4",
    "NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "Qwen3-Next-80B-A3B",
    "Qwen3.5-397B-A17B",
    "default-zaya",
    "gemma-4-26B-A4B",
    "gpt-oss-20b",
    "granite-4.0-h-tiny",
    "jet-nemotron-2B",
];

fn fixture(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sizing").join(name)).unwrap()
}

/// Bytes per token of each pool of tokens, and per slot.
fn sizes(found: &Value) -> (Vec<u64>, u64) {
    let pools = found["ranks"][0]["pools"].as_array().unwrap();
    let of = |unit: &str| -> Vec<u64> {
        let pools = pools.iter().filter(|pool| pool["unit"] == unit);
        pools.map(|pool| pool["unit_bytes"].as_u64().unwrap()).collect()
    };
    (of("token"), of("slot").iter().sum())
}

#[test]
fn config_files_have_the_pools_of_sglang() {
    let configs = fixture("model-configs.jsonl");
    let table = fixture("sglang-0.5.23-pools.tsv");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    for name in CONFIGS {
        let config = configs.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let config = config.filter(|line| line["name"] == name).map(|line| line["config"].to_string()).next();
        fs::write(&file, config.unwrap()).unwrap();
        for tp in ["1", "4"] {
            let prefix = format!("{name}\t{tp}\tbf16\t");
            let row = table.lines().find_map(|row| row.strip_prefix(&prefix)).unwrap();
            let cells: Vec<&str> = row.split('\t').collect();
            let tokens: Vec<u64> =
                cells[0].split(',').map(|pool| pool.rsplit(':').next().unwrap().parse().unwrap()).collect();
            let line = format!(
                "--model {} --tp-size {tp} --page-size 64 --hicache-size 30 --kv-cache-dtype bf16 --available-hugetlb 4tb",
                file.display()
            );
            assert_eq!(sizes(&document(&line, 0)), (tokens, cells[1].parse().unwrap()), "{name} tp {tp}");
        }
    }
}

#[test]
fn pools_share_a_size_and_the_device_makes_it_exact() {
    let line =
        "--model Qwen/Qwen3.5-397B-A17B-FP8 --tp-size 8 --page-size 64 --hicache-size 40 --available-hugetlb 1tb";
    let about = document(line, 0);
    let rank = &about["ranks"][0];
    assert_eq!((&rank["pools_are_estimates"], &rank["l2_bytes"]["least"]), (&true.into(), &40_000_000_000u64.into()));
    let exact = document(&format!("{line} --device-pool-tokens 1000000 --device-mamba-slots 400"), 0);
    let rank = &exact["ranks"][0];
    assert_eq!(rank["pools_are_estimates"], false);
    // 15,360 bytes per token and 24,007,680 per slot: 1,000,064 tokens and 401 slots on the device.
    let (kv, states) = (15_360.0 * 1_000_064.0, 24_007_680.0 * 401.0);
    let slots = (40.0 * states / (kv + states) * 1e9 / 24_007_680.0) as u64 + 1;
    assert_eq!((&rank["pools"][1]["pool"], &rank["pools"][1]["units"]), (&"mamba".into(), &slots.into()));
    assert_eq!(rank["l2_bytes"]["least"], rank["l2_bytes"]["most"]);
    // The capacity of L3 in tokens is undefined, but its objects are known.
    assert_eq!(exact["tiers"].as_array().unwrap().len(), 0);
    let objects: Vec<&str> =
        exact["objects"].as_array().unwrap().iter().map(|object| object["suffix"].as_str().unwrap()).collect();
    assert_eq!(objects, ["_k", "_v", "_temporal", "_conv_0"]);
}

#[test]
fn live_prefixes_beyond_the_slots_are_a_caveat() {
    let line = "--model Qwen3-Next-80B-A3B --tp-size 4 --page-size 64 --hicache-size 8 --live-prefixes 500 \
                --conversation-tokens 20000 --available-hugetlb 1tb";
    let found = document(line, 0);
    let states = &found["states"];
    assert_eq!((&states["slots_per_prefix"], &states["live_prefixes"]), (&4.into(), &500.into()));
    let gb = states["live_prefixes_gb"].as_u64().unwrap();
    assert!(states["prefixes"].as_u64().unwrap() < 500 && gb > 8, "{states}");
    assert!(found["reasons"].to_string().contains(&format!("--hicache-size {gb} keeps all of them")), "{found}");
    let enough = document(&line.replace("--hicache-size 8", &format!("--hicache-size {gb}")), 0);
    assert!(enough["states"]["prefixes"].as_u64().unwrap() >= 500);
    assert!(!enough["reasons"].to_string().contains("keeps all of them"));
}

#[test]
fn deepseek_v4_is_sized_by_a_ratio() {
    let line = "--model deepseek-ai/DeepSeek-V4-Flash --tp-size 8 --page-size 256 --hicache-ratio 2 \
                --device-pool-tokens 1000000 --available-hugetlb 1tb";
    let found = document(line, 0);
    let pools = found["ranks"][0]["pools"].as_array().unwrap();
    let shown: Vec<(&str, u64)> =
        pools.iter().map(|pool| (pool["pool"].as_str().unwrap(), pool["unit_bytes"].as_u64().unwrap())).collect();
    assert_eq!(
        shown,
        [
            ("swa", 43 * 149_760),
            ("deepseek_v4_c4", 21 * 37_440),
            ("deepseek_v4_c4_indexer", 21 * 8_448),
            ("deepseek_v4_c128", 20 * 1_728),
            ("deepseek_v4_c4_state", 21 * 65_536),
            ("deepseek_v4_c4_indexer_state", 21 * 16_384),
        ]
    );
    assert!(ask(&format!("{line} --kv-cache-dtype bf16")).fails(2).contains("fp8_e4m3"));
}

#[test]
fn the_automatic_size_is_a_ratio() {
    let line = "--model Qwen3-32B --tp-size 4 --device-pool-tokens 400000 --available-memory 200gb --no-hugepages";
    let found = document(line, 0);
    let ratio = found["selected_ratio"].as_f64().unwrap();
    assert!(ratio > 1.4 && ratio < 1.5, "{ratio}");
    let small = document(&format!("{line} --hicache-host-memory-fraction 0.4"), 0);
    assert!((small["selected_ratio"].as_f64().unwrap() / ratio - 0.5).abs() < 0.001);
    let buffer = document(&format!("{line} --hicache-host-memory-mode buffer_only"), 0);
    assert_eq!(buffer["selected_ratio"], 1.2);
}
