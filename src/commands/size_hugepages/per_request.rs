//! `--trace --per-request`: what each tier serves of each request, in the order of the trace.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::size_hugepages::question::{self, NO_SIZE};
use crate::commands::size_hugepages::{Args, trace_file};
use crate::engine::base::text::escaped;
use crate::engine::plan::error::SLIDING;
use crate::engine::plan::hicache::prompt::Prompt;
use crate::engine::plan::hicache::{Hicache, Served, Tiers, Why};
use crate::engine::plan::host_pool::{self, Wish};
use crate::engine::plan::need::need;
use crate::engine::plan::{PlanError, tiers};

/// A request and what it gets.
#[derive(Clone, Debug, Serialize)]
struct Row {
    line: u64,
    prompt: u64,
    device: u64,
    host: u64,
    storage: u64,
    new: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Totals {
    prompt: u64,
    device: u64,
    host: u64,
    storage: u64,
    new: u64,
}

#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    trace: String,
    page_size: u64,
    device_tokens: u64,
    host_tokens: u64,
    /// Tokens written to storage in all.
    stored_tokens: u64,
    /// Tokens that the segments hold; `null` without a model.
    storage_tokens: Option<u64>,
    /// The line from which on the store evicts, and figures are no longer exact.
    storage_full_at: Option<u64>,
    requests: Vec<Row>,
    totals: Totals,
}

/// Requests of one run: what is answered is held in memory.
const REQUESTS_MAX: usize = 10_000_000;

/// Answer.
///
/// # Errors
/// What the user has to know.
pub fn run(args: &Args, path: &str) -> Outcome {
    let (tiers, storage_tokens) = sizes(args)?;
    let mut server = Hicache::new(tiers);
    let mut requests = Vec::new();
    let mut totals = Totals::default();
    let mut storage_full_at = None;
    trace_file::each(path, |line, request| {
        let prompt = Prompt::new(&request, args.trace_block_tokens, tiers.page_size)?;
        if requests.len() >= REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} requests"));
        }
        let Served { device, host, storage, new, why } = server.serve(&prompt);
        let row = Row { line, prompt: prompt.tokens, device, host, storage, new, why: why.map(word) };
        for (sum, tokens) in [
            (&mut totals.prompt, row.prompt),
            (&mut totals.device, device),
            (&mut totals.host, host),
            (&mut totals.storage, storage),
            (&mut totals.new, new),
        ] {
            *sum = sum.saturating_add(tokens);
        }
        requests.push(row);
        if storage_full_at.is_none() && storage_tokens.is_some_and(|most| server.stored_tokens() > most) {
            storage_full_at = Some(line);
        }
        Ok(())
    })?;
    let document = Document {
        schema: "mcctl.tokens-by-tier/1",
        trace: path.to_owned(),
        page_size: tiers.page_size,
        device_tokens: tiers.device_tokens,
        host_tokens: tiers.host_tokens,
        stored_tokens: server.stored_tokens(),
        storage_tokens,
        storage_full_at,
        requests,
        totals,
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::data(render(&document))?;
    }
    Ok(Exit::Done)
}

/// The tiers, and the tokens that the segments hold, where a model says what a token takes.
fn sizes(args: &Args) -> Result<(Tiers, Option<u64>), Failure> {
    let Some(device_tokens) = args.device_pool_tokens else {
        return Err(Failure::usage("--per-request must know how many tokens the device holds")
            .next("give --device-pool-tokens: max_total_num_tokens in SGLang's log"));
    };
    if args.page_size == 0 || device_tokens < args.page_size {
        return Err(Failure::usage("--device-pool-tokens must hold at least one page of --page-size tokens"));
    }
    if device_tokens > DEVICE_TOKENS_MAX {
        return Err(PlanError::TooLarge { what: "--device-pool-tokens" }.into());
    }
    let model = match &args.model {
        Some(_) => Some(question::sized(args, Wish::Gb(1))?.wanted),
        None => None,
    };
    let host_tokens = match (args.hicache_ratio, &args.hicache_size, &model) {
        (Some(ratio), ..) => host_pool::ratio_tokens(ratio, device_tokens, args.page_size)?,
        (None, Some(_), Some(wanted)) => {
            let Some(geometry) = wanted.geometry.filter(|geometry| geometry.window_layers == 0) else {
                return Err(PlanError::Unsupported { what: SLIDING }.into());
            };
            let wish = question::read(args)?.wanted.wish;
            let pools = host_pool::pools(wish, wanted.page_size, &geometry, &wanted.layout, wanted.cache)?;
            pools.first().map_or(0, |pool| pool.tokens)
        }
        (None, Some(_), None) => {
            return Err(Failure::usage("--hicache-size is in bytes, and without --model nobody knows a token's")
                .next("name the model, or give --hicache-ratio"));
        }
        (None, None, _) => return Err(Failure::usage("the size of L2 is not given").next(NO_SIZE)),
    };
    let storage_tokens = match model {
        Some(wanted) => match wanted.geometry.filter(|geometry| geometry.window_layers == 0) {
            Some(geometry) => {
                let page = tiers::stored_page(wanted.page_size, &geometry, &wanted.layout, wanted.cache)?;
                Some(tiers::l3(need(&wanted)?.mounted, wanted.page_size, &page, 1).tokens)
            }
            None => None,
        },
        None => None,
    };
    let tiers = Tiers {
        page_size: args.page_size,
        device_tokens,
        host_tokens,
        storage: !args.no_storage,
        prefetch_threshold: args.prefetch_threshold,
        chunk_tokens: Some(args.chunked_prefill_size).filter(|tokens| *tokens > 0),
    };
    Ok((tiers, storage_tokens))
}

/// More than any device holds.
const DEVICE_TOKENS_MAX: u64 = 1 << 40;

fn word(why: Why) -> &'static str {
    match why {
        Why::BelowThreshold => "below the prefetch threshold",
        Why::HostFull => "the host has no room",
        Why::DeviceFull => "the device has no room",
        Why::NotOnHost => "the beginning is not on the host",
        Why::TooLong => "larger than the device's pool: never started",
    }
}

fn render(document: &Document) -> String {
    let mut text = format!(
        "{} requests of {}, one after the other; pages of {} tokens, {} tokens on the device, {} on the host.\n\n",
        document.requests.len(),
        escaped(&document.trace),
        document.page_size,
        document.device_tokens,
        document.host_tokens
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["line", "prompt", "device", "host", "storage", "new", "storage gave less because"]);
    for row in &document.requests {
        let cells = [row.line, row.prompt, row.device, row.host, row.storage, row.new].map(|n| n.to_string());
        table.add_row(cells.into_iter().chain([row.why.unwrap_or_default().to_owned()]));
    }
    for column in 0..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.push_str(&format!("{}\n\n", table.trim_fmt()));
    let all = document.totals;
    let share = |tokens: u64| tokens as f64 * 100.0 / all.prompt.max(1) as f64;
    text.push_str(&format!(
        "{} tokens: {:.2} % from the device, {:.2} % from the host, {:.2} % from storage, {:.2} % new.\n",
        all.prompt,
        share(all.device),
        share(all.host),
        share(all.storage),
        share(all.new)
    ));
    match (document.storage_full_at, document.storage_tokens) {
        (Some(line), Some(most)) => text.push_str(&format!(
            "From line {line} on the segments, which hold {most} tokens, are full: what the store evicts then is not foreseen.\n"
        )),
        (_, most) => {
            let held = most.map_or(String::new(), |most| format!(" of the {most} that the segments hold"));
            text.push_str(&format!("{} tokens were written to storage{held}.\n", document.stored_tokens));
        }
    }
    text
}
