//! The choices under which a value, a process or a file exists.
//!
//! A subject is a condition whose result is not known, or a word that the script compares with
//! texts and patterns. Each branch adds a choice: the subject matches a pattern, or it does not.
//! Two paths with contradicting choices never happen in the same run.

use std::sync::Arc;

/// What one branch assumes about a subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchChoice {
    /// Number of the subject, unique in the deployment.
    pub subject: u32,
    /// Texts separated by `|`. In each, `*` stands for any text.
    pub pattern: Arc<str>,
    /// Whether the subject matches `pattern`.
    pub is: bool,
}

impl BranchChoice {
    /// The choice that holds if this one does not.
    pub fn negated(&self) -> BranchChoice {
        BranchChoice { is: !self.is, ..self.clone() }
    }

    /// Whether the pattern covers all that `text`, which may contain `*`, stands for.
    fn covers(&self, text: &str) -> bool {
        self.pattern.split('|').any(|own| matches_glob(own, text))
    }

    /// Whether this choice excludes every text that `text`, which may contain `*`, stands for.
    fn excludes(&self, text: &str) -> bool {
        // Two patterns may have a text in common.
        let may_meet =
            |own: &str| matches_glob(own, text) || text.contains('*') && (own.contains('*') || matches_glob(text, own));
        if self.is { !self.pattern.split('|').any(may_meet) } else { self.covers(text) }
    }
}

/// Whether `pattern` matches all of `text`. `*` stands for any text; other characters stand for
/// themselves.
pub(crate) fn matches_glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = text.strip_prefix(first).and_then(|text| text.strip_suffix(last)) else { return false };
    middle.split('*').all(|part| text.split_once(part).map(|(_, behind)| text = behind).is_some())
}

/// The choices on the way to a command, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchPath(Vec<BranchChoice>);

impl From<BranchChoice> for BranchPath {
    fn from(choice: BranchChoice) -> BranchPath {
        BranchPath(vec![choice])
    }
}

impl BranchPath {
    /// This path and one more choice.
    pub fn with(&self, choice: &BranchChoice) -> BranchPath {
        let mut out = self.clone();
        out.push(choice.clone());
        out
    }

    /// Adds a choice, unless the path has it.
    pub fn push(&mut self, choice: BranchChoice) {
        if let Err(at) = self.0.binary_search(&choice) {
            self.0.insert(at, choice);
        }
    }

    /// Adds all choices of `other`.
    pub fn extend(&mut self, other: &BranchPath) {
        other.0.iter().for_each(|choice| self.push(choice.clone()));
    }

    /// Whether no run takes both paths.
    pub fn contradicts(&self, other: &BranchPath) -> bool {
        let refutes =
            |path: &BranchPath, all: &BranchPath| all.0.iter().any(|choice| path.decide(choice) == Some(false));
        refutes(self, other) || refutes(other, self)
    }

    /// Whether each run that takes this path also takes `other`.
    pub fn implies(&self, other: &BranchPath) -> bool {
        other.0.iter().all(|wanted| self.decide(wanted) == Some(true))
    }

    /// Whether `choice` holds on this path. `None` if the path does not decide it.
    fn decide(&self, choice: &BranchChoice) -> Option<bool> {
        let start = self.0.partition_point(|ours| ours.subject < choice.subject);
        let end = self.0.partition_point(|ours| ours.subject <= choice.subject);
        let about = &self.0[start..end];
        if about.binary_search(choice).is_ok() {
            return Some(true);
        }
        let is_match = if about.iter().any(|ours| ours.is && ours.pattern.split('|').all(|text| choice.covers(text))) {
            true
        } else if choice.pattern.split('|').all(|text| about.iter().any(|ours| ours.excludes(text))) {
            false
        } else {
            return None;
        };
        Some(is_match == choice.is)
    }

    /// The first choice of `guard` that does not hold in a run of this path. Every other subject
    /// differs from all compared texts there.
    pub fn missing<'g>(&self, guard: &'g BranchPath) -> Option<&'g BranchChoice> {
        guard.0.iter().find(|choice| !self.decide(choice).unwrap_or(!choice.is))
    }

    /// The number of choices.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// When a process of a script runs: its branches, and its start and end in the order of the
/// script's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptSpan {
    /// Number of the script.
    pub script: u32,
    pub path: BranchPath,
    /// The variants of commands that it belongs to. A command has several if its words or its
    /// environment depend on branches.
    pub variants: BranchPath,
    /// Position of its start.
    pub start: u32,
    /// Position at which it is stopped or waited for.
    pub end: Option<u32>,
    /// The script waits until the process exits.
    pub foreground: bool,
    /// The process is started by a loop with an unknown number of runs, or by a function that the
    /// script does not call.
    pub uncertain: bool,
    /// The process may have ended before the script goes on, or has a network of its own.
    pub may_end: bool,
}

impl ScriptSpan {
    /// Whether no run has both processes.
    pub fn excludes(&self, other: &ScriptSpan) -> bool {
        self.path.contradicts(&other.path) || self.variants.contradicts(&other.variants)
    }

    /// Whether a run that has one process certainly has the other, and neither was stopped before
    /// the other started.
    pub fn surely_meets(&self, other: &ScriptSpan) -> bool {
        let (first, second) = if self.start <= other.start { (self, other) } else { (other, self) };
        !self.uncertain
            && !other.uncertain
            && !self.variants.contradicts(&other.variants)
            && !self.path.contradicts(&other.path)
            && (self.path.implies(&other.path) || other.path.implies(&self.path))
            && (self.script != other.script || first.end.is_none_or(|end| end > second.start))
    }

    /// Whether both processes certainly run at the same time.
    pub fn surely_overlaps(&self, other: &ScriptSpan) -> bool {
        let (first, second) = if self.start <= other.start { (self, other) } else { (other, self) };
        // A condition of the second one may be a test of the first one.
        self.surely_meets(other)
            && !self.may_end
            && !other.may_end
            && (self.script != other.script || !first.foreground && first.path.implies(&second.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(all: &[(&str, bool)]) -> BranchPath {
        let mut out = BranchPath::default();
        all.iter().for_each(|(pattern, is)| out.push(BranchChoice { subject: 1, pattern: (*pattern).into(), is: *is }));
        out
    }

    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text) in
            [("a*", "a"), ("*", ""), ("a*b*c", "axbbc"), ("*.json", "x.json"), ("a*", "a*b"), ("*-*-*", "a-b-c")]
        {
            assert!(matches_glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("ab*ba", "aba"), ("a*b*c", "acb"), ("*a", "ab")] {
            assert!(!matches_glob(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_of_one_subject_exclude_each_other() {
        for (ours, theirs) in [
            (path(&[("a", true)]), path(&[("b|c", true)])),
            (path(&[("a|b", true)]), path(&[("a", false), ("b", false)])),
            (path(&[("pre-1", true)]), path(&[("pre*", false)])),
            (path(&[("pre*", true)]), path(&[("decode", true)])),
        ] {
            assert!(ours.contradicts(&theirs) && theirs.contradicts(&ours), "{ours:?} {theirs:?}");
        }
        for (ours, theirs) in [
            (path(&[("a|b", true)]), path(&[("a", false)])),
            (path(&[("pre*", true)]), path(&[("*fix", true)])),
            (path(&[("pre*", true)]), path(&[("pre-1", false)])),
            (path(&[("a", false)]), path(&[("b", false)])),
        ] {
            assert!(!ours.contradicts(&theirs) && !theirs.contradicts(&ours), "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn a_text_implies_the_patterns_that_match_it() {
        assert!(path(&[("a", true)]).implies(&path(&[("a|b", true), ("c*", false)])));
        assert!(path(&[("a|b", false)]).implies(&path(&[("b", false)])));
        assert!(!path(&[("a|b", true)]).implies(&path(&[("a", true)])));
    }
}
