//! `mcctl bench dataset`: a small dataset of made-up words, for those who have none.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::ValueEnum;

use crate::commands::bench::multi_turn::{OpenManner, open};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::engine::load::workload::dataset::{Format, Sample, SampleFormat};
use crate::engine::load::{Distribution, Seed};

/// The formats, by the names that `--dataset-name` has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Conversations, a JSON array
    Sharegpt,
    /// Conversations, JSONL
    Custom,
    /// Chat requests, JSONL; played with --api chat only
    Openai,
    /// A trace of requests that share blocks
    Mooncake,
    /// A trace of sessions (rows of aiperf's kind: messages, delays)
    Sessions,
    /// Conversations whose turns hold what is new; played with --api chat only
    AgenticTrace,
    /// Long contexts, each with a question and four choices
    #[value(name = "longbench_v2", alias = "longbench")]
    Longbench,
    /// Texts said in turn
    Ultrachat,
    /// Long texts, each with several questions
    Loogle,
    /// Questions with a category, of which the first is asked
    SpeedBench,
}

impl Name {
    fn format(self) -> SampleFormat {
        SampleFormat::File(match self {
            Name::Sharegpt => Format::ShareGpt,
            Name::Custom => Format::Custom,
            Name::Openai => Format::OpenAi,
            Name::Mooncake => Format::Mooncake,
            Name::Sessions => return SampleFormat::Sessions,
            Name::AgenticTrace => Format::Agentic,
            Name::Longbench => Format::LongBench,
            Name::Ultrachat => Format::UltraChat,
            Name::Loogle => Format::Loogle,
            Name::SpeedBench => Format::SpeedBench,
        })
    }
}

/// What to make.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The same flags give the same bytes. 'mcctl bench multi-turn --dataset-name NAME --dataset-path FILE' plays it \
    (sessions are read by mooncake). openai and agentic-trace are chats and need --api chat; the others are played over every route. No \
    format needs a tokenizer: without one the lengths of answers are estimated from their words (mooncake has lengths of its own), and with \
    --tokenizer FILE they are counted.\n\
    Exit codes: 0 written, 2 command line wrong, or the file is there already, 4 it cannot be written."
)]
pub struct Args {
    /// The format
    #[arg(long, value_enum, default_value = "sharegpt", value_name = "NAME")]
    format: Name,
    /// Conversations, or requests where the format knows nothing else
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    conversations: u32,
    /// Turns of each: a number, uniform:LOW,HIGH, exponential:MEAN or lognormal:MEAN,CV
    #[arg(long, default_value = "uniform:2,6", value_name = "N")]
    turns: Distribution,
    /// Words of a question (mooncake: tokens of a prompt [default: lognormal:6000,1])
    #[arg(long, value_name = "WORDS")]
    question: Option<Distribution>,
    /// Words of an answer (mooncake: tokens)
    #[arg(long, default_value = "lognormal:120,0.8", value_name = "WORDS")]
    answer: Distribution,
    /// Words of a long context, or of a system prompt
    #[arg(long, default_value = "400", value_name = "WORDS")]
    context: Distribution,
    /// So many system prompts are shared (mooncake: beginnings of prompts)
    #[arg(long, default_value_t = 0, value_name = "N")]
    groups: u32,
    /// mooncake, sessions: conversations per second
    #[arg(long, default_value_t = 2.0, value_name = "RATE", value_parser = rate)]
    rate: f64,
    /// All of it comes from this
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Where it is written [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write over a file that exists
    #[arg(long)]
    overwrite: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.001..=1e6).contains(rate));
    rate.ok_or_else(|| format!("'{text}' is no rate: write conversations per second, 0.001 to 1000000"))
}

/// The longest text that is made, in words.
const WORDS_MAX: f64 = 1e6;

impl Args {
    /// Make it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn run(self) -> Outcome {
        let tokens = matches!(self.format, Name::Mooncake);
        let usual = if tokens {
            Distribution::LogNormal { mean: 6000.0, cv: 1.0 }
        } else {
            Distribution::LogNormal { mean: 60.0, cv: 0.8 }
        };
        let question = self.question.unwrap_or(usual);
        let long = [self.turns, question, self.answer, self.context].into_iter().find(|law| law.mean() > WORDS_MAX);
        if let Some(long) = long {
            return Err(Failure::usage(format!("'{long}' is longer than {WORDS_MAX} on average")));
        }
        let sample = Sample {
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
                let manner = if self.overwrite { OpenManner::Over } else { OpenManner::New };
                write(&mut open(path, manner)?)
            }
            None => write(&mut io::stdout().lock()),
        };
        match written {
            Ok(()) => Ok(Exit::Done),
            // The reader has what it wants.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.out.is_none() => Ok(Exit::Done),
            Err(error) => {
                let out = self.out.as_ref().map_or_else(|| "stdout".to_owned(), |path| path.display().to_string());
                Err(Failure::host(format!("cannot write {out}"))
                    .found(error.to_string())
                    .next("name a file in a folder that can be written, with room for it"))
            }
        }
    }
}
