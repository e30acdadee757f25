//! Two prompts share exactly the tokens that the trace says: the longest common prefix of the
//! generated texts is compared with that of the recorded blocks, for each format.

use proptest::prelude::*;

use super::*;
use crate::workload::TextSpan;

/// A prompt of a test trace: blocks as they are recorded, and the length.
#[derive(Clone, Debug)]
struct Recorded {
    /// Where the IDs have a meaning.
    scope: usize,
    ids: Vec<u64>,
    tokens: u64,
}

impl Recorded {
    /// Number of tokens that two prompts share according to their blocks.
    fn shared(&self, other: &Recorded, size: u64) -> u64 {
        let equal = self.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count() as u64;
        let within = self.tokens.min(other.tokens);
        if self.scope == other.scope { (equal * size).min(within) } else { 0 }
    }
}

/// The prompts of a dataset, in the order of their output lengths.
fn prompts(text: &str, options: &DatasetOptions) -> Vec<Vec<TextSpan>> {
    let dataset = read(text.as_bytes(), "t", options).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let turns = dataset.conversations.iter().flat_map(|conversation| &conversation.turns);
    let mut prompts: Vec<(u32, Vec<TextSpan>)> = turns
        .map(|turn| match &turn.content {
            TurnContent::Made(spans) => (turn.max_tokens, spans.iter().collect()),
            other => panic!("{other:?}"),
        })
        .collect();
    prompts.sort_by_key(|(order, _)| *order);
    prompts.into_iter().map(|(_, spans)| spans).collect()
}

/// Number of leading tokens that are equal. Spans are equal texts if their purpose and number are.
fn shared(a: &[TextSpan], b: &[TextSpan]) -> u64 {
    let mut tokens = 0;
    for (a, b) in a.iter().zip(b) {
        if a.with_tokens(0) != b.with_tokens(0) {
            break;
        }
        tokens += u64::from(a.tokens().min(b.tokens()));
        if a.tokens() != b.tokens() {
            break;
        }
    }
    tokens
}

fn check(recorded: &[Recorded], size: u64, text: &str, options: &DatasetOptions) -> Result<(), TestCaseError> {
    let made = prompts(text, options);
    prop_assert_eq!(made.len(), recorded.len());
    for (a, (spans, prompt)) in made.iter().zip(recorded).enumerate() {
        prop_assert_eq!(spans.iter().map(|span| u64::from(span.tokens())).sum::<u64>(), prompt.tokens);
        for (b, (other_spans, other)) in made.iter().zip(recorded).enumerate().skip(a + 1) {
            prop_assert_eq!(
                shared(spans, other_spans),
                prompt.shared(other, size),
                "prompts {} and {}\n{}",
                a,
                b,
                text
            );
        }
    }
    Ok(())
}

/// Prompts with few distinct IDs, so that prefixes are shared. `has_partial`: whether a partial
/// last block has an ID.
fn recorded(size: u64, has_partial: bool) -> impl Strategy<Value = Vec<Recorded>> {
    let prompt = (proptest::collection::vec(0..3_u64, 1..6), 1..=size, 0..3_usize);
    proptest::collection::vec(prompt, 1..12).prop_map(move |prompts| {
        let prompt = |(number, (mut ids, last, scope)): (usize, (Vec<u64>, u64, usize))| {
            let full = ids.len() as u64 * size;
            let tokens = if has_partial { full - size + last } else { full + last - 1 };
            if has_partial && last < size {
                // The ID of a partial block is a hash of its own content.
                *ids.last_mut().expect("at least one") = 100 + number as u64;
            }
            Recorded { scope, ids, tokens }
        };
        prompts.into_iter().enumerate().map(prompt).collect()
    })
}

fn one_scope(mut prompts: Vec<Recorded>) -> Vec<Recorded> {
    prompts.iter_mut().for_each(|prompt| prompt.scope = 0);
    prompts
}

fn with_size(size: u64) -> DatasetOptions {
    DatasetOptions { block_tokens: Some(size), ..DatasetOptions::default() }
}

/// One row per prompt. `row` writes it from its number, from 1.
fn lines(prompts: &[Recorded], row: impl Fn(usize, &Recorded) -> String) -> String {
    (1..).zip(prompts).map(|(number, prompt)| row(number, prompt) + "\n").collect()
}

proptest! {
    #[test]
    fn mooncake_prompts_share_their_recorded_prefixes(prompts in recorded(512, true), sessions: bool) {
        let prompts = one_scope(prompts);
        let text = lines(&prompts, |number, Recorded { ids, tokens, .. }| {
            let session = if sessions { format!("\"session_id\": {}, ", number % 3) } else { String::new() };
            format!("{{{session}\"timestamp\": {number}, \"input_length\": {tokens}, \"output_length\": {number}, \"hash_ids\": {ids:?}}}")
        });
        check(&prompts, 512, &text, &with_size(512))?;
    }

    #[test]
    fn bailian_prompts_share_their_recorded_prefixes(prompts in recorded(16, true)) {
        let prompts = one_scope(prompts);
        let text = lines(&prompts, |number, Recorded { ids, tokens, .. }| {
            format!(
                "{{\"chat_id\": {number}, \"parent_chat_id\": {}, \"timestamp\": {number}, \"input_length\": {tokens}, \
                 \"output_length\": {number}, \"hash_ids\": {ids:?}}}",
                number as i64 - 3
            )
        });
        check(&prompts, 16, &text, &with_size(16))?;
    }

    #[test]
    fn vllm_prompts_share_their_recorded_prefixes(prompts in recorded(16, true)) {
        let prompts = one_scope(prompts);
        let text = lines(&prompts, |number, Recorded { ids, tokens, .. }| {
            format!("{{\"timestamp\": {number}.5, \"input_length\": {tokens}, \"output_length\": {number}, \"hash_ids\": {ids:?}}}")
        });
        check(&prompts, 16, &text, &with_size(16))?;
    }

    #[test]
    fn simulator_prompts_share_their_recorded_prefixes(prompts in recorded(64, false)) {
        let prompts = one_scope(prompts);
        let text = lines(&prompts, |number, Recorded { ids, tokens, .. }| {
            format!("{{\"block_size\": 64, \"input_length\": {tokens}, \"output_length\": {number}, \"hash_ids\": {ids:?}}}")
        });
        check(&prompts, 64, &text, &DatasetOptions::default())?;
    }

    #[test]
    fn litellm_prompts_share_their_recorded_prefixes(prompts in recorded(32, true)) {
        // The hashes of a spend log are chained.
        let mut prompts = one_scope(prompts);
        for prompt in &mut prompts {
            let mut chain = 7;
            for id in &mut prompt.ids {
                chain = chain * 131 + *id;
                *id = chain;
            }
        }
        let text = lines(&prompts, |number, Recorded { ids, tokens, .. }| {
            let hashes: Vec<String> = ids.iter().map(|id| format!("{id:016x}")).collect();
            format!(
                "{{\"startTime\": {number}, \"prompt_tokens\": {tokens}, \"completion_tokens\": {number}, \
                 \"prefix_block_hashes\": {{\"hashes\": {hashes:?}, \"block_size\": 32}}}}"
            )
        });
        check(&prompts, 32, &text, &DatasetOptions::default())?;
    }

    #[test]
    fn weka_prompts_share_only_within_their_session(prompts in recorded(64, false), nested: bool) {
        let request = |number: usize, prompt: &Recorded| {
            format!("{{\"t\": {number}, \"in\": {}, \"out\": {number}, \"hash_ids\": {:?}}}", prompt.tokens, prompt.ids)
        };
        let session = |scope: usize| {
            let requests = (1..).zip(&prompts).filter(|(_, prompt)| prompt.scope == scope);
            let entry = |(number, prompt): (usize, &Recorded)| match nested && number % 2 == 0 {
                true => format!("{{\"t\": {number}, \"type\": \"subagent\", \"requests\": [{}]}}", request(number, prompt)),
                false => request(number, prompt),
            };
            let requests: Vec<String> = requests.map(entry).collect();
            format!("{{\"id\": \"{scope}\", \"block_size\": 64, \"requests\": [{}]}}\n", requests.join(", "))
        };
        let text: String = (0..3).map(session).collect();
        check(&prompts, 64, &text, &DatasetOptions::default())?;
    }

    #[test]
    fn tracelab_prompts_share_their_recorded_prefixes(
        rounds in proptest::collection::vec((0..3_usize, 1..200_u64, 0..300_u64, 1..40_u64), 1..15),
    ) {
        // Tokens as they are recorded: what the round before has, up to the prefix, then new ones.
        let mut texts: Vec<Vec<(usize, u64)>> = vec![Vec::new(); 3];
        let mut expected: Vec<Vec<(usize, u64)>> = Vec::new();
        let mut inputs = [0; 3];
        let mut text = String::new();
        for (number, (session, input, prefix, output)) in (1..).zip(rounds) {
            let recorded = prefix.min(input);
            let before = texts[session].len() as u64;
            // A prompt that grew continues the whole prompt before.
            let known = if input >= inputs[session] { recorded.min(before).max(inputs[session]) } else { recorded.min(before) };
            let mut tokens = texts[session][..known as usize].to_vec();
            tokens.extend((known..input).map(|at| (number, at)));
            expected.push(tokens.clone());
            tokens.extend((0..output).map(|at| (number, input + at)));
            texts[session] = tokens;
            inputs[session] = input;
            let event = format!("{{\"event_type\": \"user_message\", \"timestamp\": {number}}}");
            text += &format!(
                "{{\"session_id\": \"{session}\", \"round_index\": {number}, \"input_tokens_total\": {input}, \
                 \"prefix_tokens\": {recorded}, \"output_tokens\": {output}, \"timing_events\": [{event}]}}\n"
            );
        }
        let dataset = read(text.as_bytes(), "t", &DatasetOptions::default()).expect("a trace");
        let turns = dataset.conversations.iter().flat_map(|conversation| &conversation.turns);
        let mut made: Vec<(Option<Duration>, Vec<TextSpan>)> = turns
            .map(|turn| match &turn.content {
                TurnContent::Made(spans) => (turn.at, spans.iter().collect()),
                other => panic!("{other:?}"),
            })
            .collect();
        made.sort_by_key(|(at, _)| *at);
        prop_assert_eq!(made.len(), expected.len());
        for ((_, a), a_tokens) in made.iter().zip(&expected) {
            for ((_, b), b_tokens) in made.iter().zip(&expected) {
                let common = a_tokens.iter().zip(b_tokens).take_while(|(a, b)| a == b).count() as u64;
                prop_assert_eq!(shared(a, b), common, "{}", text);
            }
        }
    }
}

#[test]
fn content_hash_is_the_same_text_after_any_prefix() {
    let text = "{\"chat_id\": 1, \"output_length\": 1, \"input_length\": 32, \"hash_ids\": [1, 7]}\n\
        {\"chat_id\": 2, \"output_length\": 2, \"input_length\": 32, \"hash_ids\": [2, 7]}\n";
    let made = prompts(text, &DatasetOptions::default());
    assert_eq!(made[0][1], made[1][1]);
    assert_ne!(made[0][0], made[1][0]);
}

#[test]
fn burstgpt_prompts_share_nothing() {
    let text = "Timestamp,Model,Request tokens,Response tokens\n1,m,50,1\n2,m,50,2\n";
    let made = prompts(text, &DatasetOptions::default());
    assert_eq!(shared(&made[0], &made[1]), 0);
}
