//! Protocols over the sockets of the environment: HTTP (server, access rules, client), etcd's JSON
//! gateway, and coro_rpc.
#![forbid(unsafe_code)]

pub mod etcd;
pub mod http;
pub mod rpc;
