//! The master: objects, segments, leases, and the servers around them. Used through `mcctl::engine`.

#[path = "../.."]
pub mod engine {
    pub use mcctl_common::engine::{base, env, etcd, http, journal, sys, upstream};
    pub use mcctl_store::engine::{admin, metadata, rpc, store, topology, transfer, wire};

    pub mod alloc;
    pub mod election;
    pub mod ha;
    pub mod master;
}
