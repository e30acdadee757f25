//! Texts that others chose (keys, names), made fit for a line that people read.

use std::fmt;

/// Characters of a key that an error shows.
const SHOWN_MAX: usize = 64;

/// `text` on one line: control characters and what would not be seen as escapes of Rust (`\n`, `\u{1b}`), and so `\` as `\\`.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            // Everything else that `escape_debug` would change can be seen: quotes need no escape where none stand around.
            '"' | '\'' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// At most `most` characters of `text`, a blank for each that would not be seen: what another program says, fit for a line.
pub fn one_line(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text as an error shows it: [`escaped`], between quotes, and cut when it is long.
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
    fn what_would_break_a_line_is_escaped_and_the_rest_stays() {
        assert_eq!(escaped("a/b c,'d\" é日"), "a/b c,'d\" é日");
        assert_eq!(escaped("a\nb\tc\r\u{1b}[2Jd\0\\"), "a\\nb\\tc\\r\\u{1b}[2Jd\\0\\\\");
        assert_eq!(escaped("\u{202e}\u{200b}"), "\\u{202e}\\u{200b}");
    }

    #[test]
    fn what_another_program_says_is_fit_for_a_line() {
        assert_eq!(one_line("\u{1b}[2Jred\n\u{7}é日", 8), " [2Jred ");
        assert_eq!(one_line("é日\u{9b}x", 9), "é日 x");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_tells_its_length() {
        assert_eq!(Quoted("k\n").to_string(), "'k\\n'");
        assert_eq!(Quoted(&"é".repeat(64)).to_string(), format!("'{}'", "é".repeat(64)));
        assert_eq!(Quoted(&"é".repeat(65)).to_string(), format!("'{}...' (130 bytes)", "é".repeat(64)));
    }
}
