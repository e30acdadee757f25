//! Query parameters in a URL, and how they are escaped.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Escapes all characters except those that libcurl's `curl_easy_escape` leaves unchanged: letters,
/// digits and `-._~`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the first parameter named `name`, still encoded.
pub fn param<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| match pair.split_once('=') {
        Some((key, value)) if key == name => Some(value),
        None if pair == name => Some(""),
        _ => None,
    })
}

/// Replaces each `%XX` in `text` with the byte that it encodes. A `+` is left unchanged: Mooncake's
/// clients encode spaces as `%20`, and in a manually typed key, a `+` is a plus sign. A `%` without
/// two hexadecimal digits is left unchanged.
pub fn decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

/// Escapes `key` for a URL: everything outside `A-Za-z0-9-._~` becomes `%XX` in upper case, exactly
/// as in libcurl. Upstream's embedded metadata server compares the escaped text, so any other
/// spelling would be a different key on that server.
pub fn escape(key: &str) -> String {
    utf8_percent_encode(key, ESCAPED).to_string()
}

/// The same set, and `/`, `:` and `@`, which a query may contain unescaped.
const ESCAPED_IN_QUERY: &AsciiSet = &ESCAPED.remove(b'/').remove(b':').remove(b'@');

/// Escapes a value in a query. Masters before 0.3.12 do not decode the query of the admin port, so
/// common characters of keys remain as they are.
pub fn escape_in_query(value: &str) -> String {
    utf8_percent_encode(value, ESCAPED_IN_QUERY).to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn common_characters_of_keys_are_not_escaped_in_a_query() {
        assert_eq!(escape_in_query("a/b:c@d&e=f g"), "a/b:c@d%26e%3Df%20g");
    }

    use super::*;

    #[test]
    fn a_parameter_is_found_by_its_whole_name() {
        assert_eq!(param("key=a&other=b", "key"), Some("a"));
        assert_eq!(param("monkey=a&key=b=c", "key"), Some("b=c"));
        assert_eq!(param("key", "key"), Some(""));
        assert_eq!(param("", "key"), None);
    }

    #[test]
    fn decoding_leaves_unencoded_text_unchanged() {
        assert_eq!(&*decode("a%2Fb%3a+c%zz%"), b"a/b:+c%zz%");
    }

    #[test]
    fn escaping_leaves_only_unreserved_characters() {
        assert_eq!(escape("aZ09-._~"), "aZ09-._~");
        assert_eq!(escape("[::1]:5 +é"), "%5B%3A%3A1%5D%3A5%20%2B%C3%A9");
    }
}
