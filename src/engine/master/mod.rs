//! The brain of the store.

pub mod admin;
pub mod metrics;
pub mod summary;
pub mod view;
