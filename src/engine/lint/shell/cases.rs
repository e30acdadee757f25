//! `case`: its arms as choices, and their relation to comparisons with single texts.

use crate::engine::lint::shell::choice::BranchChoice;
use crate::engine::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::engine::lint::shell::substitution::matches_glob;
use crate::engine::lint::shell::syntax::{FollowedCase, RawWord, ShellBlock};
use crate::engine::lint::shell::variables::ShellValue;
use crate::engine::lint::shell::word::{WordPiece, pieces};

/// Limit on the texts that are kept of the comparisons of one variable.
const COMPARED_MAX: usize = 64;
/// Limit on the `case` commands that are kept of one variable.
const CASES_MAX: usize = 16;

impl Evaluator<'_> {
    /// The number of the subject of a `case`, and whether it is that of the variable. Comparisons with the same variable share it if each arm
    /// is a single text.
    fn case_subject(&mut self, subject: &RawWord, arms: &[Vec<RawWord>]) -> (u32, bool) {
        let is_literal = |word: &RawWord| is_default(word) || !is_pattern(word);
        let shares = arms.iter().all(|patterns| matches!(patterns.as_slice(), [one] if is_literal(one)));
        let key = match self.compared_variable(&subject.raw) {
            Some((key, _)) => Some(key),
            None => self.key_of(&subject.raw),
        };
        let key = match shares {
            true => key,
            false => {
                let all: Vec<String> = arms.iter().map(|patterns| joined(patterns)).collect();
                // A pattern with a variable may have another value the next time.
                let is_fixed = !all.iter().any(|text| text.contains(['$', '`']));
                key.filter(|_| is_fixed).map(|key| format!("case {key} in {}", all.join(" ; ")))
            }
        };
        let number = match key {
            Some(key) => self.keyed_choice(&key, "").subject,
            None => self.out.fresh_subject(),
        };
        (number, shares)
    }

    /// Runs `case`. The arms that cannot be decided are followed one by one.
    pub(super) fn case(&mut self, subject: &RawWord, arms: &[(Vec<RawWord>, ShellBlock)]) -> ControlFlow {
        let known = self.certain_text(&subject.raw, subject.line);
        let before = self.path.clone();
        let variable = self.compared_variable(&subject.raw);
        let followed: Vec<Vec<RawWord>> = arms.iter().map(|(patterns, _)| patterns.clone()).collect();
        let (number, shares) = self.case_subject(subject, &followed);
        let followed = FollowedCase { subject: number, arms: followed };
        if let (Some((key, _)), false) = (&variable, shares) {
            self.note_case(key, &followed);
        }
        let (mut against, mut after): (Vec<BranchChoice>, Vec<BranchChoice>) = (Vec::new(), Vec::new());
        let (mut staying, mut flow) = (Vec::new(), ControlFlow::Next);
        for (at, (patterns, body)) in arms.iter().enumerate() {
            let is_match = known.as_deref().and_then(|known| matches_any(patterns, known));
            if is_match == Some(false) {
                continue;
            }
            let excluded = match &variable {
                Some((key, _)) if !shares => self.excluded_texts(key, &followed, at),
                _ => Vec::new(),
            };
            if is_match == Some(true) || patterns.iter().any(is_default) {
                if against.is_empty() {
                    return self.run_block(body);
                }
                against.extend(excluded);
                return self.last_arm(body, before, &against, &staying, after, flow);
            }
            let choice = BranchChoice { subject: number, text: arm_text(patterns).into(), is: true };
            let mut choices: Vec<BranchChoice> =
                against.iter().cloned().chain([choice.clone()]).chain(excluded).collect();
            let literals: Vec<String> =
                patterns.iter().filter(|word| !is_pattern(word)).map(|word| plain(&word.raw)).collect();
            let single = literals.first().filter(|_| patterns.len() == 1);
            if let (Some((key, _)), Some(text)) = (&variable, single) {
                choices.push(self.keyed_choice(key, text));
                choices.extend(self.implied_arms(key, text));
                self.note_compared(key, text);
            }
            if self.enter(&before, &choices) {
                if let (Some((_, name)), Some(text)) = (&variable, single) {
                    let path = self.path.clone();
                    let value = ShellValue::text(text.clone(), self.at(subject.line));
                    self.variables.learn(name, &path, value);
                }
                match self.run_block(body) {
                    ControlFlow::Next => staying.push(vec![choice.clone()]),
                    ended => {
                        flow = ended;
                        after.push(choice.negated());
                    }
                }
            }
            against.push(choice.negated());
            if let (Some((key, _)), false) = (&variable, shares) {
                against.extend(literals.iter().map(|text| self.keyed_choice(key, text).negated()).collect::<Vec<_>>());
            }
        }
        self.path = before;
        self.hold(after);
        ControlFlow::Next
    }

    /// Records that a variable was compared with `text`.
    pub(super) fn note_compared(&mut self, key: &str, text: &str) {
        let texts = self.compared.entry(key.to_owned()).or_default();
        if texts.len() < COMPARED_MAX {
            texts.insert(text.to_owned());
        }
    }

    fn note_case(&mut self, key: &str, case: &FollowedCase) {
        let cases = self.cases.entry(key.to_owned()).or_default();
        if cases.len() < CASES_MAX && !cases.iter().any(|known| known.subject == case.subject) {
            cases.push(case.clone());
        }
    }

    /// The choices of earlier `case` commands that hold if the variable is `text`.
    pub(super) fn implied_arms(&self, key: &str, text: &str) -> Vec<BranchChoice> {
        let mut out = Vec::new();
        for case in self.cases.get(key).into_iter().flatten() {
            let Some(taken) = arm_of(case, text) else { continue };
            for (at, patterns) in case.arms.iter().enumerate().take(taken.saturating_add(1)) {
                if !patterns.iter().any(is_default) {
                    let text = arm_text(patterns).into();
                    out.push(BranchChoice { subject: case.subject, text, is: at == taken });
                }
            }
        }
        out
    }

    /// The compared texts that the variable does not have if `case` takes the arm `at`.
    fn excluded_texts(&mut self, key: &str, case: &FollowedCase, at: usize) -> Vec<BranchChoice> {
        let texts = self.compared.get(key).cloned().unwrap_or_default();
        let other = texts.into_iter().filter(|text| arm_of(case, text).is_some_and(|taken| taken != at));
        other.map(|text| self.keyed_choice(key, &text).negated()).collect()
    }
}

/// A pattern without its quotes.
fn plain(raw: &str) -> String {
    let text = |piece: &WordPiece| match piece {
        WordPiece::Text { text, .. } => text.clone(),
        _ => "$".to_owned(),
    };
    pieces(raw, false).iter().map(text).collect()
}

/// Whether the word is `*`, which matches every text.
fn is_default(word: &RawWord) -> bool {
    word.raw == "*"
}

/// Whether the word may match several texts, or a text that is only known at run time.
fn is_pattern(word: &RawWord) -> bool {
    pieces(&word.raw, false).iter().any(|piece| match piece {
        WordPiece::Text { text, .. } => text.contains(['*', '?', '[', '$', '(']),
        _ => true,
    })
}

/// The patterns of an arm as written.
fn joined(patterns: &[RawWord]) -> String {
    let all: Vec<&str> = patterns.iter().map(|word| word.raw.as_str()).collect();
    all.join("|")
}

/// The arm that `text` takes, or their number if it takes none. `None` if it is not known.
fn arm_of(case: &FollowedCase, text: &str) -> Option<usize> {
    for (at, patterns) in case.arms.iter().enumerate() {
        if matches_any(patterns, text)? {
            return Some(at);
        }
    }
    Some(case.arms.len())
}

/// Whether one of the patterns matches `known`. `None` if that is not known: variables and classes in patterns are not followed.
fn matches_any(patterns: &[RawWord], known: &str) -> Option<bool> {
    let is_followed = |word: &RawWord| {
        pieces(&word.raw, false).iter().all(|piece| match piece {
            WordPiece::Text { text, quoted: false } => {
                !text.contains(['$', '(']) && ["[:", "[=", "[."].iter().all(|class| !text.contains(class))
            }
            WordPiece::Text { text, .. } => !text.contains(['$', '[', '(', '*', '?']),
            _ => false,
        })
    };
    if patterns.iter().any(|word| is_followed(word) && matches_glob(&plain(&word.raw), known)) {
        return Some(true);
    }
    patterns.iter().all(is_followed).then_some(false)
}

/// The text of the choice of an arm.
fn arm_text(patterns: &[RawWord]) -> String {
    match patterns {
        [one] if !is_pattern(one) => plain(&one.raw),
        _ => joined(patterns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arm_of_a_text_is_the_first_that_matches() {
        let word = |raw: &str| RawWord { raw: raw.to_owned(), line: 1 };
        let arms = |all: &[&str]| {
            let arms = all.iter().map(|arm| arm.split('|').map(word).collect()).collect();
            FollowedCase { subject: 1, arms }
        };
        assert_eq!(arm_of(&arms(&["a|b", "[c-e]*", "*"]), "b"), Some(0));
        assert_eq!(arm_of(&arms(&["a|b", "[c-e]*", "*"]), "down"), Some(1));
        assert_eq!(arm_of(&arms(&["a|b", "[!a-e]*", "*"]), "down"), Some(2));
        assert_eq!(arm_of(&arms(&["a"]), "b"), Some(1));
        assert_eq!(arm_of(&arms(&["a", "$B", "*"]), "c"), None);
        assert_eq!(arm_of(&arms(&["[[:alpha:]]", "*"]), "c"), None);
    }
}
