//! The size of L3 for the deployment file.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::request;
use crate::commands::size_hugepages::trace::curve::CurveInputs;
use crate::engine::plan::SizingError;
use crate::engine::plan::host_pool;
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
pub(super) fn known_tiers(args: &Args) -> Result<Option<KnownTiers>, Failure> {
    let Some(l1) = args.device_pool_tokens else { return Ok(None) };
    if l1 < args.page_size.max(1) {
        return Err(Failure::usage("--device-pool-tokens must be at least --page-size"));
    }
    Ok(Some(KnownTiers { l1, l2: l2_tokens(args, l1)?.unwrap_or(0) }))
}

/// The size of L2 in tokens; `None` if the command line has neither `--hicache-size` nor
/// `--hicache-ratio`.
///
/// # Errors
/// A size is invalid, or depends on a model that is not set.
pub(super) fn l2_tokens(args: &Args, device_tokens: u64) -> Result<Option<u64>, Failure> {
    if device_tokens > DEVICE_TOKENS_MAX {
        return Err(SizingError::TooLarge { what: "--device-pool-tokens" }.into());
    }
    if let Some(ratio) = args.hicache_ratio {
        return Ok(Some(host_pool::ratio_tokens(ratio, device_tokens, args.page_size)?));
    }
    if args.hicache_size.is_none() {
        return Ok(None);
    }
    let wanted = request::read(args)?.wanted;
    let Some(geometry) = &wanted.geometry else {
        return Err(Failure::usage("--hicache-size requires --model, because the token size depends on the model")
            .next("set --model, or use --hicache-ratio"));
    };
    geometry.check_per_token()?;
    let ranks = host_pool::pools(&wanted, geometry)?;
    Ok(Some(ranks.first().and_then(|rank| rank.pools.first()).map_or(0, |pool| pool.units)))
}

/// Maximum device pool size in tokens.
const DEVICE_TOKENS_MAX: u64 = 1 << 40;

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
