//! A pass in the words of the programs whose results people already keep: a line with the keys of `sglang.bench_serving` (0.5.23)
//! and one with those of `bench_multiturn.py`.
//!
//! Definitions are theirs: latencies count from the instant at which the request was taken up, percentiles are computed as they
//! compute them. Where theirs are faulty ours differ:
//! - `total_input_tokens` and the throughputs made of it are the server's counts, in conversations, too (there theirs is 0);
//! - `duration` ends with the last answer, not after calls that follow it;
//! - `max_concurrent_requests` is the most that were in flight at once, not what touched a second of the clock;
//! - time between tokens counts a token without text as a token;
//! - what was not measured is null: `total_output_tokens_retokenized`, `accept_length`, what goes beyond the bounds of details; and `request_rate` without a bound
//!   is the string `inf`, since JSON has no infinity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::commands::bench::multi_turn::files::sample::Sample;
use crate::engine::load::answer::Arrival;
use crate::engine::load::measure::goodput::{Goodput, Limit, Times};
use crate::engine::load::session::Pass;
use crate::engine::load::target::Outcome;
use crate::engine::load::workload::Tokenizer;
use crate::engine::load::{Histogram, Live, Record};

/// Requests whose details are kept.
const DETAILS_MAX: usize = 1 << 20;
/// Gaps between tokens that are kept among them.
const GAPS_MAX: usize = 1 << 22;
/// Bytes of texts that are kept among them.
const TEXTS_MAX: usize = 256 << 20;

/// The keys with a value for each request (`--output-details`).
const DETAILS: [&str; 8] = [
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
    "cached_tokens",
    "cached_tokens_details",
];

/// What the flags say of the run.
#[derive(Clone, Debug)]
pub(super) struct Flags {
    pub tag: Option<String>,
    pub backend: String,
    pub dataset: String,
    /// `None`: requests came at the times of a trace.
    pub request_rate: Option<f64>,
    pub max_concurrency: Option<u32>,
    pub goodput: Vec<Limit>,
    pub details: bool,
    /// Are cached tokens part of the line?
    pub cache_report: bool,
    /// Lengths that the flags name.
    pub lengths: Option<Lengths>,
    /// It counts the texts of answers once more.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// Lengths in tokens, as the flags of `bench_serving` have them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub sharegpt_output: Option<u32>,
    pub input: u32,
    pub output: u32,
    pub range_ratio: f64,
}

/// One pass so far.
#[derive(Default)]
pub(super) struct Serving {
    live: Option<Arc<Live>>,
    ttft: Sample,
    e2e: Sample,
    tpot: Sample,
    prompts: Sample,
    answers: Sample,
    cached: u64,
    device: u64,
    host: u64,
    storage: u64,
    told_tiers: bool,
    backend: Option<String>,
    /// By latencies as they are in the line.
    goodput: Goodput,
    peak_in_flight: u64,
    /// Texts of answers, where they are counted again; `None` when they grew beyond their bound.
    texts: Option<Vec<String>>,
    text_bytes: usize,
    rounds: BTreeMap<u32, Round>,
    details: Details,
}

#[derive(Default)]
struct Round {
    ttft: f64,
    prompt: u64,
    cached: u64,
    requests: u64,
}

#[derive(Default)]
struct Details {
    input_lens: Vec<Value>,
    output_lens: Vec<Value>,
    ttfts: Vec<Value>,
    itls: Vec<Value>,
    gaps: usize,
    generated_texts: Vec<Value>,
    errors: Vec<Value>,
    cached_tokens: Vec<Value>,
    cached_tokens_details: Vec<Value>,
    bytes: usize,
}

impl Details {
    fn add(&mut self, record: &Record, ttft: f64) {
        if self.errors.len() >= DETAILS_MAX {
            return;
        }
        let answer = &record.exchange.answer;
        let well = record.exchange.outcome == Outcome::Ok;
        self.bytes += answer.text.len();
        let text = if self.bytes > TEXTS_MAX { "" } else { &answer.text };
        self.input_lens.push(json!(answer.prompt_tokens.unwrap_or(0)));
        self.output_lens.push(json!(if well {
            answer.completion_tokens.unwrap_or(record.exchange.arrived)
        } else {
            0
        }));
        self.ttfts.push(json!(ttft));
        let gaps = gaps(&record.exchange.arrivals);
        self.gaps += gaps.len();
        self.itls.push(if self.gaps > GAPS_MAX { Value::Null } else { json!(gaps) });
        self.generated_texts.push(json!(text));
        self.errors.push(json!(if well { String::new() } else { record.exchange.outcome.word() }));
        self.cached_tokens.push(json!(answer.cached_tokens.unwrap_or(0)));
        self.cached_tokens_details.push(answer.cached.as_ref().map_or(Value::Null, |cached| {
            json!({"device": cached.device, "host": cached.host, "storage": cached.storage, "storage_backend": cached.backend})
        }));
    }
}

/// Seconds before each token but the first; tokens that came together share the gap before them.
fn gaps(arrivals: &[Arrival]) -> Vec<f64> {
    let pairs = arrivals.iter().zip(arrivals.iter().skip(1));
    let shared = pairs.flat_map(|(before, now)| {
        let gap = seconds(now.at.saturating_sub(before.at)) / f64::from(now.tokens.max(1));
        std::iter::repeat_n(gap, now.tokens as usize)
    });
    shared.take(GAPS_MAX).collect()
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

impl Serving {
    pub(super) fn begins(live: &Arc<Live>, flags: &Flags) -> Serving {
        let texts = flags.tokenizer.as_ref().map(|_| Vec::new());
        Serving { live: Some(Arc::clone(live)), goodput: Goodput::new(&flags.goodput), texts, ..Serving::default() }
    }

    pub(super) fn add(&mut self, record: &Record, details: bool) {
        if let Some(live) = &self.live {
            // Between two ends requests only begin, so most are in flight just before one ends.
            let (sent, ended) = (live.sent.load(Ordering::Relaxed), live.ended.load(Ordering::Relaxed));
            self.peak_in_flight = self.peak_in_flight.max(sent.saturating_sub(ended) + 1);
        }
        let (exchange, answer) = (&record.exchange, &record.exchange.answer);
        let ttft = exchange.first_token.map_or(0.0, |first| seconds(first.saturating_sub(exchange.begun)));
        if details {
            self.details.add(record, ttft);
        }
        if exchange.outcome != Outcome::Ok {
            self.goodput.add_times(None);
            return;
        }
        let whole = exchange.end.saturating_sub(exchange.begun);
        let e2e = seconds(whole);
        let tokens = answer.completion_tokens.unwrap_or(exchange.arrived);
        let first = exchange.first_token.map_or(Duration::ZERO, |first| first.saturating_sub(exchange.begun));
        let tpot = (tokens > 1).then(|| whole.saturating_sub(first) / (tokens - 1));
        self.goodput.add_times(Some(&Times { ttft: first, tpot, e2e: whole }));
        self.ttft.add(ttft);
        self.e2e.add(e2e);
        if tokens > 1 {
            self.tpot.add((e2e - ttft) / f64::from(tokens - 1));
        }
        let prompt = answer.prompt_tokens.unwrap_or(0);
        self.prompts.add(f64::from(prompt));
        self.answers.add(f64::from(tokens));
        self.text_bytes += answer.text.len();
        self.texts = self.texts.take().filter(|_| self.text_bytes <= TEXTS_MAX);
        if let Some(texts) = &mut self.texts {
            texts.push(answer.text.clone());
        }
        let tiers = answer.cached.as_ref();
        let cached = answer.cached_in_all();
        self.cached += u64::from(cached);
        if let Some(tiers) = tiers {
            self.told_tiers = true;
            self.device += u64::from(tiers.device);
            self.host += u64::from(tiers.host);
            self.storage += u64::from(tiers.storage);
            if self.backend.is_none() {
                self.backend.clone_from(&tiers.backend);
            }
        }
        if let Ok(place) = u32::try_from(self.rounds.len())
            && (self.rounds.contains_key(&record.turn.index) || place < 10_000)
        {
            let round = self.rounds.entry(record.turn.index).or_default();
            round.ttft += ttft;
            round.prompt += u64::from(prompt);
            round.cached += u64::from(cached);
            round.requests += 1;
        }
    }

    /// The line of `bench_serving`.
    pub(super) fn line(&mut self, flags: &Flags, pass: &Pass) -> Value {
        let took = seconds(pass.tally.took());
        let per_second = |count: f64| if took > 0.0 { count / took } else { 0.0 };
        let (input, output) = (self.prompts.sum(), self.answers.sum());
        let well = pass.tally.all.requests;
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| {
            line.insert(key.to_owned(), value);
        };
        put("tag", json!(flags.tag));
        put("backend", json!(flags.backend));
        put("dataset_name", json!(flags.dataset));
        put("request_rate", rate(flags.request_rate));
        put("max_concurrency", json!(flags.max_concurrency));
        let lengths = flags.lengths;
        put("sharegpt_output_len", json!(lengths.and_then(|lengths| lengths.sharegpt_output)));
        put("random_input_len", json!(lengths.map(|lengths| lengths.input)));
        put("random_output_len", json!(lengths.map(|lengths| lengths.output)));
        put("random_range_ratio", json!(lengths.map(|lengths| lengths.range_ratio)));
        put("server_info", Value::Null);
        put("duration", json!(took));
        put("completed", json!(well));
        put("total_input_tokens", json!(input as u64));
        put("total_input_text_tokens", json!(input as u64));
        put("total_input_vision_tokens", json!(0));
        put("total_output_tokens", json!(output as u64));
        let counted = self.texts.as_ref().zip(flags.tokenizer.as_ref());
        let again = counted.map(|(texts, tokenizer)| {
            texts.iter().map(|text| tokenizer.count(text, false).unwrap_or(0) as u64).sum::<u64>()
        });
        put("total_output_tokens_retokenized", json!(again));
        put("request_throughput", json!(per_second(well as f64)));
        put("input_throughput", json!(per_second(input)));
        put("output_throughput", json!(per_second(output)));
        put("total_throughput", json!(per_second(input + output)));
        for (name, sample) in [("e2e_latency", &self.e2e), ("ttft", &self.ttft), ("tpot", &self.tpot)] {
            let sorted = sample.sorted();
            put(&format!("mean_{name}_ms"), json!(sample.mean() * 1e3));
            put(&format!("median_{name}_ms"), json!(sorted.between(0.5) * 1e3));
            put(&format!("std_{name}_ms"), json!(sample.deviation() * 1e3));
            for (word, q) in [("p90", 0.9), ("p95", 0.95), ("p99", 0.99)] {
                put(&format!("{word}_{name}_ms"), json!(sorted.between(q) * 1e3));
            }
        }
        let gaps = pass.ran.gaps.summary();
        let ms = |value: Option<Duration>| value.map_or(0.0, seconds) * 1e3;
        put("mean_itl_ms", json!(ms(gaps.map(|gaps| gaps.mean))));
        put("median_itl_ms", json!(ms(pass.ran.gaps.at(0.5))));
        put("std_itl_ms", json!(ms(gaps.map(|gaps| gaps.deviation))));
        for (word, q) in [("p90", 0.9), ("p95", 0.95), ("p99", 0.99)] {
            put(&format!("{word}_itl_ms"), json!(ms(pass.ran.gaps.at(q))));
        }
        put("max_itl_ms", json!(ms(gaps.map(|gaps| gaps.max))));
        put("concurrency", json!(per_second(self.e2e.sum())));
        put("accept_length", Value::Null);
        put("max_output_tokens_per_s", json!(pass.tally.series.peak_output_per_s()));
        put("max_concurrent_requests", json!(self.peak_in_flight));
        let limits = self.goodput.limits();
        if !limits.is_empty() {
            let sent = pass.sent();
            let share = |met: u64| if sent == 0 { 0.0 } else { met as f64 / sent as f64 };
            let of = |value: &dyn Fn(&Limit, u64) -> f64| -> Map<String, Value> {
                let limits = limits.iter().zip(&self.goodput.met_by);
                limits.map(|(limit, met)| (limit.metric.word().to_owned(), json!(value(limit, *met)))).collect()
            };
            put("goodput_slos_ms", Value::Object(of(&|limit, _| seconds(limit.most) * 1e3)));
            put("request_goodput", json!(per_second(self.goodput.met as f64)));
            put("slo_attainment", json!(share(self.goodput.met)));
            put("slo_attainment_by_metric", Value::Object(of(&|_, met| share(met))));
        }
        let tier = |tokens: u64| if self.told_tiers { json!(tokens) } else { Value::Null };
        let report = flags.cache_report.then(|| {
            json!({
                "total_prompt_tokens": input as u64,
                "total_cached_tokens": self.cached,
                "cache_hit_rate_pct": if input > 0.0 { (1e4 * self.cached as f64 / input).round() / 100.0 } else { 0.0 },
                "device_cached_tokens": tier(self.device),
                "host_cached_tokens": tier(self.host),
                "storage_cached_tokens": tier(self.storage),
                "storage_backend": self.backend,
            })
        });
        if let Some(report) = report {
            put("cache_report", report);
        }
        if flags.details {
            let details = std::mem::take(&mut self.details);
            put("input_lens", Value::Array(details.input_lens));
            put("output_lens", Value::Array(details.output_lens));
            put("ttfts", Value::Array(details.ttfts));
            put("itls", Value::Array(details.itls));
            put("generated_texts", Value::Array(details.generated_texts));
            put("errors", Value::Array(details.errors));
            put("cached_tokens", Value::Array(details.cached_tokens));
            put("cached_tokens_details", Value::Array(details.cached_tokens_details));
        }
        Value::Object(line)
    }

    /// `line` without what is in it of each request.
    pub(super) fn without_details(line: &mut Value) {
        if let Some(line) = line.as_object_mut() {
            line.retain(|key, _| !DETAILS.contains(&key.as_str()));
        }
    }

    /// The line of `bench_multiturn.py`. Its rounds are there without a barrier, too.
    pub(super) fn rounds(&self, flags: &Flags, pass: &Pass, now: &str) -> Value {
        let took = seconds(pass.tally.took());
        let per_second = |count: f64| if took > 0.0 { count / took } else { 0.0 };
        let (input, output) = (self.prompts.sum(), self.answers.sum());
        let mut summary = Map::new();
        summary.insert("total_requests".to_owned(), json!(pass.tally.all.requests));
        summary.insert("request_rate".to_owned(), rate(flags.request_rate));
        for (name, sample) in [("prompt_len", &self.prompts), ("output_len", &self.answers)] {
            let sorted = sample.sorted();
            summary.insert(format!("average_{name}"), json!(sample.mean()));
            summary.insert(format!("p90_{name}"), json!(sorted.nearest(0.9)));
            summary.insert(format!("p99_{name}"), json!(sorted.nearest(0.99)));
        }
        let mut spread = |name: &str, average: f64, quantile: &dyn Fn(f64) -> f64, max: f64| {
            for (word, value) in [
                ("average", average),
                ("p90", quantile(0.9)),
                ("p99", quantile(0.99)),
                ("median", quantile(0.5)),
                ("max", max),
            ] {
                summary.insert(format!("{word}_{name}"), json!(value));
            }
        };
        let ttft = self.ttft.sorted();
        spread("ttft", self.ttft.mean(), &|q| ttft.nearest(q), self.ttft.max());
        let gaps: &Histogram = &pass.ran.gaps;
        let told = gaps.summary();
        let of = |value: Option<Duration>| value.map_or(0.0, seconds);
        spread("itl", of(told.map(|t| t.mean)), &|q| of(gaps.at(q)), of(told.map(|t| t.max)));
        let e2e = self.e2e.sorted();
        spread("latency", self.e2e.mean(), &|q| e2e.nearest(q), self.e2e.max());
        let share = |cached: u64, prompt: f64| if prompt > 0.0 { cached as f64 / prompt } else { 0.0 };
        summary.insert("input_token_throughput".to_owned(), json!(per_second(input)));
        summary.insert("output_token_throughput".to_owned(), json!(per_second(output)));
        summary.insert("throughput".to_owned(), json!(per_second(pass.tally.all.requests as f64)));
        summary.insert("cache_hit_rate".to_owned(), json!(share(self.cached, input)));
        let rounds = self.rounds.iter().map(|(index, round)| {
            let told = json!({
                "average_ttft": if round.requests > 0 { round.ttft / round.requests as f64 } else { 0.0 },
                "cache_hit_rate": share(round.cached, round.prompt as f64),
                "request_count": round.requests,
            });
            (format!("round_{index}"), told)
        });
        let rounds: Map<String, Value> = rounds.collect();
        json!({
            "timestamp": now,
            "tag": flags.tag.clone().unwrap_or_default(),
            "summary": summary,
            "round": rounds,
        })
    }
}

/// Without a bound it is a word, since JSON has no such number; so it is where a trace has the times, as `bench_serving` has it.
fn rate(rate: Option<f64>) -> Value {
    match rate {
        None => json!("trace"),
        Some(rate) if rate.is_finite() => json!(rate),
        Some(_) => json!("inf"),
    }
}
