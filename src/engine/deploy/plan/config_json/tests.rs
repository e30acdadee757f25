//! Compares the geometry of public config.json files with the pools that SGLang allocates for them.

use super::*;
use crate::plan::geometry::{CacheType, PoolShape};
use crate::plan::host_pool::L2Size;
use crate::plan::layout::ParallelLayout;
use crate::plan::live_prefixes::state_slots;
use crate::plan::need::need;
use crate::plan::sizing_input::{DevicePools, SizingInput};
use crate::plan::tiers::stored_objects;
use proptest::prelude::*;

fn fixture(name: &str) -> String {
    let path = format!("{}/../../../fixtures/sizing/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// The config.json files of the table, by name.
fn configs() -> Vec<(String, Map<String, Value>)> {
    let line = |line: &str| {
        let Ok(Value::Object(mut line)) = serde_json::from_str(line) else { panic!("{line}") };
        let (Some(Value::String(name)), Some(Value::Object(config))) = (line.remove("name"), line.remove("config"))
        else {
            panic!("name and config")
        };
        (name, config)
    };
    fixture("model-configs.jsonl").lines().map(line).collect()
}

/// A pool in the notation of the table.
fn shown(pools: &[PoolShape], is_latent: bool) -> String {
    let kind = |shape: &PoolShape| match shape.kind.name() {
        "kv" if is_latent => "latent",
        "kv" => "full",
        "swa" if shape.tokens == 1 => "window",
        "indexer" => "index",
        name => name,
    };
    let tokens = pools.iter().filter(|shape| !shape.has_slots());
    let mut parts: Vec<String> =
        tokens.map(|shape| format!("{}:{}:{}", kind(shape), shape.layers, shape.unit_bytes())).collect();
    parts.sort();
    parts.join(",")
}

fn sorted(text: &str) -> String {
    let mut parts: Vec<&str> = text.split(',').collect();
    parts.sort_unstable();
    parts.join(",")
}

fn slot_bytes(pools: &[PoolShape]) -> u64 {
    pools.iter().filter(|shape| shape.has_slots()).map(PoolShape::unit_bytes).sum()
}

/// The objects of a page that rank 0 stores, with their sizes. `objects` begins with the page size.
fn shown_objects(geometry: &Geometry, tp: u64, cache: CacheType, objects: &str) -> Vec<(String, u64)> {
    let page = objects.split(';').next().and_then(|page| page.parse().ok()).unwrap_or(64);
    let layout = ParallelLayout::new(tp, 1, 1, false, 1).unwrap();
    let all = stored_objects(page, geometry, &layout, cache).unwrap();
    let mut shown: Vec<(String, u64)> =
        all.into_iter().map(|object| (object.suffix.trim_start_matches('_').to_owned(), object.bytes)).collect();
    shown.sort();
    shown
}

/// The objects in the table: `SUFFIX:BYTES`, with the rank before the suffix of its own objects.
fn object_set(objects: &str) -> Vec<(String, Option<u64>)> {
    let object = |text: &str| {
        let (suffix, bytes) = text.split_once(':').unwrap();
        (suffix.trim_start_matches("0_").to_owned(), bytes.parse().ok())
    };
    let mut set: Vec<(String, Option<u64>)> = objects.split(';').skip(1).map(object).collect();
    // A part without bytes is not stored.
    set.retain(|(_, bytes)| *bytes != Some(0));
    set.sort();
    set
}

/// Configs with pools in SGLang that mcctl refuses. SGLang itself rejects HiCache for
/// default-minicpm_hybrid.
const NOT_COVERED: [&str; 5] =
    ["DeepSeek-V4.1-Flash", "default-minicpm_hybrid", "default-mllama", "default-muse_spark", "default-qwen4_exp"];

/// Compares every row of the table, which SGLang's own classes computed.
#[test]
fn pools_match_those_of_sglang_0_5_23() {
    let configs = configs();
    let mut wrong = Vec::new();
    let (mut compared, mut splits) = (0, 0);
    let mut refused = Vec::new();
    for row in fixture("sglang-0.5.23-pools.tsv").lines().skip(1) {
        let cells: Vec<&str> = row.split('\t').collect();
        let &[name, tp, dtype, pools, slot, _, stages, objects, _] = cells.as_slice() else { panic!("{row}") };
        let tp: u64 = tp.parse().unwrap();
        let Some((_, config)) = configs.iter().find(|(known, _)| known == name) else { panic!("{name}") };
        let cache = if dtype == "bf16" { CacheType::Half } else { CacheType::Fp8 };
        compared += 1;
        let all = of_object(config).and_then(|geometry| {
            let all = geometry.pools(0..geometry.layers.len(), tp, cache)?;
            Ok((geometry, all))
        });
        let (geometry, all) = match all {
            Ok(_) if pools == "refused" => {
                wrong.push(format!("{name} tp {tp} {dtype}: not refused"));
                continue;
            }
            Ok(found) => found,
            Err(_) if pools == "refused" => continue,
            Err(_) if NOT_COVERED.contains(&name) => {
                refused.push(name.to_owned());
                continue;
            }
            Err(error) => {
                wrong.push(format!("{name} tp {tp} {dtype}: {error}"));
                continue;
            }
        };
        let found = (shown(&all, geometry.is_latent()), slot_bytes(&all));
        if found != (sorted(pools), slot.parse().unwrap()) {
            wrong.push(format!("{name} tp {tp} {dtype}: {found:?}, SGLang {pools} {slot}"));
        }
        let expected = object_set(objects);
        let mut found = shown_objects(&geometry, tp, cache, objects);
        // The table has no size where SGLang could not name the key.
        found.retain(|(suffix, _)| !expected.contains(&(suffix.clone(), None)));
        let known: Vec<_> = expected.into_iter().filter_map(|(suffix, bytes)| Some((suffix, bytes?))).collect();
        if !objects.is_empty() && found != known {
            wrong.push(format!("{name} tp {tp} {dtype}: {found:?}, SGLang {objects}"));
        }
        let layout = ParallelLayout::new(tp, 2, 1, false, 1).unwrap();
        for (stage, expected) in (0..).zip(stages.split('|').filter(|stages| !stages.is_empty())) {
            splits += 1;
            let range = layout.layers_of_stage(geometry.layers.len(), stage).unwrap();
            let own = geometry.pools(range, tp, cache).unwrap();
            let (pools, slot) = expected.split_once('+').unwrap_or((expected, "0"));
            let found = (shown(&own, geometry.is_latent()), slot_bytes(&own));
            if found != (sorted(pools), slot.parse().unwrap()) {
                wrong.push(format!("{name} tp {tp} {dtype} stage {stage}: {found:?}, SGLang {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} rows:\n{}", wrong.len(), wrong.join("\n"));
    refused.dedup();
    assert_eq!(refused, NOT_COVERED);
    assert!(compared > 1_000 && splits > 500, "{compared} {splits}");
}

/// Values that a field may have in a broken or hostile file.
const BROKEN: [&str; 12] = [
    "null",
    "0",
    "-1",
    "1.5",
    "1e308",
    "16777216",
    "18446744073709551615",
    "\"text\"",
    "[]",
    "[0, 1, 4, 128, 16777216]",
    "{}",
    "true",
];

/// Uses all sizes of a config.
fn use_all(config: &Map<String, Value>, tp: u64, l2_size: L2Size) {
    let Ok(geometry) = of_object(config) else { return };
    for cache in [CacheType::Half, CacheType::Fp8, CacheType::Fp8Plain, CacheType::Mxfp8] {
        let _ = geometry.pools(0..geometry.layers.len(), tp, cache);
        let wanted = SizingInput {
            geometry: Some(geometry.clone()),
            cache,
            page_size: if geometry.compressed.is_some() { 256 } else { 64 },
            device: DevicePools { tokens: Some(1 << 40), window_tokens: None, slots: Some(1 << 40) },
            group_segment: 1 << 34,
            ..SizingInput::new(ParallelLayout::new(tp, 1, 1, false, 1).unwrap(), l2_size)
        };
        let _ = need(&wanted);
        let _ = state_slots(&wanted, &geometry, 3);
        let _ = stored_objects(64, &geometry, &wanted.layout, cache);
    }
}

#[test]
fn every_field_can_be_broken_without_a_panic() {
    let configs = configs();
    // One config of each architecture.
    let mut seen = Vec::new();
    for (_, config) in configs {
        let architecture = config.get("architectures").map(Value::to_string);
        if seen.contains(&architecture) {
            continue;
        }
        seen.push(architecture);
        let nested = config.get("text_config").and_then(Value::as_object).cloned();
        for value in BROKEN.map(|text| serde_json::from_str::<Value>(text).unwrap()) {
            for field in config.keys() {
                let mut broken = config.clone();
                broken.insert(field.clone(), value.clone());
                use_all(&broken, 1, L2Size::Gb(1 << 20));
            }
            for field in nested.iter().flat_map(Map::keys) {
                let mut text = nested.clone().unwrap();
                text.insert(field.clone(), value.clone());
                let mut broken = config.clone();
                broken.insert("text_config".to_owned(), Value::Object(text));
                use_all(&broken, 8, L2Size::Ratio { ratio: 1e9, device_tokens: 1 << 40 });
            }
        }
    }
    assert!(seen.len() > 60, "{}", seen.len());
}

#[test]
fn an_absent_size_is_named() {
    let mut named = 0;
    for (name, config) in configs().iter().filter(|(_, config)| of_object(config).is_ok()) {
        for field in config.keys() {
            let mut absent = config.clone();
            absent.remove(field);
            match of_object(&absent) {
                Ok(_) => {}
                Err(SizingError::ConfigField { field }) => {
                    named += 1;
                    assert!(!field.is_empty());
                }
                Err(error) => panic!("{name} without {field}: {error}"),
            }
        }
    }
    assert!(named > 300, "{named}");
}

#[test]
fn fields_of_other_kinds_are_named() {
    let with = |architecture: &str, field: &str, value: Value| {
        let config = serde_json::json!({
            "architectures": [architecture], "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 2,
            field: value,
        });
        of_object(config.as_object().unwrap())
    };
    let minimax = |kinds: Value| with("MiniMaxM2ForCausalLM", "attn_type_list", kinds);
    assert_eq!(minimax(serde_json::json!([1, 1])).unwrap(), minimax(Value::Null).unwrap());
    for kinds in [serde_json::json!([1, 0]), serde_json::json!(1)] {
        assert!(matches!(minimax(kinds), Err(SizingError::ConfigField { field: "attn_type_list" })));
    }
    let latent = with("Qwen3ForCausalLM", "kv_lora_rank", 512.into());
    assert!(matches!(latent, Err(SizingError::ConfigField { field: "kv_lora_rank" })));
    let looped = |loops: Value| with("NanbeigeForCausalLM", "num_loops", loops);
    assert_eq!(looped(2.into()).unwrap().passes, 2);
    assert!(matches!(looped(Value::Null), Err(SizingError::ConfigField { field: "num_loops" })));
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,200}") {
        let _ = read(&text);
    }
}
