//! Checks a JSON value against a Rust type: finds all unknown keys and values of the wrong type,
//! and lists all structs visited.
//!
//! This custom `Deserializer` provides what serde's derived path does not: the path of each
//! mistake, all mistakes instead of only the first, and the valid keys where an unknown key occurs
//! (k8s-openapi passes them to `deserialize_struct`). After an error, the value at its path is
//! skipped and the document is read again, at most `MISTAKES_MAX` times.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::{Map, Value};

use super::path::FieldPath;
use super::{Violation, ViolationKind};
use mcctl_base::text::Quoted;

/// Maximum number of wrong types reported per document.
const MISTAKES_MAX: usize = 64;

/// A struct visited during the check, by the name of its type.
#[derive(Clone, Debug)]
pub(super) struct VisitedStruct {
    /// For example `PodSpec`, `Container`, `Quantity`.
    pub name: &'static str,
    pub at: FieldPath,
}

/// Checks `value`, located at `at`, against `T`. Appends to `violations` and returns the visited
/// structs.
pub(super) fn check_type<T: for<'de> Deserialize<'de>>(
    value: &Value,
    at: &FieldPath,
    violations: &mut Vec<Violation>,
) -> Vec<VisitedStruct> {
    let mut left_out = BTreeSet::new();
    loop {
        let notes = RefCell::new(WalkNotes { left_out, ..WalkNotes::default() });
        let read = T::deserialize(ValueWalker { value, at: at.clone(), notes: &notes });
        let mut notes = notes.into_inner();
        if let (Err(_), Some((path, what))) = (read, notes.failed.take()) {
            let last = path == *at || notes.left_out.len() + 1 >= MISTAKES_MAX;
            violations.push(Violation::new(&path, ViolationKind::WrongType, what));
            left_out = notes.left_out;
            left_out.insert(path);
            if !last {
                continue;
            }
        }
        violations.append(&mut notes.unknown);
        return notes.visited;
    }
}

/// The results of one pass.
#[derive(Default)]
struct WalkNotes {
    left_out: BTreeSet<FieldPath>,
    unknown: Vec<Violation>,
    visited: Vec<VisitedStruct>,
    failed: Option<(FieldPath, String)>,
}

/// The compiler generates the generic functions once for each type of Kubernetes, about 300 times.
/// What does not depend on the type is therefore in functions of its own.
struct ValueWalker<'v, 'n> {
    value: &'v Value,
    at: FieldPath,
    notes: &'n RefCell<WalkNotes>,
}

impl<'v, 'n> ValueWalker<'v, 'n> {
    /// Records the first error, which is the innermost.
    fn record_error(&self, error: &TypeError) {
        let mut notes = self.notes.borrow_mut();
        notes.failed.get_or_insert_with(|| (self.at.clone(), error.0.clone()));
    }

    /// Records that the value is not what the visitor expects.
    fn wrong_type(&self, wanted: &dyn de::Expected) -> TypeError {
        let found = match self.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(b) => Unexpected::Bool(*b),
            Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(n), _, _) => Unexpected::Signed(n),
                (_, Some(n), _) => Unexpected::Unsigned(n),
                (_, _, n) => Unexpected::Float(n.unwrap_or(f64::NAN)),
            },
            Value::String(s) => Unexpected::Str(s),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        };
        let error = de::Error::invalid_type(found, wanted);
        self.record_error(&error);
        error
    }

    fn visit_struct(&self, name: &'static str) {
        self.notes.borrow_mut().visited.push(VisitedStruct { name, at: self.at.clone() });
    }

    fn children<'a>(
        &'a self,
        map: &'v Map<String, Value>,
        known: Option<&'static [&'static str]>,
    ) -> EntryAccess<'v, 'n, 'a> {
        EntryAccess { entries: map.iter(), value: None, known, parent: self }
    }

    fn any<V: Visitor<'v>>(&self, visitor: V) -> Result<V::Value, TypeError> {
        let read = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(n), _, _) => visitor.visit_i64(n),
                (_, Some(n), _) => visitor.visit_u64(n),
                (_, _, n) => visitor.visit_f64(n.unwrap_or(f64::NAN)),
            },
            Value::String(s) => visitor.visit_borrowed_str(s),
            Value::Array(items) => visitor.visit_seq(ItemAccess { items: items.iter().enumerate(), parent: self }),
            Value::Object(map) => visitor.visit_map(self.children(map, None)),
        };
        read.inspect_err(|error| self.record_error(error))
    }
}

impl<'v> de::Deserializer<'v> for ValueWalker<'v, '_> {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.any(visitor)
    }

    fn deserialize_option<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'v>>(self, name: &'static str, visitor: V) -> Result<V::Value, TypeError> {
        self.visit_struct(name);
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'v>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        // Derived implementations would accept a list in place of a struct.
        let Value::Object(map) = self.value else { return Err(self.wrong_type(&visitor)) };
        self.visit_struct(name);
        visitor.visit_map(self.children(map, Some(fields))).inspect_err(|error| self.record_error(error))
    }

    fn deserialize_enum<V: Visitor<'v>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        let Value::String(name) = self.value else { return self.any(visitor) };
        visitor.visit_enum(name.as_str().into_deserializer()).inspect_err(|error| self.record_error(error))
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'v>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The items of a list, without the skipped ones.
struct ItemAccess<'v, 'n, 'a> {
    items: std::iter::Enumerate<std::slice::Iter<'v, Value>>,
    parent: &'a ValueWalker<'v, 'n>,
}

impl<'v, 'n> ItemAccess<'v, 'n, '_> {
    fn next_item(&mut self) -> Option<ValueWalker<'v, 'n>> {
        let ValueWalker { at, notes, .. } = self.parent;
        let mut items = self.items.by_ref().map(|(index, value)| ValueWalker { value, at: at.index(index), notes });
        items.find(|item| !notes.borrow().left_out.contains(&item.at))
    }
}

impl<'v> SeqAccess<'v> for ItemAccess<'v, '_, '_> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'v>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeError> {
        self.next_item().map(|item| seed.deserialize(item)).transpose()
    }
}

/// The entries of an object, without the skipped ones. `known` is set for a struct.
struct EntryAccess<'v, 'n, 'a> {
    entries: serde_json::map::Iter<'v>,
    /// The value of the last key.
    value: Option<ValueWalker<'v, 'n>>,
    known: Option<&'static [&'static str]>,
    parent: &'a ValueWalker<'v, 'n>,
}

impl<'v> EntryAccess<'v, '_, '_> {
    /// Moves on to the next entry, and returns its key.
    fn next_key(&mut self) -> Option<&'v str> {
        for (key, value) in self.entries.by_ref() {
            let at = self.parent.at.key(key);
            if self.parent.notes.borrow().left_out.contains(&at) {
                continue;
            }
            if let Some(known) = self.known
                && !known.contains(&key.as_str())
            {
                let unknown = Violation::new(&at, ViolationKind::UnknownField, unknown(key, known));
                self.parent.notes.borrow_mut().unknown.push(unknown);
                continue;
            }
            self.value = Some(ValueWalker { value, at, notes: self.parent.notes });
            return Some(key);
        }
        None
    }
}

impl<'v> MapAccess<'v> for EntryAccess<'v, '_, '_> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'v>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeError> {
        let key = self.next_key().map(de::value::BorrowedStrDeserializer::new);
        key.map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'v>>(&mut self, seed: V) -> Result<V::Value, TypeError> {
        seed.deserialize(self.value.take().expect("serde requests a value after its key"))
    }
}

/// The message for a key that is not in `known`.
fn unknown(key: &str, known: &[&str]) -> String {
    let lower = key.to_ascii_lowercase();
    let nearest = known.iter().map(|k| (strsim::osa_distance(&lower, &k.to_ascii_lowercase()), k)).min();
    match nearest {
        Some((far, name)) if far <= 2.max(key.chars().count() / 3) => {
            format!("unknown field {}; did you mean '{name}'?", Quoted(key))
        }
        _ => format!("unknown field {}", Quoted(key)),
    }
}

/// Why a value does not match a type.
#[derive(Debug)]
struct TypeError(String);

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TypeError {}

impl de::Error for TypeError {
    fn custom<T: fmt::Display>(message: T) -> TypeError {
        TypeError(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn de::Expected) -> TypeError {
        TypeError(format!("expected {}, found {}", expected(wanted), shown(found)))
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn de::Expected) -> TypeError {
        TypeError::invalid_type(found, wanted)
    }
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("the string {}", Quoted(text)),
        Unexpected::Bool(b) => format!("the boolean {b}"),
        Unexpected::Signed(n) => format!("the number {n}"),
        Unexpected::Unsigned(n) => format!("the number {n}"),
        Unexpected::Float(n) => format!("the number {n}"),
        Unexpected::Unit => "null".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    }
}

fn expected(wanted: &dyn de::Expected) -> String {
    let name = wanted.to_string();
    match name.as_str() {
        "i32" | "i64" | "u16" | "u32" | "u64" => "an integer".to_owned(),
        "f64" => "a number".to_owned(),
        "a string" | "string" => "a string (quote values that YAML would parse as a number or a boolean)".to_owned(),
        "a sequence" => "a list".to_owned(),
        "IntOrString" => "an integer or a string".to_owned(),
        _ => match name.strip_prefix("struct ") {
            Some(structure) => format!("an object ({structure})"),
            None if name.starts_with(|c: char| c.is_ascii_uppercase()) => format!("an object ({name})"),
            None => name,
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::json;

    use super::*;

    fn violations(value: &Value) -> Vec<(ViolationKind, String)> {
        let mut violations = Vec::new();
        check_type::<PodSpec>(value, &FieldPath::root().key("spec"), &mut violations);
        violations.into_iter().map(|violation| (violation.kind, violation.path)).collect()
    }

    #[test]
    fn all_mistakes_are_reported_with_their_paths() {
        let spec = json!({
            "hostNetwrok": true,
            "containers": [{"name": "a", "image": 1}, 7, {"name": "b", "ports": [{"containerPort": "80"}], "args": ["x", 1]}],
            "volumes": {},
        });
        let wrong_type = [
            "spec.containers[0].image",
            "spec.containers[1]",
            "spec.containers[2].args[1]",
            "spec.containers[2].ports[0].containerPort",
            "spec.volumes",
        ];
        let mut expected = wrong_type.map(|path| (ViolationKind::WrongType, path.to_owned())).to_vec();
        expected.push((ViolationKind::UnknownField, "spec.hostNetwrok".to_owned()));
        assert_eq!(violations(&spec), expected);
    }

    #[test]
    fn numbers_that_do_not_fit_are_reported() {
        let spec = json!({"containers": [{"ports": [{"containerPort": 5_000_000_000_u64}]}], "priority": 1.5});
        let expected = ["spec.containers[0].ports[0].containerPort", "spec.priority"];
        assert_eq!(violations(&spec), expected.map(|path| (ViolationKind::WrongType, path.to_owned())));
    }

    #[test]
    fn the_number_of_reported_mistakes_is_limited() {
        let many: Vec<Value> = (0..500).map(Value::from).collect();
        assert_eq!(violations(&json!({ "containers": many })).len(), MISTAKES_MAX);
    }

    #[test]
    fn visited_structs_are_listed_with_their_paths() {
        let spec = json!({"containers": [{"resources": {"limits": {"cpu": 1}}}]});
        let visited = check_type::<PodSpec>(&spec, &FieldPath::root(), &mut Vec::new());
        let visited: Vec<String> = visited.iter().map(|visit| format!("{} {}", visit.name, visit.at)).collect();
        let expected = [
            "PodSpec ",
            "Container containers[0]",
            "ResourceRequirements containers[0].resources",
            "Quantity containers[0].resources.limits.cpu",
        ];
        assert_eq!(visited, expected);
    }
}
