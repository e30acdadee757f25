//! Services that are defined in several places: `extends`, override files, and several files of one
//! directory.

use crate::lint::yaml::{ScalarKind, YamlEntry, YamlNode, YamlScalar, YamlValue};

/// Limit on the number of services that a service extends in turn.
const EXTENDED_MAX: usize = 8;
/// Keys whose value an override replaces. It adds to other lists.
const REPLACED: &[&str] = &["command", "entrypoint", "test"];

/// A Compose file: its path and its content.
pub(crate) type ComposeFile<'n> = (&'n str, &'n YamlNode);

/// A service as Compose starts it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EffectiveService {
    pub name: String,
    pub line: u32,
    pub node: YamlNode,
    /// Whether a file that was not provided, or may not apply, sets more.
    pub is_partial: bool,
}

/// The services of `file`, with what they extend and what override files add. `all` are the files
/// of the deployment.
pub(crate) fn services(file: ComposeFile<'_>, all: &[ComposeFile<'_>]) -> Vec<EffectiveService> {
    let (path, node) = file;
    let is_sibling = |(other, _): &&ComposeFile<'_>| *other != path && folder(other) == folder(path);
    let siblings: Vec<ComposeFile<'_>> = all.iter().filter(is_sibling).copied().collect();
    let overrides = |one: &str, other: &str| without_override(one).is_some_and(|base| base == base_of(other));
    let mut out = Vec::new();
    for entry in entries(node) {
        let definitions = siblings.iter().filter_map(|(other, node)| Some((*other, service(node, &entry.key)?)));
        // The file that this one overrides has the service.
        if definitions.clone().any(|(other, _)| overrides(path, other)) {
            continue;
        }
        let (mut value, mut is_complete) = extended(&entry.value, file, all, 0);
        for (other, definition) in definitions {
            match overrides(other, path) {
                true => value = merged(&value, &at_line(&definition.value, entry.line)),
                false => is_complete = false,
            }
        }
        out.push(EffectiveService { name: entry.key.clone(), line: entry.line, node: value, is_partial: !is_complete });
    }
    out
}

/// Whether the Compose file at `path` overrides a file that is not among `all`.
pub(crate) fn lacks_base(path: &str, all: &[ComposeFile<'_>]) -> bool {
    let is_base = |base: &str, other: &str| base == base_of(other) && folder(other) == folder(path);
    let is_listed = all.iter().any(|(other, _)| *other == path);
    is_listed && without_override(path).is_some_and(|base| !all.iter().any(|(other, _)| is_base(base, other)))
}

fn entries(node: &YamlNode) -> &[YamlEntry] {
    node.get("services").map_or(&[][..], YamlNode::entries)
}

fn service<'n>(node: &'n YamlNode, name: &str) -> Option<&'n YamlEntry> {
    entries(node).iter().find(|entry| entry.key == name)
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The file name without its extension.
fn base_of(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').map_or(name, |(base, _)| base)
}

/// `compose` of `compose.override.yaml`.
fn without_override(path: &str) -> Option<&str> {
    base_of(path).strip_suffix(".override")
}

/// `value` with the service that it extends, and whether that is known.
fn extended(value: &YamlNode, file: ComposeFile<'_>, all: &[ComposeFile<'_>], depth: usize) -> (YamlNode, bool) {
    let Some(extends) = value.get("extends") else { return (value.clone(), true) };
    let name = extends.text().or_else(|| extends.get("service").and_then(YamlNode::text));
    let other = extends.get("file").and_then(YamlNode::text);
    let source = match other {
        None => Some(file),
        Some(path) => all.iter().copied().find(|(known, _)| base_of(known) == base_of(path)),
    };
    let found = source.zip(name).and_then(|(source, name)| Some((source, service(source.1, name)?)));
    let Some((source, base)) = found.filter(|_| depth < EXTENDED_MAX) else { return (value.clone(), false) };
    let (base, is_complete) = extended(&base.value, source, all, depth + 1);
    let base = if source.0 == file.0 { base } else { at_line(&base, value.line) };
    (merged(&base, value), is_complete)
}

/// `base` with the values of `over`.
fn merged(base: &YamlNode, over: &YamlNode) -> YamlNode {
    let (YamlValue::Map(ours), YamlValue::Map(theirs)) = (&base.value, &over.value) else { return over.clone() };
    let mut out = ours.clone();
    for entry in theirs {
        let Some(known) = out.iter_mut().find(|known| known.key == entry.key) else {
            out.push(entry.clone());
            continue;
        };
        let (old, new) = match entry.key.as_str() {
            "environment" => (as_map(&known.value), as_map(&entry.value)),
            _ => (known.value.clone(), entry.value.clone()),
        };
        known.value = match (&old.value, &new.value) {
            _ if REPLACED.contains(&entry.key.as_str()) => new,
            (YamlValue::List(first), YamlValue::List(second)) => {
                YamlNode { value: YamlValue::List(first.iter().chain(second).cloned().collect()), ..new }
            }
            _ => merged(&old, &new),
        };
        known.line = entry.line;
    }
    YamlNode { line: over.line, value: YamlValue::Map(out) }
}

/// A list of `NAME=value` as a mapping.
fn as_map(node: &YamlNode) -> YamlNode {
    let YamlValue::List(items) = &node.value else { return node.clone() };
    let entry = |item: &YamlNode| {
        let text = item.text()?;
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => {
                let scalar = YamlScalar { text: value.to_owned(), kind: ScalarKind::Text, first_line: item.line };
                (key, YamlValue::Scalar(scalar))
            }
            None => (text, YamlValue::Null),
        };
        Some(YamlEntry { key: key.to_owned(), line: item.line, value: YamlNode { line: item.line, value } })
    };
    YamlNode { line: node.line, value: YamlValue::Map(items.iter().filter_map(entry).collect()) }
}

/// `node` with `line` in place of the lines of another file.
fn at_line(node: &YamlNode, line: u32) -> YamlNode {
    let value = match &node.value {
        YamlValue::Null => YamlValue::Null,
        YamlValue::Scalar(scalar) => YamlValue::Scalar(YamlScalar { first_line: line, ..scalar.clone() }),
        YamlValue::List(items) => YamlValue::List(items.iter().map(|item| at_line(item, line)).collect()),
        YamlValue::Map(entries) => {
            let moved =
                |entry: &YamlEntry| YamlEntry { key: entry.key.clone(), line, value: at_line(&entry.value, line) };
            YamlValue::Map(entries.iter().map(moved).collect())
        }
    };
    YamlNode { line, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> YamlNode {
        YamlNode::yaml(text).expect("YAML").swap_remove(0)
    }

    /// The services of the first file: name, image, number of variables, and whether it is partial.
    fn found(files: &[(&str, &str)]) -> Vec<(String, String, usize, bool)> {
        let nodes: Vec<YamlNode> = files.iter().map(|(_, text)| yaml(text)).collect();
        let all: Vec<ComposeFile<'_>> = files.iter().zip(&nodes).map(|((name, _), node)| (*name, node)).collect();
        let of = |service: EffectiveService| {
            let image = service.node.get("image").and_then(YamlNode::text).unwrap_or_default().to_owned();
            let variables = service.node.get("environment").map_or(0, |node| node.entries().len());
            (service.name, image, variables, service.is_partial)
        };
        services(all[0], &all).into_iter().map(of).collect()
    }

    #[test]
    fn services_have_what_they_extend() {
        let text =
            "services:\n  a: {image: x, environment: [A=1, B=2]}\n  b: {extends: a, environment: {B: 3, C: 4}}\n";
        let wanted = [("a".into(), "x".into(), 0, false), ("b".into(), "x".into(), 3, false)];
        assert_eq!(found(&[("c.yaml", text)]), wanted);
        let text = "services:\n  b: {extends: {file: common.yaml, service: a}}\n";
        assert_eq!(found(&[("c.yaml", text)]), [("b".into(), String::new(), 0, true)]);
        let common = "services:\n  a: {image: x}\n";
        assert_eq!(found(&[("c.yaml", text), ("common.yaml", common)]), [("b".into(), "x".into(), 0, false)]);
        assert_eq!(found(&[("c.yaml", "services:\n  a: {extends: a}\n")]), [("a".into(), String::new(), 0, true)]);
    }

    #[test]
    fn override_files_add_to_services_and_other_files_may() {
        let base = "services:\n  a: {image: x, environment: {A: 1}}\n";
        let over = "services:\n  a: {environment: {B: 2}}\n  b: {image: y}\n";
        let files = [("d/compose.yaml", base), ("d/compose.override.yaml", over)];
        assert_eq!(found(&files), [("a".into(), "x".into(), 2, false)]);
        assert_eq!(found(&[files[1], files[0]]), [("b".into(), "y".into(), 0, false)]);
        assert_eq!(found(&[files[0], ("d/prod.yaml", over)]), [("a".into(), "x".into(), 1, true)]);
        assert_eq!(found(&[files[0], ("e/prod.yaml", over)]), [("a".into(), "x".into(), 1, false)]);
    }
}
