//! The JSON Schemas in `packaging/schemas`: each document has one, and each describes all members.
//! `cli::finish` checks the documents of every run of the program against them.

pub mod validate;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use validate::{undescribed, validate};

use crate::style::sources;

/// The name of the error document.
pub const ERROR: &str = "mcctl.error/1";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn folder() -> PathBuf {
    root().join("packaging/schemas")
}

/// The file for documents with the schema `name`.
fn file(name: &str) -> PathBuf {
    folder().join(format!("{}.json", name.replace('/', ".")))
}

/// The schema `name` in `packaging/schemas`.
#[track_caller]
pub fn schema(name: &str) -> Value {
    let text = fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("no schema for {name}: {error}"));
    serde_json::from_str(&text).expect("JSON")
}

/// The document in a line of output, if it is one of ours.
pub fn document_in(line: &str) -> Option<Value> {
    let is_ours = ["{\"schema\":\"mcctl.", "{\"schema\":\"mcctl/"].iter().any(|head| line.starts_with(head));
    is_ours.then(|| serde_json::from_str(line).ok()).flatten()
}

/// Assert that `document` is as the schema that it names describes it, with no other member.
#[track_caller]
pub fn is_as_described(document: &Value) {
    let schema = schema(document["schema"].as_str().expect("the name of a schema"));
    assert_eq!(validate(&schema, document), Vec::<String>::new());
    assert_eq!(undescribed(&schema, document), Vec::<String>::new());
}

/// The names of all schemas that have a file.
fn published() -> BTreeSet<String> {
    let files = fs::read_dir(folder()).expect("a folder").map(|entry| entry.expect("an entry").path());
    files
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a text");
            let schema: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let name = schema["$id"].as_str().expect("an id").to_owned();
            assert_eq!(file(&name), path);
            assert_eq!(schema["properties"]["schema"]["const"], schema["$id"], "{path:?}");
            name
        })
        .collect()
}

/// Whether `text` is the name of a schema: `mcctl.status/1`, or `mcctl/ha-status/v1` for the oldest
/// ones.
fn is_name(text: &str) -> bool {
    let Some((name, version)) = text.rsplit_once('/') else { return false };
    let digits = version.strip_prefix('v').unwrap_or(version);
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-/".contains(c);
    (name.starts_with("mcctl.") || name.starts_with("mcctl/"))
        && name.chars().all(is_word)
        && !digits.is_empty()
        && digits.chars().all(|c| c.is_ascii_digit())
}

#[test]
fn each_schema_in_the_sources_has_a_file_and_each_file_a_use() {
    let mut used = BTreeSet::new();
    for (_, text) in sources("src") {
        used.extend(text.split('"').filter(|part| is_name(part)).map(str::to_owned));
    }
    assert_eq!(used, published());
}

#[test]
fn each_schema_is_in_the_list_of_documents() {
    let page = fs::read_to_string(root().join("docs/json.md")).expect("the page");
    let listed: BTreeSet<String> = page.split('`').filter(|part| is_name(part)).map(str::to_owned).collect();
    assert_eq!(listed, published());
}

/// Collects the members of `schema` without a description. A member that refers to a definition may
/// have it there.
fn without_description(root: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let definition = member["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        let described = [member, definition.map_or(member, |name| &root["$defs"][name])];
        if !described.iter().any(|place| place["description"].as_str().is_some_and(|text| !text.is_empty())) {
            found.push(format!("{at}.{name}"));
        }
    }
    match schema {
        Value::Object(members) => {
            members.iter().for_each(|(name, inner)| without_description(root, inner, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => items.iter().for_each(|inner| without_description(root, inner, at, found)),
        _ => {}
    }
}

#[test]
fn each_schema_has_a_title_and_describes_each_member() {
    for name in published() {
        let schema = schema(&name);
        assert!(schema["title"].is_string() && schema["description"].is_string(), "{name}");
        let mut found = Vec::new();
        without_description(&schema, &schema, "", &mut found);
        assert_eq!(found, [""; 0], "{name}");
    }
}

#[test]
fn the_name_of_a_schema_is_recognized() {
    for name in ["mcctl.status/1", "mcctl.store.ls.count/1", "mcctl/step-down/v1", "mcctl.bench.ladder/12"] {
        assert!(is_name(name), "{name}");
    }
    for text in ["mcctl.status", "mcctl.status/", "mcctl.status/x", "mcctl status/1", "MCCTL/1", "mcctl-sim/1"] {
        assert!(!is_name(text), "{text}");
    }
}
