//! The scrape configuration: one job per role.

use serde_yaml_ng::Value;

use super::{ALERTS_FILE, MonitoringScope, RECORDING_FILE};
use crate::engine::base::HostPort;
use crate::engine::deploy::render::yaml::map;
use crate::engine::deploy::{AccessSection, ComponentRole};

/// The comment above the configuration.
pub(super) const COMMENT: &str = "A complete configuration. To extend your own one, copy rules/ and scrape_configs.\n\
    The rules and the dashboard require these job names.";

/// The certificates for HTTPS. `None` without HTTPS, or if the CAs of Prometheus's host suffice.
fn tls_config(access: &AccessSection) -> Option<Value> {
    let given = |path: &String| Some(path.clone()).filter(|path| !path.is_empty());
    let is_needed = !access.monitoring_ca.is_empty() || !access.monitoring_cert.is_empty();
    (is_needed && !access.tls_cert.is_empty()).then(|| {
        map! {
            "ca_file": given(&access.monitoring_ca),
            "cert_file": given(&access.monitoring_cert),
            "key_file": given(&access.monitoring_key),
        }
    })
}

/// The token, which metrics need only if they are protected.
fn authorization(access: &AccessSection) -> Option<Value> {
    let path = &access.monitoring_token_file;
    (access.protect_metrics && !path.is_empty()).then(|| map! { "credentials_file": path })
}

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
    // SGLang's ports have no access control of mcctl.
    let access = scope.access.as_ref().filter(|_| !role.is_engine());
    map! {
        "job_name": scope.job(role),
        "scheme": access.filter(|access| !access.tls_cert.is_empty()).map(|_| "https"),
        "tls_config": access.and_then(tls_config),
        "authorization": access.and_then(authorization),
        "static_configs": vec![map! { "targets": targets, "labels": [("deployment", scope.name.as_str())] }],
    }
}
