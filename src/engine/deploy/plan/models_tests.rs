//! Known models: sizes as published, names, and sources.

use super::*;
use crate::plan::geometry::CacheType;

/// Bytes per token and rank, over all pools of tokens, in bf16 at tp 1, 2, 4 and 8.
fn row(name: &str) -> [u64; 4] {
    let model = &by_name(name).unwrap().geometry;
    [1, 2, 4, 8].map(|tp| {
        let pools = model.pools(0..model.layers.len(), tp, CacheType::Half).unwrap();
        pools.iter().filter(|pool| pool.kind.name() != "indexer").map(|pool| pool.unit_bytes()).sum()
    })
}

#[test]
fn bytes_per_token_match_published_calculators() {
    for (name, bytes) in [
        ("Qwen3-8B", [147_456, 73_728, 36_864, 18_432]),
        ("Qwen3-32B", [262_144, 131_072, 65_536, 32_768]),
        ("Qwen3-235B-A22B", [192_512, 96_256, 48_128, 48_128]),
        ("Qwen3-Coder-480B-A35B", [253_952, 126_976, 63_488, 31_744]),
        ("Llama-3.1-8B", [131_072, 65_536, 32_768, 16_384]),
        ("Llama-3.1-70B", [327_680, 163_840, 81_920, 40_960]),
        ("Llama-3.1-405B", [516_096, 258_048, 129_024, 64_512]),
        ("GLM-4.5", [376_832, 188_416, 94_208, 47_104]),
        ("GLM-4.5-Air", [188_416, 94_208, 47_104, 23_552]),
        ("gpt-oss-120b", [73_728, 36_864, 18_432, 9_216]),
        ("DeepSeek-V3", [70_272; 4]),
        ("Kimi-K2", [70_272; 4]),
        ("GLM-5", [89_856; 4]),
        ("GLM-4.7-Flash", [54_144; 4]),
    ] {
        assert_eq!(row(name), bytes, "{name}");
    }
}

#[test]
fn every_line_of_the_file_is_a_model() {
    assert_eq!(models().len(), include_str!("models.jsonl").lines().count());
    assert!(models().len() >= 40);
    for model in models() {
        assert!(!model.names.is_empty() && !model.source.is_empty(), "{model:?}");
        assert!(!model.source.contains("unverified"), "{model:?}");
    }
}

#[test]
fn hub_names_are_found_and_unknown_names_get_suggestions() {
    let first = |name| by_name(name).unwrap().names[0].as_str();
    assert_eq!(first("Qwen/Qwen3-32B-FP8"), "Qwen3-32B");
    assert_eq!(first("meta-llama/Meta-Llama-3.1-70B-Instruct"), "Llama-3.1-70B");
    assert_eq!(first("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8"), "Qwen3-30B-A3B");
    assert_eq!(first("Qwen/Qwen3-Next-80B-A3B-Instruct"), "Qwen3-Next-80B-A3B");
    assert_eq!(first("MiniMaxAI/MiniMax-M2"), "MiniMax-M2");
    let Err(SizingError::UnknownModel { nearest, .. }) = by_name("Qwen3-33B") else { panic!("not known") };
    assert_eq!(nearest[0], "Qwen3-32B");
    let auto = by_name_with_auto_cache("nvidia/DeepSeek-R1-0528-NVFP4");
    assert!(matches!(auto, Err(SizingError::CacheTypeUnknown { .. })));
}

#[test]
fn model_names_are_unique() {
    let mut names: Vec<String> = models().iter().flat_map(|m| &m.names).map(|n| plain(n)).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_model_is_read() {
    for line in include_str!("models.jsonl").lines() {
        let ModelLine { names, config, .. } = serde_json::from_str(line).unwrap();
        assert!(config_json::of_object(&config).is_ok(), "{names:?}: {:?}", config_json::of_object(&config));
    }
}
