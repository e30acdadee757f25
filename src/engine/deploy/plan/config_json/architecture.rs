//! What SGLang decides by the name of a model's architecture.
//!
//! Source: `sglang/srt/configs/model_config.py` and `hybrid_arch.py`. SGLang reads the name and
//! the config class, not which fields are present.

use crate::plan::config_json::plain_architectures::PLAIN;

/// How a model's config is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Keys and values per head in all layers.
    Heads,
    /// Like `Heads`. This field defines how many times all layers run.
    Looped(&'static str),
    /// Latent rows in all layers (MLA).
    Latent,
    /// Latent rows, unless the config has `use_mla: false`.
    LatentUnlessOff,
    /// Latent rows, and an index if the config has `index_topk`.
    SparseLatent { passes: u64 },
    /// `SparseLatent` if the config has `kv_lora_rank`, otherwise `Heads`.
    HeadsOrSparseLatent,
    /// Keys and values per head, some layers with a window.
    Windows { rule: WindowRule, row: WindowRow },
    /// Layers with a state per slot.
    States(StateRule),
    /// Latent rows with an index, and layers with a state.
    SparseStates,
    /// Keys and values per head, and an index of keys (MiniMax-M3).
    KeyIndex,
    /// Compressed layers (DeepSeek-V4).
    Compressed,
}

/// Which layers have a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowRule {
    /// All but every fourth.
    EveryFourth,
    /// `layer_types`.
    LayerTypes,
    /// `hybrid_layer_pattern`.
    Pattern,
    /// `local_layer_ids`.
    LocalLayers,
}

/// The rows of window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowRow {
    /// As in the other layers.
    Same,
    /// Described by `swa_` fields.
    Own,
    /// The base fields describe window layers, and `global_` fields the others (Gemma 4).
    Base,
    /// Like `Own`, and each layer keeps the inputs of its convolutions (Inkling).
    OwnWithState,
}

/// How layers with a state are described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateRule {
    GatedDelta,
    GigaChat,
    NemotronH,
    GraniteHybrid,
    FalconH1,
    ShortConv,
    JetNemotron,
    Zaya,
    Kda,
    Bailing,
}

/// Why an architecture of SGLang cannot be sized.
pub(super) type Refusal = &'static str;

const DRAFT: Refusal = "it is a draft model; set the main model";
const NO_HICACHE: Refusal = "SGLang 0.5.23 rejects HiCache for it";
const NO_ATTENTION: Refusal = "it has no layers with attention, so HiCache has no tokens to keep";
const WINDOWS_ONLY: Refusal = "all its layers have windows, and SGLang 0.5.23 has no HiCache for such models";
const NO_GENERATION: Refusal = "it does not generate text";
const NOT_COVERED: Refusal = "mcctl does not support its pools";

/// The architectures that are neither plain nor refused.
const FAMILIES: &[(&[&str], Family)] = &[
    (&["NanbeigeForCausalLM"], Family::Looped("num_loops")),
    (
        &[
            "DeepseekV2ForCausalLM",
            "DotsVLMForCausalLM",
            "Glm4MoeLiteForCausalLM",
            "KimiK25ForConditionalGeneration",
            "KimiVLForConditionalGeneration",
            "MiniCPM3ForCausalLM",
            "SarvamMLAForCausalLM",
        ],
        Family::Latent,
    ),
    (
        &[
            "DeepseekV32ForCausalLM",
            "DeepseekV3ForCausalLM",
            "GlmMoeDsaForCausalLM",
            "HYV4ForCausalLM",
            "MistralLarge3ForCausalLM",
        ],
        Family::SparseLatent { passes: 1 },
    ),
    (&["DeepseekVL2ForCausalLM"], Family::LatentUnlessOff),
    (&["PixtralForConditionalGeneration"], Family::HeadsOrSparseLatent),
    (&["LongcatFlashForCausalLM"], Family::SparseLatent { passes: 2 }),
    (&["Llama4ForConditionalGeneration"], Family::Windows { rule: WindowRule::EveryFourth, row: WindowRow::Same }),
    (
        &[
            "BeamForCausalLM",
            "GptOssForCausalLM",
            "GraniteMoeSWAForCausalLM",
            "GraniteSWAForCausalLM",
            "IQuestQ1ForCausalLM",
            "LagunaForCausalLM",
            "MellumForCausalLM",
            "MuseGlimmerForCausalLM",
            "MuseGlimmerForConditionalGeneration",
        ],
        Family::Windows { rule: WindowRule::LayerTypes, row: WindowRow::Same },
    ),
    (
        &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"],
        Family::Windows { rule: WindowRule::LayerTypes, row: WindowRow::Base },
    ),
    (
        &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        Family::Windows { rule: WindowRule::Pattern, row: WindowRow::Own },
    ),
    (
        &["InklingForConditionalGeneration"],
        Family::Windows { rule: WindowRule::LocalLayers, row: WindowRow::OwnWithState },
    ),
    (
        &[
            "InternS2PreviewForConditionalGeneration",
            "MiniCPMV4_6ForConditionalGeneration",
            "MiniCPMV4_7ForConditionalGeneration",
            "Qwen3NextForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
        ],
        Family::States(StateRule::GatedDelta),
    ),
    (&["GigaChat35ForCausalLM"], Family::States(StateRule::GigaChat)),
    (
        &[
            "NemotronHForCausalLM",
            "NemotronHPuzzleForCausalLM",
            "NemotronH_Nano_Omni_Reasoning_V3",
            "NemotronH_Nano_VL_V2",
            "NemotronH_Omni_Reasoning_V3",
        ],
        Family::States(StateRule::NemotronH),
    ),
    (&["GraniteMoeHybridForCausalLM"], Family::States(StateRule::GraniteHybrid)),
    (&["FalconH1ForCausalLM"], Family::States(StateRule::FalconH1)),
    (
        &["Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"],
        Family::States(StateRule::ShortConv),
    ),
    (&["JetNemotronForCausalLM", "JetVLMForConditionalGeneration"], Family::States(StateRule::JetNemotron)),
    (&["ZayaForCausalLM"], Family::States(StateRule::Zaya)),
    (
        &["KimiK3ForConditionalGeneration", "KimiK3LinearForCausalLM", "KimiLinearForCausalLM"],
        Family::States(StateRule::Kda),
    ),
    (
        &["BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"],
        Family::States(StateRule::Bailing),
    ),
    (&["Glm5NextForConditionalGeneration"], Family::SparseStates),
    (&["MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"], Family::KeyIndex),
    (&["DeepseekV4ForCausalLM"], Family::Compressed),
];

/// Architectures that are refused by name.
const REFUSED: &[(&str, Refusal)] = &[
    ("Dots3NoteForCausalLM", NOT_COVERED),
    ("FalconMambaForCausalLM", NO_ATTENTION),
    ("Mamba2ForCausalLM", NO_ATTENTION),
    ("MambaForCausalLM", NO_ATTENTION),
    ("MiniCPMSALAForCausalLM", NO_HICACHE),
    ("UnlimitedOCRForCausalLM", WINDOWS_ONLY),
];

/// Parts of the names of draft models.
const DRAFT_PARTS: &[&str] = &["NextN", "MTP", "Eagle", "DFlash", "DSpark", "Draft", "Assistant"];
/// Parts of the names of models that do not generate text.
const OTHER_PARTS: &[&str] = &["Classification", "Embedding", "Reward", "Bert", "XLMRoberta", "CLIP", "VisionModel"];

/// The family of the architecture `name`.
///
/// # Errors
/// The cache of the architecture is unknown: the reason.
pub(super) fn family(name: &str) -> Result<Family, Refusal> {
    if let Some((_, family)) = FAMILIES.iter().find(|(names, _)| names.contains(&name)) {
        return Ok(*family);
    }
    if PLAIN.contains(&name) {
        return Ok(Family::Heads);
    }
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(why);
    }
    if DRAFT_PARTS.iter().any(|part| name.contains(part)) {
        return Err(DRAFT);
    }
    Err(if OTHER_PARTS.iter().any(|part| name.contains(part)) { NO_GENERATION } else { NOT_COVERED })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_is_listed_once() {
        let mut names: Vec<&str> = FAMILIES.iter().flat_map(|(names, _)| *names).copied().collect();
        names.extend(PLAIN);
        names.extend(REFUSED.iter().map(|(name, _)| *name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn unlisted_architectures_are_refused_with_a_reason() {
        assert_eq!(family("LlamaForCausalLM"), Ok(Family::Heads));
        assert_eq!(family("DeepseekV3ForCausalLMNextN"), Err(DRAFT));
        assert_eq!(family("Qwen2ForRewardModel"), Err(NO_GENERATION));
        assert_eq!(family("JambaForCausalLM"), Err(NOT_COVERED));
    }
}
