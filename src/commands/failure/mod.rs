//! The engine's errors as messages: what was tried, what was found, and what to do next.

pub mod admin;
pub mod memory;
pub mod node;
pub mod store;
