//! Names of models as people write them: with an owner, a release date, and the format of weights.

/// Endings that do not affect the cache.
const TAILS: &[&str] = &[
    "-instruct",
    "-chat",
    "-base",
    "-thinking",
    "-reasoning",
    "-it",
    "-pt",
    "-hf",
    "-exp",
    "-speciale",
    "-terminus",
    "-preview",
    "-bf16",
    "-fp16",
    "-fp8",
    "-fp4",
    "-nvfp4",
    "-mxfp4",
    "-mxfp8",
    "-int4",
    "-int8",
    "-4bit",
    "-8bit",
    "-w4a16",
    "-w8a8",
    "-w4afp8",
    "-awq",
    "-gptq",
    "-autoround",
    "-channel",
    "-block",
    "-dynamic",
    "-static",
    "-pertensor",
    "-kv",
    "-gguf",
    "-mlx",
    "-bnb",
    "-unsloth",
];

/// Parts of the names of checkpoints that may select an fp8 cache, and those of some owners.
const QUANTIZED: &[&str] = &["-nvfp4", "-fp4", "-kv"];
const QUANTIZED_BY_OWNER: &[(&str, &str)] = &[("nvidia/", "-fp8")];

/// `name` without what does not affect the cache, in lower case.
pub(super) fn plain(name: &str) -> String {
    let last = name.trim().trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    let mut text = last.to_ascii_lowercase().replace(['_', ' '], "-");
    // Copies on other hubs repeat the owner: `unsloth--Qwen3-8B`.
    if let Some((_, rest)) = text.rsplit_once("--") {
        text = rest.to_owned();
    }
    for owner in ["meta-", "nvidia-"] {
        text = text.strip_prefix(owner).map_or(text.clone(), str::to_owned);
    }
    while let Some(rest) = TAILS.iter().find_map(|tail| text.strip_suffix(tail)).or_else(|| without_date(&text)) {
        text = rest.to_owned();
    }
    text
}

/// Whether the checkpoint `name` may select an fp8 cache with `--kv-cache-dtype auto`.
pub(super) fn may_have_fp8_cache(name: &str) -> bool {
    let text = name.to_ascii_lowercase().replace('_', "-").replace("--", "/");
    let text = text.strip_prefix("models/").unwrap_or(&text);
    let has_owner = text.contains('/');
    let is_theirs = |name: &str| !has_owner && text.starts_with(name) && text.contains("-fp8");
    // Without an owner, the name of a checkpoint of NVIDIA.
    ["nvidia-", "nemotron-", "llama-"].iter().any(|name| is_theirs(name))
        || QUANTIZED.iter().any(|tail| text.contains(tail))
        || QUANTIZED_BY_OWNER.iter().any(|(owner, tail)| text.starts_with(owner) && text.contains(tail))
}

/// `text` without the date of a release at its end: four to eight digits, such as `-2507`.
fn without_date(text: &str) -> Option<&str> {
    let (rest, date) = text.rsplit_once('-')?;
    let is_date = [4, 6, 8].contains(&date.len()) && date.bytes().all(|byte| byte.is_ascii_digit());
    is_date.then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_dates_and_formats_are_ignored() {
        for (name, known) in [
            ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
            ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
            ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b"),
            ("deepseek_r1", "deepseek-r1"),
            ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
            ("Qwen/Qwen3-32B-GPTQ-Int4", "qwen3-32b"),
            ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
            ("models--Qwen--Qwen3-8B", "qwen3-8b"),
            ("./models/Qwen3-8B/", "qwen3-8b"),
            // A size or version is not a date.
            ("Mistral-7B-v0.3", "mistral-7b-v0.3"),
        ] {
            assert_eq!(plain(name), known, "{name}");
        }
    }

    #[test]
    fn some_checkpoints_may_select_an_fp8_cache() {
        for name in ["nvidia/DeepSeek-R1-0528-NVFP4", "nvidia/Llama-3.1-70B-Instruct-FP8", "amd/Llama-3.1-8B-FP8-KV"] {
            assert!(may_have_fp8_cache(name), "{name}");
        }
        assert!(may_have_fp8_cache("NVIDIA-Nemotron-3-Nano-30B-A3B-FP8"));
        assert!(may_have_fp8_cache("models--nvidia--Llama-3.1-70B-Instruct-FP8"));
        assert!(!may_have_fp8_cache("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8"));
    }
}
