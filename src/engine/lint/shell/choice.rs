//! The choices under which a value, a process or a file exists.
//!
//! A subject is a condition whose result is not known, or a variable that the script compares with texts. Each branch adds a choice: the
//! subject is a text, or it is not. Two paths with contradicting choices never happen in the same run.

use std::sync::Arc;

/// What one branch assumes about a subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchChoice {
    /// Number of the subject, unique in the deployment.
    pub subject: u32,
    pub text: Arc<str>,
    /// Whether the subject is `text`, or any other.
    pub is: bool,
}

impl BranchChoice {
    /// The choice that holds if this one does not.
    pub fn negated(&self) -> BranchChoice {
        BranchChoice { is: !self.is, ..self.clone() }
    }

    fn contradicts(&self, other: &BranchChoice) -> bool {
        self.subject == other.subject
            && match (self.is, other.is) {
                (true, true) => self.text != other.text,
                (false, false) => false,
                _ => self.text == other.text,
            }
    }
}

/// The choices on the way to a command, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchPath(Vec<BranchChoice>);

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
        self.0.iter().any(|choice| other.0.iter().any(|theirs| choice.contradicts(theirs)))
    }

    /// Whether each run that takes this path also takes `other`.
    pub fn implies(&self, other: &BranchPath) -> bool {
        other.0.iter().all(|wanted| self.decide(wanted) == Some(true))
    }

    /// Whether `choice` holds on this path. `None` if the path does not decide it.
    fn decide(&self, choice: &BranchChoice) -> Option<bool> {
        if self.0.contains(choice) {
            return Some(true);
        }
        let known = self.0.iter().find(|ours| ours.subject == choice.subject && ours.is);
        match known {
            Some(ours) => Some((ours.text == choice.text) == choice.is),
            None if self.0.contains(&choice.negated()) => Some(false),
            None => None,
        }
    }

    /// The first choice of `guard` that does not hold in a run of this path. Every other subject differs from all compared texts there.
    pub fn missing<'g>(&self, guard: &'g BranchPath) -> Option<&'g BranchChoice> {
        guard.0.iter().find(|choice| !self.decide(choice).unwrap_or(!choice.is))
    }

    /// The choices of this path, sorted by subject.
    pub fn choices(&self) -> &[BranchChoice] {
        &self.0
    }
}

/// When a process of a script runs: its branches, and its start and end in the order of the script's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptSpan {
    /// Number of the script.
    pub script: u32,
    pub path: BranchPath,
    /// The variants of commands that it belongs to. A command has several if its words or its environment depend on branches.
    pub variants: BranchPath,
    /// Position of its start.
    pub start: u32,
    /// Position at which it is stopped or waited for.
    pub end: Option<u32>,
    /// The script waits until the process exits.
    pub foreground: bool,
    /// The process is started by a loop with an unknown number of runs, or by a function that the script does not call.
    pub uncertain: bool,
    /// The process may have ended before the script goes on, or has a network of its own.
    pub may_end: bool,
}

impl ScriptSpan {
    /// Whether no run has both processes.
    pub fn excludes(&self, other: &ScriptSpan) -> bool {
        self.path.contradicts(&other.path) || self.variants.contradicts(&other.variants)
    }

    /// Whether a run that has one process certainly has the other, and neither was stopped before the other started.
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
