//! The scrape configuration: one job per role.

use serde_yaml_ng::Value;

use super::{ALERTS_FILE, MonitoringScope, RECORDING_FILE};
use crate::engine::base::HostPort;
use crate::engine::deploy::ComponentRole;
use crate::engine::deploy::render::yaml::map;

/// The comment above the configuration.
pub(super) const COMMENT: &str = "A complete configuration. To extend your own one, copy rules/ and scrape_configs.\n\
    The rules and the dashboard require these job names.";

/// The contents of `prometheus.yml`.
pub(super) fn document(scope: &MonitoringScope) -> Value {
    let jobs = [
        (ComponentRole::Master, &scope.masters),
        (ComponentRole::Store, &scope.nodes),
        (ComponentRole::Server, &scope.servers),
    ];
    let jobs = jobs.into_iter().filter(|(_, targets)| !targets.is_empty());
    map! {
        "global": map! { "scrape_interval": "15s", "evaluation_interval": "15s" },
        "rule_files": vec![RECORDING_FILE, ALERTS_FILE],
        "scrape_configs": jobs.map(|(role, targets)| job(scope, role, targets)).collect::<Vec<_>>(),
    }
}

fn job(scope: &MonitoringScope, role: ComponentRole, targets: &[HostPort]) -> Value {
    let targets: Vec<String> = targets.iter().map(HostPort::to_string).collect();
    map! {
        "job_name": scope.job(role),
        "static_configs": vec![map! { "targets": targets, "labels": [("deployment", scope.name.as_str())] }],
    }
}
