//! The scrape configuration: one job per role.

use serde_yaml_ng::Value;

use super::{ALERTS_FILE, MonitoringScope, RECORDING_FILE};
use crate::render::yaml::map;
use crate::{AccessSection, ComponentRole};
use mcctl_base::HostPort;

/// The comment above the configuration.
pub(super) const COMMENT: &str = "A complete configuration. To extend your own one, copy rules/ and scrape_configs.\n\
    The rules require these job names.";

/// The certificates for HTTPS. `None` without HTTPS, or if the CAs of Prometheus's host suffice.
fn tls_config(access: &AccessSection, server_name: Option<String>) -> Option<Value> {
    let given = |path: &String| Some(path.clone()).filter(|path| !path.is_empty());
    let is_needed = !access.monitoring_ca.is_empty() || !access.monitoring_cert.is_empty() || server_name.is_some();
    is_needed.then(|| {
        map! {
            "ca_file": given(&access.monitoring_ca),
            "cert_file": given(&access.monitoring_cert),
            "key_file": given(&access.monitoring_key),
            "server_name": server_name,
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
    // SGLang's ports have no access control of mcctl.
    let access = scope.access.as_ref().filter(|_| !role.is_engine());
    let uses_tls = access.is_some() && scope.uses_tls;
    // Targets are addresses of pods, which certificates do not contain.
    let server_name = scope.namespace.as_ref().map(|namespace| format!("{}.{namespace}.svc", scope.job(role)));
    let hosts = || {
        let targets: Vec<String> = targets.iter().map(HostPort::to_string).collect();
        vec![map! { "targets": targets, "labels": [("deployment", scope.name.as_str())] }]
    };
    map! {
        "job_name": scope.job(role),
        "scheme": uses_tls.then_some("https"),
        "tls_config": access.filter(|_| uses_tls).and_then(|access| tls_config(access, server_name)),
        "authorization": access.and_then(authorization),
        "static_configs": scope.namespace.is_none().then(hosts),
        "dns_sd_configs": scope.namespace.as_ref().map(|namespace| discovery(role, targets, namespace)),
        "relabel_configs": scope.namespace.as_ref().map(|_| vec![deployment_label(scope)]),
    }
}

/// The headless Services of the pods, each with a port. Their names resolve to the addresses of all
/// pods.
fn discovery(role: ComponentRole, targets: &[HostPort], namespace: &str) -> Vec<Value> {
    let mut services: Vec<(String, u16)> = targets.iter().map(|pod| (service(role, &pod.host), pod.port)).collect();
    services.sort_unstable();
    services.dedup();
    let one = |(service, port)| map! { "names": vec![format!("{service}.{namespace}.svc")], "type": "A", "port": port };
    services.into_iter().map(one).collect()
}

/// The Service of the pod `WORKLOAD-i`. Servers without stable names have a second, headless
/// Service.
fn service(role: ComponentRole, pod: &str) -> String {
    let workload = pod.rsplit_once('-').map_or(pod, |(workload, _)| workload);
    let is_single = role == ComponentRole::Server && workload.ends_with("-server");
    if is_single { format!("{workload}-pods") } else { workload.to_owned() }
}

/// Adds the label of the deployment, which static targets have, too.
fn deployment_label(scope: &MonitoringScope) -> Value {
    map! { "target_label": "deployment", "replacement": scope.name.as_str() }
}
