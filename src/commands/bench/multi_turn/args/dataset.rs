//! Dataset flags, named as in SGLang's `bench_serving`. Without a dataset, conversations are
//! synthetic.

use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;

use crate::commands::bench::multi_turn::args::{Api, SessionArgs, SessionStart, UniquePrefix, local};
use crate::commands::bench::number;
use crate::commands::cli::error::Failure;
use crate::commands::cli::{input, time_unit};
use crate::engine::load::workload::dataset::{
    self, Corpus, Dataset, DatasetCaveat, DatasetError, DatasetFormat, DatasetOptions, PrefixGroups, RandomIds,
    SharedPrefix, random_ids, random_texts, random_words, shared_prefix,
};
use crate::engine::load::workload::{
    AnnotatedWorkload, ChatTemplate, Conversation, PlannedReuse, PromptForm, Replay, RowError, TOKENS_PER_WORD,
    TextGenerator, Tokenizer, TurnContent,
};
use crate::engine::load::{ReadyOrder, Rules, Seed};
use crate::engine::trace::{self, TimeUnit, TraceCaveat, TraceRefusal};

/// Maximum size of a tokenizer file, in bytes.
const TOKENIZER_BYTES_MAX: u64 = 1 << 28;
/// Default number of conversations, the same as in `bench_serving`. Traces are sent in full.
const PROMPTS: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    /// ShareGPT conversations as a JSON array; all turns are sent
    Sharegpt,
    /// Conversations, JSONL; turns have a 'content' or 'value' field
    Custom,
    /// Chat requests, JSONL; sent unchanged
    Openai,
    /// ShareGPT prompts, repeated or truncated to the requested length
    Random,
    /// Random token ID sequences
    RandomIds,
    /// Groups of conversations that share a system prompt
    GeneratedSharedPrefix,
    /// Recorded requests, sent at their times: Mooncake or aiperf, vLLM, Qwen-Bailian, Weka or
    /// AgentX, TraceLab, LiteLLM's spend log, BurstGPT. Blocks with the same hash ID are identical
    #[value(alias = "trace")]
    Mooncake,
    /// Agent conversations, JSON; each turn contains only the new messages
    AgenticTrace,
    /// Long contexts with one question each, JSONL
    #[value(name = "longbench_v2", alias = "longbench")]
    Longbench,
    /// Dialogues with alternating user and assistant messages, JSONL
    Ultrachat,
    /// Long texts with several questions each, JSONL
    Loogle,
    /// Prompts by category, JSONL, each with one or more turns; only the first turn is sent
    SpeedBench,
    /// Rejected: requests contain images
    #[value(hide = true)]
    Image,
    /// Rejected: requests contain images
    #[value(hide = true)]
    Mmmu,
}

impl DatasetName {
    /// Rejects datasets that contain images.
    ///
    /// # Errors
    /// The dataset contains images.
    pub fn playable(self) -> Result<(), Failure> {
        if !matches!(self, DatasetName::Image | DatasetName::Mmmu) {
            return Ok(());
        }
        let name = self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        Err(Failure::usage(format!("--dataset-name {name} is not supported"))
            .found("requests in this dataset contain images, but mcctl sends only text")
            .next("choose a text dataset, or use sglang.bench_serving for images"))
    }

    /// Returns the dataset's file format; `None` if prompts are generated.
    pub fn format(self) -> Option<DatasetFormat> {
        Some(match self {
            DatasetName::Sharegpt => DatasetFormat::ShareGpt,
            DatasetName::Custom => DatasetFormat::Custom,
            DatasetName::Openai => DatasetFormat::OpenAi,
            DatasetName::Mooncake => DatasetFormat::Mooncake,
            DatasetName::AgenticTrace => DatasetFormat::Agentic,
            DatasetName::Longbench => DatasetFormat::LongBench,
            DatasetName::Ultrachat => DatasetFormat::UltraChat,
            DatasetName::Loogle => DatasetFormat::Loogle,
            DatasetName::SpeedBench => DatasetFormat::SpeedBench,
            DatasetName::Random
            | DatasetName::RandomIds
            | DatasetName::GeneratedSharedPrefix
            | DatasetName::Image
            | DatasetName::Mmmu => return None,
        })
    }
}

/// How generated-shared-prefix distributes conversations across its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GroupDistribution {
    /// The same number for every group
    Uniform,
    /// Zipf: skewed toward the first groups
    Zipf,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Dataset")]
pub struct DatasetArgs {
    /// Send the conversations of a dataset instead of synthetic ones
    #[arg(long, value_enum, value_name = "NAME")]
    pub dataset_name: Option<DatasetName>,
    /// Dataset file. Without --dataset-name: a ShareGPT file that provides the text for synthetic
    /// conversations
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Number of conversations to send; 0 means all [default: 1000; all for a trace]
    #[arg(long, alias = "num-conversations", value_name = "N", value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    pub num_prompts: Option<u32>,
    /// Skip the first N conversations
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub dataset_offset: u32,
    /// Shuffle the conversations before --num-prompts is applied
    #[arg(long)]
    pub shuffle: bool,
    /// Keep the file's order, even with --first-turn-only
    #[arg(long, conflicts_with = "shuffle")]
    pub disable_shuffle: bool,
    /// Skip malformed rows instead of failing
    #[arg(long)]
    pub skip_bad: bool,
    /// Send only the first turn of each conversation. As in bench_serving, conversations are
    /// shuffled and very short ones are skipped
    #[arg(long)]
    pub first_turn_only: bool,
    /// sharegpt, custom, ultrachat, loogle: send all turns of each conversation as chat, with the
    /// server's own responses. The default of bench multi-turn
    #[arg(long, conflicts_with = "first_turn_only")]
    pub enable_multiturn: bool,
    /// Maximum turns per conversation [default: no limit]
    #[arg(long, alias = "agentic-max-turns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: Option<u32>,
    /// Output length of every request, in tokens [default: from the dataset]
    #[arg(long, alias = "fixed-output-len", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub sharegpt_output_len: Option<u32>,
    /// Skip prompts and truncate conversations that are longer than this number of tokens [default:
    /// no limit]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub sharegpt_context_len: Option<u32>,
    /// Tokenizer for exact prompt lengths: a tokenizer.json, its directory, or a model name in the
    /// local Hugging Face cache [default: --model's tokenizer, if present on this machine]
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    /// sharegpt, custom: append TEXT and then 'Assistant:' to the first prompt
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    pub prompt_suffix: String,
    /// sharegpt, custom, speed-bench: render the first prompt with the model's chat template from
    /// the tokenizer directory
    #[arg(long)]
    pub apply_chat_template: bool,
    /// speed-bench: use only rows in this category, e.g. low_entropy, mixed or high_entropy
    /// [default: all]
    #[arg(long, value_name = "NAME")]
    pub speed_bench_category: Option<String>,
    /// speed-bench: output length in tokens
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub speed_bench_output_len: u32,
    /// Send token IDs instead of text (--api generate or completions)
    #[arg(long)]
    pub tokenize_prompt: bool,
    /// random, random-ids: prompt length in tokens
    #[arg(long, alias = "random-input", default_value_t = 1024, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub random_input_len: u32,
    /// random, random-ids: output length in tokens
    #[arg(long, alias = "random-output", default_value_t = 1024, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub random_output_len: u32,
    /// random, random-ids: for each configured length L, sample the actual length uniformly between
    /// RATIO x L and L
    #[arg(long, alias = "random-range", default_value_t = 0.0, value_name = "RATIO", value_parser = number::ratio)]
    pub random_range_ratio: f64,
    /// generated-shared-prefix: number of groups, each with its own system prompt
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gsp_num_groups: u32,
    /// generated-shared-prefix: conversations per group
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gsp_prompts_per_group: u32,
    /// generated-shared-prefix: system prompt length in tokens
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(0..=i64::from(dataset::TOKENS_MAX)))]
    pub gsp_system_prompt_len: u32,
    /// generated-shared-prefix: question length in tokens
    #[arg(long, default_value_t = 128, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub gsp_question_len: u32,
    /// generated-shared-prefix: output length in tokens
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(dataset::TOKENS_MAX)))]
    pub gsp_output_len: u32,
    /// generated-shared-prefix: for each configured length L, sample the actual length uniformly
    /// between RATIO x L and L
    #[arg(long, default_value_t = 1.0, value_name = "RATIO", value_parser = number::ratio)]
    pub gsp_range_ratio: f64,
    /// generated-shared-prefix: turns per conversation
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub gsp_num_turns: u32,
    /// generated-shared-prefix: send the groups one after the other
    #[arg(long)]
    pub gsp_ordered: bool,
    /// generated-shared-prefix: send an X-SMG-Routing-Key header with one key per group
    #[arg(long)]
    pub gsp_send_routing_key: bool,
    /// generated-shared-prefix: how conversations are distributed across groups
    #[arg(long, value_enum, default_value = "uniform")]
    pub gsp_group_distribution: GroupDistribution,
    /// generated-shared-prefix: exponent for --gsp-group-distribution zipf
    #[arg(long, value_name = "ALPHA", value_parser = number::factor)]
    pub gsp_zipf_alpha: Option<f64>,
    /// mooncake: tokens per hash block [default: the size that fits the rows]
    #[arg(long, alias = "trace-block-tokens", value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub block_size: Option<u64>,
    /// mooncake: unit of the times in the trace: s or ms [default: that of the format]
    #[arg(long, value_name = "UNIT", value_parser = time_unit::parse)]
    pub time_unit: Option<TimeUnit>,
    /// mooncake: replay the trace this many times faster than recorded
    #[arg(long, alias = "speedup", default_value_t = 1.0, value_name = "FACTOR", value_parser = number::factor)]
    pub speed_up: f64,
    /// mooncake: replay the trace this many times slower than recorded
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = number::factor, conflicts_with = "speed_up")]
    pub mooncake_slowdown_factor: f64,
    /// mooncake: send requests at --request-rate instead of at the recorded times
    #[arg(long)]
    pub ignore_trace_timestamps: bool,
    /// mooncake: send each recorded prompt N times in one conversation, each time preceded by the
    /// earlier responses
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub mooncake_num_rounds: u32,
    /// Set by `bench serving`: synthetic prompts replace a dataset that is not present on this
    /// machine.
    #[arg(skip)]
    pub serving: bool,
    /// Count the tokens of every prompt, for the details of failed requests.
    #[arg(skip)]
    pub count_prompts: bool,
    /// Models that may provide the tokenizer if `--tokenizer` is not set; the first one with a
    /// local tokenizer is used.
    #[arg(skip)]
    pub models: Vec<String>,
    /// Cache of the parsed tokenizer.
    #[arg(skip)]
    pub read_tokenizer: OnceLock<Option<Arc<Tokenizer>>>,
}

impl DatasetArgs {
    /// Returns `rules`, changed to send conversations in dataset order if `--gsp-ordered` is set.
    pub fn rules(&self, rules: Rules) -> Rules {
        let ordered = self.gsp_ordered && self.dataset_name == Some(DatasetName::GeneratedSharedPrefix);
        if ordered { Rules { ready: ReadyOrder::Fifo, ..rules } } else { rules }
    }

    /// Builds the workload for dataset `name`.
    ///
    /// # Errors
    /// The dataset cannot be read or is empty, or flags contradict each other.
    pub(super) fn configured(
        &self,
        name: DatasetName,
        api: Api,
        seed: Seed,
        vocabulary: u32,
        sessions: &SessionArgs,
    ) -> Result<AnnotatedWorkload, Failure> {
        name.playable()?;
        let tokenizer = self.tokenizer()?;
        let vocabulary = self.vocabulary(name, vocabulary)?;
        let needs = |what: &str| {
            Failure::usage(format!("{what} needs a tokenizer")).next("set --tokenizer to a tokenizer file or directory")
        };
        let mut notes = Vec::new();
        let shape = RandomIds {
            requests: self.num_prompts.unwrap_or(PROMPTS),
            input: self.random_input_len,
            output: self.random_output_len,
            range_ratio: self.random_range_ratio,
            vocabulary,
            as_bench_serving: self.serving,
            special: tokenizer
                .as_ref()
                .filter(|_| self.serving && !self.tokenize_prompt)
                .map_or(0, |it| it.special_tokens()),
        };
        let mut conversations = match name {
            DatasetName::RandomIds => random_ids(&shape, seed),
            DatasetName::Random => match (&tokenizer, self.file()) {
                (Some(tokenizer), Some(_)) => {
                    let corpus = self.corpus(tokenizer, seed, &mut notes)?;
                    let made = random_texts(&shape, &corpus, tokenizer, seed);
                    made.map_err(|error| {
                        Failure::usage("the tokenizer cannot decode its own tokens").found(error.to_string())
                    })?
                }
                (tokenizer, file) => {
                    let lacks = if file.is_none() { "ShareGPT" } else { "the model's tokenizer" };
                    let flag = if tokenizer.is_none() && file.is_some() { "--tokenizer" } else { "--dataset-path" };
                    notes.push(format!(
                        "{lacks} was not found on this machine, and mcctl does not download it; prompts are random words of the same \
                         lengths (use {flag} to select a local copy)"
                    ));
                    random_words(&shape, seed)
                }
            },
            DatasetName::GeneratedSharedPrefix => shared_prefix(&self.shared_prefix()?, seed),
            _ => {
                let format = name.format().unwrap_or(DatasetFormat::ShareGpt);
                let mut reading = self.reading(format, seed, tokenizer.clone());
                reading.live_sessions = sessions.live_sessions.is_some();
                reading.idle_max = sessions.idle_max;
                if self.apply_chat_template
                    && matches!(format, DatasetFormat::ShareGpt | DatasetFormat::Custom | DatasetFormat::SpeedBench)
                {
                    reading.template = Some(Arc::new(self.template()?));
                }
                let dataset = self.read(format, &reading)?;
                self.note(format, &dataset, &mut notes);
                dataset.conversations
            }
        };
        if conversations.is_empty() {
            return Err(Failure::usage("the dataset has no conversations").next("increase the number of conversations"));
        }
        if self.count_prompts {
            let turns = conversations.iter_mut().flat_map(|conversation| &mut conversation.turns);
            turns.for_each(|turn| turn.count(tokenizer.as_deref()));
        }
        if !notes.contains(&DatasetCaveat::NoReuse.to_string()) {
            let reuse = match sessions.unique_prefix {
                UniquePrefix::None => PlannedReuse::of(&conversations),
                UniquePrefix::Seed | UniquePrefix::Run => PlannedReuse::within_sessions(&conversations),
            };
            notes.extend(reuse.caveat().map(|caveat| caveat.to_string()));
        }
        let count = conversations.chunk_by(|_, next| next.continues_session()).count();
        if sessions.live_sessions.is_some_and(|live| live as usize > count) {
            let again = sessions.repeat_sessions || sessions.session_start == SessionStart::Random;
            notes.push(match again {
                true => format!("the dataset has {count} sessions, so some of them are live more than once at a time"),
                false => format!("the dataset has {count} sessions, so fewer are live than --live-sessions"),
            });
        }
        let turns = || conversations.iter().flat_map(|conversation| &conversation.turns);
        let is_made = turns().all(|turn| matches!(turn.content, TurnContent::Made(_)));
        let as_text = self.serving
            && tokenizer.is_some()
            && matches!(name, DatasetName::RandomIds | DatasetName::GeneratedSharedPrefix);
        let form = self.form(name, api, is_made && !as_text)?;
        let is_decoded = as_text && name == DatasetName::RandomIds && form != PromptForm::Ids;
        if form == PromptForm::Ids && tokenizer.is_none() && !is_made {
            return Err(needs("--tokenize-prompt"));
        }
        if api != Api::Chat && turns().any(|turn| turn.extra.contains("tools")) {
            return Err(Failure::usage("the dataset contains tool calls, which only --api chat supports")
                .next("use --api chat"));
        }
        if is_decoded {
            notes.push(
                "prompts are random tokens decoded to text, as in bench_serving, so the server may count a different length (use \
                 --tokenize-prompt for exact lengths)"
                    .to_owned(),
            );
        }
        let exact = is_decoded
            || form == PromptForm::Ids
            || tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.words().is_some());
        if !exact && turns().any(|turn| matches!(turn.content, TurnContent::Made(_))) {
            notes.push(
                "synthetic texts have one word per requested token, so the server may count a different length (use --tokenizer for \
                 exact lengths)"
                    .to_owned(),
            );
        }
        let recorded = !self.ignore_trace_timestamps && has_times(&conversations);
        let generator = TextGenerator { seed, vocabulary, tokenizer };
        if is_decoded {
            // Decoded before the run, so that decoding does not delay requests.
            for turn in conversations.iter_mut().flat_map(|conversation| &mut conversation.turns) {
                if let TurnContent::Made(spans) = &turn.content {
                    let mut text = String::new();
                    spans.iter().for_each(|span| generator.text(span, &mut text));
                    turn.content = TurnContent::Text(text.into());
                }
            }
        }
        let replay = sessions.apply(Replay::new(conversations, form, generator), seed)?;
        Ok(AnnotatedWorkload::new(Box::new(replay), notes, recorded))
    }

    /// Returns the upper bound (exclusive) for token IDs: the tokenizer's, or `default` without
    /// one. As in `bench_serving`, its random-ids do not include added tokens.
    ///
    /// # Errors
    /// Same as [`DatasetArgs::tokenizer`].
    fn vocabulary(&self, name: DatasetName, default: u32) -> Result<u32, Failure> {
        let tokenizer = self.tokenizer()?;
        let base = self.serving && name == DatasetName::RandomIds;
        let of = |tokenizer: Arc<Tokenizer>| if base { tokenizer.base_vocabulary() } else { tokenizer.vocabulary() };
        Ok(tokenizer.map_or(default, of))
    }

    /// Returns the form in which prompts are sent. `is_made`: all prompts are synthetic.
    fn form(&self, name: DatasetName, api: Api, is_made: bool) -> Result<PromptForm, Failure> {
        match api {
            Api::Chat if self.tokenize_prompt => {
                let failure = Failure::usage("--tokenize-prompt does not work with --api chat");
                Err(failure.next("drop --tokenize-prompt, or use --api generate"))
            }
            Api::Chat => Ok(PromptForm::Chat),
            // These messages have roles and tools, which plain text cannot represent.
            _ if matches!(name, DatasetName::Openai | DatasetName::AgenticTrace) => {
                Err(Failure::usage("the dataset contains chat messages").next("use --api chat"))
            }
            _ if self.tokenize_prompt => Ok(PromptForm::Ids),
            // Synthetic prompts sent as token IDs have exact lengths, even without a tokenizer.
            Api::Generate if is_made => Ok(PromptForm::Ids),
            _ => Ok(PromptForm::Text),
        }
    }

    fn shared_prefix(&self) -> Result<SharedPrefix, Failure> {
        let distribution = match (self.gsp_group_distribution, self.gsp_zipf_alpha) {
            (GroupDistribution::Uniform, None) => PrefixGroups::Uniform,
            (GroupDistribution::Zipf, Some(alpha)) => PrefixGroups::Zipf(alpha),
            (GroupDistribution::Zipf, None) => {
                return Err(
                    Failure::usage("--gsp-group-distribution zipf needs an exponent").next("set --gsp-zipf-alpha")
                );
            }
            (GroupDistribution::Uniform, Some(_)) => {
                return Err(Failure::usage("--gsp-zipf-alpha requires --gsp-group-distribution zipf")
                    .next("add --gsp-group-distribution zipf"));
            }
        };
        let made =
            u64::from(self.gsp_num_groups) * u64::from(self.gsp_prompts_per_group) * u64::from(self.gsp_num_turns);
        if made > 10_000_000 {
            return Err(Failure::usage(format!("too many questions: {made} (at most 10000000)"))
                .next("lower --gsp-num-groups, --gsp-prompts-per-group or --gsp-num-turns"));
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

    /// Returns the options for reading files in `format`, without a chat template.
    fn reading(&self, format: DatasetFormat, seed: Seed, tokenizer: Option<Arc<Tokenizer>>) -> DatasetOptions {
        let all = if format == DatasetFormat::Mooncake { 0 } else { PROMPTS };
        let is_speed_bench = format == DatasetFormat::SpeedBench;
        DatasetOptions {
            limit: self.num_prompts.unwrap_or(all) as usize,
            offset: self.dataset_offset as usize,
            shuffle: self.shuffle || self.first_turn_only && !self.disable_shuffle,
            as_bench_serving: self.serving,
            seed,
            skip_bad: self.skip_bad,
            output: self.sharegpt_output_len.or(is_speed_bench.then_some(self.speed_bench_output_len)),
            context: self.sharegpt_context_len,
            max_turns: self.max_turns,
            first_turn_only: self.first_turn_only,
            tokenizer,
            block_tokens: self.block_size,
            time_unit: self.time_unit,
            slowdown: self.mooncake_slowdown_factor / self.speed_up,
            idle_max: None,
            live_sessions: false,
            rounds: self.mooncake_num_rounds,
            suffix: self.prompt_suffix.clone(),
            template: None,
            category: self.speed_bench_category.clone().filter(|_| is_speed_bench),
        }
    }

    /// Returns the `--dataset-path` file. For datasets based on ShareGPT, falls back to the local
    /// cache.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let named = self.dataset_path.clone().filter(|path| !path.as_os_str().is_empty());
        let is_sharegpt = matches!(self.dataset_name, Some(DatasetName::Sharegpt | DatasetName::Random));
        named.or_else(|| is_sharegpt.then(local::sharegpt).flatten())
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        self.file().ok_or_else(|| {
            Failure::usage("this dataset needs a file")
                .next("add --dataset-path FILE, or generate a small file with 'mcctl bench dataset'")
        })
    }

    fn read(&self, format: DatasetFormat, reading: &DatasetOptions) -> Result<Dataset, Failure> {
        let path = self.path()?;
        let named = path.display().to_string();
        let failure = |found: String| {
            Failure::usage(format!("cannot read the dataset {named}"))
                .tried(format!("read it as {format}"))
                .found(found)
        };
        let file = input::open(&path).map_err(|error| {
            failure(error.to_string()).next("specify a local file; 'mcctl bench dataset' generates a small one")
        })?;
        dataset::read(BufReader::with_capacity(1 << 18, file), &named, format, reading)
            .map_err(|error| failure(error.to_string()).next(next_step(&error)))
    }

    /// Adds notes about skipped rows and estimated lengths.
    fn note(&self, format: DatasetFormat, dataset: &Dataset, notes: &mut Vec<String>) {
        if dataset.skipped > 0 {
            let first = dataset.first_bad.as_ref().map(|bad| format!("line {}: {}", bad.line, bad.reason));
            notes.push(format!(
                "{} malformed rows were skipped; the first: {}",
                dataset.skipped,
                first.unwrap_or_default()
            ));
        }
        if dataset.left_out > 0 {
            notes.push(format!(
                "{} rows were skipped: they have no usable turns, their first question is empty, or their length or category is excluded",
                dataset.left_out
            ));
        }
        for caveat in &dataset.caveats {
            let flag = match caveat {
                DatasetCaveat::Trace(TraceCaveat::TimeUnitDoubt { .. }) => " (--time-unit s or ms selects the unit)",
                _ => "",
            };
            notes.push(format!("{caveat}{flag}"));
        }
        if dataset.estimated {
            notes.push(format!(
                "lengths in the {format} file are estimated at {} tokens per word (use --tokenizer for exact counts)",
                TOKENS_PER_WORD
            ));
        }
    }

    /// Reads the first prompts from the ShareGPT file as source text for random prompts.
    pub(super) fn corpus(&self, tokenizer: &Tokenizer, seed: Seed, notes: &mut Vec<String>) -> Result<Corpus, Failure> {
        let limit = self.num_prompts.unwrap_or(PROMPTS).max(PROMPTS) as usize;
        let reading = DatasetOptions {
            limit,
            first_turn_only: true,
            output: Some(2),
            max_turns: None,
            context: None,
            shuffle: !self.disable_shuffle,
            suffix: String::new(),
            ..self.reading(DatasetFormat::ShareGpt, seed, None)
        };
        let dataset = self.read(DatasetFormat::ShareGpt, &reading)?;
        if dataset.skipped > 0 {
            notes.push(format!("{} malformed rows were skipped", dataset.skipped));
        }
        let corpus = Corpus::of(&dataset.conversations, tokenizer, self.serving);
        corpus.map_err(|error| Failure::usage("the tokenizer cannot decode its own tokens").found(error.to_string()))
    }

    /// Returns the tokenizer file from `--tokenizer`, or from the first model with a local
    /// tokenizer.
    ///
    /// # Errors
    /// The `--tokenizer` value does not resolve to a file on this machine.
    fn tokenizer_file(&self) -> Result<Option<PathBuf>, Failure> {
        let Some(name) = &self.tokenizer else {
            return Ok(self.models.iter().find_map(|model| local::tokenizer(model)));
        };
        let missing = || {
            Failure::usage(format!("tokenizer '{name}' not found on this machine"))
                .found("it is not a tokenizer.json, a directory that contains one, or a model in the local Hugging Face cache")
                .next("set --tokenizer to a local tokenizer.json, or set HF_HOME; mcctl does not download files")
        };
        local::tokenizer(name).map(Some).ok_or_else(missing)
    }

    /// Reads the chat template from the tokenizer directory.
    fn template(&self) -> Result<ChatTemplate, Failure> {
        let failure = |found: String| {
            Failure::usage("--apply-chat-template needs the model's chat template").found(found).next(
                "set --tokenizer to the model's directory, which contains tokenizer_config.json or chat_template.jinja",
            )
        };
        let file = self.tokenizer_file()?.ok_or_else(|| failure("no tokenizer found on this machine".to_owned()))?;
        let beside = |name: &str| std::fs::read_to_string(file.with_file_name(name)).ok();
        let own = beside("chat_template.jinja");
        let config = beside("tokenizer_config.json").or_else(|| own.as_ref().map(|_| "{}".to_owned()));
        let config = config.ok_or_else(|| failure(format!("no tokenizer_config.json next to {}", file.display())))?;
        ChatTemplate::read(&config, own).map_err(|error| failure(error.to_string()))
    }

    /// Returns the tokenizer, or `None` if no local one is found. Reads the file only once.
    ///
    /// # Errors
    /// The `--tokenizer` value does not resolve to a file on this machine, or the file is
    /// malformed.
    pub fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, Failure> {
        if let Some(read) = self.read_tokenizer.get() {
            return Ok(read.clone());
        }
        let read = self.tokenizer_file()?.map(|file| self.read_tokenizer_of(file)).transpose()?;
        Ok(self.read_tokenizer.get_or_init(|| read).clone())
    }

    fn read_tokenizer_of(&self, file: PathBuf) -> Result<Arc<Tokenizer>, Failure> {
        let failure = |found: String| {
            Failure::usage(format!("cannot read the tokenizer {}", file.display()))
                .found(found)
                .next("specify a Hugging Face tokenizer.json, or the directory that contains it")
        };
        let mut bytes = Vec::new();
        let opened = input::open(&file).map_err(|error| failure(error.to_string()))?;
        let read = std::io::Read::read_to_end(&mut std::io::Read::take(opened, TOKENIZER_BYTES_MAX + 1), &mut bytes);
        read.map_err(|error| failure(error.to_string()))?;
        if bytes.len() as u64 > TOKENIZER_BYTES_MAX {
            return Err(failure(format!("the file is larger than {} MiB", TOKENIZER_BYTES_MAX >> 20)));
        }
        Tokenizer::from_bytes(&bytes).map(Arc::new).map_err(|error| failure(error.to_string()))
    }
}

/// Returns what to do about a dataset that cannot be used.
fn next_step(error: &DatasetError) -> String {
    let text = match error {
        DatasetError::Row { bad, .. } => match block_size(&bad.reason) {
            Some(Some(size)) => {
                return format!("use --block-size {size}, or drop --block-size to use the size that fits the rows");
            }
            Some(None) => "check the row, or skip malformed rows with --skip-bad",
            None => "fix the row, skip malformed rows with --skip-bad, or select another format with --dataset-name",
        },
        DatasetError::AllBad { bad, .. } => match block_size(&bad.reason) {
            Some(_) => "drop --block-size to use the size that fits the rows, or use another file",
            None => "select the file's format with --dataset-name, or use another file",
        },
        DatasetError::Offset { conversations, .. } => return format!("set --dataset-offset below {conversations}"),
        DatasetError::Empty { .. } => "use another file or different length limits",
        DatasetError::Refused { refusal: TraceRefusal::ShareGpt, .. } => "use --dataset-name sharegpt",
        DatasetError::Refused { .. } => {
            "use a trace in one of the formats that 'mcctl bench multi-turn --help' lists, or another --dataset-name"
        }
        DatasetError::Gzip { .. } => "decompress the file with gunzip",
        _ => "specify a file that this user can read",
    };
    text.to_owned()
}

/// Returns the block size that fits all rows so far, if a row does not fit the one in use.
fn block_size(reason: &RowError) -> Option<Option<u64>> {
    match reason {
        RowError::Trace(error) => match &**error {
            trace::RowError::BlockCount(count) => Some(count.suggested),
            _ => None,
        },
        RowError::Request { error, .. } => block_size(error),
        _ => None,
    }
}

fn has_times(conversations: &[Conversation]) -> bool {
    conversations.iter().flat_map(|conversation| &conversation.turns).any(|turn| turn.at.is_some())
}
