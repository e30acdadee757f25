//! Reading a tree while keeping a list of what could not be read: an odd file is a finding, not the end.

use std::str::FromStr;

use crate::engine::base::text::{Quoted, escaped};
use crate::engine::sys::{FileReadError, FileTree};
use crate::engine::topology::finding::Finding;

/// Characters of a word; the kernel writes far fewer.
const WORD_MAX: usize = 256;

pub(in crate::engine::topology) struct Reader<'a> {
    pub tree: &'a FileTree,
    pub findings: Vec<Finding>,
}

impl Reader<'_> {
    /// The text of a file; `None` where it is absent, empty or unreadable (which is noted).
    pub fn text(&mut self, path: &str) -> Option<String> {
        let found = self.tree.text(path);
        self.noted(found).filter(|text| !text.is_empty())
    }

    /// The text of a file, fit for a line.
    pub fn word(&mut self, path: &str) -> Option<String> {
        self.text(path).map(|text| escaped(&text.chars().take(WORD_MAX).collect::<String>()))
    }

    /// The text of a file whose absence, emptiness and refusal all mean that there is nothing to tell.
    pub fn text_if_any(&self, path: &str) -> Option<String> {
        self.tree.text(path).ok().flatten().filter(|text| !text.is_empty())
    }

    /// The number in a file.
    pub fn number<T: FromStr>(&mut self, path: &str) -> Option<T> {
        let text = self.text(path)?;
        let number = text.parse().ok();
        self.wanted(number, path, &text, "a number")
    }

    /// The names in a folder; none where it is absent or unreadable (which is noted).
    pub fn names(&mut self, path: &str) -> Vec<String> {
        let found = self.tree.names(path);
        self.noted(found).unwrap_or_default()
    }

    /// `value`, which was read from `text`; where it could not be, that is noted.
    pub fn wanted<T>(&mut self, value: Option<T>, path: &str, text: &str, wanted: &'static str) -> Option<T> {
        if value.is_none() {
            self.findings.push(Finding::Odd { path: path.to_owned(), text: Quoted(text).to_string(), wanted });
        }
        value
    }

    fn noted<T>(&mut self, found: Result<Option<T>, FileReadError>) -> Option<T> {
        found.unwrap_or_else(|FileReadError { path, source }| {
            self.findings.push(Finding::Unreadable { path, reason: source.to_string() });
            None
        })
    }
}
