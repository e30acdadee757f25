//! Flags, one group per file. Shared by `bench multi-turn`, `bench serving`, `bench compare` and
//! `bench ladder`.

mod api;
mod backend;
mod compare;
mod dataset;
mod endpoint;
mod goals;
mod load;
mod local;
mod output;
mod phases;
mod profile;
mod request;
mod server;
mod sessions;
mod sweep;
mod workload;

pub use api::Api;
pub use backend::Backend;
pub use compare::{CompareArgs, PrimaryMetric};
pub use dataset::{DatasetArgs, DatasetName};
pub use endpoint::EndpointArgs;
pub use goals::GoalsArgs;
pub use load::{GapDistribution, LoadArgs};
pub use output::OutputArgs;
pub use phases::{PhaseName, PhasesArgs};
pub use profile::ProfileArgs;
pub use request::RequestArgs;
pub use server::ServerArgs;
pub use sessions::{SessionArgs, SessionStart, UniquePrefix};
pub use sweep::SweepArgs;
pub use workload::WorkloadArgs;
