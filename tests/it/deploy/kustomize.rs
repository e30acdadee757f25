//! The Kustomize base: complete, without duplicates, and the same documents as `render k8s`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use super::written::files;
use super::{all_fixtures, fixture};
use crate::cli::mcctl;
use crate::kube::documents;

const KUSTOMIZATION: &str = "kustomization.yaml";

/// The rendered files, and the parsed kustomization.
fn base(name: &str) -> (BTreeMap<String, String>, Value) {
    let mut files = files("kustomize", name);
    let text = files.remove(KUSTOMIZATION).expect("a kustomization");
    let [document] = documents(&text).try_into().expect("one document");
    (files, document)
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|item| item.as_str().expect("a text")).collect()
}

/// The images of all containers of a document.
fn images(document: &Value) -> Vec<&str> {
    let containers = document.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().map(|container| container["image"].as_str().expect("a text")).collect()
}

/// Deployments that `render k8s` accepts.
fn on_kubernetes() -> Vec<String> {
    let all = all_fixtures().into_iter();
    let fit: Vec<String> = all.filter(|name| mcctl(&["render", "k8s", &fixture(name)]).code == 0).collect();
    assert!(fit.len() >= 6, "{fit:?}");
    fit
}

#[test]
fn a_kustomization_lists_every_file_once_and_changes_nothing() {
    for name in on_kubernetes() {
        let (files, document) = base(&name);
        let keys: BTreeSet<&str> = document.as_object().expect("a map").keys().map(String::as_str).collect();
        assert_eq!(keys, BTreeSet::from(["apiVersion", "images", "kind", "resources"]), "{name}");
        assert_eq!(document["apiVersion"], "kustomize.config.k8s.io/v1beta1");
        assert_eq!(document["kind"], "Kustomization");
        let listed = strings(&document["resources"]);
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(unique, files.keys().map(String::as_str).collect(), "{name}");
        assert_eq!(listed.len(), unique.len(), "{name}");
        let split: Vec<Value> = listed.iter().flat_map(|file| documents(&files[*file])).collect();
        let id = |document: &Value| format!("{} {}", document["kind"], document["metadata"]["name"]);
        let ids: BTreeSet<String> = split.iter().map(id).collect();
        assert_eq!(ids.len(), split.len(), "{name}");
        let (_, whole) = super::written::files("k8s", &name).pop_first().expect("a file");
        assert_eq!(split, documents(&whole), "{name}");
    }
}

#[test]
fn each_image_has_an_entry_with_the_same_version() {
    for name in on_kubernetes() {
        let (files, document) = base(&name);
        let entries: Vec<String> = document["images"].as_array().expect("a list").iter().map(full_name).collect();
        let documents: Vec<Value> = files.values().flat_map(|text| documents(text)).collect();
        let used: BTreeSet<&str> = documents.iter().flat_map(images).collect();
        assert_eq!(entries.iter().map(String::as_str).collect::<BTreeSet<_>>(), used, "{name}");
    }
}

/// The image that an entry sets.
fn full_name(entry: &Value) -> String {
    let part = |separator: &str, key: &str| match &entry[key] {
        Value::String(text) => format!("{separator}{text}"),
        _ => String::new(),
    };
    format!("{}{}{}", entry["name"].as_str().expect("a text"), part(":", "newTag"), part("@", "digest"))
}

#[test]
fn a_name_with_two_versions_has_no_entry() {
    let set = ["--set", "images.sglang=registry.example/a:1", "--image", "registry.example/a:2"];
    let run = mcctl(&[&["render", "kustomize", &fixture("mcctl.toml"), "--json"], &set[..]].concat());
    let rendered: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let first = &rendered["files"][0];
    assert_eq!(first["name"], KUSTOMIZATION);
    let document = documents(first["text"].as_str().expect("a text")).remove(0);
    assert!(document["images"].is_null(), "{document}");
    let digest = ["--image", "registry.example:5000/a@sha256:ab", "--set", "images.sglang=registry.example/b:1"];
    let run = mcctl(&[&["render", "kustomize", &fixture("mcctl.toml"), "--json"], &digest[..]].concat());
    let rendered: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let document = documents(rendered["files"][0]["text"].as_str().expect("a text")).remove(0);
    let expected = json!([
        {"name": "registry.example/b", "newTag": "1"},
        {"name": "registry.example:5000/a", "digest": "sha256:ab"},
    ]);
    assert_eq!(document["images"], expected);
}

#[test]
#[ignore = "needs kubectl"]
fn kubectl_builds_the_same_documents() {
    let build = |folder: &std::path::Path| -> Vec<Value> {
        let output = Command::new("kubectl").arg("kustomize").arg(folder).output().expect("kubectl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        documents(&String::from_utf8(output.stdout).expect("text"))
    };
    let sorted = |documents: Vec<Value>| -> BTreeSet<String> { documents.iter().map(Value::to_string).collect() };
    for name in on_kubernetes() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("base");
        mcctl(&["render", "kustomize", &fixture(&name), "--out", out.to_str().expect("text")]).succeeds();
        let (_, whole) = files("k8s", &name).pop_first().expect("a file");
        assert_eq!(sorted(build(&out)), sorted(documents(&whole)), "{name}");
        let overlay = folder.path().join("overlay");
        std::fs::create_dir(&overlay).expect("made");
        let (_, kustomization) = base(&name);
        let image = kustomization["images"][0]["name"].as_str().expect("a text");
        let text =
            json!({"resources": ["../base"], "images": [{"name": image, "newName": "other.example/x", "newTag": "9"}]});
        std::fs::write(overlay.join(KUSTOMIZATION), text.to_string()).expect("written");
        let built = build(&overlay);
        let used: Vec<&str> = built.iter().flat_map(images).collect();
        assert!(used.contains(&"other.example/x:9"), "{name}: {used:?}");
        assert!(!used.iter().any(|used| used.starts_with(&format!("{image}:"))), "{name}: {used:?}");
    }
}
