//! The rules: each looks at the whole scene and says what it is sure of.

mod client;
mod connectors;
mod container;
mod kubernetes;
mod master;
mod names;
mod programs;
mod restart;
mod services;
mod sglang;
mod sizes;
mod together;

use crate::engine::check::{Check, Finding, Group, Place, Severity};
use crate::engine::lint::scene::{Make, Process, Role, Scene};
use crate::engine::lint::settings::Seen;

/// A line of the catalogue, and what finds it.
pub struct Rule {
    /// Its name and what it makes sure of.
    pub check: Check,
    /// Says what it finds.
    pub run: fn(&View<'_>, &mut Findings),
}

const fn rule(
    id: &'static str,
    problems: &'static [u8],
    about: &'static str,
    run: fn(&View<'_>, &mut Findings),
) -> Rule {
    Rule { check: Check { id, group: Group::Config, about, problems }, run }
}

/// All rules, those of one subject together.
pub const RULES: &[Rule] = &[
    rule("probe-port", &[], "probes of a master ask a port that it listens on", kubernetes::probe_port),
    rule("selector", &[], "Services select pods that there are", kubernetes::selector),
    rule(
        "service-port",
        &[18],
        "Services and their callers name ports on which somebody listens",
        services::service_port,
    ),
    rule("memory-limit", &[8, 9], "memory limits leave room beside what is lent", kubernetes::memory_limit),
    rule("unknown-host", &[18], "addresses name a Service that there is", kubernetes::unknown_host),
    rule("local-hostname", &[1], "clients have a name that others can call", client::local_hostname),
    rule("auto-discovery", &[2], "RDMA devices are named or discovered", client::auto_discovery),
    rule("address-form", &[20], "addresses have the form that their reader takes", together::address_form),
    rule("master-missing", &[18], "clients are told of a master", together::master_missing),
    rule("protocol", &[25], "all clients of a store use one transport", together::protocol),
    rule("same-keys", &[16], "servers that share a store make the same keys", together::same_keys),
    rule("hicache-flags", &[16], "flags of HiCache go together", together::hicache_flags),
    rule("port-taken", &[12], "no two processes of a network listen on one port", together::port_taken),
    rule("release", &[3], "master and clients are of one release", container::releases),
    rule("image-tag", &[3], "images name a release", container::image_tag),
    rule("rdma-device", &[2, 4], "containers with RDMA get its devices", container::rdma_device),
    rule("memlock", &[4, 5], "processes with RDMA may lock their memory", container::memlock),
    rule("shared-memory", &[], "ranks of a server have shared memory enough", container::shared_memory),
    rule("ssd", &[26], "the SSD tier has both sides switched on, and a folder of its own", container::ssd),
    rule("config-rpc-port", &[12], "a master with a settings file is given its RPC port", master::config_rpc_port),
    rule("ha", &[20], "flags of high availability go together", master::ha),
    rule("ha-clients", &[20], "clients of masters with HA find the leader", master::ha_clients),
    rule("master-replicas", &[20], "there is one master, or an election", master::replicas),
    rule("master-switches", &[11, 21, 26], "switches of the master work, and not against each other", master::switches),
    rule("ha-readiness", &[20], "a standby master is not ready", master::ha_readiness),
    rule("size-grammar", &[8], "sizes are written as their reader reads them", sizes::grammar),
    rule("rank-segment", &[8], "each rank lends nothing, or at least 16 MiB", sizes::rank_segment),
    rule("huge-page-switch", &[7], "what switches huge pages off really does", sizes::huge_page_switch),
    rule("arena", &[7], "an arena has huge pages, and the size of what goes into it", sizes::arena),
    rule("huge-page-resources", &[7], "containers may take the huge pages that they use", sizes::huge_page_resources),
    rule("variable-name", &[], "variables have names that are read", names::variables),
    rule("ssd-variable", &[26], "the SSD tier is switched on by the name that its process reads", names::ssd_variables),
    rule("boolean-word", &[], "variables are true in the words of their reader", names::boolean_words),
    rule("hidden-variable", &[], "variables are not hidden by a file or an extra config", names::hidden_variables),
    rule("master-flag", &[], "the master has the flags that it is given", names::master_flags),
    rule("master-value", &[], "the master's flags have values that it takes", names::master_values),
    rule("unsupported", &[], "mcctl's programs support what they are given", programs::unsupported),
    rule("master-threads", &[13], "the master has threads and CPU enough for pings", master::threads),
    rule("grace", &[18], "a process has the time to end that it needs", kubernetes::grace),
    rule("config-key", &[13], "settings files have keys that are read", names::config_keys),
    rule("sglang-flag", &[], "SGLang has the flags that it is given", sglang::flags),
    rule("sglang-value", &[], "SGLang's flags have values that it takes", sglang::values),
    rule("device-list", &[2], "lists of devices are separated by commas alone", sglang::devices),
    rule("vllm-config", &[], "vLLM's settings of the store go together", connectors::vllm),
    rule("lmcache-config", &[], "LMCache's settings reach the store", connectors::lmcache),
    rule("mcctl-flag", &[], "mcctl's commands have the flags that they are given", programs::flags),
    rule("docker-option", &[], "options of docker run stand before the image", programs::docker_options),
    rule(
        "container-port",
        &[18],
        "ports that a master's container declares are those of the master",
        services::container_port,
    ),
    rule("decode-without-hicache", &[], "a decode server that does not use the store is meant so", client::decode),
];

/// The catalogue, as doctor and `lint --list` show it.
pub const CHECKS: &[Check] = &CATALOGUE;

const CATALOGUE: [Check; RULES.len() + 2] = {
    // What the readers find is in the scene already.
    let mut all = [MANIFEST; RULES.len() + 2];
    all[1] = CONTINUATION;
    let mut at = 0;
    while at < RULES.len() {
        all[at + 2] = RULES[at].check;
        at += 1;
    }
    all
};

/// What is wrong with a document of Kubernetes as such.
pub const MANIFEST: Check = Check {
    id: "manifest",
    group: Group::Config,
    about: "Kubernetes documents have the fields of their kind, and no others",
    problems: &[],
};

/// What is wrong with the lines of a script as such.
pub const CONTINUATION: Check = Check {
    id: "continuation",
    group: Group::Config,
    about: "lines that go on end in a backslash, and no blank behind it",
    problems: &[],
};

/// A scene with the flags and settings of its processes read.
pub struct View<'s> {
    /// The scene.
    pub scene: &'s Scene,
    /// Its processes, in the same order.
    pub seen: Vec<Seen<'s>>,
}

impl<'s> View<'s> {
    /// Read them.
    pub fn new(scene: &'s Scene) -> View<'s> {
        let seen = scene.processes.iter().map(|process| Seen::new(scene, process)).collect();
        View { scene, seen }
    }

    /// The masters.
    pub fn masters(&self) -> impl Iterator<Item = &Seen<'s>> {
        self.seen.iter().filter(|seen| seen.process.role == Role::Master)
    }

    /// The masters of upstream. Those of mcctl refuse its flags of HA, snapshots and SSD, which `unsupported` reports.
    pub fn upstream_masters(&self) -> impl Iterator<Item = &Seen<'s>> {
        self.masters().filter(|seen| seen.process.make == Make::Upstream)
    }

    /// The release of Mooncake that a process runs: that of the scene, or of the tag of its image.
    pub fn release(&self, seen: &Seen<'_>) -> Option<String> {
        self.scene.release_of(seen.process)
    }

    /// Clients that use the store.
    pub fn clients(&self) -> impl Iterator<Item = &Seen<'s>> {
        self.seen.iter().filter(|seen| seen.process.role.is_client() && seen.uses_mooncake() != Some(false))
    }

    /// SGLang servers.
    pub fn sglang(&self) -> impl Iterator<Item = &Seen<'s>> {
        self.seen.iter().filter(|seen| seen.process.role.is_sglang())
    }

    /// The processes that share a network with `process`.
    pub fn beside(&self, process: &Process) -> impl Iterator<Item = &Seen<'s>> {
        self.seen.iter().filter(|seen| seen.process.network == process.network && !std::ptr::eq(seen.process, process))
    }
}

/// What a rule says, under its name.
pub struct Findings {
    id: &'static str,
    out: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, severity: Severity, place: &Place, texts: [String; 3]) {
        let [finding, evidence, remedy] = texts;
        self.out.push(Finding { id: self.id, severity, finding, evidence, remedy, place: Some(place.clone()) });
    }

    /// It does not work, or loses what it holds.
    pub fn error(&mut self, at: &Place, what: impl Into<String>, seen: impl Into<String>, next: impl Into<String>) {
        self.add(Severity::Error, at, [what.into(), seen.into(), next.into()]);
    }

    /// It works, but not well, not everywhere, or not for long.
    pub fn warning(&mut self, at: &Place, what: impl Into<String>, seen: impl Into<String>, next: impl Into<String>) {
        self.add(Severity::Warning, at, [what.into(), seen.into(), next.into()]);
    }

    /// Good to know.
    pub fn info(&mut self, at: &Place, what: impl Into<String>, seen: impl Into<String>, next: impl Into<String>) {
        self.add(Severity::Info, at, [what.into(), seen.into(), next.into()]);
    }
}

/// Everything that the rules find in `scene`, by file and line.
pub fn check_scene(scene: &Scene) -> Vec<Finding> {
    let view = View::new(scene);
    let mut out = scene.found.clone();
    for rule in RULES {
        let mut findings = Findings { id: rule.check.id, out: Vec::new() };
        (rule.run)(&view, &mut findings);
        out.append(&mut findings.out);
    }
    // One place, one rule, one finding: a template that three roles use says it once.
    let mut seen = std::collections::BTreeSet::new();
    out.retain(|finding| seen.insert((finding.id, finding.place.clone(), finding.evidence.clone())));
    out.sort_by(|a, b| (&a.place, b.severity, a.id).cmp(&(&b.place, a.severity, b.id)));
    out
}
