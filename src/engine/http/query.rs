//! Query parameters in a URL.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Returns the first parameter named `name`, still encoded.
pub fn param<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| match pair.split_once('=') {
        Some((key, value)) if key == name => Some(value),
        None if pair == name => Some(""),
        _ => None,
    })
}

/// Replaces each `%XX` in `text` with the byte that it encodes. A `+` is left unchanged: Mooncake's clients encode spaces as `%20`, and in
/// a manually typed key, a `+` is a plus sign. A `%` without two hexadecimal digits is left unchanged.
pub fn decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

#[cfg(test)]
mod tests {
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
}
