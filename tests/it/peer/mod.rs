//! Tests against upstream: the Mooncake wheel 0.3.13.post1 with its master, store service, transfer
//! engine and Python client.
//!
//! If the wheel is absent, `tests/peers/install` is run (a download of about 100 MB, once). If that
//! fails, the test fails with its output. Tests that are built with `MCCTL_PEERS=off` are ignored
//! instead (`build.rs`). The tests use loopback and ports of their own. Every wait is bounded, and
//! every process is killed with its test. A failing test prints the tail of each log. `MCCTL_BIN`
//! selects another `mcctl` (a release build, an installed one).

#![allow(clippy::print_stderr)]
#![allow(dead_code, reason = "a harness that the suites share: each uses its part")]

pub mod cluster;
pub mod payload;
pub mod process;
pub mod wheel;

mod checksums;
mod client;
mod data_dir;
mod differential;
mod faults;
mod hostile;
mod metadata;
mod metrics;
mod own_client;
mod remount;
mod service;
