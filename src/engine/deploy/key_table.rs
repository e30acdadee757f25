//! The keys of a deployment file as rows: type, default and meaning. The reference page consists of
//! them.

use serde_json::Value;

use crate::commented::{at, example};
use crate::keys::KEYS;
use crate::parse::SIZE_KEYS;
use crate::{DeploymentSpec, FileFormat, commented::literal};

/// A key of a deployment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// The section; empty at the top level.
    pub section: &'static str,
    pub key: &'static str,
    /// `text`, `number`, `size`, `true or false`, `list` or `map`.
    pub kind: &'static str,
    /// The default in TOML. Empty if the key is unset by default.
    pub default: String,
    /// The meaning, with the unit of a number.
    pub meaning: &'static str,
}

/// All keys in file order.
pub fn key_rows() -> Vec<KeyRow> {
    let tree = |spec: &DeploymentSpec| serde_json::to_value(spec).expect("the schema has only JSON types");
    let plain = tree(&DeploymentSpec::default());
    let example = tree(&example(&DeploymentSpec::default()));
    let row = |(section, key, meaning): &(&'static str, &'static str, &'static str)| {
        let name = format!("{section}.{key}");
        let kind = match at(&example, section, key) {
            _ if SIZE_KEYS.contains(&name.as_str()) => "size",
            Some(Value::Bool(_)) => "true or false",
            Some(Value::Number(_)) => "number",
            Some(Value::Array(_)) => "list",
            Some(Value::Object(_)) => "map",
            _ => "text",
        };
        let default = at(&plain, section, key).map_or_else(String::new, |value| literal(value, FileFormat::Toml));
        KeyRow { section, key, kind, default, meaning }
    };
    KEYS.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_type_and_default_of_their_key() {
        let rows = key_rows();
        let row = |section, key| {
            let row = rows.iter().find(|row| (row.section, row.key) == (section, key)).expect("a row");
            (row.kind, row.default.as_str())
        };
        assert_eq!(row("model", "tp"), ("number", "1"));
        assert_eq!(row("master", "memory"), ("size", "\"4GiB\""));
        assert_eq!(row("host", "memory"), ("size", ""));
        assert_eq!(row("serving.decode", "dp_attention"), ("true or false", ""));
        assert_eq!(row("kubernetes", "annotations"), ("map", "{}"));
        assert_eq!(row("access", "allow_cidr"), ("list", "[]"));
    }
}
