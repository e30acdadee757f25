//! Steps that put an endpoint's caches into a known state. What a step did is seen, not believed: a flush is answered with 200, a
//! cleared store has no keys, a filler was answered.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::engine::env::Env;
use crate::engine::load::server::{self, Profile, Server, Settled};
use crate::engine::load::session::Side;
use crate::engine::load::session::caches::Caches;
use crate::engine::load::session::filler::{self, AT_ONCE, By, Listed, Sent};
use crate::engine::load::workload::Workload;
use crate::engine::load::workload::foreseen::Foreseen;

/// A busy server is asked so long to empty its caches.
const FLUSH: Duration = Duration::from_secs(60);
/// A store is cleared again so long.
const CLEAR: Duration = Duration::from_secs(60);
/// The writing back is waited for so long.
const SETTLE: Duration = Duration::from_secs(120);
/// Tokens of a filler's prompt at most, and of one that warms up.
const FILLER: u64 = 2048;
const WARMER: u64 = 512;
/// Fillers of a step at most: two thousand million tokens. A tier that is said to be larger cannot be filled.
const FILLERS_MAX: u32 = 1 << 20;

/// A tier of the server's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// L1.
    Device,
    /// L2.
    Host,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Empty device and host (L1 and L2).
    Flush,
    /// Empty the store (L3), and see that it is.
    Clear,
    /// Wait until what was computed has been written to L2 and L3.
    Settle,
    /// So many requests that share nothing with what is measured.
    Warm(u32),
    /// Each shared system prompt once.
    Prime,
    /// Other conversations of at least the tier's size, so that it has nothing of those that are measured.
    Fill(Tier),
    /// A call to the server's profiler.
    Profile(Profile),
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Flush => f.write_str("flush device and host"),
            Control::Clear => f.write_str("clear the store"),
            Control::Settle => f.write_str("wait for what is written back"),
            Control::Warm(requests) => write!(f, "warm up with {requests} requests"),
            Control::Prime => f.write_str("send the shared prompts"),
            Control::Fill(Tier::Device) => f.write_str("fill the device with others"),
            Control::Fill(Tier::Host) => f.write_str("fill the host with others"),
            Control::Profile(profile) => write!(f, "call {}", profile.route),
        }
    }
}

/// A step could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {step}: {found}")]
pub struct ControlError {
    /// Which.
    pub step: String,
    /// What was found.
    pub found: String,
}

/// What a step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Performed {
    /// It is done; a word about it.
    Done(Option<String>),
    /// It was told to stop.
    Stopped,
}

/// Do `step` at `side`.
///
/// # Errors
/// The endpoint cannot, or what it did is not enough.
pub(super) async fn perform<E: Env + Unpin>(
    env: &E,
    (side, at): (&mut Side, usize),
    caches: &mut Caches,
    by: By,
    step: &Control,
    stop: &mut mpsc::Receiver<()>,
) -> Result<Performed, ControlError> {
    let failed = |found: String| ControlError { step: step.to_string(), found };
    let calls = matches!(step, Control::Flush | Control::Clear | Control::Settle | Control::Profile(_));
    if calls {
        let server = side.server.clone().ok_or_else(|| failed("its other routes are not to be used".to_owned()))?;
        return tokio::select! {
            biased;
            done = call(env, &server, at, caches, step) => done.map(Performed::Done).map_err(failed),
            Some(()) = stop.recv() => Ok(Performed::Stopped),
        };
    }
    let info = caches.sights.get(at).and_then(|sight| sight.info.clone()).unwrap_or_default();
    // A prompt has to fit into the device beside others.
    let most = info.device_tokens.map_or(FILLER, |tokens| (tokens / 8).clamp(1, FILLER));
    let sent = match step {
        Control::Prime => {
            let shared = side.workload.shared();
            if shared.is_empty() {
                return Ok(Performed::Done(Some("the conversations share no prompt that is known".to_owned())));
            }
            let mut listed = Listed(shared);
            caches.book.on(at);
            let mut foreseen = Foreseen::new(&mut listed as &mut (dyn Workload + Send), &mut caches.book);
            filler::send(env, side, &mut foreseen, AT_ONCE, stop).await
        }
        Control::Warm(requests) => {
            let tokens = most.min(WARMER) as u32;
            let mut others = filler::strangers(by, side, *requests, tokens);
            filler::send(env, side, &mut others, 1, stop).await
        }
        Control::Fill(tier) => {
            let size = size_of(env, side, caches, at, *tier).await.map_err(failed)?;
            // One more than fills it, since pages in use are never given up; the cap leaves room for all that are in flight.
            let requests = u32::try_from(size.div_ceil(most).saturating_add(1)).ok();
            let requests = requests.filter(|requests| *requests <= FILLERS_MAX);
            let found = || format!("its {size} tokens would take more than {FILLERS_MAX} requests");
            let requests = requests.ok_or_else(|| failed(found()))?;
            let mut others = filler::strangers(by, side, requests, most as u32);
            filler::send(env, side, &mut others, 2, stop).await
        }
        Control::Flush | Control::Clear | Control::Settle | Control::Profile(_) => {
            Sent { tally: Default::default(), stopped: false }
        }
    };
    if sent.stopped {
        return Ok(Performed::Stopped);
    }
    if let Some((kind, (count, says))) = sent.tally.failures.iter().next() {
        return Err(failed(format!("{count} of its requests failed: {kind}: {says}")));
    }
    let tokens = sent.tally.all.tokens;
    if *step != Control::Prime {
        caches.book.passed(at, tokens.prompt + tokens.completion);
    }
    Ok(Performed::Done(Some(format!("{} requests of {} tokens", sent.tally.all.requests, tokens.prompt))))
}

/// Tokens that `tier` holds.
async fn size_of<E: Env>(_: &E, side: &Side, caches: &Caches, at: usize, tier: Tier) -> Result<u64, String> {
    let info = caches.sights.get(at).and_then(|sight| sight.info.as_ref());
    let told = match tier {
        Tier::Device => info.and_then(|info| info.device_tokens),
        Tier::Host => match &side.server {
            Some(server) => {
                server.counters(false).await.map(|counters| counters.now.host_total).filter(|size| *size > 0)
            }
            None => None,
        }
        .or(info.and_then(|info| info.host_tokens())),
    };
    told.ok_or_else(|| "the server does not tell the tier's size (/server_info)".to_owned())
}

/// A step that is a call to the server.
async fn call<E: Env>(
    env: &E,
    server: &Server,
    at: usize,
    caches: &mut Caches,
    step: &Control,
) -> Result<Option<String>, String> {
    match step {
        Control::Flush => {
            server.flush(env, server.flush_timeout().unwrap_or(FLUSH)).await.map_err(|error| error.to_string())?;
            caches.book.flushed(at);
            Ok(None)
        }
        Control::Clear => {
            let server::Cleared { left, took } = server.clear(env, CLEAR).await.map_err(|error| error.to_string())?;
            caches.book.cleared(at);
            let took = took.as_secs_f64();
            let word = match left {
                Some(0) => format!("the store is empty, by its master ({took:.1} s)"),
                Some(left) => {
                    let word = format!("{left} objects were still in the store {took:.1} s after it was first cleared");
                    let doubts = caches.sights.get_mut(at).map(|sight| &mut sight.doubts);
                    doubts.into_iter().for_each(|doubts| doubts.push(word.clone()));
                    word
                }
                None => format!(
                    "cleared, and again when leases were over ({took:.1} s); no master was asked (--master-metrics)"
                ),
            };
            Ok(Some(word))
        }
        Control::Settle => Ok(match server.settle(env, SETTLE).await {
            Settled::Still => None,
            Settled::Short(tokens) => {
                Some(format!("{tokens} tokens that were copied to the host were never written to the store"))
            }
            Settled::Unseen => Some("the server tells no counters: waited, no more".to_owned()),
            Settled::Busy => {
                let word = format!("it still wrote back after {SETTLE:?}");
                let doubts = caches.sights.get_mut(at).map(|sight| &mut sight.doubts);
                doubts.into_iter().for_each(|doubts| doubts.push(word.clone()));
                Some(word)
            }
        }),
        Control::Profile(profile) => Ok(match &server.profile(profile).await[..] {
            [] => None,
            failed => Some(format!("{} failed: {}", profile.route, failed.join("; "))),
        }),
        Control::Warm(_) | Control::Prime | Control::Fill(_) => Ok(None),
    }
}
