//! TraceLab's sanitized traces of coding agents.

use rand::Rng;
use rand_distr::{Distribution, Exp, Zipf};
use serde::Serialize;

use crate::args::{Kind, Options};
use crate::common::{Output, Result, START_MS, divide, line, mix, spread, timestamp};

pub(crate) const TRACELAB: Kind = Kind {
    name: "tracelab",
    about: "TraceLab, all users: rounds of coding agents, token counts without hashes",
    requests: 665_453,
    sessions: Some(8_058),
    generate,
};

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

fn generate(options: &Options, out: &mut Output) -> Result<()> {
    let rng = &mut options.rng();
    let (weight, added, output) = (spread(1.3)?, spread(1.4)?, spread(1.1)?);
    let (tool, human) = (Exp::new(1.0 / 4_000.0)?, Exp::new(1.0 / 60_000.0)?);
    let (base, limit, summary) = (options.tokens(24_000.0), options.tokens(180_000.0), options.tokens(8_000.0));
    let user_of = Zipf::new(52.0, 0.8)?;
    let weights: Vec<f64> = (0..options.sessions).map(|_| weight.sample(rng)).collect();
    for (session, count) in divide(options.requests, &weights).into_iter().enumerate() {
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
