//! Tier ladder: measures TTFT for the same prompts when they are computed and when they are served from L1, L2 or L3.
//! It also finds the prompt length above which loading from L3 is faster than computing the tokens.
//!
//! This file plans the steps, `figures` evaluates the requests, and `result` finds what was not verified.
//!
//! A request counts toward a tier only if the server reports that the tokens came from that tier.

mod figures;
mod not_verified;
mod result;

use std::collections::VecDeque;
use std::ops::Range;

use serde::Serialize;

use crate::engine::load::server::ServerInfo;
use crate::engine::load::session::{Control, LoadEndpoint, PassPlan, Session, SessionStep, Tier};
use crate::engine::load::workload::{LoadWorkload, TurnPrompt, TurnRequest};
use crate::engine::load::{ModelAnswer, Pace, Rules, Script, Seed, Turn};

pub use figures::{BreakEven, Ladder, LadderCell, LinearFit, Mean};
pub use not_verified::TierNotVerified;
pub use result::{LadderRefusal, LadderResult, server_info};

/// Default prompt lengths in tokens.
pub const LENGTHS: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Source of a prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LadderTier {
    /// Nothing is cached; all tokens are computed.
    Cold,
    /// L1, the device memory.
    Device,
    /// L2, the host memory.
    Host,
    /// L3, the Mooncake store.
    Storage,
}

impl LadderTier {
    /// All tiers, from no cache to L3.
    pub const ALL: [LadderTier; 4] = [LadderTier::Cold, LadderTier::Device, LadderTier::Host, LadderTier::Storage];

    /// Returns the name used for this tier's passes.
    pub const fn name(self) -> &'static str {
        match self {
            LadderTier::Cold => "cold",
            LadderTier::Device => "device",
            LadderTier::Host => "host",
            LadderTier::Storage => "storage",
        }
    }
}

/// Token-ID prompts: `repeats` prompts of each length. Each prompt is a single-turn conversation.
#[derive(Clone, Debug)]
pub struct LadderPrompts {
    /// Prompt lengths in tokens.
    pub lengths: Vec<u32>,
    pub repeats: u32,
    /// Upper bound (exclusive) for token IDs.
    pub vocabulary: u32,
    /// Output length in tokens.
    pub output: u32,
    /// Seed for token IDs.
    pub seed: Seed,
}

/// A prompt that is too long for a server's L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {longest}-token prompt is too long for an L1 of {device} tokens; the longest possible one has {most}")]
pub struct PromptTooLong {
    pub longest: u32,
    pub most: u64,
    pub device: u64,
}

impl LadderPrompts {
    /// Adjusts the lengths to a server whose L1 holds `device` tokens: sorts them, or chooses the [`LENGTHS`] that fit if there are none.
    ///
    /// # Errors
    /// A prompt is too long, or none is short enough.
    pub fn fitted(mut self, device: u64) -> Result<LadderPrompts, PromptTooLong> {
        // A prompt may use at most half of the L1 space that the output leaves free: the filler that evicts it needs the other half.
        let most = device.saturating_sub(u64::from(self.output)) / 2;
        if self.lengths.is_empty() {
            self.lengths = LENGTHS.into_iter().filter(|length| u64::from(*length) <= most).collect();
        }
        self.lengths.sort_unstable();
        self.lengths.dedup();
        let longest = self.lengths.last().copied().unwrap_or(0);
        match self.lengths.is_empty() || u64::from(longest) > most {
            true => Err(PromptTooLong { longest, most, device }),
            false => Ok(self),
        }
    }

    /// Returns the session that climbs the ladder at `side`, whose server has these settings.
    pub fn session(&self, side: LoadEndpoint, info: &ServerInfo) -> Session {
        // The limit ensures that a whole group, including its outputs, fits in L1.
        let groups = self.groups(info.device_tokens.unwrap_or(0) * 2 / 5);
        let schedule = schedule(&groups, info.has_host, info.storage.is_some());
        Session { sides: vec![side], schedule, seed: self.seed, keep_figures: true }
    }

    /// Returns the prompt length for `conversation`.
    pub fn length(&self, conversation: u32) -> u32 {
        let at = (conversation / self.repeats.max(1)) as usize;
        self.lengths.get(at).or(self.lengths.last()).copied().unwrap_or(1)
    }

    /// Splits the prompts into groups of at most `tokens` tokens each. A group always contains at least one prompt, even if that prompt is
    /// longer.
    pub fn groups(&self, tokens: u64) -> Vec<Range<u32>> {
        let all = self.lengths.len() as u32 * self.repeats;
        let (mut groups, mut from, mut sum) = (Vec::new(), 0, 0);
        for at in 0..all {
            let length = u64::from(self.length(at) + self.output);
            if at > from && sum + length > tokens {
                groups.push(from..at);
                (from, sum) = (at, 0);
            }
            sum += length;
        }
        groups.push(from..all);
        groups.retain(|group| !group.is_empty());
        groups
    }
}

impl LoadWorkload for LadderPrompts {
    fn scripts(&self) -> Vec<Script> {
        vec![Script { turns: 1, ..Script::default() }; self.lengths.len() * self.repeats as usize]
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        use rand::Rng;
        let mut rng = self.seed.generator("ladder", u64::from(turn.conversation));
        let ids = (0..self.length(turn.conversation)).map(|_| rng.random_range(1..self.vocabulary.max(2))).collect();
        TurnRequest::new(TurnPrompt::Ids(ids), self.output)
    }

    fn on_response(&mut self, _: Turn, _: &ModelAnswer) {}

    fn on_conversation_end(&mut self, _: Turn) {}
}

/// Plans the steps for the prompts in `groups`. Each group is sent up to four times: once to be computed, again immediately (from L1),
/// again after other requests have evicted it from L1 (from L2), and again after a flush of L1 and L2 (from L3).
pub fn schedule(groups: &[Range<u32>], has_host: bool, has_storage: bool) -> VecDeque<(usize, SessionStep)> {
    let pass = |rung: LadderTier, part: &Range<u32>| {
        let plan = PassPlan {
            name: rung.name().to_owned(),
            block: 0,
            part: part.clone(),
            pace: Pace::Closed { conversations: 1 },
            rules: Rules { in_flight: 1, ..Rules::default() },
            duration: std::time::Duration::from_secs(24 * 3600),
        };
        SessionStep::Pass(Box::new(plan))
    };
    let mut steps = vec![SessionStep::Control(Control::Warm(2))];
    for part in groups {
        steps.extend([SessionStep::Control(Control::Settle), SessionStep::Control(Control::Flush)]);
        steps.extend([pass(LadderTier::Cold, part), pass(LadderTier::Device, part)]);
        if has_host {
            steps.extend([
                SessionStep::Control(Control::Settle),
                SessionStep::Control(Control::Fill(Tier::Device)),
                pass(LadderTier::Host, part),
            ]);
        }
        if has_storage {
            steps.extend([
                SessionStep::Control(Control::Settle),
                SessionStep::Control(Control::Flush),
                pass(LadderTier::Storage, part),
            ]);
        }
    }
    steps.into_iter().map(|step| (0, step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rungs() -> LadderPrompts {
        LadderPrompts { lengths: vec![512, 1024, 2048], repeats: 3, vocabulary: 1000, output: 1, seed: Seed(1) }
    }

    #[test]
    fn groups_fit_and_cover_all_prompts() {
        assert_eq!(rungs().groups(1_600), [0..3, 3..4, 4..5, 5..6, 6..7, 7..8, 8..9]);
        assert_eq!(rungs().groups(1 << 20), std::iter::once(0..9).collect::<Vec<_>>());
        assert_eq!(rungs().groups(1).len(), 9);
    }

    #[test]
    fn schedule_skips_tiers_that_the_server_lacks() {
        let names = |steps: VecDeque<(usize, SessionStep)>| {
            let passes = steps.into_iter().filter_map(|(_, step)| match step {
                SessionStep::Pass(plan) => Some(plan.name),
                SessionStep::Control(_) => None,
            });
            passes.collect::<Vec<_>>()
        };
        assert_eq!(names(schedule(&[0..1, 1..2], false, false)), ["cold", "device", "cold", "device"]);
        assert_eq!(names(schedule(&[0..1; 1], true, true)), ["cold", "device", "host", "storage"]);
    }

    #[test]
    fn prompts_leave_half_of_the_device_to_the_filler() {
        let prompts = |lengths: &[u32]| LadderPrompts { lengths: lengths.to_vec(), ..rungs() };
        let fitted = |lengths: &[u32], device| prompts(lengths).fitted(device).map(|prompts| prompts.lengths);
        assert_eq!(fitted(&[], 4_097), Ok(vec![512, 1024, 2048]));
        assert_eq!(fitted(&[900, 512, 900], 4_097), Ok(vec![512, 900]));
        assert_eq!(fitted(&[2049], 4_097), Err(PromptTooLong { longest: 2049, most: 2048, device: 4_097 }));
        assert_eq!(fitted(&[], 100).map_err(|error| error.longest), Err(0));
    }
}
