//! How many conversations and blocks a comparison needs, so that the tiers in question are used.
//!
//! Caches are flushed before each block at each endpoint, so only the conversations of one block
//! share the caches. Their final contexts are the working set of the block.

use serde::Serialize;

use crate::compare::tiers::{self, CacheSizes, TierQuestion, questions};

/// The lowest tier in question is exceeded by this factor, because the working set grows during a
/// block: half of the final one is used on average.
const FIRST_FACTOR: f64 = 2.0;
/// The highest tier in question is exceeded by this factor.
const LAST_FACTOR: f64 = 1.25;
/// Blocks of a comparison: four measure the spread between blocks. More are taken if they fit into
/// [`SECONDS_WANTED`].
const BLOCKS: std::ops::RangeInclusive<u32> = 4..=8;
/// Duration of a comparison up to which more blocks are added, in seconds.
const SECONDS_WANTED: f64 = 300.0;
/// Duration of a comparison above which a tier is not reached on its own account, in seconds.
const SECONDS_MAX: f64 = 1_800.0;
/// Minimum number of conversations in a block.
const CONVERSATIONS_LEAST: u64 = 6;
/// Conversations in a block if the caches do not matter or are unknown.
const CONVERSATIONS_SMALL: u64 = 8;

/// The conversations of a workload, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadShape {
    /// Final context of a conversation in tokens, without a prompt that it shares with others.
    pub context: f64,
    /// All shared prompts together, in tokens.
    pub shared: f64,
    /// Requests per conversation, on average.
    pub turns: f64,
}

/// What the caller has set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GivenLoad {
    pub conversations: Option<u32>,
    pub blocks: Option<u32>,
    /// Requests per second. `None` if unknown or unlimited: then the duration is unknown.
    pub rate: Option<f64>,
}

/// The conversations and blocks of a comparison, and what they reach.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSetPlan {
    /// Conversations over all blocks.
    pub conversations: u32,
    pub blocks: u32,
    /// Tokens of one block, from the final contexts of its conversations.
    pub working_set: u64,
    /// Estimated duration of all blocks at both endpoints, in seconds.
    pub seconds: Option<f64>,
    /// The tiers in question; `None` if the sizes of the caches are unknown.
    pub questions: Option<Vec<TierQuestion>>,
    /// Conversations in one block that the highest tier in question needs.
    pub required: Option<u32>,
}

impl WorkingSetPlan {
    /// Chooses what `given` leaves open for servers with these `sizes`; `None` if they are unknown.
    pub fn choose(shape: &LoadShape, given: &GivenLoad, sizes: Option<&[CacheSizes; 2]>) -> WorkingSetPlan {
        let questions = sizes.map(questions);
        let asked = questions.as_deref().unwrap_or_default();
        let needs = |tokens: f64| (((tokens - shape.shared) / shape.context.max(1.0)).ceil().max(1.0)) as u64;
        let first = asked.iter().map(|one| one.above).min().map(|above| {
            // More than what the larger caches hold would hide their benefit.
            let most = FIRST_FACTOR * above as f64;
            let larger = sizes.and_then(tiers::larger).map_or(most, |tokens| tokens as f64);
            larger.clamp(LAST_FACTOR * above as f64, most)
        });
        let last = asked.iter().map(|one| one.above).max();
        // For each goal, the conversations that it needs in one block. The most ambitious one comes
        // first.
        let goals = |factor: f64| {
            let last = last.map(|above| (factor * above as f64).max(above as f64 + 1.0));
            [last.zip(first).map(|(last, first)| last.max(first)), first].map(|goal| goal.map(needs))
        };
        let seconds = |per_block: u64| given.rate.map(|rate| 2.0 * per_block as f64 * shape.turns / rate);
        let (conversations, blocks) = match given.conversations {
            Some(all) => {
                let fits = goals(1.0).into_iter().flatten().map(|goal| u64::from(all) / goal);
                let fits = match asked.is_empty() {
                    true => u64::from(*BLOCKS.end()),
                    false => fits.into_iter().find(|blocks| *blocks > 0).unwrap_or(1),
                };
                (u64::from(all), given.blocks.unwrap_or_else(|| even(fits as f64)))
            }
            None => {
                // The same tiers in the least time: more blocks fit.
                let least = [last, asked.iter().map(|one| one.above).min()];
                let least = least.map(|above| above.map(|above| needs(LAST_FACTOR * above as f64)));
                let wanted = goals(LAST_FACTOR).into_iter().zip(least).filter_map(|(goal, least)| goal.zip(least));
                let mut wanted = wanted.map(|(goal, least)| [goal, least].map(|n| n.max(CONVERSATIONS_LEAST)));
                let in_time = |goal: u64, blocks: u32| {
                    seconds(goal).is_none_or(|seconds| seconds * f64::from(blocks) <= SECONDS_MAX)
                };
                let fitting = wanted.find_map(|[goal, least]| {
                    let goal = if in_time(goal, *BLOCKS.start()) { goal } else { least };
                    in_time(goal, 1).then_some(goal)
                });
                let per_block = fitting.unwrap_or(CONVERSATIONS_SMALL);
                let blocks = given.blocks.unwrap_or_else(|| match seconds(per_block) {
                    None => *BLOCKS.end(),
                    Some(seconds) if seconds * f64::from(*BLOCKS.start()) > SECONDS_MAX => even(SECONDS_MAX / seconds),
                    Some(seconds) => even(SECONDS_WANTED / seconds.max(1e-9)).max(*BLOCKS.start()),
                });
                (per_block * u64::from(blocks), blocks)
            }
        };
        // As in `schedule::blocks`, the smallest block counts.
        let blocks = u64::from(blocks.max(1)).min(conversations.max(1));
        let blocks = if blocks > 1 { blocks - blocks % 2 } else { blocks };
        let per_block = conversations / blocks;
        WorkingSetPlan {
            conversations: u32::try_from(conversations).unwrap_or(u32::MAX),
            blocks: blocks as u32,
            working_set: (shape.shared + per_block as f64 * shape.context) as u64,
            seconds: seconds(conversations),
            required: goals(1.0)[0].map(|goal| u32::try_from(goal).unwrap_or(u32::MAX)),
            questions,
        }
    }

    /// Returns the tiers in question that a block does not reach.
    pub fn missed(&self) -> Vec<TierQuestion> {
        let all = self.questions.iter().flatten();
        all.filter(|question| question.above >= self.working_set).copied().collect()
    }
}

/// Returns 1, or the largest even number of at most `blocks` and at most 8.
fn even(blocks: f64) -> u32 {
    let blocks = blocks.clamp(1.0, f64::from(*BLOCKS.end())) as u32;
    if blocks > 1 { blocks - blocks % 2 } else { blocks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::ComparedTier;

    /// The default conversations: five turns of 512 tokens with 64 output tokens.
    const SHAPE: LoadShape = LoadShape { context: 2880.0, shared: 0.0, turns: 5.0 };

    fn sizes(device_tokens: u64, host_tokens: u64, has_storage: bool) -> CacheSizes {
        CacheSizes { device_tokens, host_tokens, has_storage }
    }

    fn plan(given: GivenLoad, a: CacheSizes, b: CacheSizes) -> WorkingSetPlan {
        WorkingSetPlan::choose(&SHAPE, &given, Some(&[a, b]))
    }

    fn fixed(conversations: u32) -> GivenLoad {
        GivenLoad { conversations: Some(conversations), ..GivenLoad::default() }
    }

    const RATE: GivenLoad = GivenLoad { conversations: None, blocks: None, rate: Some(5.4) };
    const SMALL: CacheSizes = CacheSizes { device_tokens: 16_384, host_tokens: 0, has_storage: false };
    const LARGE: CacheSizes = CacheSizes { device_tokens: 16_384, host_tokens: 32_832, has_storage: true };

    #[test]
    fn defaults_reach_all_tiers_in_at_least_four_blocks() {
        let found = plan(RATE, SMALL, LARGE);
        assert_eq!((found.blocks, found.missed()), (6, vec![]), "{found:?}");
        assert!(found.working_set > 49_216 && found.seconds.expect("a rate") < SECONDS_WANTED, "{found:?}");
        let slow = plan(GivenLoad { rate: Some(1.0), ..RATE }, SMALL, LARGE);
        assert_eq!((slow.blocks, slow.missed()), (4, vec![]));
        let quick = plan(GivenLoad { rate: Some(1_000.0), ..RATE }, SMALL, LARGE);
        assert_eq!((quick.blocks, quick.missed()), (8, vec![]));
        let chosen = plan(GivenLoad { blocks: Some(1), ..RATE }, SMALL, LARGE);
        assert_eq!((chosen.blocks, chosen.missed()), (1, vec![]));
    }

    #[test]
    fn given_conversations_are_split_only_as_far_as_blocks_reach_the_tiers() {
        for (conversations, blocks, missed) in [(24, 1, 0), (17, 1, 1), (36, 2, 0), (144, 8, 0), (5, 1, 2)] {
            let found = plan(fixed(conversations), SMALL, LARGE);
            assert_eq!((found.blocks, found.missed().len()), (blocks, missed), "{conversations}: {found:?}");
            assert_eq!(found.conversations, conversations);
        }
        // What the caller sets is kept.
        let found = plan(GivenLoad { blocks: Some(8), ..fixed(24) }, SMALL, LARGE);
        assert_eq!((found.blocks, found.working_set, found.missed().len()), (8, 3 * 2880, 2));
        assert_eq!((found.missed()[0].tier, found.required), (ComparedTier::Host, Some(18)));
    }

    #[test]
    fn the_working_set_fits_the_larger_caches_if_they_are_bounded() {
        let found = plan(RATE, SMALL, sizes(16_384, 24_000, false));
        assert!((20_480..=27_000).contains(&found.working_set), "{found:?}");
    }

    #[test]
    fn what_takes_too_long_is_not_attempted() {
        // 16 million tokens of L2: the tier is not reached in half an hour.
        let huge = plan(RATE, sizes(1_000_000, 0, false), sizes(1_000_000, 16_000_000, false));
        assert!(huge.seconds.expect("a rate") <= SECONDS_MAX && huge.missed().is_empty(), "L1 is exceeded: {huge:?}");
        // More blocks rather than twice the tier.
        let equal = sizes(1_000_000, 16_000_000, false);
        let found = plan(RATE, equal, equal);
        assert_eq!((found.blocks, found.working_set, found.missed()), (2, 435 * 2880, vec![]), "{found:?}");
        let same = sizes(1_000_000, 16_000_000, true);
        let found = plan(RATE, same, same);
        assert_eq!(found.missed().len(), 1, "{found:?}");
        assert_eq!((found.missed()[0].tier, found.required), (ComparedTier::Storage, Some(5_903)));
        let slow = plan(GivenLoad { rate: Some(0.1), ..RATE }, same, same);
        assert_eq!(slow.missed().len(), 2, "{slow:?}");
        let unknown = WorkingSetPlan::choose(&SHAPE, &RATE, None);
        assert_eq!((unknown.questions.clone(), unknown.missed()), (None, vec![]), "{unknown:?}");
    }

    #[test]
    fn shared_prompts_count_once() {
        let shape = LoadShape { shared: 40_000.0, ..SHAPE };
        let found = WorkingSetPlan::choose(&shape, &fixed(48), Some(&[SMALL, LARGE]));
        assert_eq!((found.blocks, found.working_set), (8, 40_000 + 6 * 2880));
    }
}
