//! The state of linear attention, Mamba and short convolution layers: a fixed size per slot,
//! independent of the number of tokens.

use crate::plan::SizingError;
use crate::plan::error::narrow;

/// The number of channels of a convolution, and their distribution over TP ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Split evenly.
    Split(u64),
    /// The same on every rank.
    Whole(u64),
    /// Heads of `dim` channels, split like the heads of attention: at least one per rank.
    Heads { heads: u64, dim: u64 },
    /// Mamba-2: `inner` channels, and for each group 2 x `state` channels. If the ranks do not
    /// divide the groups, there is one group per rank.
    Grouped { inner: u64, groups: u64, state: u64 },
}

/// One convolution: the last `window` inputs of each channel, in 2-byte elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvPart {
    pub channels: Channels,
    pub window: u64,
}

/// The recurrent state: `heads` matrices of `rows` x `columns`, split by heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Temporal {
    pub heads: u64,
    pub rows: u64,
    pub columns: u64,
    /// Size of an element in bytes.
    pub element: u64,
}

/// The state of one layer in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateShape {
    pub conv: Vec<ConvPart>,
    pub temporal: Option<Temporal>,
}

/// Size of an element of a convolution state, in bytes (`SGLANG_MAMBA_CONV_DTYPE`, bf16 by
/// default).
const CONV_BYTES: u64 = 2;

impl StateShape {
    /// Bytes per layer, slot and rank: the temporal state (0 without one), then each convolution.
    /// SGLang allocates each in a buffer of its own.
    ///
    /// Source: `sglang/srt/configs/mamba_utils.py`, `Mamba2StateShape.create` and
    /// `KimiLinearStateShape.create`; `mem_cache/pool_host/mamba.py`, `init_kv_buffer`.
    ///
    /// # Errors SGLang requires the heads or channels to be divisible by the TP size, or a product
    /// overflows.
    pub fn buffers(&self, tp: u64) -> Result<Vec<u64>, SizingError> {
        let mut buffers = vec![match self.temporal {
            Some(Temporal { heads, rows, columns, element }) => {
                let own = divided("the heads of the linear attention state", heads, tp)?;
                let elements = u128::from(own) * u128::from(rows) * u128::from(columns);
                narrow(elements * u128::from(element), "the state size")?
            }
            None => 0,
        }];
        for part in &self.conv {
            let elements = u128::from(part.channels.of_rank(tp)?) * u128::from(part.window);
            buffers.push(narrow(elements * u128::from(CONV_BYTES), "the state size")?);
        }
        Ok(buffers)
    }
}

impl Channels {
    fn of_rank(self, tp: u64) -> Result<u64, SizingError> {
        match self {
            Channels::Split(all) => divided("the channels of the convolution", all, tp),
            Channels::Whole(all) => Ok(all),
            Channels::Heads { heads, dim } => Ok((heads / tp.max(1)).max(1).saturating_mul(dim)),
            Channels::Grouped { inner, groups, state } => {
                let groups = if groups.is_multiple_of(tp.max(1)) { groups } else { tp };
                let all = u128::from(inner) + 2 * u128::from(groups) * u128::from(state);
                divided("the channels of the convolution", narrow(all, "the state size")?, tp)
            }
        }
    }
}

fn divided(what: &'static str, value: u64, tp: u64) -> Result<u64, SizingError> {
    if value.is_multiple_of(tp.max(1)) {
        Ok(value / tp.max(1))
    } else {
        Err(SizingError::NotDivisible { what, value, by: "the attention TP size", divisor: tp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gated_delta_net_states_match_sglang() {
        // Qwen3-Next-80B-A3B: 16 key heads and 32 value heads of 128.
        let shape = StateShape {
            conv: vec![ConvPart { channels: Channels::Grouped { inner: 4096, groups: 16, state: 128 }, window: 3 }],
            temporal: Some(Temporal { heads: 32, rows: 128, columns: 128, element: 4 }),
        };
        assert_eq!(shape.buffers(1), Ok(vec![2_097_152, 49_152]));
        assert_eq!(shape.buffers(8), Ok(vec![262_144, 6_144]));
        // 32 ranks are more than the key heads, so each rank has a group.
        assert_eq!(shape.buffers(32), Ok(vec![65_536, (4096 + 2 * 32 * 128) / 32 * 3 * 2]));
        assert!(matches!(shape.buffers(3), Err(SizingError::NotDivisible { value: 32, .. })));
    }

    #[test]
    fn short_convolutions_have_no_temporal_state() {
        // LFM2-2.6B.
        let shape = StateShape { conv: vec![ConvPart { channels: Channels::Split(2048), window: 2 }], temporal: None };
        assert_eq!(shape.buffers(1), Ok(vec![0, 8_192]));
    }

    #[test]
    fn channels_are_split_as_their_kind_requires() {
        assert_eq!(Channels::Whole(100).of_rank(8), Ok(100));
        assert_eq!(Channels::Heads { heads: 4, dim: 128 }.of_rank(8), Ok(128));
        assert!(Channels::Split(10).of_rank(4).is_err());
    }
}
