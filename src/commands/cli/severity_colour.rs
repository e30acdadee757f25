//! Colours of severities in reports on a terminal: errors are red, warnings yellow and infos cyan.

use crate::engine::check::Severity;

/// `line` with its first `severity` after the first `skip` bytes in colour. Unchanged without
/// `has_colour`.
///
/// `line` was wrapped before: colours do not count as columns.
pub fn painted(line: String, severity: Severity, skip: usize, has_colour: bool) -> String {
    let skip = (0..=skip.min(line.len())).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
    let word = severity.word();
    match line[skip..].find(word) {
        Some(at) if has_colour => {
            let (before, rest) = line.split_at(skip + at);
            format!("{before}\x1b[1;{}m{word}\x1b[0m{}", code(severity), &rest[word.len()..])
        }
        _ => line,
    }
}

const fn code(severity: Severity) -> u8 {
    match severity {
        Severity::Error => 31,
        Severity::Warning => 33,
        Severity::Info => 36,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_severity_after_the_place_is_in_colour() {
        let line = "error.yaml:1: error: an error".to_owned();
        assert_eq!(
            painted(line.clone(), Severity::Error, "error.yaml:1: ".len(), true),
            "error.yaml:1: \x1b[1;31merror\x1b[0m: an error"
        );
        assert_eq!(painted(line.clone(), Severity::Error, 0, false), line);
        assert_eq!(painted("ä: none".to_owned(), Severity::Info, 1, true), "ä: none");
        assert_eq!(painted("short".to_owned(), Severity::Info, 99, true), "short");
    }
}
