//! A configuration file: YAML or JSON (comments tolerated) with upstream's keys, as assignments to a table's flags.
//!
//! As upstream, unknown keys are left to the caller, who warns. A value of another type, on which upstream aborts, is an error that
//! names file and key.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use crate::commands::error::Failure;
use crate::commands::flags::{Kind, Table};
use crate::commands::settings::{Assignment, Origin};
use crate::commands::unknown_key::UnknownKey;

/// The longest configuration file that is read, bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The most brackets that may be open at one place of a YAML file.
const NESTING_MAX: u32 = 64;

/// Must a JSON value have the type of its flag, or may it be a text that reads as one?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// As `mooncake_master` reads JSON.
    Strict,
    /// As the store service reads JSON, and everybody YAML: `"16gb"`, `"true"`.
    Loose,
}

/// What a configuration file holds.
#[derive(Debug)]
pub struct ConfigFile {
    /// The values of known keys.
    pub assignments: Vec<Assignment>,
    /// Keys that no flag has, in the file's order.
    pub unknown: Vec<UnknownKey>,
}

/// The assignments that the file `path` with content `text` makes to flags of `table`. The ending of the name tells the format.
///
/// # Errors
/// The file is neither YAML nor JSON, or has a value of another type.
pub fn parse(table: &'static Table, path: &Path, text: &str, json: Typing) -> Result<ConfigFile, Failure> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let (document, typing) = match ending.as_str() {
        "yaml" | "yml" => (parse_yaml(path, text)?, Typing::Loose),
        "json" => (parse_json(path, text)?, json),
        _ => {
            return Err(Failure::usage(format!("{}: unknown kind of configuration file", path.display()))
                .found(format!("a name that ends in '.{ending}'"))
                .next("name it .yaml, .yml or .json"));
        }
    };
    let out = ConfigFile { assignments: Vec::new(), unknown: Vec::new() };
    let mut reader = Reader { table, path, typing, out };
    match document {
        Json::Object(map) => map.iter().try_for_each(|(key, value)| reader.entry(key, value))?,
        // An empty YAML file.
        Json::Null => {}
        other => {
            return Err(Failure::usage(format!("{}: the file must be a map of keys to values", path.display()))
                .found(kind_of(&other)));
        }
    }
    Ok(reader.out)
}

fn parse_yaml(path: &Path, text: &str) -> Result<Json, Failure> {
    check_nesting(path, text)?;
    let read: Result<Once, _> = serde_yaml_ng::from_str(text);
    read.map(|once| once.0).map_err(|error| malformed(path, "YAML", &error.to_string()))
}

fn parse_json(path: &Path, text: &str) -> Result<Json, Failure> {
    let read: Result<Once, _> = serde_json::from_reader(json_comments::StripComments::new(text.as_bytes()));
    read.map(|once| once.0).map_err(|error| malformed(path, "JSON", &error.to_string()))
}

/// The YAML library takes time with the square of the nesting, and no configuration nests at all. Brackets in texts and comments
/// count, too: nobody leaves so many open.
fn check_nesting(path: &Path, text: &str) -> Result<(), Failure> {
    let (mut open, mut line) = (0u32, 1);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            b'\n' => line += 1,
            _ => {}
        }
        if open > NESTING_MAX {
            let found = format!("more than {NESTING_MAX} brackets open in line {line}");
            return Err(malformed(path, "YAML", &found));
        }
    }
    Ok(())
}

fn malformed(path: &Path, format: &str, found: &str) -> Failure {
    Failure::usage(format!("{} is not valid {format}", path.display())).found(found).next("mend the file at that place")
}

/// A document in which no map has a key twice: of two values for one setting, none is surely the one that was meant.
struct Once(Json);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Once, D::Error> {
        from.deserialize_any(OnceVisitor)
    }
}

/// A key that the map does not have yet. The check is made while it is read, for then the error tells its place.
struct NewKey<'a>(&'a serde_json::Map<String, Json>);

impl<'de> DeserializeSeed<'de> for NewKey<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for NewKey<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<String, E> {
        match self.0.contains_key(key) {
            true => Err(E::custom(format_args!("key '{key}' is there twice"))),
            false => Ok(key.to_owned()),
        }
    }
}

struct OnceVisitor;

impl<'de> Visitor<'de> for OnceVisitor {
    type Value = Once;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of keys to values")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Once, E> {
        Ok(Once(Json::Null))
    }

    /// What the YAML library calls an empty file.
    fn visit_none<E>(self) -> Result<Once, E> {
        Ok(Once(Json::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Once, A::Error> {
        let mut list = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Once(Json::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Once, A::Error> {
        let mut map = serde_json::Map::new();
        while let Some(key) = entries.next_key_seed(NewKey(&map))? {
            let Once(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Once(Json::Object(map)))
    }
}

struct Reader<'a> {
    table: &'static Table,
    path: &'a Path,
    typing: Typing,
    out: ConfigFile,
}

impl Reader<'_> {
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
                "{}: key '{key}' is {}, but {} is expected",
                self.path.display(),
                kind_of(value),
                flag.kind
            ))
            .found(format!("{key}: {value}"))
            .next(format!("{key}: {}", flag.help))
        };
        let text = match value {
            Json::Bool(b) if flag.kind == Kind::Bool => b.to_string(),
            Json::Number(n) if flag.kind != Kind::Bool => n.to_string(),
            Json::String(text) if self.typing == Typing::Loose || takes_text(flag.kind) => text.clone(),
            _ => return Err(ill_typed()),
        };
        if flag.kind.parse(&text).is_none() {
            return Err(ill_typed());
        }
        let origin = Origin::File { path: self.path.to_owned(), key: key.to_owned() };
        self.out.assignments.push(Assignment { flag, text, origin });
        Ok(())
    }
}

fn takes_text(kind: Kind) -> bool {
    matches!(kind, Kind::Text | Kind::Word(_) | Kind::Duration | Kind::Size)
}

fn kind_of(value: &Json) -> String {
    match value {
        Json::Null => "empty".to_owned(),
        Json::Bool(b) => b.to_string(),
        Json::Number(n) => n.to_string(),
        Json::String(text) => format!("the text '{text}'"),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "a map".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::flags::flag;
    use crate::commands::unknown_key;
    use crate::engine::env::{Env, RealEnv};

    static TABLE: Table = Table {
        command: "serve test",
        about: "",
        groups: &[(
            "All",
            &[
                flag("rpc_port", Kind::Port, "0", "the RPC port"),
                flag("port", Kind::Port, "0", "the old name").not_in_file("write rpc_port"),
                flag("client_ttl", Kind::Whole(0, 100), "10", "seconds").key("client_live_ttl_sec"),
                flag("enable_ha", Kind::Bool, "false", "ha"),
                flag("default_kv_lease_ttl", Kind::Duration, "10s", "lease"),
                flag("eviction_ratio", Kind::Number(0.0, 1.0), "0.05", "share"),
                flag("cluster_id", Kind::Text, "", "name"),
            ],
        )],
    };

    fn read(name: &str, text: &str) -> Result<Vec<String>, String> {
        let show = |given: &Assignment| format!("{}={}", given.flag.name, given.text);
        match parse(&TABLE, Path::new(name), text, Typing::Strict) {
            Ok(file) => match unknown_key::settle(&file.unknown, true) {
                Ok(_) => Ok(file.assignments.iter().map(show).collect()),
                Err(failure) => Err(failure.line().trim_end().to_owned()),
            },
            Err(failure) => Err(failure.line().trim_end().to_owned()),
        }
    }

    /// The warnings that the file causes, and the values that count.
    fn warned(name: &str, text: &str) -> (Vec<String>, usize) {
        let file = parse(&TABLE, Path::new(name), text, Typing::Strict).expect("only a warning");
        (unknown_key::settle(&file.unknown, false).expect("only a warning"), file.assignments.len())
    }

    fn refused(name: &str, text: &str) -> String {
        read(name, text).expect_err("it should be refused")
    }

    #[test]
    fn yaml_and_json_with_comments_give_the_same_assignments() {
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
    fn an_empty_file_assigns_nothing() {
        assert_eq!(read("m.yaml", ""), Ok(vec![]));
        assert_eq!(read("m.yaml", "# only a comment\n"), Ok(vec![]));
        assert_eq!(read("m.json", "{}"), Ok(vec![]));
    }

    #[test]
    fn an_unknown_key_names_file_key_and_the_nearest_known_one() {
        assert_eq!(
            refused("m.yaml", "rpc_prot: 1"),
            "error: m.yaml: unknown key 'rpc_prot'; next: did you mean rpc_port?; or leave out --strict-config"
        );
        assert_eq!(
            refused("m.json", r#"{"master": {"rpc_port": 1}}"#),
            "error: m.json: unknown key 'master.rpc_port'; next: did you mean rpc_port?; or leave out --strict-config"
        );
    }

    #[test]
    fn an_unknown_key_is_a_warning_and_the_other_keys_count() {
        let text = "rpc_prot: 1\nrpc_port: 2\nlocal_hostname: [a, b]\nnested:\n  deep: 1\n";
        let (warnings, assigned) = warned("m.yaml", text);
        assert_eq!(assigned, 1);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        let has = |part: &str| warnings.iter().any(|warning| warning.contains(part));
        assert!(has("'rpc_prot' is ignored; did you mean rpc_port?") && has("'nested.deep'"), "{warnings:?}");
    }

    #[test]
    fn a_flag_name_that_is_no_key_names_the_key() {
        assert_eq!(
            refused("m.yaml", "client_ttl: 30"),
            "error: m.yaml: unknown key 'client_ttl'; next: in a file --client-ttl is written client_live_ttl_sec; \
             or leave out --strict-config"
        );
        assert!(refused("m.yaml", "port: 30").contains("--port cannot be set in a file: write rpc_port"));
    }

    #[test]
    fn a_value_of_another_type_names_file_key_found_and_expected() {
        assert_eq!(
            refused("m.json", r#"{"rpc_port": "50051"}"#),
            "error: m.json: key 'rpc_port' is the text '50051', but a port from 0 to 65535 is expected; found: rpc_port: \
             \"50051\"; next: rpc_port: the RPC port"
        );
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
            assert!(refused(name, text).contains("is expected"), "{text}");
        }
        assert_eq!(
            read("m.yaml", "rpc_port: \"7\"\nenable_ha: 'yes'"),
            Ok(vec!["enable_ha=yes".to_owned(), "rpc_port=7".to_owned()])
        );
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused_with_its_place() {
        assert_eq!(
            refused("m.json", "{\"rpc_port\": 1,\n \"rpc_port\": 2}"),
            "error: m.json is not valid JSON; found: key 'rpc_port' is there twice at line 2 column 12; next: mend the file at \
             that place"
        );
        let said = refused("m.yaml", "client_live_ttl_sec: 1\nrpc_port: 1\nclient_live_ttl_sec: 2\n");
        assert!(said.contains("key 'client_live_ttl_sec' is there twice at line 3"), "{said}");
    }

    #[test]
    fn a_file_of_brackets_is_refused_at_once() {
        let (env, limit) = (RealEnv::new(), Duration::from_secs(10));
        let began = env.now();
        for text in ["[", "{a: ", "- ", "? "] {
            refused("m.yaml", &text.repeat(100_000));
        }
        refused("m.json", &"[".repeat(100_000));
        refused("m.json", &"{\"a\":".repeat(100_000));
        assert!(env.now().since(began) < limit);
    }

    #[test]
    fn what_is_no_map_or_not_well_formed_is_refused_with_the_place() {
        assert!(refused("m.json", "{\"rpc_port\": ").contains("m.json is not valid JSON; found: EOF"));
        assert!(refused("m.yaml", "a: [").contains("m.yaml is not valid YAML"));
        assert!(refused("m.yaml", "- 1").contains("must be a map"));
        assert!(refused("m.toml", "").contains("a name that ends in '.toml'"));
    }
}
