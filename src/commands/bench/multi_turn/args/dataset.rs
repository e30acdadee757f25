//! Which dataset, if the conversations are not made up from lengths alone. The names are those of SGLang's `bench_serving`.

use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;

use crate::commands::bench::multi_turn::args::{Api, Chosen, local};
use crate::commands::error::Failure;
use crate::commands::input;
use crate::engine::load::workload::dataset::{
    self, Corpus, Dataset, Format, Groups, RandomIds, Reading, SharedPrefix, random_ids, random_texts, random_words,
    shared_prefix,
};
use crate::engine::load::workload::{ChatTemplate, Conversation, Form, Played, Says, Speech, Tokenizer};
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
    /// JSONL of turns with a category, of which the first is asked
    SpeedBench,
    /// Images: refused
    #[value(hide = true)]
    Image,
    /// Images: refused
    #[value(hide = true)]
    Mmmu,
}

impl Name {
    /// Can it be played?
    ///
    /// # Errors
    /// Its requests have images.
    pub fn playable(self) -> Result<(), Failure> {
        if !matches!(self, Name::Image | Name::Mmmu) {
            return Ok(());
        }
        let name = self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        Err(Failure::usage(format!("--dataset-name {name} is not supported"))
            .found("its requests have images, which mcctl does not make")
            .next("choose a dataset of texts, or run sglang.bench_serving for images"))
    }

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
            Name::SpeedBench => Format::SpeedBench,
            Name::Random | Name::RandomIds | Name::GeneratedSharedPrefix | Name::Image | Name::Mmmu => return None,
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
    /// Tokenizer: tokenizer.json, its folder, or a model's name in the local Hugging Face cache. It counts lengths, and made-up texts get
    /// the lengths asked for [default: that of --model, where it is on this machine]
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    /// Put this behind the first question of sharegpt and custom, and 'Assistant:' behind it
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    pub prompt_suffix: String,
    /// Send the first questions of sharegpt, custom and speed-bench as the model's chat template makes them; it stands beside the tokenizer
    #[arg(long)]
    pub apply_chat_template: bool,
    /// speed-bench: only rows of this category, e.g. low_entropy, mixed or high_entropy
    #[arg(long, value_name = "NAME")]
    pub speed_bench_category: Option<String>,
    /// speed-bench: tokens of an answer
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub speed_bench_output_len: u32,
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
    /// mooncake: times that each recorded prompt is asked, each time behind the answers before
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub mooncake_num_rounds: u32,
    /// Is this bench serving? Then a dataset that is not on this machine has a stand-in.
    #[arg(skip)]
    pub serving: bool,
    /// Models whose tokenizer is used where none is named, the first that is on this machine.
    #[arg(skip)]
    pub models: Vec<String>,
    /// The tokenizer, once it was read.
    #[arg(skip)]
    pub read_tokenizer: OnceLock<Option<Arc<Tokenizer>>>,
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
    pub(super) fn chosen(&self, name: Name, api: Api, seed: Seed, vocabulary: u32) -> Result<Chosen, Failure> {
        name.playable()?;
        let tokenizer = self.tokenizer()?;
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
            Name::RandomIds => random_ids(&shape, seed),
            Name::Random => match (&tokenizer, self.file()) {
                (Some(tokenizer), Some(_)) => {
                    let corpus = self.corpus(tokenizer, seed, &mut notes)?;
                    let made = random_texts(&shape, &corpus, tokenizer, seed);
                    made.map_err(|error| Failure::usage("the tokenizer cannot say a text").found(error))?
                }
                (tokenizer, file) => {
                    let lacks = if file.is_none() { "ShareGPT" } else { "the model's tokenizer" };
                    let flag = if tokenizer.is_none() && file.is_some() { "--tokenizer" } else { "--dataset-path" };
                    notes.push(format!(
                            "{lacks} is not on this machine, and mcctl downloads nothing: prompts are made-up words of the same lengths ({flag} \
                             names a local copy)"
                        ));
                    random_words(&shape, seed)
                }
            },
            Name::GeneratedSharedPrefix => shared_prefix(&self.shared_prefix()?, seed),
            _ => {
                let format = name.format().unwrap_or(Format::ShareGpt);
                let mut reading = self.reading(format, seed, tokenizer.clone());
                if self.apply_chat_template && matches!(format, Format::ShareGpt | Format::Custom | Format::SpeedBench)
                {
                    reading.template = Some(Arc::new(self.template()?));
                }
                let dataset = self.read(format, &reading)?;
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

    /// How files of `format` are read, without a chat template.
    fn reading(&self, format: Format, seed: Seed, tokenizer: Option<Arc<Tokenizer>>) -> Reading {
        let all = if format == Format::Mooncake { 0 } else { PROMPTS };
        let is_speed_bench = format == Format::SpeedBench;
        Reading {
            limit: self.num_prompts.unwrap_or(all) as usize,
            offset: self.dataset_offset as usize,
            shuffle: self.shuffle || self.first_turn_only && !self.disable_shuffle,
            seed,
            skip_bad: self.skip_bad,
            output: self.sharegpt_output_len.or(is_speed_bench.then_some(self.speed_bench_output_len)),
            context: self.sharegpt_context_len,
            max_turns: self.max_turns,
            first_turn_only: self.first_turn_only,
            tokenizer,
            block_tokens: self.block_size,
            slowdown: self.mooncake_slowdown_factor / self.speed_up,
            rounds: self.mooncake_num_rounds,
            suffix: self.prompt_suffix.clone(),
            template: None,
            category: self.speed_bench_category.clone().filter(|_| is_speed_bench),
        }
    }

    /// The file: that of `--dataset-path`, or ShareGPT in the local cache, if ShareGPT is the dataset.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let named = self.dataset_path.clone().filter(|path| !path.as_os_str().is_empty());
        let is_sharegpt = matches!(self.dataset_name, Some(Name::Sharegpt | Name::Random));
        named.or_else(|| is_sharegpt.then(local::sharegpt).flatten())
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        self.file().ok_or_else(|| {
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
        let file = input::open(&path).map_err(|error| {
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
            suffix: String::new(),
            ..self.reading(Format::ShareGpt, seed, None)
        };
        let dataset = self.read(Format::ShareGpt, &reading)?;
        if dataset.skipped > 0 {
            notes.push(format!("{} malformed rows were passed over", dataset.skipped));
        }
        let corpus = Corpus::of(&dataset.conversations, tokenizer);
        corpus.map_err(|error| Failure::usage("the tokenizer cannot say a text").found(error))
    }

    /// Where the tokenizer is: that of `--tokenizer`, or of the first model that is on this machine.
    ///
    /// # Errors
    /// `--tokenizer` names one that does not exist on this machine.
    fn tokenizer_file(&self) -> Result<Option<PathBuf>, Failure> {
        let Some(name) = &self.tokenizer else {
            return Ok(self.models.iter().find_map(|model| local::tokenizer(model)));
        };
        let missing = || {
            Failure::usage(format!("the tokenizer {name} is not on this machine"))
                .found("neither a tokenizer.json, nor a folder with one, nor a model in the local Hugging Face cache")
                .next("name a tokenizer.json with --tokenizer, or set HF_HOME; mcctl downloads nothing")
        };
        local::tokenizer(name).map(Some).ok_or_else(missing)
    }

    /// The chat template beside the tokenizer.
    fn template(&self) -> Result<ChatTemplate, Failure> {
        let failure = |found: String| {
            Failure::usage("--apply-chat-template needs the model's chat template")
                .found(found)
                .next("name the model's folder with --tokenizer; it has tokenizer_config.json or chat_template.jinja")
        };
        let file = self.tokenizer_file()?.ok_or_else(|| failure("no tokenizer is on this machine".to_owned()))?;
        let beside = |name: &str| std::fs::read_to_string(file.with_file_name(name)).ok();
        let own = beside("chat_template.jinja");
        let config = beside("tokenizer_config.json").or_else(|| own.as_ref().map(|_| "{}".to_owned()));
        let config = config.ok_or_else(|| failure(format!("no tokenizer_config.json beside {}", file.display())))?;
        ChatTemplate::read(&config, own).map_err(failure)
    }

    /// The tokenizer, where there is one. It is read once.
    ///
    /// # Errors
    /// `--tokenizer` names one that does not exist on this machine, or the file is malformed.
    pub fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, Failure> {
        if let Some(read) = self.read_tokenizer.get() {
            return Ok(read.clone());
        }
        let read = self.tokenizer_file()?.map(|file| self.read_tokenizer_of(file)).transpose()?;
        Ok(self.read_tokenizer.get_or_init(|| read).clone())
    }

    fn read_tokenizer_of(&self, file: PathBuf) -> Result<Arc<Tokenizer>, Failure> {
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
        Tokenizer::from_bytes(&bytes).map(Arc::new).map_err(failure)
    }
}

fn has_times(conversations: &[Conversation]) -> bool {
    conversations.iter().flat_map(|conversation| &conversation.turns).any(|turn| turn.at.is_some())
}
