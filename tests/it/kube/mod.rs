//! Manifests against the CRD schema of RoleBasedGroups, which is not part of this repository.

mod rendered;
mod schema;

use std::fs;
use std::path::Path;

use mcctl::engine::kube::{self, rbg};
use serde::Deserialize;
use serde_json::Value;

/// The folder that contains `rbg-v1alpha2.schema.json` and `rbg-v1alpha1.schema.json`: the
/// `openAPIV3Schema` of each version.
const FOLDER: &str = "MCCTL_RBG_SCHEMA_DIR";

/// The documents in a YAML text.
pub fn documents(yaml: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(yaml).map(|one| Value::deserialize(one).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// Asserts that there are documents and that our rules accept all of them.
#[track_caller]
pub fn assert_valid(name: &str, yaml: &str) {
    let documents = documents(yaml);
    assert!(!documents.is_empty(), "{name} has no document");
    for document in &documents {
        assert!(kube::known(document), "{name}: unknown kind {}", document["kind"]);
        let violations: Vec<String> = kube::validate(document).iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{name}: {}", violations.join("\n"));
    }
}

/// Asserts that all RoleBasedGroups match their CRD schema. Returns their number.
///
/// # Panics
/// Panics if [`FOLDER`] is not set, or has no schema of a group.
#[track_caller]
pub fn assert_matches_schema(name: &str, yaml: &str) -> usize {
    let groups: Vec<Value> = documents(yaml).into_iter().filter(|document| document["kind"] == rbg::KIND).collect();
    for group in &groups {
        let version = group["apiVersion"].as_str().unwrap();
        let wrong = schema::disagreements(&schema_of(version), group);
        assert!(wrong.is_empty(), "{name} against the schema: {}", wrong.join("\n"));
    }
    groups.len()
}

/// The schema of RoleBasedGroups of `api_version`.
fn schema_of(api_version: &str) -> Value {
    let file = match api_version {
        rbg::V1ALPHA2 => "rbg-v1alpha2.schema.json",
        rbg::V1ALPHA1 => "rbg-v1alpha1.schema.json",
        _ => panic!("no schema of {api_version}"),
    };
    let folder = std::env::var_os(FOLDER).unwrap_or_else(|| panic!("{FOLDER} is not set"));
    let path = Path::new(&folder).join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{FOLDER} is set, and {}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The name and text of each file in `fixtures/kube`.
fn fixtures() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kube");
    let paths = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let all: Vec<_> = paths.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect();
    assert!(!all.is_empty());
    all
}

#[test]
fn our_rules_accept_the_valid_documents() {
    for (name, text) in fixtures() {
        assert_valid(&name, &text);
    }
}

#[test]
#[ignore = "needs the schema folder: set MCCTL_RBG_SCHEMA_DIR"]
fn valid_documents_match_the_crd_schema() {
    let compared: usize = fixtures().iter().map(|(name, text)| assert_matches_schema(name, text)).sum();
    assert!(compared >= 2, "{compared} groups");
}

#[test]
#[ignore = "needs the schema folder: set MCCTL_RBG_SCHEMA_DIR"]
fn types_and_crd_schema_have_the_same_fields() {
    for version in [rbg::V1ALPHA2, rbg::V1ALPHA1] {
        let schema = schema_of(version);
        let everything = serde_json::json!({
            "apiVersion": version, "kind": rbg::KIND, "metadata": {"name": "a"}, "spec": schema::every_field(&schema["properties"]["spec"]),
        });
        let violations = kube::validate(&everything);
        let is_mismatch = |kind| matches!(kind, kube::ViolationKind::UnknownField | kube::ViolationKind::WrongType);
        let mismatches: Vec<_> = violations.iter().filter(|violation| is_mismatch(violation.kind)).collect();
        assert!(mismatches.is_empty(), "{version}: {mismatches:#?}");
    }
}
