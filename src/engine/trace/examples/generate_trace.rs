//! Writes a synthetic request trace in one of the public formats to stdout. The same arguments
//! produce the same bytes.
//!
//! ```sh cargo run --release -p mcctl-trace --example generate_trace -- KIND [--requests N]
//! [--sessions N] [--seed N] [--scale F]
//! ```
//!
//! | kind | modeled on | matched | not matched | |---|---|---|---|
//! | `mooncake` | FAST'25 `conversation_trace.jsonl` | 12,031 requests, mean input 12,035, mean
//! output 343, blocks of 512, one hour | reuse (ceiling 45.2 % with seed 1), turns per
//! conversation, arrival pattern |
//! | `bailian` | Qwen (Bailian) usage traces | fields, blocks of 16, hashes not chained (sets of
//! blocks overcount by 0.18 points with seed 1, 0.17 % in trace A) | number of rows, lengths,
//! shares of the types |
//! | `weka` | `cc-traces-weka-042026` | 739 sessions, 59,274 requests, about 90 M hash ids (89.6 M
//! with seed 1), ceiling about 96.8 %, blocks of 64 | distribution of lengths, share of subagents,
//! times |
//! | `tracelab` | TraceLab, all users | 8,058 sessions, 665,453 rounds, 52 users, field names, form
//! of the timestamps | distribution of lengths, projects, tools, duplicate and empty rounds |
//! | `litellm` | LiteLLM 1.111 spend logs | field names, chained hashes of 16 hex digits with the
//! last partial block | everything else |
//! | `vllm` | timed traces of `vllm bench serve` | one hash id for each 16 tokens, seconds |
//! everything else |
//!
//! "Ceiling" is the share of prompt tokens that an unlimited cache hits. `--scale` divides all
//! lengths in tokens, and leaves the block size unchanged. `--requests` and `--sessions` change the
//! size of the trace, not the lengths and not the time that it covers.
//!
//! Memory holds lengths, the hash ids of conversations that continue, and one session of `weka`.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, BufWriter, Write};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, Geometric, LogNormal, Zipf};
use serde::Serialize;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const KINDS: &str = "mooncake, bailian, weka, tracelab, litellm, vllm";

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let out = &mut BufWriter::with_capacity(1 << 20, io::stdout().lock());
    match options.kind.as_str() {
        "mooncake" | "vllm" => mooncake(&options, out)?,
        "bailian" => bailian(&options, out)?,
        "weka" => weka(&options, out)?,
        "tracelab" => tracelab(&options, out)?,
        "litellm" => litellm(&options, out)?,
        other => return Err(format!("unknown kind '{other}'; use one of {KINDS}").into()),
    }
    out.flush()?;
    Ok(())
}

struct Options {
    kind: String,
    requests: Option<usize>,
    sessions: Option<usize>,
    seed: u64,
    scale: f64,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
        let kind = args.next().ok_or(format!("which kind? Use one of {KINDS}"))?;
        let mut options = Options { kind, requests: None, sessions: None, seed: 1, scale: 1.0 };
        while let Some(name) = args.next() {
            let value = args.next().ok_or(format!("{name} requires a value"))?;
            match name.as_str() {
                "--requests" => options.requests = Some(value.parse()?),
                "--sessions" => options.sessions = Some(value.parse()?),
                "--seed" => options.seed = value.parse()?,
                "--scale" => options.scale = value.parse()?,
                _ => return Err(format!("unknown argument '{name}'").into()),
            }
        }
        if !(options.scale.is_finite() && options.scale > 0.0) {
            return Err(format!("--scale must be positive, found {}", options.scale).into());
        }
        Ok(options)
    }

    fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed)
    }

    /// A length of the published trace, divided by the scale; at least 1.
    fn tokens(&self, length: f64) -> u64 {
        ((length / self.scale).round() as u64).max(1)
    }
}

/// A log-normal distribution with the mean 1.
fn spread(sigma: f64) -> Result<LogNormal<f64>> {
    Ok(LogNormal::new(-sigma * sigma / 2.0, sigma)?)
}

/// Divides `total` into `parts` with the proportions of `weights`; each part is at least 1.
fn divide(total: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    let free = total.saturating_sub(weights.len()) as f64;
    let (mut upto, mut given) = (0.0, 0);
    let part = |weight: &f64| {
        upto += weight;
        let end = (free * upto / sum).round() as usize;
        let part = end - given;
        given = end;
        part + 1
    };
    weights.iter().map(part).collect()
}

/// The hash ids of a growing context. Full blocks keep their ids. A partial last block gets a new
/// id when tokens are added to it.
#[derive(Clone, Default)]
struct Context {
    tokens: u64,
    ids: Vec<u64>,
}

impl Context {
    fn grow(&mut self, tokens: u64, block: u64, mut fresh: impl FnMut() -> u64) {
        self.ids.truncate((self.tokens / block) as usize);
        self.tokens += tokens;
        self.ids.resize_with(self.tokens.div_ceil(block) as usize, &mut fresh);
    }
}

// --- conversations that are interleaved in time --------------------------------------------------

/// The shape of a trace of conversations.
struct Conversations {
    requests: usize,
    /// Length of the trace in seconds.
    seconds: f64,
    turns: f64,
    mean_input: f64,
    mean_output: f64,
    /// Mean tokens that a later turn adds, relative to the first turn's.
    later: f64,
    systems: usize,
    system_tokens: f64,
    block: u64,
}

struct Turn {
    at: f64,
    conversation: usize,
    turn: u32,
    /// New tokens of the prompt, without the system prompt and the previous turns.
    added: f64,
    output: u64,
    is_last: bool,
}

/// A request of a conversation, with the ids of all blocks of its prompt.
struct Prompt<'a> {
    at: f64,
    conversation: usize,
    /// From 0.
    turn: u32,
    input: u64,
    output: u64,
    ids: &'a [u64],
}

/// Generates the requests in order of time. `mean_input` and `mean_output` are exact up to
/// rounding.
fn conversations(shape: &Conversations, options: &Options, mut emit: impl FnMut(Prompt) -> Result<()>) -> Result<()> {
    let rng = &mut options.rng();
    let (first, later, output) = (spread(0.9)?, spread(1.1)?, spread(0.9)?);
    let (gap, more) = (Exp::new(1.0 / 90.0)?, Geometric::new(1.0 / shape.turns)?);
    let system_of = Zipf::new(shape.systems as f64, 1.1)?;

    let mut turns: Vec<Turn> = Vec::with_capacity(shape.requests);
    let mut systems = Vec::new();
    while turns.len() < shape.requests {
        let conversation = systems.len();
        systems.push(system_of.sample(rng) as usize - 1);
        let mut at = rng.random::<f64>() * shape.seconds;
        for turn in 0..=more.sample(rng) as u32 {
            let added = if turn == 0 { first.sample(rng) } else { later.sample(rng) * shape.later };
            turns.push(Turn { at, conversation, turn, added, output: 0, is_last: false });
            at += gap.sample(rng);
        }
    }
    turns.truncate(shape.requests);
    let outputs: Vec<f64> = turns.iter().map(|_| output.sample(rng)).collect();
    let factor = shape.mean_output * turns.len() as f64 / outputs.iter().sum::<f64>();
    for (turn, output) in turns.iter_mut().zip(outputs) {
        turn.output = options.tokens(output * factor);
    }

    // The sum of all inputs is `fixed` + `added` * `unit`, where `unit` is the mean of a first
    // turn.
    let system_tokens: Vec<u64> =
        (0..shape.systems).map(|_| options.tokens(shape.system_tokens * later.sample(rng))).collect();
    let (mut fixed, mut added) = (0.0, 0.0);
    let mut so_far = (0.0, 0.0);
    for index in 0..turns.len() {
        let turn = &turns[index];
        if turn.turn == 0 {
            so_far = (system_tokens[systems[turn.conversation]] as f64, 0.0);
        }
        so_far.1 += turn.added;
        fixed += so_far.0;
        added += so_far.1;
        so_far.0 += turn.output as f64;
        let is_last = turns.get(index + 1).is_none_or(|next| next.turn == 0);
        turns[index].is_last = is_last;
    }
    let unit = (shape.mean_input / options.scale * turns.len() as f64 - fixed).max(0.0) / added;
    turns.sort_by(|a, b| a.at.total_cmp(&b.at));

    let mut next = 0;
    let mut fresh = || {
        next += 1;
        next - 1
    };
    let shared: Vec<Context> = system_tokens
        .iter()
        .map(|tokens| {
            let mut context = Context::default();
            context.grow(*tokens, shape.block, &mut fresh);
            context
        })
        .collect();
    let start = turns.first().map_or(0.0, |turn| turn.at);
    let mut open: HashMap<usize, Context> = HashMap::new();
    for Turn { at, conversation, turn, added, output, is_last } in turns {
        let mut context = open.remove(&conversation).unwrap_or_else(|| shared[systems[conversation]].clone());
        context.grow(((added * unit).round() as u64).max(1), shape.block, &mut fresh);
        emit(Prompt { at: at - start, conversation, turn, input: context.tokens, output, ids: &context.ids })?;
        if !is_last {
            // The reply becomes part of the next prompt.
            context.grow(output, shape.block, &mut fresh);
            open.insert(conversation, context);
        }
    }
    Ok(())
}

/// A row of Mooncake's format, which vLLM's timed traces use too.
///
/// Source: `FAST25-release/traces` in kvcache-ai/Mooncake, and vllm#39795.
#[derive(Serialize)]
struct MooncakeRow<'a, T> {
    /// Milliseconds; seconds in vLLM's default.
    timestamp: T,
    input_length: u64,
    output_length: u64,
    hash_ids: &'a [u64],
}

fn mooncake(options: &Options, out: &mut impl Write) -> Result<()> {
    let shape = Conversations {
        requests: options.requests.unwrap_or(12_031),
        seconds: 3600.0,
        turns: 1.7,
        mean_input: 12_035.0,
        mean_output: 343.0,
        later: 0.15,
        systems: 40,
        system_tokens: 1_500.0,
        block: if options.kind == "vllm" { 16 } else { 512 },
    };
    conversations(&shape, options, |prompt| {
        let Prompt { at, input, output, ids, .. } = prompt;
        let ms = (at * 1000.0).round();
        if options.kind == "vllm" {
            let timestamp = ms / 1000.0;
            line(out, &MooncakeRow { timestamp, input_length: input, output_length: output, hash_ids: ids })
        } else {
            let timestamp = ms as u64;
            line(out, &MooncakeRow { timestamp, input_length: input, output_length: output, hash_ids: ids })
        }
    })
}

fn line(out: &mut impl Write, row: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, row)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// A row of the Qwen (Bailian) usage traces.
///
/// Source: alibaba-edu/qwen-bailian-usagetraces-anon. The hash of a block depends on its content
/// only: the same id can follow different prefixes.
#[derive(Serialize)]
struct BailianRow<'a> {
    chat_id: u64,
    parent_chat_id: i64,
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    r#type: &'static str,
    turn: u32,
    hash_ids: &'a [u64],
}

/// Ids of content that several conversations contain after different prefixes.
const COMMON_CONTENT: u64 = 1 << 40;

fn bailian(options: &Options, out: &mut impl Write) -> Result<()> {
    let shape = Conversations {
        requests: options.requests.unwrap_or(20_000),
        seconds: 7200.0,
        turns: 2.2,
        mean_input: 2_300.0,
        mean_output: 400.0,
        later: 0.4,
        systems: 200,
        system_tokens: 300.0,
        block: 16,
    };
    let rng = &mut ChaCha8Rng::seed_from_u64(!options.seed);
    let mut chats = 0;
    // By conversation: the chat id of its last turn, its type and its common content.
    let mut open: HashMap<usize, (u64, &'static str, Option<u64>)> = HashMap::new();
    conversations(&shape, options, |prompt| {
        let chat_id = chats;
        chats += 1;
        let (parent, kind, common) = match open.get(&prompt.conversation) {
            Some(&(parent, kind, common)) => (parent as i64, kind, common),
            None => {
                let kind = *["text", "text", "text", "text", "search", "image", "file"].choose(rng).unwrap_or(&"text");
                (-1, kind, rng.random_bool(0.06).then(|| rng.random_range(0..20)))
            }
        };
        open.insert(prompt.conversation, (chat_id, kind, common));
        let mut ids = prompt.ids.to_vec();
        // Eight blocks in the middle of the first turn, for all turns of the conversation.
        let shared = options.tokens(shape.system_tokens).div_ceil(shape.block) as usize + 4;
        if let Some(common) = common {
            for (index, id) in ids.iter_mut().enumerate().skip(shared).take(8) {
                *id = COMMON_CONTENT + common * 8 + (index - shared) as u64;
            }
        }
        line(
            out,
            &BailianRow {
                chat_id,
                parent_chat_id: parent,
                timestamp: (prompt.at * 1000.0).round() / 1000.0,
                input_length: prompt.input,
                output_length: prompt.output,
                r#type: kind,
                turn: prompt.turn + 1,
                hash_ids: &ids,
            },
        )
    })
}

/// The fields of a LiteLLM spend log that describe a request's load.
///
/// Source: the documentation of the `prefix_block_hashes` callback (LiteLLM 1.111). Its nesting in
/// the row's metadata was not verified against the program.
#[derive(Serialize)]
struct SpendLog {
    request_id: String,
    call_type: &'static str,
    model: &'static str,
    #[serde(rename = "startTime")]
    start_time: String,
    #[serde(rename = "endTime")]
    end_time: String,
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    session_id: String,
    status: &'static str,
    metadata: SpendMetadata,
}

#[derive(Serialize)]
struct SpendMetadata {
    prefix_block_hashes: Vec<String>,
}

fn litellm(options: &Options, out: &mut impl Write) -> Result<()> {
    let shape = Conversations {
        requests: options.requests.unwrap_or(10_000),
        seconds: 3600.0,
        turns: 3.0,
        mean_input: 6_000.0,
        mean_output: 350.0,
        later: 0.3,
        systems: 30,
        system_tokens: 1_200.0,
        block: 512,
    };
    let mut number = 0;
    conversations(&shape, options, |prompt| {
        number += 1;
        let start = START_MS + (prompt.at * 1000.0) as u64;
        line(
            out,
            &SpendLog {
                request_id: format!("chatcmpl-{:016x}", mix(options.seed.wrapping_add(number << 16))),
                call_type: "acompletion",
                model: "openai/example",
                start_time: timestamp(start),
                end_time: timestamp(start + 300 + prompt.output * 20),
                prompt_tokens: prompt.input,
                completion_tokens: prompt.output,
                total_tokens: prompt.input + prompt.output,
                session_id: format!("{:016x}", mix(!options.seed ^ prompt.conversation as u64)),
                status: "success",
                metadata: SpendMetadata {
                    prefix_block_hashes: prompt
                        .ids
                        .iter()
                        .map(|id| format!("{:016x}", mix(options.seed ^ id << 8)))
                        .collect(),
                },
            },
        )
    })
}

/// A bijective mix of the bits, so that different ids have different digests.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 2026-06-01T00:00:00Z in milliseconds since the epoch.
const START_MS: u64 = 1_780_272_000_000;

/// A time of June or July 2026 in ISO 8601, with milliseconds.
fn timestamp(ms: u64) -> String {
    let since = ms.saturating_sub(START_MS);
    let (day, ms) = (since / 86_400_000, since % 86_400_000);
    let (month, day) = if day < 30 { (6, day + 1) } else { (7, (day - 30) % 31 + 1) };
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("2026-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

// --- agent sessions
// --------------------------------------------------------------------------------

/// A session of `cc-traces-weka-042026`, one JSON object.
///
/// Source: the corpora under `semianalysisai/` on Hugging Face, and `weka_trace` in aiperf. Times
/// are seconds after the start of the session, also inside a subagent. The fields of `totals` are
/// this generator's own.
#[derive(Serialize)]
struct WekaSession {
    id: String,
    models: [&'static str; 1],
    block_size: u64,
    hash_id_scope: &'static str,
    tool_tokens: u64,
    system_tokens: u64,
    requests: Vec<WekaEntry>,
    totals: WekaTotals,
}

#[derive(Default, Serialize)]
struct WekaTotals {
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WekaEntry {
    Request(WekaRequest),
    Subagent(WekaSubagent),
}

#[derive(Serialize)]
struct WekaRequest {
    t: f64,
    r#type: &'static str,
    model: &'static str,
    r#in: u64,
    out: u64,
    /// The full blocks only.
    hash_ids: Vec<u64>,
    input_types: [&'static str; 1],
    output_types: [&'static str; 2],
    stop: &'static str,
    api_time: f64,
    think_time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<f64>,
}

#[derive(Serialize)]
struct WekaSubagent {
    t: f64,
    r#type: &'static str,
    agent_id: String,
    subagent_type: &'static str,
    duration_ms: u64,
    total_tokens: u64,
    tool_use_count: usize,
    status: &'static str,
    requests: Vec<WekaRequest>,
    models: [&'static str; 1],
    tool_tokens: u64,
    system_tokens: u64,
}

const WEKA_MODEL: &str = "claude-opus-4-5";
const WEKA_BLOCK: u64 = 64;
const SUBAGENTS: [&str; 3] = ["Explore", "general-purpose", "Plan"];
/// Prompt length at which an agent replaces its history with a summary, and lengths of the parts.
/// They result in the published number of hash ids and the published ceiling.
const WEKA_LIMIT: f64 = 215_000.0;
const WEKA_SUMMARY: f64 = 9_000.0;
const WEKA_ADDED: f64 = 2_170.0;
const WEKA_OUTPUT: f64 = 550.0;

/// The requests of one agent, one after the other.
struct Agent {
    base: u64,
    context: Context,
    limit: u64,
}

impl Agent {
    fn requests(
        &mut self,
        count: usize,
        t: &mut f64,
        fresh: &mut impl FnMut() -> u64,
        rng: &mut ChaCha8Rng,
        options: &Options,
    ) -> Result<Vec<WekaRequest>> {
        let (added, output, think) = (spread(1.3)?, spread(1.0)?, Exp::new(1.0 / 6.0)?);
        let round = |x: f64| (x * 1000.0).round() / 1000.0;
        let mut requests = Vec::with_capacity(count);
        for index in 0..count {
            let new = options.tokens(WEKA_ADDED * added.sample(rng)).min(self.limit / 3);
            if self.context.tokens + new > self.limit {
                self.context.ids.truncate((self.base / WEKA_BLOCK) as usize);
                self.context.tokens = self.base;
                self.context.grow(options.tokens(WEKA_SUMMARY), WEKA_BLOCK, &mut *fresh);
            }
            self.context.grow(new, WEKA_BLOCK, &mut *fresh);
            let out = options.tokens(WEKA_OUTPUT * output.sample(rng)).min(self.limit / 3);
            let (api_time, think_time) = (round(1.5 + out as f64 / 70.0), round(think.sample(rng)));
            let full = (self.context.tokens / WEKA_BLOCK) as usize;
            let is_streamed = rng.random_bool(0.9);
            requests.push(WekaRequest {
                t: round(*t),
                r#type: if is_streamed { "s" } else { "n" },
                model: WEKA_MODEL,
                r#in: self.context.tokens,
                out,
                hash_ids: self.context.ids[..full].to_vec(),
                input_types: [if index == 0 { "text" } else { "tool_result" }],
                output_types: ["text", "tool_use"],
                stop: if index + 1 == count { "end_turn" } else { "tool_use" },
                api_time,
                think_time,
                ttft: is_streamed.then_some(1.5),
            });
            *t += api_time + think_time;
            self.context.grow(out, WEKA_BLOCK, &mut *fresh);
        }
        Ok(requests)
    }
}

fn weka(options: &Options, out: &mut impl Write) -> Result<()> {
    let rng = &mut options.rng();
    let sessions = options.sessions.unwrap_or(739);
    let requests = options.requests.unwrap_or(59_274 * sessions / 739);
    let (weight, size) = (spread(1.2)?, spread(0.25)?);
    let weights: Vec<f64> = (0..sessions).map(|_| weight.sample(rng)).collect();
    for (session, count) in divide(requests, &weights).into_iter().enumerate() {
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            next
        };
        let mut agent = |tools: f64, system: f64, rng: &mut ChaCha8Rng| {
            let (tools, system) = (options.tokens(tools * size.sample(rng)), options.tokens(system * size.sample(rng)));
            let mut context = Context::default();
            context.grow(tools + system, WEKA_BLOCK, &mut fresh);
            (tools, system, context)
        };
        let (tool_tokens, system_tokens, context) = agent(14_000.0, 6_000.0, rng);
        // Subagents of one type share their beginning.
        let kinds: Vec<(u64, u64, Context)> = SUBAGENTS.iter().map(|_| agent(7_000.0, 2_500.0, rng)).collect();
        let limit = options.tokens(WEKA_LIMIT * size.sample(rng));
        let mut main = Agent { base: tool_tokens + system_tokens, context, limit };
        let (mut entries, mut t, mut left) = (Vec::new(), 0.0, count);
        let mut totals = WekaTotals { requests: count as u64, ..WekaTotals::default() };
        while left > 0 {
            let is_subagent = left < count && rng.random_bool(0.1);
            let part = left.min(rng.random_range(2..=20));
            left -= part;
            if !is_subagent {
                let requests = main.requests(part, &mut t, &mut fresh, rng, options)?;
                entries.extend(requests.into_iter().map(WekaEntry::Request));
                continue;
            }
            let kind = rng.random_range(0..SUBAGENTS.len());
            let (tool_tokens, system_tokens, ref context) = kinds[kind];
            let mut sub = Agent { base: tool_tokens + system_tokens, context: context.clone(), limit };
            let start = t;
            let requests = sub.requests(part, &mut t, &mut fresh, rng, options)?;
            entries.push(WekaEntry::Subagent(WekaSubagent {
                t: (start * 1000.0).round() / 1000.0,
                r#type: "subagent",
                agent_id: format!("{:08x}", mix(options.seed ^ ((session as u64) << 20 | entries.len() as u64)) as u32),
                subagent_type: SUBAGENTS[kind],
                duration_ms: ((t - start) * 1000.0) as u64,
                total_tokens: sub.context.tokens,
                tool_use_count: part - 1,
                status: "completed",
                requests,
                models: [WEKA_MODEL],
                tool_tokens,
                system_tokens,
            }));
        }
        for entry in &entries {
            let requests = match entry {
                WekaEntry::Request(request) => std::slice::from_ref(request),
                WekaEntry::Subagent(subagent) => &subagent.requests,
            };
            totals.input_tokens += requests.iter().map(|request| request.r#in).sum::<u64>();
            totals.output_tokens += requests.iter().map(|request| request.out).sum::<u64>();
        }
        let id = format!("session-{:08x}", mix(options.seed << 32 ^ session as u64) as u32);
        let row = WekaSession {
            id,
            models: [WEKA_MODEL],
            block_size: WEKA_BLOCK,
            hash_id_scope: "local",
            tool_tokens,
            system_tokens,
            requests: entries,
            totals,
        };
        line(out, &row)?;
    }
    Ok(())
}

/// A round of TraceLab's sanitized trace.
///
/// Source: `README.md`, `example_sessions/` and `docs/prompt_cache_accounting.md` in
/// uw-syfi/TraceLab. The prompt of a round is `prefix_tokens` (read from the provider's cache) plus
/// `newly_append_tokens`. The time of submission is the latest `user_message` or `tool_result`.
#[derive(Serialize)]
struct TraceLabRow<'a> {
    provider: &'static str,
    project: &'a str,
    session_id: &'a str,
    round_index: usize,
    round_id: String,
    model: &'static str,
    input_tokens_total: u64,
    prefix_tokens: u64,
    newly_append_tokens: u64,
    claude_uncached_input_tokens: Option<u64>,
    claude_cache_creation_input_tokens: Option<u64>,
    claude_cache_read_input_tokens: Option<u64>,
    output_tokens: u64,
    reasoning_output_tokens: Option<u64>,
    timing_events: Vec<TimingEvent<'a>>,
    tools: Vec<Tool<'a>>,
    user: &'a str,
    store: &'static str,
}

#[derive(Serialize)]
struct TimingEvent<'a> {
    event_type: &'static str,
    timestamp: &'a str,
}

#[derive(Serialize)]
struct Tool<'a> {
    tool_index: u32,
    tool_name: &'static str,
    tool_call_id: String,
    emitted_at: &'a str,
    input_chars: u64,
    result_chars: u64,
    tool_wall_latency_ms: u64,
    tool_internal_latency_ms: Option<u64>,
    is_error: bool,
    result_at: &'a str,
}

fn tracelab(options: &Options, out: &mut impl Write) -> Result<()> {
    let rng = &mut options.rng();
    let sessions = options.sessions.unwrap_or(8_058);
    let rounds = options.requests.unwrap_or(665_453 * sessions / 8_058);
    let (weight, added, output) = (spread(1.3)?, spread(1.4)?, spread(1.1)?);
    let (tool, human) = (Exp::new(1.0 / 4_000.0)?, Exp::new(1.0 / 60_000.0)?);
    let (base, limit, summary) = (options.tokens(24_000.0), options.tokens(180_000.0), options.tokens(8_000.0));
    let user_of = Zipf::new(52.0, 0.8)?;
    let weights: Vec<f64> = (0..sessions).map(|_| weight.sample(rng)).collect();
    for (session, count) in divide(rounds, &weights).into_iter().enumerate() {
        let is_claude = rng.random_bool(0.4);
        let (provider, model, store) =
            if is_claude { ("claude", "claude-opus-4-8", ".claude") } else { ("codex", "gpt-5.5-codex", ".codex") };
        // Every user has sessions, also in a short trace.
        let user = if session < 52 { session } else { user_of.sample(rng) as usize - 1 };
        let user = format!("user-{user:02}");
        let project = format!("project-{:06x}", mix(options.seed ^ (session as u64 / 3)) & 0xff_ffff);
        let session_id = format!("{provider}:{:016x}", mix(!options.seed ^ session as u64));
        let mut at = START_MS + rng.random_range(0..45 * 86_400_000u64);
        // The tokens of the previous prompt and reply, which the provider may have cached.
        let mut cached = if rng.random_bool(0.7) { base } else { 0 };
        let mut context = base;
        let mut is_turn_start = true;
        for round_index in 0..count {
            let new = options.tokens(1_800.0 * added.sample(rng)).min(limit / 3);
            if context + new > limit {
                (cached, context) = (base, base + summary);
            }
            context += new;
            let mut prefix = cached.min(context - 1);
            if is_turn_start && round_index > 0 && rng.random_bool(0.15) {
                // The provider's cache has expired.
                prefix = 0;
            }
            let appended = context - prefix;
            let reply = options.tokens(420.0 * output.sample(rng)).min(limit / 3);
            let has_tool = round_index + 1 < count && rng.random_bool(0.88);
            let submitted = timestamp(at);
            let first = at + 1_500 + rng.random_range(0..2_000);
            let called = first + reply * 15;
            let wall = tool.sample(rng) as u64 + 20;
            let (first, call, result) = (timestamp(first), timestamp(called), timestamp(called + wall));
            let mut events = vec![
                TimingEvent {
                    event_type: if is_turn_start { "user_message" } else { "tool_result" },
                    timestamp: &submitted,
                },
                TimingEvent { event_type: "text", timestamp: &first },
            ];
            let mut tools = Vec::new();
            if has_tool {
                events.push(TimingEvent { event_type: "tool_call", timestamp: &call });
                tools.push(Tool {
                    tool_index: 0,
                    tool_name: if is_claude { "Bash" } else { "shell" },
                    tool_call_id: format!("call_{:016x}", rng.random::<u64>()),
                    emitted_at: &call,
                    input_chars: rng.random_range(20..400),
                    result_chars: new * 4,
                    tool_wall_latency_ms: wall,
                    tool_internal_latency_ms: None,
                    is_error: rng.random_bool(0.05),
                    result_at: &result,
                });
            }
            line(
                out,
                &TraceLabRow {
                    provider,
                    project: &project,
                    session_id: &session_id,
                    round_index,
                    round_id: format!("msg_{:016x}", rng.random::<u64>()),
                    model,
                    input_tokens_total: context,
                    prefix_tokens: prefix,
                    newly_append_tokens: appended,
                    claude_uncached_input_tokens: is_claude.then_some(appended.min(2)),
                    claude_cache_creation_input_tokens: is_claude.then_some(appended.saturating_sub(2)),
                    claude_cache_read_input_tokens: is_claude.then_some(prefix),
                    output_tokens: reply,
                    reasoning_output_tokens: (!is_claude).then_some(reply / 3),
                    timing_events: events,
                    tools,
                    user: &user,
                    store,
                },
            )?;
            at = called + if has_tool { wall } else { human.sample(rng) as u64 };
            is_turn_start = !has_tool;
            cached = context;
            context += reply;
        }
    }
    Ok(())
}
