//! Agentic traces: one JSON object whose `conversations` are lists of turns that hold only what is new.

use std::io::BufRead;

use crate::engine::load::workload::dataset::gather::gather;
use crate::engine::load::workload::dataset::openai::messages;
use crate::engine::load::workload::dataset::{Dataset, DatasetError, Layout, Reading};
use crate::engine::load::workload::{Conversation, Planned, Says, json_text};

/// Tokens of an answer where the command line does not say, as in SGLang's tool.
const OUTPUT: u32 = 220;

pub(super) fn read(input: impl BufRead, file: &str, reading: &Reading) -> Result<Dataset, DatasetError> {
    let output = reading.output.unwrap_or(OUTPUT);
    let most = reading.max_turns.map_or(usize::MAX, |most| most as usize);
    let parse = |text: &str| {
        let mut turns = Vec::new();
        for (at, turn) in json_text::items(text)?.into_iter().enumerate() {
            let said = json_text::members(turn)?.into_iter().rfind(|(name, _)| name == "messages");
            let said = said.map_or(Ok(Vec::new()), |(_, text)| messages(text));
            let said = said.map_err(|error| format!("turn {}: {error}", at + 1))?;
            // A turn without messages is none.
            if !said.is_empty() && turns.len() < most {
                turns.push(Planned::new(Says::Messages(said), output));
            }
        }
        Ok(turns)
    };
    let plan = |turns: Vec<Planned>| Ok((!turns.is_empty()).then_some(Conversation { turns, routing_key: None }));
    gather(input, file, Layout::Member("conversations"), reading, parse, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"metadata": {"source": "made up"}, "conversations": [
        [{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}], "prompt_tokens": 7},
         {"messages": []}, {"messages": [{"role": "user", "content": "b"}]}],
        []
    ]}"#;

    #[test]
    fn turns_hold_what_is_new_and_answers_are_of_220_tokens() {
        let dataset = read(TEXT.as_bytes(), "f", &Reading::default()).expect("a dataset");
        assert_eq!((dataset.conversations.len(), dataset.left_out), (1, 1));
        let turns = &dataset.conversations[0].turns;
        assert_eq!(turns.iter().map(|turn| (turn.max_tokens, turn.whole)).collect::<Vec<_>>(), [(220, false); 2]);
        let one = Reading { max_turns: Some(1), output: Some(5), ..Reading::default() };
        let dataset = read(TEXT.as_bytes(), "f", &one).expect("a dataset");
        assert_eq!((dataset.conversations[0].turns.len(), dataset.conversations[0].turns[0].max_tokens), (1, 5));
    }

    #[test]
    fn a_malformed_conversation_is_named_and_can_be_skipped() {
        let text = TEXT.replace("[]\n", "[{\"messages\": [{\"content\": 1}]}]\n");
        let error = read(text.as_bytes(), "a.json", &Reading::default()).expect_err("no role");
        assert_eq!(error.to_string(), "a.json:4: turn 1: message 1: a message without a role");
        let dataset = read(text.as_bytes(), "f", &Reading { skip_bad: true, ..Reading::default() }).expect("the other");
        assert_eq!((dataset.conversations.len(), dataset.skipped), (1, 1));
    }
}
