//! Compares pools with the figures of SGLang, and shares with their bounds.

use super::*;
use crate::plan::config_json;
use crate::plan::geometry::{CacheType, TokenRow};
use crate::plan::layout::ParallelLayout;
use crate::plan::models;
use crate::plan::sizing_input::DevicePools;
use proptest::prelude::*;

fn input(tp: u64, page: u64, l2_size: L2Size) -> SizingInput {
    SizingInput { page_size: page, ..SizingInput::new(ParallelLayout::new(tp, 1, 1, false, 1).unwrap(), l2_size) }
}

fn known(model: &str) -> &'static Geometry {
    &models::by_name(model).unwrap().geometry
}

fn rank(wanted: &SizingInput, geometry: &Geometry) -> RankPools {
    pools(wanted, geometry).unwrap().remove(0)
}

fn one(model: &str, tp: u64, page: u64, l2_size: L2Size) -> HostPool {
    rank(&input(tp, page, l2_size), known(model)).pools.remove(0)
}

#[test]
fn pools_match_sglang_0_5_23() {
    // Each row lists the model, tp, page size and size in GB, then the tokens, pages and bytes
    // that SGLang's own class computes.
    for (model, tp, page, gb, tokens, pages, bytes) in [
        ("Qwen3-32B", 1, 1, 30, 114_441, 114_441, 30_000_021_504),
        ("Qwen3-32B", 1, 64, 30, 114_496, 1_789, 30_014_439_424),
        ("Qwen3-32B", 1, 64, 1, 3_840, 60, 1_006_632_960),
        ("Qwen3-32B", 4, 64, 30, 457_792, 7_153, 30_001_856_512),
        ("Qwen3-32B", 8, 64, 1, 30_528, 477, 1_000_341_504),
        ("Qwen3-32B", 4, 64, 64, 976_576, 15_259, 64_000_884_736),
        ("DeepSeek-V3", 8, 64, 30, 426_944, 6_671, 30_002_208_768),
        ("DeepSeek-V3", 1, 1, 1, 14_231, 14_231, 1_000_040_832),
    ] {
        let pool = one(model, tp, page, L2Size::Gb(gb));
        assert_eq!((pool.units, pool.pages, pool.bytes()), (tokens, pages, bytes), "{model} tp{tp} page {page}");
    }
    let pool = one("Qwen3-32B", 1, 64, L2Size::Ratio { ratio: 2.0, device_tokens: 100_000 });
    assert_eq!((pool.units, pool.pages), (200_064, 3_126));
    assert_eq!(ratio_tokens(2.0, 100_000, 64), Ok(200_064));
    // From SGLang's log, for a device pool of 4096 tokens with 16-token pages.
    assert_eq!(ratio_tokens(2.0, 4_096, 16), Ok(8_208));
}

#[test]
fn the_index_of_sparse_attention_is_added() {
    let all = rank(&input(8, 64, L2Size::Gb(30)), known("DeepSeek-V3.2")).pools;
    assert_eq!((all[0].bytes(), all[1].unit_bytes), (30_002_208_768, 8_052));
    assert_eq!(all[1].bytes(), (all[0].units + 64) * 8_052);
}

#[test]
fn all_stages_hold_as_many_tokens_as_the_largest_one() {
    let layout = ParallelLayout::new(1, 4, 1, false, 1).unwrap();
    let wanted = SizingInput { layout, ..input(1, 64, L2Size::Gb(10)) };
    let stages = pools(&wanted, known("Qwen3-Coder-480B-A35B")).unwrap();
    let first = |stage: usize| &stages[stage].pools[0];
    assert!((0..4).all(|stage| first(stage).units == first(3).units));
    assert!(first(0).bytes() < first(3).bytes() && first(3).bytes() > 10_000_000_000);
}

#[test]
fn a_ratio_must_be_positive() {
    for ratio in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let l2_size = L2Size::Ratio { ratio, device_tokens: 5 };
        assert_eq!(pools(&input(1, 1, l2_size), known("Qwen3-8B")), Err(SizingError::Ratio));
    }
}

/// Units of each pool.
fn units(rank: &RankPools) -> Vec<(PoolKind, u64)> {
    rank.pools.iter().map(|pool| (pool.kind, pool.units)).collect()
}

#[test]
fn a_fixed_size_is_split_by_the_bytes_on_the_device() {
    // gpt-oss-120b: 18 layers of 2 KiB per token in each pool, and 0.8 as many tokens with a
    // window.
    let device = DevicePools { tokens: Some(1_000_000), ..DevicePools::default() };
    let wanted = SizingInput { device, ..input(1, 64, L2Size::Gb(36)) };
    let split = rank(&wanted, known("gpt-oss-120b"));
    assert!(!split.is_estimate);
    // (1,000,000 + 64) and (800,000 + 64) rows on the device share 36e9 bytes of 36,864 each.
    let total = 1_000_064.0 + 800_000.0 + 64.0;
    let tokens = (36.0 * 1_000_064.0 / total * 1e9 / 36_864.0) as u64 / 64 * 64 + 64;
    let window = (36.0 * 800_064.0 / total * 1e9 / 36_864.0) as u64 / 64 * 64 + 64;
    assert_eq!(units(&split), [(PoolKind::Kv, tokens), (PoolKind::Swa, window)]);
    // Without the device's pool, the shares are those of a very large one.
    let estimate = rank(&input(1, 64, L2Size::Gb(36)), known("gpt-oss-120b"));
    assert!(estimate.is_estimate && estimate.least_bytes() == 36_000_000_000);
    assert!(estimate.pools[0].units.abs_diff(tokens) <= 64);
    assert!((estimate.least_bytes()..=estimate.most_bytes()).contains(&split.most_bytes()));
}

#[test]
fn states_have_slots_of_their_own() {
    let device = DevicePools { tokens: Some(500_000), slots: Some(300), ..DevicePools::default() };
    let wanted = SizingInput { device, ..input(1, 64, L2Size::Gb(40)) };
    let split = rank(&wanted, known("Qwen3.5-397B-A17B"));
    let (kv, slot) = (30_720.0 * 500_064.0, 192_061_440.0 * 301.0);
    let slots = (40.0 * slot / (kv + slot) * 1e9 / 192_061_440.0) as u64 + 1;
    assert_eq!((split.pools[1].kind, split.pools[1].units, split.pools[1].pages), (PoolKind::Mamba, slots, slots));
    // A state's parts are separate buffers.
    assert_eq!(split.pools[1].buffers.len(), 2);
    // With a ratio, the slots on the device must be known.
    let l2_size = L2Size::Ratio { ratio: 1.5, device_tokens: 500_000 };
    let ratio = SizingInput { l2_size, ..wanted.clone() };
    assert_eq!(rank(&ratio, known("Qwen3.5-397B-A17B")).pools[1].units, 451);
    let unknown = SizingInput { l2_size, ..input(1, 64, l2_size) };
    assert_eq!(pools(&unknown, known("Qwen3.5-397B-A17B")), Err(SizingError::DeviceSlots));
}

#[test]
fn drafts_and_indexes_count_as_on_the_device() {
    // SGLang's own classes, with 12,345 tokens and 17 slots on the device.
    let device = DevicePools { tokens: Some(12_345), slots: Some(17), ..DevicePools::default() };
    let drafted = known("Qwen3-Next-80B-A3B").clone().with_draft_layers(1).unwrap();
    let split = rank(&SizingInput { device, ..input(1, 64, L2Size::Gb(30)) }, &drafted);
    assert_eq!(units(&split), [(PoolKind::Kv, 202_688), (PoolKind::Mamba, 319)]);
    let split = rank(&SizingInput { device, ..input(1, 256, L2Size::Gb(1)) }, known("GLM-5.3-Flash"));
    assert_eq!((split.pools[0].units, split.pools[0].bytes()), (4_864, 54_788_096));
    assert_eq!((split.pools[1].bytes(), split.pools[2].units), (1_858_560, 7));
}

#[test]
fn deepseek_v4_has_pages_of_256_tokens_and_a_ratio_only() {
    let l2_size = L2Size::Ratio { ratio: 2.0, device_tokens: 1_000_000 };
    let wanted = SizingInput { cache: CacheType::Fp8, ..input(8, 256, l2_size) };
    let all = rank(&wanted, known("DeepSeek-V4-Flash"));
    // 3907 pages of tokens, and int(999,936 * 0.1) / 256 pages in the windows.
    let pages: Vec<(&str, u64)> = all.pools.iter().map(|pool| (pool.kind.name(), pool.units)).collect();
    assert_eq!(pages[..2], [("swa", 780), ("deepseek_v4_c4", 7_814)]);
    assert_eq!(all.pools[0].unit_bytes % 149_760, 0);
    let fixed = SizingInput { l2_size: L2Size::Gb(30), ..wanted.clone() };
    assert_eq!(pools(&fixed, known("DeepSeek-V4-Flash")), Err(SizingError::FixedSize));
    let page = SizingInput { page_size: 64, ..wanted };
    assert_eq!(pools(&page, known("DeepSeek-V4-Flash")), Err(SizingError::CompressedPage { found: 64 }));
}

#[test]
fn the_automatic_size_takes_a_part_of_the_memory() {
    let auto = |available| L2Size::Auto { ratio: RATIO, fraction: 0.8, device_tokens: 100_000, available };
    let ratio = |available| selected_ratio(&input(1, 64, auto(available)), known("Qwen3-32B")).unwrap().unwrap();
    // (58 - 10) GiB x 0.8 x 0.95, over (100,000 + 64) tokens of 256 KiB on the device.
    let budget = (48.0 * (1u64 << 30) as f64 * 0.8).floor();
    assert_eq!(ratio(58 << 30), budget * 0.95 / (100_064.0 * 262_144.0));
    assert_eq!(ratio(1 << 40), 2.0);
    let none = selected_ratio(&input(1, 64, auto(10 << 30)), known("Qwen3-32B"));
    assert_eq!(none, Err(SizingError::NoMemory));
}

#[test]
fn layers_without_entries_have_no_pool() {
    let text = r#"{"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*",
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 8, "mamba_head_dim": 64,
        "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}"#;
    let geometry = config_json::read(text).unwrap();
    let device = DevicePools { tokens: Some(1_000), slots: Some(10), ..DevicePools::default() };
    let wanted = SizingInput { device, ..input(1, 1, L2Size::Gb(1)) };
    let split = rank(&wanted, &geometry);
    assert_eq!((split.pools[0].layers, split.pools[1].layers), (1, 2));
}

#[test]
fn sglang_splits_heads_or_copies_one() {
    let geometry = |heads, kv_heads| Geometry {
        attention_heads: Some(heads),
        ..Geometry::uniform(1, TokenRow::Heads { kv_heads, head_dim: 128, v_head_dim: 128 })
    };
    for (heads, kv, tp, is_valid) in [
        (64, 8, 8, true),
        (64, 8, 16, true),
        (64, 4, 8, true),
        (28, 4, 8, false),
        (64, 8, 128, false),
        (60, 10, 4, false),
        (48, 3, 4, false),
    ] {
        assert_eq!(geometry(heads, kv).check_tp(tp).is_ok(), is_valid, "{heads} {kv} {tp}");
    }
}

proptest! {
    #[test]
    fn the_pool_exceeds_the_size_by_at_most_a_page(
        gb in 1u64..2_000, page in 1u64..512, tp in 1u64..9, layers in 1u64..130, kv in 1u64..33
    ) {
        let geometry = Geometry::uniform(layers, TokenRow::Heads { kv_heads: kv, head_dim: 128, v_head_dim: 128 });
        prop_assume!(geometry.check_tp(tp).is_ok());
        let pool = rank(&input(tp, page, L2Size::Gb(gb)), &geometry).pools.remove(0);
        let l2_size = gb * 1_000_000_000;
        let page_bytes = page * pool.unit_bytes;
        prop_assert!(pool.bytes() > l2_size && pool.bytes() <= l2_size + page_bytes);
        prop_assert_eq!(pool.units, pool.pages * page);
    }

    #[test]
    fn shares_stay_within_the_bounds(
        gb in 1u64..500, page in 1u64..300, tokens in 1_000u64..1 << 32, slots in 1u64..5_000, tp in 0u32..4
    ) {
        let device = DevicePools { tokens: Some(tokens), slots: Some(slots), ..DevicePools::default() };
        for model in ["Qwen3-Next-80B-A3B", "gpt-oss-120b", "GLM-5.3-Flash", "Kimi-K3"] {
            let unknown = input(1 << tp, page, L2Size::Gb(gb));
            let split = rank(&SizingInput { device, ..unknown.clone() }, known(model));
            let estimate = rank(&unknown, known(model));
            prop_assert!(!split.is_estimate && estimate.is_estimate);
            prop_assert!(estimate.least_bytes() <= split.least_bytes() && split.most_bytes() <= estimate.most_bytes());
        }
    }
}
