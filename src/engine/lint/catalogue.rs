//! The checks that the parsers make. `rules/mod.rs` lists them together with the rules.

use crate::engine::check::{Check, CheckGroup};

/// Violations of the Kubernetes schema.
pub const MANIFEST: Check = Check {
    id: "manifest",
    group: CheckGroup::Config,
    about: "Kubernetes documents match the schema of their kind",
    problems: &[],
};

/// Broken line continuations in a script.
pub const CONTINUATION: Check = Check {
    id: "continuation",
    group: CheckGroup::Config,
    about: "no space follows a line-continuation backslash",
    problems: &[],
};
