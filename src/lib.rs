//! mcctl: size, check, serve, move and measure a Mooncake KV-cache store.
//!
//! `engine` contains everything that is usable as a library. `commands` is the command line built
//! on top of it.
#![doc = include_str!("../ARCHITECTURE.md")]

pub mod commands;
pub mod engine;
