//! Measurements of the engine's parts.

pub mod store;
pub mod transfer;
