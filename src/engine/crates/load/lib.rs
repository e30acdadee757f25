//! The load generator. Used through `mcctl::engine`.

#[path = "../.."]
pub mod engine {
    pub use mcctl_common::engine::{base, env, http, journal, sys, upstream};

    pub mod load;
}
