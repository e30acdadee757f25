//! Plots as self-contained SVG.
//!
//! Colors are CSS variables with a fallback value: a page can override them for dark mode, and a
//! standalone image contains both sets.

mod plot;
mod scale;

pub use plot::{Axis, Mark, Plot, PlotSeries};

/// Escapes `text` for HTML and SVG. Control characters are replaced.
pub fn escaped(text: &str) -> String {
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
    fn markup_and_control_characters_are_escaped() {
        assert_eq!(escaped("<script>\"a\"&'b'\n"), "&lt;script&gt;&quot;a&quot;&amp;&#39;b&#39;\u{fffd}");
    }
}
