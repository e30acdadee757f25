//! What the commands of a script start and write.

use std::collections::BTreeMap;

use crate::lint::model::{LocatedValue, Process};
use crate::lint::shell::choice::BranchPath;
use crate::lint::shell::places::{UnreadPlace, WrittenText};
use mcctl_base::check::{Finding, SourceLocation};

/// Limit on the number of listed places.
const UNREAD_MAX: usize = 1000;

/// Text on its way from one command to another, or to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamText {
    /// The text and the location of its first character.
    pub located: LocatedValue,
    /// The branches under which it has this value.
    pub path: BranchPath,
}

/// Everything that one source starts.
#[derive(Debug, Default)]
pub(crate) struct ScriptEffects {
    pub processes: Vec<Process>,
    pub unread: Vec<UnreadPlace>,
    /// Mistakes in the syntax.
    pub found: Vec<Finding>,
    pub written: Vec<WrittenText>,
    /// Numbers of the subjects of branches.
    subjects: BTreeMap<String, u32>,
    last_subject: u32,
    /// Position in the order of commands.
    clock: u32,
    /// Scripts followed so far.
    scripts: u32,
    /// Commands followed so far.
    pub steps: u32,
    /// Total length of `written`, of the current script.
    pub written_bytes: usize,
}

impl ScriptEffects {
    /// The number of the subject `key`.
    pub(crate) fn subject(&mut self, key: &str) -> u32 {
        if let Some(number) = self.subjects.get(key) {
            return *number;
        }
        let number = self.fresh_subject();
        self.subjects.insert(key.to_owned(), number);
        number
    }

    /// The number of a subject that no other branch has.
    pub(crate) fn fresh_subject(&mut self) -> u32 {
        self.last_subject = self.last_subject.saturating_add(1);
        self.last_subject
    }

    /// The number of a new script. Its subjects are its own.
    pub(crate) fn new_script(&mut self) -> u32 {
        self.subjects.clear();
        self.steps = 0;
        self.written_bytes = 0;
        self.scripts = self.scripts.saturating_add(1);
        self.scripts
    }

    /// Moves to the next position in the order of commands.
    pub(crate) fn tick(&mut self) -> u32 {
        self.clock = self.clock.saturating_add(1);
        self.clock
    }

    /// Adds a place that was not followed.
    pub(crate) fn not_read(&mut self, place: SourceLocation, lines: u32, reason: impl Into<String>) {
        self.not_read_without(place, lines, reason, None);
    }

    /// Adds a place that can only be followed with the file `needs`.
    pub(crate) fn not_read_without(
        &mut self,
        place: SourceLocation,
        lines: u32,
        reason: impl Into<String>,
        needs: Option<String>,
    ) {
        let place = UnreadPlace { place, lines: lines.max(1), reason: reason.into(), needs };
        if self.unread.len() < UNREAD_MAX && !self.unread.contains(&place) {
            self.unread.push(place);
        }
    }
}
