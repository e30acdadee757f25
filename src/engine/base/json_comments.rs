//! Comments in JSON: `//` and `/* */`, as jsoncpp accepts them. The master's configuration files
//! may contain them.

/// Replaces comments with spaces. Everything else stays on its line and in its column. A comment
/// that is not closed stays, so that a JSON parser reports it.
pub fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', '/']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (end, is_comment) = if rest.starts_with('"') {
            (string_end(rest), false)
        } else if rest.starts_with("//") {
            (rest.find(['\n', '\r']).unwrap_or(rest.len()), true)
        } else {
            // The `*` of `/*/` does not close the comment that it opens.
            let end = rest.strip_prefix("/*").and_then(|inside| Some("/*".len() + inside.find("*/")? + "*/".len()));
            (end.unwrap_or(1), end.is_some())
        };
        let blank = |c| if matches!(c, '\n' | '\r' | '\t') { c } else { ' ' };
        match is_comment {
            true => out.extend(rest[..end].chars().map(blank)),
            false => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out + rest
}

/// The end of the string with which `text` begins.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_become_spaces_and_lines_stay() {
        for (text, expected) in [
            ("{ // a: 1\n\t\"b\": 2 }", "{        \n\t\"b\": 2 }"),
            ("{ /* a\n\t*/ \"b\": 2 }", "{     \n\t   \"b\": 2 }"),
            ("[/*/ 1, /**/ 2]", "[            2]"),
            ("[1]//", "[1]  "),
            ("// é\r\n[1]", "    \r\n[1]"),
        ] {
            assert_eq!(without_comments(text), expected);
        }
    }

    #[test]
    fn strings_hashes_and_open_comments_are_unchanged() {
        for text in [
            "{\"a\": \"x//y\", \"\\\"/*\": \"\\\\\", \"é\\é\": \"*/\"}",
            "# a\n[1]",
            "[1] /* open",
            "[1, /",
            "\"open // ",
        ] {
            assert_eq!(without_comments(text), text);
        }
    }
}
