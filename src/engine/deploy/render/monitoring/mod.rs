//! Renders what a monitoring system needs: scrape jobs, rules and alerts for Prometheus, and a
//! dashboard for Grafana.
//!
//! A query names the targets of this deployment with `$master`, `$store`, `$server`, `$client` and
//! `$process`, and its recorded series with `$deployment`. [`MonitoringScope::query`] replaces
//! these by matchers, so that one Prometheus can watch several deployments.

mod alerts;
mod dashboard;
mod recording;
mod scrape;

use crate::error::invalid_value;
use crate::render::yaml::{self, map};
use crate::render::{RenderContext, RenderedFile};
use crate::{AccessSection, ComponentRole, DeployError, Platform, ProcessPlan, Programs, SglangClient};
use mcctl_base::HostPort;

/// File names relative to the output directory, which `prometheus.yml` also contains.
const RECORDING_FILE: &str = "rules/mcctl-recording.yml";
const ALERTS_FILE: &str = "rules/mcctl-alerts.yml";

/// Where the Debian package installs the documentation.
const INSTALLED_DOCS: &str = "/usr/share/doc/mcctl/docs";

const RUNBOOK_COMMENT: &str =
    "Each runbook is a section in the documentation of mcctl. monitoring.runbook_base makes it a URL.";

/// Renders `prometheus.yml` and its rule files.
///
/// # Errors
/// Metrics require a token, and the file of Prometheus with one is not set.
pub(crate) fn prometheus_files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let access = &context.spec.access;
    let kubernetes = &context.spec.kubernetes;
    let has_tokens = !access.token_file.is_empty() || !kubernetes.token_secret.is_empty();
    if access.protect_metrics && has_tokens && access.monitoring_token_file.is_empty() {
        let what = "required with protect_metrics: the path of a file with a token on the host of Prometheus";
        return Err(invalid_value("access.monitoring_token_file", what));
    }
    let scope = MonitoringScope::of(context);
    let file = |name: &str, comment: &str, document| RenderedFile {
        name: name.to_owned(),
        text: yaml::file(&context.head, &[(comment.to_owned(), document)]),
    };
    Ok(vec![
        file("prometheus.yml", scrape::COMMENT, scrape::document(&scope)),
        file(RECORDING_FILE, "Series for alerts and the dashboard.", recording::document(&scope)),
        file(ALERTS_FILE, RUNBOOK_COMMENT, alerts::document(&scope)),
    ])
}

/// Renders the dashboard as a single JSON file.
pub(crate) fn grafana_files(context: &RenderContext<'_>) -> Vec<RenderedFile> {
    let scope = MonitoringScope::of(context);
    let document = dashboard::document(&scope, &context.head);
    let text = serde_json::to_string_pretty(&document).expect("strings, numbers, lists and maps");
    vec![RenderedFile { name: format!("{}-dashboard.json", scope.name), text: text + "\n" }]
}

/// The part of a deployment that is monitored.
struct MonitoringScope {
    /// Name of the deployment.
    name: String,
    /// The namespace of the pods. `None` on plain hosts.
    namespace: Option<String>,
    /// Whether mcctl's master and nodes run, which have additional metrics.
    is_mcctl: bool,
    /// Whether a process contains mcctl's client: its nodes, or engines.
    has_mcctl_clients: bool,
    /// Admin ports of the masters. In Kubernetes, the hosts of all targets are names of pods, which
    /// only count them.
    masters: Vec<HostPort>,
    /// Ports of the storage-only nodes with `/metrics`.
    nodes: Vec<HostPort>,
    /// Hosts of the storage-only nodes, each once.
    node_hosts: Vec<String>,
    /// Number of storage-only nodes on plain hosts.
    node_count: usize,
    /// HTTP ports of SGLang servers that export metrics.
    servers: Vec<HostPort>,
    /// Whether masters and nodes accept only HTTPS.
    uses_tls: bool,
    /// The access control of masters and nodes, if they are mcctl's.
    access: Option<AccessSection>,
    /// Whether the masters have data directories.
    has_data: bool,
    /// Whether the log is synced at all.
    is_synced: bool,
    /// Memory use above which the master evicts objects, between 0 and 1.
    watermark: f64,
    /// Seconds after which a client without heartbeats expires.
    client_ttl_s: u64,
    /// URL of the folder with the documentation; empty without one.
    runbook_base: String,
}

impl MonitoringScope {
    fn of(context: &RenderContext<'_>) -> MonitoringScope {
        let spec = context.spec;
        let plans = &context.plans;
        let is_pods = context.platform != Platform::Hosts;
        let targets = |port: fn(&ProcessPlan) -> Option<u16>| -> Vec<HostPort> {
            let of_plan = |plan: &ProcessPlan| match (port(plan), is_pods) {
                (None, _) => Vec::new(),
                (Some(port), false) => vec![HostPort::new(&plan.host, port)],
                (Some(port), true) => pods(plan).map(|pod| HostPort::new(pod, port)).collect(),
            };
            plans.iter().flat_map(of_plan).collect()
        };
        let nodes: Vec<&ProcessPlan> = plans.iter().filter(|plan| plan.role == ComponentRole::Store).collect();
        let mut node_hosts: Vec<String> = nodes.iter().map(|plan| plan.host.clone()).collect();
        node_hosts.dedup();
        // Segments have the addresses of pods, which are not known in advance.
        node_hosts.retain(|host| !host.is_empty());
        let never = |flag: &String| flag.trim_start_matches('-').replace('_', "-") == "fsync=never";
        MonitoringScope {
            name: spec.name.clone(),
            namespace: is_pods.then(|| spec.kubernetes.namespace.clone()),
            uses_tls: if is_pods { !spec.kubernetes.tls_secret.is_empty() } else { !spec.access.tls_cert.is_empty() },
            is_mcctl: spec.programs == Programs::Mcctl,
            has_mcctl_clients: spec.programs == Programs::Mcctl || spec.serving.client != SglangClient::Upstream,
            masters: targets(master_port),
            nodes: targets(node_port),
            node_hosts,
            node_count: if is_pods { 0 } else { nodes.len() },
            servers: targets(server_port),
            access: (spec.programs == Programs::Mcctl).then(|| spec.access.clone()),
            has_data: spec.data_dir(context.platform).is_some(),
            is_synced: !spec.master.extra_flags.iter().any(never),
            watermark: spec.master.high_watermark,
            client_ttl_s: spec.master.client_ttl_s,
            runbook_base: spec.monitoring.runbook_base.trim_end_matches('/').to_owned(),
        }
    }

    /// Whether mcctl's masters elect a leader. Upstream's have no metrics about it.
    fn is_elected(&self) -> bool {
        self.is_mcctl && self.masters.len() > 1
    }

    /// The name of the job that scrapes the processes of `role`.
    fn job(&self, role: ComponentRole) -> String {
        format!("{}-{}", self.name, role.word())
    }

    /// Replaces the variables of a query by matchers.
    fn query(&self, template: &str) -> String {
        let job = |role| format!("job=\"{}\"", self.job(role));
        template
            .replace("$master", &job(ComponentRole::Master))
            .replace("$store", &job(ComponentRole::Store))
            .replace("$server", &job(ComponentRole::Server))
            .replace("$client", &format!("job=~\"{}-(store|client)\"", self.name))
            .replace("$process", &format!("job=~\"{}-(master|store)\"", self.name))
            .replace("$deployment", &format!("deployment=\"{}\"", self.name))
    }

    /// The annotation that names a section of the documentation: its URL, or its path on a host
    /// with the Debian package.
    fn runbook(&self, section: &str) -> (&'static str, String) {
        match self.runbook_base.as_str() {
            "" => ("runbook", format!("{INSTALLED_DOCS}/{section}")),
            base => ("runbook_url", format!("{base}/{section}")),
        }
    }

    /// Replaces the variables of a query by matchers with the dashboard's variables, so that a
    /// dashboard shows any deployment. The metrics of each role have their own names.
    fn panel_query(&self, template: &str) -> String {
        const ROLES: [&str; 5] = ["$master", "$store", "$server", "$client", "$process"];
        let query = template.replace("$deployment", "deployment=~\"$deployment\"");
        ROLES.iter().fold(query, |query, role| query.replace(role, "deployment=~\"$deployment\",job=~\"$job\""))
    }

    /// A rule file with one group.
    fn rule_group(&self, topic: &str, rules: Vec<serde_yaml_ng::Value>) -> serde_yaml_ng::Value {
        let group = map! { "name": format!("{}-{topic}", self.name), "rules": rules };
        map! { "groups": vec![group] }
    }
}

/// The names of the pods of a workload.
fn pods(plan: &ProcessPlan) -> impl Iterator<Item = String> + '_ {
    (0..plan.replicas.saturating_mul(plan.size)).map(|i| format!("{}-{i}", plan.workload))
}

/// The admin port of a master.
fn master_port(plan: &ProcessPlan) -> Option<u16> {
    if plan.role == ComponentRole::Master { plan.port("admin") } else { None }
}

/// The port with a node's metrics: the REST port of mcctl's node, the client HTTP port of
/// upstream's.
fn node_port(plan: &ProcessPlan) -> Option<u16> {
    let is_mcctl = plan.argv.iter().any(|word| word == "serve");
    match (plan.role, is_mcctl) {
        (ComponentRole::Store, true) => plan.port("rest"),
        (ComponentRole::Store, false) => plan.port("client-http"),
        _ => None,
    }
}

/// The HTTP port of a server that exports metrics. Of several ranks, only the first one serves
/// HTTP.
fn server_port(plan: &ProcessPlan) -> Option<u16> {
    let has = |flag: &str| plan.argv.iter().any(|word| word == flag);
    let rank = plan.argv.iter().skip_while(|word| *word != "--node-rank").nth(1);
    let is_first = rank.is_none_or(|rank| rank == "0");
    if plan.role.is_engine() && has("--enable-metrics") && is_first { plan.port("http") } else { None }
}

#[cfg(test)]
mod tests;
