//! Nodes and clients: the wire format, the transfer engine, and the store on top of them. Used through `mcctl::engine`.

#[path = "../.."]
pub mod engine {
    pub use mcctl_common::engine::{base, env, etcd, http, journal, sys, upstream};

    pub mod admin;
    pub mod metadata;
    pub mod rpc;
    pub mod store;
    pub mod topology;
    pub mod transfer;
    pub mod wire;
}
