//! Models known by name, which do not require a config.json. Each row cites the source of its
//! values.

use crate::plan::SizingError;
use crate::plan::error::{COMPRESSED, LINEAR};
use crate::plan::geometry::{Attention, Geometry, Indexer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// The model's names. All are accepted; the first one is displayed.
    pub names: &'static [&'static str],
    pub geometry: Geometry,
    /// The source of the values.
    pub source: &'static str,
}

const CONFIGS: &str = "config.json files quoted in citsjtu2020/LLM-Prof, sglang/Model_Config.md";
const CALCULATOR: &str = "model list of a public KV cache calculator";
const EXPECTED: &str = "expected values in a public KV cache calculator's tests";
const ASSUMED: &str = "assumed to match GLM-4.5";
const MEMORY: &str = "unverified: no source found";
const TRANSFORMERS: &str = "defaults in transformers 5.19, GptOssConfig";

const fn heads(
    names: &'static [&'static str],
    layers: u64,
    kv_heads: u64,
    dim: u64,
    source: &'static str,
) -> KnownModel {
    let attention = Attention::Heads { kv_heads, head_dim: dim, v_head_dim: dim };
    KnownModel { names, geometry: Geometry { layers, window_layers: 0, attention }, source }
}

const fn latent(names: &'static [&'static str], layers: u64, index: Option<u64>, source: &'static str) -> KnownModel {
    let indexer = match index {
        Some(head_dim) => Some(Indexer { head_dim }),
        None => None,
    };
    let attention = Attention::Latent { lora: 512, rope: 64, indexer };
    KnownModel { names, geometry: Geometry { layers, window_layers: 0, attention }, source }
}

pub const MODELS: &[KnownModel] = &[
    heads(&["Qwen3-8B"], 36, 8, 128, CONFIGS),
    heads(&["Qwen3-32B"], 64, 8, 128, CONFIGS),
    heads(&["Qwen3-235B-A22B", "Qwen3-235B"], 94, 4, 128, CALCULATOR),
    heads(&["Qwen3-Coder-480B-A35B", "Qwen3-Coder-480B"], 62, 8, 128, CALCULATOR),
    heads(&["Llama-3.1-8B"], 32, 8, 128, CONFIGS),
    heads(&["Llama-3.1-70B", "Llama-3.3-70B"], 80, 8, 128, EXPECTED),
    heads(&["Llama-3.1-405B"], 126, 8, 128, CALCULATOR),
    heads(&["GLM-4.5", "GLM-4.7"], 92, 8, 128, CALCULATOR),
    heads(&["GLM-4.6"], 92, 8, 128, ASSUMED),
    heads(&["GLM-4.5-Air"], 46, 8, 128, CALCULATOR),
    heads(&["Mistral-Large-2", "Mistral-Large-2407"], 88, 8, 128, MEMORY),
    KnownModel {
        names: &["gpt-oss-120b"],
        geometry: Geometry {
            layers: 18,
            window_layers: 18,
            attention: Attention::Heads { kv_heads: 8, head_dim: 64, v_head_dim: 64 },
        },
        source: TRANSFORMERS,
    },
    latent(&["DeepSeek-V3", "DeepSeek-R1", "DeepSeek-V3.1"], 61, None, CALCULATOR),
    latent(&["Kimi-K2", "Kimi-K2.5"], 61, None, CALCULATOR),
    latent(&["DeepSeek-V3.2"], 61, Some(128), CALCULATOR),
    latent(&["GLM-5", "GLM-5.1"], 78, Some(128), CALCULATOR),
    latent(&["GLM-4.7-Flash"], 47, None, CALCULATOR),
];

/// Name prefixes of models whose cache is not supported, with the reasons.
const NOT_SIZED: &[(&str, &str)] = &[("qwen3-next", LINEAR), ("kimi-linear", LINEAR), ("deepseek-v4", COMPRESSED)];

/// Number of suggestions in an error message.
const NEAREST: usize = 3;

/// Finds a model by name. Ignores case, an owner such as `Qwen/`, and suffixes such as `-Instruct`.
/// `_` is equivalent to `-`.
///
/// # Errors
/// The name is unknown (the error contains the most similar names), or the model's cache is not
/// supported.
pub fn by_name(name: &str) -> Result<&'static KnownModel, SizingError> {
    let wanted = plain(name);
    if let Some((_, what)) = NOT_SIZED.iter().find(|(family, _)| wanted.starts_with(family)) {
        return Err(SizingError::Unsupported { what });
    }
    let found = MODELS.iter().find(|model| model.names.iter().any(|known| plain(known) == wanted));
    found.ok_or_else(|| {
        let mut names: Vec<&'static str> = MODELS.iter().flat_map(|model| model.names).copied().collect();
        // The sort is stable, so ties keep the table's order.
        names.sort_by_key(|known| strsim::levenshtein(&plain(known), &wanted));
        names.truncate(NEAREST);
        SizingError::UnknownModel { name: name.to_owned(), nearest: names }
    })
}

/// Name suffixes that do not affect the cache.
const TAILS: &[&str] =
    &["-instruct", "-chat", "-base", "-fp8", "-thinking", "-bf16", "-awq", "-gptq-int4", "-gptq-int8"];

/// `text` without the date of a release at its end: four digits, such as `-2507` or `-0528`.
fn without_date(text: &str) -> Option<&str> {
    let (rest, date) = text.rsplit_once('-')?;
    (date.len() == 4 && date.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
}

fn plain(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    let mut text = last.to_ascii_lowercase().replace('_', "-");
    if let Some(rest) = text.strip_prefix("meta-") {
        text = rest.to_owned();
    }
    while let Some(rest) = TAILS.iter().find_map(|tail| text.strip_suffix(tail)).or_else(|| without_date(&text)) {
        text = rest.to_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::geometry::CacheType;

    /// Bytes per token and rank in bf16 at tp 1, 2, 4 and 8.
    fn row(name: &str) -> [u64; 4] {
        let model = by_name(name).unwrap().geometry;
        [1, 2, 4, 8].map(|tp| model.token_bytes(model.layers, tp, CacheType::Half).unwrap())
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
            ("Mistral-Large-2", [360_448, 180_224, 90_112, 45_056]),
            ("gpt-oss-120b", [36_864, 18_432, 9_216, 4_608]),
            ("DeepSeek-V3", [70_272; 4]),
            ("Kimi-K2", [70_272; 4]),
            ("GLM-5", [89_856; 4]),
            ("GLM-4.7-Flash", [54_144; 4]),
        ] {
            assert_eq!(row(name), bytes, "{name}");
        }
    }

    #[test]
    fn hub_names_are_found_and_unknown_names_get_suggestions() {
        assert_eq!(by_name("Qwen/Qwen3-32B-FP8").unwrap().names[0], "Qwen3-32B");
        assert_eq!(by_name("meta-llama/Meta-Llama-3.1-70B-Instruct").unwrap().names[0], "Llama-3.1-70B");
        assert_eq!(by_name("deepseek_r1").unwrap().names[0], "DeepSeek-V3");
        let Err(SizingError::UnknownModel { nearest, .. }) = by_name("Qwen3-32") else { panic!("not known") };
        assert_eq!(nearest[0], "Qwen3-32B");
        assert_eq!(by_name("Qwen/Qwen3-Next-80B-A3B-Instruct"), Err(SizingError::Unsupported { what: LINEAR }));
    }

    #[test]
    fn model_names_are_unique() {
        let mut names: Vec<String> = MODELS.iter().flat_map(|m| m.names).map(|n| plain(n)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn dates_and_quantizations_of_weights_are_not_part_of_the_name() {
        for name in ["Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen3-235B-A22B-Thinking-2507", "Qwen3-235B-A22B-AWQ"] {
            assert_eq!(by_name(name).unwrap().names[0], "Qwen3-235B-A22B", "{name}");
        }
        assert_eq!(by_name("deepseek-ai/DeepSeek-R1-0528").unwrap().geometry.layers, 61);
        assert!(by_name("Mistral-Large-Instruct-2407").is_ok() && by_name("Mistral-Large-3-675B").is_err());
    }
}
