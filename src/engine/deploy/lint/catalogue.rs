//! The checks that the parsers make. `rules/mod.rs` lists them together with the rules.

use mcctl_base::check::{Check, CheckGroup};

/// Violations of the Kubernetes schema.
pub(super) const MANIFEST: Check = Check {
    id: "manifest",
    group: CheckGroup::Config,
    about: "Kubernetes documents match the schema of their kind",
    problems: &[],
};

/// Errors in mcctl's own deployment file.
pub(super) const DEPLOYMENT_FILE: Check = Check {
    id: "deployment-file",
    group: CheckGroup::Config,
    about: "mcctl render accepts the deployment file",
    problems: &[],
};

/// Deployment files whose processes exceed the capacities in `[host]`.
pub(super) const DEPLOYMENT_FIT: Check = Check {
    id: "deployment-fit",
    group: CheckGroup::Config,
    about: "the processes of a deployment file fit the hosts that it describes",
    problems: &[],
};

/// Secrets in mcctl's own deployment file.
pub(super) const PLAIN_SECRET: Check = Check {
    id: "plain-secret",
    group: CheckGroup::Config,
    about: "the variables and flags of a deployment file contain no secrets",
    problems: &[],
};

/// Broken line continuations in a script.
pub(super) const CONTINUATION: Check = Check {
    id: "continuation",
    group: CheckGroup::Config,
    about: "no space and no carriage return follows a line-continuation backslash",
    problems: &[],
};
