//! Bytes to values and back: what Mooncake's peers say to each other.
//!
//! Pure: no socket, no clock, no state. A length is checked against its limit and against the bytes that are left before
//! anything is allocated for it. Numbers that we have no name for survive a round trip.
//!
//! Start with [`pack`] (struct_pack), [`frame`] (coro_rpc headers), then [`method`] (the table of the master's RPCs); [`json`] is the
//! transfer engine's side.
//! Upstream: yalantinglibs `struct_pack` and `coro_rpc`; Mooncake `rpc_service.h`, `types.h`, `replica.h`.

pub mod frame;
pub mod json;
pub mod method;
pub mod pack;
pub mod types;

pub use method::{MasterApi, MasterCalls, Method};
pub use pack::{DecodeError, Expected, Map, Text, TextBuf, Wire};
