//! Manifests against the schema of RoleBasedGroups itself, which is no part of this repository.

mod rendered;
mod schema;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use mcctl::engine::kube::{self, rbg};
use serde::Deserialize;
use serde_json::Value;

/// Names the folder with `rbg-v1alpha2.schema.json` and `rbg-v1alpha1.schema.json`: the `openAPIV3Schema` of each version.
const FOLDER: &str = "MCCTL_RBG_SCHEMA_DIR";

/// The documents of a text.
pub fn documents(yaml: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(yaml).map(|one| Value::deserialize(one).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// Nothing is wrong with any document of this text; those that are RoleBasedGroups agree with their schema, too, where it is named.
#[track_caller]
pub fn sound(name: &str, yaml: &str) {
    let documents = documents(yaml);
    assert!(!documents.is_empty(), "{name} has no document");
    for document in &documents {
        assert!(kube::known(document), "{name}: {} is not known", document["kind"]);
        let complaints: Vec<String> = kube::validate(document).iter().map(ToString::to_string).collect();
        assert!(complaints.is_empty(), "{name}: {}", complaints.join("\n"));
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
fn the_sound_documents_agree_with_the_schema_itself() {
    if folder().is_none() {
        let what = "RoleBasedGroups against the CRD's own schema: name its folder in";
        let _ = writeln!(std::io::stderr(), "NOT TESTED: {what} {FOLDER}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kube");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        sound(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
    }
}

#[test]
fn our_types_and_the_schema_know_the_same_fields() {
    let Some(folder) = folder() else { return };
    for (version, file) in [(rbg::V1ALPHA2, "rbg-v1alpha2.schema.json"), (rbg::V1ALPHA1, "rbg-v1alpha1.schema.json")] {
        let schema: Value = serde_json::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap();
        let everything = serde_json::json!({
            "apiVersion": version, "kind": rbg::KIND, "metadata": {"name": "a"}, "spec": schema::every_field(&schema["properties"]["spec"]),
        });
        let complaints = kube::validate(&everything);
        let strangers: Vec<_> =
            complaints.iter().filter(|c| c.what.contains("unknown field") || c.what.contains("stands where")).collect();
        assert!(strangers.is_empty(), "{version}: {strangers:#?}");
    }
}
