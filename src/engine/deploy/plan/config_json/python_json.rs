//! Python writes numbers in JSON that JSON does not have: `NaN`, `Infinity` and `-Infinity`.

const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// `text` with each of these numbers outside of strings replaced by `null`.
pub(super) fn without_special_numbers(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(first) = rest.chars().next() {
        if !in_string && let Some(number) = NUMBERS.iter().find(|number| rest.starts_with(**number)) {
            plain.push_str("null");
            rest = rest.get(number.len()..).unwrap_or_default();
            continue;
        }
        // An escaped character never ends a string.
        let escaped = if in_string && first == '\\' { rest.chars().nth(1).map_or(0, char::len_utf8) } else { 0 };
        if first == '"' {
            in_string = !in_string;
        }
        let (taken, left) = rest.split_at(first.len_utf8() + escaped);
        plain.push_str(taken);
        rest = left;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_outside_of_strings_are_replaced() {
        let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "NaN \" Infinity": "Infinity\\"}"#;
        let plain = r#"{"a": [0.0, null], "b": null, "c": null, "NaN \" Infinity": "Infinity\\"}"#;
        assert_eq!(without_special_numbers(text), plain);
    }
}
