//! Everything below the command line, usable as a library. Never prints, never exits.
//!
//! Each folder is a crate. Code outside of them uses the paths here.

#[doc(inline)]
pub use mcctl_base::{check, upstream};
#[doc(inline)]
pub use mcctl_deploy::{kube, lint, plan};
#[doc(inline)]
pub use mcctl_election::ha;
#[doc(inline)]
pub use mcctl_master::alloc;
#[doc(inline)]
pub use mcctl_metadata::admin;
#[doc(inline)]
pub use mcctl_net::{etcd, http, rpc};
#[doc(inline)]
pub use mcctl_sys::env;
#[doc(inline)]
pub use mcctl_transfer::topology;
#[doc(inline)]
pub use {
    mcctl_base as base, mcctl_bench as bench, mcctl_deploy as deploy, mcctl_doctor as doctor,
    mcctl_election as election, mcctl_journal as journal, mcctl_load as load, mcctl_master as master,
    mcctl_metadata as metadata, mcctl_sim as sim, mcctl_store as store, mcctl_sys as sys, mcctl_trace as trace,
    mcctl_transfer as transfer, mcctl_wire as wire,
};
