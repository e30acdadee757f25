//! The store's client and node.

pub mod rest;
