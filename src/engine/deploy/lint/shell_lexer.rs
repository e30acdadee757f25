//! Splits shell text into commands and words with their line numbers. Nothing is executed. Only
//! [`expand`] substitutes variables.
//!
//! Supports the syntax of typical start scripts: quotes, `\` at the end of a line, comments, `&&`
//! `||` `;` `|` `&`, parentheses, redirections and here-documents. `$(..)` stays one word. Keywords
//! (`if`, `then`, `do`) are dropped.

use std::collections::VecDeque;

use crate::lint::shell::word::is_name;

/// One word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellWord {
    pub text: String,
    /// The line on which the word begins.
    pub line: u32,
    /// Whether the whole word was in single quotes, so that `$` is a literal character.
    pub literal: bool,
}

/// Keywords that a command may follow.
const CONTROL: &[&str] = &["if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "fi", "done", "esac"];

/// The commands of `text`. `line` is the number of its first line.
pub(super) fn commands(text: &str, line: u32) -> Vec<Vec<ShellWord>> {
    let mut reader =
        ShellLexer { rest: text.chars().collect(), line, out: Vec::new(), current: Vec::new(), heredocs: Vec::new() };
    reader.run();
    reader.out
}

struct ShellLexer {
    rest: VecDeque<char>,
    line: u32,
    out: Vec<Vec<ShellWord>>,
    current: Vec<ShellWord>,
    /// Terminators of the here-documents that begin after this line.
    heredocs: Vec<String>,
}

impl ShellLexer {
    fn peek(&self, at: usize) -> Option<char> {
        self.rest.get(at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.pop_front()?;
        self.line = self.line.saturating_add(u32::from(c == '\n'));
        Some(c)
    }

    fn end_command(&mut self) {
        let mut words = std::mem::take(&mut self.current);
        while words.first().is_some_and(|word| !word.literal && CONTROL.contains(&word.text.as_str())) {
            words.remove(0);
        }
        if !words.is_empty() {
            self.out.push(words);
        }
    }

    fn run(&mut self) {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' if self.peek(1) == Some('\n') => {
                    self.next();
                    self.next();
                }
                '\\' if self.peek(1) == Some('\r') && self.peek(2) == Some('\n') => {
                    self.next();
                    self.next();
                    self.next();
                }
                '\n' => {
                    self.next();
                    self.end_command();
                    self.skip_heredocs();
                }
                c if c.is_whitespace() => {
                    self.next();
                }
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                ';' | '&' | '|' | '(' | ')' => {
                    let is_redirect = c == '&' && self.peek(1) == Some('>');
                    self.next();
                    if !is_redirect {
                        self.end_command();
                    }
                }
                '<' | '>' => self.redirection(),
                c if c.is_ascii_digit() && matches!(self.peek(1), Some('<' | '>')) => {
                    self.next();
                    self.redirection();
                }
                _ => {
                    let word = self.word();
                    // Scripts put comments between the lines of a command in backquotes. They
                    // expand to nothing.
                    if !word.text.starts_with("$#") || word.text.len() == 2 {
                        self.current.push(word);
                    }
                }
            }
        }
        self.end_command();
    }

    /// Consumes `>file`, `2>&1` or `<<EOF`. The target is not a word of the command.
    fn redirection(&mut self) {
        let mut sign = String::new();
        while let Some(c) = self.peek(0).filter(|c| matches!(c, '<' | '>' | '&' | '-' | '|')) {
            sign.push(c);
            self.next();
        }
        if self.peek(0) == Some('(') {
            return;
        }
        while self.peek(0).is_some_and(|c| c == ' ' || c == '\t') {
            self.next();
        }
        if self.peek(0).is_some_and(|c| !c.is_whitespace() && !";|()".contains(c)) {
            let target = self.word();
            if sign.starts_with("<<") && !sign.starts_with("<<<") {
                self.heredocs.push(target.text);
            }
        }
    }

    fn skip_heredocs(&mut self) {
        for end in std::mem::take(&mut self.heredocs) {
            while !self.rest.is_empty() {
                let mut line = String::new();
                while let Some(c) = self.next().filter(|c| *c != '\n') {
                    line.push(c);
                }
                if line.trim() == end {
                    break;
                }
            }
        }
    }

    fn word(&mut self) -> ShellWord {
        let line = self.line;
        let mut text = String::new();
        let mut literal = true;
        let mut any = false;
        while let Some(c) = self.peek(0) {
            match c {
                '\'' => {
                    self.next();
                    while let Some(c) = self.next().filter(|c| *c != '\'') {
                        text.push(c);
                    }
                    any = true;
                }
                '"' => {
                    literal = false;
                    any = true;
                    self.next();
                    self.double_quoted(&mut text);
                }
                '\\' => {
                    literal = false;
                    self.next();
                    match self.next() {
                        Some('\n') | None => {}
                        Some(c) => text.push(c),
                    }
                }
                '$' if self.peek(1) == Some('(') || self.peek(1) == Some('{') => {
                    literal = false;
                    self.dollar(&mut text);
                }
                '`' => {
                    literal = false;
                    text.push('$');
                    self.next();
                    while let Some(c) = self.next().filter(|c| *c != '`') {
                        text.push(c);
                    }
                }
                c if c.is_whitespace() || ";&|()<>".contains(c) => break,
                c => {
                    literal = false;
                    text.push(c);
                    self.next();
                }
            }
        }
        ShellWord { text, line, literal: literal && any }
    }

    fn double_quoted(&mut self, text: &mut String) {
        while let Some(c) = self.peek(0) {
            match c {
                '"' => {
                    self.next();
                    return;
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        Some('\n') | None => {}
                        Some(c @ ('"' | '\\' | '$' | '`')) => text.push(c),
                        Some(c) => {
                            text.push('\\');
                            text.push(c);
                        }
                    }
                }
                '$' if matches!(self.peek(1), Some('(' | '{')) => self.dollar(text),
                c => {
                    text.push(c);
                    self.next();
                }
            }
        }
    }

    /// Appends `$(..)` or `${..}` unchanged.
    fn dollar(&mut self, text: &mut String) {
        let mut depth = 0u32;
        while let Some(c) = self.next() {
            text.push(c);
            match c {
                '(' | '{' => depth += 1,
                ')' | '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return;
                    }
                }
                _ => {}
            }
        }
    }
}

/// Limit on the length of an expanded string.
const EXPANDED_MAX: usize = 1 << 13;

/// `text` with `$NAME`, `${NAME}`, `${NAME:-default}` and `$(NAME)` replaced by `value(NAME)`.
/// Unknown names stay unchanged.
pub(super) fn expand(text: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        let (name, fallback, length) = match tail.chars().next() {
            Some(open @ ('{' | '(')) => {
                let close = if open == '{' { '}' } else { ')' };
                let Some(end) = tail.find(close) else { break };
                let inner = &tail[1..end];
                match inner.split_once(":-").or_else(|| inner.split_once('-')) {
                    Some((name, fallback)) if open == '{' => (name, Some(fallback), end + 1),
                    _ => (inner, None, end + 1),
                }
            }
            _ => {
                let end = tail.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(tail.len());
                (&tail[..end], None, end)
            }
        };
        let known = is_name(name).then(|| value(name)).flatten();
        match known.or_else(|| fallback.filter(|_| is_name(name)).map(str::to_owned)) {
            Some(known) => out.push_str(&known),
            None => out.push_str(&rest[at..at + 1 + length]),
        }
        rest = &tail[length..];
        if out.len() > EXPANDED_MAX {
            return text.to_owned();
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        commands(text, 1).into_iter().map(|c| c.into_iter().map(|w| w.text).collect()).collect()
    }

    #[test]
    fn quotes_continuations_and_operators_are_parsed() {
        let text = "a \"b c\" 'd\"e' \\\n  f>log 2>&1 && g; # no\nh \"x\\\"y\" | i";
        assert_eq!(words(text), [vec!["a", "b c", "d\"e", "f"], vec!["g"], vec!["h", "x\"y"], vec!["i"]]);
    }

    #[test]
    fn words_carry_their_line_across_continuations_and_quotes() {
        let all = commands("\na \\\n  b \\\n  \"c\nd\" e\n", 10);
        let lines: Vec<u32> = all[0].iter().map(|w| w.line).collect();
        assert_eq!(lines, [11, 12, 13, 14]);
    }

    #[test]
    fn here_documents_and_keywords_are_not_commands() {
        let text = "if true; then\n cat <<EOF > f\nmooncake_master --x\nEOF\n run me\nfi\n";
        assert_eq!(words(text), [vec!["true"], vec!["cat"], vec!["run", "me"]]);
        assert_eq!(words("A=$(date +%s) b ${c:-d e}"), [["A=$(date +%s)", "b", "${c:-d e}"]]);
    }

    #[test]
    fn known_variables_are_expanded_and_others_stay() {
        let value = |name: &str| (name == "A").then(|| "1".to_owned());
        assert_eq!(expand("x$A-${A}_$(A) $B ${B:-2} ${C} $(date) $", &value), "x1-1_1 $B 2 ${C} $(date) $");
    }
}
