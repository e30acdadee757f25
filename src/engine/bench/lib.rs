//! Benchmarks for store objects and transfers.

pub mod store;
pub mod transfer;
