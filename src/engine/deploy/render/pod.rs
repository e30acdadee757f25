//! Pod templates, for plain Kubernetes and for RoleBasedGroups.

use serde_yaml_ng::{Mapping, Value};

use crate::render::yaml::{ToYaml, map, pairs};
use crate::render::{RenderContext, pod_extras, sandbox};
use crate::{
    ComponentRole, DataVolume, DeployError, HostMount, ImageSource, NamedPort, Platform, ProbeAction, ProbeSpec,
    ProcessPlan, SecretFile,
};

/// How long upstream's store ignores signals during setup, in seconds (0.3.13: 20 attempts of
/// 4.4 s).
const SETUP_S: u32 = 90;
/// The label with a pod's index in its StatefulSet, since Kubernetes 1.28.
pub(crate) const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
/// Variables that this writer or a controller defines. Any other `$(NAME)` is literal.
const OURS: &[&str] = &["POD_IP", "NODE_RANK", "RBG_LWP_LEADER_ADDRESS", "RBG_LWP_WORKER_INDEX"];
/// Name of the volume with a workload's data.
pub(crate) const DATA_VOLUME: &str = "data";
/// Name of the volume for temporary files.
const TEMPORARY_VOLUME: &str = "tmp";
/// The volume with the secret of the masters.
const SECRET_VOLUME: &str = "secret";
/// User and group of masters and store nodes. The group owns the files of a data volume. The number
/// is the customary one for a user without an account in the image.
const UNPRIVILEGED: u32 = 65532;
const MIB: u64 = 1 << 20;

/// The containers of a pod, and the number of identical pods.
pub(crate) struct PodWorkload<'a> {
    pub name: &'a str,
    pub role: ComponentRole,
    pub replicas: u32,
    pub size: u32,
    pub plans: Vec<&'a ProcessPlan>,
}

impl<'a> PodWorkload<'a> {
    /// All workloads of a deployment, in start order.
    pub(super) fn all(context: &'a RenderContext<'_>) -> Vec<PodWorkload<'a>> {
        let mut all: Vec<PodWorkload<'a>> = Vec::new();
        for plan in &context.plans {
            match all.iter_mut().find(|known| known.name == plan.workload) {
                Some(known) => known.plans.push(plan),
                None => all.push(PodWorkload {
                    name: &plan.workload,
                    role: plan.role,
                    replicas: plan.replicas,
                    size: plan.size,
                    plans: vec![plan],
                }),
            }
        }
        all
    }

    /// The labels of its pods. The last one is the selector.
    pub(super) fn labels(&self, context: &RenderContext<'_>) -> [(&'static str, String); 3] {
        [
            ("app.kubernetes.io/part-of", context.spec.name.clone()),
            ("app.kubernetes.io/component", self.role.word().to_owned()),
            ("app.kubernetes.io/instance", self.name.to_owned()),
        ]
    }

    /// Whether the workload consists of masters that elect a leader.
    pub(super) fn is_elected(&self, context: &RenderContext<'_>) -> bool {
        self.role == ComponentRole::Master && context.spec.master.ha.is_some()
    }

    /// The volume that keeps the data of each pod, if it has one. Several pods require a
    /// StatefulSet, which has a claim per pod.
    pub(super) fn data(&self) -> Option<&DataVolume> {
        self.plans.iter().find_map(|plan| plan.data.as_ref())
    }

    /// The claim for [`PodWorkload::data`], without `apiVersion` and `kind`.
    pub(super) fn claim(&self, context: &RenderContext<'_>, metadata: Value) -> Option<Value> {
        let class = &context.spec.kubernetes.storage_class;
        let data = self.data()?;
        Some(map! {
            "metadata": metadata,
            "spec": map! {
                "accessModes": vec!["ReadWriteOnce"],
                "storageClassName": (!class.is_empty()).then_some(class),
                "resources": map! { "requests": map! { "storage": quantity(data.volume_bytes) } },
            },
        })
    }

    /// Whether the workload gets a disruption budget. Elected masters do not if only one pod is
    /// ready: a budget would block node drains. The ranks of a server do not either, because every
    /// pod is needed.
    pub(super) fn has_budget(&self, context: &RenderContext<'_>) -> bool {
        let is_one_ready = self.is_elected(context) && !context.spec.replicates_metadata();
        self.replicas > 1 && self.size == 1 && !is_one_ready
    }

    /// A note on a model that no volume provides: it must be in the image, or is downloaded again
    /// and again.
    pub(super) fn model_note(&self, context: &RenderContext<'_>) -> Option<String> {
        let path = &context.spec.model.path;
        let missing = self.role.is_engine() && path.starts_with('/') && model_volume(context).is_none();
        let in_image = missing.then(|| {
            format!(
                "{path} must be in the image of {}: kubernetes.model_claim and model_host_path are not set.",
                self.role.word()
            )
        });
        in_image.or_else(|| pod_extras::download_note(context, self.role))
    }

    /// The label that selects its pods.
    pub(super) fn selector(&self) -> [(&'static str, String); 1] {
        [("app.kubernetes.io/instance", self.name.to_owned())]
    }

    /// The ports of its pods. Names are unique within a pod.
    pub(super) fn ports(&self) -> Vec<(String, u16)> {
        let plans = self.plans.iter().enumerate();
        plans.flat_map(|(at, l)| l.ports.iter().map(move |port| (self.port_name(port, at), port.number))).collect()
    }

    /// The name of a port in the `at`-th container.
    fn port_name(&self, port: &NamedPort, at: usize) -> String {
        if self.plans.len() > 1 { format!("{}-{at}", port.name) } else { port.name.to_owned() }
    }

    /// The ports of a Service for its pods.
    pub(super) fn service_ports(&self, context: &RenderContext<'_>) -> Vec<Value> {
        // With an election, clients find the leader through etcd. A Service would also route to
        // standbys, whose RPC port is closed.
        let fit = self.ports().into_iter().filter(|(name, _)| !(self.is_elected(context) && name == "rpc"));
        fit.map(|(name, port)| map! { "name": name, "port": port }).collect()
    }

    /// The pod template.
    ///
    /// # Errors
    /// An image is not set.
    pub(super) fn template(&self, context: &RenderContext<'_>) -> Result<Value, DeployError> {
        let annotations = &context.spec.kubernetes.annotations;
        let metadata = map! {
            "labels": self.labels(context),
            "annotations": pairs(annotations.iter().map(|(key, value)| (key.as_str(), value))),
        };
        Ok(map! { "metadata": metadata, "spec": self.pod(context)? })
    }

    fn pod(&self, context: &RenderContext<'_>) -> Result<Value, DeployError> {
        let kubernetes = &context.spec.kubernetes;
        let containers: Result<Vec<Value>, _> =
            self.plans.iter().enumerate().map(|(at, plan)| self.container(context, at, plan)).collect();
        let on_own_nodes = self.role == ComponentRole::Store || self.role.is_engine();
        let alone = self.role == ComponentRole::Store || self.is_elected(context);
        let host_network = kubernetes.host_network;
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Ok(map! {
            // Service links would add variables that look like Mooncake's: a Service named
            // mooncake-master sets MOONCAKE_MASTER_PORT.
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "serviceAccountName": given(&kubernetes.service_account),
            "priorityClassName": given(&kubernetes.priority_class),
            "imagePullSecrets": pod_extras::pull_secrets(context),
            "hostNetwork": host_network.then_some(true),
            "dnsPolicy": host_network.then_some("ClusterFirstWithHostNet"),
            "terminationGracePeriodSeconds": self.stop_s(),
            "securityContext": self.is_restricted().then(|| self.pod_security()),
            "nodeSelector": on_own_nodes.then(|| pairs(kubernetes.node_selector.iter().map(|(key, value)| (key.as_str(), value)))).flatten(),
            "tolerations": pod_extras::tolerations(context),
            "affinity": alone.then(|| self.anti_affinity()),
            "containers": containers?,
            "volumes": self.volumes(context),
        })
    }

    /// Whether the pods run masters or store nodes.
    fn is_restricted(&self) -> bool {
        self.plans.iter().all(|plan| sandbox::is_restricted(plan))
    }

    /// Why the pods run as root, as a clause. `None` if they do not, or if the image decides.
    pub(super) fn root_reason(&self) -> Option<&'static str> {
        if self.plans.iter().any(|plan| plan.resources.memlock) {
            return Some("because IPC_LOCK takes effect only for root");
        }
        let writes = self.plans.iter().any(|plan| plan.mounts.iter().any(|mount| mount.writes));
        writes.then_some("because a directory of the host keeps its owner")
    }

    /// The security context of a pod with masters or store nodes. The group of the processes may
    /// write to a data volume.
    fn pod_security(&self) -> Value {
        let user = if self.root_reason().is_none() { UNPRIVILEGED } else { 0 };
        let has_data = self.data().is_some();
        map! {
            "runAsNonRoot": (user != 0).then_some(true),
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": has_data.then_some(UNPRIVILEGED),
            "fsGroupChangePolicy": has_data.then_some("OnRootMismatch"),
            "seccompProfile": map! { "type": "RuntimeDefault" },
        }
    }

    /// The termination grace period. It covers the drain, and the setup phase in which upstream's
    /// store ignores signals.
    fn stop_s(&self) -> u32 {
        let of = |plan: &&ProcessPlan| {
            let ignores_signals = plan.role == ComponentRole::Store && plan.image != ImageSource::Mcctl;
            plan.stop_s + if ignores_signals { SETUP_S } else { 0 }
        };
        self.plans.iter().map(of).max().unwrap_or(30)
    }

    /// Pod anti-affinity: two pods on the same host would be lost together.
    fn anti_affinity(&self) -> Value {
        let term = map! {
            "labelSelector": map! { "matchLabels": self.selector() },
            "topologyKey": "kubernetes.io/hostname",
        };
        map! { "podAntiAffinity": map! { "requiredDuringSchedulingIgnoredDuringExecution": vec![term] } }
    }

    /// The `at`-th container of the pod.
    fn container(&self, context: &RenderContext<'_>, at: usize, plan: &ProcessPlan) -> Result<Value, DeployError> {
        let resources = &plan.resources;
        let argv = plan.container_argv();
        // `command` contains the wait script and numactl if either is used, and the program
        // otherwise. `args` contains the rest.
        let before = argv.len() - plan.argv.len();
        let (command, arguments) = argv.split_at(if before == 0 { 1.min(argv.len()) } else { before });
        let texts = |words: &[String]| words.iter().map(|word| literal(word)).collect::<Vec<_>>();
        let mut mounts: Vec<Value> = Vec::new();
        if resources.shm > 0 {
            mounts.push(map! { "name": "shm", "mountPath": "/dev/shm" });
        }
        if let Some((_, path)) = model_volume(context).filter(|_| plan.role.is_engine()) {
            mounts.push(map! { "name": "model", "mountPath": path, "readOnly": true });
        }
        for mount in &plan.mounts {
            let read_only = (!mount.writes).then_some(true);
            mounts.push(map! { "name": self.volume_name(mount), "mountPath": &mount.path, "readOnly": read_only });
        }
        if let Some(data) = &plan.data {
            mounts.push(map! { "name": DATA_VOLUME, "mountPath": &data.path });
        }
        if plan.secret.is_some() {
            mounts.push(map! { "name": SECRET_VOLUME, "mountPath": SecretFile::DIRECTORY, "readOnly": true });
        }
        if writes_temporary_files(plan) {
            mounts.push(map! { "name": TEMPORARY_VOLUME, "mountPath": "/tmp" });
        }
        mounts.extend(pod_extras::mounts(context, plan));
        let name = match plan.numa {
            Some(node) => format!("{}-numa{node}", plan.role.word()),
            None => plan.role.word().to_owned(),
        };
        let drain = plan.drain_argv().map(|argv| map! { "preStop": map! { "exec": map! { "command": texts(&argv) } } });
        Ok(map! {
            "name": name,
            "image": context.image(plan)?,
            "command": texts(command),
            "args": texts(arguments),
            "env": environment(context, plan),
            "ports": plan.ports.iter().map(|p| map! { "name": self.port_name(p, at), "containerPort": p.number }).collect::<Vec<_>>(),
            "startupProbe": probe(&startup_probe(plan)),
            "readinessProbe": probe(&plan.probes.readiness),
            "livenessProbe": probe(&plan.probes.liveness),
            "lifecycle": drain,
            "resources": requirements(context, plan),
            "securityContext": security(plan),
            "volumeMounts": mounts,
        })
    }

    fn volumes(&self, context: &RenderContext<'_>) -> Vec<Value> {
        let mut volumes = Vec::new();
        let shm = self.plans.iter().map(|plan| plan.resources.shm).max().unwrap_or(0);
        if shm > 0 {
            let memory = map! { "medium": "Memory", "sizeLimit": quantity(shm) };
            volumes.push(map! { "name": "shm", "emptyDir": memory });
        }
        if let Some((source, _)) = model_volume(context).filter(|_| self.role.is_engine()) {
            volumes.push(source);
        }
        for mount in self.plans.iter().flat_map(|plan| &plan.mounts) {
            // The directory itself must exist. A subdirectory is created for each process.
            let whole = mount.path == context.spec.nodes.ssd_path || !mount.writes;
            let kind = if whole { "Directory" } else { "DirectoryOrCreate" };
            let source = map! { "path": &mount.path, "type": kind };
            volumes.push(map! { "name": self.volume_name(mount), "hostPath": source });
        }
        if let Some(secret) = self.plans.iter().find_map(|plan| plan.secret.as_ref()) {
            let items = vec![map! { "key": SecretFile::KEY, "path": SecretFile::KEY }];
            let source = map! { "secretName": &secret.source, "items": items };
            volumes.push(map! { "name": SECRET_VOLUME, "secret": source });
        }
        if self.plans.iter().any(|plan| writes_temporary_files(plan)) {
            volumes.push(map! { "name": TEMPORARY_VOLUME, "emptyDir": Value::Mapping(Mapping::new()) });
        }
        volumes.extend(pod_extras::volumes(context, self.role, &self.plans));
        // A StatefulSet creates the claim from its template. A RoleBasedGroup has no such
        // templates.
        if let Some(data) = self.data().filter(|_| context.platform == Platform::Rbg) {
            let claim = map! { "claimName": &data.name };
            volumes.push(map! { "name": DATA_VOLUME, "persistentVolumeClaim": claim });
        }
        volumes
    }

    /// Volume names `host-0`, `host-1` and so on.
    fn volume_name(&self, mount: &HostMount) -> String {
        let mut all = self.plans.iter().flat_map(|plan| &plan.mounts);
        format!("host-{}", all.position(|known| known == mount).unwrap_or(0))
    }
}

/// Whether the process writes to /tmp, where upstream's programs keep their logs. Engines may write
/// to the image instead.
fn writes_temporary_files(plan: &ProcessPlan) -> bool {
    sandbox::is_restricted(plan) && plan.image != ImageSource::Mcctl
}

/// The volume that contains the model and its mount path, if the cluster provides it.
fn model_volume<'a>(context: &'a RenderContext<'_>) -> Option<(Value, &'a str)> {
    let kubernetes = &context.spec.kubernetes;
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

/// All variables, ordered so that each one precedes its uses.
fn environment(context: &RenderContext<'_>, plan: &ProcessPlan) -> Vec<Value> {
    let texts = || plan.env.iter().map(|(_, value)| value).chain(&plan.argv);
    let mut env = Vec::new();
    for (name, path) in
        [("POD_IP", "status.podIP".to_owned()), ("NODE_RANK", format!("metadata.labels['{POD_INDEX_LABEL}']"))]
    {
        if texts().any(|text| text.contains(&format!("$({name})"))) {
            env.push(map! { "name": name, "valueFrom": map! { "fieldRef": map! { "fieldPath": path } } });
        }
    }
    env.extend(plan.env.iter().map(|(name, value)| map! { "name": name, "value": literal(value) }));
    env.extend(pod_extras::hub_token(context, plan));
    env
}

/// Escapes `text` for Kubernetes: `$$` is a dollar sign. `$(NAME)` stays a reference for the
/// variables in [`OURS`].
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

/// The startup probe, extended by the time that the process may wait for other processes.
pub(crate) fn startup_probe(plan: &ProcessPlan) -> ProbeSpec {
    let startup = &plan.probes.startup;
    let waits = if plan.wait.any_of.is_empty() { 0 } else { plan.wait.seconds.div_ceil(startup.period_s.max(1)) };
    ProbeSpec { failures: startup.failures.saturating_add(waits), ..startup.clone() }
}

fn probe(asked: &ProbeSpec) -> Value {
    let mut how = match &asked.by {
        ProbeAction::Http { port, path, tls } => {
            map! { "httpGet": map! { "path": *path, "port": *port, "scheme": tls.then_some("HTTPS") } }
        }
        ProbeAction::Tcp { port } => map! { "tcpSocket": map! { "port": *port } },
        ProbeAction::Exec { argv } => {
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

/// Requests equal limits: L2 and segments are allocated at startup, and a pod that exceeds its
/// request may be evicted.
fn requirements(context: &RenderContext<'_>, plan: &ProcessPlan) -> Value {
    let resources = &plan.resources;
    let kubernetes = &context.spec.kubernetes;
    let memory = resources.memory.map(quantity);
    let mut both: Vec<(String, Option<Value>)> = vec![("memory".to_owned(), memory.to_yaml())];
    if let Some((page, count)) = resources.hugepages {
        both.push((format!("hugepages-{}", quantity(page)), quantity(page.saturating_mul(count)).to_yaml()));
    }
    if resources.gpus > 0 {
        both.push((kubernetes.gpu_resource.clone(), resources.gpus.to_yaml()));
    }
    if resources.rdma && kubernetes.rdma_count > 0 {
        both.push((kubernetes.rdma_resource.clone(), kubernetes.rdma_count.to_yaml()));
    }
    let cpu = [("cpu".to_owned(), resources.cpus.to_yaml())];
    map! { "requests": pairs(cpu.into_iter().chain(both.clone())), "limits": pairs(both) }
}

/// Bytes in whole Gi or Mi, rounded up.
fn quantity(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes > 0 && bytes.is_multiple_of(GIB) {
        format!("{}Gi", bytes / GIB)
    } else {
        format!("{}Mi", bytes.div_ceil(MIB))
    }
}

/// The security context of a container.
///
/// Masters and store nodes meet the `restricted` pod security standard, and cannot write to the
/// image. Three capabilities are exceptions to it. IPC_LOCK and DAC_OVERRIDE take effect only for
/// root. With SYS_NICE, container runtimes allow the calls of numactl for any user.
fn security(plan: &ProcessPlan) -> Value {
    let writes = sandbox::is_restricted(plan) && plan.mounts.iter().any(|mount| mount.writes);
    let all = [(plan.resources.memlock, "IPC_LOCK"), (plan.numa.is_some(), "SYS_NICE"), (writes, "DAC_OVERRIDE")];
    let add: Vec<&str> = all.into_iter().filter(|(needed, _)| *needed).map(|(_, name)| name).collect();
    let add = (!add.is_empty()).then_some(add);
    if add.is_some() && !sandbox::is_restricted(plan) {
        return map! { "runAsUser": 0u32, "capabilities": map! { "add": add } };
    }
    map! {
        "allowPrivilegeEscalation": false,
        "capabilities": map! { "drop": vec!["ALL"], "add": add },
        "readOnlyRootFilesystem": sandbox::is_restricted(plan).then_some(true),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::RbgApi;
    use crate::kube;
    use crate::plans::tests::deployments;
    use crate::render::{RenderFormat, render};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn rendered_manifests_are_valid(
            mut spec in deployments(), kind in prop::sample::select(vec![RenderFormat::K8s, RenderFormat::Rbg]),
            old in any::<bool>(), (host_network, claim, folder) in any::<(bool, bool, bool)>(),
        ) {
            spec.images.mcctl = "registry.example/mcctl:1".to_owned();
            spec.kubernetes.host_network = host_network;
            if old { spec.kubernetes.rbg_api = RbgApi::V1alpha1; }
            if claim { spec.kubernetes.model_claim = "models".to_owned(); }
            if folder && !claim { spec.kubernetes.model_host_path = "/models".to_owned(); }
            let files = render(&spec, kind, "a.toml");
            // Contradictory deployments are discarded. proptest fails if too few remain.
            prop_assume!(files.is_ok());
            for document in serde_yaml_ng::Deserializer::from_str(&files.unwrap()[0].text) {
                let document = serde_json::Value::deserialize(document).unwrap();
                prop_assert!(document.is_null() || kube::known(&document));
                let violations = if document.is_null() { Vec::new() } else { kube::validate(&document) };
                prop_assert!(violations.is_empty(), "{:?}", violations);
            }
        }
    }

    #[test]
    fn only_defined_variables_stay_references() {
        assert_eq!(literal("$(POD_IP):$(NODE_RANK)"), "$(POD_IP):$(NODE_RANK)");
        assert_eq!(literal("$(HOME) $$ a$ $x \"$@\" $((n+1))"), "$$(HOME) $$$ a$ $x \"$@\" $((n+1))");
    }

    #[test]
    fn quantities_are_rounded_up() {
        assert_eq!(
            [quantity(2 << 30), quantity((1 << 30) + 1), quantity(1), quantity(2 << 20)],
            ["2Gi", "1025Mi", "1Mi", "2Mi"]
        );
    }
}
