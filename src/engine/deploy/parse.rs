//! Text to [`Deployment`]: TOML or YAML of one schema, and values that a command line puts in the place of the file's.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::engine::base::text::Quoted;
use crate::engine::deploy::{DeployError, Deployment};

/// The longest deployment file, bytes.
pub const FILE_BYTES_MAX: usize = 64 << 10;

/// The notation of a deployment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

impl Format {
    /// The format of a file with this ending (without the dot).
    pub fn of_ending(ending: &str) -> Option<Format> {
        match ending {
            "toml" => Some(Format::Toml),
            "yaml" | "yml" => Some(Format::Yaml),
            _ => None,
        }
    }
}

/// The deployment that `text` describes, with `sets` (`section.key=value`, the value in TOML's notation or a bare word) in it.
///
/// # Errors
/// The text is not in the format; a key is unknown; a value has another type; a set leads nowhere.
pub fn parse(text: &str, format: Format, sets: &[String]) -> Result<Deployment, DeployError> {
    if text.len() > FILE_BYTES_MAX {
        let what = format!("{} bytes are more than the {FILE_BYTES_MAX} of any deployment file", text.len());
        return Err(DeployError::Syntax { line: None, what });
    }
    if format == Format::Yaml {
        few_brackets(text)?;
    }
    // Read even when it is changed afterwards: only here errors know their lines.
    let plain: Deployment = typed(text, format)?;
    if sets.is_empty() {
        return Ok(plain);
    }
    let mut tree: Value = typed(text, format)?;
    if tree.is_null() {
        tree = Value::Object(Map::new());
    }
    for set in sets {
        put(&mut tree, set)?;
    }
    serde_json::from_value(tree).map_err(|error| {
        let text = sets.join(" ");
        match refused(&error.to_string(), None) {
            DeployError::UnknownKey { key, near, .. } => {
                let near = near.map(|near| format!(", nearest is '{near}'")).unwrap_or_default();
                DeployError::Set { text, what: format!("unknown key {}{near}", Quoted(&key)) }
            }
            error => DeployError::Set { text, what: error.to_string() },
        }
    })
}

/// The most brackets that may be open at one place of YAML: the library's time grows with their square. A file of ours has two.
const NESTING_MAX: u32 = 64;

/// Brackets in texts and comments count, too: nobody leaves so many open.
fn few_brackets(text: &str) -> Result<(), DeployError> {
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
            let what = format!("more than {NESTING_MAX} brackets are open");
            return Err(DeployError::Syntax { line: Some(number), what });
        }
    }
    Ok(())
}

fn typed<T: DeserializeOwned>(text: &str, format: Format) -> Result<T, DeployError> {
    match format {
        Format::Toml => toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            refused(error.message(), line)
        }),
        Format::Yaml => {
            if text.trim().is_empty() {
                return serde_json::from_value(Value::Object(Map::new()))
                    .map_err(|error| refused(&error.to_string(), None));
            }
            serde_yaml_ng::from_str(text).map_err(|error| {
                let said = error.to_string();
                // The place is told apart, the words are without it.
                let words = said.rsplit_once(" at line ").map_or(said.as_str(), |(words, _)| words);
                refused(words, error.location().map(|place| place.line()))
            })
        }
    }
}

/// What a parser says, in our words where it is about a key.
fn refused(said: &str, line: Option<usize>) -> DeployError {
    let key = said.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
    let Some((key, rest)) = key else {
        return DeployError::Syntax { line, what: said.lines().collect::<Vec<_>>().join(" ") };
    };
    let known = rest.split('`').skip(1).step_by(2);
    let near = known.min_by_key(|name| strsim::levenshtein(name, key)).map(str::to_owned);
    DeployError::UnknownKey { line, key: key.to_owned(), near }
}

/// Put `set` into `tree`.
fn put(tree: &mut Value, set: &str) -> Result<(), DeployError> {
    let bad = |what: String| DeployError::Set { text: set.to_owned(), what };
    let (path, value) = set.split_once('=').ok_or_else(|| bad("write KEY=VALUE, e.g. model.tp=8".to_owned()))?;
    let (sections, key) = match path.rsplit_once('.') {
        Some((sections, key)) => (sections.split('.').collect(), key),
        None => (Vec::new(), path),
    };
    if key.is_empty() || sections.iter().any(|section| section.is_empty()) {
        return Err(bad("write KEY=VALUE, e.g. model.tp=8".to_owned()));
    }
    let mut at = tree;
    for section in sections {
        let Value::Object(map) = at else { return Err(bad(format!("{path} leads through a value"))) };
        at = map.entry(section).or_insert_with(|| Value::Object(Map::new()));
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
    }
    let Value::Object(map) = at else { return Err(bad(format!("{path} leads through a value"))) };
    map.insert(key.to_owned(), value_of(value));
    Ok(())
}

/// A value of TOML, or else the text as it stands.
fn value_of(text: &str) -> Value {
    let read: Result<Map<String, Value>, _> = toml::from_str(&format!("v = {text}"));
    match read {
        // What is null in JSON is nan or inf in TOML, which has no null: no number of ours.
        Ok(mut map) if map.len() == 1 => {
            map.remove("v").filter(|value| !value.is_null()).unwrap_or_else(|| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::deploy::{Mode, Size};

    fn says(text: &str, format: Format) -> String {
        parse(text, format, &[]).expect_err(text).to_string()
    }

    #[test]
    fn both_notations_are_one_schema() {
        let toml =
            "name = \"a\"\n[model]\npath = \"m\"\ntp = 2\n[serving]\nmode = \"pd\"\n[segment]\nengines = \"1GiB\"\n";
        let yaml = "name: a\nmodel: {path: m, tp: 2}\nserving:\n  mode: pd\nsegment:\n  engines: 1GiB\n";
        let read = parse(toml, Format::Toml, &[]).unwrap();
        assert_eq!(read, parse(yaml, Format::Yaml, &[]).unwrap());
        assert_eq!((read.serving.mode, read.segment.engines), (Mode::Pd, Size(1 << 30)));
        assert_eq!(parse("", Format::Toml, &[]), parse("", Format::Yaml, &[]));
    }

    #[test]
    fn a_set_number_that_is_none_is_refused_and_does_not_unset_the_files() {
        let text = "[model]\npath = \"m\"\nhicache_size_gb = 16\n";
        for set in ["model.hicache_size_gb=nan", "model.hicache_size_gb=inf", "model.hicache_ratio=nan"] {
            assert!(parse(text, Format::Toml, &[set.to_owned()]).is_err(), "{set}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest() {
        assert_eq!(says("[model]\npaht = \"m\"\n", Format::Toml), "line 2: unknown key 'paht'; nearest is 'path'");
        let yaml = says("model:\n  path: m\n  page_sise: 64\n", Format::Yaml);
        assert!(yaml.contains("unknown key 'page_sise'; nearest is 'page_size'"), "{yaml}");
        assert!(says("[modell]\n", Format::Toml).ends_with("unknown key 'modell'; nearest is 'model'"));
    }

    #[test]
    fn a_value_of_another_type_and_a_key_that_stands_twice_are_refused_with_the_line() {
        for (text, format) in [
            ("[model]\ntp = \"two\"\n", Format::Toml),
            ("[model]\ntp = -1\n", Format::Toml),
            ("[model]\ntp = 1\ntp = 2\n", Format::Toml),
            ("a = [\n", Format::Toml),
            ("model:\n  tp: two\n", Format::Yaml),
            ("model:\n  tp: 1\n  tp: 2\n", Format::Yaml),
            ("model: [\n", Format::Yaml),
            (&"[".repeat(60_000), Format::Yaml),
            ("[segment]\nengines = \"16gb\"\n", Format::Toml),
        ] {
            let said = says(text, format);
            assert!(said.starts_with("line ") && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn a_set_takes_the_place_of_a_value() {
        let sets =
            ["model.tp=8", "model.path=/models/x", "nodes.hosts=[\"a\", \"b\"]", "name=b", "master.ha.replicas=3"];
        let read = parse("name = \"a\"\n", Format::Toml, &sets.map(str::to_owned)).unwrap();
        assert_eq!((read.model.tp, read.model.path.as_str(), read.name.as_str()), (8, "/models/x", "b"));
        assert_eq!((read.nodes.hosts.len(), read.master.ha.unwrap().replicas), (2, 3));
        for bad in ["model.tp", "=1", "model..tp=1", "name.x=1", "model.tpp=1", "model.tp=x"] {
            let said = parse("name = \"a\"\n", Format::Toml, &[bad.to_owned()]).expect_err(bad).to_string();
            assert!(said.contains("sets nothing"), "{said}");
        }
    }
}
