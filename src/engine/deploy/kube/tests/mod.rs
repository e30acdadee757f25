//! Tests each rule on a valid document with one changed field, and validates arbitrary documents.

mod group;

use proptest::prelude::*;
use serde_json::json;

use super::path::FieldStep;
use super::*;
use group::{GROUP, OLD_GROUP};

fn yaml(text: &str) -> Value {
    serde_yaml_ng::from_str(text).unwrap()
}

/// `document` with `value` at `path`. Null removes the entry.
fn with(mut document: Value, path: &str, value: Value) -> Value {
    let steps = FieldPath::parse(path).unwrap();
    let (last, before) = steps.steps().split_last().unwrap();
    let mut at = &mut document;
    for step in before {
        at = match step {
            FieldStep::Key(key) => at.as_object_mut().unwrap().entry(key.clone()).or_insert_with(|| json!({})),
            FieldStep::Index(index) => &mut at[*index],
        };
    }
    match (last, value) {
        (FieldStep::Key(key), Value::Null) => drop(at.as_object_mut().unwrap().remove(key)),
        (FieldStep::Key(key), value) => drop(at.as_object_mut().unwrap().insert(key.clone(), value)),
        (FieldStep::Index(index), Value::Null) => drop(at.as_array_mut().unwrap().remove(*index)),
        (FieldStep::Index(index), value) => {
            let list = at.as_array_mut().unwrap();
            if *index < list.len() { list[*index] = value } else { list.push(value) }
        }
    }
    document
}

/// The violations of `document` as pairs of path and kind.
fn found(document: &Value) -> Vec<(String, ViolationKind)> {
    validate(document).into_iter().map(|violation| (violation.path, violation.kind)).collect()
}

/// Each case changes one field of a valid document. The change must cause exactly one violation.
/// Paths begin with `prefix`.
#[track_caller]
fn check_cases(snapshot: &str, valid: &str, prefix: &str, cases: &[(&str, Value)]) {
    let valid = yaml(valid);
    assert_eq!(found(&valid), []);
    let mut text = String::new();
    for (path, value) in cases {
        let path = format!("{prefix}{path}");
        let violations = validate(&with(valid.clone(), &path, value.clone()));
        let [violation] = violations.as_slice() else { panic!("{path} = {value}: {violations:#?}") };
        text.push_str(&format!("{path} = {value}\n    [{}] {violation}\n", violation.kind.id()));
    }
    insta::assert_snapshot!(snapshot, text);
}

const DEPLOYMENT: &str = include_str!("../../../../../fixtures/kube/deployment.yaml");

#[test]
fn containers_follow_their_rules() {
    check_cases(
        "container",
        DEPLOYMENT,
        "spec.template.spec.containers[0]",
        &[
            (".image", Value::Null),
            (".image", json!("a b")),
            (".name", Value::Null),
            (".name", json!("Master")),
            (".imagePullPolice", json!("Always")),
            (".imagePullPolicy", json!("always")),
            (".env[1].value", json!(8080)),
            (".env[0].value", json!("x")),
            (".env[2]", json!({"name": "HOST"})),
            (".env[2]", json!({"name": "A=B"})),
            (".env[2]", json!({"value": "b"})),
            (".env[2]", json!({"name": "A", "valueFrom": {}})),
            (".env[0].valueFrom.fieldRef.fieldPath", json!("status.podIp")),
            (".env[1].value", json!("$(NODE_IP)")),
            (".args[0]", json!("--rpc_address=$(NODE_IP)")),
            (".ports[0].containerPort", json!(0)),
            (".ports[0].containerPort", json!(9003)),
            (".ports[0].name", json!("metrics")),
            (".ports[0].name", json!("a-very-long-port-name")),
            (".ports[0].protocol", json!("tcp")),
            (".readinessProbe.tcpSocket", json!({"port": 1})),
            (".readinessProbe.httpGet", Value::Null),
            (".readinessProbe.httpGet.port", json!("metric")),
            (".readinessProbe.httpGet.port", json!(70000)),
            (".readinessProbe.periodSeconds", json!(0)),
            (".livenessProbe.successThreshold", json!(2)),
            (".readinessProbe.terminationGracePeriodSeconds", json!(2)),
            (".lifecycle.preStop", json!({})),
            (".resources.limits.memory", json!("2gb")),
            (".resources.limits.memory", json!("512Mi")),
            (".resources.limits.hugepages-2Mi", json!("128Mi")),
            (".resources.limits", json!({"memory": "2Gi", "hugepages-2Mi": "64Mi"})),
            (".resources.limits.gpu", json!(1)),
            (".resources", json!({"limits": {"hugepages-2Mi": "64Mi"}})),
            (".resources", json!({"limits": {"cpu": 1, "hugepages-2Mi": "3Mi"}})),
            (".resources.limit", json!({})),
            (".volumeMounts[0].name", json!("shn")),
            (".volumeMounts[1]", json!({"name": "shm", "mountPath": "/dev/shm"})),
            (".volumeMounts[0].mountPath", Value::Null),
            (".securityContext", json!({"privileged": true, "allowPrivilegeEscalation": false})),
            (".securityContext", json!({"capabilities": {"add": "IPC_LOCK"}})),
        ],
    );
}

#[test]
fn pods_follow_their_rules() {
    check_cases(
        "pod",
        DEPLOYMENT,
        "spec.template.spec",
        &[
            (".containers", json!([])),
            (".containers", Value::Null),
            (".containers[1]", json!({"name": "master", "image": "a:1"})),
            (".initContainers", json!([{"name": "master", "image": "a:1"}])),
            (".volumes[0].emptyDir", Value::Null),
            (".volumes[0].hostPath", json!({"path": "/a"})),
            (".volumes[0].emptyDir.medium", json!("memory")),
            (".volumes[1]", json!({"name": "shm", "emptyDir": {}})),
            (".volumes[1]", json!({"name": "dev", "hostPath": {}})),
            (".restartPolicy", json!("Never")),
            (".dnsPolicy", json!("None")),
            (".terminationGracePeriodSeconds", json!(-1)),
            (".nodeSelector", json!({"a b": "c"})),
            (".tolerations", json!([{"operator": "Any"}])),
            (".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", Value::Null),
            (
                ".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].values",
                json!([]),
            ),
        ],
    );
    let mut shared = with(yaml(DEPLOYMENT), "spec.template.spec.hostNetwork", json!(true));
    shared = with(shared, "spec.template.spec.containers[0].ports[0].hostPort", json!(50052));
    assert_eq!(found(&shared), [("spec.template.spec.containers[0].ports[0]".to_owned(), ViolationKind::Conflict)]);
}

#[test]
fn workloads_follow_their_rules() {
    check_cases(
        "workload",
        DEPLOYMENT,
        "",
        &[
            ("metadata", Value::Null),
            ("metadata.name", Value::Null),
            ("metadata.name", json!("a_b")),
            ("metadata.labels[\"a/b/c\"]", json!("d")),
            ("metadata.labels.a", json!("-")),
            ("metadata.annotation", json!({})),
            ("apiVersion", json!("apps/v1beta1")),
            ("apiVersion", Value::Null),
            ("spec", Value::Null),
            ("spec.selector", Value::Null),
            ("spec.selector.matchLabels", json!({})),
            ("spec.selector.matchLabels.app", json!("store")),
            ("spec.selector.matchLabels.role", json!("store")),
            ("spec.replicas", json!(-1)),
            ("spec.strategy.type", json!("Recreate")),
            ("spec.strategy.rollingUpdate.maxUnavailable", json!("0%")),
            ("spec.strategy.rollingUpdate.maxUnavailable", json!("1")),
            ("spec.template.spec", Value::Null),
        ],
    );
}

const STATEFUL_SET: &str = include_str!("../../../../../fixtures/kube/stateful-set.yaml");

#[test]
fn stateful_sets_follow_their_rules() {
    check_cases(
        "stateful_set",
        STATEFUL_SET,
        "",
        &[
            ("spec.volumeClaimTemplates", Value::Null),
            ("spec.updateStrategy.type", json!("Recreate")),
            ("spec.updateStrategy.rollingUpdate.maxUnavailable", json!(0)),
            ("spec.podManagementPolicy", json!("parallel")),
            ("metadata.name", json!("a".repeat(53))),
            ("spec.serviceName", json!("0a")),
        ],
    );
}

#[test]
fn services_budgets_jobs_and_config_maps_follow_their_rules() {
    check_cases(
        "service",
        "{apiVersion: v1, kind: Service, metadata: {name: master}, spec: {selector: {app: master}, ports: [{name: rpc, port: 50051, targetPort: rpc}, {name: metrics, port: 9003}]}}",
        "",
        &[
            ("metadata.name", json!("0a")),
            ("spec.ports", Value::Null),
            ("spec.ports[0].name", Value::Null),
            ("spec.ports[0].name", json!("metrics")),
            ("spec.ports[0].port", json!(9003)),
            ("spec.ports[0].port", json!(65536)),
            ("spec.ports[0].nodePort", json!(30000)),
            ("spec.type", json!("Cluster")),
            ("spec.type", json!("ExternalName")),
            ("spec.selectors", json!({})),
        ],
    );
    check_cases(
        "service_budget",
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: store}, spec: {maxUnavailable: 1, selector: {matchLabels: {app: store}}}}",
        "",
        &[
            ("spec.minAvailable", json!(1)),
            ("spec.maxUnavailable", json!("half")),
            ("spec.selector.matchlabels", json!({})),
        ],
    );
    check_cases(
        "service_job",
        "{apiVersion: batch/v1, kind: Job, metadata: {name: job}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a:1}]}}}}",
        "",
        &[("spec.template.spec.restartPolicy", Value::Null), ("spec.backoffLimit", json!(-1))],
    );
    check_cases(
        "service_config_map",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: store}, data: {store.json: '{}'}}",
        "",
        &[("data[\"a/b\"]", json!("c")), ("data.port", json!(8080))],
    );
}

#[test]
fn lists_are_validated_by_item_and_unknown_kinds_are_skipped() {
    let unknown = json!({"apiVersion": "example.com/v1", "kind": "Thing", "spek": 1});
    assert!(validate(&unknown).is_empty() && !known(&unknown));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [unknown, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spek": {}}]});
    assert!(known(&list));
    assert_eq!(found(&list), [("items[1].spek".to_owned(), ViolationKind::UnknownField)]);
    assert_eq!(found(&json!([])), [(String::new(), ViolationKind::WrongType)]);
    assert_eq!(found(&json!({})), [(String::new(), ViolationKind::Missing), (String::new(), ViolationKind::Missing)]);
}

/// Well-formed documents with arbitrary contents.
fn arbitrary() -> impl Strategy<Value = Value> {
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
    fn arbitrary_documents_do_not_panic(document in arbitrary(), kind in 0_usize..29) {
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
    fn replaced_values_do_not_panic(value in arbitrary(), pick in any::<prop::sample::Index>(), which in 0..4) {
        let document = yaml([DEPLOYMENT, STATEFUL_SET, GROUP, OLD_GROUP][which as usize]);
        let mut places = Vec::new();
        below(&document, &FieldPath::root(), &mut places);
        validate(&with(document, &pick.get(&places).to_string(), value));
    }
}

fn below(value: &Value, at: &FieldPath, out: &mut Vec<FieldPath>) {
    let children: Vec<(FieldPath, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(k, v)| (at.key(k), v)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(i, v)| (at.index(i), v)).collect(),
        _ => Vec::new(),
    };
    for (path, child) in children {
        below(child, &path, out);
        out.push(path);
    }
}
