//! Plans a measurement: which passes run at which endpoint, in which order, and when caches are
//! flushed.
//!
//! [`Measurement`] states what to measure. [`Measurement::plan`] checks which caches can be
//! flushed, and returns a session that is ready to run.

mod caches;
mod offered;
mod phases;
mod schedule;
mod survey;

use std::time::Duration;

use crate::LoadCaveat;
use crate::session::{LoadEndpoint, Session};
use crate::sweep::Sweep;
use crate::target::{ConnectError, LoadTarget, check_reachable};
use mcctl_sys::env::Env;

pub use caches::CacheChange;
pub use offered::OfferedLoad;
pub use phases::{Phase, PhaseError, PhasePlan, ProfileCalls};
pub(crate) use survey::sizes_of;
pub use survey::{ProbeError, ServerSpeed, Survey, UnknownSizes};

/// The type of a measurement, which determines its schedule and how its passes are analyzed.
#[derive(Clone, Debug, PartialEq)]
pub enum MeasurementKind {
    /// One endpoint. Each pass is reported separately.
    Single,
    /// Two endpoints with the same conversations, in about this many alternating blocks. With three
    /// endpoints, the second is the first one again: the first two measure the noise floor, then
    /// the first and the third are compared.
    Comparison { blocks: u32 },
    /// One endpoint of a comparison whose other endpoint was recorded, with the same blocks.
    OneSide { blocks: u32 },
    /// One pass per load. Each has its own endpoint: the same server with other conversations.
    Sweep(Sweep),
    /// The table from SGLang's KEP-74 for one or two servers. Each server has two endpoints: one
    /// with the first turns only, and one with whole conversations.
    Kep74,
}

/// The kind of measurement.
pub struct Measurement {
    pub kind: MeasurementKind,
    /// The endpoints that the kind needs.
    pub sides: Vec<LoadEndpoint>,
    pub load: OfferedLoad,
    pub phases: PhasePlan,
    /// Profiler calls around the passes of a single run.
    pub profile: ProfileCalls,
    /// Whether the workload has recorded send times. Only a single run uses them.
    pub is_recorded: bool,
    /// Whether the prompts come from a dataset. Its prompts are the same for every endpoint;
    /// synthetic ones depend on the seed.
    pub is_dataset: bool,
}

/// A measurement that is ready to run.
pub struct PlannedRun {
    pub session: Session,
    pub kind: MeasurementKind,
    /// Caveats known before the run.
    pub caveats: Vec<LoadCaveat>,
}

/// Time in which a server must respond before the run.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);

/// A measurement that cannot give valid results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("A's L3 still holds prompts from A's earlier blocks, but B's L3 does not")]
    StorageReuse,
}

/// An endpoint to which no connection could be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {} (endpoint {name}): {error}", .target.at)]
pub struct UnreachableEndpoint {
    pub name: String,
    pub target: Box<LoadTarget>,
    pub error: ConnectError,
}

/// A server that accepted a connection and did not respond to a request of its models.
#[derive(Debug, thiserror::Error)]
#[error("no HTTP response from {} (endpoint {name})", .target.at)]
pub struct SilentServer {
    pub name: String,
    pub target: Box<LoadTarget>,
    /// How long the response was awaited.
    pub limit: Duration,
}

/// Connects once to each of these endpoints, which have a name and a target, including the TLS
/// handshake.
///
/// # Errors
/// A connection fails.
pub async fn check_all_reachable<E: Env + Unpin>(
    env: &E,
    sides: impl IntoIterator<Item = (&str, &LoadTarget)>,
) -> Result<(), UnreachableEndpoint> {
    let mut checked: Vec<&LoadTarget> = Vec::new();
    for (name, target) in sides {
        let is_same = |other: &&LoadTarget| {
            other.at == target.at && other.protocol.tls.is_some() == target.protocol.tls.is_some()
        };
        if checked.iter().any(is_same) {
            continue;
        }
        let reached = check_reachable(env, target).await;
        reached.map_err(|error| {
            let target = Box::new(target.clone());
            UnreachableEndpoint { name: name.to_owned(), target, error }
        })?;
        checked.push(target);
    }
    Ok(())
}

impl Measurement {
    /// Measures `sides` at one request per second, without phases.
    pub fn new(kind: MeasurementKind, sides: Vec<LoadEndpoint>) -> Measurement {
        Measurement {
            kind,
            sides,
            load: OfferedLoad::default(),
            phases: PhasePlan::default(),
            profile: ProfileCalls::default(),
            is_recorded: false,
            is_dataset: false,
        }
    }

    /// Connects once to every endpoint, so that a wrong address is found before anything is sent.
    ///
    /// # Errors
    /// A connection fails.
    pub async fn check_reachable<E: Env + Unpin>(&self, env: &E) -> Result<(), UnreachableEndpoint> {
        check_all_reachable(env, self.sides.iter().map(|side| (side.name.as_str(), &side.target))).await
    }

    /// Requests the models of every server once, so that a port of another program is found before
    /// anything is measured. Any HTTP response is accepted. Returns the first server that sends
    /// none within ten seconds, or within its connect timeout if that is shorter.
    pub async fn silent_server<E: Env>(&self, env: &E) -> Option<SilentServer> {
        let mut checked: Vec<&LoadTarget> = Vec::new();
        for side in &self.sides {
            let Some(server) = &side.server else { continue };
            if checked.iter().any(|other| other.at == side.target.at) {
                continue;
            }
            let limit = side.target.limits.connect.min(RESPONSE_LIMIT);
            if !server.responds(env, limit).await {
                let name = side.name.clone();
                let target = Box::new(side.target.clone());
                return Some(SilentServer { name, target, limit });
            }
            checked.push(&side.target);
        }
        None
    }

    /// Plans the passes and control steps. Unless the phases determine when caches are flushed, a
    /// comparison, a sweep and KEP-74 flush L1 and L2 now, to find out whether they can be flushed
    /// before each pass. Without that, the run has a caveat.
    ///
    /// # Errors
    /// The results would not be valid.
    pub async fn plan<E: Env>(self, env: &E) -> Result<PlannedRun, PlanError> {
        let mut caveats = Vec::new();
        let keeps_times = self.kind == MeasurementKind::Single || self.kind == MeasurementKind::Kep74;
        if self.is_recorded && !keeps_times {
            caveats.push(LoadCaveat::TraceTimesIgnored);
        }
        let schedule = match &self.kind {
            MeasurementKind::Single => self.single(),
            MeasurementKind::Comparison { blocks } => {
                let flush = self.can_flush(env, &self.sides, &mut caveats).await;
                self.check_storage_reuse(env, &mut caveats).await?;
                self.comparison(*blocks, flush)
            }
            MeasurementKind::OneSide { blocks } => {
                let flush = self.can_flush(env, &self.sides, &mut caveats).await;
                self.one_side(*blocks, flush)
            }
            MeasurementKind::Sweep(sweep) => {
                let mut not_flushed = Vec::new();
                let flush = self.can_flush(env, self.sides.get(..1).unwrap_or_default(), &mut not_flushed).await;
                // Synthetic prompts differ between loads, but a dataset repeats its prompts, so a
                // failed flush matters only for a dataset.
                if self.is_dataset {
                    caveats.append(&mut not_flushed);
                }
                self.sweep(sweep, flush)
            }
            MeasurementKind::Kep74 => {
                let flush = self.can_flush(env, &self.sides, &mut caveats).await;
                if self.is_dataset {
                    caveats.push(LoadCaveat::FirstTurnsMayBeWarm);
                }
                self.kep74(flush)
            }
        };
        // A comparison pairs the requests of both endpoints.
        let keep_figures = matches!(self.kind, MeasurementKind::Comparison { .. } | MeasurementKind::OneSide { .. });
        let session = Session { sides: self.sides, schedule, seed: self.load.seed, keep_figures };
        Ok(PlannedRun { session, kind: self.kind, caveats })
    }
}
