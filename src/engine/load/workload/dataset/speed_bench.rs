//! SPEED-Bench: JSONL rows with `turns` and a `category`. The first turn is the request.

use std::io::BufRead;

use serde::Deserialize;

use crate::workload::dataset::gather::gather;
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout};
use crate::workload::{Conversation, PlannedTurn, TurnContent};

/// Default output length in tokens, the same as in SGLang's tool.
const OUTPUT: u32 = 512;

#[derive(Deserialize)]
struct SpeedBenchRow {
    category: Option<String>,
    turns: Vec<String>,
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let output = reading.output.unwrap_or(OUTPUT);
    let parse = |text: &str| Ok(serde_json::from_str::<SpeedBenchRow>(text)?);
    let plan = |line: SpeedBenchRow| {
        let other = reading.category.is_some() && reading.category != line.category;
        let Some(question) = line.turns.into_iter().next().filter(|_| !other) else { return Ok(None) };
        let prompt = reading.prompt(question)?;
        let turns = vec![PlannedTurn::new(TurnContent::Text(prompt.into()), output)];
        Ok(Some(Conversation::new(turns)))
    };
    gather(input, file, RowLayout::Lines, reading, parse, |_| true, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_turn_of_each_row_of_a_category_is_used() {
        let text = "{\"category\": \"mixed\", \"turns\": [\"a\", \"b\"]}\n{\"category\": \"low_entropy\", \"turns\": [\"c\"]}\n\
                    {\"category\": \"mixed\", \"turns\": []}\n";
        let read = |category: Option<&str>| {
            let reading = DatasetOptions { category: category.map(str::to_owned), ..DatasetOptions::default() };
            read(text.as_bytes(), "f", &reading).expect("a dataset")
        };
        assert_eq!((read(None).conversations.len(), read(None).left_out), (2, 1));
        let mixed = read(Some("mixed")).conversations;
        assert_eq!(
            (mixed.len(), &mixed[0].turns[..]),
            (1, &[PlannedTurn::new(TurnContent::Text("a".into()), 512)][..])
        );
    }
}
