//! YAML and JSON as a tree in which every value carries its line number.
//!
//! `saphyr` parses the YAML. This module limits size, nesting depth and node count, and converts
//! the parser's output into [`YamlNode`]s. A node keeps a scalar as it was written: `1e9` stays
//! `1e9`.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::{Map, Number, Value as Json};

use crate::kube::path::{FieldPath, FieldStep};
use crate::lint::source::ReadError;
use mcctl_base::json_comments::without_comments;

/// Limit on the size of one file, in bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;
/// Limit on indentation, in columns. The nesting depth of a block is at most twice this limit.
const INDENT_MAX: usize = 400;
/// Limit on the nesting depth of the tree.
const DEPTH_MAX: usize = 200;

/// A value and the line on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode {
    pub line: u32,
    pub value: YamlValue,
}

/// The content of a [`YamlNode`].
#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue {
    /// An empty value, `null` or `~`.
    Null,
    Scalar(YamlScalar),
    List(Vec<YamlNode>),
    /// A mapping, in source order.
    Map(Vec<YamlEntry>),
}

/// A scalar as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlScalar {
    pub text: String,
    /// The YAML type of an unquoted scalar.
    pub kind: ScalarKind,
    /// The line of the first character of `text`. For a block scalar, this is the line below the
    /// `|`.
    pub first_line: u32,
}

/// The type that YAML assigns to an unquoted scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// A string, quoted or not.
    Text,
    /// `true` or `false`.
    Bool(bool),
    Whole(i64),
    /// A number with a fraction or an exponent.
    Float,
}

/// A key of a mapping and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlEntry {
    pub key: String,
    pub line: u32,
    pub value: YamlNode,
}

impl YamlNode {
    /// Parses the documents in a YAML string. Empty documents are dropped.
    ///
    /// # Errors
    /// The string is not valid YAML, is too large, or is nested too deeply.
    pub fn yaml(text: &str) -> Result<Vec<YamlNode>, ReadError> {
        check_limits(text)?;
        let documents = MarkedYaml::load_from_iter(text.chars()).map_err(|error| {
            let line = u32::try_from(error.marker().line()).unwrap_or(u32::MAX);
            ReadError::Yaml { line, reason: error.info().to_owned() }
        })?;
        let chars: Vec<char> = text.chars().collect();
        let mut out = Vec::with_capacity(documents.len());
        for document in &documents {
            let node = convert(document, &chars, 0)?;
            if node.value != YamlValue::Null {
                out.push(node);
            }
        }
        Ok(out)
    }

    /// Parses a JSON document. C comments are allowed if `comments` is set.
    ///
    /// # Errors
    /// The string is not valid JSON.
    pub fn json(text: &str, comments: bool) -> Result<YamlNode, ReadError> {
        let blanked = if comments { without_comments(text) } else { text.to_owned() };
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&blanked) {
            let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
            return Err(ReadError::Json { line, reason: error.to_string() });
        }
        // JSON is a subset of YAML, except for tabs between values.
        let spaced = blanked.replace('\t', " ");
        let mut documents = YamlNode::yaml(&spaced)?;
        Ok(if documents.is_empty() { YamlNode { line: 1, value: YamlValue::Null } } else { documents.swap_remove(0) })
    }

    /// The value of `key`, if this is a mapping that contains it.
    pub fn get(&self, key: &str) -> Option<&YamlNode> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The entry for `key`.
    pub fn entry(&self, key: &str) -> Option<&YamlEntry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The value at the path `keys`.
    pub fn path(&self, keys: &[&str]) -> Option<&YamlNode> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The entries of a mapping. Empty for any other value.
    pub fn entries(&self) -> &[YamlEntry] {
        match &self.value {
            YamlValue::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a sequence. Empty for any other value.
    pub fn items(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            _ => &[],
        }
    }

    /// The string, if this is a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar(text) => Some(&text.text),
            _ => None,
        }
    }

    /// The value as a whole number, quoted or not.
    pub fn whole(&self) -> Option<i64> {
        self.text()?.trim().parse().ok()
    }

    /// The value, if this is an unquoted boolean.
    pub fn boolean(&self) -> Option<bool> {
        match &self.value {
            YamlValue::Scalar(YamlScalar { kind: ScalarKind::Bool(value), .. }) => Some(*value),
            _ => None,
        }
    }

    /// The value as JSON, without line numbers.
    pub fn to_json(&self) -> Json {
        match &self.value {
            YamlValue::Null => Json::Null,
            YamlValue::Scalar(text) => match text.kind {
                ScalarKind::Text => Json::String(text.text.clone()),
                ScalarKind::Bool(value) => Json::Bool(value),
                ScalarKind::Whole(value) => Json::Number(value.into()),
                ScalarKind::Float => {
                    let number = text.text.parse().ok().and_then(Number::from_f64);
                    number.map_or_else(|| Json::String(text.text.clone()), Json::Number)
                }
            },
            YamlValue::List(items) => Json::Array(items.iter().map(YamlNode::to_json).collect()),
            YamlValue::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json()));
                Json::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// The value at `path` (`spec.roles[1].name`), if it exists.
    pub fn at(&self, path: &str) -> Option<&YamlNode> {
        FieldPath::parse(path)?.steps().iter().try_fold(self, |node, step| match step {
            FieldStep::Index(index) => node.items().get(*index),
            FieldStep::Key(key) => node.get(key),
        })
    }

    /// The line of the value at `path` (`spec.roles[1].name`), or of its deepest existing ancestor.
    pub fn line_of(&self, path: &str) -> u32 {
        let mut node = self;
        let mut line = self.line;
        for step in FieldPath::parse(path).iter().flat_map(|path| path.steps()) {
            let next = match step {
                FieldStep::Index(index) => node.items().get(*index).map(|item| (item, item.line)),
                FieldStep::Key(key) => node.entry(key).map(|entry| (&entry.value, entry.line)),
            };
            let Some(found) = next else { break };
            (node, line) = found;
        }
        line
    }
}

/// Rejects input that cannot be a manifest before it is parsed: the parser recurses into nested
/// values.
fn check_limits(text: &str) -> Result<(), ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge { most: FILE_BYTES_MAX });
    }
    for (line, number) in text.lines().zip(1u32..) {
        let mut rest = line;
        let mut steps = 0;
        loop {
            let trimmed = rest.trim_start_matches([' ', '\t']);
            steps += rest.len() - trimmed.len();
            let word = trimmed.split([' ', '\t']).next().unwrap_or_default();
            if !(matches!(word, "-" | "?" | ":") || word.starts_with(['!', '&'])) {
                break;
            }
            steps += 2;
            rest = &trimmed[word.len()..];
        }
        let blank = rest.trim().is_empty();
        if steps > INDENT_MAX && !(blank && steps == line.len()) {
            return Err(ReadError::TooDeep { line: number });
        }
    }
    Ok(())
}

fn convert(yaml: &MarkedYaml<'_>, source: &[char], depth: usize) -> Result<YamlNode, ReadError> {
    let line = u32::try_from(yaml.span.start.line()).unwrap_or(u32::MAX).max(1);
    if depth > DEPTH_MAX {
        return Err(ReadError::TooDeep { line });
    }
    let value = match &yaml.data {
        YamlData::Value(Scalar::Null) | YamlData::BadValue | YamlData::Alias(_) => YamlValue::Null,
        YamlData::Value(scalar) => {
            let start = yaml.span.start.index();
            let raw = || source.get(start..yaml.span.end.index()).map(|chars| chars.iter().collect::<String>());
            let raw = |shown: String| raw().map(|raw| raw.trim().to_owned()).filter(|r| !r.is_empty()).unwrap_or(shown);
            let (text, kind) = match scalar {
                Scalar::Boolean(value) => (raw(value.to_string()), ScalarKind::Bool(*value)),
                Scalar::Integer(value) => (raw(value.to_string()), ScalarKind::Whole(*value)),
                Scalar::FloatingPoint(value) => (raw(value.to_string()), ScalarKind::Float),
                Scalar::String(text) => (text.to_string(), ScalarKind::Text),
                Scalar::Null => (String::new(), ScalarKind::Text),
            };
            let block = matches!(source.get(start), Some('|' | '>'));
            YamlValue::Scalar(YamlScalar { text, kind, first_line: if block { line + 1 } else { line } })
        }
        YamlData::Sequence(items) => {
            YamlValue::List(items.iter().map(|item| convert(item, source, depth + 1)).collect::<Result<_, _>>()?)
        }
        YamlData::Mapping(map) => {
            let mut entries = Vec::new();
            let mut merged = Vec::new();
            for (key, value) in map {
                let line = u32::try_from(key.span.start.line()).unwrap_or(u32::MAX).max(1);
                let key = match convert(key, source, depth + 1)?.value {
                    YamlValue::Scalar(text) => text.text,
                    YamlValue::Null => "null".to_owned(),
                    _ => continue,
                };
                let value = convert(value, source, depth + 1)?;
                if key != "<<" {
                    entries.push(YamlEntry { key, line, value });
                } else if value.items().is_empty() {
                    merged.extend(value.entries().to_vec());
                } else {
                    merged.extend(value.items().iter().flat_map(|item| item.entries().to_vec()));
                }
            }
            for entry in merged {
                if !entries.iter().any(|known: &YamlEntry| known.key == entry.key) {
                    entries.push(entry);
                }
            }
            YamlValue::Map(entries)
        }
        YamlData::Tagged(_, inner) => return convert(inner, source, depth + 1),
        YamlData::Representation(text, ..) => {
            YamlValue::Scalar(YamlScalar { text: text.to_string(), kind: ScalarKind::Text, first_line: line })
        }
    };
    Ok(YamlNode { line, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> YamlNode {
        YamlNode::yaml(text).expect("YAML").swap_remove(0)
    }

    #[test]
    fn values_carry_their_line_and_keep_their_spelling() {
        let node = one("a:\n  b: 1e9\n  c: [x,\n      0x10]\n  d: 'true'\n  e: yes\n");
        assert_eq!(node.path(&["a", "b"]).map(|n| (n.text(), n.line)), Some((Some("1e9"), 2)));
        assert_eq!(node.path(&["a", "c"]).expect("c").items()[1].line, 4);
        assert_eq!(node.path(&["a", "c"]).expect("c").items()[1].text(), Some("0x10"));
        assert_eq!(node.path(&["a", "d"]).and_then(YamlNode::boolean), None);
        assert_eq!(node.line_of("a.c[1]"), 4);
        assert_eq!(node.line_of("a.zzz.y"), 1);
    }

    #[test]
    fn block_scalar_text_starts_on_the_line_below_its_bar() {
        let node = one("run:\n  - sh\n  - |\n    one\n    two\n  - \"x y\"\n");
        let YamlValue::Scalar(text) = &node.get("run").expect("run").items()[1].value else {
            panic!("expected a scalar")
        };
        assert_eq!((text.text.as_str(), text.first_line), ("one\ntwo\n", 4));
        let YamlValue::Scalar(text) = &node.get("run").expect("run").items()[2].value else {
            panic!("expected a scalar")
        };
        assert_eq!((text.text.as_str(), text.first_line), ("x y", 6));
    }

    #[test]
    fn merge_keys_are_resolved_and_explicit_keys_win() {
        let node = one("base: &b\n  x: 1\n  y: 2\nuse:\n  <<: *b\n  y: 3\n");
        let used = node.get("use").expect("use");
        assert_eq!(used.get("x").and_then(YamlNode::text), Some("1"));
        assert_eq!(used.get("y").and_then(YamlNode::text), Some("3"));
        assert_eq!(used.entry("x").map(|e| e.line), Some(2));
    }

    #[test]
    fn syntax_errors_carry_a_line() {
        assert!(matches!(YamlNode::yaml("a: 1\nb: [1\n"), Err(ReadError::Yaml { .. })));
        assert!(matches!(YamlNode::json("{\n\"a\": 1,,\n}", false), Err(ReadError::Json { line: 2, .. })));
    }

    #[test]
    fn json_keeps_line_numbers_past_comments_and_tabs() {
        let node =
            YamlNode::json("{\n\t// a: 1\n\t/* b\n\t*/ \"c\": \"x//y\",\n\t\"d\": [1,\t2]\n}\n", true).expect("JSON");
        assert_eq!(node.entry("c").map(|e| (e.value.text(), e.line)), Some((Some("x//y"), 4)));
        assert_eq!(node.entry("d").map(|e| (e.value.items().len(), e.line)), Some((2, 5)));
    }

    #[test]
    fn excessive_nesting_and_alias_expansion_are_rejected() {
        assert!(matches!(YamlNode::yaml(&"- ".repeat(100_000)), Err(ReadError::TooDeep { line: 1 })));
        let stairs: String = (0..1000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        assert!(matches!(YamlNode::yaml(&stairs), Err(ReadError::TooDeep { .. })));
        let deep = YamlNode::yaml(&"[".repeat(100_000));
        assert!(deep.is_err(), "{:?}", deep.map(|nodes| nodes.len()));
        assert!(YamlNode::yaml(&format!("a: {}1{}", "[".repeat(200), "]".repeat(200))).is_err());
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for n in 1..12 {
            let last = format!("*a{},", n - 1).repeat(9);
            laughs.push_str(&format!("a{n}: &a{n} [{last}]\n"));
        }
        assert!(YamlNode::yaml(&laughs).is_err());
    }
}
