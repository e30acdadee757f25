//! `mcctl bench dataset`: generates a small synthetic dataset.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::commands::bench::multi_turn::args::DatasetName;
use crate::commands::bench::multi_turn::{OpenMode, open};
use crate::commands::bench::number::{self, NumberError};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::engine::load::workload::dataset::{SampleFormat, SampleSpec};
use crate::engine::load::{Distribution, Seed};

/// A format to generate, with the same name as in `--dataset-name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleDataset {
    File(DatasetName),
    /// Also a mooncake file for `--dataset-name`.
    Sessions,
}

impl ValueEnum for SampleDataset {
    fn value_variants<'a>() -> &'a [SampleDataset] {
        use DatasetName::{AgenticTrace, Custom, Longbench, Loogle, Mooncake, Openai, Sharegpt, SpeedBench, Ultrachat};
        use SampleDataset::{File, Sessions};
        &[
            File(Sharegpt),
            File(Custom),
            File(Openai),
            File(Mooncake),
            Sessions,
            File(AgenticTrace),
            File(Longbench),
            File(Ultrachat),
            File(Loogle),
            File(SpeedBench),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let SampleDataset::File(name) = self else {
            let help = "Trace of sessions in aiperf format, with messages and delays";
            return Some(PossibleValue::new("sessions").help(help));
        };
        let value = name.to_possible_value()?;
        Some(match name {
            DatasetName::Sharegpt => value.help("Conversations as one JSON array"),
            DatasetName::Custom => value.help("Conversations, JSONL"),
            DatasetName::Openai => value.help("Chat requests, JSONL; requires --api chat"),
            DatasetName::Mooncake => value.help("Request trace in which prompts share blocks, identified by hash IDs"),
            DatasetName::AgenticTrace => {
                value.help("Agent conversations; each turn contains only the new messages; requires --api chat")
            }
            DatasetName::Longbench => value.help("Long contexts, each with one question and four choices"),
            DatasetName::Loogle => value.help("Long texts, each with several questions"),
            DatasetName::SpeedBench => value
                .help("Prompts by category, each with one or more turns; bench multi-turn sends only the first turn"),
            _ => value,
        })
    }
}

impl SampleDataset {
    fn format(self) -> SampleFormat {
        let format = match self {
            SampleDataset::File(name) => name.format(),
            SampleDataset::Sessions => None,
        };
        format.map_or(SampleFormat::Sessions, SampleFormat::File)
    }
}

/// Dataset generation.
#[derive(Debug, clap::Args)]
#[command(before_help = "format conversations turns question answer out")]
#[command(
    before_long_help = "mcctl bench dataset --format mooncake --conversations 100 --out trace.jsonl  # write a small Mooncake trace"
)]
#[command(
    after_help = "The same flags always generate the same file. To send it: 'mcctl bench multi-turn --dataset-name NAME \
    --dataset-path FILE'; for the sessions format, NAME is mooncake. openai and agentic-trace require --api chat; the others work with \
    any API. No format needs a tokenizer. Without one, output lengths are estimated from word counts (mooncake files contain the \
    lengths); with --tokenizer FILE, tokens are counted.\n\
    Exit codes:\n\
    \x20 0   the dataset was written\n\
    \x20 2   invalid command line, or the file already exists\n\
    \x20 4   the file cannot be written"
)]
pub struct Args {
    /// Dataset format
    #[arg(long, value_enum, default_value = "sharegpt", value_name = "NAME")]
    format: SampleDataset,
    /// Number of conversations; in formats without conversations, number of requests
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    conversations: u32,
    /// Turns per conversation: a number, uniform:LOW,HIGH, exponential:MEAN or lognormal:MEAN,CV
    #[arg(long, default_value = "uniform:2,6", value_name = "N")]
    turns: Distribution,
    /// Question length in words [default: lognormal:60,0.8]; mooncake: prompt length in tokens
    /// [default: lognormal:6000,1]
    #[arg(long, value_name = "WORDS")]
    question: Option<Distribution>,
    /// Answer length in words (mooncake: tokens)
    #[arg(long, default_value = "lognormal:120,0.8", value_name = "WORDS")]
    answer: Distribution,
    /// Length of a long context or a system prompt, in words
    #[arg(long, default_value = "400", value_name = "WORDS")]
    context: Distribution,
    /// Number of shared system prompts (mooncake: shared prefixes); 0 means none
    #[arg(long, default_value_t = 0, value_name = "N")]
    groups: u32,
    /// mooncake, sessions: arrival rate in conversations per second
    #[arg(long, default_value_t = 2.0, value_name = "RATE", value_parser = rate)]
    rate: f64,
    /// Seed for all random choices
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Output file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    overwrite: bool,
}

fn rate(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a rate", "conversations per second from 0.001 to 1000000", |rate| {
        (0.001..=1e6).contains(&rate)
    })
}

/// Maximum mean length in words or tokens.
const WORDS_MAX: f64 = 1e6;

impl Args {
    /// Generates the dataset.
    ///
    /// # Errors
    /// A length is too large, or the file cannot be written.
    pub fn run(self) -> Outcome {
        let tokens = self.format == SampleDataset::File(DatasetName::Mooncake);
        let default = if tokens {
            Distribution::LogNormal { mean: 6000.0, cv: 1.0 }
        } else {
            Distribution::LogNormal { mean: 60.0, cv: 0.8 }
        };
        let question = self.question.unwrap_or(default);
        let long = [self.turns, question, self.answer, self.context].into_iter().find(|law| law.mean() > WORDS_MAX);
        if let Some(long) = long {
            return Err(Failure::usage(format!("the mean of '{long}' exceeds {WORDS_MAX}")));
        }
        let sample = SampleSpec {
            format: self.format.format(),
            conversations: self.conversations,
            turns: self.turns,
            question,
            answer: self.answer,
            context: self.context,
            groups: self.groups,
            rate: self.rate,
            seed: Seed(self.seed),
        };
        let write = |to: &mut dyn Write| {
            let mut to = BufWriter::new(to);
            sample.write(&mut to).and_then(|()| to.flush())
        };
        let written = match &self.out {
            Some(path) => {
                let mode = if self.overwrite { OpenMode::Overwrite } else { OpenMode::New };
                write(&mut open(path, mode)?)
            }
            None => write(&mut io::stdout().lock()),
        };
        match written {
            Ok(()) => Ok(Exit::Done),
            // The process reading stdout closed the pipe because it does not need the rest of the
            // output.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.out.is_none() => Ok(Exit::Done),
            Err(error) => {
                let out = self.out.as_ref().map_or_else(|| "stdout".to_owned(), |path| path.display().to_string());
                Err(Failure::host(format!("cannot write {out}"))
                    .found(error.to_string())
                    .next("choose a file in a writable directory with enough space"))
            }
        }
    }
}
