//! A JSON value held against a type: every unknown key, every value of another type, and every structure that was met.
//!
//! A `Deserializer` of our own, because three things are wanted that serde's usual path does not give: the path of each mistake, all
//! mistakes instead of the first, and the known keys beside an unknown one (k8s-openapi tells them to `deserialize_struct`). After
//! an error the value at its path is left out and the document is read again, at most `MISTAKES_MAX` times.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::{Map, Value};

use super::Complaint;
use super::path::Path;
use crate::engine::base::text::Quoted;

/// Values of a wrong type told per document; the rest is told after these are mended.
const MISTAKES_MAX: usize = 64;

/// A structure that was met, by the name its type has.
#[derive(Clone, Debug)]
pub struct Met {
    /// `PodSpec`, `Container`, `Quantity` ...
    pub name: &'static str,
    /// Where it stands.
    pub at: Path,
}

/// Holds `value`, which stands at `at`, against `T`: complaints into `complaints`; the structures met are returned.
pub fn hold<T: for<'de> Deserialize<'de>>(value: &Value, at: &Path, complaints: &mut Vec<Complaint>) -> Vec<Met> {
    let mut left_out = BTreeSet::new();
    loop {
        let notes = RefCell::new(Notes { left_out, ..Notes::default() });
        let read = T::deserialize(Walk { value, at: at.clone(), notes: &notes });
        let mut notes = notes.into_inner();
        if let (Err(_), Some((path, what))) = (read, notes.failed.take()) {
            let last = path == *at || notes.left_out.len() + 1 >= MISTAKES_MAX;
            complaints.push(Complaint::new(&path, what));
            left_out = notes.left_out;
            left_out.insert(path);
            if !last {
                continue;
            }
        }
        complaints.append(&mut notes.unknown);
        return notes.met;
    }
}

/// What one reading found.
#[derive(Default)]
struct Notes {
    left_out: BTreeSet<Path>,
    unknown: Vec<Complaint>,
    met: Vec<Met>,
    failed: Option<(Path, String)>,
}

struct Walk<'v, 'n> {
    value: &'v Value,
    at: Path,
    notes: &'n RefCell<Notes>,
}

impl<'v, 'n> Walk<'v, 'n> {
    /// The innermost error is the first that is noted.
    fn noted<T>(&self, read: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(Failed(what)) = &read {
            let mut notes = self.notes.borrow_mut();
            notes.failed.get_or_insert_with(|| (self.at.clone(), what.clone()));
        }
        read
    }

    fn children<'a>(
        &'a self,
        map: &'v Map<String, Value>,
        known: Option<&'static [&'static str]>,
    ) -> Children<'v, 'n, 'a> {
        Children { entries: map.iter(), next: None, known, parent: self }
    }

    fn any<V: Visitor<'v>>(&self, visitor: V, known: Option<&'static [&'static str]>) -> Result<V::Value, Failed> {
        let read = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(n), _, _) => visitor.visit_i64(n),
                (_, Some(n), _) => visitor.visit_u64(n),
                (_, _, n) => visitor.visit_f64(n.unwrap_or(f64::NAN)),
            },
            Value::String(s) => visitor.visit_borrowed_str(s),
            Value::Array(items) => visitor.visit_seq(Items { items: items.iter().enumerate(), parent: self }),
            Value::Object(map) => visitor.visit_map(self.children(map, known)),
        };
        self.noted(read)
    }
}

impl<'v> de::Deserializer<'v> for Walk<'v, '_> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.any(visitor, None)
    }

    fn deserialize_option<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Failed> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'v>>(self, name: &'static str, visitor: V) -> Result<V::Value, Failed> {
        self.notes.borrow_mut().met.push(Met { name, at: self.at.clone() });
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'v>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failed> {
        if self.value.is_array() {
            // Derived types would take a list for a structure.
            let not_a_list = de::Error::invalid_type(Unexpected::Seq, &visitor);
            return self.noted(Err(not_a_list));
        }
        self.notes.borrow_mut().met.push(Met { name, at: self.at.clone() });
        self.any(visitor, Some(fields))
    }

    fn deserialize_enum<V: Visitor<'v>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failed> {
        let read = match self.value {
            Value::String(name) => visitor.visit_enum(name.as_str().into_deserializer()),
            _ => return self.any(visitor, None),
        };
        self.noted(read)
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'v>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The elements of a list that are not left out.
struct Items<'v, 'n, 'a> {
    items: std::iter::Enumerate<std::slice::Iter<'v, Value>>,
    parent: &'a Walk<'v, 'n>,
}

impl<'v> SeqAccess<'v> for Items<'v, '_, '_> {
    type Error = Failed;

    fn next_element_seed<T: DeserializeSeed<'v>>(&mut self, seed: T) -> Result<Option<T::Value>, Failed> {
        for (index, value) in self.items.by_ref() {
            let at = self.parent.at.index(index);
            if !self.parent.notes.borrow().left_out.contains(&at) {
                return seed.deserialize(Walk { value, at, notes: self.parent.notes }).map(Some);
            }
        }
        Ok(None)
    }
}

/// The entries of a map that are not left out; with `known`, those of a structure.
struct Children<'v, 'n, 'a> {
    entries: serde_json::map::Iter<'v>,
    next: Option<(Path, &'v Value)>,
    known: Option<&'static [&'static str]>,
    parent: &'a Walk<'v, 'n>,
}

impl<'v> MapAccess<'v> for Children<'v, '_, '_> {
    type Error = Failed;

    fn next_key_seed<K: DeserializeSeed<'v>>(&mut self, seed: K) -> Result<Option<K::Value>, Failed> {
        for (key, value) in self.entries.by_ref() {
            let at = self.parent.at.key(key);
            if self.parent.notes.borrow().left_out.contains(&at) {
                continue;
            }
            if let Some(known) = self.known
                && !known.contains(&key.as_str())
            {
                let unknown = Complaint::new(&at, unknown(key, known));
                self.parent.notes.borrow_mut().unknown.push(unknown);
                continue;
            }
            self.next = Some((at, value));
            return seed.deserialize(de::value::BorrowedStrDeserializer::new(key)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'v>>(&mut self, seed: V) -> Result<V::Value, Failed> {
        let (at, value) = self.next.take().expect("serde asks for a value after its key");
        seed.deserialize(Walk { value, at, notes: self.parent.notes })
    }
}

/// What is said of a key that is not `known`.
fn unknown(key: &str, known: &[&str]) -> String {
    let lower = key.to_ascii_lowercase();
    let nearest = known.iter().map(|k| (strsim::osa_distance(&lower, &k.to_ascii_lowercase()), k)).min();
    match nearest {
        Some((far, name)) if far <= 2.max(key.chars().count() / 3) => {
            format!("unknown field {}; is {name} meant?", Quoted(key))
        }
        _ => format!("unknown field {}", Quoted(key)),
    }
}

/// Why a value is not of a type.
#[derive(Debug)]
struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl de::Error for Failed {
    fn custom<T: fmt::Display>(message: T) -> Failed {
        Failed(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Failed {
        Failed(format!("{} stands where {} belongs", shown(found), expected(wanted)))
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Failed {
        Failed::invalid_type(found, wanted)
    }
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("the text {}", Quoted(text)),
        Unexpected::Bool(b) => format!("the boolean {b}"),
        Unexpected::Signed(n) => format!("the number {n}"),
        Unexpected::Unsigned(n) => format!("the number {n}"),
        Unexpected::Float(n) => format!("the number {n}"),
        Unexpected::Unit => "null".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a map".to_owned(),
        other => other.to_string(),
    }
}

fn expected(wanted: &dyn de::Expected) -> String {
    let name = wanted.to_string();
    match name.as_str() {
        "i32" | "i64" | "u16" | "u32" | "u64" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a string" | "string" => "a text (in quotes where YAML would read a number or a boolean)".to_owned(),
        "a sequence" => "a list".to_owned(),
        "IntOrString" => "a whole number or a text".to_owned(),
        _ => match name.strip_prefix("struct ") {
            Some(structure) => format!("a map ({structure})"),
            None if name.starts_with(|c: char| c.is_ascii_uppercase()) => format!("a map ({name})"),
            None => name,
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::json;

    use super::*;

    fn told(value: &Value) -> Vec<String> {
        let mut complaints = Vec::new();
        hold::<PodSpec>(value, &Path::root().key("spec"), &mut complaints);
        complaints.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_mistakes_are_told_each_with_its_path() {
        let spec = json!({
            "hostNetwrok": true,
            "containers": [{"name": "a", "image": 1}, 7, {"name": "b", "ports": [{"containerPort": "80"}], "args": ["x", 1]}],
            "volumes": {},
        });
        assert_eq!(
            told(&spec),
            [
                "spec.containers[0].image: the number 1 stands where a text (in quotes where YAML would read a number or a boolean) belongs",
                "spec.containers[1]: the number 7 stands where a map (Container) belongs",
                "spec.containers[2].args[1]: the number 1 stands where a text (in quotes where YAML would read a number or a boolean) belongs",
                "spec.containers[2].ports[0].containerPort: the text '80' stands where a whole number belongs",
                "spec.volumes: a map stands where a list belongs",
                "spec.hostNetwrok: unknown field 'hostNetwrok'; is hostNetwork meant?",
            ]
        );
    }

    #[test]
    fn a_number_that_does_not_fit_is_told() {
        let spec = json!({"containers": [{"ports": [{"containerPort": 5_000_000_000_u64}]}], "priority": 1.5});
        assert_eq!(
            told(&spec),
            [
                "spec.containers[0].ports[0].containerPort: the number 5000000000 stands where a whole number belongs",
                "spec.priority: the number 1.5 stands where a whole number belongs",
            ]
        );
    }

    #[test]
    fn mistakes_without_end_are_cut() {
        let many: Vec<Value> = (0..500).map(Value::from).collect();
        assert_eq!(told(&json!({ "containers": many })).len(), MISTAKES_MAX);
    }

    #[test]
    fn the_structures_that_were_met_are_named_with_their_places() {
        let spec = json!({"containers": [{"resources": {"limits": {"cpu": 1}}}]});
        let met = hold::<PodSpec>(&spec, &Path::root(), &mut Vec::new());
        let met: Vec<String> = met.iter().map(|m| format!("{} {}", m.name, m.at)).collect();
        let expected = [
            "PodSpec ",
            "Container containers[0]",
            "ResourceRequirements containers[0].resources",
            "Quantity containers[0].resources.limits.cpu",
        ];
        assert_eq!(met, expected);
    }
}
