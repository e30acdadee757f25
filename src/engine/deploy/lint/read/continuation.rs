//! Flags that are not passed to the command above them.

use std::sync::Arc;

use crate::lint::catalogue::CONTINUATION;
use crate::lint::shell::places::UnreadPlace;
use mcctl_base::check::{Finding, Severity, SourceLocation};

/// The reason for text that describes a command: `[--port PORT | --socket PATH]`.
pub(crate) const USAGE_SYNTAX: &str = "the command is in the syntax of documentation";
/// The reason for flags without a command above them.
const FRAGMENT: &str = "flags without a program";

/// Finds backslashes that are followed by a space, and the first one that is followed by a carriage
/// return. Such a line ends the command, and the flags below become a separate command.
pub(crate) fn broken_continuations(text: &str, file: &Arc<str>) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut has_return = false;
    let lines: Vec<&str> = text.split('\n').collect();
    for (pair, number) in lines.windows(2).zip(1u32..) {
        let [line, next] = pair else { continue };
        let (cause, remedy) = match line.trim_end_matches([' ', '\t']) {
            bare if bare.ends_with(" \\") && bare != *line => ("a space", "remove the trailing space"),
            bare if bare.ends_with(" \\\r") && !has_return => {
                ("a carriage return", "save the script with LF instead of CRLF line ends: sed -i 's/\\r$//' FILE")
            }
            _ => continue,
        };
        let flag = next.split_whitespace().next().filter(|word| word.starts_with('-'));
        let Some(flag) = flag.filter(|_| !line.trim_start().starts_with('#')) else { continue };
        has_return |= line.ends_with('\r');
        out.push(Finding {
            id: CONTINUATION.id,
            severity: Severity::Error,
            finding: "the command ends on this line; the flags on the next lines are not passed to it".to_owned(),
            evidence: format!("the line ends with {cause} after the backslash; the next line begins with {flag}"),
            remedy: remedy.to_owned(),
            place: Some(SourceLocation { file: file.clone(), line: number }),
        });
    }
    out
}

/// Separates lost flags from flags that were never meant to run: those of documentation, and those
/// without a command.
pub(crate) fn sort_lost_flags<'t>(
    found: Vec<Finding>,
    text_of: impl Fn(&str) -> Option<&'t str>,
    unread: &mut Vec<UnreadPlace>,
) -> Vec<Finding> {
    let mut kept = Vec::new();
    for finding in found {
        let place = finding.place.as_ref().filter(|_| finding.id == CONTINUATION.id);
        let reason = place.and_then(|place| Some((place, not_a_command(text_of(&place.file)?, place.line)?)));
        let Some((place, (first, reason))) = reason else {
            kept.push(finding);
            continue;
        };
        let is_listed =
            |unread: &UnreadPlace| unread.place.file == place.file && (first..=place.line).contains(&unread.place.line);
        if !unread.iter().any(is_listed) {
            unread.push(UnreadPlace { place: place.clone(), lines: 1, reason: reason.to_owned(), needs: None });
        }
    }
    kept
}

/// Why the flag on `line` is not part of a command, and the first line of the text that it belongs
/// to.
fn not_a_command(text: &str, line: u32) -> Option<(u32, &'static str)> {
    let lines: Vec<&str> = text.lines().take(usize::try_from(line).ok()?).collect();
    let continues = |line: &&str| line.trim_end().ends_with(['\\', '|']);
    let above = lines.iter().rev().skip(1).take_while(|line| continues(line)).count();
    let first = lines.len().checked_sub(above + 1)?;
    if lines.get(first..)?.iter().any(|line| has_optional_flag(line)) {
        return Some((u32::try_from(first + 1).ok()?, USAGE_SYNTAX));
    }
    let is_empty = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    lines[..first].iter().all(is_empty).then_some((line, FRAGMENT))
}

/// Whether a word begins with a bracket and a flag.
fn has_optional_flag(line: &str) -> bool {
    line.split_whitespace().any(|word| word.starts_with("[-"))
}

/// Whether the arguments of a program are in the syntax of documentation: `[--port PORT]`,
/// `[options]`.
pub(crate) fn is_usage<'w>(mut words: impl Iterator<Item = &'w str>) -> bool {
    const NAMES: &[&str] = &["options", "option", "flags", "flag", "args", "arguments"];
    words.any(|word| {
        let inner = word.strip_prefix('[').map(|rest| rest.trim_end_matches(['.', ']']));
        inner.is_some_and(|inner| inner.starts_with('-') || NAMES.contains(&inner.to_ascii_lowercase().as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_and_fragments_are_not_lost_flags() {
        let why = |text: &str, line| not_a_command(text, line).map(|(_, reason)| reason);
        assert_eq!(why("bench --a \\\n  [--b X | --c]\n", 2), Some(USAGE_SYNTAX));
        assert_eq!(why("bench --a \\\n  [--b X |\n  --c]\n", 3), Some(USAGE_SYNTAX));
        assert_eq!(why("# flags\n--a \\\n--b\n", 2), Some(FRAGMENT));
        assert_eq!(why("bench --a \\\n  # note\n  --b\n", 3), None);
        assert_eq!(why("X=${A[-1]}\nbench\n--b\n", 3), None);
    }

    #[test]
    fn usage_is_recognized_by_words_in_brackets() {
        let usage = |line: &str| is_usage(line.split(' '));
        assert!(usage("[--port N]") && usage("--a 1 [-b]") && usage("[OPTIONS]") && usage("[args...]"));
        assert!(!usage("--bs [1,2]") && !usage("--x [\"a\"]") && !usage("--model m"));
    }
}
