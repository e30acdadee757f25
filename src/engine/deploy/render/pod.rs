//! The pods of a workload, for Kubernetes in the plain and for RoleBasedGroups.

use serde_yaml_ng::Value;

use crate::engine::deploy::render::Context;
use crate::engine::deploy::render::yaml::{Spell, map, pairs};
use crate::engine::deploy::{DeployError, Image, Launch, Mount, Port, Probe, ProbeBy, Role};

/// Seconds in which upstream's store, while it sets up, hears no signal (0.3.13: 20 tries of 4.4 s).
const SETUP_S: u32 = 90;
/// The label of a pod's number in its StatefulSet, from Kubernetes 1.28 on.
pub(crate) const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
/// What others put into a container or this file does; any other `$(NAME)` is meant as it stands.
const OURS: &[&str] = &["POD_IP", "NODE_RANK", "RBG_LWP_LEADER_ADDRESS", "RBG_LWP_WORKER_INDEX"];
const MIB: u64 = 1 << 20;

/// The containers that run beside each other in a pod, and how many such pods there are.
pub(crate) struct Workload<'a> {
    pub name: &'a str,
    pub role: Role,
    pub replicas: u32,
    /// Pods of one copy.
    pub size: u32,
    pub launches: Vec<&'a Launch>,
}

impl<'a> Workload<'a> {
    /// The workloads of a deployment, in the order in which they start.
    pub fn all(context: &'a Context<'_>) -> Vec<Workload<'a>> {
        let mut all: Vec<Workload<'a>> = Vec::new();
        for launch in &context.launches {
            match all.iter_mut().find(|known| known.name == launch.workload) {
                Some(known) => known.launches.push(launch),
                None => all.push(Workload {
                    name: &launch.workload,
                    role: launch.role,
                    replicas: launch.replicas,
                    size: launch.size,
                    launches: vec![launch],
                }),
            }
        }
        all
    }

    /// Labels that its pods carry. The last one alone selects them.
    pub fn labels(&self, context: &Context<'_>) -> [(&'static str, String); 3] {
        [
            ("app.kubernetes.io/part-of", context.wanted.name.clone()),
            ("app.kubernetes.io/component", self.role.word().to_owned()),
            ("app.kubernetes.io/instance", self.name.to_owned()),
        ]
    }

    /// Is it masters of which one is elected?
    pub fn is_elected(&self, context: &Context<'_>) -> bool {
        self.role == Role::Master && context.wanted.master.ha.is_some()
    }

    /// May nodes be drained while one of its pods is missing? Of elected masters one is ready, so a budget would forbid every drain;
    /// of the ranks of a server none can be missed.
    pub fn has_budget(&self, context: &Context<'_>) -> bool {
        self.replicas > 1 && self.size == 1 && !self.is_elected(context)
    }

    /// What has to be said of the model, where no volume brings it.
    pub fn model_in_image(&self, context: &Context<'_>) -> Option<String> {
        let path = &context.wanted.model.path;
        let missing = self.role.is_engine() && path.starts_with('/') && model_volume(context).is_none();
        missing.then(|| {
            format!(
                "{path} must be in the image of {}: no kubernetes.model_claim or model_host_path.",
                self.role.word()
            )
        })
    }

    /// The label that selects its pods.
    pub fn selector(&self) -> [(&'static str, String); 1] {
        [("app.kubernetes.io/instance", self.name.to_owned())]
    }

    /// Ports of its pods with names that are unique in a pod.
    pub fn ports(&self) -> Vec<(String, u16)> {
        let launches = self.launches.iter().enumerate();
        launches.flat_map(|(at, l)| l.ports.iter().map(move |port| (self.port_name(port, at), port.number))).collect()
    }

    /// The name of a port of the `at`-th container.
    fn port_name(&self, port: &Port, at: usize) -> String {
        if self.launches.len() > 1 { format!("{}-{at}", port.name) } else { port.name.to_owned() }
    }

    /// Ports for a Service in front of its pods.
    pub fn service_ports(&self, context: &Context<'_>) -> Vec<Value> {
        // With an election, clients find the leader in etcd: a Service would send them to a stand-by, whose RPC port is closed.
        let fit = self.ports().into_iter().filter(|(name, _)| !(self.is_elected(context) && name == "rpc"));
        fit.map(|(name, port)| map! { "name": name, "port": port }).collect()
    }

    /// The template of its pods.
    ///
    /// # Errors
    /// An image is not filled in.
    pub fn template(&self, context: &Context<'_>) -> Result<Value, DeployError> {
        Ok(map! { "metadata": map! { "labels": self.labels(context) }, "spec": self.pod(context)? })
    }

    fn pod(&self, context: &Context<'_>) -> Result<Value, DeployError> {
        let kubernetes = &context.wanted.kubernetes;
        let containers: Result<Vec<Value>, _> =
            self.launches.iter().enumerate().map(|(at, launch)| self.container(context, at, launch)).collect();
        let on_own_nodes = self.role == Role::Store || self.role.is_engine();
        let alone = self.role == Role::Store || self.is_elected(context);
        let host_network = kubernetes.host_network;
        Ok(map! {
            // Variables of Services would come among those of Mooncake: a Service mooncake-master sets MOONCAKE_MASTER_PORT.
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "hostNetwork": host_network.then_some(true),
            "dnsPolicy": host_network.then_some("ClusterFirstWithHostNet"),
            "terminationGracePeriodSeconds": self.stop_s(),
            "nodeSelector": on_own_nodes.then(|| pairs(kubernetes.node_selector.iter().map(|(key, value)| (key.as_str(), value)))).flatten(),
            "affinity": alone.then(|| self.one_per_host()),
            "containers": containers?,
            "volumes": self.volumes(context),
        })
    }

    /// Longer than the drain, and than the time in which no signal is heard.
    fn stop_s(&self) -> u32 {
        let of = |launch: &&Launch| {
            let deaf = launch.role == Role::Store && launch.image != Image::Mcctl;
            launch.stop_s + if deaf { SETUP_S } else { 0 }
        };
        self.launches.iter().map(of).max().unwrap_or(30)
    }

    /// Two of them on one host would be lost together.
    fn one_per_host(&self) -> Value {
        let term = map! {
            "labelSelector": map! { "matchLabels": self.selector() },
            "topologyKey": "kubernetes.io/hostname",
        };
        map! { "podAntiAffinity": map! { "requiredDuringSchedulingIgnoredDuringExecution": vec![term] } }
    }

    /// The `at`-th container.
    fn container(&self, context: &Context<'_>, at: usize, launch: &Launch) -> Result<Value, DeployError> {
        let resources = &launch.resources;
        let argv = launch.container_argv();
        // What goes before the program (the wait, numactl) is the command; the program and its flags are the arguments.
        let before = argv.len() - launch.argv.len();
        let (command, arguments) = argv.split_at(if before == 0 { 1.min(argv.len()) } else { before });
        let texts = |words: &[String]| words.iter().map(|word| literal(word)).collect::<Vec<_>>();
        let mut mounts: Vec<Value> = Vec::new();
        if resources.shm > 0 {
            mounts.push(map! { "name": "shm", "mountPath": "/dev/shm" });
        }
        if let Some((_, path)) = model_volume(context).filter(|_| launch.role.is_engine()) {
            mounts.push(map! { "name": "model", "mountPath": path, "readOnly": true });
        }
        for mount in &launch.mounts {
            let read_only = (!mount.writes).then_some(true);
            mounts.push(map! { "name": self.volume_name(mount), "mountPath": &mount.path, "readOnly": read_only });
        }
        let name = match launch.numa {
            Some(node) => format!("{}-numa{node}", launch.role.word()),
            None => launch.role.word().to_owned(),
        };
        let drain =
            launch.drain_argv().map(|argv| map! { "preStop": map! { "exec": map! { "command": texts(&argv) } } });
        Ok(map! {
            "name": name,
            "image": context.image(launch)?,
            "command": texts(command),
            "args": texts(arguments),
            "env": environment(launch),
            "ports": launch.ports.iter().map(|p| map! { "name": self.port_name(p, at), "containerPort": p.number }).collect::<Vec<_>>(),
            "startupProbe": probe(&started(launch)),
            "readinessProbe": probe(&launch.probes.readiness),
            "livenessProbe": probe(&launch.probes.liveness),
            "lifecycle": drain,
            "resources": takes(context, launch),
            "securityContext": security(launch),
            "volumeMounts": mounts,
        })
    }

    fn volumes(&self, context: &Context<'_>) -> Vec<Value> {
        let mut volumes = Vec::new();
        let shm = self.launches.iter().map(|launch| launch.resources.shm).max().unwrap_or(0);
        if shm > 0 {
            let memory = map! { "medium": "Memory", "sizeLimit": quantity(shm) };
            volumes.push(map! { "name": "shm", "emptyDir": memory });
        }
        if let Some((source, _)) = model_volume(context).filter(|_| self.role.is_engine()) {
            volumes.push(source);
        }
        for mount in self.launches.iter().flat_map(|launch| &launch.mounts) {
            // A missing folder is an error; that of one process below it is made.
            let whole = mount.path == context.wanted.nodes.ssd_path || !mount.writes;
            let kind = if whole { "Directory" } else { "DirectoryOrCreate" };
            let source = map! { "path": &mount.path, "type": kind };
            volumes.push(map! { "name": self.volume_name(mount), "hostPath": source });
        }
        volumes
    }

    /// `host-0`, `host-1` ...
    fn volume_name(&self, mount: &Mount) -> String {
        let mut all = self.launches.iter().flat_map(|launch| &launch.mounts);
        format!("host-{}", all.position(|known| known == mount).unwrap_or(0))
    }
}

/// The model, where the cluster has it: the volume, and where it is mounted.
fn model_volume<'a>(context: &'a Context<'_>) -> Option<(Value, &'a str)> {
    let kubernetes = &context.wanted.kubernetes;
    let source = if !kubernetes.model_claim.is_empty() {
        let claim = map! { "claimName": &kubernetes.model_claim, "readOnly": true };
        map! { "name": "model", "persistentVolumeClaim": claim }
    } else if !kubernetes.model_host_path.is_empty() {
        map! { "name": "model", "hostPath": map! { "path": &kubernetes.model_host_path, "type": "Directory" } }
    } else {
        return None;
    };
    Some((source, &kubernetes.model_mount))
}

/// The variables, behind those that they name.
fn environment(launch: &Launch) -> Vec<Value> {
    let texts = || launch.env.iter().map(|(_, value)| value).chain(&launch.argv);
    let mut env = Vec::new();
    for (name, path) in
        [("POD_IP", "status.podIP".to_owned()), ("NODE_RANK", format!("metadata.labels['{POD_INDEX_LABEL}']"))]
    {
        if texts().any(|text| text.contains(&format!("$({name})"))) {
            env.push(map! { "name": name, "valueFrom": map! { "fieldRef": map! { "fieldPath": path } } });
        }
    }
    env.extend(launch.env.iter().map(|(name, value)| map! { "name": name, "value": literal(value) }));
    env
}

/// `text` as Kubernetes has to be told it: `$$` is a dollar, and `$(NAME)` a variable where one of ours is meant.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        out.push_str(&rest[..=at]);
        let name = after.strip_prefix('(').and_then(|inner| inner.split_once(')')).map(|(name, _)| name);
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        let meant = name.is_some_and(|name| OURS.contains(&name));
        if after.starts_with('$') || (!meant && name.is_some_and(is_name)) {
            out.push('$');
        }
        rest = after;
    }
    out + rest
}

/// The question whether it has started, asked for as long as it may wait for others before.
pub(crate) fn started(launch: &Launch) -> Probe {
    let startup = &launch.probes.startup;
    let waits = if launch.wait.any_of.is_empty() { 0 } else { launch.wait.seconds.div_ceil(startup.period_s.max(1)) };
    Probe { failures: startup.failures.saturating_add(waits), ..startup.clone() }
}

fn probe(asked: &Probe) -> Value {
    let mut how = match &asked.by {
        ProbeBy::Http { port, path } => map! { "httpGet": map! { "path": *path, "port": *port } },
        ProbeBy::Tcp { port } => map! { "tcpSocket": map! { "port": *port } },
        ProbeBy::Exec { argv } => {
            map! { "exec": map! { "command": argv.iter().map(|word| literal(word)).collect::<Vec<_>>() } }
        }
    };
    let times = map! {
        "periodSeconds": asked.period_s,
        "timeoutSeconds": asked.timeout_s,
        "failureThreshold": asked.failures,
    };
    if let (Value::Mapping(how), Value::Mapping(times)) = (&mut how, times) {
        how.extend(times);
    }
    how
}

/// Memory is requested as it is limited: what L2 and segments take is taken at once, and a pod that is promised less is killed.
fn takes(context: &Context<'_>, launch: &Launch) -> Value {
    let (resources, kubernetes) = (&launch.resources, &context.wanted.kubernetes);
    let memory = resources.memory.map(quantity);
    let mut both: Vec<(String, Option<Value>)> = vec![("memory".to_owned(), memory.spell())];
    if let Some((page, count)) = resources.hugepages {
        both.push((format!("hugepages-{}", quantity(page)), quantity(page.saturating_mul(count)).spell()));
    }
    if resources.gpus > 0 {
        both.push((kubernetes.gpu_resource.clone(), resources.gpus.spell()));
    }
    if resources.rdma && kubernetes.rdma_count > 0 {
        both.push((kubernetes.rdma_resource.clone(), kubernetes.rdma_count.spell()));
    }
    let cpu = [("cpu".to_owned(), resources.cpus.spell())];
    map! { "requests": pairs(cpu.into_iter().chain(both.clone())), "limits": pairs(both) }
}

/// Bytes in whole Gi or Mi, never less.
fn quantity(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes > 0 && bytes.is_multiple_of(GIB) {
        format!("{}Gi", bytes / GIB)
    } else {
        format!("{}Mi", bytes.div_ceil(MIB))
    }
}

/// Memory is locked by root alone: for another user the capability is not effective. Who locks nothing needs no right at all.
fn security(launch: &Launch) -> Value {
    let mut add = Vec::new();
    if launch.resources.memlock {
        add.push("IPC_LOCK");
    }
    if launch.numa.is_some() {
        // For numactl.
        add.push("SYS_NICE");
    }
    if add.is_empty() {
        return map! { "allowPrivilegeEscalation": false, "capabilities": map! { "drop": vec!["ALL"] } };
    }
    map! { "runAsUser": 0u32, "capabilities": map! { "add": add } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::engine::deploy::RbgApi;
    use crate::engine::deploy::launches::tests::deployments;
    use crate::engine::deploy::render::{Kind, render};
    use crate::engine::kube;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_is_written_is_sound(
            mut wanted in deployments(), old in any::<bool>(), (host_network, claim, folder) in any::<(bool, bool, bool)>(),
        ) {
            wanted.images.mcctl = "registry.example/mcctl:1".to_owned();
            wanted.kubernetes.host_network = host_network;
            if old { wanted.kubernetes.rbg_api = RbgApi::V1alpha1; }
            if claim { wanted.kubernetes.model_claim = "models".to_owned(); }
            if folder && !claim { wanted.kubernetes.model_host_path = "/models".to_owned(); }
            for kind in [Kind::K8s, Kind::Rbg] {
                let Ok(files) = render(&wanted, kind, "a.toml") else { continue };
                for document in serde_yaml_ng::Deserializer::from_str(&files[0].text) {
                    let document = serde_json::Value::deserialize(document).unwrap();
                    prop_assert!(document.is_null() || kube::known(&document));
                    let complaints = if document.is_null() { Vec::new() } else { kube::validate(&document) };
                    prop_assert!(complaints.is_empty(), "{:?}", complaints);
                }
            }
        }
    }

    #[test]
    fn only_our_variables_are_left_to_kubernetes() {
        assert_eq!(literal("$(POD_IP):$(NODE_RANK)"), "$(POD_IP):$(NODE_RANK)");
        assert_eq!(literal("$(HOME) $$ a$ $x \"$@\" $((n+1))"), "$$(HOME) $$$ a$ $x \"$@\" $((n+1))");
    }

    #[test]
    fn bytes_are_rounded_up_to_what_kubernetes_counts() {
        assert_eq!(
            [quantity(2 << 30), quantity((1 << 30) + 1), quantity(1), quantity(2 << 20)],
            ["2Gi", "1025Mi", "1Mi", "2Mi"]
        );
    }
}
