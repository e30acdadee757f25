//! From one small file to everything that is started: the deployment file, the processes it means, and their files.
//!
//! Text -> [`Deployment`] -> [`Launch`]es -> files. [`launches()`] is the one place that decides a process's program, flags,
//! environment, memory, ports, limits and order; the writers in [`render`] only spell what it decided. Pure: reads no file of the
//! host and starts nothing. What `mooncake` (0.3.13) and `sglang` (0.5.23) read is spelt as each of them reads it.

mod check;
mod commented;
mod error;
mod launch;
mod launches;
mod need;
mod parse;
pub mod render;
mod schema;
mod size;

pub use commented::commented;
pub use error::DeployError;
pub use launch::{Drain, Image, Launch, Mount, Port, Probe, ProbeBy, Probes, Resources, Role, Wait};
pub use launches::{Ground, launches};
pub use parse::{Format, parse};
pub use schema::{
    Deployment, Device, HighAvailability, Host, HugePageSize, HugePages, Images, Kubernetes, KvCache, Master, Metadata,
    MetadataKind, Mode, Model, Nodes, Programs, Protocol, RbgApi, Release, Router, Segment, Servers, Serving, Transfer,
};
pub use size::Size;
