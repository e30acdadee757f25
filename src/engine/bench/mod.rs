//! Benchmarks of the engine: store objects and transfers.

pub mod store;
pub mod transfer;
