//! The parts of the engine for deployments: sizes, deployment files, manifests and their checks. Used through `mcctl::engine`.

#[path = "../.."]
pub mod engine {
    pub use mcctl_common::engine::{base, env, http, journal, sys, upstream};

    pub mod check;
    pub mod deploy;
    pub mod kube;
    pub mod lint;
    pub mod plan;
}
