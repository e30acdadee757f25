//! YAML with keys in insertion order.

use serde_yaml_ng::{Mapping, Value};

/// A document and the comment above it.
pub(crate) type CommentedDocument = (String, Value);

/// A key's value. `None` omits the key.
pub(crate) trait ToYaml {
    fn to_yaml(self) -> Option<Value>;
}

impl ToYaml for Value {
    fn to_yaml(self) -> Option<Value> {
        Some(self)
    }
}

impl ToYaml for &str {
    fn to_yaml(self) -> Option<Value> {
        Some(self.into())
    }
}

impl ToYaml for String {
    fn to_yaml(self) -> Option<Value> {
        Some(self.into())
    }
}

impl ToYaml for &String {
    fn to_yaml(self) -> Option<Value> {
        Some(self.as_str().into())
    }
}

impl ToYaml for bool {
    fn to_yaml(self) -> Option<Value> {
        Some(self.into())
    }
}

impl ToYaml for u16 {
    fn to_yaml(self) -> Option<Value> {
        Some(self.into())
    }
}

impl ToYaml for u32 {
    fn to_yaml(self) -> Option<Value> {
        Some(self.into())
    }
}

impl ToYaml for u64 {
    fn to_yaml(self) -> Option<Value> {
        Some(self.into())
    }
}

impl<T: ToYaml> ToYaml for Option<T> {
    fn to_yaml(self) -> Option<Value> {
        self.and_then(ToYaml::to_yaml)
    }
}

/// A list. If it is empty, the key is omitted.
impl<T: ToYaml> ToYaml for Vec<T> {
    fn to_yaml(self) -> Option<Value> {
        let items: Vec<Value> = self.into_iter().filter_map(ToYaml::to_yaml).collect();
        (!items.is_empty()).then_some(Value::Sequence(items))
    }
}

/// A map of strings. If it is empty, the key is omitted.
impl<K: Into<Value>, V: ToYaml, const N: usize> ToYaml for [(K, V); N] {
    fn to_yaml(self) -> Option<Value> {
        pairs(self)
    }
}

/// A map of `pairs`. `None` if it is empty.
pub(crate) fn pairs<K: Into<Value>, V: ToYaml>(pairs: impl IntoIterator<Item = (K, V)>) -> Option<Value> {
    let map: Mapping = pairs.into_iter().filter_map(|(key, value)| Some((key.into(), value.to_yaml()?))).collect();
    (!map.is_empty()).then_some(Value::Mapping(map))
}

/// A map that omits keys without a value and keeps the order.
macro_rules! map {
    ($($key:literal: $value:expr),* $(,)?) => {{
        #[allow(unused_mut)]
        let mut map = serde_yaml_ng::Mapping::new();
        $(if let Some(value) = $crate::render::yaml::ToYaml::to_yaml($value) {
            map.insert($key.into(), value);
        })*
        serde_yaml_ng::Value::Mapping(map)
    }};
}
pub(crate) use map;

/// A file with several documents, each preceded by its comment.
pub(crate) fn file(head: &str, documents: &[CommentedDocument]) -> String {
    let mut text = format!("# {head}\n");
    for (comment, document) in documents {
        text.push_str("---\n");
        for line in comment.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&serde_yaml_ng::to_string(document).expect("strings, numbers, lists and maps"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_missing_values_are_omitted() {
        let inner = map! { "z": 1u32, "a": true, "none": None::<u32>, "empty": Vec::<String>::new() };
        let document =
            map! { "kind": "K", "apiVersion": "v1", "list": vec!["b", "a"], "inner": inner, "m": [("k", "1")] };
        let text = file("Head.", &[("One.\nTwo.".to_owned(), document)]);
        let expected = "# Head.\n---\n# One.\n# Two.\nkind: K\napiVersion: v1\nlist:\n- b\n- a\ninner:\n  z: 1\n  a: true\nm:\n  k: '1'\n";
        assert_eq!(text, expected);
    }
}
