//! The store's master. It keeps the index of objects, their replicas and their writers, and evicts
//! objects when memory runs low. [`MasterState`] is a pure state machine (no socket, no clock, no
//! `.await`); the servers are built around it.
//!
//! Start with [`state`]. The rules are in `read`, `put`, `remove`, `mount`, `eviction` and `tick`.
//! The data structures that they use are in `object`, `eviction/index`, `segment` and `client`.
//! [`call`] implements the RPC methods; [`unsupported`] lists the methods of features that are not
//! implemented. Upstream: `mooncake-store/src/master_service.cpp`, `rpc_service.cpp`,
//! `segment.cpp`.
#![forbid(unsafe_code)]

pub mod admin;
pub mod alloc;
pub mod announcer;
pub mod apply;
pub mod call;
pub mod config;
pub mod effect;
pub mod metrics;
mod metrics_line;
pub mod planted;
pub mod process;
pub mod record;
pub mod refusal;
pub mod restore;
pub mod server;
pub mod snapshot;
pub mod state;
pub mod summary;
pub mod view;

mod client;
mod confirm;
mod data_metrics;
mod digest;
mod discard;
mod ended_writes;
mod eviction;
mod failed_puts;
mod freed;
mod group;
mod ha_report;
mod hash_index;
mod hold;
mod long_keys;
mod memory_shortage;
mod metadata_records;
mod missing_clients;
mod mount;
mod object;
mod object_records;
mod owner;
mod pattern;
mod put;
mod read;
mod record_checks;
mod recording;
mod release_report;
mod remove;
mod restarted_writes;
mod segment;
mod slots;
mod snapshot_walk;
mod stall;
pub mod tenant;
mod tick;
mod unconfirmed;
mod unsupported;
mod withdraw;

pub use apply::{ApplyError, StandbyState};
pub use call::MasterCall;
pub use call::access::{DirectAccess, StateAccess};
pub use config::{MasterConfig, StorePolicy};
pub use effect::{Effects, StateEffect, UnmountReason};
pub use eviction::EvictionPolicyKind;
pub use memory_shortage::{MemoryShortage, ShortageCause};
pub use missing_clients::MissingClients;
pub use put::{PutOptions, PutSpec};
pub use record::buffer::{ClosedChange, RecordBuffer};
pub use record::{DATA_FORMAT, DATA_FORMAT_NEWEST, DataFormat};
pub use refusal::MasterRefusal;
pub use remove::ObjectWalk;
pub use restarted_writes::{Caller, ConnectionId};
pub use restore::{RestoreError, RestoreReport};
pub use server::{MasterError, MasterHandle, MasterServer};
pub use snapshot::{SnapshotStep, SnapshotSummary};
pub use state::MasterState;

#[cfg(test)]
mod unit_tests;
