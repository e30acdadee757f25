//! Agentic traces: a JSON object whose `conversations` are lists of turns that contain only new
//! messages.

use std::io::BufRead;

use crate::workload::dataset::gather::gather;
use crate::workload::dataset::openai::messages;
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout};
use crate::workload::{Conversation, PlannedTurn, TurnContent, json_text};

/// Default output length in tokens, the same as in SGLang's tool.
const OUTPUT: u32 = 220;

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let output = reading.output.unwrap_or(OUTPUT);
    let most = reading.max_turns.map_or(usize::MAX, |most| most as usize);
    let parse = |text: &str| {
        let mut turns = Vec::new();
        for (at, turn) in json_text::items(text)?.into_iter().enumerate() {
            let messages_text = json_text::members(turn)?.into_iter().rfind(|(name, _)| name == "messages");
            let parsed = messages_text.map_or(Ok(Vec::new()), |(_, text)| messages(text));
            let new = parsed.map_err(|error| error.in_turn(at))?;
            // Skip turns without messages.
            if !new.is_empty() && turns.len() < most {
                turns.push(PlannedTurn::new(TurnContent::Messages(new), output));
            }
        }
        Ok(turns)
    };
    let plan = |turns: Vec<PlannedTurn>| Ok((!turns.is_empty()).then_some(Conversation::new(turns)));
    gather(input, file, RowLayout::Member("conversations"), reading, parse, |_| true, plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::RowError;

    const TEXT: &str = r#"{"metadata": {"source": "made up"}, "conversations": [
        [{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}], "prompt_tokens": 7},
         {"messages": []}, {"messages": [{"role": "user", "content": "b"}]}],
        []
    ]}"#;

    #[test]
    fn turns_hold_new_messages_and_answers_default_to_220_tokens() {
        let dataset = read(TEXT.as_bytes(), "f", &DatasetOptions::default()).expect("a dataset");
        assert_eq!((dataset.conversations.len(), dataset.left_out), (1, 1));
        let turns = &dataset.conversations[0].turns;
        assert_eq!(turns.iter().map(|turn| (turn.max_tokens, turn.whole)).collect::<Vec<_>>(), [(220, false); 2]);
        let one = DatasetOptions { max_turns: Some(1), output: Some(5), ..DatasetOptions::default() };
        let dataset = read(TEXT.as_bytes(), "f", &one).expect("a dataset");
        assert_eq!((dataset.conversations[0].turns.len(), dataset.conversations[0].turns[0].max_tokens), (1, 5));
    }

    #[test]
    fn malformed_conversation_is_named_and_can_be_skipped() {
        let text = TEXT.replace("[]\n", "[{\"messages\": [{\"content\": 1}]}]\n");
        let error = read(text.as_bytes(), "a.json", &DatasetOptions::default()).expect_err("no role");
        let DatasetError::Row { bad, .. } = error else { panic!("{error}") };
        assert_eq!((bad.line, bad.reason), (4, RowError::NoRole.in_message(0).in_turn(0)));
        let dataset = read(text.as_bytes(), "f", &DatasetOptions { skip_bad: true, ..DatasetOptions::default() })
            .expect("the other");
        assert_eq!((dataset.conversations.len(), dataset.skipped), (1, 1));
    }
}
