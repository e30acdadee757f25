//! Splits a word, or the text of a here-document, into literal and expanded pieces.

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WordPiece {
    Text {
        text: String,
        quoted: bool,
    },
    Parameter(ParameterUse),
    /// `$(..)` or backquotes, without them. `line` counts from 0 at the word's first line.
    Command {
        text: String,
        quoted: bool,
        line: u32,
    },
    /// `$((..))`, without the parentheses.
    Arithmetic {
        text: String,
    },
    /// `<(..)` and other forms whose value is only known at run time.
    Opaque,
}

/// `$name`, or `${name..}` with an index and an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParameterUse {
    pub name: String,
    /// The text in brackets: `@`, `*`, `0`.
    pub index: Option<String>,
    /// The text after the name: `:-default`, `%.*`.
    pub operator: String,
    pub quoted: bool,
    /// `${#name}`
    pub length: bool,
    /// `${!name}`
    pub indirect: bool,
}

impl ParameterUse {
    /// Whether the value is all elements of a list, each a word of its own.
    pub(crate) fn is_list(&self) -> bool {
        self.index.as_deref() == Some("@") || self.name == "@"
    }
}

/// Splits `raw`. `in_document` treats quotes as literal characters, as in a here-document.
pub(crate) fn pieces(raw: &str, in_document: bool) -> Vec<WordPiece> {
    let mut reader = PieceReader { chars: raw.chars().collect(), at: 0, line: 0, out: Vec::new(), in_document };
    reader.run();
    reader.out
}

struct PieceReader {
    chars: Vec<char>,
    at: usize,
    line: u32,
    out: Vec<WordPiece>,
    in_document: bool,
}

impl PieceReader {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        self.line = self.line.saturating_add(u32::from(c == '\n'));
        Some(c)
    }

    fn text(&mut self, c: char, quoted: bool) {
        match self.out.last_mut() {
            Some(WordPiece::Text { text, quoted: q }) if *q == quoted => text.push(c),
            _ => self.out.push(WordPiece::Text { text: c.to_string(), quoted }),
        }
    }

    fn run(&mut self) {
        if self.in_document {
            self.until(None);
            return;
        }
        while let Some(c) = self.next() {
            match c {
                '\'' => self.single_quoted(),
                '"' => {
                    self.out.push(WordPiece::Text { text: String::new(), quoted: true });
                    self.until(Some('"'));
                }
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(c) => self.text(c, true),
                },
                '$' if self.peek(0) == Some('\'') => {
                    self.next();
                    self.ansi_quoted();
                }
                '$' if self.peek(0) == Some('"') => {}
                '$' => self.dollar(false),
                '`' => self.backquoted(false),
                '<' | '>' if self.peek(0) == Some('(') => {
                    self.next();
                    self.balanced('(', ')');
                    self.out.push(WordPiece::Opaque);
                }
                c => self.text(c, false),
            }
        }
    }

    fn single_quoted(&mut self) {
        self.out.push(WordPiece::Text { text: String::new(), quoted: true });
        while let Some(c) = self.next().filter(|c| *c != '\'') {
            self.text(c, true);
        }
    }

    fn ansi_quoted(&mut self) {
        self.out.push(WordPiece::Text { text: String::new(), quoted: true });
        while let Some(c) = self.next().filter(|c| *c != '\'') {
            let c = match c {
                '\\' => match self.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some(c) => c,
                    None => return,
                },
                c => c,
            };
            self.text(c, true);
        }
    }

    /// Reads quoted text up to `end`, or to the end of a here-document.
    fn until(&mut self, end: Option<char>) {
        while let Some(c) = self.next() {
            match c {
                c if Some(c) == end => return,
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(c) if "$`\\".contains(c) || Some(c) == end => self.text(c, true),
                    Some(c) => {
                        self.text('\\', true);
                        self.text(c, true);
                    }
                },
                '$' => self.dollar(true),
                '`' => self.backquoted(true),
                c => self.text(c, true),
            }
        }
    }

    fn backquoted(&mut self, quoted: bool) {
        let (mut text, line) = (String::new(), self.line);
        while let Some(c) = self.next().filter(|c| *c != '`') {
            match c {
                '\\' => text.extend(self.next()),
                c => text.push(c),
            }
        }
        self.out.push(WordPiece::Command { text, quoted, line });
    }

    /// Reads up to the closing delimiter, which is dropped. Quoted text may contain it.
    fn balanced(&mut self, open: char, close: char) -> String {
        let (mut text, mut depth, mut quote) = (String::new(), 1u32, None);
        while let Some(c) = self.next() {
            match (quote, c) {
                (_, '\\') if quote != Some('\'') => {
                    text.push(c);
                    text.extend(self.next());
                    continue;
                }
                (None, '\'' | '"') => quote = Some(c),
                (Some(q), c) if q == c => quote = None,
                (None, c) if c == open => depth += 1,
                (None, c) if c == close => {
                    depth -= 1;
                    if depth == 0 {
                        return text;
                    }
                }
                _ => {}
            }
            text.push(c);
        }
        text
    }

    fn dollar(&mut self, quoted: bool) {
        match self.peek(0) {
            Some('(') => {
                let line = self.line;
                self.next();
                let text = self.balanced('(', ')');
                match text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
                    Some(inner) => self.out.push(WordPiece::Arithmetic { text: inner.to_owned() }),
                    None => self.out.push(WordPiece::Command { text, quoted, line }),
                }
            }
            Some('{') => {
                self.next();
                let inner = self.balanced('{', '}');
                self.out.push(braced(&inner, quoted));
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.peek(0).filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                    self.at += 1;
                }
                self.parameter(name, quoted);
            }
            Some(c) if c.is_ascii_digit() || "@*#?!$-".contains(c) => {
                self.at += 1;
                self.parameter(c.to_string(), quoted);
            }
            _ => self.text('$', quoted),
        }
    }

    fn parameter(&mut self, name: String, quoted: bool) {
        let (index, operator) = (None, String::new());
        let used = ParameterUse { name, index, operator, quoted, length: false, indirect: false };
        self.out.push(WordPiece::Parameter(used));
    }
}

/// The inside of `${..}`.
fn braced(inner: &str, quoted: bool) -> WordPiece {
    let (length, rest) = match inner.strip_prefix('#') {
        Some(rest) if !rest.is_empty() => (true, rest),
        _ => (false, inner),
    };
    let (indirect, rest) = match rest.strip_prefix('!') {
        Some(rest) if !rest.is_empty() => (true, rest),
        _ => (false, rest),
    };
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    // `${@:2}` and `${*}`
    let end = if end == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { end };
    let (name, behind) = rest.split_at(end);
    let (index, operator) = match behind.strip_prefix('[').and_then(|b| b.split_once(']')) {
        Some((index, operator)) => (Some(index.to_owned()), operator),
        None => (None, behind),
    };
    WordPiece::Parameter(ParameterUse {
        name: name.to_owned(),
        index,
        operator: operator.to_owned(),
        quoted,
        length,
        indirect,
    })
}

/// The last part of a path.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether `text` is a valid variable name.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_expansions_are_separate_pieces() {
        let text = |text: &str, quoted| WordPiece::Text { text: text.to_owned(), quoted };
        let all = pieces("a'b $c'\"d\\\"\"$((1+2))$(e \")\" f)", false);
        assert_eq!(all[..3], [text("a", false), text("b $c", true), text("d\"", true)]);
        assert_eq!(all[3], WordPiece::Arithmetic { text: "1+2".to_owned() });
        assert!(matches!(&all[4], WordPiece::Command { text, .. } if text == "e \")\" f"));
    }

    #[test]
    fn braces_hold_a_name_an_index_and_an_operator() {
        let WordPiece::Parameter(used) = braced("A[@]:1", true) else { panic!() };
        assert_eq!((used.name.as_str(), used.index.as_deref(), used.operator.as_str()), ("A", Some("@"), ":1"));
        let WordPiece::Parameter(used) = braced("#A[@]", true) else { panic!() };
        assert!(used.length && used.name == "A");
        let WordPiece::Parameter(used) = braced("P:-\"1\"", false) else { panic!() };
        assert_eq!((used.name.as_str(), used.operator.as_str()), ("P", ":-\"1\""));
    }

    #[test]
    fn a_document_keeps_its_quotes() {
        let all = pieces("{\"a\": \"$B\"}", true);
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], WordPiece::Text { text: "{\"a\": \"".to_owned(), quoted: true });
    }
}
