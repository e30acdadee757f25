//! The brain of the store: which objects there are, where their bytes lie, who may write them, and what is given up when memory
//! runs short. A state machine inside ([`MasterState`]: no socket, no clock, no `.await`), servers outside.
//!
//! Start with [`state`]; the rules are in `read`, `put`, `remove`, `mount`, `evict` and `tick`, the structures they work on in
//! `object`, `order`, `segment` and `client`. [`call`] answers the RPC methods, [`absent`] those whose feature is not here.
//! Upstream: `mooncake-store/src/master_service.cpp`, `rpc_service.cpp`, `segment.cpp`.

pub mod admin;
pub mod announcer;
pub mod call;
pub mod code;
pub mod config;
pub mod effect;
pub mod metrics;
pub mod server;
pub mod state;
pub mod summary;
pub mod view;

mod absent;
mod client;
mod discard;
mod evict;
mod group;
mod key;
mod mount;
mod object;
mod order;
mod owner;
mod pattern;
mod put;
mod read;
mod remove;
mod segment;
mod standstill;
mod table;
mod tick;

pub use call::{Call, Direct, Hold};
pub use code::Refusal;
pub use config::{MasterConfig, Policy};
pub use effect::{Departure, Effect, Effects};
pub use put::Wish;
pub use remove::Walk;
pub use server::{MasterError, MasterHandle, MasterServer};
pub use state::MasterState;

#[cfg(test)]
mod tests;
