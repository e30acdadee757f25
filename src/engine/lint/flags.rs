//! Words of a command line as flags with values, in the two grammars that our processes have.

use crate::engine::check::Place;
use crate::engine::lint::names::master_flag;
use crate::engine::lint::scene::{Make, Process, Role, Said};

/// A flag that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Without hyphens before it, `_` between its words, and without a `no` that switches it off.
    pub name: String,
    /// As it was written, without its value.
    pub spelled: String,
    /// Its value: the text after `=`, or the next word.
    pub value: Option<Said>,
    /// Where it is.
    pub place: Place,
    /// A word that looks like its value and is not read as one: `--enable_ha false`.
    pub stray: Option<Said>,
}

impl Flag {
    /// Value and place; the flag itself where it has no value.
    pub fn said(&self) -> Said {
        self.value.clone().unwrap_or_else(|| Said::new("true", self.place.clone()))
    }
}

/// What gflags takes for true; everything else that a boolean flag may have is false.
pub fn is_true(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "1" | "t" | "true" | "y" | "yes" | "on")
}

fn is_false(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "0" | "f" | "false" | "n" | "no" | "off")
}

/// The flags among the words of a process.
pub fn of(process: &Process) -> Vec<Flag> {
    match (process.role, process.make) {
        (Role::Master | Role::RealClient, _) | (Role::Metadata | Role::Store, Make::Mcctl) => gflags(&process.args),
        _ => argparse(&process.args),
    }
}

fn split(word: &Said) -> Option<(&str, Option<Said>)> {
    let body = word.text.strip_prefix("--").or_else(|| word.text.strip_prefix('-'))?;
    if body.is_empty() || body.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '=') {
        return None;
    }
    match word.text.split_once('=') {
        Some((_, value)) => {
            let name = body.split('=').next().unwrap_or(body);
            Some((name, Some(Said::new(value, word.place.clone()))))
        }
        None => Some((body, None)),
    }
}

fn gflags(args: &[Said]) -> Vec<Flag> {
    let mut flags = Vec::new();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        if word.text == "--" {
            break;
        }
        // `-Dkey=value` of `mcctl serve store`.
        if let Some(pair) = word.text.strip_prefix("-D").filter(|pair| pair.contains('=')) {
            let (value, place) = (Some(Said::new(pair, word.place.clone())), word.place.clone());
            flags.push(Flag { name: "D".into(), spelled: "-D".into(), value, place, stray: None });
            continue;
        }
        let Some((name, value)) = split(word) else { continue };
        let mut name = match name.replace('-', "_") {
            define if define == "define" => "D".to_owned(),
            name => name,
        };
        let spelled = word.text.split('=').next().unwrap_or_default().to_owned();
        let mut flag = Flag { name: name.clone(), spelled, value, place: word.place.clone(), stray: None };
        if flag.value.is_none() {
            let positive = name.strip_prefix("no").filter(|n| master_flag(n).is_some_and(|f| f.is_switch()));
            if let Some(positive) = positive.filter(|_| master_flag(&name).is_none()) {
                name = positive.to_owned();
                flag.value = Some(Said::new("false", word.place.clone()));
            } else if master_flag(&name).is_some_and(|f| f.is_switch()) {
                flag.value = Some(Said::new("true", word.place.clone()));
                flag.stray = words.next_if(|next| is_false(&next.text) || is_true(&next.text)).cloned();
            } else {
                flag.value = words.next_if(|next| !next.text.starts_with("--")).cloned();
            }
        }
        flag.name = name;
        flags.push(flag);
    }
    flags
}

fn argparse(args: &[Said]) -> Vec<Flag> {
    let mut flags = Vec::new();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        // `-Dkey=value` of the store service.
        if let Some(pair) = word.text.strip_prefix("-D") {
            let pair = if pair.is_empty() {
                match words.next_if(|next| !next.text.starts_with('-')) {
                    Some(next) => next.clone(),
                    None => continue,
                }
            } else {
                Said::new(pair, word.place.clone())
            };
            let place = word.place.clone();
            flags.push(Flag { name: "D".into(), spelled: "-D".into(), value: Some(pair), place, stray: None });
            continue;
        }
        let Some((name, value)) = split(word) else { continue };
        let spelled = word.text.split('=').next().unwrap_or_default().to_owned();
        let name = name.replace('-', "_");
        let value = value.or_else(|| words.next_if(|next| !next.text.starts_with("--")).cloned());
        flags.push(Flag { name, spelled, value, place: word.place.clone(), stray: None });
    }
    flags
}

/// The last flag among `flags` with one of `names`.
pub fn last<'f>(flags: &'f [Flag], names: &[&str]) -> Option<&'f Flag> {
    flags.iter().rev().find(|flag| names.contains(&flag.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lint::scene::Habitat;

    fn flags(role: Role, line: &str) -> Vec<(String, Option<String>)> {
        let place = Place { file: "x".into(), line: 1 };
        let mut process = Process::new("x", role, place.clone(), Habitat::Shell);
        process.args = line.split(' ').map(|w| Said::new(w, place.clone())).collect();
        of(&process).into_iter().map(|f| (f.name, f.value.map(|v| v.text))).collect()
    }

    #[test]
    fn gflags_switches_take_no_word() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            flags(Role::Master, "--rpc-port 1 -enable_ha false --noenable_offload --eviction_ratio=0.1 stray"),
            [
                ("rpc_port".into(), some("1")),
                ("enable_ha".into(), some("true")),
                ("enable_offload".into(), some("false")),
                ("eviction_ratio".into(), some("0.1"))
            ]
        );
    }

    #[test]
    fn argparse_flags_take_the_next_word_and_defines_stand_together() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            flags(Role::Store, "--config=/a -Dprotocol=tcp -D a=b --port 1 --x --y"),
            [
                ("config".into(), some("/a")),
                ("D".into(), some("protocol=tcp")),
                ("D".into(), some("a=b")),
                ("port".into(), some("1")),
                ("x".into(), None),
                ("y".into(), None)
            ]
        );
    }
}
