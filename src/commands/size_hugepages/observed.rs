//! `--observed-keys`, `--observed-bytes`: compares the usage that a master reports with the
//! computed size of its keys.

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::size_hugepages::{Args, request};
use crate::engine::plan::host_pool::L2Size;
use crate::engine::plan::observed::{ObservedKeys, observed};
use crate::engine::plan::{SizingError, size_flag, tiers};

#[derive(Debug, Serialize)]
struct ObservedDocument {
    schema: &'static str,
    model: String,
    page_size: u64,
    keys: u64,
    keys_per_page: u64,
    tokens: u64,
    reported_bytes: u64,
    calculated_bytes: u64,
    unexplained_bytes: i64,
    /// The unexplained bytes as a percentage of the calculated bytes.
    unexplained_percent: f64,
}

/// Computes and prints the comparison.
///
/// # Errors
/// The model is missing, unknown or unsupported, or a size is invalid.
pub(super) fn run(args: &Args, keys: u64, bytes: &str) -> Outcome {
    let reported = size_flag::host("--observed-bytes", bytes)?;
    let request = request::sized(args, L2Size::Gb(1))?;
    let (wanted, Some((model, _))) = (request.wanted, request.model) else {
        return Err(Failure::usage("--observed-keys requires a model").next("set --model"));
    };
    let Some(geometry) = &wanted.geometry else {
        return Err(Failure::usage("--observed-keys requires a model").next("set --model"));
    };
    geometry.check_per_token()?;
    let page = tiers::stored_page(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
    let page = page.ok_or(SizingError::Zero { what: "the page size" })?;
    let page_size = wanted.page_size.saturating_mul(wanted.layout.dcp());
    let ObservedKeys { tokens, bytes, surplus, surplus_percent } = observed(keys, reported, &page, page_size)?;
    let document = ObservedDocument {
        schema: "mcctl.observed/1",
        model,
        page_size,
        keys,
        keys_per_page: page.keys,
        tokens,
        reported_bytes: reported,
        calculated_bytes: bytes,
        unexplained_bytes: surplus,
        unexplained_percent: surplus_percent,
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::data(render(&document))?;
    }
    Ok(Exit::Done)
}

fn render(document: &ObservedDocument) -> String {
    let gib = |bytes: f64| bytes / (1u64 << 30) as f64;
    let surplus = document.unexplained_bytes;
    let which = if surplus < 0 { "less" } else { "more" };
    format!(
        "{} {} keys in pages of {}: {} tokens ({} keys per page).\n\n\
         reported    {:.2} GiB\ncalculated  {:.2} GiB\nunexplained {:+.2} GiB ({:+.2} %)\n\n{}\n",
        document.keys,
        crate::engine::base::text::escaped(&document.model),
        crate::engine::base::text::counted(document.page_size, "token"),
        document.tokens,
        document.keys_per_page,
        gib(document.reported_bytes as f64),
        gib(document.calculated_bytes as f64),
        gib(surplus as f64),
        document.unexplained_percent,
        if surplus == 0 {
            "The two values are identical.".to_owned()
        } else {
            format!(
                "The master reports {which} than the computed size. The computation does not include unfinished puts, keys of \
                 other models, tenants or dtypes, or rounding in the report."
            )
        }
    )
}
