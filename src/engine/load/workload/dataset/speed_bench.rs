//! SPEED-Bench: JSONL of `turns` with a `category`; the first turn is a request.

use std::io::BufRead;

use serde::Deserialize;

use crate::engine::load::workload::dataset::gather::gather;
use crate::engine::load::workload::dataset::{Dataset, DatasetError, Layout, Reading};
use crate::engine::load::workload::{Conversation, Planned, Says};

/// Tokens of an answer where the command line does not say, as in SGLang's tool.
const OUTPUT: u32 = 512;

#[derive(Deserialize)]
struct Line {
    category: Option<String>,
    turns: Vec<String>,
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &Reading) -> Result<Dataset, DatasetError> {
    let output = reading.output.unwrap_or(OUTPUT);
    let parse = |text: &str| serde_json::from_str::<Line>(text).map_err(|error| error.to_string());
    let plan = |line: Line| {
        let other = reading.category.is_some() && reading.category != line.category;
        let Some(question) = line.turns.into_iter().next().filter(|_| !other) else { return Ok(None) };
        let prompt = reading.prompt(question)?;
        let turns = vec![Planned::new(Says::Text(prompt.into()), output)];
        Ok(Some(Conversation { turns, routing_key: None }))
    };
    gather(input, file, Layout::Lines, reading, parse, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_turn_of_each_row_of_a_category_is_asked() {
        let text = "{\"category\": \"mixed\", \"turns\": [\"a\", \"b\"]}\n{\"category\": \"low_entropy\", \"turns\": [\"c\"]}\n\
                    {\"category\": \"mixed\", \"turns\": []}\n";
        let read = |category: Option<&str>| {
            let reading = Reading { category: category.map(str::to_owned), ..Reading::default() };
            read(text.as_bytes(), "f", &reading).expect("a dataset")
        };
        assert_eq!((read(None).conversations.len(), read(None).left_out), (2, 1));
        let mixed = read(Some("mixed")).conversations;
        assert_eq!((mixed.len(), &mixed[0].turns[..]), (1, &[Planned::new(Says::Text("a".into()), 512)][..]));
    }
}
