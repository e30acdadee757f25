//! The deployment file, the processes it describes, and their generated files.
//!
//! Text -> [`DeploymentSpec`] -> [`ProcessPlan`]s -> files. [`plan_processes()`] makes all
//! decisions about a process: program, flags, environment, memory, ports, limits and start order.
//! The writers in [`render`] only format these decisions. The module is pure: it reads no host
//! files and starts no processes. Values use the syntax that `mooncake` (0.3.13) and `sglang`
//! (0.5.23) parse.
#![forbid(unsafe_code)]

mod access;
mod bound;
mod check;
mod check_options;
mod commented;
mod error;
mod fit;
mod host_address;
mod key_table;
mod keys;
pub mod kube;
pub mod lint;
mod monitoring_section;
mod need;
mod parse;
mod parser_error;
mod plain_secret;
pub mod plan;
mod plans;
mod pod_options;
mod process_plan;
pub mod render;
mod roles;
mod schema;
mod size;
mod value_syntax;

pub use access::{AccessSection, WriteOrigin};
pub use bound::BoundCause;
pub use check::is_host;
pub use commented::commented;
pub use error::{DeployError, PortUser};
pub use fit::{FitFinding, HostDemand, demands, fit};
pub use host_address::{host_key, is_ipv6};
pub use key_table::{KeyRow, key_rows};
pub use keys::is_deployment_key;
pub use monitoring_section::MonitoringSection;
pub use parse::{FILE_BYTES_MAX, FileFormat, SizeNote, parse, size_notes};
pub use plain_secret::{PlainSecret, plain_secrets};
pub use plans::plan_processes;
pub use pod_options::{ExtraVolume, PodToleration};
pub use process_plan::{
    AccessFile, ComponentRole, DataVolume, DrainHook, FirmMemory, HostMount, ImageSource, NamedPort, ProbeAction,
    ProbeSet, ProbeSpec, ProcessPlan, ProcessResources, SecretFile, SecretVolume, StartupWait,
};
pub use schema::{
    ComputeDevice, DeploymentSpec, HighAvailability, HostSection, HugePageSize, HugePagesSection, ImagesSection,
    KubernetesSection, KvCache, MasterSection, MetadataKind, MetadataSection, ModelSection, NodesSection,
    PdServersSection, Platform, Programs, RbgApi, RouterSection, SegmentSection, ServingMode, ServingSection,
    SglangClient, StoreProtocol, TransferSection,
};
pub use size::{DeploySize, DeploySizeError};
