//! Manifests against the CRD schema of RoleBasedGroups, which is not part of this repository.

mod rendered;
mod schema;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use mcctl::engine::kube::{self, rbg};
use serde::Deserialize;
use serde_json::Value;

/// The folder that contains `rbg-v1alpha2.schema.json` and `rbg-v1alpha1.schema.json`: the `openAPIV3Schema` of each version.
const FOLDER: &str = "MCCTL_RBG_SCHEMA_DIR";

/// The documents in a YAML text.
pub fn documents(yaml: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(yaml).map(|one| Value::deserialize(one).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// Asserts that all documents are valid. RoleBasedGroups must also match the CRD schema, if it is available.
#[track_caller]
pub fn assert_valid(name: &str, yaml: &str) {
    let documents = documents(yaml);
    assert!(!documents.is_empty(), "{name} has no document");
    for document in &documents {
        assert!(kube::known(document), "{name}: unknown kind {}", document["kind"]);
        let violations: Vec<String> = kube::validate(document).iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{name}: {}", violations.join("\n"));
        if let Some(schema) = schema_of(document) {
            let wrong = schema::disagreements(&schema, document);
            assert!(wrong.is_empty(), "{name} against the schema: {}", wrong.join("\n"));
        }
    }
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn schema_of(document: &Value) -> Option<Value> {
    let file = match (document["kind"].as_str()?, document["apiVersion"].as_str()?) {
        (rbg::KIND, rbg::V1ALPHA2) => "rbg-v1alpha2.schema.json",
        (rbg::KIND, rbg::V1ALPHA1) => "rbg-v1alpha1.schema.json",
        _ => return None,
    };
    let path = folder()?.join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{FOLDER} is set, and {}: {e}", path.display()));
    Some(serde_json::from_str(&text).unwrap())
}

#[test]
fn valid_documents_match_the_crd_schema() {
    if folder().is_none() {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: RoleBasedGroups against the CRD schema: {FOLDER} is not set");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kube");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        assert_valid(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
    }
}

#[test]
fn types_and_crd_schema_have_the_same_fields() {
    let Some(folder) = folder() else { return };
    for (version, file) in [(rbg::V1ALPHA2, "rbg-v1alpha2.schema.json"), (rbg::V1ALPHA1, "rbg-v1alpha1.schema.json")] {
        let schema: Value = serde_json::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap();
        let everything = serde_json::json!({
            "apiVersion": version, "kind": rbg::KIND, "metadata": {"name": "a"}, "spec": schema::every_field(&schema["properties"]["spec"]),
        });
        let violations = kube::validate(&everything);
        let is_mismatch = |kind| matches!(kind, kube::ViolationKind::UnknownField | kube::ViolationKind::WrongType);
        let mismatches: Vec<_> = violations.iter().filter(|violation| is_mismatch(violation.kind)).collect();
        assert!(mismatches.is_empty(), "{version}: {mismatches:#?}");
    }
}
