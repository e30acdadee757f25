//! Selects checks by the names of checks and groups, to include or to exclude.

use mcctl_base::check::{Check, CheckGroup};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    wanted: Vec<&'static str>,
}

/// A name that is neither a check nor a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is neither a check nor a check group")]
pub struct UnknownName {
    pub name: String,
    /// Similar known names, the nearest first; all groups if none is similar.
    pub near: Vec<&'static str>,
}

/// Maximum number of names that are suggested.
const NEAR_MAX: usize = 3;
/// Minimum similarity (0 to 1) of a suggested name.
const LIKENESS_MIN: f64 = 0.7;

impl Selection {
    /// Selects the checks of `catalogue` that `only` names (all if it is empty) and `skip` does
    /// not.
    ///
    /// # Errors
    /// A name is neither a check nor a group.
    pub fn parse(only: &[String], skip: &[String], catalogue: &[Check]) -> Result<Selection, UnknownName> {
        if let Some(name) = only.iter().chain(skip).find(|name| !catalogue.iter().any(|check| names(name, check))) {
            // A group is a valid name even if it has no check yet.
            if !CheckGroup::ALL.iter().any(|group| group.word() == name) {
                return Err(UnknownName { name: name.clone(), near: near(name, catalogue) });
            }
        }
        let listed = |list: &[String], check: &Check| list.iter().any(|name| names(name, check));
        let wanted = catalogue.iter().filter(|c| (only.is_empty() || listed(only, c)) && !listed(skip, c));
        Ok(Selection { wanted: wanted.map(|check| check.id).collect() })
    }

    /// Whether `check` is selected.
    pub fn includes(&self, check: &Check) -> bool {
        self.includes_id(check.id)
    }

    /// Whether the check `id` is selected.
    pub fn includes_id(&self, id: &str) -> bool {
        self.wanted.contains(&id)
    }

    /// Whether no check is selected.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }
}

fn names(name: &str, check: &Check) -> bool {
    name == check.id || name == check.group.word()
}

fn near(name: &str, catalogue: &[Check]) -> Vec<&'static str> {
    let known = CheckGroup::ALL.iter().map(|group| group.word()).chain(catalogue.iter().map(|check| check.id));
    let mut likely: Vec<(f64, &'static str)> = known
        .map(|id| {
            let part = id.contains(name) && name.len() > 2;
            (if part { 1.0 } else { strsim::jaro_winkler(name, id) }, id)
        })
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .collect();
    likely.sort_by(|a, b| b.0.total_cmp(&a.0));
    match likely.is_empty() {
        true => CheckGroup::ALL.iter().map(|group| group.word()).collect(),
        false => likely.into_iter().take(NEAR_MAX).map(|(_, id)| id).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Check] = &[
        Check { id: "memory", group: CheckGroup::Host, about: "a", problems: &[] },
        Check { id: "ports", group: CheckGroup::Host, about: "b", problems: &[] },
        Check { id: "libraries", group: CheckGroup::Wheel, about: "c", problems: &[] },
    ];

    fn chosen(only: &[&str], skip: &[&str]) -> Result<Vec<&'static str>, UnknownName> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Selection::parse(&owned(only), &owned(skip), ALL).map(|selection| selection.wanted)
    }

    #[test]
    fn checks_and_groups_are_included_and_excluded_by_name() {
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
