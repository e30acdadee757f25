//! Steps that put an endpoint's caches into a known state. The result of each step is verified: a
//! flush must return 200, a cleared store must be empty, and filler requests must succeed.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::server::{ClearResult, ObservationCaveat, Profile, ServerCallError, ServerClient, SettleResult};
use crate::session::LoadEndpoint;
use crate::session::caches::SessionCaches;
use crate::session::filler::{self, AT_ONCE, FillerResult, FillerSource, PromptList};
use crate::workload::LoadWorkload;
use crate::workload::expected_hits::WithExpectedHits;
use mcctl_sys::env::Env;

/// How long to retry a flush while the server is busy.
const FLUSH: Duration = Duration::from_secs(60);
/// How long to keep clearing a store until it is empty.
const CLEAR: Duration = Duration::from_secs(60);
/// Maximum wait for write-back to finish.
const SETTLE: Duration = Duration::from_secs(120);
/// Maximum prompt length of a filler request, in tokens.
const FILLER: u64 = 2048;
/// Maximum prompt length of a warm-up request, in tokens.
const WARMER: u64 = 512;
/// Maximum number of filler requests per step, which corresponds to 2 billion tokens. A tier that
/// reports a larger size cannot be filled.
const FILLERS_MAX: u32 = 1 << 20;

/// A tier of the server's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// L1, the device memory.
    Device,
    /// L2, the host memory.
    Host,
}

/// A step that changes the state of an endpoint's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Flush device and host memory (L1 and L2).
    Flush,
    /// Clear the store (L3) and verify that it is empty.
    Clear,
    /// Wait until computed pages have been written to L2 and L3.
    Settle,
    /// Send this many requests that share no prefix with the measured requests.
    Warm(u32),
    /// Send each shared system prompt once.
    Prime,
    /// Send the last request before the start of each conversation that had begun before the run,
    /// with at most this many in flight.
    Rebuild(u32),
    /// Fill the tier with unrelated conversations, so that it no longer contains any measured ones.
    Fill(Tier),
    /// Call the server's profiler endpoint.
    Profile(Profile),
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Flush => f.write_str("flush device and host"),
            Control::Clear => f.write_str("clear the store"),
            Control::Settle => f.write_str("wait for write-back"),
            Control::Warm(requests) => write!(f, "warm up with {requests} requests"),
            Control::Prime => f.write_str("send the shared prompts"),
            Control::Rebuild(_) => f.write_str("rebuild the prefixes of sessions that have begun"),
            Control::Fill(Tier::Device) => f.write_str("fill the device with unrelated requests"),
            Control::Fill(Tier::Host) => f.write_str("fill the host with unrelated requests"),
            Control::Profile(profile) => write!(f, "call {}", profile.route),
        }
    }
}

/// A control step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {step}: {cause}")]
pub struct StepError {
    pub step: Control,
    pub cause: StepFailure,
}

/// Why a control step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFailure {
    #[error("calls to other server routes are disabled")]
    NoServerCalls,
    #[error(transparent)]
    Call(#[from] ServerCallError),
    /// `kind` and `message` describe the first failed request.
    #[error("{count} requests failed; the first error is {kind}: {message}")]
    Requests { count: u64, kind: String, message: String },
    #[error("filling the tier's {tokens} tokens would take more than {FILLERS_MAX} requests")]
    TierTooLarge { tokens: u64 },
    #[error("the server does not report the tier's size (/server_info)")]
    UnknownTierSize,
}

/// The result of a control step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StepResult {
    Done(Option<StepNote>),
    /// A stop signal interrupted the step.
    Stopped,
}

/// Additional information about a successful control step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum StepNote {
    #[error("no shared prompt is known for these conversations")]
    NoSharedPrompt,
    #[error("{requests} requests with {tokens} prompt tokens in total")]
    Sent { requests: u64, tokens: u64 },
    #[error("{failed} of {requests} warm-up requests failed ({kind}: {message}); the caches lack their prefixes")]
    NotRebuilt { requests: u64, failed: u64, kind: String, message: String },
    #[error("the master reports an empty store after {:.1} s", .0.as_secs_f64())]
    StoreEmpty(Duration),
    #[error("cleared again after leases had expired ({:.1} s); not verified (requires --master-metrics)", .0.as_secs_f64())]
    ClearedUnverified(Duration),
    #[error("{0} tokens were copied to the host but never written to the store")]
    NotWrittenBack(u64),
    #[error("the server reports no counters; waited for a fixed time instead")]
    NoCounters,
    #[error("{route} failed: {}", .errors.join(", "))]
    ProfileFailed { route: &'static str, errors: Vec<String> },
    /// Also added as a caveat to the next pass.
    #[error(transparent)]
    Caveat(ObservationCaveat),
}

/// A control step that is ready to start.
pub(super) struct ControlRun<'a, E: Env + Unpin> {
    pub(super) env: &'a E,
    pub(super) side: &'a mut LoadEndpoint,
    /// Index under which the endpoint's server is tracked.
    pub(super) server: usize,
    pub(super) caches: &'a mut SessionCaches,
    /// Source of unmeasured prompts.
    pub(super) filler: FillerSource,
    pub(super) step: &'a Control,
}

impl<E: Env + Unpin> ControlRun<'_, E> {
    /// Executes the step.
    ///
    /// # Errors
    /// The endpoint does not support the step, a call or request failed, or the server does not
    /// report a tier's size.
    pub(super) async fn execute(self, stop: &mut mpsc::Receiver<()>) -> Result<StepResult, StepError> {
        let ControlRun { env, side, server: at, caches, filler: by, step } = self;
        let failed = |cause: StepFailure| StepError { step: step.clone(), cause };
        let calls = matches!(step, Control::Flush | Control::Clear | Control::Settle | Control::Profile(_));
        if calls {
            let server = side.server.clone().ok_or_else(|| failed(StepFailure::NoServerCalls))?;
            return tokio::select! {
                biased;
                done = call(env, &server, at, caches, step) => {
                    done.map(StepResult::Done).map_err(|error| failed(error.into()))
                }
                Some(()) = stop.recv() => Ok(StepResult::Stopped),
            };
        }
        let info = caches.endpoints.get(at).and_then(|endpoint| endpoint.info.clone()).unwrap_or_default();
        // A prompt has to fit into device memory together with others.
        let most = info.device_tokens.map_or(FILLER, |tokens| (tokens / 8).clamp(1, FILLER));
        let sent = match step {
            Control::Prime => {
                let shared = side.workload.shared();
                if shared.is_empty() {
                    return Ok(StepResult::Done(Some(StepNote::NoSharedPrompt)));
                }
                let mut listed = PromptList(shared);
                caches.book.select(at);
                let mut with_expected =
                    WithExpectedHits::new(&mut listed as &mut (dyn LoadWorkload + Send), &mut caches.book);
                filler::send(env, &side.target, &mut with_expected, AT_ONCE, stop).await
            }
            Control::Rebuild(in_flight) => {
                caches.book.select(at);
                let target = side.target.clone();
                let mut warmups = filler::Warmups(&mut *side.workload);
                let mut with_expected =
                    WithExpectedHits::new(&mut warmups as &mut (dyn LoadWorkload + Send), &mut caches.book);
                filler::send(env, &target, &mut with_expected, *in_flight as usize, stop).await
            }
            Control::Warm(requests) => {
                let tokens = most.min(WARMER) as u32;
                let mut others = filler::unrelated_prompts(by, side, *requests, tokens);
                filler::send(env, &side.target, &mut others, 1, stop).await
            }
            Control::Fill(tier) => {
                let tokens =
                    tier_tokens(side, caches, at, *tier).await.ok_or_else(|| failed(StepFailure::UnknownTierSize))?;
                // One extra request, because pages in use are never evicted. The limit leaves room
                // for all requests in flight.
                let requests = u32::try_from(tokens.div_ceil(most).saturating_add(1)).ok();
                let requests = requests.filter(|requests| *requests <= FILLERS_MAX);
                let requests = requests.ok_or_else(|| failed(StepFailure::TierTooLarge { tokens }))?;
                let mut others = filler::unrelated_prompts(by, side, requests, most as u32);
                filler::send(env, &side.target, &mut others, 2, stop).await
            }
            Control::Flush | Control::Clear | Control::Settle | Control::Profile(_) => {
                FillerResult { tally: Default::default(), stopped: false }
            }
        };
        if sent.stopped {
            return Ok(StepResult::Stopped);
        }
        if let Some((kind, (count, message))) = sent.tally.failures.iter().next() {
            let kind = kind.clone();
            let message = message.clone();
            let requests = sent.tally.all.requests;
            // The trace may have prompts that the model does not accept. The run shows them, too.
            if matches!(step, Control::Rebuild(_)) && requests > 0 {
                let failed = sent.tally.failed();
                let note = StepNote::NotRebuilt { requests: requests + failed, failed, kind, message };
                return Ok(StepResult::Done(Some(note)));
            }
            return Err(failed(StepFailure::Requests { count: *count, kind, message }));
        }
        let tokens = sent.tally.all.tokens;
        if !matches!(step, Control::Prime | Control::Rebuild(_)) {
            caches.book.advance(at, tokens.prompt + tokens.completion);
        }
        Ok(StepResult::Done(Some(StepNote::Sent { requests: sent.tally.all.requests, tokens: tokens.prompt })))
    }
}

/// Returns the capacity of `tier` in tokens, if the server reports it.
async fn tier_tokens(side: &LoadEndpoint, caches: &SessionCaches, at: usize, tier: Tier) -> Option<u64> {
    let info = caches.endpoints.get(at).and_then(|endpoint| endpoint.info.as_ref());
    match tier {
        Tier::Device => info.and_then(|info| info.device_tokens),
        Tier::Host => match &side.server {
            Some(server) => {
                server.counters(false).await.map(|counters| counters.now.host_total).filter(|size| *size > 0)
            }
            None => None,
        }
        .or(info.and_then(|info| info.host_tokens())),
    }
}

/// Executes a step that consists of calls to the server.
async fn call<E: Env>(
    env: &E,
    server: &ServerClient,
    at: usize,
    caches: &mut SessionCaches,
    step: &Control,
) -> Result<Option<StepNote>, ServerCallError> {
    let warn = |caches: &mut SessionCaches, caveat: ObservationCaveat| {
        if let Some(endpoint) = caches.endpoints.get_mut(at) {
            endpoint.caveats.push(caveat.clone());
        }
        StepNote::Caveat(caveat)
    };
    match step {
        Control::Flush => {
            server.flush(env, server.flush_timeout().unwrap_or(FLUSH)).await?;
            caches.book.flush(at);
            Ok(None)
        }
        Control::Clear => {
            let ClearResult { left, took } = server.clear(env, CLEAR).await?;
            caches.book.clear_storage(at);
            Ok(Some(match left {
                Some(0) => StepNote::StoreEmpty(took),
                Some(objects) => warn(caches, ObservationCaveat::StoreNotEmpty { objects, after: took }),
                None => StepNote::ClearedUnverified(took),
            }))
        }
        Control::Settle => Ok(match server.settle(env, SETTLE).await {
            SettleResult::Idle => None,
            SettleResult::Short(tokens) => Some(StepNote::NotWrittenBack(tokens)),
            SettleResult::NoCounters => Some(StepNote::NoCounters),
            SettleResult::Busy => Some(warn(caches, ObservationCaveat::StillWriting(SETTLE))),
        }),
        Control::Profile(profile) => {
            let errors = server.profile(profile).await;
            Ok((!errors.is_empty()).then_some(StepNote::ProfileFailed { route: profile.route, errors }))
        }
        Control::Warm(_) | Control::Prime | Control::Rebuild(_) | Control::Fill(_) => Ok(None),
    }
}
