//! Paths of fields in a document: `spec.roles[1].standalonePattern.template`.

use std::fmt;

use serde_json::Value;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldStep {
    /// A key of an object.
    Key(String),
    /// An index in a list, from 0.
    Index(usize),
}

/// Steps from the root of the document. An empty path refers to the document itself. Keys with
/// characters other than letters, digits, `-` and `_` are shown as `["a/b"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<FieldStep>);

impl FieldPath {
    /// The path of the document itself.
    pub fn root() -> FieldPath {
        FieldPath::default()
    }

    /// The child at `key`.
    pub fn key(&self, key: &str) -> FieldPath {
        self.with(FieldStep::Key(key.to_owned()))
    }

    /// The list item at `index`.
    pub fn index(&self, index: usize) -> FieldPath {
        self.with(FieldStep::Index(index))
    }

    /// The ancestor `count` levels up, or the root.
    pub fn up(&self, count: usize) -> FieldPath {
        FieldPath(self.0[..self.0.len().saturating_sub(count)].to_vec())
    }

    /// The steps from the root.
    pub fn steps(&self) -> &[FieldStep] {
        &self.0
    }

    /// Whether the path contains the key `key`.
    pub fn passes(&self, key: &str) -> bool {
        self.0.iter().any(|step| matches!(step, FieldStep::Key(k) if k == key))
    }

    /// The value at this path in `document`.
    pub fn find<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(document, |value, step| match step {
            FieldStep::Key(key) => value.get(key),
            FieldStep::Index(index) => value.get(index),
        })
    }

    /// Parses the output of `Display`. `None` if the string is not a path.
    pub fn parse(text: &str) -> Option<FieldPath> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                if inner.starts_with('"') {
                    let mut read = serde_json::Deserializer::from_str(inner).into_iter::<String>();
                    steps.push(FieldStep::Key(read.next()?.ok()?));
                    rest = inner.get(read.byte_offset()..)?.strip_prefix(']')?;
                } else {
                    let (index, after) = inner.split_once(']')?;
                    steps.push(FieldStep::Index(index.parse().ok()?));
                    rest = after;
                }
            } else {
                rest = if steps.is_empty() { rest } else { rest.strip_prefix('.')? };
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                if end == 0 {
                    return None;
                }
                steps.push(FieldStep::Key(rest[..end].to_owned()));
                rest = &rest[end..];
            }
        }
        Some(FieldPath(steps))
    }

    fn with(&self, step: FieldStep) -> FieldPath {
        let mut steps = Vec::with_capacity(self.0.len() + 1);
        steps.extend_from_slice(&self.0);
        steps.push(step);
        FieldPath(steps)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                FieldStep::Index(index) => write!(f, "[{index}]")?,
                FieldStep::Key(key) if plain(key) && i == 0 => f.write_str(key)?,
                FieldStep::Key(key) if plain(key) => write!(f, ".{key}")?,
                FieldStep::Key(key) => write!(f, "[{}]", Value::from(key.as_str()))?,
            }
        }
        Ok(())
    }
}

fn plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_shown_in_javascript_notation() {
        let path = FieldPath::root().key("spec").key("roles").index(1).key("labels").key("a.b/c").key("d");
        assert_eq!(path.to_string(), "spec.roles[1].labels[\"a.b/c\"].d");
        assert_eq!(FieldPath::root().to_string(), "");
        assert_eq!(path.up(3).to_string(), "spec.roles[1]");
        let document = json!({"spec": {"roles": [0, {"labels": {"a.b/c": {"d": 7}}}]}});
        assert_eq!(path.find(&document), Some(&json!(7)));
        assert_eq!(path.key("e").find(&document), None);
        for bad in ["a..b", ".a", "a[", "a[x]", "a[\"b\"", "a.", "[\"b\"x]"] {
            assert_eq!(FieldPath::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn displayed_paths_parse_back(steps in prop::collection::vec((any::<String>(), any::<usize>(), any::<bool>()), 0..6)) {
            let path = steps.iter().fold(FieldPath::root(), |path, (key, index, list)| if *list { path.index(*index) } else { path.key(key) });
            prop_assert_eq!(FieldPath::parse(&path.to_string()), Some(path));
        }
    }
}
