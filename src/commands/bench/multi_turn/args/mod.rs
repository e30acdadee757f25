//! The flags, a group per file. `bench multi-turn`, `bench compare` and `bench ladder` share them.

mod backend;
mod chosen;
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
mod sweep;
mod workload;

pub use backend::Backend;
pub use chosen::Chosen;
pub use compare::CompareArgs;
pub use dataset::{DatasetArgs, Name};
pub use endpoint::{Api, EndpointArgs};
pub use goals::GoalsArgs;
pub use load::LoadArgs;
pub use output::OutputArgs;
pub use phases::{Phase, PhasesArgs};
pub use profile::ProfileArgs;
pub use request::RequestArgs;
pub use server::ServerArgs;
pub use sweep::{Sweep, SweepArgs};
pub use workload::WorkloadArgs;
