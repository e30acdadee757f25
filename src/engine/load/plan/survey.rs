//! Looks at the servers and the workload of a comparison before its run: cache sizes, speed, and
//! tokens per conversation.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::answer::Dialect;
use crate::compare::{CacheSizes, ComparedSides, LoadShape};
use crate::plan::Measurement;
use crate::server::ServerInfo;
use crate::session::{LoadEndpoint, Observer, PassId, PassPlan, Session, SessionStep};
use crate::workload::{Footprint, Synthetic, SyntheticPrompt};
use crate::{Distribution, Pace, Rules, Seed, TimedRequest};
use mcctl_sys::env::{Env, deadline};

/// Timeout for settings and counters.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Timeout for the requests that measure the speed of a server.
const PROBE_LIMIT: Duration = Duration::from_secs(60);
/// Requests that measure the speed of a server.
const PROBES: u32 = 3;
/// Maximum number of output tokens of these requests.
const PROBE_OUTPUT_MAX: f64 = 256.0;
/// Share of the slower server that a chosen rate uses if no prompt is cached: of its prefill
/// throughput, and of its L1.
const LOAD: f64 = 0.5;

/// Why the sizes of a server's caches are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownSizes {
    #[error("--no-server-calls")]
    NoCalls,
    #[error("no response to GET /server_info within {} s", ANSWER_LIMIT.as_secs())]
    NoResponse,
    #[error("the server does not report its L1 size in /server_info")]
    NoDevice,
    #[error("the server does not report its L2 size in /metrics")]
    NoHost,
}

/// A server that does not respond, or completes no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} does not respond: {reason}")]
pub struct ProbeError {
    pub name: String,
    pub url: String,
    pub reason: String,
}

impl ProbeError {
    fn of(side: &LoadEndpoint, reason: String) -> ProbeError {
        ProbeError { name: side.name.clone(), url: side.target.url(), reason }
    }
}

/// What is known before a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// Cache sizes of the two servers.
    pub sizes: [Result<CacheSizes, UnknownSizes>; 2],
    pub shape: LoadShape,
    /// Number of conversations in the workload.
    pub conversations: u32,
    /// Speed of the slower server. `None` if it was not measured.
    pub speed: Option<ServerSpeed>,
}

/// Latencies of an average request on an idle server without cache hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerSpeed {
    pub ttft: Duration,
    pub e2e: Duration,
    /// Number of average requests that L1 can hold; `None` if unknown.
    pub at_once: Option<f64>,
}

impl ServerSpeed {
    /// Returns a rate in requests per second at which the server is half busy without cache hits.
    /// Of `conversations`, at most half are in flight, so that a request seldom waits for the
    /// previous response of its conversation.
    pub fn rate(&self, conversations: u32) -> f64 {
        let in_flight = self.at_once.unwrap_or(f64::INFINITY).max(1.0).min(f64::from(conversations));
        let prefill = LOAD / self.ttft.as_secs_f64().max(1e-4);
        two_digits(prefill.min(LOAD * in_flight / self.e2e.as_secs_f64().max(1e-4)))
    }
}

/// Counts the requests that ended.
#[derive(Default)]
struct EndedRequests(u32);

impl Observer for EndedRequests {
    fn record(&mut self, _: &PassId, _: &TimedRequest) {
        self.0 += 1;
    }
}

impl Measurement {
    /// Queries both servers of a comparison for their cache sizes. If `measure_speed` is set, also
    /// sends a few requests to each, one after the other, with unrelated prompts.
    ///
    /// # Errors
    /// A server completes none of these requests.
    pub async fn survey<E: Env + Unpin>(&mut self, env: &E, measure_speed: bool) -> Result<Survey, ProbeError> {
        let compared = ComparedSides::of(self.sides.len()).pair;
        let mut sizes = [Err(UnknownSizes::NoCalls); 2];
        for (found, at) in sizes.iter_mut().zip(compared) {
            if let Some(side) = self.sides.get(at) {
                *found = cache_sizes(env, side).await;
                if *found == Err(UnknownSizes::NoResponse) {
                    return Err(ProbeError::of(side, UnknownSizes::NoResponse.to_string()));
                }
            }
        }
        let workload = self.sides.first_mut().map(|side| Footprint::of(&mut *side.workload)).unwrap_or_default();
        let request = workload.prompt + workload.output;
        let mut speed: Option<ServerSpeed> = None;
        for (at, sizes) in compared.iter().zip(&sizes) {
            let Some(side) = self.sides.get(*at).filter(|_| measure_speed) else { continue };
            let times = service_times(env, side, &workload, self.load.seed)
                .await
                .map_err(|reason| ProbeError::of(side, reason))?;
            let Some([ttft, e2e]) = times else { continue };
            let at_once = sizes.ok().map(|sizes| sizes.device_tokens as f64 / request.max(1.0));
            let least = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
            speed = Some(match speed {
                None => ServerSpeed { ttft, e2e, at_once },
                Some(other) => ServerSpeed {
                    ttft: ttft.max(other.ttft),
                    e2e: e2e.max(other.e2e),
                    at_once: least(at_once, other.at_once),
                },
            });
        }
        let (shared, groups) = workload.shared;
        let own = workload.context - if groups > 0 { shared / f64::from(groups) } else { 0.0 };
        Ok(Survey {
            sizes,
            shape: LoadShape { context: own.max(1.0), shared, turns: workload.turns },
            conversations: workload.conversations,
            speed,
        })
    }
}

/// Rounds to two significant digits, so that the rate can be given on the command line.
fn two_digits(rate: f64) -> f64 {
    format!("{rate:.1e}").parse().unwrap_or(rate)
}

async fn cache_sizes<E: Env>(env: &E, side: &LoadEndpoint) -> Result<CacheSizes, UnknownSizes> {
    let server = side.server.as_ref().ok_or(UnknownSizes::NoCalls)?;
    let info = deadline(env, ANSWER_LIMIT, server.info()).await.map_err(|_| UnknownSizes::NoResponse)?;
    let counters = deadline(env, ANSWER_LIMIT, server.counters(true)).await.ok().flatten();
    sizes_of(info.ok().flatten().as_ref(), counters.map(|counters| counters.now.host_total))
}

/// Returns the sizes of all replicas of a server together, from its settings and the L2 size in its
/// counters.
///
/// # Errors
/// The size of a tier is unknown.
pub(crate) fn sizes_of(info: Option<&ServerInfo>, host_total: Option<u64>) -> Result<CacheSizes, UnknownSizes> {
    let info = info.ok_or(UnknownSizes::NoDevice)?;
    let replicas = u64::from(info.replicas.max(1));
    let device_tokens = info.device_tokens.ok_or(UnknownSizes::NoDevice)?.saturating_mul(replicas);
    let has_storage = info.storage.is_some();
    if !info.has_host {
        return Ok(CacheSizes { device_tokens, host_tokens: 0, has_storage });
    }
    let computed = || info.host_tokens().map(|tokens| tokens.saturating_mul(replicas));
    let reported = host_total.filter(|tokens| *tokens > 0);
    let host_tokens = reported.or_else(computed).ok_or(UnknownSizes::NoHost)?;
    Ok(CacheSizes { device_tokens, host_tokens, has_storage })
}

/// Returns the median TTFT and E2E latency of average requests that are not cached, sent one after
/// the other. `None` if one failed.
///
/// # Errors
/// No request succeeded. Returns the reason.
async fn service_times<E: Env + Unpin>(
    env: &E,
    side: &LoadEndpoint,
    workload: &Footprint,
    seed: Seed,
) -> Result<Option<[Duration; 2]>, String> {
    let constant = |value: f64| Distribution::Constant(value.round().max(1.0));
    let seed = Seed(seed.0 ^ 0x7e57_5eed_0000_0001);
    let output = constant(workload.output.min(PROBE_OUTPUT_MAX));
    let mut prompts = Synthetic::new(PROBES, constant(1.0), constant(workload.prompt), output, seed);
    prompts.words = match side.target.dialect {
        Dialect::Generate => SyntheticPrompt::Ids { vocabulary: side.vocabulary },
        Dialect::Chat => SyntheticPrompt::Chat,
        Dialect::Completions | Dialect::TensorRt => SyntheticPrompt::Text,
    };
    let plan = PassPlan {
        name: "probe".to_owned(),
        block: 0,
        part: 0..PROBES,
        pace: Pace::Closed { conversations: 1 },
        rules: Rules::default(),
        duration: PROBE_LIMIT,
    };
    let probe = LoadEndpoint::new(side.name.clone(), side.target.clone(), Box::new(prompts));
    let schedule = [(0, SessionStep::Pass(Box::new(plan)))].into();
    let session = Session { sides: vec![probe], schedule, seed, keep_figures: false };
    // Keep the sender: a closed channel would end the run.
    let (_sender, mut stop) = mpsc::channel(1);
    let mut ended = EndedRequests::default();
    let silence = || format!("no response within {} s", PROBE_LIMIT.as_secs());
    let result = deadline(env, PROBE_LIMIT, session.execute(env.clone(), &mut stop, &mut ended)).await;
    let Ok(result) = result else { return if ended.0 == 0 { Err(silence()) } else { Ok(None) } };
    let Some(tally) = result.passes.first().map(|pass| &pass.tally) else { return Ok(None) };
    let Some((ttft, e2e)) = tally.all.ttft.summary().zip(tally.all.e2e.summary()) else {
        return Err(tally.failures.values().next().map_or_else(silence, |(_, first)| first.clone()));
    };
    Ok((tally.failed() == 0).then_some([ttft.p50, e2e.p50]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_two_digits() {
        for (rate, rounded) in [(5.376, 5.4), (0.0123, 0.012), (1_234.0, 1_200.0)] {
            assert!((two_digits(rate) - rounded).abs() < 1e-12, "{rate}");
        }
    }

    #[test]
    fn a_rate_leaves_half_of_the_prefill_the_cache_and_the_conversations_free() {
        let ms = Duration::from_millis;
        let speed = ServerSpeed { ttft: ms(100), e2e: ms(500), at_once: None };
        assert_eq!([100, 2].map(|conversations| speed.rate(conversations)), [5.0, 2.0]);
        assert_eq!(ServerSpeed { at_once: Some(3.0), ..speed }.rate(100), 3.0);
        assert_eq!(ServerSpeed { at_once: Some(0.1), ..speed }.rate(100), 1.0, "at least one request fits");
    }
}
