//! The page of known models has each model, with the sizes that mcctl computes.

use std::fs;
use std::path::Path;

use mcctl::engine::plan::SizingError;
use mcctl::engine::plan::config_json;
use mcctl::engine::plan::geometry::{Geometry, KeptTokens, PoolKind, PoolShape};
use mcctl::engine::plan::host_pool::{L2Size, RankPools, pools};
use mcctl::engine::plan::layout::ParallelLayout;
use mcctl::engine::plan::models::{KnownModel, models};
use mcctl::engine::plan::sizing_input::SizingInput;
use mcctl::engine::plan::tiers::stored_objects;

/// Set this variable to write the page.
const UPDATE: &str = "MCCTL_UPDATE_PAGES";
/// The settings of the columns for L2 and L3.
const TP_MAX: u64 = 8;
const PAGE: u64 = 64;
const GB: u64 = 30;

/// The largest number of ranks, up to 8, across which SGLang can split the heads.
fn tp(geometry: &Geometry) -> u64 {
    (1..=TP_MAX).rev().find(|tp| TP_MAX.is_multiple_of(*tp) && geometry.check_tp(*tp).is_ok()).unwrap_or(1)
}

/// The number of ranks of a figure, if it is not 8.
fn tp_note(geometry: &Geometry) -> String {
    match tp(geometry) {
        TP_MAX => String::new(),
        tp => format!(" (tp {tp})"),
    }
}

fn input(geometry: &Geometry) -> SizingInput {
    let (page_size, l2_size) = if geometry.compressed.is_some() {
        (256, L2Size::Ratio { ratio: 2.0, device_tokens: 1_000_000 })
    } else {
        (PAGE, L2Size::Gb(GB))
    };
    let layout = ParallelLayout::new(tp(geometry), 1, 1, false, 1).unwrap();
    SizingInput { cache: geometry.auto_cache(), page_size, ..SizingInput::new(layout, l2_size) }
}

fn shapes(geometry: &Geometry, tp: u64) -> Result<Vec<PoolShape>, SizingError> {
    geometry.pools(0..geometry.layers.len(), tp, geometry.auto_cache())
}

/// The layers by kind.
fn layers(geometry: &Geometry) -> String {
    let count = |wanted: &dyn Fn(&mcctl::engine::plan::geometry::Layer) -> bool| {
        geometry.layers.iter().filter(|layer| wanted(layer)).count() as u64 * geometry.passes
    };
    let full = if geometry.is_latent() { "latent" } else { "full" };
    let parts = [
        (count(&|layer| layer.tokens == KeptTokens::All), full),
        (count(&|layer| layer.tokens == KeptTokens::Window), "window"),
        (count(&|layer| layer.has_index), "indexed"),
        (count(&|layer| layer.has_state), "state"),
        (count(&|layer| layer.tokens == KeptTokens::Compressed(4)), "compressed 4:1"),
        (count(&|layer| layer.tokens == KeptTokens::Compressed(128)), "compressed 128:1"),
        (count(&|layer| layer.tokens == KeptTokens::Compressed(0)), "window"),
    ];
    let shown: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect();
    shown.join(", ")
}

/// Bytes per token in each pool of tokens at `tp`; per page of 256 tokens if compressed.
fn token_bytes(geometry: &Geometry, tp: u64) -> String {
    let Ok(all) = shapes(geometry, tp) else { return "-".to_owned() };
    let of = |shape: &&PoolShape| !shape.has_slots();
    let shown: Vec<String> = all.iter().filter(of).map(|shape| shape.unit_bytes().to_string()).collect();
    let per = if geometry.compressed.is_some() { " per page" } else { "" };
    format!("{}{per}", shown.join(" + "))
}

fn slot_bytes(geometry: &Geometry) -> String {
    let at = |tp| {
        let all = shapes(geometry, tp).ok()?;
        Some(all.iter().find(|shape| shape.has_slots())?.unit_bytes().to_string())
    };
    match (at(1), at(tp(geometry))) {
        (Some(one), Some(eight)) => format!("{one}, {eight}"),
        (Some(one), None) => format!("{one}, -"),
        (None, _) => String::new(),
    }
}

fn l2(geometry: &Geometry) -> String {
    let Ok(ranks) = pools(&input(geometry), geometry) else { return "-".to_owned() };
    let Some(RankPools { pools, is_estimate, .. }) = ranks.first() else { return String::new() };
    let about = if *is_estimate { "about " } else { "" };
    let unit = |kind: PoolKind| match kind {
        PoolKind::Mamba => "slots",
        PoolKind::Kv => "tokens",
        PoolKind::Swa if geometry.compressed.is_none() => "tokens in windows",
        PoolKind::Swa => "window pages",
        _ => "pages",
    };
    let wanted = |kind| matches!(kind, PoolKind::Kv | PoolKind::Swa | PoolKind::Mamba | PoolKind::DeepseekV4C4);
    let parts: Vec<String> = pools
        .iter()
        .filter(|pool| wanted(pool.kind))
        .map(|pool| format!("{about}{} {}", pool.units, unit(pool.kind)))
        .collect();
    parts.join(", ")
}

fn l3(geometry: &Geometry) -> String {
    let wanted = input(geometry);
    let Ok(objects) = stored_objects(wanted.page_size, geometry, &wanted.layout, wanted.cache) else {
        return "-".to_owned();
    };
    let parts: Vec<String> =
        objects.iter().map(|object| format!("{} x {} `{}`", object.objects, object.bytes, object.suffix)).collect();
    parts.join(", ")
}

/// The geometries of the configs whose pools SGLang's own classes allocated.
fn proved() -> Vec<Geometry> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sizing");
    let table = fs::read_to_string(folder.join("sglang-0.5.23-pools.tsv")).unwrap();
    let names: Vec<&str> =
        table.lines().filter(|row| row.ends_with("\tpool")).filter_map(|row| row.split('\t').next()).collect();
    let configs = fs::read_to_string(folder.join("model-configs.jsonl")).unwrap();
    let geometry = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_proved = names.contains(&line["name"].as_str().unwrap());
        config_json::of_object(line["config"].as_object().unwrap()).ok().filter(|_| is_proved)
    };
    configs.lines().filter_map(geometry).collect()
}

fn row(model: &KnownModel, proved: &[Geometry]) -> String {
    let geometry = &model.geometry;
    let proof = if proved.contains(geometry) { "pool" } else { "rule" };
    let names: Vec<&str> = model.names.iter().map(String::as_str).collect();
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {proof} | {} |\n",
        names.join(", "),
        layers(geometry),
        token_bytes(geometry, 1),
        token_bytes(geometry, tp(geometry)) + &tp_note(geometry),
        slot_bytes(geometry),
        l2(geometry),
        l3(geometry),
        model.source
    )
}

fn table() -> String {
    let proved = proved();
    let mut text = String::from(
        "\n| model | layers | bytes per token, tp 1 | tp 8 | bytes per slot, tp 1, tp 8 | L2 | objects in L3 | proof | source |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for model in models() {
        text.push_str(&row(model, &proved));
    }
    text
}

#[test]
fn the_page_of_models_has_their_sizes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/model-sizes.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (head, found) = page.split_at(page.find("\n| model | layers").expect("the table"));
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, format!("{head}{}", table())).expect("written");
    } else {
        assert_eq!(found, table(), "set {UPDATE}=1 to write docs/model-sizes.md");
    }
    assert!(models().len() >= 40);
}
