//! Which dataset, if the conversations are not made up from lengths alone. The names are those of SGLang's `bench_serving`.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;

use crate::commands::bench::multi_turn::args::{Api, Chosen};
use crate::commands::error::Failure;
use crate::commands::input;
use crate::engine::load::workload::dataset::{
    self, Corpus, Dataset, Format, Groups, RandomIds, Reading, SharedPrefix, random_ids, random_texts, shared_prefix,
};
use crate::engine::load::workload::{Conversation, Form, Played, Says, Speech, Tokenizer};
use crate::engine::load::{Ready, Rules, Seed};

/// The most bytes of a tokenizer.
const TOKENIZER_BYTES_MAX: u64 = 1 << 28;
/// Conversations of a dataset that has no end of its own, or a very far one, as in SGLang's tool.
const PROMPTS: u32 = 1000;

/// Where conversations come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// A JSON array of conversations, all of their turns
    Sharegpt,
    /// JSONL of conversations with content or value
    Custom,
    /// JSONL of chat requests, each sent as it is
    Openai,
    /// Texts of a ShareGPT file, repeated or cut to length
    Random,
    /// Runs of token ids
    RandomIds,
    /// Groups of conversations with one system prompt each
    GeneratedSharedPrefix,
    /// A trace: equal hash ids are equal blocks, at the recorded times; aiperf's rows, too
    Mooncake,
    /// JSON of conversations whose turns hold what is new
    AgenticTrace,
    /// JSONL of long contexts with a question
    #[value(name = "longbench_v2", alias = "longbench")]
    Longbench,
    /// JSONL of texts said in turn
    Ultrachat,
    /// JSONL of long texts with several questions
    Loogle,
}

impl Name {
    /// The format of its file, where the file is played as it is.
    fn format(self) -> Option<Format> {
        Some(match self {
            Name::Sharegpt => Format::ShareGpt,
            Name::Custom => Format::Custom,
            Name::Openai => Format::OpenAi,
            Name::Mooncake => Format::Mooncake,
            Name::AgenticTrace => Format::Agentic,
            Name::Longbench => Format::LongBench,
            Name::Ultrachat => Format::UltraChat,
            Name::Loogle => Format::Loogle,
            Name::Random | Name::RandomIds | Name::GeneratedSharedPrefix => return None,
        })
    }
}

/// How conversations of generated shared prefixes are dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dealt {
    /// As many to each group
    Uniform,
    /// Most to the first
    Zipf,
}

/// The dataset.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Dataset")]
pub struct DatasetArgs {
    /// Conversations of a dataset instead of made-up ones
    #[arg(long, value_enum, value_name = "NAME")]
    pub dataset_name: Option<Name>,
    /// Its file. Without --dataset-name: a ShareGPT file from which made-up conversations take their words
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Conversations of it; 0: all [default: all of a trace, else 1000]
    #[arg(long, alias = "num-conversations", value_name = "N", value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    pub num_prompts: Option<u32>,
    /// Pass over so many of its conversations
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub dataset_offset: u32,
    /// In random order; where not all are taken, any of them
    #[arg(long)]
    pub shuffle: bool,
    /// In the order of the file, even with --first-turn-only
    #[arg(long, conflicts_with = "shuffle")]
    pub disable_shuffle: bool,
    /// Pass over malformed rows
    #[arg(long)]
    pub skip_bad: bool,
    /// Only first questions, chosen as bench_serving does: shuffled, and too short ones left out
    #[arg(long)]
    pub first_turn_only: bool,
    /// Turns of a conversation of it, at most
    #[arg(long, alias = "agentic-max-turns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: Option<u32>,
    /// Tokens of every answer, whatever the dataset says
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub sharegpt_output_len: Option<u32>,
    /// Leave out what has more tokens than this, and end conversations there
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub sharegpt_context_len: Option<u32>,
    /// tokenizer.json, or the folder that it is in: lengths are counted with it, and made-up texts have the lengths asked for
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Send token ids (generate and completions)
    #[arg(long)]
    pub tokenize_prompt: bool,
    /// random: tokens of a prompt
    #[arg(long, alias = "random-input", default_value_t = 1024, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub random_input_len: u32,
    /// random: tokens of an answer
    #[arg(long, alias = "random-output", default_value_t = 1024, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub random_output_len: u32,
    /// random: lengths are from this part of them up to all of it
    #[arg(long, alias = "random-range", default_value_t = 0.0, value_name = "RATIO", value_parser = ratio)]
    pub random_range_ratio: f64,
    /// generated-shared-prefix: system prompts
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gsp_num_groups: u32,
    /// Conversations for each
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gsp_prompts_per_group: u32,
    /// Tokens of a system prompt
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(0..=i64::from(dataset::TOKENS_MAX)))]
    pub gsp_system_prompt_len: u32,
    /// Tokens of a question
    #[arg(long, default_value_t = 128, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub gsp_question_len: u32,
    /// Tokens of an answer
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub gsp_output_len: u32,
    /// Lengths are from this part of them up to all of it
    #[arg(long, default_value_t = 1.0, value_name = "RATIO", value_parser = ratio)]
    pub gsp_range_ratio: f64,
    /// Turns
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub gsp_num_turns: u32,
    /// Group by group
    #[arg(long)]
    pub gsp_ordered: bool,
    /// Send the header X-SMG-Routing-Key, one word per group
    #[arg(long)]
    pub gsp_send_routing_key: bool,
    /// How conversations are dealt out to groups
    #[arg(long, value_enum, default_value = "uniform")]
    pub gsp_group_distribution: Dealt,
    /// The exponent of zipf
    #[arg(long, value_name = "ALPHA", value_parser = positive)]
    pub gsp_zipf_alpha: Option<f64>,
    /// Lengths are never counted: taken, since bench_serving has it
    #[arg(long, hide = true)]
    pub gsp_fast_prepare: bool,
    /// mooncake: tokens of a block
    #[arg(long, default_value_t = dataset::BLOCK_TOKENS, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub block_size: u32,
    /// mooncake: recorded times pass so many times as fast
    #[arg(long, alias = "speedup", default_value_t = 1.0, value_name = "FACTOR", value_parser = positive)]
    pub speed_up: f64,
    /// mooncake: recorded times pass so many times as slowly
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = positive, conflicts_with = "speed_up")]
    pub mooncake_slowdown_factor: f64,
    /// mooncake: send at --request-rate, not at the recorded times
    #[arg(long)]
    pub ignore_trace_timestamps: bool,
    /// That is so anyway: taken, since bench_serving has it
    #[arg(long, hide = true, conflicts_with = "ignore_trace_timestamps")]
    pub use_trace_timestamps: bool,
    /// Which trace to fetch: taken, since bench_serving has it; only the file of --dataset-path is read
    #[arg(long, hide = true, value_name = "NAME")]
    pub mooncake_workload: Option<String>,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| format!("'{text}' is no ratio: write a number from 0 to 1"))
}

fn positive(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1e-6..=1e6).contains(factor));
    factor.ok_or_else(|| format!("'{text}' is no factor: write a number from 0.000001 to 1000000"))
}

impl DatasetArgs {
    /// `rules`, but with conversations in the order of the dataset where that is asked for.
    pub fn rules(&self, rules: Rules) -> Rules {
        let ordered = self.gsp_ordered && self.dataset_name == Some(Name::GeneratedSharedPrefix);
        if ordered { Rules { ready: Ready::Fifo, ..rules } } else { rules }
    }

    /// The conversations of dataset `name`.
    ///
    /// # Errors
    /// There is none, or flags contradict each other.
    pub(super) fn chosen(
        &self,
        name: Name,
        api: Api,
        seed: Seed,
        vocabulary: u32,
        model_path: Option<&str>,
    ) -> Result<Chosen, Failure> {
        let tokenizer = self.tokenizer(model_path)?;
        let vocabulary = tokenizer.as_ref().map_or(vocabulary, |tokenizer| tokenizer.vocabulary());
        let needs = |what: &str| {
            Failure::usage(format!("{what} needs a tokenizer")).next("name its file or folder with --tokenizer")
        };
        let mut notes = Vec::new();
        let shape = RandomIds {
            requests: self.num_prompts.unwrap_or(PROMPTS),
            input: self.random_input_len,
            output: self.random_output_len,
            range_ratio: self.random_range_ratio,
            vocabulary,
        };
        let conversations = match name {
            Name::RandomIds if tokenizer.is_none() && api != Api::Generate && !self.tokenize_prompt => {
                return Err(needs("a text of token ids").next("name its file with --tokenizer, or use --api generate"));
            }
            Name::RandomIds => random_ids(&shape, seed),
            Name::Random => {
                let tokenizer = tokenizer.as_deref().ok_or_else(|| needs("--dataset-name random"))?;
                let corpus = self.corpus(tokenizer, seed, &mut notes)?;
                let made = random_texts(&shape, &corpus, tokenizer, seed);
                made.map_err(|error| Failure::usage("the tokenizer cannot say a text").found(error))?
            }
            Name::GeneratedSharedPrefix => shared_prefix(&self.shared_prefix()?, seed),
            _ => {
                let format = name.format().unwrap_or(Format::ShareGpt);
                let dataset = self.read(format, &self.reading(format, seed, tokenizer.clone()))?;
                self.note(format, &dataset, &mut notes);
                dataset.conversations
            }
        };
        if conversations.is_empty() {
            return Err(Failure::usage("this dataset has no conversations").next("ask for one at least"));
        }
        let turns = || conversations.iter().flat_map(|conversation| &conversation.turns);
        let is_made = turns().all(|turn| matches!(turn.says, Says::Made(_)));
        let form = self.form(name, api, is_made)?;
        if form == Form::Ids && tokenizer.is_none() && !is_made {
            return Err(needs("--tokenize-prompt"));
        }
        if api != Api::Chat && turns().any(|turn| turn.extra.contains("tools")) {
            return Err(Failure::usage("this dataset has tools, which only chat takes").next("use --api chat"));
        }
        let exact = form == Form::Ids || tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.words().is_some());
        if !exact && turns().any(|turn| matches!(turn.says, Says::Made(_))) {
            notes.push(
                "made-up texts have as many words as they should have tokens: their lengths are what the server counts \
                 (--tokenizer makes them exact)"
                    .to_owned(),
            );
        }
        let recorded = !self.ignore_trace_timestamps && has_times(&conversations);
        let speech = Speech { seed, vocabulary, tokenizer };
        Ok(Chosen::new(Box::new(Played::new(conversations, form, speech)), notes, recorded))
    }

    /// In which form prompts are sent; `is_made`: there is no text of anybody among them.
    fn form(&self, name: Name, api: Api, is_made: bool) -> Result<Form, Failure> {
        match api {
            Api::Chat if self.tokenize_prompt => {
                let failure = Failure::usage("chat takes no token ids");
                Err(failure.next("leave --tokenize-prompt out, or use --api generate"))
            }
            Api::Chat => Ok(Form::Chat),
            // The messages of these have roles and more, which a text has not.
            _ if matches!(name, Name::Openai | Name::AgenticTrace) => {
                Err(Failure::usage("this dataset is of chats").next("use --api chat"))
            }
            _ if self.tokenize_prompt => Ok(Form::Ids),
            // What is made up is exact as ids, and needs no tokenizer.
            Api::Generate if is_made => Ok(Form::Ids),
            _ => Ok(Form::Text),
        }
    }

    fn shared_prefix(&self) -> Result<SharedPrefix, Failure> {
        let distribution = match (self.gsp_group_distribution, self.gsp_zipf_alpha) {
            (Dealt::Uniform, None) => Groups::Uniform,
            (Dealt::Zipf, Some(alpha)) => Groups::Zipf(alpha),
            (Dealt::Zipf, None) => {
                return Err(
                    Failure::usage("--gsp-group-distribution zipf has no exponent").next("add --gsp-zipf-alpha")
                );
            }
            (Dealt::Uniform, Some(_)) => {
                return Err(Failure::usage("--gsp-zipf-alpha is for zipf").next("add --gsp-group-distribution zipf"));
            }
        };
        let made =
            u64::from(self.gsp_num_groups) * u64::from(self.gsp_prompts_per_group) * u64::from(self.gsp_num_turns);
        if made > 10_000_000 {
            return Err(Failure::usage(format!("{made} questions are more than 10000000")));
        }
        Ok(SharedPrefix {
            groups: self.gsp_num_groups,
            prompts_per_group: self.gsp_prompts_per_group,
            system: self.gsp_system_prompt_len,
            question: self.gsp_question_len,
            output: self.gsp_output_len,
            range_ratio: self.gsp_range_ratio,
            turns: self.gsp_num_turns,
            distribution,
            ordered: self.gsp_ordered,
            routing_key: self.gsp_send_routing_key,
        })
    }

    fn reading(&self, format: Format, seed: Seed, tokenizer: Option<Arc<Tokenizer>>) -> Reading {
        let all = if format == Format::Mooncake { 0 } else { PROMPTS };
        Reading {
            limit: self.num_prompts.unwrap_or(all) as usize,
            offset: self.dataset_offset as usize,
            shuffle: self.shuffle || self.first_turn_only && !self.disable_shuffle,
            seed,
            skip_bad: self.skip_bad,
            output: self.sharegpt_output_len,
            context: self.sharegpt_context_len,
            max_turns: self.max_turns,
            first_turn_only: self.first_turn_only,
            tokenizer,
            block_tokens: self.block_size,
            slowdown: self.mooncake_slowdown_factor / self.speed_up,
        }
    }

    fn path(&self) -> Result<&Path, Failure> {
        let path = self.dataset_path.as_deref().filter(|path| !path.as_os_str().is_empty());
        path.ok_or_else(|| {
            Failure::usage("this dataset is a file, and none is named")
                .next("name a local one with --dataset-path, or make a small one with 'mcctl bench dataset'")
        })
    }

    fn read(&self, format: Format, reading: &Reading) -> Result<Dataset, Failure> {
        let path = self.path()?;
        let named = path.display().to_string();
        let failure = |found: String| {
            Failure::usage(format!("{named} is no dataset that can be played"))
                .tried(format!("to read it as {format}"))
                .found(found)
        };
        let file = input::open(path).map_err(|error| {
            failure(error.to_string()).next("name a file on this machine; 'mcctl bench dataset' makes a small one")
        })?;
        dataset::read(BufReader::with_capacity(1 << 18, file), &named, format, reading).map_err(|error| {
            let next = match &error {
                dataset::DatasetError::Row { .. } => {
                    "mend it, pass over malformed rows with --skip-bad, or name another format with --dataset-name"
                        .to_owned()
                }
                dataset::DatasetError::AllBad { .. } => {
                    "name the format that it has with --dataset-name, or another file".to_owned()
                }
                dataset::DatasetError::Offset { conversations, .. } => {
                    format!("give --dataset-offset below {conversations}")
                }
                dataset::DatasetError::Empty { .. } => "name another file, or other lengths".to_owned(),
                _ => "name a file that can be read".to_owned(),
            };
            failure(error.to_string()).next(next)
        })
    }

    /// What has to be known of what was read.
    fn note(&self, format: Format, dataset: &Dataset, notes: &mut Vec<String>) {
        if dataset.skipped > 0 {
            let first = dataset.first_bad.as_ref().map(|bad| format!("line {}: {}", bad.line, bad.reason));
            notes.push(format!(
                "{} malformed rows were passed over; the first: {}",
                dataset.skipped,
                first.unwrap_or_default()
            ));
        }
        if dataset.left_out > 0 {
            notes.push(format!("{} rows were left out by their lengths", dataset.left_out));
        }
        if dataset.estimated {
            notes.push(format!(
                "lengths of {format} are estimated as {} tokens a word (--tokenizer counts them)",
                dataset::TOKENS_PER_WORD
            ));
        }
    }

    /// The first questions of the ShareGPT file, to cut prompts from.
    pub(super) fn corpus(&self, tokenizer: &Tokenizer, seed: Seed, notes: &mut Vec<String>) -> Result<Corpus, Failure> {
        let limit = self.num_prompts.unwrap_or(PROMPTS).max(PROMPTS) as usize;
        let reading = Reading {
            limit,
            first_turn_only: true,
            output: Some(2),
            max_turns: None,
            context: None,
            shuffle: !self.disable_shuffle,
            ..self.reading(Format::ShareGpt, seed, None)
        };
        let dataset = self.read(Format::ShareGpt, &reading)?;
        if dataset.skipped > 0 {
            notes.push(format!("{} malformed rows were passed over", dataset.skipped));
        }
        let corpus = Corpus::of(&dataset.conversations, tokenizer);
        corpus.map_err(|error| Failure::usage("the tokenizer cannot say a text").found(error))
    }

    /// The tokenizer of `--tokenizer`; of `--model-path` where that is a folder or file with one.
    pub(super) fn tokenizer(&self, model_path: Option<&str>) -> Result<Option<Arc<Tokenizer>>, Failure> {
        let model = model_path.map(Path::new).filter(|path| path.is_file() || path.join("tokenizer.json").is_file());
        let Some(path) = self.tokenizer.as_deref().or(model) else { return Ok(None) };
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let failure = |found: String| {
            Failure::usage(format!("{} is no tokenizer", file.display()))
                .found(found)
                .next("name a tokenizer.json of Hugging Face's kind, or the folder that it is in")
        };
        let mut bytes = Vec::new();
        let opened = input::open(&file).map_err(|error| failure(error.to_string()))?;
        let read = std::io::Read::read_to_end(&mut std::io::Read::take(opened, TOKENIZER_BYTES_MAX + 1), &mut bytes);
        read.map_err(|error| failure(error.to_string()))?;
        if bytes.len() as u64 > TOKENIZER_BYTES_MAX {
            return Err(failure(format!("it is larger than {} MiB", TOKENIZER_BYTES_MAX >> 20)));
        }
        Tokenizer::from_bytes(&bytes).map(|tokenizer| Some(Arc::new(tokenizer))).map_err(failure)
    }
}

fn has_times(conversations: &[Conversation]) -> bool {
    conversations.iter().flat_map(|conversation| &conversation.turns).any(|turn| turn.at.is_some())
}
