//! What is wrong with a host, as conditions. What to do about each is in `remedy.rs`.

use serde::Serialize;

use crate::engine::base::ByteSize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Note,
    /// RDMA, or a part of it, will not work as it is.
    Warning,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A file is there and cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable { path: String, reason: String },
    /// A file holds something else than the kernel writes there.
    #[error("{path} holds {text}, which is not {wanted}")]
    Odd {
        path: String,
        /// What it holds, fit for a line.
        text: String,
        wanted: &'static str,
    },
    /// A port carries nothing.
    #[error("port {port} is {state} ({physical})")]
    PortDown { device: String, port: u32, state: String, physical: String },
    /// A port has no usable address.
    #[error("port {port} has no GID")]
    NoGid { device: String, port: u32 },
    /// A RoCE port has addresses of version 1 only.
    #[error("port {port} has RoCE v1 GIDs only: routers do not forward those, and Mooncake takes them last")]
    RoceV1Only { device: String, port: u32 },
    /// A RoCE port has no address that comes from an IPv4 one.
    #[error("port {port} has no RoCE v2 GID with an IPv4 address, so its network device has none")]
    NoIpv4Gid { device: String, port: u32 },
    /// Programs have no way to the device.
    #[error("it has no uverbs device: the kernel module ib_uverbs is not loaded")]
    NoUverbs { device: String },
    /// The way to the device is closed.
    #[error("{node} cannot be opened: {reason}")]
    UverbsClosed { device: String, node: String, reason: String },
    /// It is an iWARP device.
    #[error("it speaks iWARP, whose connections are made by rdma_cm only: Mooncake's rdma protocol cannot use it")]
    Iwarp { device: String },
    /// It is an eRDMA device.
    #[error("eRDMA takes Mooncake's connections only in its driver's compatibility mode, and has one GID, at index 0")]
    Erdma { device: String },
    /// It has no reliable connections.
    #[error("it has no reliable connections (EFA: SRD): Mooncake's rdma protocol cannot use it, its efa protocol can")]
    Efa { device: String },
    /// It is made of software.
    #[error("it is software on a network device: for tests, not for speed")]
    Software { device: String },
    /// The user-space driver is absent.
    #[error(
        "its user-space driver, lib{provider}-rdmav*.so, is in none of the usual folders: libibverbs will not list it"
    )]
    NoProvider { device: String, provider: String },
    #[error("libibverbs.so.1 is in none of the usual folders: the original Mooncake does not start without it")]
    NoVerbsLibrary,
    /// Less memory can be registered than the host has.
    #[error("this process may lock {} of memory, and registering memory locks it", ByteSize(*soft))]
    Memlock {
        /// The soft limit, bytes.
        soft: u64,
        /// The hard limit, bytes; `None` = none.
        hard: Option<u64>,
    },
    /// `MC_TE_FILTERS` names a device that is not there.
    #[error("MC_TE_FILTERS names {name}, which is no device of this host")]
    FilterNamesNone { name: String },
    /// `MC_GID_INDEX` names a row that is empty.
    #[error("{variable}={index}, but that row of the GID table of port {port} is empty")]
    EmptyGidRow {
        device: String,
        /// The variable that says so.
        variable: &'static str,
        index: u32,
        port: u32,
    },
}

impl Finding {
    /// A name that stays the same.
    pub const fn id(&self) -> &'static str {
        match self {
            Finding::Unreadable { .. } => "unreadable",
            Finding::Odd { .. } => "odd-text",
            Finding::PortDown { .. } => "port-down",
            Finding::NoGid { .. } => "no-gid",
            Finding::RoceV1Only { .. } => "roce-v1-only",
            Finding::NoIpv4Gid { .. } => "no-ipv4-gid",
            Finding::NoUverbs { .. } => "no-uverbs",
            Finding::UverbsClosed { .. } => "uverbs-closed",
            Finding::Iwarp { .. } => "iwarp",
            Finding::Erdma { .. } => "erdma",
            Finding::Efa { .. } => "efa",
            Finding::Software { .. } => "software",
            Finding::NoProvider { .. } => "no-provider",
            Finding::NoVerbsLibrary => "no-libibverbs",
            Finding::Memlock { .. } => "memlock",
            Finding::FilterNamesNone { .. } => "filter-names-none",
            Finding::EmptyGidRow { .. } => "empty-gid-row",
        }
    }

    /// How much it matters.
    pub const fn level(&self) -> Level {
        match self {
            Finding::Software { .. } | Finding::Erdma { .. } | Finding::Efa { .. } => Level::Note,
            _ => Level::Warning,
        }
    }

    /// The device that it is about, if it is one's.
    pub fn device(&self) -> Option<&str> {
        match self {
            Finding::PortDown { device, .. }
            | Finding::NoGid { device, .. }
            | Finding::RoceV1Only { device, .. }
            | Finding::NoIpv4Gid { device, .. }
            | Finding::NoUverbs { device }
            | Finding::UverbsClosed { device, .. }
            | Finding::Iwarp { device }
            | Finding::Erdma { device }
            | Finding::Efa { device }
            | Finding::Software { device }
            | Finding::NoProvider { device, .. }
            | Finding::EmptyGidRow { device, .. } => Some(device),
            Finding::Unreadable { .. }
            | Finding::Odd { .. }
            | Finding::NoVerbsLibrary
            | Finding::Memlock { .. }
            | Finding::FilterNamesNone { .. } => None,
        }
    }
}
