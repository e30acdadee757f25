//! The integration tests: one binary, one module per subject.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs)]
mod admin;
mod cli;
mod deploy;
mod devices;
mod doctor;
mod http;
mod kube;
mod layers;
mod lint;
mod load;
mod master;
mod metadata;
mod model;
mod peer;
mod peer_transfer;
mod rest;
mod rpc;
mod running;
mod server;
mod sim;
mod simulator;
mod sizing;
mod store;
mod transfer;
mod wire;
