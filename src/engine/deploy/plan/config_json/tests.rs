//! Compares the geometry of public config.json files with the pools that SGLang allocates for them.

use super::*;
use crate::plan::geometry::{CacheType, PoolShape};
use crate::plan::layout::ParallelLayout;
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

/// Configs that SGLang can serve, and mcctl refuses.
const NOT_COVERED: [&str; 8] = [
    "DeepSeek-V4.1-Flash",
    "default-deepseek_v41",
    "default-dots3",
    "default-minicpm_hybrid",
    "default-mllama",
    "default-muse_spark",
    "default-qwen4_exp",
    "default-stablelm",
];

/// Compares every row of the table, which SGLang's own classes computed.
#[test]
fn pools_match_those_of_sglang_0_5_23() {
    let configs = configs();
    let mut wrong = Vec::new();
    let (mut compared, mut splits) = (0, 0);
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
            Err(_) if pools == "refused" || NOT_COVERED.contains(&name) => continue,
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
    assert!(compared > 1_000 && splits > 500, "{compared} {splits}");
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,200}") {
        let _ = read(&text);
    }
}
