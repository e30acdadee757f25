//! Which checks to do: names of checks and of groups, to do only or to leave out.

use crate::engine::check::{Check, Group};

/// The checks that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    wanted: Vec<&'static str>,
}

/// Neither a check nor a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is neither a check nor a group of checks")]
pub struct UnknownName {
    pub name: String,
    /// Known names that look like it, the nearest first; all groups where none does.
    pub near: Vec<&'static str>,
}

/// The most names that are offered.
const NEAR_MAX: usize = 3;
/// Names that are less alike than this are not offered.
const LIKENESS_MIN: f64 = 0.7;

impl Selection {
    /// Those of `catalogue` that `only` names (all, when it is empty) and `skip` does not.
    ///
    /// # Errors
    /// A name is unknown.
    pub fn parse(only: &[String], skip: &[String], catalogue: &[Check]) -> Result<Selection, UnknownName> {
        if let Some(name) = only.iter().chain(skip).find(|name| !catalogue.iter().any(|check| names(name, check))) {
            // A group that has no check yet is a name all the same.
            if !Group::ALL.iter().any(|group| group.word() == name) {
                return Err(UnknownName { name: name.clone(), near: near(name, catalogue) });
            }
        }
        let listed = |list: &[String], check: &Check| list.iter().any(|name| names(name, check));
        let wanted = catalogue.iter().filter(|c| (only.is_empty() || listed(only, c)) && !listed(skip, c));
        Ok(Selection { wanted: wanted.map(|check| check.id).collect() })
    }

    /// Is this one wanted?
    pub fn wants(&self, check: &Check) -> bool {
        self.wants_id(check.id)
    }

    /// Is the check of this name wanted?
    pub fn wants_id(&self, id: &str) -> bool {
        self.wanted.contains(&id)
    }

    /// Is none wanted?
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }
}

fn names(name: &str, check: &Check) -> bool {
    name == check.id || name == check.group.word()
}

fn near(name: &str, catalogue: &[Check]) -> Vec<&'static str> {
    let known = Group::ALL.iter().map(|group| group.word()).chain(catalogue.iter().map(|check| check.id));
    let mut likely: Vec<(f64, &'static str)> = known
        .map(|id| {
            let part = id.contains(name) && name.len() > 2;
            (if part { 1.0 } else { strsim::jaro_winkler(name, id) }, id)
        })
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .collect();
    likely.sort_by(|a, b| b.0.total_cmp(&a.0));
    match likely.is_empty() {
        true => Group::ALL.iter().map(|group| group.word()).collect(),
        false => likely.into_iter().take(NEAR_MAX).map(|(_, id)| id).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Check] = &[
        Check { id: "memory", group: Group::Host, about: "a", problems: &[] },
        Check { id: "ports", group: Group::Host, about: "b", problems: &[] },
        Check { id: "libraries", group: Group::Wheel, about: "c", problems: &[] },
    ];

    fn chosen(only: &[&str], skip: &[&str]) -> Result<Vec<&'static str>, UnknownName> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Selection::parse(&owned(only), &owned(skip), ALL).map(|selection| selection.wanted)
    }

    #[test]
    fn names_of_checks_and_groups_choose_and_leave_out() {
        assert_eq!(chosen(&[], &[]).unwrap(), ["memory", "ports", "libraries"]);
        assert_eq!(chosen(&["host"], &["ports"]).unwrap(), ["memory"]);
        assert_eq!(chosen(&["libraries", "ports"], &[]).unwrap(), ["ports", "libraries"]);
        assert!(chosen(&["cluster"], &[]).unwrap().is_empty() && chosen(&[], &["host", "wheel"]).unwrap().is_empty());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        let near = |name: &str| chosen(&[], &[name]).unwrap_err().near;
        assert_eq!(near("port"), ["ports"]);
        assert_eq!(near("memroy"), ["memory"]);
        assert_eq!(near("xyzzy"), ["host", "config", "wheel", "cluster", "serving", "peer"]);
    }
}
