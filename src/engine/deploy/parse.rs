//! Parses a deployment file (TOML or YAML, one schema) and applies `--set` values.

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::keys::KEYS;
use crate::{DeployError, DeploySize, DeploymentSpec, parser_error};
use mcctl_base::text::Quoted;

/// Limit on the size of a deployment file, in bytes. A file with three lists of 4096 IPv4 addresses
/// has 240 KiB.
pub const FILE_BYTES_MAX: usize = 256 << 10;

/// The format of a deployment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    Toml,
    Yaml,
}

impl FileFormat {
    /// The format for a file extension (without the dot), in upper or lower case.
    pub fn of_extension(ending: &str) -> Option<FileFormat> {
        match ending.to_ascii_lowercase().as_str() {
            "toml" => Some(FileFormat::Toml),
            "yaml" | "yml" => Some(FileFormat::Yaml),
            _ => None,
        }
    }
}

/// A size with an ambiguous unit, and its interpretation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeNote {
    pub key: String,
    pub text: String,
    pub size: DeploySize,
}

impl fmt::Display for SizeNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is interpreted as {}", self.key, Quoted(&self.text), self.size)
    }
}

impl SizeNote {
    /// The note for the value `text` of `key`, if its unit is ambiguous.
    pub fn of(key: &str, text: &str) -> Option<SizeNote> {
        let size = text.parse().ok().filter(|_| DeploySize::is_ambiguous(text))?;
        Some(SizeNote { key: key.to_owned(), text: text.to_owned(), size })
    }
}

/// Parses `text` and applies `sets` (`section.key=value`, where the value is TOML or a bare word).
///
/// # Errors
/// Invalid syntax, an unknown key, a value of the wrong type, or an invalid `--set`.
pub fn parse(text: &str, format: FileFormat, sets: &[String]) -> Result<DeploymentSpec, DeployError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(DeployError::TooLarge { bytes: u64::try_from(text.len()).ok(), most: FILE_BYTES_MAX });
    }
    if format == FileFormat::Yaml {
        limit_brackets(text)?;
    }
    // First parse without the `--set` values: only the original text has line numbers.
    let plain: DeploymentSpec = typed(text, format)?;
    if sets.is_empty() {
        return Ok(plain);
    }
    let mut tree: Value = typed(text, format)?;
    if tree.is_null() {
        tree = Value::Object(Map::new());
    }
    for set in sets {
        apply_set(&mut tree, set)?;
    }
    spec_of(&tree).map_err(|error| parser_error::of_message(&error.to_string(), None, None))
}

/// Maximum nesting depth of brackets in YAML. The parser's run time is quadratic in this depth.
/// Real files have two levels.
const NESTING_MAX: u32 = 64;

/// Rejects deeply nested YAML. Brackets in strings and comments count as well.
fn limit_brackets(text: &str) -> Result<(), DeployError> {
    let mut open = 0u32;
    for (line, number) in text.lines().zip(1..) {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
        }
        if open > NESTING_MAX {
            let what = format!("nested too deeply: more than {NESTING_MAX} open brackets");
            return Err(DeployError::Syntax { line: Some(number), what });
        }
    }
    Ok(())
}

fn typed<T: DeserializeOwned>(text: &str, format: FileFormat) -> Result<T, DeployError> {
    match format {
        FileFormat::Toml => toml::from_str(text).map_err(|error| parser_error::of_toml(text, &error)),
        FileFormat::Yaml => {
            if text.trim().is_empty() {
                return serde_json::from_value(Value::Object(Map::new()))
                    .map_err(|error| parser_error::of_message(&error.to_string(), None, None));
            }
            serde_yaml_ng::from_str(text).map_err(|error| parser_error::of_yaml(text, &error))
        }
    }
}

fn spec_of(tree: &Value) -> Result<DeploymentSpec, serde_json::Error> {
    DeploymentSpec::deserialize(tree)
}

/// Applies `set` to `tree` and checks the type of its value.
fn apply_set(tree: &mut Value, set: &str) -> Result<(), DeployError> {
    let syntax = || DeployError::SetSyntax { text: set.to_owned() };
    let (path, value) = set.split_once('=').ok_or_else(syntax)?;
    let keys: Vec<&str> = path.split('.').collect();
    if keys.iter().any(|key| key.is_empty()) {
        return Err(syntax());
    }
    if !is_key(path) {
        let near = key_paths().min_by_key(|known| strsim::damerau_levenshtein(known, path));
        return Err(DeployError::SetUnknownKey { key: path.to_owned(), near });
    }
    let invalid = |what: String| DeployError::SetValue { text: set.to_owned(), what };
    let (last, sections) = keys.split_last().ok_or_else(syntax)?;
    let mut at = &mut *tree;
    for section in sections {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(map) = at else { return Err(invalid(format!("the parent of {section} is not a section"))) };
        at = map.entry(*section).or_insert_with(|| Value::Object(Map::new()));
    }
    if at.is_null() {
        *at = Value::Object(Map::new());
    }
    let Value::Object(map) = at else { return Err(invalid(format!("the parent of {last} is not a section"))) };
    map.insert((*last).to_owned(), value_of(value));
    spec_of(tree).map(|_| ()).map_err(|error| {
        let message = error.to_string();
        invalid(parser_error::plain(&message).unwrap_or(message))
    })
}

/// Whether `path` names a key, or an entry of a map such as `model.env`.
fn is_key(path: &str) -> bool {
    let is_entry = |map: &str| path.strip_prefix(map).is_some_and(|rest| rest.starts_with('.'));
    MAP_KEYS.iter().any(|map| is_entry(map)) || key_paths().any(|known| known == path)
}

/// Keys whose values are maps with arbitrary keys.
const MAP_KEYS: [&str; 6] = [
    "model.env",
    "serving.prefill.env",
    "serving.decode.env",
    "serving.router.env",
    "kubernetes.node_selector",
    "kubernetes.annotations",
];

/// All keys with their sections, and the sections themselves.
fn key_paths() -> impl Iterator<Item = String> {
    let keys = KEYS.iter().map(|(section, key, _)| match *section {
        "" => (*key).to_owned(),
        section => format!("{section}.{key}"),
    });
    keys.chain(KEYS.iter().map(|(section, ..)| (*section).to_owned()).filter(|section| !section.is_empty()))
}

/// The keys whose values are sizes.
pub(super) const SIZE_KEYS: [&str; 8] = [
    "segment.engines",
    "nodes.segment",
    "nodes.local_buffer",
    "serving.shm",
    "master.memory",
    "kubernetes.master_storage",
    "host.memory",
    "host.hugepages",
];

/// The sizes in `text` and `sets` that have an ambiguous unit. Empty if parsing fails.
pub fn size_notes(text: &str, format: FileFormat, sets: &[String]) -> Vec<SizeNote> {
    let tree: Value = typed(text, format).unwrap_or_default();
    let in_file = |key: &&str| {
        let value = key.split('.').try_fold(&tree, |at, part| at.get(part))?;
        SizeNote::of(key, value.as_str()?)
    };
    let in_set = |set: &String| {
        let (key, value) = set.split_once('=').filter(|(key, _)| SIZE_KEYS.contains(key))?;
        SizeNote::of(key, value.trim_matches('"'))
    };
    let set_keys: Vec<&str> = sets.iter().filter_map(|set| Some(set.split_once('=')?.0)).collect();
    let from_file = SIZE_KEYS.iter().filter(|key| !set_keys.contains(key)).filter_map(in_file);
    from_file.chain(sets.iter().filter_map(in_set)).collect()
}

/// Parses `text` as a TOML value; anything else is a string.
fn value_of(text: &str) -> Value {
    let read: Result<Map<String, Value>, _> = toml::from_str(&format!("v = {text}"));
    match read {
        // JSON turns TOML's nan and inf into null. No key accepts them.
        Ok(mut map) if map.len() == 1 => {
            map.remove("v").filter(|value| !value.is_null()).unwrap_or_else(|| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeploySize, ServingMode};

    fn parse_error(text: &str, format: FileFormat) -> DeployError {
        parse(text, format, &[]).expect_err(text)
    }

    #[test]
    fn toml_and_yaml_have_the_same_schema() {
        let toml =
            "name = \"a\"\n[model]\npath = \"m\"\ntp = 2\n[serving]\nmode = \"pd\"\n[segment]\nengines = \"1GiB\"\n";
        let yaml = "name: a\nmodel: {path: m, tp: 2}\nserving:\n  mode: pd\nsegment:\n  engines: 1GiB\n";
        let read = parse(toml, FileFormat::Toml, &[]).unwrap();
        assert_eq!(read, parse(yaml, FileFormat::Yaml, &[]).unwrap());
        assert_eq!((read.serving.mode, read.segment.engines), (ServingMode::Pd, DeploySize(1 << 30)));
        assert_eq!(parse("", FileFormat::Toml, &[]), parse("", FileFormat::Yaml, &[]));
    }

    #[test]
    fn a_set_number_that_is_not_finite_is_rejected() {
        let text = "[model]\npath = \"m\"\nhicache_size_gb = 16\n";
        for set in ["model.hicache_size_gb=nan", "model.hicache_size_gb=inf", "model.hicache_ratio=nan"] {
            assert!(parse(text, FileFormat::Toml, &[set.to_owned()]).is_err(), "{set}");
        }
    }

    #[test]
    fn an_unknown_key_has_a_line_and_a_suggestion() {
        for (text, format, line, key, near) in [
            ("[model]\npaht = \"m\"\n", FileFormat::Toml, 2, "paht", "path"),
            ("model:\n  path: m\n  page_sise: 64\n", FileFormat::Yaml, 1, "page_sise", "page_size"),
            ("[modell]\n", FileFormat::Toml, 1, "modell", "model"),
        ] {
            match parse_error(text, format) {
                DeployError::UnknownKey { line: found, key: unknown, near: Some(known) } => {
                    assert_eq!((unknown.as_str(), known.as_str()), (key, near));
                    assert!(found.is_some_and(|found| found >= line), "{found:?}");
                }
                error => panic!("{error}"),
            }
        }
    }

    #[test]
    fn syntax_errors_and_duplicate_keys_are_rejected_with_a_line() {
        for (text, format) in [
            ("[model]\ntp = 1\ntp = 2\n", FileFormat::Toml),
            ("a = [\n", FileFormat::Toml),
            ("model: \"x\n", FileFormat::Yaml),
            (&"[".repeat(60_000), FileFormat::Yaml),
        ] {
            let error = parse_error(text, format);
            assert!(
                matches!(error, DeployError::Syntax { line: Some(_), .. }) && !error.to_string().contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_over_the_limit_is_reported_with_its_size() {
        let text = "#".repeat(FILE_BYTES_MAX + 2);
        let bytes = Some(text.len() as u64);
        assert_eq!(parse_error(&text, FileFormat::Toml), DeployError::TooLarge { bytes, most: FILE_BYTES_MAX });
        assert!(parse(&text[2..], FileFormat::Toml, &[]).is_ok());
    }

    #[test]
    fn the_extension_may_be_in_upper_case() {
        assert_eq!(
            ["toml", "TOML", "Yml", "ini"].map(FileFormat::of_extension),
            [Some(FileFormat::Toml), Some(FileFormat::Toml), Some(FileFormat::Yaml), None]
        );
    }

    #[test]
    fn sets_override_values_of_the_file() {
        let sets =
            ["model.tp=8", "model.path=/models/x", "nodes.hosts=[\"a\", \"b\"]", "name=b", "master.ha.replicas=3"];
        let read = parse("name = \"a\"\n", FileFormat::Toml, &sets.map(str::to_owned)).unwrap();
        assert_eq!((read.model.tp, read.model.path.as_str(), read.name.as_str()), (8, "/models/x", "b"));
        assert_eq!((read.nodes.hosts.len(), read.master.ha.unwrap().replicas), (2, 3));
    }

    #[test]
    fn invalid_sets_are_rejected() {
        let set = |set: &str| parse("name = \"a\"\n", FileFormat::Toml, &[set.to_owned()]).expect_err(set);
        for bad in ["model.tp", "=1", "model..tp=1"] {
            assert!(matches!(set(bad), DeployError::SetSyntax { .. }), "{bad}");
        }
        for (bad, near) in [("model.tpp=1", "model.tp"), ("segment.engine=1", "segment.engines"), ("nmae=x", "name")] {
            match set(bad) {
                DeployError::SetUnknownKey { near: Some(known), .. } => assert_eq!(known, near),
                error => panic!("{error}"),
            }
        }
        assert!(matches!(set("name.x=1"), DeployError::SetUnknownKey { .. }));
        for bad in ["model.tp=x", "segment=1", "segment.engines=16xb"] {
            assert!(matches!(set(bad), DeployError::SetValue { .. }), "{bad}");
        }
    }

    #[test]
    fn ambiguous_sizes_of_file_and_sets_are_noted() {
        let text = "[segment]\nengines = \"64gb\"\n[nodes]\nsegment = \"16GiB\"\nlocal_buffer = \"1g\"\n";
        let notes = |sets: &[&str]| -> Vec<String> {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            size_notes(text, FileFormat::Toml, &sets).iter().map(SizeNote::to_string).collect()
        };
        insta::assert_snapshot!(notes(&[]).join("\n"), @r"
            segment.engines: '64gb' is interpreted as 64GiB
            nodes.local_buffer: '1g' is interpreted as 1GiB
            ");
        assert_eq!(notes(&["segment.engines=8GiB", "nodes.local_buffer=0"]), Vec::<String>::new());
        assert_eq!(notes(&["segment.engines=8gb", "nodes.local_buffer=0"]).len(), 1);
    }
}
