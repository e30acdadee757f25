//! Errors of the TOML and YAML parsers, in the terms of a deployment file: the key, what is
//! expected, and what the file contains.

use toml::de::{DeTable, DeValue};

use crate::DeployError;
use crate::keys::{KEYS, is_deployment_key};
use mcctl_base::text::Quoted;

/// The error `error` of the TOML parser for `text`.
pub(super) fn of_toml(text: &str, error: &toml::de::Error) -> DeployError {
    let start = error.span().map(|span| span.start.min(text.len()));
    let line = start.map(|at| 1 + text.get(..at).unwrap_or_default().matches('\n').count());
    let key = start.and_then(|at| {
        let tree = DeTable::parse(text).ok()?;
        path_in_table(tree.get_ref(), at)
    });
    of_message(error.message(), line, key)
}

/// The error `error` of the YAML parser for `text`.
pub(super) fn of_yaml(text: &str, error: &serde_yaml_ng::Error) -> DeployError {
    let message = error.to_string();
    // The location is reported separately.
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    let location = error.location().map(|at| (at.line(), at.column()));
    let (key, message) = match message.split_once(": ") {
        Some((path, rest)) if is_path(path) => (Some(path.to_owned()), rest),
        _ => (None, message),
    };
    let name = message.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`'));
    let Some(name) = name else { return of_message(message, location.map(|(line, _)| line), key) };
    let line = location.map(|(line, column)| second_line(text, line, column, name).unwrap_or(line));
    let key = key.map_or_else(|| name.to_owned(), |section| format!("{section}.{name}"));
    DeployError::WrongValue { line, key, what: "the key is set twice".to_owned() }
}

/// A parser's message about the value of `key` as an error. Unknown fields become
/// [`DeployError::UnknownKey`].
pub(super) fn of_message(message: &str, line: Option<usize>, key: Option<String>) -> DeployError {
    let unknown = message.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
    if let Some((name, rest)) = unknown {
        return DeployError::UnknownKey { line, key: name.to_owned(), near: nearest(name, rest) };
    }
    let message = message.lines().collect::<Vec<_>>().join(" ");
    let what = plain(&message).unwrap_or(message);
    match key {
        // `[[model]]` in place of `[model]`.
        Some(key) if is_item_of_section(&key) => {
            let key = key.split('[').next().unwrap_or_default().to_owned();
            let what = format!("a section is expected, found a list: write [{key}] once");
            DeployError::WrongValue { line, key, what }
        }
        Some(key) => DeployError::WrongValue { line, key, what },
        None => DeployError::Syntax { line, what },
    }
}

/// The known key in `rest` of the parser's message that is most similar to `key`.
fn nearest(key: &str, rest: &str) -> Option<String> {
    let known = rest.split('`').skip(1).step_by(2);
    // `token` is more likely to mean `token_file` than another short name.
    let is_part = |name: &str| key.len() > 2 && (name.starts_with(key) || key.starts_with(name));
    let distance = |name: &&str| if is_part(name) { 1 } else { strsim::levenshtein(name, key) };
    known.min_by_key(distance).map(str::to_owned)
}

/// What is expected, and what was found, without names of Rust's types. `None` if the message has
/// another form.
pub(super) fn plain(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let (found, known) = rest.split_once("`, expected ")?;
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        return Some(format!("{} is not one of {}", Quoted(found), known.join(", ")));
    }
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let is_range = found.starts_with("integer `");
    Some(format!("{} is expected, found {}", expected_value(expected, is_range), found_value(found)))
}

/// The expected value. `is_range` adds the range of a number.
fn expected_value(expected: &str, is_range: bool) -> String {
    match expected {
        "u64" | "usize" if is_range => "a whole number of at least 0".to_owned(),
        "u32" if is_range => format!("a whole number from 0 to {}", u32::MAX),
        "u16" if is_range => format!("a whole number from 0 to {}", u16::MAX),
        "u16" | "u32" | "u64" | "usize" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a string" | "string or map" | "variant identifier" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a section".to_owned(),
        of_struct if of_struct.starts_with("struct ") => "a section".to_owned(),
        other => other.to_owned(),
    }
}

/// The value that was found.
fn found_value(found: &str) -> String {
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the text {text}");
    }
    let scalar = ["integer `", "floating point `", "boolean `"].iter().find_map(|kind| found.strip_prefix(kind));
    match (scalar, found) {
        (Some(value), _) => value.trim_end_matches('`').to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "map") => "a section".to_owned(),
        (None, "unit value" | "null") => "no value".to_owned(),
        (None, other) => other.to_owned(),
    }
}

/// Whether `text` is the path of a value, such as `nodes.hosts[1]`.
fn is_path(text: &str) -> bool {
    let first = text.split(['.', '[']).next().unwrap_or_default();
    is_deployment_key(first) && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-[]".contains(c))
}

/// Whether `path` is an item of a list in place of a section.
fn is_item_of_section(path: &str) -> bool {
    let section = path.split_once('[').map(|(section, _)| section);
    section.is_some_and(|section| KEYS.iter().any(|(known, ..)| *known == section))
}

/// The path of the value at the offset `at`.
fn path_in_table(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let below = path_in_value(value.get_ref(), at);
        let is_here = below.is_none() && value.span().contains(&at);
        let path = if is_here { Some(String::new()) } else { below };
        path.map(|path| match path.as_str() {
            "" => key.get_ref().to_string(),
            index if index.starts_with('[') => format!("{}{index}", key.get_ref()),
            rest => format!("{}.{rest}", key.get_ref()),
        })
    })
}

/// The path below `value`. `None` if the offset is not in a value that it contains.
fn path_in_value(value: &DeValue<'_>, at: usize) -> Option<String> {
    match value {
        DeValue::Table(table) => path_in_table(table, at),
        DeValue::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| match path_in_value(item.get_ref(), at) {
                Some(rest) if rest.starts_with('[') => Some(format!("[{index}]{rest}")),
                Some(rest) => Some(format!("[{index}].{rest}")),
                None => item.span().contains(&at).then(|| format!("[{index}]")),
            })
        }
        _ => None,
    }
}

/// The line of the second key `name` in the YAML mapping that begins at `line` and `column`, both
/// counted from 1.
fn second_line(text: &str, line: usize, column: usize, name: &str) -> Option<usize> {
    let is_flow = text.lines().nth(line.checked_sub(1)?)?.chars().nth(column.checked_sub(1)?) == Some('{');
    let mut found = 0;
    for (number, content) in text.lines().enumerate().skip(line - 1) {
        for (at, _) in content.match_indices(name) {
            let before = content.get(..at)?;
            let after = content.get(at + name.len()..)?;
            let is_quoted = before.ends_with(['"', '\'']);
            let is_start = before.is_empty() || before.ends_with([' ', '{', ',', '"', '\'']);
            let is_key = after.trim_start_matches(['"', '\'']).trim_start().starts_with(':');
            let indent = before.chars().count() - usize::from(is_quoted);
            found += usize::from(is_start && is_key && (is_flow || indent + 1 == column));
            if found == 2 {
                return Some(number + 1);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileFormat, parse};

    fn wrong(text: &str, format: FileFormat) -> (Option<usize>, String, String) {
        match parse(text, format, &[]).expect_err(text) {
            DeployError::WrongValue { line, key, what } => (line, key, what),
            error => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn a_wrong_value_has_its_key_and_line_in_both_formats() {
        for (toml, yaml, line, key) in [
            ("[model]\npath = 'm'\ntp = 'two'\n", "model:\n  path: m\n  tp: two\n", 3, "model.tp"),
            ("[model]\ntp = -1\n", "model:\n  tp: -1\n", 2, "model.tp"),
            ("[serving]\n\nport = 70000\n", "serving:\n\n  port: 70000\n", 3, "serving.port"),
            ("[nodes]\nhosts = ['a', ['b']]\n", "nodes:\n  hosts: [a, [b]]\n", 2, "nodes.hosts[1]"),
            ("model = 3\n", "model: 3\n", 1, "model"),
            ("name = 'a'\nprograms = 'vllm'\n", "name: a\nprograms: vllm\n", 2, "programs"),
            ("[segment]\nengines = 1.5\n", "segment:\n  engines: 1.5\n", 2, "segment.engines"),
            ("[segment]\nengines = '16xb'\n", "segment:\n  engines: 16xb\n", 2, "segment.engines"),
            ("model.env = {A = ['x']}\n", "model:\n  env: {A: [x]}\n", 1, "model.env.A"),
        ] {
            let (found, of_toml, what) = wrong(toml, FileFormat::Toml);
            assert_eq!((found, of_toml.as_str()), (Some(line), key), "{what}");
            let (found, of_yaml, yaml_what) = wrong(yaml, FileFormat::Yaml);
            assert_eq!((of_yaml.as_str(), yaml_what.as_str()), (key, what.as_str()));
            assert!(found.is_some_and(|found| found >= line), "{yaml}");
        }
    }

    #[test]
    fn values_are_named_in_plain_words() {
        let texts = [
            "[model]\ntp = 'many'\n",
            "[model]\ntp = -1\n",
            "[serving]\nport = 70000\n",
            "[model]\npath = true\n",
            "[model]\ndp_attention = 'yes'\n",
            "[nodes]\nhosts = 'a'\n",
            "programs = 'vllm'\n",
            "[[model]]\npath = 'm'\n",
        ];
        let found = texts.map(|text| {
            let (_, key, what) = wrong(text, FileFormat::Toml);
            format!("{key}: {what}")
        });
        insta::assert_snapshot!(found.join("\n"));
    }

    #[test]
    fn a_key_that_is_set_twice_in_yaml_has_the_line_of_the_second_one() {
        for (text, line, key) in [
            ("name: a\nmodel:\n  tp: 1\n  path: m\n  tp: 2\n", 5, "model.tp"),
            ("model:\n  path: m\nname: x\nmodel:\n  tp: 1\n", 4, "model"),
            ("name: a\nname: b\n", 2, "name"),
            ("model: {path: m,\n  tp: 1,\n  \"tp\": 2}\n", 3, "model.tp"),
            ("serving:\n  port: 1\n  router:\n    port: 2\n  port: 3\n", 5, "serving.port"),
        ] {
            let (found, of_text, _) = wrong(text, FileFormat::Yaml);
            assert_eq!((found, of_text.as_str()), (Some(line), key), "{text}");
        }
    }
}
