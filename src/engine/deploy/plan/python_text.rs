//! Python's string semantics: `int()`, `str.strip()`, `repr()`.
//!
//! SGLang and Mooncake's sizing script are written in Python, so these functions determine what
//! they accept and print.

/// The first code point of each non-ASCII range of decimal digits (Unicode 14, the version in
/// Python 3.11).
const ZEROS: &[u32] = &[
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0, 0xf20,
    0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0,
    0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0,
    0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0,
    0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// The result of `int(text)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonInt {
    /// A value of up to 127 bits.
    Value(i128),
    /// A value beyond 127 bits.
    TooLarge,
    Invalid,
}

/// `text.strip()`: removes Unicode white space and the four ASCII separators.
pub fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

/// `int(text)`: accepts surrounding white space, a sign, decimal digits in any script, and single
/// underscores between digits.
pub fn int(text: &str) -> PythonInt {
    let stripped = strip(text);
    let (negative, digits) = match stripped.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, stripped.strip_prefix('+').unwrap_or(stripped)),
    };
    let mut value = Some(0i128);
    let mut after_digit = false;
    for c in digits.chars() {
        if c == '_' && after_digit {
            after_digit = false;
            continue;
        }
        let Some(digit) = decimal(c) else { return PythonInt::Invalid };
        value = value.and_then(|v| v.checked_mul(10)?.checked_add(i128::from(digit)));
        after_digit = true;
    }
    match value {
        _ if !after_digit => PythonInt::Invalid,
        Some(v) => PythonInt::Value(if negative { -v } else { v }),
        None => PythonInt::TooLarge,
    }
}

/// The value of a decimal digit in any script.
pub fn decimal(c: char) -> Option<u32> {
    c.to_digit(10).or_else(|| ZEROS.iter().map(|zero| u32::from(c).wrapping_sub(*zero)).find(|digit| *digit < 10))
}

/// `repr(text)`.
pub fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            // Rust uses the same Unicode categories for printable characters, but keeps a combining
            // mark only after another character.
            _ if !c.is_ascii() && !format!("a{c}").escape_debug().any(|e| e == '\\') => out.push(c),
            _ => out.push_str(&match u32::from(c) {
                code @ 0..=0xff => format!("\\x{code:02x}"),
                code @ 0x100..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int_accepts_what_python_accepts() {
        for (text, value) in [("4", 4), (" +4\t", 4), ("1_0", 10), ("-2", -2), ("٤٢", 42), ("007", 7), ("\u{1f}5", 5)]
        {
            assert_eq!(int(text), PythonInt::Value(value), "{text:?}");
        }
        for bad in ["", "-", "_1", "1_", "1__0", "1.5", "0x1", "1e3", "+-1", "- 1", "²"] {
            assert_eq!(int(bad), PythonInt::Invalid, "{bad:?}");
        }
        assert_eq!(int(&"9".repeat(60)), PythonInt::TooLarge);
        assert_eq!(int(&format!("{}x", "9".repeat(60))), PythonInt::Invalid);
    }

    #[test]
    fn repr_quotes_and_escapes_like_python() {
        for (text, shown) in [
            ("64 gb", "'64 gb'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\t\n\\", "'\\t\\n\\\\'"),
            ("\u{1b}\u{7f}\u{a0}", "'\\x1b\\x7f\\xa0'"),
            ("٤é日", "'٤é日'"),
            ("\u{200b}\u{e0001}", "'\\u200b\\U000e0001'"),
        ] {
            assert_eq!(repr(text), shown);
        }
    }
}
