//! `--trace --per-request`: the tokens that each tier serves for each request, in trace order.

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::table::{self, ReportTable};
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::request::{self, NO_SIZE};
use crate::commands::size_hugepages::trace::{choice, file};
use crate::engine::base::text::escaped;
use crate::engine::plan::hicache::prompt::PromptPager;
use crate::engine::plan::hicache::{HicacheModel, StorageShortfall, TierSettings, TierTokens};
use crate::engine::plan::host_pool::L2Size;
use crate::engine::plan::need::need;
use crate::engine::plan::sizing_input::SizingInput;
use crate::engine::plan::tiers;

/// A request's tokens by tier.
#[derive(Clone, Debug, Serialize)]
struct RequestRow {
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
struct RequestTokens {
    prompt: u64,
    device: u64,
    host: u64,
    storage: u64,
    new: u64,
}

#[derive(Debug, Serialize)]
struct TokensByTierDocument {
    schema: &'static str,
    trace: String,
    page_size: u64,
    device_tokens: u64,
    host_tokens: u64,
    /// Total number of tokens written to storage.
    stored_tokens: u64,
    /// Segment capacity in tokens; `null` without a model.
    storage_tokens: Option<u64>,
    /// The line at which the store starts to evict. From this line on, the results are only
    /// approximate.
    storage_full_at: Option<u64>,
    requests: Vec<RequestRow>,
    totals: RequestTokens,
}

/// Maximum number of requests. The limit exists because all results are kept in memory.
const REQUESTS_MAX: usize = 10_000_000;
/// Maximum number of pages of all requests. The storage and the tree have each different page.
const PAGES_MAX: u64 = 1 << 26;

/// Computes and prints the tokens by tier.
///
/// # Errors
/// The trace or the model cannot be read, or an argument is missing or invalid.
pub(super) fn run(args: &Args, path: &str) -> Outcome {
    let (tiers, storage_tokens) = sizes(args)?;
    let mut server = HicacheModel::new(tiers);
    let mut requests = Vec::new();
    let mut totals = RequestTokens::default();
    let mut storage_full_at = None;
    let trace = file::read(path, &args.trace)?;
    let tokens = trace.requests.iter().map(|request| request.input.saturating_add(request.output));
    let pages = tokens.fold(0, u64::saturating_add) / tiers.page_size;
    if pages > PAGES_MAX {
        return Err(Failure::usage(format!("--per-request reads at most {PAGES_MAX} pages"))
            .tried(path.to_owned())
            .found(format!("about {pages} pages of {} tokens", tiers.page_size))
            .next("set --page-size to that of SGLang, e.g. 64, or use a part of the trace"));
    }
    if trace.requests.len() > REQUESTS_MAX {
        return Err(Failure::usage(format!("--per-request reads at most {REQUESTS_MAX} requests"))
            .tried(path.to_owned())
            .found(format!("{} requests", trace.requests.len())));
    }
    for caveat in &trace.caveats {
        output::say(format!("caveat: {}", file::caveat(caveat)));
    }
    let mut pager = PromptPager::new(tiers.page_size, trace.block_tokens);
    for request in &trace.requests {
        let line = request.line;
        let prompt = pager.page(request, &trace.keys);
        let TierTokens { device, host, storage, new, why } = server.serve(&prompt);
        let row = RequestRow { line, prompt: prompt.tokens, device, host, storage, new, why: why.map(word) };
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
    }
    let document = TokensByTierDocument {
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

/// The tier sizes, and the segment capacity in tokens if the model is known.
fn sizes(args: &Args) -> Result<(TierSettings, Option<u64>), Failure> {
    let Some(device_tokens) = args.device_pool_tokens else {
        return Err(Failure::usage("--per-request requires the device pool size")
            .next("set --device-pool-tokens to the max_total_num_tokens value in SGLang's log"));
    };
    if args.page_size == 0 || device_tokens < args.page_size {
        return Err(Failure::usage("--device-pool-tokens must be at least --page-size"));
    }
    let model = match &args.model {
        Some(_) => Some(request::sized(args, L2Size::Gb(1))?.wanted),
        None => None,
    };
    if let Some(geometry) = model.as_ref().and_then(|wanted| wanted.geometry.as_ref()) {
        geometry.check_per_token()?;
    }
    let Some(host_tokens) = choice::l2_tokens(args, device_tokens)? else {
        return Err(Failure::usage("no L2 size specified").next(NO_SIZE));
    };
    let storage_tokens = match &model {
        Some(wanted @ SizingInput { geometry: Some(geometry), .. }) => {
            let page = tiers::stored_page(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
            let mounted = need(wanted)?.mounted;
            page.map(|page| tiers::l3(mounted, wanted.page_size, &page, 1).tokens)
        }
        _ => None,
    };
    let tiers = TierSettings {
        page_size: args.page_size,
        device_tokens,
        host_tokens,
        storage: !args.trace.no_storage,
        prefetch_threshold: args.trace.prefetch_threshold,
        chunk_tokens: Some(args.trace.chunked_prefill_size).filter(|tokens| *tokens > 0),
    };
    Ok((tiers, storage_tokens))
}

fn word(why: StorageShortfall) -> &'static str {
    match why {
        StorageShortfall::BelowThreshold => "below the prefetch threshold",
        StorageShortfall::HostFull => "no free space on the host",
        StorageShortfall::DeviceFull => "no free space on the device",
        StorageShortfall::NotOnHost => "the prefix is not on the host",
        StorageShortfall::TooLong => "larger than the device pool: never started",
    }
}

fn render(document: &TokensByTierDocument) -> String {
    let mut text = format!(
        "{} sequential requests from {}; pages of {} tokens, {} tokens on the device, {} on the host.\n\n",
        document.requests.len(),
        escaped(&document.trace),
        document.page_size,
        document.device_tokens,
        document.host_tokens
    );
    let head = ["line", "prompt", "device", "host", "storage", "new", "storage limited by"];
    let mut table = ReportTable::new("", &head).text_column(6);
    for row in &document.requests {
        let cells = [row.line, row.prompt, row.device, row.host, row.storage, row.new].map(|n| n.to_string());
        table.row(cells.into_iter().chain([row.why.unwrap_or_default().to_owned()]));
    }
    text.push_str(&format!("{}\n", table.render(table::width())));
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
            "Caveat: the segments ({most} tokens) are full from line {line} on; store evictions are not modeled.\n"
        )),
        (_, most) => {
            let held = most.map_or(String::new(), |most| format!(" (segment capacity: {most})"));
            text.push_str(&format!("{} tokens written to storage{held}.\n", document.stored_tokens));
        }
    }
    text
}
