//! The prompts of a tier ladder. Their number grows during the run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::workload::{LoadWorkload, TurnPrompt, TurnRequest};
use crate::{ModelAnswer, Script, Seed, Turn};

/// Default prompt lengths in tokens.
pub const LENGTHS: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Token-ID prompts. Each prompt is a single-turn conversation. Clones share the list of prompts.
#[derive(Clone, Debug)]
pub struct LadderPrompts {
    /// Prompt lengths in tokens.
    pub lengths: Vec<u32>,
    /// Upper bound (exclusive) for token IDs.
    pub vocabulary: u32,
    /// Output length in tokens.
    pub output: u32,
    /// Seed for token IDs.
    pub seed: Seed,
    /// The length of each prompt, by conversation.
    planned: Arc<Mutex<Vec<u32>>>,
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
    /// Creates a workload without prompts: [`add`](LadderPrompts::add) adds them.
    pub fn new(lengths: Vec<u32>, vocabulary: u32, output: u32, seed: Seed) -> LadderPrompts {
        LadderPrompts { lengths, vocabulary, output, seed, planned: Arc::default() }
    }

    /// Adjusts the lengths to a server whose L1 holds `device` tokens: sorts them, or chooses the
    /// [`LENGTHS`] that fit if there are none.
    ///
    /// # Errors
    /// A prompt is too long, or none is short enough.
    pub fn fitted(mut self, device: u64) -> Result<LadderPrompts, PromptTooLong> {
        // A prompt may use at most half of the L1 space that the output leaves free: the filler
        // that evicts it needs the other half.
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

    /// Adds `repeats` prompts of each of `lengths`, and returns their conversations. The lengths
    /// alternate, so that a disturbance of the server affects all of them rather than all prompts
    /// of one.
    pub fn add(&self, lengths: &[u32], repeats: u32) -> Range<u32> {
        let mut planned = self.planned();
        let from = planned.len() as u32;
        for _ in 0..repeats {
            planned.extend(lengths);
        }
        from..planned.len() as u32
    }

    /// Returns the prompt length for `conversation`.
    pub fn length(&self, conversation: u32) -> u32 {
        self.planned().get(conversation as usize).copied().unwrap_or(1)
    }

    /// Returns the number of prompts of each length.
    pub fn counts(&self) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for length in self.planned().iter() {
            *counts.entry(*length).or_default() += 1;
        }
        counts
    }

    /// Splits `conversations` into groups of at most `tokens` tokens each. A group always contains
    /// at least one prompt, even if that prompt is longer.
    pub fn groups(&self, conversations: Range<u32>, tokens: u64) -> Vec<Range<u32>> {
        let mut groups = Vec::new();
        let mut from = conversations.start;
        let mut sum = 0;
        for at in conversations.clone() {
            let length = u64::from(self.length(at) + self.output);
            if at > from && sum + length > tokens {
                groups.push(from..at);
                from = at;
                sum = 0;
            }
            sum += length;
        }
        groups.push(from..conversations.end);
        groups.retain(|group| !group.is_empty());
        groups
    }

    fn planned(&self) -> MutexGuard<'_, Vec<u32>> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoadWorkload for LadderPrompts {
    fn scripts(&self) -> Vec<Script> {
        vec![Script { turns: 1, ..Script::default() }; self.planned().len()]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(lengths: &[u32]) -> LadderPrompts {
        LadderPrompts::new(lengths.to_vec(), 1000, 1, Seed(1))
    }

    #[test]
    fn groups_fit_and_cover_all_prompts() {
        let prompts = prompts(&[512, 1024, 2048]);
        assert_eq!(prompts.add(&[512, 1024, 2048], 2), 0..6);
        assert_eq!(prompts.groups(0..6, 1_600), [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(prompts.groups(0..6, 1 << 20), std::iter::once(0..6).collect::<Vec<_>>());
        assert_eq!(prompts.groups(0..6, 1).len(), 6);
        let shared = prompts.clone();
        assert_eq!(prompts.add(&[2048], 1), 6..7);
        assert_eq!((shared.length(6), shared.scripts().len()), (2048, 7), "clones share the list");
        assert_eq!(shared.groups(6..7, 1), std::iter::once(6..7).collect::<Vec<_>>());
        assert_eq!(shared.counts(), BTreeMap::from([(512, 2), (1024, 2), (2048, 3)]));
    }

    #[test]
    fn prompts_leave_half_of_the_device_to_the_filler() {
        let fitted = |lengths: &[u32], device| prompts(lengths).fitted(device).map(|prompts| prompts.lengths);
        assert_eq!(fitted(&[], 4_097), Ok(vec![512, 1024, 2048]));
        assert_eq!(fitted(&[900, 512, 900], 4_097), Ok(vec![512, 900]));
        assert_eq!(fitted(&[2049], 4_097), Err(PromptTooLong { longest: 2049, most: 2048, device: 4_097 }));
        assert_eq!(fitted(&[], 100).map_err(|error| error.longest), Err(0));
    }
}
