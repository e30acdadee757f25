//! The client side of the store: the client for objects ([`client`]), and the node that contributes memory ([`node`]).
//!
//! Client and master share the method table in [`crate::engine::wire::method`]. This module contains nothing about the master's internals.
//! Bytes are moved by [`crate::engine::transfer`]. Upstream: `mooncake-store/src/{real_client,client_service,transfer_task}.cpp`.

pub mod client;
pub mod client_http;
pub mod client_metrics;
pub mod error;
mod get;
pub mod heartbeat;
mod movement;
pub mod name;
pub mod node;
pub mod node_client;
mod node_store;
mod payload;
mod put;
pub mod replica;
pub mod rest;
mod rest_segments;
mod segment_manager;
pub mod transport_stats;

pub use crate::engine::wire::types::ReplicateConfig;
pub use client::{ClientConfig, ObjectStat, StoreClient};
pub use error::StoreError;
pub use node::{Node, NodeConfig, NodeError};
pub use node_client::{NodeClient, TransportStatsError};
pub use node_store::NodeStore;
pub use payload::payload;
pub use put::PutOutcome;
