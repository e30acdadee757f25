//! Benchmarks for store objects and transfers.
#![forbid(unsafe_code)]

pub mod store;
pub mod transfer;
