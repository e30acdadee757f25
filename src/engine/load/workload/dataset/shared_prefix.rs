//! Generated shared prefixes: groups of conversations that start with the same system prompt, like
//! SGLang's dataset of the same name.

use std::sync::Arc;

use rand::distr::{Distribution, weighted::WeightedIndex};
use rand::seq::SliceRandom;

use crate::Seed;
use crate::workload::dataset::random::length;
use crate::workload::textgen::SHARED as SYSTEM;
use crate::workload::{Conversation, PlannedTurn, TextSpan, TurnContent};

/// Purpose of the random stream for questions.
const QUESTION: &str = "gsp-question";

/// How conversations are assigned to groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefixGroups {
    /// The same number of conversations in each group.
    Uniform,
    /// Random, with a probability proportional to rank^(-exponent).
    Zipf(f64),
}

/// Parameters for the generated conversations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedPrefix {
    pub groups: u32,
    /// Average number of conversations per group.
    pub prompts_per_group: u32,
    /// Tokens per system prompt.
    pub system: u32,
    pub question: u32,
    /// Output length in tokens, the same for all turns of a conversation.
    pub output: u32,
    /// Lower bound for lengths, as a share of the maximum.
    pub range_ratio: f64,
    pub turns: u32,
    /// How conversations are distributed over groups.
    pub distribution: PrefixGroups,
    /// Whether conversations are in group order rather than in random order.
    pub ordered: bool,
    /// Whether each group has a routing key, so that routers send it to a single worker.
    pub routing_key: bool,
}

/// Generates the conversations described by `shape`. The questions and output lengths at a given
/// position do not depend on the group.
pub fn shared_prefix(shape: &SharedPrefix, seed: Seed) -> Vec<Conversation> {
    let mut conversations = conversations(shape, seed);
    if !shape.ordered {
        conversations.shuffle(&mut seed.generator("gsp-order", 0));
    }
    conversations
}

/// Returns the conversations in group order.
fn conversations(shape: &SharedPrefix, seed: Seed) -> Vec<Conversation> {
    let groups = shape.groups.max(1);
    let mut rng = seed.generator("gsp-system-lengths", 0);
    let systems: Vec<u32> = (0..groups).map(|_| length(shape.system, shape.range_ratio, &mut rng)).collect();
    let weights = |exponent: f64| (1..=groups).map(move |rank| f64::from(rank).powf(-exponent));
    let zipf = match shape.distribution {
        PrefixGroups::Uniform => None,
        // Ranks whose weight underflows to zero are never drawn. The first weight is always one.
        PrefixGroups::Zipf(exponent) => WeightedIndex::new(weights(exponent)).ok(),
    };
    let mut assignment = seed.generator("gsp-groups", 0);
    let places = u64::from(groups) * u64::from(shape.prompts_per_group);
    let mut conversations = Vec::with_capacity(usize::try_from(places).unwrap_or(0));
    for place in 0..places {
        let group = match &zipf {
            Some(zipf) => zipf.sample(&mut assignment) as u32,
            None => (place / u64::from(shape.prompts_per_group.max(1))) as u32,
        };
        let mut rng = seed.generator("gsp-lengths", place);
        let output = length(shape.output, shape.range_ratio, &mut rng).max(1);
        let turn = |index: u32| {
            let number = place * u64::from(shape.turns.max(1)) + u64::from(index);
            let question = TextSpan::Drawn {
                purpose: QUESTION,
                number,
                tokens: length(shape.question, shape.range_ratio, &mut rng),
            };
            let number = u64::from(group);
            let system = TextSpan::Drawn { purpose: SYSTEM, number, tokens: systems[group as usize] };
            let spans = if index == 0 { vec![system, question] } else { vec![question] };
            PlannedTurn::new(TurnContent::made(spans), output)
        };
        let turns = (0..shape.turns.max(1)).map(turn).collect();
        let key = || Arc::from(format!("{:x}_{group}", seed.0));
        conversations.push(Conversation { routing_key: shape.routing_key.then(key), ..Conversation::new(turns) });
    }
    conversations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> SharedPrefix {
        SharedPrefix {
            groups: 4,
            prompts_per_group: 3,
            system: 100,
            question: 10,
            output: 20,
            range_ratio: 1.0,
            turns: 2,
            distribution: PrefixGroups::Uniform,
            ordered: true,
            routing_key: false,
        }
    }

    fn spans(conversation: &Conversation, turn: usize) -> Vec<TextSpan> {
        match &conversation.turns[turn].content {
            TurnContent::Made(passages) => passages.iter().collect(),
            other => panic!("{other:?}"),
        }
    }

    fn group(conversation: &Conversation) -> u64 {
        match spans(conversation, 0)[0] {
            TextSpan::Drawn { purpose: "gsp-system", number, .. } => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn conversations_of_a_group_share_only_their_system_prompt() {
        let made = shared_prefix(&shape(), Seed(1));
        assert_eq!(made.iter().map(group).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(spans(&made[0], 0)[0], spans(&made[1], 0)[0]);
        assert_ne!(spans(&made[0], 0)[1], spans(&made[1], 0)[1]);
        assert_eq!((spans(&made[0], 0).len(), spans(&made[0], 1).len(), made[0].turns[1].max_tokens), (2, 1, 20));
        let mut questions: Vec<TextSpan> = made.iter().flat_map(|c| [spans(c, 0)[1], spans(c, 1)[0]]).collect();
        let all = questions.len();
        questions.dedup();
        assert_eq!(questions.len(), all);
    }

    #[test]
    fn order_is_random_by_default_and_determined_by_the_seed() {
        let free = SharedPrefix { ordered: false, ..shape() };
        let (one, again, other) =
            (shared_prefix(&free, Seed(1)), shared_prefix(&free, Seed(1)), shared_prefix(&free, Seed(2)));
        assert_eq!(one, again);
        assert_ne!(one, other);
        assert_ne!(one, shared_prefix(&shape(), Seed(1)));
    }

    #[test]
    fn zipf_prefers_low_ranks_without_changing_questions() {
        let zipf = SharedPrefix {
            groups: 10,
            prompts_per_group: 200,
            distribution: PrefixGroups::Zipf(1.0),
            routing_key: true,
            ..shape()
        };
        let made = shared_prefix(&zipf, Seed(7));
        let mut counts = [0_u32; 10];
        made.iter().for_each(|conversation| counts[group(conversation) as usize] += 1);
        // 2000 / H(10) is 683; a tenth of that is 68.
        assert!((620..750).contains(&counts[0]) && (45..95).contains(&counts[9]), "{counts:?}");
        let uniform = shared_prefix(&SharedPrefix { distribution: PrefixGroups::Uniform, ..zipf }, Seed(7));
        assert!(made.iter().zip(&uniform).all(|(one, other)| spans(one, 0)[1] == spans(other, 0)[1]));
        assert_eq!(made[0].routing_key.as_deref(), Some(format!("7_{}", group(&made[0])).as_str()));
    }

    #[test]
    fn lengths_cover_their_range() {
        let wide = SharedPrefix { range_ratio: 0.5, prompts_per_group: 100, ..shape() };
        let lengths: Vec<u32> = shared_prefix(&wide, Seed(1)).iter().map(|made| spans(made, 0)[1].tokens()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&5), Some(&10)));
    }
}
