//! Measurements of the engine's parts.

pub mod transfer;
