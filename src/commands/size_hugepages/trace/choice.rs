//! The size of L3 for the deployment file.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::request;
use crate::commands::size_hugepages::trace::curve::CurveInputs;
use crate::commands::size_hugepages::trace::scale::TokenScale;
use crate::engine::plan::host_pool::{self, L2Size};
use crate::engine::plan::worth::PriceCase;

/// The sizes of the tiers before L3, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownTiers {
    pub l1: u64,
    /// 0 if the command line has no size of L2.
    pub l2: u64,
}

/// The tiers of the command line; `None` if the size of L1 is unknown.
///
/// # Errors
/// A size is invalid, or depends on a model that is not set.
pub(super) fn known_tiers(args: &Args, scale: &TokenScale) -> Result<Option<KnownTiers>, Failure> {
    let Some(device_tokens) = args.device_pool_tokens else { return Ok(None) };
    let l2 = match (args.hicache_ratio, &args.hicache_size) {
        (Some(ratio), _) => host_pool::ratio_tokens(ratio, device_tokens, args.page_size.max(1))?,
        (None, Some(_)) => match request::read(args)?.wanted.l2_size {
            L2Size::Gb(gb) => scale.l2_tokens(gb).ok_or_else(|| {
                Failure::usage("--hicache-size requires --model, because the token size depends on the model")
                    .next("set --model, or use --hicache-ratio")
            })?,
            L2Size::Ratio { .. } | L2Size::Auto { .. } => 0,
        },
        (None, None) => 0,
    };
    Ok(Some(KnownTiers { l1: device_tokens, l2 }))
}

/// A size of L3 in tokens, and why it was chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// `price`, `hit-rate` or `knee`.
    pub by: &'static str,
    pub tokens: u64,
}

impl Choice {
    /// What `--choose` names. By default, the size that pays most with the first price; without
    /// prices, the smallest one with the first requested hit rate; without a rate, the knee. `None`
    /// if no size pays, the rate is not reachable, or there are no hits.
    ///
    /// # Errors
    /// `--choose` names prices or rates that are not set.
    pub(super) fn new(
        args: &Args,
        inputs: &CurveInputs,
        size_of: impl Fn(f64) -> Option<u64>,
    ) -> Result<Option<Choice>, Failure> {
        let (price, rate) = (inputs.prices.first(), args.trace.hit_rate.first());
        let without = |flag: &str| Failure::usage(format!("--choose requires {flag}")).next(format!("set {flag}"));
        let (by, tokens) = match (args.trace.choose.as_deref(), price, rate) {
            (Some("price"), None, _) => return Err(without("--gpu-hour")),
            (Some("hit-rate"), _, None) => return Err(without("--hit-rate")),
            (Some("price") | None, Some(price), _) => ("price", inputs.best_size(price, PriceCase::Middle)),
            (Some("hit-rate"), _, Some(rate)) | (None, None, Some(rate)) => ("hit-rate", size_of(*rate)),
            _ => ("knee", inputs.curves.all.knee()),
        };
        Ok(tokens.map(|tokens| Choice { by, tokens }))
    }
}
