//! A checker for the subset of JSON Schema that Kubernetes structural schemas use. It shares no
//! code with the validator under test. It panics on an unknown schema keyword.

use fancy_regex::Regex;
use serde_json::{Map, Value, json};

/// Keywords without effect on a single document. CEL expressions (`x-kubernetes-validations`) are
/// not evaluated.
const SILENT: &[&str] = &[
    "default",
    "description",
    "format",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

/// The mismatches between `value` and `schema`. Fields outside the schema are mismatches even if
/// the server keeps them.
pub fn disagreements(schema: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    check(schema, value, "", &mut wrong);
    wrong
}

fn check(schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    for (word, rule) in schema.as_object().unwrap() {
        let mut say = |what: String| wrong.push(format!("{at}: {what}"));
        let text = value.as_str();
        let length = text.map(|text| text.chars().count() as u64);
        match word.as_str() {
            "type" if !is(rule.as_str().unwrap(), value) => say(format!("{value} is not {rule}")),
            "required" => {
                // The server fills in defaults before it validates.
                for name in rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
                    if value.get(name).is_none() && properties.get(name).is_none_or(|p| p.get("default").is_none()) {
                        say(format!("{name} is missing"));
                    }
                }
            }
            "enum" if !rule.as_array().unwrap().contains(value) => say(format!("{value} is not one of {rule}")),
            "pattern"
                if text.is_some_and(|text| !Regex::new(rule.as_str().unwrap()).unwrap().is_match(text).unwrap()) =>
            {
                say(format!("{value} does not match {rule}"));
            }
            "minLength" if length.is_some_and(|n| n < rule.as_u64().unwrap()) => say("too short".to_owned()),
            "maxLength" if length.is_some_and(|n| n > rule.as_u64().unwrap()) => say("too long".to_owned()),
            "minItems" if value.as_array().is_some_and(|list| (list.len() as u64) < rule.as_u64().unwrap()) => {
                say("too few".to_owned());
            }
            "minimum" if value.as_f64().is_some_and(|n| n < rule.as_f64().unwrap()) => say(format!("{value} < {rule}")),
            "anyOf" => {
                let one = |option: &Value| disagreements(option, value).is_empty();
                if !rule.as_array().unwrap().iter().any(one) {
                    say(format!("{value} is not one of {rule}"));
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(rule, item, &format!("{at}[{i}]"), wrong);
                }
            }
            "properties" => {
                for (name, child) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = rule.get(name) {
                        check(schema, child, &format!("{at}.{name}"), wrong);
                    } else if schema.get("additionalProperties").is_none() {
                        wrong.push(format!("{at}: {name} is not in the schema"));
                    }
                }
            }
            "additionalProperties" => {
                let others =
                    value.as_object().into_iter().flatten().filter(|(name, _)| !properties.contains_key(*name));
                for (name, child) in others {
                    check(rule, child, &format!("{at}.{name}"), wrong);
                }
            }
            "x-kubernetes-int-or-string" if !(value.is_i64() || value.is_string()) => {
                say(format!("{value} is neither a number nor a string"));
            }
            "type" | "enum" | "pattern" | "minLength" | "maxLength" | "minItems" | "minimum" => {}
            "x-kubernetes-int-or-string" | "x-kubernetes-preserve-unknown-fields" => {}
            known if SILENT.contains(&known) => {}
            other => panic!("unknown schema keyword {other}"),
        }
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("unknown schema type {other}"),
    }
}

/// A value with every field of the schema. The types are valid; the values are arbitrary.
pub fn every_field(schema: &Value) -> Value {
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return json!(1);
    }
    match schema["type"].as_str() {
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            Value::Object(fields.map(|(name, field)| (name.clone(), every_field(field))).collect())
        }
        Some("array") => json!([every_field(&schema["items"])]),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") if schema["format"] == "byte" => json!("YQ=="),
        Some("string") => json!("a"),
        _ => json!({}),
    }
}

#[test]
fn the_checker_finds_known_mismatches() {
    let schema = json!({"type": "object", "required": ["a", "d"], "properties": {
        "a": {"type": "string", "pattern": "^x+$", "maxLength": 3}, "b": {"type": "array", "minItems": 1, "items": {"enum": ["u", "v"]}},
        "c": {"additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}},
        "d": {"type": "integer", "default": 1, "minimum": 0},
    }});
    assert_eq!(disagreements(&schema, &json!({"a": "xx", "b": ["u"], "c": {"e": 1}})), Vec::<String>::new());
    for (value, expected) in [
        (json!([]), ": [] is not \"object\""),
        (json!({}), ": a is missing"),
        (json!({"a": 1}), ".a: 1 is not \"string\""),
        (json!({"a": "y"}), ".a: \"y\" does not match \"^x+$\""),
        (json!({"a": "xxxx"}), ".a: too long"),
        (json!({"a": "x", "b": []}), ".b: too few"),
        (json!({"a": "x", "b": ["w"]}), ".b[0]: \"w\" is not one of [\"u\",\"v\"]"),
        (json!({"a": "x", "d": -1}), ".d: -1 < 0"),
        (json!({"a": "x", "f": 1}), ": f is not in the schema"),
    ] {
        assert!(
            disagreements(&schema, &value).contains(&expected.to_owned()),
            "{value}: {:?}",
            disagreements(&schema, &value)
        );
    }
    assert_eq!(disagreements(&schema, &json!({"a": "x", "c": {"e": true}})).len(), 2);
}
