//! The flags, a group per file. `bench multi-turn`, `bench compare` and `bench ladder` share them.

mod chosen;
mod dataset;
mod endpoint;
mod load;
mod output;
mod phases;
mod server;
mod workload;

pub use chosen::Chosen;
pub use dataset::DatasetArgs;
pub use endpoint::{Api, EndpointArgs};
pub use load::LoadArgs;
pub use output::OutputArgs;
pub use phases::PhasesArgs;
pub use server::ServerArgs;
pub use workload::WorkloadArgs;
