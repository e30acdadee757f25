//! Everything below the command line, usable as a library. Never prints, never exits.
//!
//! To shorten builds, the parts are compiled as several crates (`crates/`). Code outside them uses the paths here.

#[doc(inline)]
pub use mcctl_common::engine::{base, env, etcd, http, journal, sys, upstream};
#[doc(inline)]
pub use mcctl_deploy::engine::{check, deploy, kube, lint, plan};
#[doc(inline)]
pub use mcctl_load::engine::load;
#[doc(inline)]
pub use mcctl_master::engine::{alloc, election, ha, master};
#[doc(inline)]
pub use mcctl_store::engine::{admin, metadata, rpc, store, topology, transfer, wire};

pub mod bench;
pub mod doctor;
pub mod sim;
