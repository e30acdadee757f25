//! The brain of the store.

pub mod metrics;
pub mod view;
