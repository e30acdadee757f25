//! Against the real thing: the Mooncake wheel 0.3.13.post1, its master, store service, transfer engine and Python client.
//!
//! Nothing here is ever skipped: when the wheel is absent, `tests/peers/install` is run (a download of about 100 MB, once),
//! and when that fails the test fails with its words. Loopback only, ports of our own choosing, every wait bounded, every
//! process killed with its test; a failing test shows the tail of each log. `MCCTL_BIN` names another `mcctl` to test (a
//! release build, an installed one).

#![allow(clippy::print_stderr)]
#![allow(dead_code, reason = "a harness that the suites share: each uses its part")]

pub mod cluster;
pub mod payload;
pub mod process;
pub mod wheel;

mod client;
mod differential;
mod faults;
mod hostile;
mod metadata;
mod metrics;
mod own_client;
mod service;
