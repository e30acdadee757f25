//! Which processes there are: tensor, pipeline and data parallelism over hosts.

use crate::engine::plan::PlanError;

/// How a server is cut into ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    tp: u64,
    pp: u64,
    dp: u64,
    dp_attention: bool,
    nnodes: u64,
    dcp: u64,
}

/// No deployment has more ranks.
const RANKS_MAX: u64 = 65_536;

impl Layout {
    /// A layout that SGLang accepts.
    ///
    /// Source: `sglang/srt/server_args.py` (`tp_size * pp_size` divisible by `nnodes`; data parallelism over hosts only with DP
    /// attention; `tp_size` divisible by `dp_size` with it).
    ///
    /// # Errors
    /// SGLang refuses it, or it is absurd.
    pub fn new(tp: u64, pp: u64, dp: u64, dp_attention: bool, nnodes: u64) -> Result<Layout, PlanError> {
        for (what, value) in [("tp", tp), ("pp", pp), ("dp", dp), ("nnodes", nnodes)] {
            match value {
                0 => return Err(PlanError::Zero { what }),
                n if n > RANKS_MAX => return Err(PlanError::TooLarge { what }),
                _ => {}
            }
        }
        if tp * pp > RANKS_MAX || tp * pp * dp > RANKS_MAX {
            return Err(PlanError::TooLarge { what: "tp x pp x dp" });
        }
        if !(tp * pp).is_multiple_of(nnodes) {
            return Err(PlanError::NotDivisible { what: "tp x pp", value: tp * pp, by: "nnodes", divisor: nnodes });
        }
        if dp_attention && !tp.is_multiple_of(dp) {
            return Err(PlanError::NotDivisible { what: "tp", value: tp, by: "dp", divisor: dp });
        }
        if dp > 1 && !dp_attention && nnodes > 1 {
            return Err(PlanError::DataParallelHosts { dp, nnodes });
        }
        Ok(Layout { tp, pp, dp, dp_attention, nnodes, dcp: 1 })
    }

    /// The same with decode context parallelism: each of `dcp` ranks keeps every `dcp`-th row of a latent cache, and a page is as
    /// many times wider.
    ///
    /// Source: `sglang/srt/arg_groups/attention_hook.py` (`tp_size` divisible by `dcp_size`), `mem_cache/pool_host/base.py`
    /// (`page_size // dcp_size` rows of a page in each rank's pool).
    ///
    /// # Errors
    /// SGLang refuses it, or it is absurd.
    pub fn with_dcp(self, dcp: u64) -> Result<Layout, PlanError> {
        match dcp {
            0 => Err(PlanError::Zero { what: "dcp" }),
            n if !self.attention_tp().is_multiple_of(n) => {
                Err(PlanError::NotDivisible { what: "tp", value: self.attention_tp(), by: "dcp", divisor: n })
            }
            _ => Ok(Layout { dcp, ..self }),
        }
    }

    /// Ranks that share the rows of a latent cache: 1 without decode context parallelism.
    pub fn dcp(&self) -> u64 {
        self.dcp
    }

    /// Ranks that share one copy of the heads: tp, within a group of DP attention.
    pub fn attention_tp(&self) -> u64 {
        if self.dp_attention { self.tp / self.dp } else { self.tp }
    }

    /// Pipeline stages.
    pub fn pp(&self) -> u64 {
        self.pp
    }

    /// Groups that keep keys of their own: one per data parallel rank, of either kind.
    pub fn groups(&self) -> u64 {
        self.dp
    }

    /// Hosts.
    pub fn nnodes(&self) -> u64 {
        self.nnodes
    }

    /// Engines beside each other: data parallel replicas without DP attention.
    pub fn replicas(&self) -> u64 {
        if self.dp_attention { 1 } else { self.dp }
    }

    /// What SGLang's memory guard takes for the ranks of a host: the world of one replica by the hosts, at least 1.
    ///
    /// Source: `sglang/srt/mem_cache/pool_host/base.py`, `ranks_per_host`.
    pub fn guard_ranks(&self) -> u64 {
        (self.tp * self.pp / self.nnodes).max(1)
    }

    /// The pipeline stage of each process of host `host`, in order; replicas one after the other.
    pub fn stages_of_host(&self, host: u64) -> Vec<u64> {
        let per_host = self.tp * self.pp / self.nnodes;
        let ranks = (host * per_host..(host + 1) * per_host).map(|rank| rank / self.tp);
        (0..self.replicas()).flat_map(|_| ranks.clone()).collect()
    }

    /// Of `layers` layers those of stage `stage`: even, and one more for each of the last `layers % pp` stages.
    ///
    /// Source: `sglang/srt/distributed/utils.py`, `get_pp_indices` (without `SGLANG_PP_LAYER_PARTITION`).
    ///
    /// # Errors
    /// There are more stages than layers.
    pub fn layers_of_stage(&self, layers: u64, stage: u64) -> Result<u64, PlanError> {
        if layers < self.pp {
            return Err(PlanError::TooManyStages { pp: self.pp, layers });
        }
        Ok(layers / self.pp + u64::from(stage >= self.pp - layers % self.pp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dp_attention_cuts_tp_and_plain_dp_adds_processes() {
        let with = Layout::new(8, 1, 4, true, 1).unwrap();
        assert_eq!((with.attention_tp(), with.groups(), with.stages_of_host(0).len()), (2, 4, 8));
        let plain = Layout::new(2, 1, 4, false, 1).unwrap();
        assert_eq!((plain.attention_tp(), plain.groups(), plain.stages_of_host(0).len()), (2, 4, 8));
        assert_eq!(plain.guard_ranks(), 2);
    }

    #[test]
    fn what_sglang_refuses_is_refused() {
        assert!(matches!(Layout::new(4, 1, 1, false, 3), Err(PlanError::NotDivisible { .. })));
        assert!(matches!(Layout::new(4, 1, 3, true, 1), Err(PlanError::NotDivisible { .. })));
        assert!(matches!(Layout::new(4, 1, 2, false, 2), Err(PlanError::DataParallelHosts { .. })));
        assert_eq!(Layout::new(0, 1, 1, false, 1), Err(PlanError::Zero { what: "tp" }));
        let eight = Layout::new(8, 1, 1, false, 1).unwrap();
        assert_eq!((eight.dcp(), eight.with_dcp(4).unwrap().dcp()), (1, 4));
        assert!(matches!(eight.with_dcp(3), Err(PlanError::NotDivisible { .. })));
        assert_eq!(eight.with_dcp(0), Err(PlanError::Zero { what: "dcp" }));
        assert_eq!(Layout::new(1 << 40, 1, 1, false, 1), Err(PlanError::TooLarge { what: "tp" }));
    }

    #[test]
    fn the_last_stages_take_the_layers_that_are_left_over() {
        let layout = Layout::new(1, 4, 1, false, 2).unwrap();
        let layers: Vec<u64> = (0..4).map(|stage| layout.layers_of_stage(62, stage).unwrap()).collect();
        assert_eq!(layers, [15, 15, 16, 16]);
        assert_eq!((layout.stages_of_host(0), layout.stages_of_host(1)), (vec![0, 1], vec![2, 3]));
        assert!(layout.layers_of_stage(3, 0).is_err());
    }

    proptest! {
        #[test]
        fn stages_share_all_layers_and_hosts_all_ranks(
            layers in 1u64..200, pp in 1u64..9, tp in 1u64..9, nnodes in 1u64..5
        ) {
            prop_assume!(layers >= pp && (tp * pp) % nnodes == 0);
            let layout = Layout::new(tp, pp, 1, false, nnodes).unwrap();
            let sum: u64 = (0..pp).map(|stage| layout.layers_of_stage(layers, stage).unwrap()).sum();
            prop_assert_eq!(sum, layers);
            let ranks: usize = (0..nnodes).map(|host| layout.stages_of_host(host).len()).sum();
            prop_assert_eq!(ranks as u64, tp * pp);
        }
    }
}
