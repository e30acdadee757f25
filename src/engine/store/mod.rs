//! The store's client side: objects in and out ([`client`]), and the node that lends its memory ([`node`]).
//!
//! Client and master meet in [`crate::engine::wire::method`]; nothing here knows how the master works. Bytes move through
//! [`crate::engine::transfer`]. Upstream: `mooncake-store/src/{real_client,client_service,transfer_task}.cpp`.

pub mod client;
pub mod client_http;
pub mod client_metrics;
pub mod error;
mod get;
pub mod heartbeat;
mod lending;
mod movement;
pub mod name;
pub mod node;
mod node_store;
mod payload;
mod put;
pub mod replica;
pub mod rest;
mod rest_segments;
pub mod ways;

pub use crate::engine::wire::types::ReplicateConfig;
pub use client::{ClientConfig, ObjectStat, StoreClient};
pub use error::StoreError;
pub use node::{Node, NodeConfig, NodeError};
pub use node_store::NodeStore;
pub use payload::payload;
pub use put::PutOutcome;
