//! The variables of a script: every assignment with the branches in which it applies.

use std::collections::BTreeMap;

use crate::engine::check::SourceLocation;
use crate::engine::lint::model::{LocatedValue, Variable};
use crate::engine::lint::shell::choice::BranchPath;

/// Limit on the assignments that are kept of one variable. With more, its value is unknown.
const ENTRIES_MAX: usize = 64;
/// Limit on the parts of one value.
const PARTS_MAX: usize = 2048;
/// Limit on the length of one value, in bytes.
const BYTES_MAX: usize = 1 << 16;

/// A part of a value, and the branches in which it was appended. Empty for a part that is always present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedPart {
    pub guard: BranchPath,
    pub located: LocatedValue,
    /// An unknown element of an array that may expand to several words, or to none.
    pub is_open: bool,
}

impl GuardedPart {
    /// A part that is always present.
    pub fn always(located: LocatedValue) -> GuardedPart {
        GuardedPart { guard: BranchPath::default(), located, is_open: false }
    }
}

/// The value of a variable. A text that contains `$` is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellValue {
    /// The concatenation of the parts.
    Text(Vec<GuardedPart>),
    Array(Vec<GuardedPart>),
    /// Unset, or set to a value that is not followed. The text names the source.
    Unknown(LocatedValue),
    Unset,
}

impl ShellValue {
    /// A value of one part.
    pub fn text(text: impl Into<String>, place: SourceLocation) -> ShellValue {
        ShellValue::Text(vec![GuardedPart::always(LocatedValue::new(text, place))])
    }

    /// Where the value is set.
    pub fn place(&self) -> Option<&SourceLocation> {
        match self {
            ShellValue::Text(parts) | ShellValue::Array(parts) => parts.first().map(|part| &part.located.place),
            ShellValue::Unknown(located) => Some(&located.place),
            ShellValue::Unset => None,
        }
    }

    /// Whether this is the empty text.
    pub fn is_empty(&self) -> bool {
        matches!(self, ShellValue::Text(parts) if parts.iter().all(|part| part.located.text.is_empty()))
    }

    /// Whether nothing of the value is known.
    pub fn is_unknown(&self) -> bool {
        match self {
            ShellValue::Text(parts) => parts.iter().all(|part| !part.located.is_known()) && !parts.is_empty(),
            ShellValue::Array(_) | ShellValue::Unset => false,
            ShellValue::Unknown(_) => true,
        }
    }
}

/// One assignment, with the branches in which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignmentEntry {
    pub path: BranchPath,
    pub value: ShellValue,
    /// The caller may choose another value: `${X:-1}`.
    pub is_default: bool,
}

/// A variable. Later entries replace earlier ones where their path holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellVariable {
    pub entries: Vec<AssignmentEntry>,
    pub is_exported: bool,
    /// Changes with each assignment.
    pub version: u32,
}

/// All variables of a script.
#[derive(Clone, Debug, Default)]
pub struct ShellVariables {
    all: BTreeMap<String, ShellVariable>,
    last_version: u32,
    /// Set by `set -a`.
    pub export_all: bool,
}

impl ShellVariables {
    /// The variables that a process with the environment `env` begins with.
    pub fn inherited(env: BTreeMap<String, Variable>) -> ShellVariables {
        let mut out = ShellVariables::default();
        for (name, variable) in env {
            let value = match variable {
                Variable::Text(located) => ShellValue::text(located.text, located.place),
                Variable::Elsewhere(located) => ShellValue::Unknown(located),
            };
            let entry = AssignmentEntry { path: BranchPath::default(), value, is_default: false };
            out.all.insert(name, ShellVariable { entries: vec![entry], is_exported: true, version: 0 });
        }
        out
    }

    /// The variable `name`, if the script or its environment sets it.
    pub fn get(&self, name: &str) -> Option<&ShellVariable> {
        self.all.get(name)
    }

    /// All variables with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &ShellVariable)> {
        self.all.iter()
    }

    /// The version of `name`, for the key of a subject.
    pub fn version(&self, name: &str) -> u32 {
        self.all.get(name).map_or(0, |variable| variable.version)
    }

    /// Replaces the variable, or removes it.
    pub fn restore(&mut self, name: &str, saved: Option<ShellVariable>) {
        match saved {
            Some(variable) => self.all.insert(name.to_owned(), variable),
            None => self.all.remove(name),
        };
    }

    /// Assigns a value on `path`.
    pub fn assign(&mut self, name: &str, path: &BranchPath, value: ShellValue, is_default: bool) {
        self.last_version += 1;
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.version = self.last_version;
        variable.is_exported |= self.export_all;
        variable.entries.retain(|entry| !entry.path.implies(path));
        variable.entries.push(AssignmentEntry { path: path.clone(), value, is_default });
        if variable.entries.len() > ENTRIES_MAX {
            let place = SourceLocation { file: "".into(), line: 0 };
            let value = ShellValue::Unknown(LocatedValue::new(format!("${name}"), place));
            variable.entries = vec![AssignmentEntry { path: BranchPath::default(), value, is_default: false }];
        }
    }

    /// Records that a comparison has shown the value of `name` on `path`. The subject of the variable stays the same.
    pub fn learn(&mut self, name: &str, path: &BranchPath, value: ShellValue) {
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.entries.push(AssignmentEntry { path: path.clone(), value, is_default: false });
    }

    /// Appends `parts` on `path`, as `name+=..` does. `guarded` parts are kept apart by their own branches.
    pub fn append(&mut self, name: &str, path: &BranchPath, parts: Vec<GuardedPart>, is_array: bool) {
        self.last_version += 1;
        let export_all = self.export_all;
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.version = self.last_version;
        variable.is_exported |= export_all;
        // Nothing that certainly applies here: the variable may also come from outside.
        if !variable.entries.iter().any(|entry| path.implies(&entry.path)) {
            let value = if is_array { ShellValue::Array(Vec::new()) } else { ShellValue::Text(Vec::new()) };
            let first = AssignmentEntry { path: path.clone(), value, is_default: false };
            if variable.entries.len() < ENTRIES_MAX {
                variable.entries.insert(0, first);
            }
        }
        for entry in variable.entries.iter_mut().filter(|entry| !entry.path.contradicts(path)) {
            let whole = entry.path.implies(path);
            let added = parts.iter().map(|part| {
                let mut part = part.clone();
                if !whole {
                    part.guard.extend(path);
                }
                part
            });
            match &mut entry.value {
                ShellValue::Text(all) | ShellValue::Array(all)
                    if all.len() < PARTS_MAX
                        && all.iter().map(|part| part.located.text.len()).sum::<usize>() < BYTES_MAX =>
                {
                    all.extend(added);
                }
                ShellValue::Unset => {
                    let added = added.collect();
                    entry.value = if is_array { ShellValue::Array(added) } else { ShellValue::Text(added) };
                }
                ShellValue::Unknown(located) => {
                    let first = GuardedPart::always(located.clone());
                    let all = std::iter::once(first).chain(added).collect();
                    entry.value = if is_array { ShellValue::Array(all) } else { ShellValue::Text(all) };
                }
                _ => {}
            }
        }
    }

    /// Marks `name` as part of the environment of later processes.
    pub fn export(&mut self, name: &str, place: &SourceLocation) {
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.is_exported = true;
        if variable.entries.is_empty() {
            let value = ShellValue::Unknown(LocatedValue::new(format!("${name}"), place.clone()));
            variable.entries.push(AssignmentEntry { path: BranchPath::default(), value, is_default: false });
        }
    }

    /// Marks all values as changeable: another file may have set them.
    pub fn touch_all(&mut self) {
        for entry in self.all.values_mut().flat_map(|variable| &mut variable.entries) {
            entry.is_default = true;
        }
    }
}
