//! Long contexts: LongBench v2 (one question with four choices) and LooGLE (several questions about
//! the same text).

use std::io::BufRead;

use serde::Deserialize;

use crate::workload::dataset::gather::gather;
use crate::workload::dataset::sharegpt::{Speaker, read_dialogues};
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout};
use crate::workload::{Conversation, PlannedTurn, TurnContent};

/// Default output length in tokens, the same as in SGLang's tool: a letter and a few words.
const OUTPUT: u32 = 10;

#[derive(Deserialize)]
#[expect(non_snake_case, reason = "member names of the file format")]
struct LongBenchRow {
    context: String,
    question: String,
    choice_A: String,
    choice_B: String,
    choice_C: String,
    choice_D: String,
}

impl LongBenchRow {
    fn prompt(&self) -> String {
        let mut prompt = format!("{}\n\nQuestion: {}\n", self.context, self.question);
        let choices = [&self.choice_A, &self.choice_B, &self.choice_C, &self.choice_D];
        for (letter, choice) in ["A", "B", "C", "D"].into_iter().zip(choices) {
            prompt.extend([letter, ". ", choice.as_str(), "\n"]);
        }
        prompt.push_str("Answer:");
        prompt
    }
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let output = reading.output.unwrap_or(OUTPUT);
    let parse = |text: &str| Ok(serde_json::from_str::<LongBenchRow>(text)?);
    let plan = |line: LongBenchRow| {
        let prompt = line.prompt();
        if let Some(most) = reading.context
            && reading.tokens(&prompt, true)?.saturating_add(output) > most
        {
            return Ok(None);
        }
        let turns = vec![PlannedTurn::new(TurnContent::Text(prompt.into()), output)];
        Ok(Some(Conversation::new(turns)))
    };
    let mut dataset = gather(input, file, RowLayout::ArrayOrLines, reading, parse, |_| true, plan)?;
    dataset.estimated = reading.context.is_some() && reading.tokenizer.is_none();
    Ok(dataset)
}

#[derive(Deserialize)]
struct LoogleRow {
    input: String,
    qa_pairs: Vec<LoogleQuestion>,
}

#[derive(Deserialize)]
struct LoogleQuestion {
    #[serde(alias = "Q")]
    question: String,
    #[serde(alias = "A")]
    answer: String,
}

/// Reads rows in which the first question follows the long text, and later questions do not repeat
/// it.
pub(super) fn read_loogle(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let parse = |text: &str| {
        let line: LoogleRow = serde_json::from_str(text)?;
        let mut dialogue = Vec::new();
        for (at, LoogleQuestion { question, answer }) in line.qa_pairs.into_iter().enumerate() {
            let asked = if at == 0 { format!("{}\n\n{question}", line.input) } else { question };
            dialogue.extend([(Speaker::User, asked), (Speaker::Assistant, answer)]);
        }
        Ok(dialogue)
    };
    read_dialogues(input, file, RowLayout::ArrayOrLines, reading, parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_stands_between_context_and_choices() {
        let text = r#"{"context": "Long.", "question": "Why?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "A"}"#;
        let dataset = read(text.as_bytes(), "f", &DatasetOptions::default()).expect("a dataset");
        let turn = &dataset.conversations[0].turns[0];
        assert_eq!(turn.content, TurnContent::Text("Long.\n\nQuestion: Why?\nA. a\nB. b\nC. c\nD. d\nAnswer:".into()));
        assert_eq!(turn.max_tokens, 10);
        let error = read("{\"context\": \"x\"}".as_bytes(), "f", &DatasetOptions::default()).expect_err("no question");
        assert!(error.to_string().starts_with("f:1: missing field `question`"), "{error}");
        let short = DatasetOptions { context: Some(12), ..DatasetOptions::default() };
        assert_eq!(read(text.as_bytes(), "f", &short).expect("read").left_out, 1);
    }

    #[test]
    fn loogle_asks_several_questions_about_one_text() {
        let text = r#"{"input": "Text.", "title": "t", "qa_pairs": [{"Q": "one", "A": "x y"}, {"question": "two", "answer": "z"}]}"#;
        let dataset = read_loogle(text.as_bytes(), "f", &DatasetOptions::default()).expect("a dataset");
        let turns = &dataset.conversations[0].turns;
        assert_eq!((&turns[0].content, turns.len()), (&TurnContent::Text("Text.\n\none".into()), 2));
    }
}
