//! Agent sessions like those of `cc-traces-weka-042026`.

mod row;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};

use self::row::{WekaEntry, WekaRequest, WekaSession, WekaSubagent, WekaTotals};
use crate::args::{Kind, Options};
use crate::common::{Context, Output, Result, divide, line, mix, spread};

pub(crate) const WEKA: Kind = Kind {
    name: "weka",
    about: "cc-traces-weka-042026: agent sessions with subagents, blocks of 64 tokens",
    requests: 59_274,
    sessions: Some(739),
    generate,
};

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

fn generate(options: &Options, out: &mut Output) -> Result<()> {
    let rng = &mut options.rng();
    let (weight, size) = (spread(1.2)?, spread(0.25)?);
    let weights: Vec<f64> = (0..options.sessions).map(|_| weight.sample(rng)).collect();
    for (session, count) in divide(options.requests, &weights).into_iter().enumerate() {
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
