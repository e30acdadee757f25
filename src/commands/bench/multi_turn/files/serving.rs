//! Writes a pass as result lines for other tools: one line with the keys of `sglang.bench_serving`
//! (0.5.23), and one with the keys of `bench_multiturn.py`.
//!
//! Definitions match those tools: latency is measured from the time a worker starts the request,
//! and percentiles use the same formulas. The differences, mostly fixes for known bugs in those
//! tools:
//! - `total_input_tokens` and the throughputs based on it use the server's counts, even for
//!   conversations (`bench_serving` writes 0).
//! - `duration` ends with the last response, not after later calls.
//! - `max_concurrent_requests` is the peak number of requests in flight, not the largest number of
//!   requests that overlap the same second.
//! - ITL also counts tokens without text.
//! - Values that are not measured are null: `total_output_tokens_retokenized`, `accept_length`, and
//!   details beyond their limits.
//! - If `request_rate` is unlimited, it is the string `inf`, because JSON has no infinity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::commands::bench::multi_turn::files::thinned::ThinnedSample;
use crate::engine::load::answer::TokenArrival;
use crate::engine::load::measure::goodput::{Goodput, LatencyLimit, RequestLatency};
use crate::engine::load::session::PassResult;
use crate::engine::load::target::ExchangeOutcome;
use crate::engine::load::workload::Tokenizer;
use crate::engine::load::{LatencyHistogram, LiveCounters, TimedRequest};

/// Maximum number of requests with details.
const DETAILS_MAX: usize = 1 << 20;
/// Maximum number of token gaps in the details.
const GAPS_MAX: usize = 1 << 22;
/// Maximum total size of response texts in the details, in bytes.
const TEXTS_MAX: usize = 256 << 20;

/// Keys that contain one value per request (`--output-details`).
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

/// Run settings needed for the result lines.
#[derive(Clone, Debug)]
pub(super) struct ResultSettings {
    pub tag: Option<String>,
    pub backend: String,
    pub dataset: String,
    /// `None` if requests are sent at the times recorded in a trace.
    pub request_rate: Option<f64>,
    pub max_concurrency: Option<u32>,
    pub goodput: Vec<LatencyLimit>,
    pub details: bool,
    /// Include cached tokens in the line.
    pub cache_report: bool,
    pub lengths: Option<DatasetLengths>,
    /// Recounts the tokens in response texts.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// Values of the `bench_serving` length flags, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatasetLengths {
    pub sharegpt_output: Option<u32>,
    pub input: u32,
    pub output: u32,
    pub range_ratio: f64,
}

/// Running totals for a pass.
#[derive(Default)]
pub(super) struct PassTotals {
    live: Option<Arc<LiveCounters>>,
    ttft: ThinnedSample,
    e2e: ThinnedSample,
    tpot: ThinnedSample,
    prompts: ThinnedSample,
    answers: ThinnedSample,
    cached: u64,
    device: u64,
    host: u64,
    storage: u64,
    has_tiers: bool,
    backend: Option<String>,
    /// Goodput, based on the latencies in the result line.
    goodput: Goodput,
    peak_in_flight: u64,
    /// Response texts to recount; `None` beyond [`TEXTS_MAX`].
    texts: Option<Vec<String>>,
    text_bytes: usize,
    rounds: BTreeMap<u32, TurnTotals>,
    details: RequestDetails,
}

#[derive(Default)]
struct TurnTotals {
    ttft: f64,
    prompt: u64,
    cached: u64,
    requests: u64,
}

/// Details of the requests of a pass, in the order of their prompts.
#[derive(Default)]
struct RequestDetails {
    requests: BTreeMap<(u32, u32), RequestDetail>,
    gaps: usize,
    bytes: usize,
}

/// Details of one request.
struct RequestDetail {
    input_len: u32,
    output_len: u32,
    ttft: f64,
    /// `None` beyond [`GAPS_MAX`].
    itl: Option<Vec<f64>>,
    text: String,
    error: String,
    cached_tokens: u32,
    cached_tokens_details: Value,
}

impl RequestDetails {
    fn add(&mut self, record: &TimedRequest, ttft: f64) {
        if self.requests.len() >= DETAILS_MAX {
            return;
        }
        let answer = &record.exchange.answer;
        let succeeded = record.exchange.outcome == ExchangeOutcome::Ok;
        self.bytes += answer.text.len();
        let text = if self.bytes > TEXTS_MAX { String::new() } else { answer.text.clone() };
        let gaps = gaps(&record.exchange.arrivals);
        self.gaps += gaps.len();
        let detail = RequestDetail {
            input_len: answer.prompt_tokens.unwrap_or_else(|| self.counted_length(record)),
            output_len: if succeeded { answer.completion_tokens.unwrap_or(record.exchange.arrived) } else { 0 },
            ttft,
            itl: (self.gaps <= GAPS_MAX).then_some(gaps),
            text,
            error: if succeeded { String::new() } else { record.exchange.outcome.kind().to_owned() },
            cached_tokens: answer.cached_tokens.unwrap_or(0),
            // Like the server: it reports L3 only if it has one.
            cached_tokens_details: answer.cached.as_ref().map_or(Value::Null, |cached| match &cached.backend {
                None if cached.storage == 0 => json!({"device": cached.device, "host": cached.host}),
                backend => {
                    json!({"device": cached.device, "host": cached.host, "storage": cached.storage, "storage_backend": backend})
                }
            }),
        };
        self.requests.insert((record.turn.conversation, record.turn.index), detail);
    }

    /// Returns the prompt length if the server did not report it: the previous turn's prompt and
    /// response, and this turn's own tokens.
    fn counted_length(&self, record: &TimedRequest) -> u32 {
        let own = record.own_tokens.unwrap_or(0);
        let before =
            record.turn.index.checked_sub(1).and_then(|index| self.requests.get(&(record.turn.conversation, index)));
        before.map_or(own, |before| before.input_len.saturating_add(before.output_len).saturating_add(own))
    }

    /// Adds the lists to `line`, each with one value per request. `cache`: with the lists of cached
    /// tokens.
    fn write(self, line: &mut Map<String, Value>, cache: bool) {
        let requests: Vec<RequestDetail> = self.requests.into_values().collect();
        let mut list = |key: &str, value: &dyn Fn(&RequestDetail) -> Value| {
            line.insert(key.to_owned(), requests.iter().map(value).collect());
        };
        list("input_lens", &|request| json!(request.input_len));
        list("output_lens", &|request| json!(request.output_len));
        list("ttfts", &|request| json!(request.ttft));
        list("itls", &|request| json!(request.itl));
        list("generated_texts", &|request| json!(request.text));
        list("errors", &|request| json!(request.error));
        if cache {
            list("cached_tokens", &|request| json!(request.cached_tokens));
            list("cached_tokens_details", &|request| request.cached_tokens_details.clone());
        }
    }
}

/// Returns the time in seconds before each token except the first. Tokens that arrive together
/// split the gap before them evenly.
fn gaps(arrivals: &[TokenArrival]) -> Vec<f64> {
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

impl PassTotals {
    pub(super) fn begins(live: &Arc<LiveCounters>, flags: &ResultSettings) -> PassTotals {
        let texts = flags.tokenizer.as_ref().map(|_| Vec::new());
        PassTotals {
            live: Some(Arc::clone(live)),
            goodput: Goodput::new(&flags.goodput),
            texts,
            ..PassTotals::default()
        }
    }

    pub(super) fn add(&mut self, record: &TimedRequest, details: bool) {
        if let Some(live) = &self.live {
            // The number of requests in flight peaks just before one ends, because it can only grow
            // between two completions.
            let sent = live.sent.load(Ordering::Relaxed);
            let ended = live.ended.load(Ordering::Relaxed);
            self.peak_in_flight = self.peak_in_flight.max(sent.saturating_sub(ended) + 1);
        }
        let exchange = &record.exchange;
        let answer = &record.exchange.answer;
        let ttft = exchange.first_token.map_or(0.0, |first| seconds(first.saturating_sub(exchange.begun)));
        if details {
            self.details.add(record, ttft);
        }
        if exchange.outcome != ExchangeOutcome::Ok {
            self.goodput.add_times(None);
            return;
        }
        let whole = exchange.end.saturating_sub(exchange.begun);
        let e2e = seconds(whole);
        let tokens = answer.completion_tokens.unwrap_or(exchange.arrived);
        let first = exchange.first_token.map_or(Duration::ZERO, |first| first.saturating_sub(exchange.begun));
        let tpot = (tokens > 1).then(|| whole.saturating_sub(first) / (tokens - 1));
        self.goodput.add_times(Some(&RequestLatency { ttft: first, tpot, e2e: whole }));
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
            self.has_tiers = true;
            self.device += u64::from(tiers.device);
            self.host += u64::from(tiers.host);
            self.storage += u64::from(tiers.storage);
            if self.backend.is_none() {
                self.backend.clone_from(&tiers.backend);
            }
        }
        if let Ok(count) = u32::try_from(self.rounds.len())
            && (self.rounds.contains_key(&record.turn.index) || count < 10_000)
        {
            let round = self.rounds.entry(record.turn.index).or_default();
            round.ttft += ttft;
            round.prompt += u64::from(prompt);
            round.cached += u64::from(cached);
            round.requests += 1;
        }
    }

    /// Returns the line in `bench_serving` format.
    pub(super) fn line(&mut self, flags: &ResultSettings, pass: &PassResult) -> Value {
        let took = seconds(pass.tally.took());
        let per_second = |count: f64| if took > 0.0 { count / took } else { 0.0 };
        let input = self.prompts.sum();
        let output = self.answers.sum();
        let completed = pass.tally.all.requests;
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
        put("completed", json!(completed));
        put("total_input_tokens", json!(input as u64));
        put("total_input_text_tokens", json!(input as u64));
        put("total_input_vision_tokens", json!(0));
        put("total_output_tokens", json!(output as u64));
        let counted = self.texts.as_ref().zip(flags.tokenizer.as_ref());
        let again = counted.map(|(texts, tokenizer)| {
            texts.iter().map(|text| tokenizer.count(text, false).unwrap_or(0) as u64).sum::<u64>()
        });
        put("total_output_tokens_retokenized", json!(again));
        put("request_throughput", json!(per_second(completed as f64)));
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
            let of = |value: &dyn Fn(&LatencyLimit, u64) -> f64| -> Map<String, Value> {
                let limits = limits.iter().zip(&self.goodput.met_by);
                limits.map(|(limit, met)| (limit.metric.name().to_owned(), json!(value(limit, *met)))).collect()
            };
            put("goodput_slos_ms", Value::Object(of(&|limit, _| seconds(limit.most) * 1e3)));
            put("request_goodput", json!(per_second(self.goodput.met as f64)));
            put("slo_attainment", json!(share(self.goodput.met)));
            put("slo_attainment_by_metric", Value::Object(of(&|_, met| share(met))));
        }
        let tier = |tokens: u64| if self.has_tiers { json!(tokens) } else { Value::Null };
        let report = flags.cache_report.then(|| {
            json!({
                "total_prompt_tokens": input as u64,
                "total_cached_tokens": self.cached,
                "cache_hit_rate_pct": if input > 0.0 { (1e4 * self.cached as f64 / input).round() / 100.0 } else { 0.0 },
                "device_cached_tokens": tier(self.device),
                "host_cached_tokens": tier(self.host),
                // As in bench_serving, null if no tokens came from L3.
                "storage_cached_tokens": (self.storage > 0).then_some(self.storage),
                "storage_backend": self.backend,
            })
        });
        if let Some(report) = report {
            put("cache_report", report);
        }
        if flags.details {
            std::mem::take(&mut self.details).write(&mut line, flags.cache_report);
        }
        Value::Object(line)
    }

    /// Removes the keys that contain one value per request.
    pub(super) fn without_details(line: &mut Value) {
        if let Some(line) = line.as_object_mut() {
            line.retain(|key, _| !DETAILS.contains(&key.as_str()));
        }
    }

    /// Returns the line in `bench_multiturn.py` format. It always includes the rounds, even without
    /// a barrier.
    pub(super) fn rounds(&self, flags: &ResultSettings, pass: &PassResult, now: &str) -> Value {
        let took = seconds(pass.tally.took());
        let per_second = |count: f64| if took > 0.0 { count / took } else { 0.0 };
        let input = self.prompts.sum();
        let output = self.answers.sum();
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
        let gaps: &LatencyHistogram = &pass.ran.gaps;
        let summary_of_gaps = gaps.summary();
        let of = |value: Option<Duration>| value.map_or(0.0, seconds);
        spread(
            "itl",
            of(summary_of_gaps.map(|gaps| gaps.mean)),
            &|q| of(gaps.at(q)),
            of(summary_of_gaps.map(|gaps| gaps.max)),
        );
        let e2e = self.e2e.sorted();
        spread("latency", self.e2e.mean(), &|q| e2e.nearest(q), self.e2e.max());
        let share = |cached: u64, prompt: f64| if prompt > 0.0 { cached as f64 / prompt } else { 0.0 };
        summary.insert("input_token_throughput".to_owned(), json!(per_second(input)));
        summary.insert("output_token_throughput".to_owned(), json!(per_second(output)));
        summary.insert("throughput".to_owned(), json!(per_second(pass.tally.all.requests as f64)));
        summary.insert("cache_hit_rate".to_owned(), json!(share(self.cached, input)));
        let rounds = self.rounds.iter().map(|(index, round)| {
            let figures = json!({
                "average_ttft": if round.requests > 0 { round.ttft / round.requests as f64 } else { 0.0 },
                "cache_hit_rate": share(round.cached, round.prompt as f64),
                "request_count": round.requests,
            });
            (format!("round_{index}"), figures)
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

/// Formats the rate: `inf` if unlimited (JSON has no infinity), and `trace` for a trace, the same
/// as in `bench_serving`.
fn rate(rate: Option<f64>) -> Value {
    match rate {
        None => json!("trace"),
        Some(rate) if rate.is_finite() => json!(rate),
        Some(_) => json!("inf"),
    }
}
