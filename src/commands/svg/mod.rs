//! Pictures: plots as SVG text, made here from nothing else.
//!
//! A plot names its colours as CSS variables with a value to fall back on, so that a page can give it other ones for a dark screen,
//! and a picture that stands alone has its own.

mod plot;
mod scale;

pub use plot::{Axis, Mark, Plot, Series};

/// Text that is no markup.
pub fn marked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_no_markup() {
        assert_eq!(marked("<script>\"a\"&'b'\n"), "&lt;script&gt;&quot;a&quot;&amp;&#39;b&#39;\u{fffd}");
    }
}
