//! RoleBasedGroups of both versions.

use super::*;

pub(super) const GROUP: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kube/group-v1alpha2.yaml"));

#[test]
fn a_group_is_held_to_the_rules_of_its_roles() {
    let instance = "rbg.workloads.x-k8s.io/role-workload-type";
    each_is_told(
        GROUP,
        &[
            (
                "metadata.name",
                json!("a.b"),
                "metadata.name: not a DNS label: lower-case letters, digits and '-', a letter or digit at both ends",
            ),
            (
                "apiVersion",
                json!("workloads.x-k8s.io/v1"),
                "apiVersion: RoleBasedGroup is of workloads.x-k8s.io/v1alpha2, and 'workloads.x-k8s.io/v1' stands here",
            ),
            ("spec.role", json!([]), "spec.role: unknown field 'role'; is roles meant?"),
            ("spec.roles", json!([]), "spec: roles is missing or empty"),
            (
                "spec.roles[2].name",
                json!("Worker"),
                "spec.roles[2].name: not a DNS label: lower-case letters, digits and '-', a letter or digit at both ends",
            ),
            (
                "spec.roles[3]",
                json!({"name": "worker", "standalonePattern": {"templateRef": {"name": "base"}}}),
                "spec.roles[3]: the name 'worker' is there twice",
            ),
            ("spec.roles[2].name", Value::Null, "spec.roles[2]: name is missing"),
            ("spec.roles[2].replica", json!(1), "spec.roles[2].replica: unknown field 'replica'; is replicas meant?"),
            (
                "spec.roles[2].replicas",
                json!("2"),
                "spec.roles[2].replicas: the text '2' stands where a whole number belongs",
            ),
            ("spec.roles[0].replicas", json!(-1), "spec.roles[0].replicas: -1 is too few; 0 is the least"),
            (
                "spec.roles[0].standalonePattern",
                Value::Null,
                "spec.roles[0]: one of standalonePattern, leaderWorkerPattern, customComponentsPattern must stand here",
            ),
            (
                "spec.roles[2].standalonePattern",
                json!({"templateRef": {"name": "base"}}),
                "spec.roles[2]: standalonePattern and leaderWorkerPattern exclude each other",
            ),
            (
                "spec.roles[1].standalonePattern.templateRef.name",
                json!("bas"),
                "spec.roles[1].standalonePattern.templateRef: no roleTemplate is named 'bas'",
            ),
            (
                "spec.roles[1].standalonePattern.template",
                json!({"spec": {"containers": [{"name": "a", "image": "a:1"}]}}),
                "spec.roles[1].standalonePattern: template and templateRef exclude each other",
            ),
            (
                "spec.roles[1].standalonePattern.templateRef",
                Value::Null,
                "spec.roles[1].standalonePattern: one of template, templateRef must stand here",
            ),
            (
                "spec.roles[1].standalonePattern.templateRef.patch",
                json!([]),
                "spec.roles[1].standalonePattern.templateRef.patch: a patch is a map",
            ),
            (
                "spec.roles[0].standalonePattern.template.spec.containers[0].image",
                Value::Null,
                "spec.roles[0].standalonePattern.template.spec.containers[0]: image is missing",
            ),
            (
                "spec.roles[0].standalonePattern.template.spec.hostnetwork",
                json!(true),
                "spec.roles[0].standalonePattern.template.spec.hostnetwork: unknown field 'hostnetwork'; is hostNetwork meant?",
            ),
            (
                "spec.roles[0].standalonePattern.template.metadata.uid",
                json!("1"),
                "spec.roles[0].standalonePattern.template.metadata.uid: dropped: metadata of a template is labels and annotations",
            ),
            (
                "spec.roles[1].dependencies[0]",
                json!("mastre"),
                "spec.roles[1].dependencies[0]: no role is named 'mastre'",
            ),
            (
                "spec.roles[1].dependencies[1]",
                json!("master"),
                "spec.roles[1].dependencies[1]: 'master' is there twice",
            ),
            ("spec.roles[0].dependencies", json!(["master"]), "spec.roles[0]: dependencies go round: master -> master"),
            (
                "spec.roles[0].dependencies",
                json!(["worker"]),
                "spec.roles[0]: dependencies go round: master -> worker -> master",
            ),
            (
                "spec.roles[1].rolloutStrategy.rollingUpdate.maxUnavailable",
                json!(0),
                "spec.roles[1].rolloutStrategy.rollingUpdate: maxUnavailable and maxSurge are both 0: nothing could ever roll",
            ),
            (
                "spec.roles[1].rolloutStrategy.rollingUpdate.partition",
                json!(3),
                "spec.roles[1].rolloutStrategy.rollingUpdate: partition 3 of 3 replicas: no pod would ever change",
            ),
            (
                "spec.roles[1].rolloutStrategy.rollingUpdate.type",
                json!("InPlace"),
                "spec.roles[1].rolloutStrategy.rollingUpdate.type: 'InPlace' is none of RecreatePod, InPlaceIfPossible, InPlaceOnly",
            ),
            (
                "spec.roles[1].rolloutStrategy.type",
                json!("Recreate"),
                "spec.roles[1].rolloutStrategy.type: 'Recreate' is none of RollingUpdate",
            ),
            (
                "spec.roles[2].podManagementPolicy",
                json!("Ordered"),
                "spec.roles[2].podManagementPolicy: 'Ordered' is none of Parallel, OrderedReady",
            ),
            (
                "spec.roles[2].leaderWorkerPattern.size",
                json!(0),
                "spec.roles[2].leaderWorkerPattern.size: 0 is too few; 1 is the least",
            ),
            (
                "spec.roles[2].leaderWorkerPattern.restartPolicy",
                json!("None"),
                "spec.roles[2].leaderWorkerPattern.restartPolicy: deprecated; restartPolicyConfig.type says it",
            ),
            (
                "spec.roles[2].leaderWorkerPattern.restartPolicyConfig.maxDelaySeconds",
                json!(10),
                "spec.roles[2].leaderWorkerPattern.restartPolicyConfig: maxDelaySeconds 10 is less than baseDelaySeconds 30",
            ),
            (
                "spec.roles[2].leaderWorkerPattern.sharedServiceSelection",
                json!("Leader"),
                "spec.roles[2].leaderWorkerPattern.sharedServiceSelection: 'Leader' is none of All, LeaderOnly",
            ),
            (
                "spec.roles[2].annotations",
                json!({ instance: "apps/v1/StatefulSet" }),
                "spec.roles[2].annotations[\"rbg.workloads.x-k8s.io/role-workload-type\"]: refused unless the cluster enables deprecated workload types; leave the annotation away",
            ),
            (
                "spec.roles[1].engineRuntimes[0].profileName",
                Value::Null,
                "spec.roles[1].engineRuntimes[0]: profileName is missing",
            ),
            (
                "spec.roles[0].servicePorts[0].port",
                json!(0),
                "spec.roles[0].servicePorts[0].port: 0 is no port: 1 to 65535",
            ),
            (
                "spec.roleTemplates[1]",
                json!({"name": "base", "template": {"spec": {"containers": [{"name": "a", "image": "a:1"}]}}}),
                "spec.roleTemplates[1]: the name 'base' is there twice",
            ),
            ("spec.roleTemplates[1]", json!({"name": "other"}), "spec.roleTemplates[1]: template is missing"),
        ],
    );
    let old = with(yaml(GROUP), "spec.roles[0].standalonePattern", Value::Null);
    let old = with(old, "spec.roles[0].template", json!({"spec": {"containers": []}}));
    assert_eq!(
        told(&old),
        [
            "spec.roles[0].template: unknown field 'template'",
            "spec.roles[0]: a template of a role is v1alpha1's; in workloads.x-k8s.io/v1alpha2 it stands in standalonePattern",
        ]
    );
    let custom = json!({"components": [{"name": "a", "template": {"spec": {"containers": [{"name": "a", "image": "a:1"}]}}}, {"name": "a"}]});
    let custom = with(
        with(yaml(GROUP), "spec.roles[0].standalonePattern", Value::Null),
        "spec.roles[0].customComponentsPattern",
        custom,
    );
    assert_eq!(
        told(&custom),
        [
            "spec.roles[0].customComponentsPattern.components[1]: the name 'a' is there twice",
            "spec.roles[0].customComponentsPattern.components[1]: template is missing",
        ]
    );
}

#[test]
fn names_that_a_group_would_cut_are_told() {
    let long = with(yaml(GROUP), "metadata.name", json!("g".repeat(58)));
    let told = told(&long);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(
        told[0].starts_with("spec.roles[0]: its pods would be named ggg")
            && told[0].ends_with("67 characters, and 63 is the most")
    );
}

pub(super) const OLD_GROUP: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kube/group-v1alpha1.yaml"));

#[test]
fn a_group_of_the_old_version_is_held_to_its_rules() {
    each_is_told(
        OLD_GROUP,
        &[
            ("spec.roles[0].template", Value::Null, "spec.roles[0]: one of template, templateRef must stand here"),
            (
                "spec.roles[1].workload",
                Value::Null,
                "spec.roles[1].leaderWorkerSet: belongs to the workload LeaderWorkerSet",
            ),
            (
                "spec.roles[0].workload",
                json!({"kind": "DaemonSet"}),
                "spec.roles[0].workload: kind is none of StatefulSet, Deployment, LeaderWorkerSet, InstanceSet",
            ),
            (
                "spec.roles[1].workload.apiVersion",
                json!("apps/v1"),
                "spec.roles[1].workload: LeaderWorkerSet is of leaderworkerset.x-k8s.io/v1, not of apps/v1",
            ),
            (
                "spec.roles[1].leaderWorkerSet.patchLeaderTemplate",
                json!(""),
                "spec.roles[1].leaderWorkerSet.patchLeaderTemplate: a patch is a map",
            ),
            ("spec.roles[0].templatePatch", json!({}), "spec.roles[0]: templatePatch belongs to templateRef"),
            ("spec.roles[0].components", json!([]), "spec.roles[0]: components belong to the workload InstanceSet"),
            (
                "spec.roles[0].podManagementPolicy",
                json!("Parallel"),
                "spec.roles[0].podManagementPolicy: unknown field 'podManagementPolicy'",
            ),
            (
                "spec.roles[0].restartPolicy",
                json!("Always"),
                "spec.roles[0].restartPolicy: 'Always' is none of None, RecreateRoleInstanceOnPodRestart",
            ),
            ("spec.coordination[0].roles[0]", json!("mastre"), "spec.coordination[0].roles[0]: no role of this name"),
            (
                "spec.coordination[0].strategy.rollingUpdate.maxSkew",
                json!("10"),
                "spec.coordination[0].strategy.rollingUpdate.maxSkew: not a percentage: 0% to 100%",
            ),
        ],
    );
}
