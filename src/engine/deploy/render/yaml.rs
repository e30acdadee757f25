//! YAML whose keys stand in the order in which a person would write them.

use serde_yaml_ng::{Mapping, Value};

/// What can be the value of a key; `None` leaves the key out.
pub(crate) trait Spell {
    fn spell(self) -> Option<Value>;
}

impl Spell for Value {
    fn spell(self) -> Option<Value> {
        Some(self)
    }
}

impl Spell for &str {
    fn spell(self) -> Option<Value> {
        Some(self.into())
    }
}

impl Spell for String {
    fn spell(self) -> Option<Value> {
        Some(self.into())
    }
}

impl Spell for &String {
    fn spell(self) -> Option<Value> {
        Some(self.as_str().into())
    }
}

impl Spell for bool {
    fn spell(self) -> Option<Value> {
        Some(self.into())
    }
}

impl Spell for u16 {
    fn spell(self) -> Option<Value> {
        Some(self.into())
    }
}

impl Spell for u32 {
    fn spell(self) -> Option<Value> {
        Some(self.into())
    }
}

impl Spell for u64 {
    fn spell(self) -> Option<Value> {
        Some(self.into())
    }
}

impl<T: Spell> Spell for Option<T> {
    fn spell(self) -> Option<Value> {
        self.and_then(Spell::spell)
    }
}

/// A list; an empty one is left out.
impl<T: Spell> Spell for Vec<T> {
    fn spell(self) -> Option<Value> {
        let items: Vec<Value> = self.into_iter().filter_map(Spell::spell).collect();
        (!items.is_empty()).then_some(Value::Sequence(items))
    }
}

/// A map of texts; an empty one is left out.
impl<K: Into<Value>, V: Spell, const N: usize> Spell for [(K, V); N] {
    fn spell(self) -> Option<Value> {
        pairs(self)
    }
}

/// A map of whatever pairs there are; none leaves it out.
pub(crate) fn pairs<K: Into<Value>, V: Spell>(pairs: impl IntoIterator<Item = (K, V)>) -> Option<Value> {
    let map: Mapping = pairs.into_iter().filter_map(|(key, value)| Some((key.into(), value.spell()?))).collect();
    (!map.is_empty()).then_some(Value::Mapping(map))
}

/// A map of the keys whose values are there, in this order.
macro_rules! map {
    ($($key:literal: $value:expr),* $(,)?) => {{
        #[allow(unused_mut)]
        let mut map = serde_yaml_ng::Mapping::new();
        $(if let Some(value) = $crate::engine::deploy::render::yaml::Spell::spell($value) {
            map.insert($key.into(), value);
        })*
        serde_yaml_ng::Value::Mapping(map)
    }};
}
pub(crate) use map;

/// Documents of one file, each below its comment.
pub(crate) fn file(head: &str, documents: &[(String, Value)]) -> String {
    let mut text = format!("# {head}\n");
    for (comment, document) in documents {
        text.push_str("---\n");
        for line in comment.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&serde_yaml_ng::to_string(document).expect("texts, numbers, lists and maps"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_what_is_not_there_is_left_out() {
        let inner = map! { "z": 1u32, "a": true, "none": None::<u32>, "empty": Vec::<String>::new() };
        let document =
            map! { "kind": "K", "apiVersion": "v1", "list": vec!["b", "a"], "inner": inner, "m": [("k", "1")] };
        let text = file("Head.", &[("One.\nTwo.".to_owned(), document)]);
        let expected = "# Head.\n---\n# One.\n# Two.\nkind: K\napiVersion: v1\nlist:\n- b\n- a\ninner:\n  z: 1\n  a: true\nm:\n  k: '1'\n";
        assert_eq!(text, expected);
    }
}
