//! The master flags that a deployment file passes through.

use crate::commands::cli::service_flags::master_flags;
use crate::engine::deploy::{DeploymentSpec, Programs};
use crate::engine::lint::MCCTL_FLAGS;

/// A flag in `master.extra_flags` that the master does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("master.extra_flags: unknown master flag --{name}{}", near.as_deref().map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
pub struct UnknownMasterFlag {
    name: String,
    near: Option<String>,
}

/// Checks that the master supports all flags in `master.extra_flags`. Upstream's master exits
/// without a message on an unknown flag.
pub fn check(spec: &DeploymentSpec) -> Result<(), UnknownMasterFlag> {
    for arg in &spec.master.extra_flags {
        let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
        let mcctl_only = MCCTL_FLAGS.contains(&name.as_str()) && spec.programs == Programs::Upstream;
        if arg.starts_with("--") && (master_flags::TABLE.find(&name).is_none() || mcctl_only) {
            let near = master_flags::TABLE.nearest(&name);
            return Err(UnknownMasterFlag { name, near });
        }
    }
    Ok(())
}
