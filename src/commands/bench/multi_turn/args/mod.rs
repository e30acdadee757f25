//! The flags, a group per file. `bench multi-turn`, `bench compare` and `bench ladder` share them.

mod endpoint;
mod load;
mod output;
mod workload;

pub use endpoint::{Api, EndpointArgs};
pub use load::LoadArgs;
pub use output::OutputArgs;
pub use workload::WorkloadArgs;
