//! Shell scripts and command lines.

use std::collections::BTreeMap;

use crate::engine::check::SourceLocation;
use crate::engine::lint::model::{LocatedValue, Process, Variable};
use crate::engine::lint::read::PARTS_MAX;
use crate::engine::lint::read::launch::{self, assignment, below};
use crate::engine::lint::release;
use crate::engine::lint::shell_lexer::{ShellWord, commands, expand, is_name};

/// Variables that a script has set so far.
struct ShellState {
    /// Variables that child processes inherit, and variables local to the shell.
    exported: BTreeMap<String, Variable>,
    own: BTreeMap<String, Variable>,
    /// Set by `set -a`.
    export_all: bool,
}

impl ShellState {
    fn known(&self, name: &str) -> Option<String> {
        match self.own.get(name).or_else(|| self.exported.get(name))? {
            Variable::Text(located) if located.is_known() => Some(located.text.clone()),
            _ => None,
        }
    }

    fn set(&mut self, name: &str, located: LocatedValue, export: bool) {
        if export || self.export_all || self.exported.contains_key(name) {
            self.own.remove(name);
            self.exported.insert(name.to_owned(), Variable::Text(located));
        } else {
            self.own.insert(name.to_owned(), Variable::Text(located));
        }
    }
}

/// Adds the processes that `text` starts to `out`, each as an extended copy of `base`. `text` begins at `place`; `positional` replaces `$@`.
pub fn run(
    base: &Process,
    text: &str,
    place: &SourceLocation,
    positional: &[LocatedValue],
    depth: usize,
    out: &mut Vec<Process>,
) {
    if depth > launch::DEPTH_MAX {
        return;
    }
    let mut base = base.clone();
    let mut shell = ShellState { exported: std::mem::take(&mut base.env), own: BTreeMap::new(), export_all: false };
    for words in commands(text, place.line.max(1)) {
        let words = located(&shell, &words, place);
        let first_word = words.iter().position(|word| assignment(&word.text).is_none());
        let Some(at) = first_word else {
            for word in &words {
                if let Some((name, value)) = assignment(&word.text) {
                    shell.set(name, LocatedValue::new(value, word.place.clone()), false);
                }
            }
            continue;
        };
        let (command, rest) = (words[at].text.as_str(), &words[at + 1..]);
        match command {
            "export" | "declare" | "typeset" | "readonly" | "local" => {
                for word in rest {
                    match assignment(&word.text) {
                        Some((name, value)) => {
                            shell.set(name, LocatedValue::new(value, word.place.clone()), command == "export");
                        }
                        None if is_name(&word.text) && command == "export" => {
                            let own = shell.own.remove(&word.text);
                            let outside =
                                Variable::Elsewhere(LocatedValue::new(format!("${}", word.text), word.place.clone()));
                            let value = own.unwrap_or(outside);
                            shell.exported.entry(word.text.clone()).or_insert(value);
                        }
                        None => {}
                    }
                }
            }
            "unset" => {
                for word in rest {
                    shell.own.remove(&word.text);
                    shell.exported.remove(&word.text);
                }
            }
            "set" => match rest.first().map(|w| w.text.as_str()) {
                Some("-a" | "-o") if rest.iter().any(|w| matches!(w.text.as_str(), "-a" | "allexport")) => {
                    shell.export_all = true;
                }
                Some("+a") => shell.export_all = false,
                _ => {}
            },
            "source" | "." => {
                base.env_files.extend(rest.first().cloned());
                base.env_whole = false;
            }
            "ulimit" => {
                if let Some(at) = rest.iter().position(|w| w.text.starts_with('-') && w.text.ends_with('l')) {
                    base.limits.memlock = rest.get(at + 1).cloned();
                }
            }
            _ => {
                let words: Vec<LocatedValue> = words
                    .iter()
                    .flat_map(|word| if word.text == "$@" { positional } else { std::slice::from_ref(word) })
                    // `$@` may occur repeatedly. A process with this many arguments is rejected.
                    .take(2 * PARTS_MAX)
                    .cloned()
                    .collect();
                // Moved, not cloned: a script may have many commands and many variables.
                base.env = std::mem::take(&mut shell.exported);
                base.packages.extend(release::packages(&words));
                launch::start(&base, &words, depth, out);
                shell.exported = std::mem::take(&mut base.env);
            }
        }
    }
    // A script without commands is a list of variables.
    base.env = shell.exported;
    base.env.extend(shell.own);
    if out.is_empty() && depth == 0 {
        out.push(base);
    }
}

fn located(shell: &ShellState, words: &[ShellWord], place: &SourceLocation) -> Vec<LocatedValue> {
    // Assignments before a command do not affect the expansion of its own line.
    let one = |word: &ShellWord| {
        let text = if word.literal { word.text.clone() } else { expand(&word.text, &|name| shell.known(name)) };
        LocatedValue::new(text, if place.line == 0 { place.clone() } else { below(place, word.line) })
    };
    words.iter().map(one).collect()
}
