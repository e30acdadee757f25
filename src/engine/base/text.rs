//! Makes untrusted text (keys, names) safe to print on one line.

use std::borrow::Cow;
use std::fmt;

/// Maximum number of characters shown from a key in an error message.
const SHOWN_MAX: usize = 64;

/// Returns `text` as a single line: control and invisible characters become Rust escapes (`\n`,
/// `\u{1b}`), and `\` becomes `\\`.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            // `escape_debug` would also escape quotes, which is unnecessary without quotes around
            // the text.
            '"' | '\'' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// Returns `text` with control characters other than newlines as Rust escapes (`\t`, `\u{1b}`), so
/// that a terminal does not interpret them. Unlike [`escaped`], it can be applied to text that is
/// already escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_unsafe(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Returns at most `most` characters of `text`, with control characters replaced by spaces. Used to
/// print another program's message on a single line.
pub fn one_line(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns `text` with secrets in URLs masked: the part of the authority before the `@` becomes
/// `***`, except that a user name before a `:` is kept.
pub fn masked(text: &str) -> Cow<'_, str> {
    const SCHEME_END: &str = "://";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(SCHEME_END) {
        let (before, after) = rest.split_at(at + SCHEME_END.len());
        out.push_str(before);
        rest = after;
        if let Some(secret) = secret_of(after) {
            if let Some((user, _)) = secret.split_once(':') {
                out.push_str(user);
                out.push(':');
            }
            out.push_str("***");
            rest = &after[secret.len()..];
        }
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns an address with secrets masked as in [`masked`], also if the address has no scheme:
/// `user:password@host:1` becomes `user:***@host:1`.
pub fn masked_address(text: &str) -> Cow<'_, str> {
    match secret_of(text).and_then(|secret| Some((secret, secret.split_once(':')?.0))) {
        Some((secret, user)) => Cow::Owned(format!("{user}:***{}", masked(&text[secret.len()..]))),
        None => masked(text),
    }
}

/// The part before the `@` in the authority at the start of `text`.
fn secret_of(text: &str) -> Option<&str> {
    // A password may contain , ; and '. A list of hosts may be masked up to its last @.
    let is_end = |c: char| c.is_whitespace() || "/?#\"`<>".contains(c);
    let authority = &text[..text.find(is_end).unwrap_or(text.len())];
    authority.rsplit_once('@').map(|(secret, _)| secret)
}

/// Returns `number` with the noun `one`: `1 object`, `2 objects`.
pub fn counted<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    counted_as(number, one, &format!("{one}s"))
}

/// Returns `number` with the noun `one`, or with its plural `many`: `1 process`, `2 processes`.
pub fn counted_as<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let noun = if number == N::from(1) { one } else { many };
    format!("{number} {noun}")
}

/// Formats a string for an error message: [`escaped`], quoted, and truncated if it is long.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_MAX) {
            None => write!(f, "'{}'", escaped(self.0)),
            Some((end, _)) => write!(f, "'{}...' ({} bytes)", escaped(&self.0[..end]), self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_break_a_line_are_escaped_and_others_are_kept() {
        assert_eq!(escaped("a/b c,'d\" é日"), "a/b c,'d\" é日");
        assert_eq!(escaped("a\nb\tc\r\u{1b}[2Jd\0\\"), "a\\nb\\tc\\r\\u{1b}[2Jd\\0\\\\");
        assert_eq!(escaped("\u{202e}\u{200b}"), "\\u{202e}\\u{200b}");
    }

    #[test]
    fn control_characters_are_printable_and_newlines_and_escapes_are_kept() {
        assert_eq!(printable("h:1\u{1b}[31m\u{7}\u{7f}\u{9b}\r\t"), "h:1\\u{1b}[31m\\u{7}\\u{7f}\\u{9b}\\r\\t");
        assert_eq!(printable("a\nb \\u{1b} é日"), "a\nb \\u{1b} é日");
    }

    #[test]
    fn a_password_in_an_address_is_masked_without_a_scheme() {
        for (text, shown) in [
            ("me:secret@h:1", "me:***@h:1"),
            ("me:secret@h:1,http://a:p@b", "me:***@h:1,http://a:***@b"),
            ("http://me:secret@h:1", "http://me:***@h:1"),
            ("me@h:1", "me@h:1"),
            ("h:1", "h:1"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(masked_address(text), shown);
        }
    }

    #[test]
    fn a_password_in_a_url_is_masked_and_the_rest_is_kept() {
        for (text, shown) in [
            ("http://me:secret@host:80/x?y=a@b", "http://me:***@host:80/x?y=a@b"),
            ("redis://:secret@host", "redis://:***@host"),
            ("'https://token@[::1]:5/' and http://a:p@b", "'https://***@[::1]:5/' and http://a:***@b"),
            ("http://a:p@ss@b/", "http://a:***@b/"),
            ("http://a:p,a;s's@b/", "http://a:***@b/"),
            ("http://a:p@b,http://c:q@d", "http://a:***@b,http://c:***@d"),
            ("http://host/me@home, me@home", "http://host/me@home, me@home"),
            ("://", "://"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn a_noun_is_in_the_plural_unless_the_number_is_one() {
        assert_eq!([0_u64, 1, 2].map(|number| counted(number, "key")), ["0 keys", "1 key", "2 keys"]);
        assert_eq!([0.0, 1.0, 2.0].map(|number| counted(number, "key")), ["0 keys", "1 key", "2 keys"]);
        assert_eq!([1_usize, 3].map(|number| counted_as(number, "copy", "copies")), ["1 copy", "3 copies"]);
    }

    #[test]
    fn one_line_replaces_control_characters_and_truncates() {
        assert_eq!(one_line("\u{1b}[2Jred\n\u{7}é日", 8), " [2Jred ");
        assert_eq!(one_line("é日\u{9b}x", 9), "é日 x");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_reports_its_length() {
        assert_eq!(Quoted("k\n").to_string(), "'k\\n'");
        assert_eq!(Quoted(&"é".repeat(64)).to_string(), format!("'{}'", "é".repeat(64)));
        assert_eq!(Quoted(&"é".repeat(65)).to_string(), format!("'{}...' (130 bytes)", "é".repeat(64)));
    }
}
