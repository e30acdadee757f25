//! RoleBasedGroups of both versions.

use super::*;

pub(super) const GROUP: &str = include_str!("../../../../../fixtures/kube/group-v1alpha2.yaml");

#[test]
fn groups_follow_the_rules_of_their_roles() {
    let instance = "rbg.workloads.x-k8s.io/role-workload-type";
    check_cases(
        "group",
        GROUP,
        "",
        &[
            ("metadata.name", json!("a.b")),
            ("apiVersion", json!("workloads.x-k8s.io/v1")),
            ("spec.role", json!([])),
            ("spec.roles", json!([])),
            ("spec.roles[2].name", json!("Worker")),
            ("spec.roles[3]", json!({"name": "worker", "standalonePattern": {"templateRef": {"name": "base"}}})),
            ("spec.roles[2].name", Value::Null),
            ("spec.roles[2].replica", json!(1)),
            ("spec.roles[2].replicas", json!("2")),
            ("spec.roles[0].replicas", json!(-1)),
            ("spec.roles[0].standalonePattern", Value::Null),
            ("spec.roles[2].standalonePattern", json!({"templateRef": {"name": "base"}})),
            ("spec.roles[1].standalonePattern.templateRef.name", json!("bas")),
            (
                "spec.roles[1].standalonePattern.template",
                json!({"spec": {"containers": [{"name": "a", "image": "a:1"}]}}),
            ),
            ("spec.roles[1].standalonePattern.templateRef", Value::Null),
            ("spec.roles[1].standalonePattern.templateRef.patch", json!([])),
            ("spec.roles[0].standalonePattern.template.spec.containers[0].image", Value::Null),
            ("spec.roles[0].standalonePattern.template.spec.hostnetwork", json!(true)),
            ("spec.roles[0].standalonePattern.template.metadata.uid", json!("1")),
            ("spec.roles[1].dependencies[0]", json!("mastre")),
            ("spec.roles[1].dependencies[1]", json!("master")),
            ("spec.roles[0].dependencies", json!(["master"])),
            ("spec.roles[0].dependencies", json!(["worker"])),
            ("spec.roles[1].rolloutStrategy.rollingUpdate.maxUnavailable", json!(0)),
            ("spec.roles[1].rolloutStrategy.rollingUpdate.partition", json!(3)),
            ("spec.roles[1].rolloutStrategy.rollingUpdate.type", json!("InPlace")),
            ("spec.roles[1].rolloutStrategy.type", json!("Recreate")),
            ("spec.roles[2].podManagementPolicy", json!("Ordered")),
            ("spec.roles[2].leaderWorkerPattern.size", json!(0)),
            ("spec.roles[2].leaderWorkerPattern.restartPolicy", json!("None")),
            ("spec.roles[2].leaderWorkerPattern.restartPolicyConfig.maxDelaySeconds", json!(10)),
            ("spec.roles[2].leaderWorkerPattern.sharedServiceSelection", json!("Leader")),
            ("spec.roles[2].annotations", json!({ instance: "apps/v1/StatefulSet" })),
            ("spec.roles[1].engineRuntimes[0].profileName", Value::Null),
            ("spec.roles[0].servicePorts[0].port", json!(0)),
            (
                "spec.roleTemplates[1]",
                json!({"name": "base", "template": {"spec": {"containers": [{"name": "a", "image": "a:1"}]}}}),
            ),
            ("spec.roleTemplates[1]", json!({"name": "other"})),
        ],
    );
    let old = with(yaml(GROUP), "spec.roles[0].standalonePattern", Value::Null);
    let old = with(old, "spec.roles[0].template", json!({"spec": {"containers": []}}));
    let role = "spec.roles[0]".to_owned();
    assert_eq!(
        found(&old),
        [(format!("{role}.template"), ViolationKind::UnknownField), (role.clone(), ViolationKind::Version)]
    );
    let custom = json!({"components": [{"name": "a", "template": {"spec": {"containers": [{"name": "a", "image": "a:1"}]}}}, {"name": "a"}]});
    let custom = with(
        with(yaml(GROUP), "spec.roles[0].standalonePattern", Value::Null),
        "spec.roles[0].customComponentsPattern",
        custom,
    );
    let component = format!("{role}.customComponentsPattern.components[1]");
    assert_eq!(found(&custom), [(component.clone(), ViolationKind::Duplicate), (component, ViolationKind::Missing)]);
}

#[test]
fn generated_names_over_the_limit_are_violations() {
    let long = with(yaml(GROUP), "metadata.name", json!("g".repeat(58)));
    let paths = ["spec.roles[0]", "spec.roles[1]", "spec.roles[2]"];
    let found: Vec<String> = found(&long).into_iter().map(|(path, _)| path).collect();
    assert_eq!(found, paths);
}

pub(super) const OLD_GROUP: &str = include_str!("../../../../../fixtures/kube/group-v1alpha1.yaml");

#[test]
fn v1alpha1_groups_follow_their_rules() {
    check_cases(
        "group_v1alpha1",
        OLD_GROUP,
        "",
        &[
            ("spec.roles[0].template", Value::Null),
            ("spec.roles[1].workload", Value::Null),
            ("spec.roles[0].workload", json!({"kind": "DaemonSet"})),
            ("spec.roles[1].workload.apiVersion", json!("apps/v1")),
            ("spec.roles[1].leaderWorkerSet.patchLeaderTemplate", json!("")),
            ("spec.roles[0].templatePatch", json!({})),
            ("spec.roles[0].components", json!([])),
            ("spec.roles[0].podManagementPolicy", json!("Parallel")),
            ("spec.roles[0].restartPolicy", json!("Always")),
            ("spec.coordination[0].roles[0]", json!("mastre")),
            ("spec.coordination[0].strategy.rollingUpdate.maxSkew", json!("10")),
        ],
    );
}
