//! The rules. Each one examines the whole deployment and reports definite errors.

mod addresses;
mod checksum;
mod client;
mod client_port;
mod connectors;
mod container;
mod cross_process;
mod data_dir;
mod host_id;
mod kubernetes;
mod listeners;
mod master;
mod master_port;
mod metadata;
mod model;
mod names;
mod programs;
mod restart;
mod services;
mod sglang;
mod sizes;
mod store_use;

use crate::lint::catalogue::{CONTINUATION, DEPLOYMENT_FILE, DEPLOYMENT_FIT, MANIFEST, PLAIN_SECRET};
use crate::lint::findings::Findings;
use crate::lint::model::ParsedDeployment;
use crate::lint::view::DeploymentView;
use mcctl_base::check::{Check, CheckGroup, Finding};

/// A rule's definition and its implementation.
pub(super) struct LintRule {
    pub check: Check,
    pub run: fn(&DeploymentView<'_>, &mut Findings),
}

const fn rule(
    id: &'static str,
    problems: &'static [u8],
    about: &'static str,
    run: fn(&DeploymentView<'_>, &mut Findings),
) -> LintRule {
    LintRule { check: Check { id, group: CheckGroup::Config, about, problems }, run }
}

/// All rules, grouped by subject.
pub(super) const RULES: &[LintRule] = &[
    rule("probe-port", &[], "a master's probes use a port on which it listens", kubernetes::probe_port),
    rule("selector", &[], "Service selectors match a pod", kubernetes::selector),
    rule(
        "service-port",
        &[18],
        "a process listens on each port that a Service or its clients use",
        services::service_port,
    ),
    rule(
        "client-port",
        &[18],
        "clients use the port on which their master or metadata service listens",
        client_port::client_port,
    ),
    rule("memory-limit", &[8, 9], "memory limits leave headroom beyond the segment", kubernetes::memory_limit),
    rule("unknown-host", &[18], "addresses refer to existing Services", kubernetes::unknown_host),
    rule("local-hostname", &[1], "clients announce a name that peers can reach", client::local_hostname),
    rule("auto-discovery", &[2], "RDMA devices are listed or discovered", client::auto_discovery),
    rule("address-form", &[20], "addresses have the expected syntax", addresses::address_form),
    rule(
        "metadata-build",
        &[],
        "the metadata service is of a kind that the program's build supports",
        addresses::metadata_build,
    ),
    rule(
        "master-port",
        &[18],
        "clients use the port of the master that the same script starts",
        master_port::master_port,
    ),
    rule("master-missing", &[18], "clients have a master address", cross_process::master_missing),
    rule("protocol", &[25], "all clients of a store use the same transport", cross_process::protocol),
    rule("same-keys", &[16], "servers that share a store generate the same keys", cross_process::same_keys),
    rule("hicache-flags", &[16], "HiCache flags are consistent", cross_process::hicache_flags),
    rule("store-not-used", &[16], "servers with the settings of a store use it", store_use::without_hicache),
    rule("port-taken", &[12], "no two processes in a network namespace use the same port", cross_process::port_taken),
    rule("host-id", &[], "nodes report the host on which they run", host_id::host_ids),
    rule("release", &[3], "master and clients run the same release", container::releases),
    rule("image-tag", &[3], "image tags specify a release", container::image_tag),
    rule("rdma-device", &[2, 4], "containers that use RDMA have an RDMA device", container::rdma_device),
    rule("memlock", &[4, 5], "processes that use RDMA may lock memory", container::memlock),
    rule("shared-memory", &[], "the ranks of a server have enough shared memory", container::shared_memory),
    rule("ssd", &[26], "the SSD tier is enabled on master and clients, with one directory per process", container::ssd),
    rule("config-rpc-port", &[12], "a master's settings file sets the RPC port", master::config_rpc_port),
    rule("ha", &[20], "high-availability flags are consistent", master::ha),
    rule("ha-clients", &[20], "clients of HA masters follow the leader", master::ha_clients),
    rule(
        "ha-metadata",
        &[20],
        "nodes and engines reach the metadata service of elected masters after a failover",
        metadata::embedded_in_elected_masters,
    ),
    rule("master-replicas", &[20], "there is a single master, or a leader election", master::replicas),
    rule("master-switches", &[11, 21, 26], "the master's switches take effect and do not conflict", master::switches),
    rule("data-dir", &[21], "the master's data directory outlives its pod, container and host", data_dir::outlives),
    rule("data-dir-flags", &[21], "the flags of the master's data directory keep the data", data_dir::flags),
    rule("data-dir-sharing", &[], "no two masters use one data directory at the same time", data_dir::sharing),
    rule("ha-readiness", &[20], "a standby master is not ready", master::ha_readiness),
    rule("size-grammar", &[8], "sizes use the syntax of the program that reads them", sizes::grammar),
    rule("rank-segment", &[8], "each rank contributes nothing or at least 16 MiB", sizes::rank_segment),
    rule("huge-page-switch", &[7], "huge-page switches have the intended effect", sizes::huge_page_switch),
    rule("arena", &[7], "an arena has huge pages and a matching size", sizes::arena),
    rule("huge-page-resources", &[7], "containers request the huge pages that they use", sizes::huge_page_resources),
    rule("variable-name", &[], "every variable is read by a program", names::variables),
    rule(
        "ssd-variable",
        &[26],
        "the variable that enables the SSD tier is the one that its process reads",
        names::ssd_variables,
    ),
    rule("boolean-word", &[], "boolean variables have a value that is parsed as intended", names::boolean_words),
    rule("hidden-variable", &[], "no file or extra config overrides a variable", names::hidden_variables),
    rule("master-flag", &[], "the master supports every flag that it is started with", names::master_flags),
    rule("client-flag", &[], "mooncake_client supports every flag that it is started with", names::client_flags),
    rule("master-value", &[], "the master's flags have valid values", names::master_values),
    rule("unsupported", &[], "mcctl supports all settings that its programs are started with", programs::unsupported),
    rule("master-threads", &[13], "the master has enough threads and CPU for heartbeats", master::threads),
    rule("grace", &[18], "processes have enough time to shut down", kubernetes::grace),
    rule("config-key", &[13], "settings files contain only known keys", names::config_keys),
    rule("sglang-flag", &[], "SGLang supports every flag that it is started with", sglang::flags),
    rule("sglang-value", &[], "SGLang's flags have valid values", sglang::values),
    rule("sglang-model", &[], "SGLang accepts the HiCache settings for the model", model::hicache),
    rule("device-list", &[2], "device lists use only commas as separators", sglang::devices),
    rule("vllm-config", &[], "vLLM's store settings are consistent", connectors::vllm),
    rule("lmcache-config", &[], "LMCache's settings reach the store", connectors::lmcache),
    rule("mcctl-flag", &[], "mcctl supports every flag that its commands are started with", programs::flags),
    rule("docker-option", &[], "docker run options precede the image", programs::docker_options),
    rule(
        "container-port",
        &[18],
        "the master listens on the ports that its container declares",
        services::container_port,
    ),
    rule("checksum", &[], "clients send and verify checksums of whole objects", checksum::switch),
    rule("decode-without-hicache", &[], "decode servers without the store are intentional", client::decode),
];

/// The definitions of all rules, which `doctor` and `lint --list` print.
pub const CHECKS: &[Check] = &CATALOGUE;

/// The rules whose findings the parsers report.
const PARSER_RULES: [Check; 5] = [MANIFEST, CONTINUATION, DEPLOYMENT_FILE, DEPLOYMENT_FIT, PLAIN_SECRET];

const CATALOGUE: [Check; RULES.len() + PARSER_RULES.len()] = {
    let mut all = [MANIFEST; RULES.len() + PARSER_RULES.len()];
    let mut at = 0;
    while at < PARSER_RULES.len() {
        all[at] = PARSER_RULES[at];
        at += 1;
    }
    at = 0;
    while at < RULES.len() {
        all[at + PARSER_RULES.len()] = RULES[at].check;
        at += 1;
    }
    all
};

/// All findings for `deployment`, sorted by file and line.
pub fn check_deployment(deployment: &ParsedDeployment) -> Vec<Finding> {
    let view = DeploymentView::new(deployment);
    let mut out = deployment.found.clone();
    for rule in RULES {
        let mut findings = Findings::new(rule.check.id);
        (rule.run)(&view, &mut findings);
        out.extend(findings.into_vec());
    }
    // A template used by several roles yields the same finding several times: keep one per location
    // and rule.
    let mut reported = std::collections::BTreeSet::new();
    out.retain(|finding| reported.insert((finding.id, finding.place.clone(), finding.evidence.clone())));
    out.sort_by(|a, b| (&a.place, b.severity, a.id).cmp(&(&b.place, a.severity, b.id)));
    out
}
