//! JSON kept as text. Chat templates print tool definitions as they receive them, so dataset
//! members are sent unchanged and in their original order.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::workload::RowError;

/// Additional members of a request as JSON text, in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(Option<Arc<[Member]>>);

/// A member's name and its value as JSON text.
type Member = (Box<str>, Box<str>);

impl Members {
    /// Creates members from names and values (as JSON text). If a name is repeated, the last value
    /// applies.
    pub fn new(members: impl IntoIterator<Item = (String, String)>) -> Members {
        let mut kept: Vec<Member> = Vec::new();
        for (name, value) in members {
            match kept.iter_mut().find(|(known, _)| **known == *name) {
                Some(known) => known.1 = value.into_boxed_str(),
                None => kept.push((name.into_boxed_str(), value.into_boxed_str())),
            }
        }
        if kept.is_empty() { Members(None) } else { Members(Some(kept.into())) }
    }

    /// Iterates over the names and values (as JSON text).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|members| members.iter()).map(|(name, value)| (&**name, &**value))
    }

    /// Whether there is a member with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.iter().any(|(known, _)| known == name)
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Splits the JSON object `text` into member names and their values as JSON text.
///
/// # Errors
/// `text` is not a JSON object, or is nested too deeply.
pub(super) fn members(text: &str) -> Result<Vec<(String, &str)>, RowError> {
    let members: OrderedMembers<'_> = parsed(text, RowError::NotAnObject)?;
    Ok(members.0)
}

/// Splits the JSON array `text` into its items as JSON text.
///
/// # Errors
/// `text` is not a JSON array, or is nested too deeply.
pub(super) fn items(text: &str) -> Result<Vec<&str>, RowError> {
    let items: Vec<&RawValue> = parsed(text, RowError::NotAnArray)?;
    Ok(items.into_iter().map(RawValue::get).collect())
}

/// Parses `text`. `other` is the error for valid JSON of another type.
fn parsed<'a, T: Deserialize<'a>>(text: &'a str, other: RowError) -> Result<T, RowError> {
    let found = match serde_json::from_str(text) {
        Err(error) if error.is_data() => {
            // The parser stops at the first byte of another type, so the rest is checked here.
            serde_json::from_str::<IgnoredAny>(text)?;
            Err(other)
        }
        found => Ok(found?),
    };
    check_depth(text)?;
    found
}

/// The members of an object in their order, including repeated names.
struct OrderedMembers<'a>(Vec<(String, &'a str)>);

impl<'de> Deserialize<'de> for OrderedMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OrderedMembers<'de>, D::Error> {
        from.deserialize_map(OrderedMembersVisitor)
    }
}

struct OrderedMembersVisitor;

impl<'de> Visitor<'de> for OrderedMembersVisitor {
    type Value = OrderedMembers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<OrderedMembers<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some((name, value)) = entries.next_entry::<String, &RawValue>()? {
            members.push((name, value.get()));
        }
        Ok(OrderedMembers(members))
    }
}

/// Returns `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Maximum nesting depth. Every JSON parser accepts this depth.
const DEPTH_MAX: u32 = 120;

/// Checks that `text` is not nested too deeply. The parser has no limit for JSON that is kept as
/// text.
fn check_depth(text: &str) -> Result<(), RowError> {
    let bytes = text.as_bytes();
    let mut depth = 0_u32;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += string_end(&bytes[at..]).unwrap_or(bytes.len() - at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(RowError::TooDeep(DEPTH_MAX as usize));
        }
        at += 1;
    }
    Ok(())
}

/// Returns the end of the string that starts at the beginning of `bytes`.
fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_keep_their_order_and_text() {
        let text = " {\"b\" : [1, {\"x\":\",\\\"}\"}] ,\"a\":\"ü]\", \"c\\u0041\": null } ";
        let found = members(text).expect("an object");
        let expected = [("b", "[1, {\"x\":\",\\\"}\"}]"), ("a", "\"ü]\""), ("cA", "null")];
        assert_eq!(found.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(), expected);
        assert_eq!(items("[ 1 , [2,3], \"a,b\" ]").expect("an array"), ["1", "[2,3]", "\"a,b\""]);
        assert_eq!((members("{}"), items("[ ]")), (Ok(Vec::new()), Ok(Vec::new())));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500));
        for bad in ["", "[]", "{", "{\"a\":1}}", "7", &deep] {
            assert!(members(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn last_of_two_members_with_one_name_applies() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let made = Members::new([pair("a", "1"), pair("b", "2"), pair("a", "3")]);
        assert_eq!(made.iter().collect::<Vec<_>>(), [("a", "3"), ("b", "2")]);
        assert!(made.contains("b") && !made.contains("c") && Members::new([]).is_empty());
    }

    proptest! {
        #[test]
        fn parts_of_an_object_match_the_json_parser(
            names in proptest::collection::btree_set(".{0,6}", 0..6),
            texts in proptest::collection::vec(".{0,20}", 6),
        ) {
            let object: serde_json::Map<String, Value> = names.into_iter().zip(&texts)
                .map(|(name, text)| (name, serde_json::json!({ "t": [text, {text: 1}] })))
                .collect();
            let text = Value::from(object.clone()).to_string();
            let found = members(&text).expect("an object");
            prop_assert_eq!(found.len(), object.len());
            for (name, value) in found {
                prop_assert_eq!(&serde_json::from_str::<Value>(value).expect("JSON"), &object[&name]);
            }
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,60}") {
            let _ = (members(&text), items(&text));
        }
    }
}
