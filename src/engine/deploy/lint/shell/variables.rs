//! The variables of a script: every assignment with the branches in which it applies.

use std::collections::BTreeMap;

use crate::lint::model::Variable;
use crate::lint::shell::choice::BranchPath;
use crate::lint::shell::field::ShellField;
use mcctl_base::check::SourceLocation;

/// Limit on the assignments that are kept of one variable. With more, its value is unknown.
const ENTRIES_MAX: usize = 64;
/// Limit on the parts of one value.
const PARTS_MAX: usize = 2048;
/// Limit on the length of one value, in bytes.
const BYTES_MAX: usize = 1 << 16;

/// A part of a value, and the branches in which it was appended. Empty for a part that is always
/// present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuardedPart {
    pub guard: BranchPath,
    pub field: ShellField,
}

impl GuardedPart {
    /// A part that is always present.
    pub(super) fn always(field: ShellField) -> GuardedPart {
        GuardedPart { guard: BranchPath::default(), field }
    }
}

/// The value of a variable: the concatenation of the parts, or the elements of an array. Without
/// parts, the variable is unset or an empty array. A text that contains `$` is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShellValue {
    pub parts: Vec<GuardedPart>,
    pub is_array: bool,
    /// Unset, or set to a value that is not followed. The only part names the source.
    pub is_outside: bool,
}

impl ShellValue {
    /// A value of one part.
    pub(super) fn text(text: impl Into<String>, place: SourceLocation) -> ShellValue {
        let parts = vec![GuardedPart::always(ShellField::new(text, place))];
        ShellValue { parts, is_array: false, is_outside: false }
    }

    /// A value that is not followed, for the variable `name`.
    pub(super) fn unknown(name: &str, place: SourceLocation) -> ShellValue {
        ShellValue { is_outside: true, ..ShellValue::text(format!("${name}"), place) }
    }

    /// Where the value is set.
    pub(super) fn place(&self) -> Option<&SourceLocation> {
        self.parts.first().map(|part| &part.field.located.place)
    }

    /// Whether this is the empty text.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_array && self.parts.iter().all(|part| part.field.text().is_empty())
    }

    /// Whether nothing of the value is known.
    pub(super) fn is_unknown(&self) -> bool {
        let is_known = |part: &GuardedPart| part.field.located.is_known();
        self.is_outside || !self.is_array && !self.parts.is_empty() && !self.parts.iter().any(is_known)
    }
}

/// One assignment, with the branches in which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AssignmentEntry {
    pub path: BranchPath,
    pub value: ShellValue,
    /// The caller may choose another value: `${X:-1}`.
    pub is_default: bool,
}

/// A variable. Later entries replace earlier ones where their path holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShellVariable {
    pub entries: Vec<AssignmentEntry>,
    pub is_exported: bool,
    /// Changes with each assignment.
    pub version: u32,
}

/// All variables of a script.
#[derive(Clone, Debug, Default)]
pub(super) struct ShellVariables {
    all: BTreeMap<String, ShellVariable>,
    last_version: u32,
    /// Set by `set -a`.
    pub export_all: bool,
}

impl ShellVariables {
    /// The variables that a process with the environment `env` begins with.
    pub(super) fn inherited(env: BTreeMap<String, Variable>) -> ShellVariables {
        let mut out = ShellVariables::default();
        for (name, variable) in env {
            let value = match variable {
                Variable::Text(located) => ShellValue::text(located.text, located.place),
                Variable::Elsewhere(located) => {
                    ShellValue { is_outside: true, ..ShellValue::text(located.text, located.place) }
                }
            };
            let entry = AssignmentEntry { path: BranchPath::default(), value, is_default: false };
            out.all.insert(name, ShellVariable { entries: vec![entry], is_exported: true, version: 0 });
        }
        out
    }

    /// The variable `name`, if the script or its environment sets it.
    pub(super) fn get(&self, name: &str) -> Option<&ShellVariable> {
        self.all.get(name)
    }

    /// All variables with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &ShellVariable)> {
        self.all.iter()
    }

    /// The version of `name`, for the key of a subject.
    pub(super) fn version(&self, name: &str) -> u32 {
        self.all.get(name).map_or(0, |variable| variable.version)
    }

    /// Replaces the variable, or removes it.
    pub(super) fn restore(&mut self, name: &str, saved: Option<ShellVariable>) {
        match saved {
            Some(variable) => self.all.insert(name.to_owned(), variable),
            None => self.all.remove(name),
        };
    }

    /// Assigns a value on `path`.
    pub(super) fn assign(&mut self, name: &str, path: &BranchPath, value: ShellValue, is_default: bool) {
        self.last_version += 1;
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.version = self.last_version;
        variable.is_exported |= self.export_all;
        variable.entries.retain(|entry| !entry.path.implies(path));
        variable.entries.push(AssignmentEntry { path: path.clone(), value, is_default });
        if variable.entries.len() > ENTRIES_MAX {
            let value = ShellValue::unknown(name, SourceLocation { file: "".into(), line: 0 });
            variable.entries = vec![AssignmentEntry { path: BranchPath::default(), value, is_default: false }];
        }
    }

    /// Records that a comparison has shown the value of `name` on `path`. The subject of the
    /// variable stays the same.
    pub(super) fn learn(&mut self, name: &str, path: &BranchPath, value: ShellValue) {
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.entries.push(AssignmentEntry { path: path.clone(), value, is_default: false });
    }

    /// Appends the parts of `added` on `path`, as `name+=..` does.
    pub(super) fn append(&mut self, name: &str, path: &BranchPath, added: ShellValue) {
        self.last_version += 1;
        let export_all = self.export_all;
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.version = self.last_version;
        variable.is_exported |= export_all;
        // Nothing that certainly applies here: the variable may also come from outside.
        if !variable.entries.iter().any(|entry| path.implies(&entry.path)) && variable.entries.len() < ENTRIES_MAX {
            let first = AssignmentEntry { path: path.clone(), value: ShellValue::default(), is_default: false };
            variable.entries.insert(0, first);
        }
        for entry in variable.entries.iter_mut().filter(|entry| !entry.path.contradicts(path)) {
            let is_whole = entry.path.implies(path);
            let value = &mut entry.value;
            let bytes: usize = value.parts.iter().map(|part| part.field.text().len()).sum();
            if value.parts.len() > PARTS_MAX || bytes > BYTES_MAX {
                continue;
            }
            value.is_array |= added.is_array;
            value.is_outside = false;
            for part in &added.parts {
                let mut part = part.clone();
                if !is_whole {
                    part.guard.extend(path);
                }
                value.parts.push(part);
            }
        }
    }

    /// Marks `name` as part of the environment of later processes.
    pub(super) fn export(&mut self, name: &str, place: &SourceLocation) {
        let variable = self.all.entry(name.to_owned()).or_default();
        variable.is_exported = true;
        if variable.entries.is_empty() {
            let value = ShellValue::unknown(name, place.clone());
            variable.entries.push(AssignmentEntry { path: BranchPath::default(), value, is_default: false });
        }
    }

    /// Marks all values as changeable: another file may have set them.
    pub(super) fn touch_all(&mut self) {
        for entry in self.all.values_mut().flat_map(|variable| &mut variable.entries) {
            entry.is_default = true;
        }
    }
}
