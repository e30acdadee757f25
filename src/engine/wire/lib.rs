//! Encoding and decoding of Mooncake's messages.
//!
//! Pure: no socket, no clock, no state. Each length is checked against its limit and against the
//! remaining bytes before memory is allocated for it. Numbers without a known name survive a round
//! trip.
//!
//! Start with [`pack`] (struct_pack), [`frame`] (coro_rpc headers) and [`method`] (the table of the
//! master's RPCs). [`json`] contains the transfer engine's documents. Upstream: yalantinglibs
//! `struct_pack` and `coro_rpc`; Mooncake `rpc_service.h`, `types.h`, `replica.h`.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod client_release;
pub mod frame;
pub mod json;
pub mod layout;
pub mod method;
pub mod pack;
mod probe;
pub mod types;
pub mod withdrawal;

pub use client_release::{Assumption, ClientRelease, RefusedResponse};
pub use layout::MethodLayout;
pub use mcctl_base::upstream::{Release, Releases};
pub use method::{MasterApi, MasterCalls, Method};
pub use pack::{DecodeError, Expected, Map, Text, TextBuf, Wire};
pub use probe::ReleaseProbe;
