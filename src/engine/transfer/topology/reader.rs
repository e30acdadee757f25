//! Reads files from a tree and collects findings about unreadable or malformed files.

use std::str::FromStr;

use crate::topology::finding::DeviceFinding;
use mcctl_base::text::{Quoted, escaped};
use mcctl_sys::{FileReadError, FileTree};

/// Maximum number of characters in a single-line value; the kernel writes far fewer.
const WORD_MAX: usize = 256;

pub(in crate::topology) struct TreeReader<'a> {
    pub tree: &'a FileTree,
    pub findings: Vec<DeviceFinding>,
}

impl TreeReader<'_> {
    /// The contents of a file; `None` if the file does not exist, is empty or is unreadable. An
    /// unreadable file adds a finding.
    pub(super) fn text(&mut self, path: &str) -> Option<String> {
        let found = self.tree.text(path);
        self.or_finding(found).filter(|text| !text.is_empty())
    }

    /// The contents of a file, escaped to fit on one line.
    pub(super) fn word(&mut self, path: &str) -> Option<String> {
        self.text(path).map(|text| escaped(&text.chars().take(WORD_MAX).collect::<String>()))
    }

    /// The contents of an optional file; errors are ignored.
    pub(super) fn text_if_any(&self, path: &str) -> Option<String> {
        self.tree.text(path).ok().flatten().filter(|text| !text.is_empty())
    }

    /// The number in a file. A malformed number adds a finding.
    pub(super) fn number<T: FromStr>(&mut self, path: &str) -> Option<T> {
        let text = self.text(path)?;
        let number = text.parse().ok();
        self.parsed_or_finding(number, path, &text, "a number")
    }

    /// The names in a directory; empty if the directory does not exist or is unreadable. An
    /// unreadable directory adds a finding.
    pub(super) fn names(&mut self, path: &str) -> Vec<String> {
        let found = self.tree.names(path);
        self.or_finding(found).unwrap_or_default()
    }

    /// Returns `value`, which was parsed from `text`. `None` adds a finding.
    pub(super) fn parsed_or_finding<T>(
        &mut self,
        value: Option<T>,
        path: &str,
        text: &str,
        expected: &'static str,
    ) -> Option<T> {
        if value.is_none() {
            self.findings.push(DeviceFinding::Odd { path: path.to_owned(), text: Quoted(text).to_string(), expected });
        }
        value
    }

    fn or_finding<T>(&mut self, found: Result<Option<T>, FileReadError>) -> Option<T> {
        found.unwrap_or_else(|FileReadError { path, source }| {
            self.findings.push(DeviceFinding::FileReadError { path, reason: source.to_string() });
            None
        })
    }
}
