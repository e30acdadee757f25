//! The result of a tier ladder: its figures, the tiers that no request verified, and the caveats.

use serde::Serialize;

use crate::LoadCaveat;
use crate::ladder::{Ladder, LadderPrompts, LadderTier, TierNotVerified};
use crate::server::{ObservationCaveat, ServerCallError, ServerClient, ServerInfo};
use crate::session::{Figure, PassResult, SessionResult};

/// Reasons why the tier ladder cannot run against a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LadderRefusal {
    #[error("the server does not report its L1 size (max_total_num_tokens)")]
    NoDeviceSize,
    #[error("the server does not have SGLang's /server_info route")]
    NotSglang,
    #[error(transparent)]
    Unreadable(#[from] ServerCallError),
}

/// Reads the settings of `server`.
///
/// # Errors
/// The server does not respond, is not SGLang, or does not report the size of its L1.
pub async fn server_info(server: &ServerClient) -> Result<ServerInfo, LadderRefusal> {
    let info = server.info().await?.ok_or(LadderRefusal::NotSglang)?;
    if info.device_tokens.is_some() { Ok(info) } else { Err(LadderRefusal::NoDeviceSize) }
}

/// The result of a tier ladder.
#[derive(Clone, Debug, PartialEq)]
pub struct LadderResult {
    pub ladder: Ladder,
    /// Whether the responses match the server's counters in every pass; `None` if not checked.
    pub agrees: Option<bool>,
    /// Number of failed requests.
    pub failed: u64,
    /// Whether every tier was verified at every length that was measured.
    pub is_verified: bool,
    pub caveats: Vec<LoadCaveat>,
}

impl LadderResult {
    /// Evaluates the passes of a ladder with these `prompts` at a server with these settings.
    /// `ended_early`: a signal or a failed step ended the run, so tiers that it did not reach need
    /// no caveat.
    pub fn of(prompts: &LadderPrompts, info: &ServerInfo, executed: &SessionResult, ended_early: bool) -> LadderResult {
        let passes = &executed.passes;
        let mut tiers = vec![LadderTier::Cold, LadderTier::Device];
        tiers.extend(info.has_host.then_some(LadderTier::Host));
        tiers.extend(info.storage.is_some().then_some(LadderTier::Storage));
        let ladder = Ladder::of(prompts, info.page_size.unwrap_or(1), &tier_figures(passes));
        let mut caveats: Vec<LoadCaveat> = executed.caveat().into_iter().collect();
        let missing = ladder.missing(&tiers);
        let has_begun = |at: &&(u32, LadderTier)| ladder.rungs.iter().any(|rung| (rung.length, rung.tier) == **at);
        let reached = missing.iter().filter(|at| !ended_early || has_begun(at));
        let not_verified = reached.map(|(length, tier)| TierNotVerified::of(*length, *tier, &ladder, info));
        caveats.extend(not_verified.map(LoadCaveat::TierNotVerified));
        for caveat in passes.iter().filter_map(|pass| pass.observed.as_ref()).flat_map(|observed| &observed.caveats) {
            let caveat = LoadCaveat::Server(caveat.clone());
            // The ladder warms the cache on purpose.
            let is_warm = matches!(caveat, LoadCaveat::Server(ObservationCaveat::WarmCache(_)));
            if !is_warm && !caveats.iter().any(|other| other.is_same(&caveat)) {
                caveats.push(caveat);
            }
        }
        let agrees: Vec<bool> = passes.iter().filter_map(|pass| pass.observed.as_ref()?.agrees).collect();
        let failed: u64 = passes.iter().map(|pass| pass.tally.failed()).sum();
        if failed > 0 {
            caveats.push(LoadCaveat::RequestsFailed { requests: failed });
        }
        LadderResult {
            agrees: (!agrees.is_empty()).then(|| agrees.iter().all(|agrees| *agrees)),
            failed,
            is_verified: missing.is_empty(),
            ladder,
            caveats,
        }
    }
}

/// A tier that the server does not have, and that the ladder therefore does not measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AbsentTier {
    pub tier: LadderTier,
    /// The server flag that enables the tier.
    pub flag: &'static str,
}

impl AbsentTier {
    /// Returns the tiers that a server with these settings lacks.
    pub fn of(info: &ServerInfo) -> Vec<AbsentTier> {
        let host = AbsentTier { tier: LadderTier::Host, flag: "--enable-hierarchical-cache" };
        let storage = AbsentTier { tier: LadderTier::Storage, flag: "--hicache-storage-backend" };
        let host = (!info.has_host).then_some(host);
        host.into_iter().chain(info.storage.is_none().then_some(storage)).collect()
    }
}

/// Returns every request with its intended tier.
pub(super) fn tier_figures(passes: &[PassResult]) -> Vec<(LadderTier, Figure)> {
    let tier = |pass: &PassResult| LadderTier::ALL.into_iter().find(|rung| rung.name() == pass.id.name);
    passes
        .iter()
        .filter_map(|pass| Some((tier(pass)?, pass)))
        .flat_map(|(tier, pass)| pass.figures.iter().map(move |f| (tier, *f)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_that_a_server_lacks_are_named_with_their_flag() {
        let of = |has_host, storage: Option<&str>| {
            let info = ServerInfo { has_host, storage: storage.map(str::to_owned), ..ServerInfo::default() };
            AbsentTier::of(&info).into_iter().map(|absent| (absent.tier, absent.flag)).collect::<Vec<_>>()
        };
        let host = (LadderTier::Host, "--enable-hierarchical-cache");
        let storage = (LadderTier::Storage, "--hicache-storage-backend");
        assert_eq!(of(false, None), [host, storage]);
        assert_eq!(of(true, None), [storage]);
        assert_eq!(of(true, Some("mooncake")), []);
    }
}
