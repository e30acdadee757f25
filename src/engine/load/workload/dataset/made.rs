//! Sample datasets generated from a seed: English-like words in every supported format.

use std::io::{self, Write};

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Exp1};
use serde_json::{Value, json};

use crate::workload::dataset::DatasetFormat;
use crate::{Distribution, Seed};

/// Tokens per block in the traces published by Mooncake.
const BLOCK_TOKENS: u32 = 512;

/// Format of a sample dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleFormat {
    /// A dataset file format.
    File(DatasetFormat),
    /// A trace with sessions, in which rows contain only new messages.
    Sessions,
}

/// Parameters for a sample dataset.
#[derive(Clone, Debug)]
pub struct SampleSpec {
    pub format: SampleFormat,
    /// Number of conversations, or number of requests in formats without conversations.
    pub conversations: u32,
    pub turns: Distribution,
    pub question: Distribution,
    pub answer: Distribution,
    /// Words per long context (LongBench, LooGLE), and per system prompt if `groups` is not zero.
    pub context: Distribution,
    /// Number of shared system prompts, or of shared prompt prefixes in a trace.
    pub groups: u32,
    /// Conversations per second in a trace.
    pub rate: f64,
    /// Seed for all random choices.
    pub seed: Seed,
}

/// Upper bound on the length of a text, required for unbounded distributions.
const LENGTH_MAX: u32 = 1 << 20;

const WORDS: &str = "time year people way day man thing woman life child world school state family student group country problem hand \
    part place case week company system program question work government number night point home water room mother area money story \
    fact month lot right study book eye job word business issue side kind head house service friend father power hour game line end \
    member law car city community name president team minute idea kid body information back parent face others level office door \
    health person art war history party result change morning reason research girl guy moment air teacher force education the of and \
    to in is you that it he was for on are as with his they at be this have from or one had by but not what all were we when your can \
    said there use an each which she do how their if will up other about out many then them these so some her would make like him \
    into has look two more write go see no could than first been call who its now find long down did get come made may";

impl SampleSpec {
    /// Writes the dataset to `to`.
    ///
    /// # Errors
    /// Writing to `to` fails.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut arrivals = self.seed.generator("sample-arrivals", 0);
        let (open, between, close) = match self.format {
            SampleFormat::File(DatasetFormat::ShareGpt) => ("[\n", ",\n", "\n]\n"),
            SampleFormat::File(DatasetFormat::Agentic) => {
                ("{\"metadata\": {\"source\": \"made up\"}, \"conversations\": [\n", ",\n", "\n]}\n")
            }
            _ => ("", "\n", "\n"),
        };
        write!(to, "{open}")?;
        let mut ms = 0.0;
        for number in 0..self.conversations {
            if number > 0 {
                write!(to, "{between}")?;
            }
            let mut made = SampleBuilder {
                of: self,
                words: &words,
                rng: self.seed.generator("sample", u64::from(number)),
                number,
                ms: ms as u64,
            };
            let texts: Vec<String> = made.rows().iter().map(Value::to_string).collect();
            write!(to, "{}", texts.join(between))?;
            let gap: f64 = Exp1.sample(&mut arrivals);
            ms += gap * 1e3 / self.rate.max(1e-3);
        }
        write!(to, "{close}")
    }
}

struct SampleBuilder<'a> {
    of: &'a SampleSpec,
    words: &'a [&'a str],
    rng: ChaCha8Rng,
    number: u32,
    ms: u64,
}

impl SampleBuilder<'_> {
    fn rows(&mut self) -> Vec<Value> {
        let id = format!("made-{}", self.number);
        match self.of.format {
            SampleFormat::Sessions => self.session(&id),
            SampleFormat::File(format) => vec![match format {
                DatasetFormat::ShareGpt => {
                    json!({"id": id, "conversations": self.dialogue("from", ["human", "gpt"], "value")})
                }
                DatasetFormat::Custom => {
                    json!({"id": id, "conversations": self.dialogue("role", ["user", "assistant"], "content")})
                }
                DatasetFormat::UltraChat => {
                    let texts = self.turns().into_iter().flat_map(|(question, answer)| [question, answer]);
                    json!({"id": id, "data": texts.collect::<Vec<_>>()})
                }
                DatasetFormat::OpenAi => {
                    let mut messages = self.system();
                    let turns = self.turns();
                    let last = turns.len() - 1;
                    let mut tokens = 1;
                    for (at, (question, answer)) in turns.into_iter().enumerate() {
                        messages.push(json!({"role": "user", "content": question}));
                        if at == last {
                            tokens = answer.split(' ').count();
                        } else {
                            messages.push(json!({"role": "assistant", "content": answer}));
                        }
                    }
                    json!({"messages": messages, "max_tokens": tokens})
                }
                DatasetFormat::Agentic => {
                    let mut messages = self.system();
                    let turn = |(question, _)| {
                        messages.push(json!({"role": "user", "content": question}));
                        json!({"messages": std::mem::take(&mut messages)})
                    };
                    self.turns().into_iter().map(turn).collect()
                }
                DatasetFormat::Mooncake => self.request(),
                DatasetFormat::SpeedBench => {
                    let turns: Vec<String> = self.turns().into_iter().map(|(question, _)| question).collect();
                    json!({"question_id": id, "category": "mixed", "turns": turns})
                }
                DatasetFormat::LongBench => {
                    let choice = |made: &mut Self| made.sentences(4);
                    let length = self.draw(self.of.context);
                    json!({"_id": id, "context": self.sentences(length), "question": self.question(), "choice_A": choice(self),
                        "choice_B": choice(self), "choice_C": choice(self), "choice_D": choice(self), "answer": "A"})
                }
                DatasetFormat::Loogle => {
                    let length = self.draw(self.of.context);
                    let input = self.sentences(length);
                    let pairs = self.turns().into_iter().map(|(question, answer)| json!({"Q": question, "A": answer}));
                    json!({"title": id, "input": input, "qa_pairs": pairs.collect::<Vec<_>>()})
                }
            }],
        }
    }

    /// Generates one session's trace rows.
    fn session(&mut self, id: &str) -> Vec<Value> {
        let mut messages = self.system();
        let mut rows = Vec::new();
        for (at, (question, answer)) in self.turns().into_iter().enumerate() {
            messages.push(json!({"role": "user", "content": question}));
            let tokens = answer.split(' ').count();
            let mut row = json!({"session_id": id, "message_mode": "delta", "messages": std::mem::take(&mut messages),
                "output_length": tokens});
            if at == 0 {
                row["timestamp"] = self.ms.into();
            } else {
                row["delay"] = self.rng.random_range(200..2_000).into();
            }
            rows.push(row);
        }
        rows
    }

    /// Generates a trace request from blocks that its group shares and blocks of its own.
    fn request(&mut self) -> Value {
        let input = self.draw(self.of.question).max(1);
        let blocks = input.div_ceil(BLOCK_TOKENS);
        let shared = if self.of.groups == 0 { 0 } else { blocks / 2 };
        let group = self.number % self.of.groups.max(1);
        // Block IDs of groups and of requests never collide.
        let own = |block| (u64::from(self.number) + 1) << 32 | u64::from(block);
        let ids: Vec<u64> = (0..blocks)
            .map(|block| if block < shared { u64::from(group) << 20 | u64::from(block) } else { own(block) })
            .collect();
        json!({"timestamp": self.ms, "input_length": input, "output_length": self.draw(self.of.answer), "hash_ids": ids})
    }

    fn dialogue(&mut self, by: &str, who: [&str; 2], what: &str) -> Vec<Value> {
        let mut messages = Vec::new();
        for message in self.system() {
            messages.push(json!({by: "system", what: message["content"]}));
        }
        for (question, answer) in self.turns() {
            messages.push(json!({by: who[0], what: question}));
            messages.push(json!({by: who[1], what: answer}));
        }
        messages
    }

    /// Returns the system prompt for the conversation's group.
    fn system(&mut self) -> Vec<Value> {
        if self.of.groups == 0 {
            return Vec::new();
        }
        let mut shared = self.of.seed.generator("sample-system", u64::from(self.number % self.of.groups));
        std::mem::swap(&mut self.rng, &mut shared);
        let length = self.draw(self.of.context);
        let text = self.sentences(length);
        std::mem::swap(&mut self.rng, &mut shared);
        vec![json!({"role": "system", "content": text})]
    }

    fn turns(&mut self) -> Vec<(String, String)> {
        let turns = self.draw(self.of.turns);
        (0..turns)
            .map(|_| {
                let question = self.question();
                let length = self.draw(self.of.answer);
                (question, self.sentences(length))
            })
            .collect()
    }

    fn question(&mut self) -> String {
        let length = self.draw(self.of.question);
        let mut text = self.sentences(length);
        text.pop();
        text.push('?');
        text
    }

    fn draw(&mut self, law: Distribution) -> u32 {
        law.draw_count(&mut self.rng, 1).min(LENGTH_MAX)
    }

    /// Generates `length` words, grouped into sentences.
    fn sentences(&mut self, length: u32) -> String {
        let mut text = String::with_capacity(length as usize * 6);
        let mut left = 0;
        for at in 0..length {
            let word = self.words[self.rng.random_range(0..self.words.len())];
            if left == 0 {
                left = self.rng.random_range(6..16);
                if at > 0 {
                    text.push_str(". ");
                }
                text.extend(word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)));
            } else {
                text.push(' ');
                text.push_str(word);
            }
            left -= 1;
        }
        text.push('.');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::dataset::{DatasetOptions, read};

    fn sample(format: SampleFormat, seed: u64) -> SampleSpec {
        let constant = Distribution::Constant;
        SampleSpec {
            format,
            conversations: 12,
            turns: Distribution::Uniform { low: 2.0, high: 4.0 },
            question: constant(1200.0),
            answer: constant(9.0),
            context: constant(300.0),
            groups: 3,
            rate: 5.0,
            seed: Seed(seed),
        }
    }

    fn text(format: SampleFormat, seed: u64) -> Vec<u8> {
        let mut text = Vec::new();
        sample(format, seed).write(&mut text).expect("writing to memory succeeds");
        text
    }

    #[test]
    fn every_format_is_read_back_and_depends_only_on_the_seed() {
        let formats = DatasetFormat::ALL.map(|format| (SampleFormat::File(format), format));
        for (made, format) in formats.into_iter().chain([(SampleFormat::Sessions, DatasetFormat::Mooncake)]) {
            let bytes = text(made, 5);
            assert_eq!(bytes, text(made, 5));
            assert_ne!(bytes, text(made, 6));
            let dataset = read(&bytes[..], "made", format, &DatasetOptions::default());
            let dataset = dataset.unwrap_or_else(|error| panic!("{made:?}: {error}"));
            assert_eq!((dataset.conversations.len(), dataset.skipped, dataset.left_out), (12, 0, 0), "{made:?}");
            let turns: Vec<usize> = dataset.conversations.iter().map(|conversation| conversation.turns.len()).collect();
            let single = matches!(
                made,
                SampleFormat::File(
                    DatasetFormat::OpenAi
                        | DatasetFormat::Mooncake
                        | DatasetFormat::LongBench
                        | DatasetFormat::SpeedBench
                )
            );
            assert!(
                turns.iter().all(|turns| if single { *turns == 1 } else { (2..=4).contains(turns) }),
                "{made:?}: {turns:?}"
            );
        }
    }

    #[test]
    fn requests_of_a_group_share_the_first_half_of_their_blocks() {
        let text = String::from_utf8(text(SampleFormat::File(DatasetFormat::Mooncake), 1)).expect("UTF-8");
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(rows[0]["hash_ids"][0], rows[3]["hash_ids"][0]);
        assert_ne!(rows[0]["hash_ids"][1], rows[3]["hash_ids"][1]);
        assert_ne!(rows[0]["hash_ids"][0], rows[1]["hash_ids"][0]);
    }
}
