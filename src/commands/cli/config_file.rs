//! Configuration files: YAML or JSON with comments, with the same keys as upstream, converted to
//! flag assignments.
//!
//! Unknown keys are returned to the caller, which warns, as upstream does. A value of the wrong
//! type is an error that names the file and the key; upstream aborts on such a value.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::{FlagTable, ValueKind};
use crate::commands::cli::origin::ValueOrigin;
use crate::commands::cli::settings::Assignment;
use crate::commands::cli::unknown_key::UnknownKey;
use crate::engine::base::json_comments::without_comments;

/// Maximum size of a configuration file, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of unclosed brackets at any point in a YAML file.
const NESTING_MAX: u32 = 64;

/// Whether a JSON value must have the flag's type, or may be a string that parses as that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// `mooncake_master` reads JSON this way.
    Strict,
    /// The store service reads JSON this way, and all programs read YAML this way: `"16gb"`,
    /// `"true"`.
    Loose,
}

/// The parsed content of a configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    /// The values of known keys.
    pub assignments: Vec<Assignment>,
    /// Keys that match no flag, in file order.
    pub unknown: Vec<UnknownKey>,
}

/// Parses `text`, the content of the file `path`, into assignments to flags of `table`. The
/// extension of `path` selects the format.
///
/// # Errors
/// The extension is unknown, the text is invalid, or a value does not have its flag's type.
pub fn parse(table: &'static FlagTable, path: &Path, text: &str, json: Typing) -> Result<ConfigFile, Failure> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    parse_as(table, path, ending, text, json)
}

/// Like [`parse`], but `ending` selects the format.
///
/// # Errors
/// See [`parse`].
pub fn parse_as(
    table: &'static FlagTable,
    path: &Path,
    ending: &str,
    text: &str,
    json: Typing,
) -> Result<ConfigFile, Failure> {
    let ending = ending.to_ascii_lowercase();
    let (document, typing) = match ending.as_str() {
        "yaml" | "yml" => (parse_yaml(path, text)?, Typing::Loose),
        "json" => (parse_json(path, text)?, json),
        _ => {
            return Err(Failure::usage(format!("{}: unknown configuration file format", path.display()))
                .found(format!("the extension '.{ending}'"))
                .next("use the extension .yaml, .yml or .json"));
        }
    };
    let out = ConfigFile { assignments: Vec::new(), unknown: Vec::new() };
    let mut reader = ConfigReader { table, path, typing, out };
    match document {
        Json::Object(map) => map.iter().try_for_each(|(key, value)| reader.entry(key, value))?,
        // An empty YAML file.
        Json::Null => {}
        other => {
            return Err(
                Failure::usage(format!("{}: expected a map of keys to values", path.display())).found(kind_of(&other))
            );
        }
    }
    Ok(reader.out)
}

fn parse_yaml(path: &Path, text: &str) -> Result<Json, Failure> {
    check_nesting(path, text)?;
    let read: Result<UniqueKeyJson, _> = serde_yaml_ng::from_str(text);
    read.map(|once| once.0).map_err(|error| malformed(path, "YAML", &error.to_string()))
}

fn parse_json(path: &Path, text: &str) -> Result<Json, Failure> {
    let read: Result<UniqueKeyJson, _> = serde_json::from_reader(without_comments(text).as_bytes());
    read.map(|once| once.0).map_err(|error| {
        let failure = malformed(path, "JSON", &error.to_string());
        let has_hash = text.lines().any(|line| line.trim_start().starts_with('#'));
        if has_hash { failure.next("begin comments with // instead of #") } else { failure }
    })
}

/// Rejects deep nesting: the YAML library's running time is quadratic in the depth, and
/// configuration files do not need nesting. Brackets in strings and comments count too; real files
/// never leave that many open.
fn check_nesting(path: &Path, text: &str) -> Result<(), Failure> {
    let mut open = 0u32;
    let mut line = 1;
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            b'\n' => line += 1,
            _ => {}
        }
        if open > NESTING_MAX {
            let found = format!("more than {NESTING_MAX} unclosed brackets on line {line}");
            return Err(malformed(path, "YAML", &found));
        }
    }
    Ok(())
}

fn malformed(path: &Path, format: &str, found: &str) -> Failure {
    Failure::usage(format!("{} is not valid {format}", path.display()))
        .found(found)
        .next("fix the syntax at this position")
}

/// A document in which no map has a duplicate key. If a setting has two values, the intended one is
/// ambiguous.
struct UniqueKeyJson(Json);

impl<'de> Deserialize<'de> for UniqueKeyJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UniqueKeyJson, D::Error> {
        from.deserialize_any(UniqueKeyVisitor)
    }
}

/// Deserializes a key, and rejects it if it is already in the map. Because this check happens
/// during parsing, the error includes line and column.
struct UniqueKeySeed<'a>(&'a serde_json::Map<String, Json>);

impl<'de> DeserializeSeed<'de> for UniqueKeySeed<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for UniqueKeySeed<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<String, E> {
        match self.0.contains_key(key) {
            true => Err(E::custom(format_args!("duplicate key '{key}'"))),
            false => Ok(key.to_owned()),
        }
    }
}

struct UniqueKeyVisitor;

impl<'de> Visitor<'de> for UniqueKeyVisitor {
    type Value = UniqueKeyJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of keys to values")
    }

    fn visit_bool<E>(self, value: bool) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(value.into()))
    }

    fn visit_unit<E>(self) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(Json::Null))
    }

    /// The YAML library calls this for an empty file.
    fn visit_none<E>(self) -> Result<UniqueKeyJson, E> {
        Ok(UniqueKeyJson(Json::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UniqueKeyJson, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeyJson(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(UniqueKeyJson(Json::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<UniqueKeyJson, A::Error> {
        let mut map = serde_json::Map::new();
        while let Some(key) = entries.next_key_seed(UniqueKeySeed(&map))? {
            let UniqueKeyJson(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(UniqueKeyJson(Json::Object(map)))
    }
}

struct ConfigReader<'a> {
    table: &'static FlagTable,
    path: &'a Path,
    typing: Typing,
    out: ConfigFile,
}

impl ConfigReader<'_> {
    fn entry(&mut self, key: &str, value: &Json) -> Result<(), Failure> {
        if let Json::Object(map) = value {
            return map.iter().try_for_each(|(inner, value)| self.entry(&format!("{key}.{inner}"), value));
        }
        let Some(flag) = self.table.find_key(key) else {
            self.out.unknown.push(UnknownKey::new(self.table, self.path.display().to_string(), key));
            return Ok(());
        };
        let ill_typed = || {
            Failure::usage(format!(
                "{}: key '{key}' is {}, expected {}",
                self.path.display(),
                kind_of(value),
                flag.kind
            ))
            .found(format!("{key}: {value}"))
            .next(format!("{key}: {}", flag.help))
        };
        let text = match value {
            Json::Bool(b) if flag.kind == ValueKind::Bool => b.to_string(),
            Json::Number(n) if flag.kind != ValueKind::Bool => n.to_string(),
            Json::String(text) if self.typing == Typing::Loose || takes_text(flag.kind) => text.clone(),
            _ => return Err(ill_typed()),
        };
        if flag.kind.parse(&text).is_none() {
            return Err(ill_typed());
        }
        let origin = ValueOrigin::File { path: self.path.to_owned(), key: key.to_owned() };
        self.out.assignments.push(Assignment { flag, text, origin });
        Ok(())
    }
}

fn takes_text(kind: ValueKind) -> bool {
    matches!(kind, ValueKind::Text | ValueKind::Word(_) | ValueKind::Duration | ValueKind::Time | ValueKind::Size)
}

fn kind_of(value: &Json) -> String {
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool(b) => b.to_string(),
        Json::Number(n) => n.to_string(),
        Json::String(text) => format!("the string '{text}'"),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "a map".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::flags::flag;
    use crate::commands::cli::unknown_key;
    use crate::engine::env::{Env, RealEnv};

    static TABLE: FlagTable = FlagTable {
        command: "serve test",
        about: "",
        groups: &[(
            "All",
            &[
                flag("rpc_port", ValueKind::Port, "0", "the RPC port"),
                flag("port", ValueKind::Port, "0", "the old name").not_in_file("write rpc_port"),
                flag("client_ttl", ValueKind::Whole(0, 100), "10", "seconds").key("client_live_ttl_sec"),
                flag("enable_ha", ValueKind::Bool, "false", "ha"),
                flag("default_kv_lease_ttl", ValueKind::Duration, "10s", "lease"),
                flag("eviction_ratio", ValueKind::Number(0.0, 1.0), "0.05", "share"),
                flag("cluster_id", ValueKind::Text, "", "name"),
            ],
        )],
    };

    fn read(name: &str, text: &str) -> Result<Vec<String>, Failure> {
        let show = |given: &Assignment| format!("{}={}", given.flag.name, given.text);
        let file = parse(&TABLE, Path::new(name), text, Typing::Strict)?;
        unknown_key::settle(&file.unknown, true)?;
        Ok(file.assignments.iter().map(show).collect())
    }

    /// The warnings for the file, and the number of assignments.
    fn warned(name: &str, text: &str) -> (Vec<String>, usize) {
        let file = parse(&TABLE, Path::new(name), text, Typing::Strict).expect("only a warning");
        (unknown_key::settle(&file.unknown, false).expect("only a warning"), file.assignments.len())
    }

    fn refused(name: &str, text: &str) -> Failure {
        let failure = read(name, text).expect_err("expected an error");
        assert_eq!(failure.exit, Exit::Usage);
        failure
    }

    #[test]
    fn yaml_and_json_give_the_same_assignments() {
        let expected =
            ["client_ttl=30", "default_kv_lease_ttl=5s", "enable_ha=false", "eviction_ratio=0.1", "rpc_port=1"];
        let yaml = "# a master\nrpc_port: 1\nclient_live_ttl_sec: 30\nenable_ha: false\ndefault_kv_lease_ttl: 5s\neviction_ratio: 0.1\n";
        let json = r#"{ // a master
            "rpc_port": 1, "client_live_ttl_sec": 30, /* more */ "enable_ha": false,
            "default_kv_lease_ttl": "5s", "eviction_ratio": 0.1 }"#;
        for (name, text) in [("m.yaml", yaml), ("m.yml", yaml), ("m.json", json)] {
            let mut found = read(name, text).expect(name);
            found.sort();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn json_comments_are_those_of_jsoncpp_and_keep_line_numbers() {
        assert_eq!(read("m.json", "// a\n{ /* b\n*/ \"rpc_port\": 1 }"), Ok(vec!["rpc_port=1".to_owned()]));
        let refusal = |text| refused("m.json", text).line();
        assert!(refusal("{ # a\n\"rpc_port\": 1 }").contains("line 1 column 3"), "{}", refusal("{ # a\n}"));
        assert!(refusal("/*\n*/ {\n\"rpc_port\": x }").contains("line 3"), "{}", refusal("/*\n*/ {\nx }"));
        refused("m.json", "{} /* open");
        let hint = |text| refused("m.json", text).next.unwrap_or_default();
        assert!(hint("{\n # a\n\"rpc_port\": 1 }").contains("//"));
        assert!(!hint("{\"rpc_port\": x }").contains("//"));
    }

    #[test]
    fn an_empty_file_assigns_nothing() {
        assert_eq!(read("m.yaml", ""), Ok(vec![]));
        assert_eq!(read("m.yaml", "# only a comment\n"), Ok(vec![]));
        assert_eq!(read("m.json", "{}"), Ok(vec![]));
    }

    #[test]
    fn errors_name_file_key_value_and_fix() {
        let texts = [
            ("m.yaml", "rpc_prot: 1"),
            ("m.json", r#"{"master": {"rpc_port": 1}}"#),
            ("m.yaml", "client_ttl: 30"),
            ("m.yaml", "port: 30"),
            ("m.json", r#"{"rpc_port": "50051"}"#),
            ("m.json", r#"{"rpc_port": null}"#),
            ("m.json", "{\"rpc_port\": 1,\n \"rpc_port\": 2}"),
            ("m.yaml", "client_live_ttl_sec: 1\nrpc_port: 1\nclient_live_ttl_sec: 2\n"),
            ("m.json", "{\"rpc_port\": "),
            ("m.yaml", "- 1"),
            ("m.toml", ""),
        ];
        let lines: String = texts.iter().map(|(name, text)| refused(name, text).line()).collect();
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn an_unknown_key_is_a_warning_and_the_other_keys_count() {
        let text = "rpc_prot: 1\nrpc_port: 2\nlocal_hostname: [a, b]\nnested:\n  deep: 1\n";
        let (warnings, assigned) = warned("m.yaml", text);
        assert_eq!(assigned, 1);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        let has = |part: &str| warnings.iter().any(|warning| warning.contains(part));
        assert!(has("rpc_prot") && has("rpc_port?") && has("nested.deep"), "{warnings:?}");
    }

    #[test]
    fn a_value_of_another_type_is_refused_and_names_its_key() {
        for (name, text) in [
            ("m.json", r#"{"enable_ha": "false"}"#),
            ("m.json", r#"{"enable_ha": 1}"#),
            ("m.json", r#"{"rpc_port": [1]}"#),
            ("m.json", r#"{"rpc_port": null}"#),
            ("m.json", r#"{"rpc_port": 1.5}"#),
            ("m.json", r#"{"eviction_ratio": 2}"#),
            ("m.yaml", "rpc_port: abc"),
            ("m.yaml", "enable_ha: maybe"),
            ("m.yaml", "cluster_id: true"),
        ] {
            let key = text.split(['"', ':']).find(|word| word.len() > 3).expect("a key");
            assert!(refused(name, text).what.contains(&format!("key '{key}'")), "{text}");
        }
        assert_eq!(
            read("m.yaml", "rpc_port: \"7\"\nenable_ha: 'yes'"),
            Ok(vec!["enable_ha=yes".to_owned(), "rpc_port=7".to_owned()])
        );
    }

    #[test]
    fn a_file_of_brackets_is_refused_in_linear_time() {
        let env = RealEnv::new();
        let limit = Duration::from_secs(10);
        let began = env.now();
        for text in ["[", "{a: ", "- ", "? "] {
            refused("m.yaml", &text.repeat(100_000));
        }
        refused("m.json", &"[".repeat(100_000));
        refused("m.json", &"{\"a\":".repeat(100_000));
        assert!(env.now().since(began) < limit);
    }
}
