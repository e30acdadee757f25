//! Load on a server, and how it answers: what is sent when, and what the answers say. Knows nothing of Mooncake.
//!
//! The cores (`seed`, `distribution`, `arrivals`, `driver`) have no clock and no socket: times are durations since the run began,
//! and randomness comes from one [`Seed`]. The same seed gives the same requests at the same planned instants.

pub mod answer;
mod arrivals;
pub mod compare;
mod distribution;
mod doubts;
mod driver;
mod histogram;
pub mod known;
pub mod ladder;
pub mod measure;
pub mod numpy;
pub mod paired;
mod run;
mod seed;
pub mod server;
pub mod session;
mod student;
pub mod sweep;
pub mod target;
pub mod workload;

pub use answer::Answer;
pub use arrivals::{Arrivals, Gaps, Instants, Rate};
pub use distribution::{Distribution, ParseDistributionError};
pub use doubts::Doubt;
pub use driver::{Driver, Pace, Ready, Rules, Script, Start, Turn};
pub use histogram::{Histogram, Summary};
pub use run::{Bounds, Live, Ran, Record, run};
pub use seed::Seed;
