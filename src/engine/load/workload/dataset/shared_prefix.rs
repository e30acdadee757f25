//! Generated shared prefixes: groups of conversations that start with the same system prompt, like SGLang's dataset of
//! the same name.

use std::sync::Arc;

use rand::distr::{Distribution, weighted::WeightedIndex};
use rand::seq::SliceRandom;

use crate::Seed;
use crate::numpy::{Numpy, PriorDraws};
use crate::python::PythonRandom;
use crate::workload::dataset::random::length;
use crate::workload::textgen::SHARED as SYSTEM;
use crate::workload::{Conversation, PlannedTurn, SampledSpans, TextSpan, Tokenizer, TurnContent};

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

impl SharedPrefix {
    fn conversations(&self) -> u32 {
        self.groups.max(1).saturating_mul(self.prompts_per_group)
    }

    fn questions(&self) -> u32 {
        self.conversations().saturating_mul(self.turns.max(1))
    }

    /// Returns the values that `sglang.bench_serving` samples from NumPy for this dataset.
    pub fn numpy_draws(&self) -> Vec<PriorDraws> {
        vec![
            PriorDraws::lengths(self.system, self.range_ratio, self.groups.max(1)),
            PriorDraws::lengths(self.question, self.range_ratio, self.questions()),
            PriorDraws::lengths(self.output, self.range_ratio, self.conversations()),
        ]
    }
}

/// Lengths of the texts, in tokens.
struct Lengths {
    /// One entry per group.
    systems: Vec<u32>,
    /// One per turn of each conversation.
    questions: Vec<u32>,
    /// One entry per conversation.
    outputs: Vec<u32>,
}

impl Lengths {
    fn new(shape: &SharedPrefix, seed: Seed) -> Lengths {
        let mut rng = seed.generator("gsp-system-lengths", 0);
        let systems = (0..shape.groups.max(1)).map(|_| length(shape.system, shape.range_ratio, &mut rng)).collect();
        let mut lengths = Lengths { systems, questions: Vec::new(), outputs: Vec::new() };
        for place in 0..shape.conversations() {
            let mut rng = seed.generator("gsp-lengths", u64::from(place));
            lengths.outputs.push(length(shape.output, shape.range_ratio, &mut rng));
            for _ in 0..shape.turns.max(1) {
                lengths.questions.push(length(shape.question, shape.range_ratio, &mut rng));
            }
        }
        lengths
    }

    fn numpy(shape: &SharedPrefix, seed: Seed) -> Lengths {
        let mut numpy = Numpy::new(seed);
        Lengths {
            systems: numpy.lengths(shape.system, shape.range_ratio, shape.groups.max(1)),
            questions: numpy.lengths(shape.question, shape.range_ratio, shape.questions()),
            outputs: numpy.lengths(shape.output, shape.range_ratio, shape.conversations()),
        }
    }
}

/// Generates the conversations that `sglang.bench_serving` generates for `shape` and `seed`, and their texts, sampled from the IDs of
/// `vocabulary`. With [`PrefixGroups::Zipf`], only the assignment to groups differs.
pub fn bench_serving_shared_prefix(
    shape: &SharedPrefix,
    seed: Seed,
    vocabulary: &[u32],
    tokenizer: Option<&Tokenizer>,
) -> (Vec<Conversation>, SampledSpans) {
    let lengths = Lengths::numpy(shape, seed);
    let mut python = PythonRandom::new(seed);
    let mut sampled = SampledSpans::default();
    for (purpose, lengths) in [(SYSTEM, &lengths.systems), (QUESTION, &lengths.questions)] {
        for (number, length) in (0..).zip(lengths) {
            sampled.insert(purpose, number, python.choices(vocabulary, *length), tokenizer);
        }
    }
    let mut conversations = conversations(shape, seed, &lengths);
    if !shape.ordered {
        python.shuffle(&mut conversations);
    }
    (conversations, sampled)
}

/// Generates the conversations described by `shape`. The questions and output lengths at a given position do not depend
/// on the group.
pub fn shared_prefix(shape: &SharedPrefix, seed: Seed) -> Vec<Conversation> {
    let mut conversations = conversations(shape, seed, &Lengths::new(shape, seed));
    if !shape.ordered {
        conversations.shuffle(&mut seed.generator("gsp-order", 0));
    }
    conversations
}

/// Returns the conversations in group order.
fn conversations(shape: &SharedPrefix, seed: Seed, lengths: &Lengths) -> Vec<Conversation> {
    let groups = shape.groups.max(1);
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
        let output = lengths.outputs[place as usize].max(1);
        let turn = |index: u32| {
            let number = place * u64::from(shape.turns.max(1)) + u64::from(index);
            let question = TextSpan::Drawn { purpose: QUESTION, number, tokens: lengths.questions[number as usize] };
            let number = u64::from(group);
            let system = TextSpan::Drawn { purpose: SYSTEM, number, tokens: lengths.systems[group as usize] };
            let spans = if index == 0 { vec![system, question] } else { vec![question] };
            PlannedTurn::new(TurnContent::Made(spans), output)
        };
        let turns = (0..shape.turns.max(1)).map(turn).collect();
        let key = || Arc::from(format!("{:x}_{group}", seed.0));
        conversations.push(Conversation { turns, routing_key: shape.routing_key.then(key) });
    }
    conversations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::textgen::TextGenerator;

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

    fn spans(conversation: &Conversation, turn: usize) -> &[TextSpan] {
        match &conversation.turns[turn].content {
            TurnContent::Made(passages) => passages,
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

    /// Expected values from CPython 3.11 and NumPy, drawn in the order of `sample_generated_shared_prefix_requests`.
    #[test]
    fn prompts_of_bench_serving_match_python() {
        let shape = SharedPrefix {
            groups: 2,
            prompts_per_group: 2,
            system: 6,
            question: 4,
            output: 5,
            range_ratio: 0.5,
            turns: 1,
            ordered: false,
            ..shape()
        };
        let vocabulary: Vec<u32> = (100..120).collect();
        let (made, sampled) = bench_serving_shared_prefix(&shape, Seed(11), &vocabulary, None);
        let sampled = Some(Arc::new(sampled));
        let generator = TextGenerator { seed: Seed(11), vocabulary: 120, tokenizer: None, sampled };
        let prompt = |conversation: &Conversation| {
            let mut ids = Vec::new();
            spans(conversation, 0).iter().for_each(|span| generator.ids(*span, &mut ids));
            (ids, conversation.turns[0].max_tokens)
        };
        let expected: [(&[u32], u32); 4] = [
            (&[110, 111, 103, 110, 112, 115, 113, 112], 2),
            (&[109, 111, 118, 109, 101, 106], 3),
            (&[110, 111, 103, 110, 112, 115, 100, 119, 119], 4),
            (&[109, 111, 118, 109, 101, 116, 113], 5),
        ];
        let found: Vec<(Vec<u32>, u32)> = made.iter().map(prompt).collect();
        assert_eq!(found, expected.map(|(ids, output)| (ids.to_vec(), output)));
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
