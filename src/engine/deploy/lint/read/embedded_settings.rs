//! Settings files inside of other files: in a ConfigMap, or in a variable.

use crate::lint::model::{LocatedValue, ParsedDeployment, Process, SettingsFile, SettingsFileKind};
use crate::lint::read::detect::{document_kind, extension};
use crate::lint::yaml::{ScalarKind, YamlEntry, YamlNode, YamlScalar, YamlValue};

/// Adds a settings file that is stored in a ConfigMap.
pub(super) fn add_embedded_settings(base: &str, located: &LocatedValue, deployment: &mut ParsedDeployment) {
    let json = extension(base) == "json";
    let parsed = match extension(base).as_str() {
        "json" => YamlNode::json(&located.text, true).ok(),
        "yaml" | "yml" => YamlNode::yaml(&located.text).ok().and_then(|mut nodes| nodes.pop()),
        _ => None,
    };
    let Some(mut node) = parsed else { return };
    let Some(kind) = document_kind(&node) else { return };
    shift(&mut node, located.place.line.saturating_sub(1));
    deployment.documents.push(SettingsFile {
        base: base.to_owned(),
        file: located.place.file.clone(),
        kind,
        node,
        json,
        span: None,
    });
}

fn shift(node: &mut YamlNode, by: u32) {
    node.line = node.line.saturating_add(by);
    match &mut node.value {
        YamlValue::Null => {}
        YamlValue::Scalar(text) => text.first_line = text.first_line.saturating_add(by),
        YamlValue::List(items) => items.iter_mut().for_each(|item| shift(item, by)),
        YamlValue::Map(entries) => {
            for entry in entries {
                entry.line = entry.line.saturating_add(by);
                shift(&mut entry.value, by);
            }
        }
    }
}

/// Adds the settings that LMCache reads from variables, as a settings file of their own.
pub(super) fn lmcache_variables(deployment: &mut ParsedDeployment) {
    let variable = |process: &Process| process.var("LMCACHE_EXTRA_CONFIG").cloned();
    let found: Vec<(LocatedValue, Option<LocatedValue>)> = deployment
        .processes
        .iter()
        .filter_map(|process| Some((variable(process)?, process.var("LMCACHE_REMOTE_URL").cloned())))
        .collect();
    for (located, url) in found {
        let Ok(mut extra) = YamlNode::json(&located.text, false) else { continue };
        shift(&mut extra, located.place.line.saturating_sub(1));
        let line = located.place.line;
        let entry = |key: &str, value: YamlNode| YamlEntry { key: key.to_owned(), line, value };
        let mut entries = vec![entry("extra_config", extra)];
        entries.extend(url.map(|url| {
            let first_line = url.place.line;
            let text = YamlScalar { text: url.text, kind: ScalarKind::Text, first_line };
            YamlEntry {
                line: first_line,
                ..entry("remote_url", YamlNode { line: first_line, value: YamlValue::Scalar(text) })
            }
        }));
        let node = YamlNode { line, value: YamlValue::Map(entries) };
        // Several processes may have the variable from one line.
        let is_known = |known: &SettingsFile| known.file == located.place.file && known.node == node;
        if !deployment.documents.iter().any(is_known) {
            let base = "LMCACHE_EXTRA_CONFIG".to_owned();
            let file = located.place.file.clone();
            let kind = SettingsFileKind::Lmcache;
            deployment.documents.push(SettingsFile { base, file, kind, node, json: true, span: None });
        }
    }
}
