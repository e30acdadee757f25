//! Results of `mcctl size-hugepages`. The target is always another host, so the results do not
//! depend on this one.

use crate::cli::{Run, mcctl};

pub(super) fn ask(line: &str) -> Run {
    let mut args = vec!["size-hugepages"];
    args.extend(line.split_whitespace());
    mcctl(&args)
}

pub(super) fn document(line: &str, code: i32) -> serde_json::Value {
    let run = ask(&format!("{line} --json"));
    assert_eq!(run.code, code, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn sizes_with_units_are_parsed_like_upstreams_script() {
    let line =
        "--tp-size 4 --hicache-size 64gb --global-segment-size 8gb --arena-pool-size 56gb --available-hugetlb 512gb";
    // Without a model, the index of some models may need more pages.
    let found = document(line, 1);
    assert_eq!(found["verdict"], "not-certain");
    let sizes = found["sizes"].as_array().unwrap();
    let expected = [
        ("--hicache-size", "64gb", 64u64 << 30, "68", 68_000_000_000u64, -719_476_736),
        ("--global-segment-size", "8gb", 8 << 30, "8gb", 8 << 30, 0),
        ("--arena-pool-size", "56gb", 56 << 30, "56gb", 56 << 30, 0),
    ];
    assert_eq!(sizes.len(), expected.len());
    for (found, (flag, given, asked_bytes, setting, used_bytes, difference_bytes)) in sizes.iter().zip(expected) {
        let row = serde_json::json!({
            "flag": flag, "given": given, "asked_bytes": asked_bytes, "setting": setting, "used_bytes": used_bytes,
            "difference_bytes": difference_bytes,
        });
        assert_eq!(found, &row);
    }
    // The script's own results for these values.
    assert_eq!(
        (&found["upstream"]["baseline_bytes"], &found["upstream"]["clean_bytes"]),
        (&(288u64 << 30).into(), &(512u64 << 30).into())
    );
    let commands = found["commands"].to_string();
    assert!(commands.contains("--hicache-size 68 ") && commands.contains("719476736 bytes less"), "{commands}");
    // A bare number has SGLang's unit.
    let bare = document(&line.replace("64gb", "64"), 1);
    assert_eq!(bare["sizes"][0]["used_bytes"], 64_000_000_000u64);
    assert_eq!(bare["hicache_bytes"], 64_000_000_000u64);
}

#[test]
fn the_report_ends_with_the_answer_in_three_lines() {
    let text = ask(&format!("{EXAMPLE} --available-hugetlb 0"));
    assert_eq!(text.code, 1, "{text:?}");
    let labels: Vec<&str> =
        text.stdout.lines().rev().take(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(labels, ["next", "available", "needs"]);
    let first = text.stdout.lines().rev().nth(2).unwrap();
    assert!(first.contains("126200 2 MiB huge pages") && first.contains("246.48 GiB"), "{first}");
}

#[test]
fn the_keys_in_l3_determine_the_masters_needs() {
    let line = |more: &str| {
        let run = ask(&format!("{more} --available-hugetlb 0"));
        run.stdout.lines().find(|line| line.starts_with("The master is not included")).map(str::to_owned)
    };
    // 460 pages with 8 objects each, at 440 bytes, and the log.
    let found = line(EXAMPLE).expect("the line");
    assert!(found.contains("3.77 MiB of memory") && found.contains("289.54 MiB of disk"), "{found}");
    assert_eq!(line("--tp-size 4 --hicache-size 64 --page-size 64"), None, "without a segment, there are no keys");
}

#[test]
fn a_host_without_enough_memory_gets_comments_only() {
    // This host, a described one, and this host with more memory than it has.
    for more in ["", "--available-hugetlb 1tb", "--available-memory 100000tb"] {
        let line = format!("--tp-size 8 --hicache-size 900000 --model Qwen3-32B --page-size 64 {more}");
        let run = ask(&format!("{line} --json"));
        let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(found["pasteable"], false, "{more}");
        let commands = found["commands"].as_array().unwrap();
        assert!(commands.len() > 3 && commands.iter().all(|line| line.as_str().unwrap().starts_with('#')), "{run:?}");
        assert!(found["host_bytes_min"].as_u64().unwrap() > 14_400_000_000_000_000, "L2 of 8 ranks, twice: {found}");
        let text = ask(&line).stdout;
        let tee = text.lines().filter(|line| line.contains("sudo tee"));
        assert!(tee.clone().count() > 0 && tee.clone().all(|line| line.trim_start().starts_with("# ")), "{text}");
    }
}

const EXAMPLE: &str = "--tp-size 4 --hicache-size 64 --global-segment-size 8gb --model Qwen3-32B --page-size 64";

#[test]
fn upstreams_example_needs_246_gib_and_not_288() {
    let fits = document(&format!("{EXAMPLE} --available-hugetlb 126200x2mb").replace("126200x2mb", "264660582400"), 0);
    assert_eq!(fits["schema"], "mcctl.size-hugepages/1");
    assert_eq!(fits["host_hugepages"], serde_json::json!({"least": 126_200, "most": 126_200}));
    assert_eq!(fits["ranks"][0]["l2_bytes"]["most"], 64_000_884_736u64);
    assert_eq!(fits["upstream"]["baseline_bytes"], 288u64 << 30);
    assert_eq!(fits["verdict"], "fits");
    let short = document(&format!("{EXAMPLE} --available-hugetlb 264660582399"), 1);
    assert_eq!(short["verdict"], "hugepages-short");
    let arena = document(&format!("{EXAMPLE} --arena-pool-size 56gb --available-hugetlb 1tb"), 0);
    assert_eq!(arena["host_hugepages"]["most"], 236_760);
}

#[test]
fn sglangs_guard_may_fail_although_huge_pages_suffice() {
    let line = format!("{EXAMPLE} --available-hugetlb 512gb --available-memory 200gb");
    assert_eq!(document(&line, 1)["verdict"], "memory-short");
    let text = ask(&line);
    assert!(text.stdout.contains("SGLang rejects an L2 larger than"), "{text:?}");
    let enough = format!("{EXAMPLE} --available-hugetlb 512gb --available-memory 249gb");
    assert_eq!(document(&enough, 0)["guard"]["ranks"], 4);
}

#[test]
fn without_a_model_the_result_is_a_range() {
    let bounds = document("--tp-size 4 --hicache-size 64 --available-hugetlb 512gb", 0);
    assert!(bounds["host_hugepages"]["least"].as_u64() < bounds["host_hugepages"]["most"].as_u64());
    assert_eq!(bounds["tiers"].as_array().unwrap().len(), 0);
    let between = bounds["host_hugepages"]["least"].as_u64().unwrap() << 21;
    let line = format!("--tp-size 4 --hicache-size 64 --available-hugetlb {between}");
    assert_eq!(document(&line, 1)["verdict"], "not-certain");
}

#[test]
fn the_details_contain_units_and_both_estimates() {
    let text = ask("--hicache-size 30 --model Qwen/Qwen3-32B --available-hugetlb 64gb");
    let text = text.succeeds();
    for part in [
        "the huge pages are sufficient",
        "27.94 GiB per rank (--hicache-size 30)",
        "114441",
        "Upstream's script reports 34 GiB",
        "KEP-74 reports 26.96 GiB for 219474 keys",
        "26.79 GiB. The cause of the remaining",
        "export MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn reported_bytes_are_compared_with_computed_bytes() {
    // KEP-74's own figures.
    let line = "--model Qwen3-32B --observed-keys 219474 --observed-bytes 26.96gb";
    let run = ask(line);
    let text = run.succeeds();
    for part in [
        "109737 tokens (2 keys per page)",
        "reported    26.96 GiB",
        "calculated  26.79 GiB",
        "unexplained +0.17 GiB (+0.63 %)",
        "reports more than the computed size",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let found = document(line, 0);
    assert_eq!((&found["schema"], &found["tokens"]), (&"mcctl.observed/1".into(), &109_737.into()));
    assert_eq!(found["calculated_bytes"], 28_766_896_128u64);
    let exact = "--model DeepSeek-V3 --tp-size 8 --page-size 64 --observed-keys 10 --observed-bytes 44974080";
    assert!(ask(exact).succeeds().contains("The two values are identical."));
    for (line, part) in [
        ("--observed-keys 1 --model Qwen3-8B", "--observed-bytes"),
        ("--observed-keys 1 --observed-bytes 1", "--model"),
        ("--observed-bytes 1 --model Qwen3-8B", "--observed-keys"),
        ("--observed-keys -1 --observed-bytes 1 --model Qwen3-8B", "unexpected argument"),
        ("--observed-keys x --observed-bytes 1 --model Qwen3-8B", "invalid value"),
        ("--observed-keys 1 --observed-bytes -1 --model Qwen3-8B", "invalid size"),
        ("--observed-keys 1 --observed-bytes 99999999999tb --model Qwen3-8B", "out of range"),
        ("--observed-keys 99999999999999999 --observed-bytes 1 --model Qwen3-8B --page-size 4096", "out of range"),
        ("--observed-keys 1 --observed-bytes 1 --model gpt-oss-120b", "sliding layers"),
        ("--observed-keys 1 --observed-bytes 1 --model Qwen3-8B --apply", "cannot be used with"),
    ] {
        let run = ask(line);
        let message = run.fails(2);
        assert!(message.contains(part) && !message.contains('\n'), "{line}: {message}");
    }
}

#[test]
fn a_config_json_is_read_from_a_file_or_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let config = r#"{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 64, "num_key_value_heads": 8,
                     "head_dim": 128, "rope_scaling": Infinity}"#;
    std::fs::write(&file, config).unwrap();
    for path in [folder.path(), &file] {
        let line = format!("--hicache-size 30 --page-size 64 --available-hugetlb 64gb --model {}", path.display());
        assert_eq!(document(&line, 0)["ranks"][0]["l2_bytes"]["most"], 30_014_439_424u64);
    }
    // A quantized checkpoint may select an fp8 cache.
    let quantization = folder.path().join("hf_quant_config.json");
    std::fs::write(&quantization, r#"{"quantization": {"kv_cache_quant_algo": "FP8"}}"#).unwrap();
    let line = format!("--hicache-size 30 --page-size 64 --available-hugetlb 64gb --model {}", file.display());
    assert_eq!(document(&line, 0)["ranks"][0]["token_bytes"], 131_072);
    std::fs::remove_file(quantization).unwrap();
    for (config, part) in [
        (r#"{"num_hidden_layers": 64}"#, "field architectures"),
        (
            r#"{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 64, "head_dim": 128}"#,
            "field num_key_value_heads",
        ),
        (r#"{"architectures": ["JambaForCausalLM"]}"#, "mcctl does not support its pools"),
        (r#"{"architectures": ["MiniCPMSALAForCausalLM"]}"#, "rejects HiCache"),
        (r#"{"architectures": ["LlamaForCausalLM"], "mamba_d_state": 128}"#, "field mamba_d_state"),
        (
            r#"{"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 2, "num_key_value_heads": 8,
             "layer_types": ["full_attention", "new_attention"]}"#,
            "field layer_types",
        ),
    ] {
        std::fs::write(&file, config).unwrap();
        let run = ask(&format!("--hicache-size 30 --model {}", file.display()));
        assert!(run.fails(2).contains(part), "{config}: {run:?}");
    }
}

#[test]
fn packed_drafts_add_layers_and_raw_rows_have_no_scales() {
    let line = |more: &str| document(&format!("--hicache-size 30 --page-size 64 --available-hugetlb 512gb {more}"), 0);
    let draft = line("--model DeepSeek-V3 --packed-draft-layers 1");
    assert_eq!(draft["ranks"][0]["token_bytes"], 70_272 + 1_152);
    let sparse = "--model DeepSeek-V3.2 --kv-cache-dtype fp8_e4m3";
    assert_eq!(line(sparse)["ranks"][0]["token_bytes"], 40_016);
    let raw = line(&format!("{sparse} --dsa-fp8-layout raw"));
    assert_eq!(
        (&raw["ranks"][0]["token_bytes"], &raw["ranks"][0]["index_token_bytes"]),
        (&35_136.into(), &8_052.into())
    );
}

#[test]
fn ranks_that_share_rows_hold_more_tokens() {
    let base = "--hicache-size 30 --page-size 64 --tp-size 8 --model DeepSeek-V3 --available-hugetlb 1tb";
    let one = document(base, 0);
    let four = document(&format!("{base} --dcp-size 4"), 0);
    assert_eq!(one["ranks"][0]["l2_bytes"], four["ranks"][0]["l2_bytes"]);
    let l2 = |found: &serde_json::Value| found["tiers"][0]["tokens"].as_u64().unwrap();
    assert_eq!(l2(&four), 4 * l2(&one));
    let l3 = |found: &serde_json::Value| found["tiers"][1]["keys"].as_u64().unwrap();
    // The same number of keys of equal size, except for the last page, which no longer fits.
    assert!(l3(&one) - l3(&four) < 4 && l3(&four) % 4 == 0, "{} {}", l3(&one), l3(&four));
}

#[test]
fn regions_are_split_at_the_maximum_size() {
    let regions = |more: &str| {
        let found = document(&format!("{EXAMPLE} --available-hugetlb 512gb {more}"), 0);
        found["ranks"][0]["memory_regions_per_nic"].as_u64().unwrap()
    };
    assert_eq!((regions(""), regions("--max-mr-size 1gb")), (3, 63));
}

#[test]
fn invalid_arguments_are_one_line_and_exit_with_2() {
    for (line, part) in [
        ("--hicache-size 64Gi", "or a number with a kb, mb"),
        ("--hicache-size 512mb", "less than 1 GB"),
        ("--hicache-size -1", "a whole number of decimal GB"),
        ("--hicache-size 1.5", "a whole number of decimal GB"),
        ("--hicache-size 99999999999999999999999", "out of range"),
        ("--hicache-size 0", "--hicache-ratio applies"),
        ("", "no L2 size specified"),
        ("--hicache-size 1 --global-segment-size 16Gi", "or a number with a kb, mb"),
        ("--hicache-size 1 --global-segment-size -1gb", "invalid size"),
        ("--hicache-size 1 --global-segment-size 99999999999gb", "out of range"),
        ("--hicache-size 1 --arena-pool-size 8Gi", "'8Gi' for --arena-pool-size"),
        ("--hicache-size 1 --hugepage-size 4mb", "2 MiB and 1 GiB huge pages"),
        ("--hicache-size 1 --available-hugetlb lots", "'lots' for --available-hugetlb"),
        ("--hicache-size 1 --tp-size 0", "tp must be at least 1"),
        ("--hicache-size 1 --tp-size 4 --nnodes 3", "divisible by nnodes (3)"),
        ("--hicache-size 1 --tp-size 4 --dp-size 3 --enable-dp-attention", "divisible by dp (3)"),
        ("--hicache-size 1 --tp-size 4 --dp-size 2 --nnodes 2", "requires DP attention"),
        ("--hicache-size 1 --model Qwen4-32B", "did you mean Qwen3-32B"),
        ("--hicache-size 1 --model phi-4 --tp-size 8", "the number of KV heads (10)"),
        ("--hicache-size 1 --model ai21labs/Jamba-v0.1", "next: use the path of the model's config.json"),
        ("--hicache-size 1 --model ./nothing.json", "cannot read a file of the model"),
        ("--hicache-size 1 --model Qwen3-8B --pp-size 64", "exceed the model's 36 layers"),
        ("--hicache-size 1 --kv-cache-dtype fp4_mx_block16", "rejects FP4 caches"),
        ("--hicache-size 1 --kv-cache-dtype nvfp4", "rejects FP4 caches"),
        ("--hicache-size 1 --kv-cache-dtype mxfp8 --model DeepSeek-V3", "no mxfp8 rows"),
        ("--hicache-size 1 --kv-cache-dtype fp8_e5m2 --model DeepSeek-V3.2", "only fp8_e4m3"),
        ("--hicache-size 1 --kv-cache-dtype int3", "is unknown for this type"),
        ("--hicache-size 1 --model DeepSeek-V4-Pro", "rejects --hicache-size for DeepSeek-V4"),
        ("--hicache-size 1 --model nvidia/DeepSeek-R1-0528-NVFP4", "may select an fp8 cache"),
        ("--hicache-ratio 2 --device-pool-tokens 5 --model Qwen3.5-27B", "--device-mamba-slots"),
        ("--hicache-ratio 2 --device-pool-tokens 5 --model DeepSeek-V4-Pro", "--page-size 256"),
        ("--hicache-size 1 --model Qwen3.5-27B --hicache-mem-layout page_head", "no such layout"),
        ("--hicache-size 1 --model MiMo-V2-Flash --hicache-mem-layout page_head", "no such layout"),
        ("--hicache-size 1 --model DeepSeek-V3 --hicache-mem-layout page_head", "no such layout"),
        ("--hicache-size 1 --model Qwen3-8B --live-prefixes 5", "require a model with states"),
        ("--hicache-size 1 --model Qwen3-8B --mamba-ssm-dtype bfloat16", "requires a model with a temporal state"),
        ("--hicache-size 1 --model gpt-oss-120b --packed-draft-layers 1", "what they keep is unknown"),
        ("--hicache-size 1 --model MiniMax-M2.5 --pp-size 2", "does not split this model"),
        ("--device-pool-tokens 5 --model Qwen3-8B --hicache-host-memory-fraction 1.5", "not above 0 and up to 1"),
        ("--hicache-size 1 --model DeepSeek-V3 --dcp-size 0", "dcp must be at least 1"),
        ("--hicache-size 1 --model DeepSeek-V3 --tp-size 8 --dcp-size 3", "divisible by dcp (3)"),
        ("--hicache-size 1 --model Qwen3-8B --tp-size 8 --dcp-size 2", "requires an MLA model"),
        ("--hicache-size 1 --tp-size 8 --dcp-size 2", "require --model"),
        ("--hicache-size 1 --model DeepSeek-V3.2 --tp-size 8 --dcp-size 2", "not supported with sparse"),
        ("--hicache-size 1 --packed-draft-layers 1", "require --model"),
        ("--hicache-size 1 --model Qwen3-8B --pp-size 2 --packed-draft-layers 1", "not supported with pipeline"),
        ("--hicache-size 1 --model Qwen3-8B --packed-draft-layers 18446744073709551615", "out of range"),
        ("--hicache-size 1 --model DeepSeek-V3.2 --dsa-fp8-layout raw", "an fp8 cache"),
        ("--hicache-size 1 --model Qwen3-8B --kv-cache-dtype fp8_e5m2 --dsa-fp8-layout raw", "sparse attention"),
        ("--hicache-size 1 --max-mr-size 1mb", "at least 16 MiB"),
        ("--hicache-size 1 --max-mr-size lots", "'lots' for --max-mr-size"),
        ("--hicache-size 1 --nic-numa-nodes 0,1", "requires --protocol rdma"),
        ("--hicache-ratio 2", "--device-pool-tokens"),
        ("--hicache-ratio 2 --device-pool-tokens 5", "requires --model"),
        ("--hicache-ratio -2 --device-pool-tokens 5 --model Qwen3-8B", "positive number"),
        ("--hicache-size 1 --hicache-ratio 2 --device-pool-tokens 5", "cannot be used with"),
        ("--hicache-size 1 --page-size 0", "must be at least 1"),
    ] {
        let run = ask(line);
        let message = run.fails(2);
        assert!(message.contains(part) && !message.contains('\n'), "{line}: {message}");
    }
}
