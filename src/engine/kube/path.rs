//! Where in a document something stands: `spec.roles[1].standalonePattern.template`.

use std::fmt;

use serde_json::Value;

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Into a map, by key.
    Key(String),
    /// Into a list, counted from zero.
    Index(usize),
}

/// Steps from the document's root; none: the document itself. A key that is not of letters, digits, `-` and `_` is shown as `["a/b"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Vec<Step>);

impl Path {
    /// The document itself.
    pub fn root() -> Path {
        Path::default()
    }

    /// Below this, at `key`.
    pub fn key(&self, key: &str) -> Path {
        self.with(Step::Key(key.to_owned()))
    }

    /// Below this, at the element `index`.
    pub fn index(&self, index: usize) -> Path {
        self.with(Step::Index(index))
    }

    /// `count` steps up; the root when there are not that many.
    pub fn up(&self, count: usize) -> Path {
        Path(self.0[..self.0.len().saturating_sub(count)].to_vec())
    }

    /// The steps, from the root.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Does a key of this name stand on the way?
    pub fn passes(&self, key: &str) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Key(k) if k == key))
    }

    /// What stands there in `document`.
    pub fn find<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(document, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.get(index),
        })
    }

    /// Reads what `Display` wrote; `None` where the text is not such a path.
    pub fn parse(text: &str) -> Option<Path> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                if inner.starts_with('"') {
                    let mut read = serde_json::Deserializer::from_str(inner).into_iter::<String>();
                    steps.push(Step::Key(read.next()?.ok()?));
                    rest = inner.get(read.byte_offset()..)?.strip_prefix(']')?;
                } else {
                    let (index, after) = inner.split_once(']')?;
                    steps.push(Step::Index(index.parse().ok()?));
                    rest = after;
                }
            } else {
                rest = if steps.is_empty() { rest } else { rest.strip_prefix('.')? };
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                if end == 0 {
                    return None;
                }
                steps.push(Step::Key(rest[..end].to_owned()));
                rest = &rest[end..];
            }
        }
        Some(Path(steps))
    }

    fn with(&self, step: Step) -> Path {
        let mut steps = Vec::with_capacity(self.0.len() + 1);
        steps.extend_from_slice(&self.0);
        steps.push(step);
        Path(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if plain(key) && i == 0 => f.write_str(key)?,
                Step::Key(key) if plain(key) => write!(f, ".{key}")?,
                Step::Key(key) => write!(f, "[{}]", Value::from(key.as_str()))?,
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
    fn a_path_reads_as_people_write_it() {
        let path = Path::root().key("spec").key("roles").index(1).key("labels").key("a.b/c").key("d");
        assert_eq!(path.to_string(), "spec.roles[1].labels[\"a.b/c\"].d");
        assert_eq!(Path::root().to_string(), "");
        assert_eq!(path.up(3).to_string(), "spec.roles[1]");
        let document = json!({"spec": {"roles": [0, {"labels": {"a.b/c": {"d": 7}}}]}});
        assert_eq!(path.find(&document), Some(&json!(7)));
        assert_eq!(path.key("e").find(&document), None);
        for bad in ["a..b", ".a", "a[", "a[x]", "a[\"b\"", "a.", "[\"b\"x]"] {
            assert_eq!(Path::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_path_is_read_back(steps in prop::collection::vec((any::<String>(), any::<usize>(), any::<bool>()), 0..6)) {
            let path = steps.iter().fold(Path::root(), |path, (key, index, list)| if *list { path.index(*index) } else { path.key(key) });
            prop_assert_eq!(Path::parse(&path.to_string()), Some(path));
        }
    }
}
