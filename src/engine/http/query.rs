//! Parameters after the `?`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The first parameter called `name`, still encoded; `None` when there is none.
pub fn param<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| match pair.split_once('=') {
        Some((key, value)) if key == name => Some(value),
        None if pair == name => Some(""),
        _ => None,
    })
}

/// `text` with each `%XX` replaced by its byte. A `+` stays a `+`: Mooncake's clients encode blanks as `%20`, and keys that were
/// typed by hand with a `+` mean one. A `%` without two hex digits stays as it is.
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
    fn decoding_leaves_what_is_not_encoded() {
        assert_eq!(&*decode("a%2Fb%3a+c%zz%"), b"a/b:+c%zz%");
    }
}
