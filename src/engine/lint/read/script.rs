//! Shell scripts and command lines.

use std::collections::BTreeMap;

use crate::engine::check::Place;
use crate::engine::lint::read::PARTS_MAX;
use crate::engine::lint::read::launch::{self, assignment, below};
use crate::engine::lint::scene::{Process, Said, Variable};
use crate::engine::lint::words::{Word, commands, expand, is_name};

/// What a script has set so far.
struct Shell {
    /// Variables that its children see, and those that only it sees.
    exported: BTreeMap<String, Variable>,
    own: BTreeMap<String, Variable>,
    /// `set -a`
    export_all: bool,
}

impl Shell {
    fn known(&self, name: &str) -> Option<String> {
        match self.own.get(name).or_else(|| self.exported.get(name))? {
            Variable::Text(said) if said.is_known() => Some(said.text.clone()),
            _ => None,
        }
    }

    fn set(&mut self, name: &str, said: Said, export: bool) {
        if export || self.export_all || self.exported.contains_key(name) {
            self.own.remove(name);
            self.exported.insert(name.to_owned(), Variable::Text(said));
        } else {
            self.own.insert(name.to_owned(), Variable::Text(said));
        }
    }
}

/// Add what `text`, which begins at `place`, starts to `out`; each a copy of `base` with more. `behind` are the words that `$@` stands for.
pub fn run(base: &Process, text: &str, place: &Place, behind: &[Said], depth: usize, out: &mut Vec<Process>) {
    if depth > launch::DEPTH_MAX {
        return;
    }
    let mut base = base.clone();
    let mut shell = Shell { exported: std::mem::take(&mut base.env), own: BTreeMap::new(), export_all: false };
    for words in commands(text, place.line.max(1)) {
        let words = said(&shell, &words, place);
        let first_word = words.iter().position(|word| assignment(&word.text).is_none());
        let Some(at) = first_word else {
            for word in &words {
                if let Some((name, value)) = assignment(&word.text) {
                    shell.set(name, Said::new(value, word.place.clone()), false);
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
                            shell.set(name, Said::new(value, word.place.clone()), command == "export");
                        }
                        None if is_name(&word.text) && command == "export" => {
                            let own = shell.own.remove(&word.text);
                            let outside = Variable::Elsewhere(Said::new(format!("${}", word.text), word.place.clone()));
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
                let words: Vec<Said> = words
                    .iter()
                    .flat_map(|word| if word.text == "$@" { behind } else { std::slice::from_ref(word) })
                    // `$@` again and again; a process with as many is refused.
                    .take(2 * PARTS_MAX)
                    .cloned()
                    .collect();
                // Lent, not copied: a script may have many commands and many variables.
                base.env = std::mem::take(&mut shell.exported);
                launch::start(&base, &words, depth, out);
                shell.exported = std::mem::take(&mut base.env);
            }
        }
    }
    // A script that only sets variables: they are what it is for.
    base.env = shell.exported;
    base.env.extend(shell.own);
    if out.is_empty() && depth == 0 {
        out.push(base);
    }
}

fn said(shell: &Shell, words: &[Word], place: &Place) -> Vec<Said> {
    // Variables before a command are seen by it alone, and not while its line is read.
    let one = |word: &Word| {
        let text = if word.literal { word.text.clone() } else { expand(&word.text, &|name| shell.known(name)) };
        Said::new(text, if place.line == 0 { place.clone() } else { below(place, word.line) })
    };
    words.iter().map(one).collect()
}
