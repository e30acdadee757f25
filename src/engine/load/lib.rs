//! Load generator: when each request is sent, and how the server responds. It does not depend on
//! Mooncake.
//!
//! The core modules (`seed`, `distribution`, `arrivals`, `driver`) use neither a clock nor a
//! socket. Times are durations since the start of the run, and all randomness derives from one
//! [`Seed`]. The same seed produces the same requests at the same scheduled times.
#![forbid(unsafe_code)]

pub mod answer;
mod arrivals;
pub mod cache_model;
mod caveats;
pub mod ceiling;
pub mod compare;
mod distribution;
mod driver;
pub mod goals;
mod histogram;
pub mod kep74;
pub mod ladder;
pub mod measure;
pub mod paired;
pub mod plan;
pub mod progress;
mod python;
mod run;
pub mod scenario;
mod seed;
pub mod server;
pub mod session;
mod student;
pub mod sweep;
pub mod target;
pub mod verify;
pub mod workload;

pub use answer::ModelAnswer;
pub use arrivals::{Arrivals, Gaps, Instants, Rate};
pub use caveats::{GeneratorCaveat, LoadCaveat};
pub use distribution::{Distribution, ParseDistributionError};
pub use driver::{
    Driver, DueRequest, LiveSessionPlan, Pace, ReadyOrder, Rules, Script, SessionJoin, SessionNode, SessionTurn, Turn,
};
pub use histogram::{LatencyHistogram, LatencySummary};
pub use run::{LiveCounters, LoadRun, RunLimits, RunStats, TimedRequest};
pub use seed::Seed;
