//! Problems with a host's devices. The remedies are in `remedy.rs`.

use serde::Serialize;

use mcctl_base::ByteSize;

/// The severity of a finding about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingLevel {
    Note,
    /// RDMA is fully or partly unusable in this state.
    Warning,
}

/// A problem with the host or with a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFinding {
    /// An existing file cannot be read.
    #[error("cannot read {path}: {reason}")]
    FileReadError { path: String, reason: String },
    /// A file's content has an unexpected format.
    #[error("unexpected content in {path}: expected {expected}, found {text}")]
    Odd { path: String, text: String, expected: &'static str },
    /// The port is not active.
    #[error("port {port} is {state} ({physical})")]
    PortDown { device: String, port: u32, state: String, physical: String },
    /// The port has no GID.
    #[error("port {port} has no GID")]
    NoGid { device: String, port: u32 },
    /// A RoCE port has only RoCE v1 GIDs.
    #[error(
        "port {port} has only RoCE v1 GIDs: RoCE v1 is not routable, and Mooncake uses these GIDs only as a last resort"
    )]
    RoceV1Only { device: String, port: u32 },
    /// A RoCE port has no GID derived from an IPv4 address.
    #[error("port {port} has no RoCE v2 GID with an IPv4 address: its network device has no IPv4 address")]
    NoIpv4Gid { device: String, port: u32 },
    /// The device has no user-space access.
    #[error("no uverbs device: the kernel module ib_uverbs is not loaded")]
    NoUverbs { device: String },
    /// This process cannot open the device.
    #[error("cannot open {node}: {reason}")]
    UverbsClosed { device: String, node: String, reason: String },
    #[error("iWARP device: it requires rdma_cm for connections, so Mooncake's rdma protocol cannot use it")]
    Iwarp { device: String },
    #[error(
        "eRDMA accepts Mooncake's connections only in the driver's compatibility mode, and has a single GID at index 0"
    )]
    Erdma { device: String },
    /// A device without reliable connections.
    #[error(
        "no support for the reliable connected (RC) transport (EFA uses SRD): Mooncake's rdma protocol cannot use this device, but its efa protocol can"
    )]
    Efa { device: String },
    #[error("software device on top of a network device: suitable for tests, not for performance")]
    Software { device: String },
    /// The user-space driver is missing.
    #[error(
        "user-space driver lib{provider}-rdmav*.so not found in the usual directories: libibverbs will not list the device"
    )]
    NoProvider { device: String, provider: String },
    #[error("libibverbs.so.1 not found in the usual directories: upstream Mooncake does not start without it")]
    NoVerbsLibrary,
    /// The locked-memory limit is lower than the host's memory.
    #[error("the locked-memory limit is {}, and registered memory counts toward it", ByteSize(*soft))]
    Memlock {
        /// The soft limit, in bytes.
        soft: u64,
        /// The hard limit, in bytes; `None` means unlimited.
        hard: Option<u64>,
    },
    /// `MC_TE_FILTERS` names an unknown device.
    #[error("MC_TE_FILTERS names {name}, which is not a device on this host")]
    FilterNamesNone { name: String },
    /// The configured GID index is unused.
    #[error("{variable}={index}, but GID index {index} on port {port} is unused")]
    EmptyGidRow {
        device: String,
        /// The variable that sets the index.
        variable: &'static str,
        index: u32,
        port: u32,
    },
}

impl DeviceFinding {
    /// A stable identifier of the finding.
    pub const fn id(&self) -> &'static str {
        match self {
            DeviceFinding::FileReadError { .. } => "unreadable",
            DeviceFinding::Odd { .. } => "odd-text",
            DeviceFinding::PortDown { .. } => "port-down",
            DeviceFinding::NoGid { .. } => "no-gid",
            DeviceFinding::RoceV1Only { .. } => "roce-v1-only",
            DeviceFinding::NoIpv4Gid { .. } => "no-ipv4-gid",
            DeviceFinding::NoUverbs { .. } => "no-uverbs",
            DeviceFinding::UverbsClosed { .. } => "uverbs-closed",
            DeviceFinding::Iwarp { .. } => "iwarp",
            DeviceFinding::Erdma { .. } => "erdma",
            DeviceFinding::Efa { .. } => "efa",
            DeviceFinding::Software { .. } => "software",
            DeviceFinding::NoProvider { .. } => "no-provider",
            DeviceFinding::NoVerbsLibrary => "no-libibverbs",
            DeviceFinding::Memlock { .. } => "memlock",
            DeviceFinding::FilterNamesNone { .. } => "filter-names-none",
            DeviceFinding::EmptyGidRow { .. } => "empty-gid-row",
        }
    }

    /// The severity of the finding.
    pub const fn level(&self) -> FindingLevel {
        match self {
            DeviceFinding::Software { .. } | DeviceFinding::Erdma { .. } | DeviceFinding::Efa { .. } => {
                FindingLevel::Note
            }
            _ => FindingLevel::Warning,
        }
    }

    /// The affected device, if the finding is about a device.
    pub fn device(&self) -> Option<&str> {
        match self {
            DeviceFinding::PortDown { device, .. }
            | DeviceFinding::NoGid { device, .. }
            | DeviceFinding::RoceV1Only { device, .. }
            | DeviceFinding::NoIpv4Gid { device, .. }
            | DeviceFinding::NoUverbs { device }
            | DeviceFinding::UverbsClosed { device, .. }
            | DeviceFinding::Iwarp { device }
            | DeviceFinding::Erdma { device }
            | DeviceFinding::Efa { device }
            | DeviceFinding::Software { device }
            | DeviceFinding::NoProvider { device, .. }
            | DeviceFinding::EmptyGidRow { device, .. } => Some(device),
            DeviceFinding::FileReadError { .. }
            | DeviceFinding::Odd { .. }
            | DeviceFinding::NoVerbsLibrary
            | DeviceFinding::Memlock { .. }
            | DeviceFinding::FilterNamesNone { .. } => None,
        }
    }
}
