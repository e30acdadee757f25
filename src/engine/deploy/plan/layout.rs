//! A server's ranks: tensor, pipeline and data parallelism across hosts.

use std::ops::Range;

use crate::plan::SizingError;

/// The parallelism of an SGLang server: its ranks, and their distribution over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelLayout {
    tp: u64,
    pp: u64,
    dp: u64,
    dp_attention: bool,
    nnodes: u64,
    dcp: u64,
}

/// Maximum number of ranks.
const RANKS_MAX: u64 = 65_536;

impl ParallelLayout {
    /// Creates a layout that SGLang accepts.
    ///
    /// Source: `sglang/srt/server_args.py` (`tp_size * pp_size` divisible by `nnodes`; data
    /// parallelism across hosts only with DP attention; with DP attention, `tp_size` divisible by
    /// `dp_size`).
    ///
    /// # Errors
    /// SGLang rejects the layout, or a value is out of range.
    pub fn new(tp: u64, pp: u64, dp: u64, dp_attention: bool, nnodes: u64) -> Result<ParallelLayout, SizingError> {
        for (what, value) in [("tp", tp), ("pp", pp), ("dp", dp), ("nnodes", nnodes)] {
            match value {
                0 => return Err(SizingError::Zero { what }),
                n if n > RANKS_MAX => return Err(SizingError::TooLarge { what }),
                _ => {}
            }
        }
        if tp * pp > RANKS_MAX || tp * pp * dp > RANKS_MAX {
            return Err(SizingError::TooLarge { what: "tp x pp x dp" });
        }
        if !(tp * pp).is_multiple_of(nnodes) {
            return Err(SizingError::NotDivisible { what: "tp x pp", value: tp * pp, by: "nnodes", divisor: nnodes });
        }
        if dp_attention && !tp.is_multiple_of(dp) {
            return Err(SizingError::NotDivisible { what: "tp", value: tp, by: "dp", divisor: dp });
        }
        if dp > 1 && !dp_attention && nnodes > 1 {
            return Err(SizingError::DataParallelHosts { dp, nnodes });
        }
        Ok(ParallelLayout { tp, pp, dp, dp_attention, nnodes, dcp: 1 })
    }

    /// Adds decode context parallelism: each of `dcp` ranks stores every `dcp`-th row of a latent
    /// cache, and a page covers `dcp` times the configured number of tokens.
    ///
    /// Source: `sglang/srt/arg_groups/attention_hook.py` (`tp_size` divisible by `dcp_size`),
    /// `mem_cache/pool_host/base.py` (each rank's pool has `page_size // dcp_size` rows per page).
    ///
    /// # Errors
    /// SGLang rejects the layout, or a value is out of range.
    pub fn with_dcp(self, dcp: u64) -> Result<ParallelLayout, SizingError> {
        match dcp {
            0 => Err(SizingError::Zero { what: "dcp" }),
            n if !self.attention_tp().is_multiple_of(n) => {
                Err(SizingError::NotDivisible { what: "tp", value: self.attention_tp(), by: "dcp", divisor: n })
            }
            _ => Ok(ParallelLayout { dcp, ..self }),
        }
    }

    /// Number of ranks across which the rows of a latent cache are split; 1 without decode context
    /// parallelism.
    pub fn dcp(&self) -> u64 {
        self.dcp
    }

    /// Number of ranks across which one copy of the heads is split: tp, or the size of a DP
    /// attention group.
    pub fn attention_tp(&self) -> u64 {
        if self.dp_attention { self.tp / self.dp } else { self.tp }
    }

    /// Number of pipeline stages.
    pub fn pp(&self) -> u64 {
        self.pp
    }

    /// Number of groups with their own store keys: one per data-parallel rank, with or without DP
    /// attention.
    pub fn groups(&self) -> u64 {
        self.dp
    }

    /// The number of hosts.
    pub fn nnodes(&self) -> u64 {
        self.nnodes
    }

    /// Number of independent engines: data-parallel replicas without DP attention.
    pub fn replicas(&self) -> u64 {
        if self.dp_attention { 1 } else { self.dp }
    }

    /// Number of ranks per host as counted by SGLang's memory check: one replica's world size
    /// divided by the number of hosts, at least 1.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/base.py`, `ranks_per_host`.
    pub fn guard_ranks(&self) -> u64 {
        (self.tp * self.pp / self.nnodes).max(1)
    }

    /// The pipeline stage of each process on host `host`, in order, replica by replica.
    pub fn stages_of_host(&self, host: u64) -> Vec<u64> {
        let per_host = self.tp * self.pp / self.nnodes;
        let ranks = (host * per_host..(host + 1) * per_host).map(|rank| rank / self.tp);
        (0..self.replicas()).flat_map(|_| ranks.clone()).collect()
    }

    /// The layers in stage `stage`: an even split in order, with one more layer in each of the last
    /// `layers % pp` stages.
    ///
    /// Source: `sglang/srt/distributed/utils.py`, `get_pp_indices` (without
    /// `SGLANG_PP_LAYER_PARTITION`).
    ///
    /// # Errors
    /// There are more stages than layers.
    pub fn layers_of_stage(&self, layers: usize, stage: u64) -> Result<Range<usize>, SizingError> {
        let too_many = SizingError::TooManyStages { pp: self.pp, layers: layers as u64 };
        let pp = usize::try_from(self.pp).ok().filter(|pp| *pp <= layers).ok_or(too_many)?;
        let longer = pp - layers % pp;
        let start = |stage: usize| layers / pp * stage + stage.saturating_sub(longer);
        let stage = usize::try_from(stage).unwrap_or(pp).min(pp - 1);
        Ok(start(stage)..start(stage + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dp_attention_divides_tp_and_plain_dp_adds_processes() {
        let with = ParallelLayout::new(8, 1, 4, true, 1).unwrap();
        assert_eq!((with.attention_tp(), with.groups(), with.stages_of_host(0).len()), (2, 4, 8));
        let plain = ParallelLayout::new(2, 1, 4, false, 1).unwrap();
        assert_eq!((plain.attention_tp(), plain.groups(), plain.stages_of_host(0).len()), (2, 4, 8));
        assert_eq!(plain.guard_ranks(), 2);
    }

    #[test]
    fn layouts_that_sglang_rejects_are_errors() {
        assert!(matches!(ParallelLayout::new(4, 1, 1, false, 3), Err(SizingError::NotDivisible { .. })));
        assert!(matches!(ParallelLayout::new(4, 1, 3, true, 1), Err(SizingError::NotDivisible { .. })));
        assert!(matches!(ParallelLayout::new(4, 1, 2, false, 2), Err(SizingError::DataParallelHosts { .. })));
        assert_eq!(ParallelLayout::new(0, 1, 1, false, 1), Err(SizingError::Zero { what: "tp" }));
        let eight = ParallelLayout::new(8, 1, 1, false, 1).unwrap();
        assert_eq!((eight.dcp(), eight.with_dcp(4).unwrap().dcp()), (1, 4));
        assert!(matches!(eight.with_dcp(3), Err(SizingError::NotDivisible { .. })));
        assert_eq!(eight.with_dcp(0), Err(SizingError::Zero { what: "dcp" }));
        assert_eq!(ParallelLayout::new(1 << 40, 1, 1, false, 1), Err(SizingError::TooLarge { what: "tp" }));
    }

    #[test]
    fn the_last_stages_get_the_remaining_layers() {
        let layout = ParallelLayout::new(1, 4, 1, false, 2).unwrap();
        let layers: Vec<Range<usize>> = (0..4).map(|stage| layout.layers_of_stage(62, stage).unwrap()).collect();
        assert_eq!(layers, [0..15, 15..30, 30..46, 46..62]);
        assert_eq!((layout.stages_of_host(0), layout.stages_of_host(1)), (vec![0, 1], vec![2, 3]));
        assert!(layout.layers_of_stage(3, 0).is_err());
    }

    proptest! {
        #[test]
        fn stages_contain_all_layers_and_hosts_all_ranks(
            layers in 1usize..200, pp in 1u64..9, tp in 1u64..9, nnodes in 1u64..5
        ) {
            prop_assume!(layers as u64 >= pp && (tp * pp) % nnodes == 0);
            let layout = ParallelLayout::new(tp, pp, 1, false, nnodes).unwrap();
            let mut next = 0;
            for stage in 0..pp {
                let range = layout.layers_of_stage(layers, stage).unwrap();
                prop_assert_eq!(range.start, next);
                next = range.end;
            }
            prop_assert_eq!(next, layers);
            let ranks: usize = (0..nnodes).map(|host| layout.stages_of_host(host).len()).sum();
            prop_assert_eq!(ranks as u64, tp * pp);
        }
    }
}
