//! Everything below the command line, usable as a library. Never prints, never exits.

pub mod admin;
pub mod alloc;
pub mod base;
pub mod bench;
pub mod check;
pub mod deploy;
pub mod doctor;
pub mod env;
pub mod http;
pub mod kube;
pub mod lint;
pub mod load;
pub mod master;
pub mod metadata;
pub mod plan;
pub mod rpc;
pub mod sim;
pub mod store;
pub mod sys;
pub mod topology;
pub mod transfer;
pub mod wire;
