mod group;

use proptest::prelude::*;
use serde_json::json;

use super::path::Step;
use super::*;
use group::{GROUP, OLD_GROUP};

fn yaml(text: &str) -> Value {
    serde_yaml_ng::from_str(text).unwrap()
}

/// `document` with `value` at `path`; with null the entry is taken out.
fn with(mut document: Value, path: &str, value: Value) -> Value {
    let steps = Path::parse(path).unwrap();
    let (last, before) = steps.steps().split_last().unwrap();
    let mut at = &mut document;
    for step in before {
        at = match step {
            Step::Key(key) => at.as_object_mut().unwrap().entry(key.clone()).or_insert_with(|| json!({})),
            Step::Index(index) => &mut at[*index],
        };
    }
    match (last, value) {
        (Step::Key(key), Value::Null) => drop(at.as_object_mut().unwrap().remove(key)),
        (Step::Key(key), value) => drop(at.as_object_mut().unwrap().insert(key.clone(), value)),
        (Step::Index(index), Value::Null) => drop(at.as_array_mut().unwrap().remove(*index)),
        (Step::Index(index), value) => {
            let list = at.as_array_mut().unwrap();
            if *index < list.len() { list[*index] = value } else { list.push(value) }
        }
    }
    document
}

fn told(document: &Value) -> Vec<String> {
    validate(document).iter().map(ToString::to_string).collect()
}

/// Every case breaks a sound document at one place and is told once, in these words.
#[track_caller]
fn each_is_told(sound: &str, cases: &[(&str, Value, &str)]) {
    let sound = yaml(sound);
    assert_eq!(told(&sound), Vec::<String>::new());
    for (path, value, complaint) in cases {
        let broken = with(sound.clone(), path, value.clone());
        assert_eq!(told(&broken), [complaint.to_string()], "{path} = {value}");
    }
}

const DEPLOYMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kube/deployment.yaml"));

#[test]
fn a_container_is_held_to_its_rules() {
    let c = "spec.template.spec.containers[0]";
    let at = |rest: &str| -> &'static str { format!("{c}{rest}").leak() };
    each_is_told(
        DEPLOYMENT,
        &[
            (at(".image"), Value::Null, at(": image is missing")),
            (at(".image"), json!("a b"), at(": the image 'a b' has blanks")),
            (at(".name"), Value::Null, at(": name is missing")),
            (
                at(".name"),
                json!("Master"),
                at(".name: not a DNS label: lower-case letters, digits and '-', a letter or digit at both ends"),
            ),
            (
                at(".imagePullPolice"),
                json!("Always"),
                at(".imagePullPolice: unknown field 'imagePullPolice'; is imagePullPolicy meant?"),
            ),
            (
                at(".imagePullPolicy"),
                json!("always"),
                at(".imagePullPolicy: 'always' is none of Always, IfNotPresent, Never"),
            ),
            (
                at(".env[1].value"),
                json!(8080),
                at(
                    ".env[1].value: the number 8080 stands where a text (in quotes where YAML would read a number or a boolean) belongs",
                ),
            ),
            (at(".env[0].value"), json!("x"), at(".env[0]: value and valueFrom exclude each other")),
            (at(".env[2]"), json!({"name": "HOST"}), at(".env[2]: the name 'HOST' is there twice")),
            (
                at(".env[2]"),
                json!({"name": "A=B"}),
                at(".env[2].name: not the name of a variable: printable ASCII without '='"),
            ),
            (at(".env[2]"), json!({"value": "b"}), at(".env[2]: name is missing")),
            (
                at(".env[2]"),
                json!({"name": "A", "valueFrom": {}}),
                at(
                    ".env[2].valueFrom: one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef, fileKeyRef must stand here",
                ),
            ),
            (
                at(".env[0].valueFrom.fieldRef.fieldPath"),
                json!("status.podIp"),
                at(".env[0].valueFrom.fieldRef.fieldPath: no field that can be shown: 'status.podIp'"),
            ),
            (
                at(".env[1].value"),
                json!("$(NODE_IP)"),
                at(".env[1]: $(NODE_IP) stays as it is: the variable is set nowhere in this container"),
            ),
            (
                at(".args[0]"),
                json!("--rpc_address=$(NODE_IP)"),
                at(".args[0]: $(NODE_IP) stays as it is: the variable is set nowhere in this container"),
            ),
            (at(".ports[0].containerPort"), json!(0), at(".ports[0].containerPort: 0 is no port: 1 to 65535")),
            (at(".ports[0].containerPort"), json!(9003), at(".ports[1]: this port is there twice")),
            (at(".ports[0].name"), json!("metrics"), at(".ports[1]: the name 'metrics' is there twice")),
            (
                at(".ports[0].name"),
                json!("a-very-long-port-name"),
                at(
                    ".ports[0].name: not a port's name: at most 15 lower-case letters, digits and single '-', at least one letter",
                ),
            ),
            (at(".ports[0].protocol"), json!("tcp"), at(".ports[0].protocol: 'tcp' is none of TCP, UDP, SCTP")),
            (
                at(".readinessProbe.tcpSocket"),
                json!({"port": 1}),
                at(".readinessProbe: httpGet and tcpSocket exclude each other"),
            ),
            (
                at(".readinessProbe.httpGet"),
                Value::Null,
                at(".readinessProbe: one of exec, grpc, httpGet, tcpSocket must stand here"),
            ),
            (
                at(".readinessProbe.httpGet.port"),
                json!("metric"),
                at(".readinessProbe.httpGet.port: the container has no port named 'metric'"),
            ),
            (
                at(".readinessProbe.httpGet.port"),
                json!(70000),
                at(".readinessProbe.httpGet.port: 70000 is no port: 1 to 65535"),
            ),
            (
                at(".readinessProbe.periodSeconds"),
                json!(0),
                at(".readinessProbe.periodSeconds: 0 is too few; 1 is the least"),
            ),
            (
                at(".livenessProbe.successThreshold"),
                json!(2),
                at(".livenessProbe: successThreshold of a livenessProbe is 1"),
            ),
            (
                at(".readinessProbe.terminationGracePeriodSeconds"),
                json!(2),
                at(".readinessProbe: a readinessProbe ends no container: no terminationGracePeriodSeconds"),
            ),
            (
                at(".lifecycle.preStop"),
                json!({}),
                at(".lifecycle.preStop: one of exec, httpGet, sleep, tcpSocket must stand here"),
            ),
            (
                at(".resources.limits.memory"),
                json!("2gb"),
                at(
                    ".resources.limits.memory: not a quantity: a number, with k M G T P E (1000) or Ki Mi Gi Ti Pi Ei (1024) or m (1/1000) right behind it",
                ),
            ),
            (at(".resources.limits.memory"), json!("512Mi"), at(".resources.requests.memory: more than its limit")),
            (
                at(".resources.limits.hugepages-2Mi"),
                json!("128Mi"),
                at(
                    ".resources.requests.hugepages-2Mi: huge pages and devices are requested exactly as they are limited",
                ),
            ),
            (
                at(".resources.limits"),
                json!({"memory": "2Gi", "hugepages-2Mi": "64Mi"}),
                at(".resources.requests[\"rdma/hca\"]: huge pages and devices need a limit of the same amount"),
            ),
            (
                at(".resources.limits.gpu"),
                json!(1),
                at(
                    ".resources.limits.gpu: 'gpu' is no resource: cpu, memory, ephemeral-storage, hugepages-..., or vendor/name",
                ),
            ),
            (
                at(".resources"),
                json!({"limits": {"hugepages-2Mi": "64Mi"}}),
                at(".resources.limits.hugepages-2Mi: huge pages need a request or limit of memory or cpu beside them"),
            ),
            (
                at(".resources"),
                json!({"limits": {"cpu": 1, "hugepages-2Mi": "3Mi"}}),
                at(".resources.limits.hugepages-2Mi: not a multiple of the page size"),
            ),
            (at(".resources.limit"), json!({}), at(".resources.limit: unknown field 'limit'; is limits meant?")),
            (at(".volumeMounts[0].name"), json!("shn"), at(".volumeMounts[0]: the pod has no volume 'shn'")),
            (
                at(".volumeMounts[1]"),
                json!({"name": "shm", "mountPath": "/dev/shm"}),
                at(".volumeMounts[1]: the mountPath '/dev/shm' is there twice"),
            ),
            (at(".volumeMounts[0].mountPath"), Value::Null, at(".volumeMounts[0]: mountPath is missing")),
            (
                at(".securityContext"),
                json!({"privileged": true, "allowPrivilegeEscalation": false}),
                at(".securityContext: privileged and allowPrivilegeEscalation: false exclude each other"),
            ),
            (
                at(".securityContext"),
                json!({"capabilities": {"add": "IPC_LOCK"}}),
                at(".securityContext.capabilities.add: the text 'IPC_LOCK' stands where a list belongs"),
            ),
        ],
    );
}

#[test]
fn a_pod_is_held_to_its_rules() {
    let p = "spec.template.spec";
    let at = |rest: &str| -> &'static str { format!("{p}{rest}").leak() };
    each_is_told(
        DEPLOYMENT,
        &[
            (at(".containers"), json!([]), at(": containers is empty")),
            (at(".containers"), Value::Null, at(": containers is missing")),
            (
                at(".containers[1]"),
                json!({"name": "master", "image": "a:1"}),
                at(".containers[1]: the name 'master' is there twice"),
            ),
            (
                at(".initContainers"),
                json!([{"name": "master", "image": "a:1"}]),
                at(".containers[0]: the name 'master' is there twice"),
            ),
            (at(".volumes[0].emptyDir"), Value::Null, at(".volumes[0]: a volume needs a source, as emptyDir: {}")),
            (at(".volumes[0].hostPath"), json!({"path": "/a"}), at(".volumes[0]: a volume has one source")),
            (
                at(".volumes[0].emptyDir.medium"),
                json!("memory"),
                at(".volumes[0].emptyDir.medium: neither Memory nor HugePages"),
            ),
            (
                at(".volumes[1]"),
                json!({"name": "shm", "emptyDir": {}}),
                at(".volumes[1]: the name 'shm' is there twice"),
            ),
            (at(".volumes[1]"), json!({"name": "dev", "hostPath": {}}), at(".volumes[1].hostPath: path is missing")),
            (at(".restartPolicy"), json!("Never"), at(": restartPolicy of these pods is Always")),
            (at(".dnsPolicy"), json!("None"), at(": dnsPolicy None needs dnsConfig.nameservers")),
            (
                at(".terminationGracePeriodSeconds"),
                json!(-1),
                at(".terminationGracePeriodSeconds: -1 is too few; 0 is the least"),
            ),
            (
                at(".nodeSelector"),
                json!({"a b": "c"}),
                at(
                    ".nodeSelector[\"a b\"]: not the key of a label: [DNS name/]name, at most 63 letters, digits, '-', '_', '.' in the name",
                ),
            ),
            (
                at(".tolerations"),
                json!([{"operator": "Any"}]),
                at(".tolerations[0].operator: 'Any' is none of Exists, Equal"),
            ),
            (
                at(".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey"),
                Value::Null,
                at(
                    ".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]: topologyKey is missing",
                ),
            ),
            (
                at(
                    ".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].values",
                ),
                json!([]),
                at(
                    ".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0]: In and NotIn need values",
                ),
            ),
        ],
    );
    let mut shared = with(yaml(DEPLOYMENT), at(".hostNetwork"), json!(true));
    shared = with(shared, at(".containers[0].ports[0].hostPort"), json!(50052));
    assert_eq!(told(&shared), [at(".containers[0].ports[0]: on the host's network hostPort is containerPort")]);
}

#[test]
fn a_workload_is_held_to_its_rules() {
    each_is_told(
        DEPLOYMENT,
        &[
            ("metadata", Value::Null, "metadata is missing"),
            ("metadata.name", Value::Null, "metadata: name is missing"),
            (
                "metadata.name",
                json!("a_b"),
                "metadata.name: not a DNS name: lower-case letters, digits, '-' and '.', a letter or digit at both ends",
            ),
            (
                "metadata.labels[\"a/b/c\"]",
                json!("d"),
                "metadata.labels[\"a/b/c\"]: not the key of a label: [DNS name/]name, at most 63 letters, digits, '-', '_', '.' in the name",
            ),
            (
                "metadata.labels.a",
                json!("-"),
                "metadata.labels.a: not a label: letters, digits, '-', '_' and '.', a letter or digit at both ends",
            ),
            (
                "metadata.annotation",
                json!({}),
                "metadata.annotation: unknown field 'annotation'; is annotations meant?",
            ),
            (
                "apiVersion",
                json!("apps/v1beta1"),
                "apiVersion: Deployment is of apps/v1, and 'apps/v1beta1' stands here",
            ),
            ("apiVersion", Value::Null, "apiVersion is missing"),
            ("spec", Value::Null, "spec is missing"),
            ("spec.selector", Value::Null, "spec: selector is missing"),
            ("spec.selector.matchLabels", json!({}), "spec.selector: an empty selector matches every pod"),
            (
                "spec.selector.matchLabels.app",
                json!("store"),
                "spec.selector.matchLabels.app: selects pods with 'app' = 'store', and the template says 'master'",
            ),
            (
                "spec.selector.matchLabels.role",
                json!("store"),
                "spec.selector.matchLabels.role: selects pods with 'role' = 'store', and the template has no such label",
            ),
            ("spec.replicas", json!(-1), "spec.replicas: -1 is too few; 0 is the least"),
            ("spec.strategy.type", json!("Recreate"), "spec.strategy: rollingUpdate belongs to the type RollingUpdate"),
            (
                "spec.strategy.rollingUpdate.maxUnavailable",
                json!("0%"),
                "spec.strategy.rollingUpdate: maxUnavailable and maxSurge are both 0: nothing could ever roll",
            ),
            (
                "spec.strategy.rollingUpdate.maxUnavailable",
                json!("1"),
                "spec.strategy.rollingUpdate.maxUnavailable: neither a number nor a percentage (25%)",
            ),
            ("spec.template.spec", Value::Null, "spec.template: spec is missing"),
        ],
    );
}

const STATEFUL_SET: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kube/stateful-set.yaml"));

#[test]
fn a_stateful_set_is_held_to_its_rules() {
    each_is_told(
        STATEFUL_SET,
        &[
            (
                "spec.volumeClaimTemplates",
                Value::Null,
                "spec.template.spec.containers[0].volumeMounts[0]: the pod has no volume 'ssd'",
            ),
            (
                "spec.updateStrategy.type",
                json!("Recreate"),
                "spec.updateStrategy.type: 'Recreate' is none of RollingUpdate, OnDelete",
            ),
            (
                "spec.updateStrategy.rollingUpdate.maxUnavailable",
                json!(0),
                "spec.updateStrategy.rollingUpdate: maxUnavailable 0 would never roll",
            ),
            (
                "spec.podManagementPolicy",
                json!("parallel"),
                "spec.podManagementPolicy: 'parallel' is none of OrderedReady, Parallel",
            ),
            (
                "metadata.name",
                json!("a".repeat(53)),
                "metadata.name: a name of 53 characters; a StatefulSet's pods need one of at most 52",
            ),
            ("spec.serviceName", json!("0a"), "spec.serviceName: a service's name starts with a letter"),
        ],
    );
}

#[test]
fn services_budgets_jobs_and_maps_are_held_to_their_rules() {
    each_is_told(
        "{apiVersion: v1, kind: Service, metadata: {name: master}, spec: {selector: {app: master}, ports: [{name: rpc, port: 50051, targetPort: rpc}, {name: metrics, port: 9003}]}}",
        &[
            ("metadata.name", json!("0a"), "metadata.name: a service's name starts with a letter"),
            ("spec.ports", Value::Null, "spec: ports is missing"),
            ("spec.ports[0].name", Value::Null, "spec.ports[0]: of several ports each needs a name"),
            ("spec.ports[0].name", json!("metrics"), "spec.ports[1]: the name 'metrics' is there twice"),
            ("spec.ports[0].port", json!(9003), "spec.ports[1]: this port is there twice"),
            ("spec.ports[0].port", json!(65536), "spec.ports[0].port: 65536 is no port: 1 to 65535"),
            ("spec.ports[0].nodePort", json!(30000), "spec.ports[0]: nodePort needs the type NodePort or LoadBalancer"),
            (
                "spec.type",
                json!("Cluster"),
                "spec.type: 'Cluster' is none of ClusterIP, NodePort, LoadBalancer, ExternalName",
            ),
            ("spec.type", json!("ExternalName"), "spec: an ExternalName service needs externalName"),
            ("spec.selectors", json!({}), "spec.selectors: unknown field 'selectors'; is selector meant?"),
        ],
    );
    each_is_told(
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: store}, spec: {maxUnavailable: 1, selector: {matchLabels: {app: store}}}}",
        &[
            ("spec.minAvailable", json!(1), "spec: minAvailable and maxUnavailable exclude each other"),
            ("spec.maxUnavailable", json!("half"), "spec.maxUnavailable: neither a number nor a percentage (25%)"),
            (
                "spec.selector.matchlabels",
                json!({}),
                "spec.selector.matchlabels: unknown field 'matchlabels'; is matchLabels meant?",
            ),
        ],
    );
    each_is_told(
        "{apiVersion: batch/v1, kind: Job, metadata: {name: job}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a:1}]}}}}",
        &[
            (
                "spec.template.spec.restartPolicy",
                Value::Null,
                "spec.template.spec: restartPolicy of a Job's pods is Never or OnFailure",
            ),
            ("spec.backoffLimit", json!(-1), "spec.backoffLimit: -1 is too few; 0 is the least"),
        ],
    );
    each_is_told(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: store}, data: {store.json: '{}'}}",
        &[
            ("data[\"a/b\"]", json!("c"), "data[\"a/b\"]: not a key: letters, digits, '-', '_' and '.'"),
            (
                "data.port",
                json!(8080),
                "data.port: the number 8080 stands where a text (in quotes where YAML would read a number or a boolean) belongs",
            ),
        ],
    );
}

#[test]
fn a_list_is_judged_item_by_item_and_a_stranger_not_at_all() {
    let stranger = json!({"apiVersion": "example.com/v1", "kind": "Thing", "spek": 1});
    assert!(validate(&stranger).is_empty() && !known(&stranger));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [stranger, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spek": {}}]});
    assert!(known(&list));
    assert_eq!(told(&list), ["items[1].spek: unknown field 'spek'; is spec meant?"]);
    assert_eq!(told(&json!([])), ["a document is a map with apiVersion, kind and metadata"]);
    assert_eq!(told(&json!({})), ["apiVersion is missing", "kind is missing"]);
}

/// Documents of the right shape with strange things in them.
fn strange() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9.$()%/-]{0,8}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "spec",
            "metadata",
            "name",
            "template",
            "containers",
            "env",
            "roles",
            "dependencies",
            "replicas",
            "labels",
            "items",
            "standalonePattern",
            "leaderWorkerPattern",
            "rollingUpdate",
            "rolloutStrategy",
            "resources",
            "limits",
            "volumes",
            "selector",
            "matchLabels",
            "ports",
            "port",
            "workload",
            "coordination",
            "roleTemplates",
            "templateRef",
            "value",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    leaf.prop_recursive(6, 96, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_document_upsets_the_judge(document in strange(), kind in 0_usize..29) {
        validate(&document);
        let (version, kind) = match kinds().get(kind) {
            Some((version, kind, _)) => (*version, *kind),
            None => (rbg::V1ALPHA2, rbg::KIND),
        };
        let mut map = document.as_object().cloned().unwrap_or_default();
        map.insert("apiVersion".into(), version.into());
        map.insert("kind".into(), kind.into());
        validate(&Value::Object(map));
    }

    #[test]
    fn no_value_in_the_place_of_another_upsets_the_judge(value in strange(), pick in any::<prop::sample::Index>(), which in 0..4) {
        let document = yaml([DEPLOYMENT, STATEFUL_SET, GROUP, OLD_GROUP][which as usize]);
        let mut places = Vec::new();
        below(&document, &Path::root(), &mut places);
        validate(&with(document, &pick.get(&places).to_string(), value));
    }
}

fn below(value: &Value, at: &Path, out: &mut Vec<Path>) {
    let children: Vec<(Path, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(k, v)| (at.key(k), v)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(i, v)| (at.index(i), v)).collect(),
        _ => Vec::new(),
    };
    for (path, child) in children {
        below(child, &path, out);
        out.push(path);
    }
}
