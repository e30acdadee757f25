//! The subset of JSON Schema that our schemas use: `type`, `const`, `enum`, `required`,
//! `properties`, `additionalProperties`, `items`, `minimum`, `$ref` into `$defs`, `anyOf`. Any
//! other keyword is an error, so that no constraint is silently ignored.

use serde_json::Value;

/// Returns the violations of `schema` by `value`, one message each.
pub fn validate(schema: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    check(schema, schema, value, "$", &mut wrong);
    wrong
}

/// Returns the members of `value` that its schema does not describe, where it names members at all.
/// Schemas allow additional members, but ours must describe all of them.
pub fn undescribed(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    look(schema, schema, value, "$", &mut found);
    found
}

fn look(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return look(root, &root["$defs"][name], value, at, found);
    }
    for form in schema["anyOf"].as_array().into_iter().flatten() {
        let mut wrong = Vec::new();
        check(root, form, value, at, &mut wrong);
        if wrong.is_empty() {
            return look(root, form, value, at, found);
        }
    }
    for (key, member) in value.as_object().into_iter().flatten() {
        let named = &schema["properties"];
        let others = &schema["additionalProperties"];
        let at = format!("{at}.{key}");
        match (named.get(key), others.is_object()) {
            (Some(inner), _) => look(root, inner, member, &at, found),
            (None, true) => look(root, others, member, &at, found),
            (None, false) if named.is_object() => found.push(at),
            (None, false) => {}
        }
    }
    for (place, item) in value.as_array().into_iter().flatten().enumerate() {
        look(root, &schema["items"], item, &format!("{at}[{place}]"), found);
    }
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let Some(words) = schema.as_object() else { return };
    for (word, says) in words {
        match word.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => {}
            "$ref" => {
                let name = says.as_str().and_then(|path| path.strip_prefix("#/$defs/")).expect("into $defs");
                check(root, root["$defs"].get(name).unwrap_or_else(|| panic!("no {name}")), value, at, wrong);
            }
            "type" => {
                let types: Vec<&str> = match says {
                    Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                    one => one.as_str().into_iter().collect(),
                };
                if !types.iter().any(|name| is(value, name)) {
                    wrong.push(format!("{at}: {value:.60} is not {types:?}"));
                }
            }
            "const" if says != value => wrong.push(format!("{at}: {value} is not {says}")),
            "const" => {}
            "enum" => {
                if !says.as_array().is_some_and(|all| all.contains(value)) {
                    wrong.push(format!("{at}: {value} is not one of {says}"));
                }
            }
            "minimum" => {
                if value.as_f64().zip(says.as_f64()).is_some_and(|(value, least)| value < least) {
                    wrong.push(format!("{at}: {value} is below {says}"));
                }
            }
            "required" => {
                for key in says.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if value.is_object() && value.get(key).is_none() {
                        wrong.push(format!("{at}: {key} is missing"));
                    }
                }
            }
            "properties" => {
                for (key, inner) in says.as_object().into_iter().flatten() {
                    if let Some(member) = value.get(key) {
                        check(root, inner, member, &format!("{at}.{key}"), wrong);
                    }
                }
            }
            "additionalProperties" => {
                for (key, member) in value.as_object().into_iter().flatten() {
                    if schema["properties"].get(key).is_some() {
                        continue;
                    }
                    match says {
                        Value::Bool(false) => wrong.push(format!("{at}: {key} is not in the schema")),
                        inner => check(root, inner, member, &format!("{at}.{key}"), wrong),
                    }
                }
            }
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, says, item, &format!("{at}[{place}]"), wrong);
                }
            }
            "anyOf" => {
                let fits = |inner: &Value| {
                    let mut inside = Vec::new();
                    check(root, inner, value, at, &mut inside);
                    inside.is_empty()
                };
                if !says.as_array().into_iter().flatten().any(fits) {
                    wrong.push(format!("{at}: fits none of its forms"));
                }
            }
            other => panic!("the validator does not know {other}"),
        }
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    }
}
