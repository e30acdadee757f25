//! The client side of the store: the client for objects ([`client`]), the node that contributes
//! memory ([`node`]), and the node as a service with a REST port ([`service`]).
//!
//! Client and master share the method table in [`mcctl_wire::method`]. This module contains nothing
//! about the master's internals. Bytes are moved by [`mcctl_transfer`]. Upstream:
//! `mooncake-store/src/{real_client,client_service,transfer_task}.cpp`.
#![forbid(unsafe_code)]

mod allocation;
pub mod checksum;
mod checksum_metrics;
pub mod client;
mod client_builder;
mod client_config;
pub mod client_http;
pub mod client_metrics;
mod client_shared;
mod client_start;
mod damage;
pub mod error;
mod existing;
mod fence;
mod get;
pub mod heartbeat;
pub mod heartbeat_status;
mod mismatch;
mod movement;
pub mod name;
pub mod node;
pub mod node_client;
mod node_store;
mod object_part;
pub mod object_store;
mod operation_failures;
mod payload;
mod peer_metrics;
mod put;
mod read;
mod registration;
pub mod replica;
pub mod rest;
mod rest_response;
mod rest_segments;
pub mod round_trip;
mod segment_manager;
pub mod service;
pub mod transport_stats;
mod verify;
mod verify_pace;
mod write_end;
mod writing_keys;

pub use allocation::{Allocation, WriteMethod};
pub use client::{ObjectStat, StoreClient};
pub use client_builder::StoreClientBuilder;
pub use client_config::{ClientConfig, DEFAULT_TENANT, ON_CORRUPTION_VARIABLE, OnCorruption, TransferThreads};
pub use client_start::StoreStartError;
pub use damage::NodeDamage;
pub use error::StoreError;
pub use get::READS_MAX;
pub use mcctl_wire::types::ReplicateConfig;
pub use node::{Node, NodeConfig};
pub use node_client::{NodeClient, TransportStatsError};
pub use node_store::NodeStore;
pub use object_part::ObjectPart;
pub use operation_failures::OperationFailures;
pub use payload::payload;
pub use put::{PartialWrite, PutOutcome, is_revocable};
pub use read::ObjectLookup;
pub use verify::{ObjectVerification, ReplicaState, ReplicaVerification};
pub use verify_pace::VerifyPace;
pub use write_end::WriteEnd;
pub use writing_keys::KeyHold;
