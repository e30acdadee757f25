//! Command-line arguments parsed into flags, in the two syntaxes that the supported programs use:
//! gflags and argparse.

use crate::lint::model::{Implementation, LocatedValue, Process, ProcessRole};
use mcctl_base::check::SourceLocation;
use mcctl_base::upstream::master_flag;

/// A flag on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandFlag {
    /// Without leading hyphens, with `_` between words, and without the `no` prefix that negates
    /// it.
    pub name: String,
    /// As written, without its value.
    pub spelled: String,
    /// The text after `=`, or the next argument.
    pub value: Option<LocatedValue>,
    pub place: SourceLocation,
    /// An argument that looks like the value but is not parsed as one: `--enable_ha false`.
    pub stray: Option<LocatedValue>,
}

impl CommandFlag {
    /// Value and location. A flag without a value counts as `true`.
    pub(super) fn located(&self) -> LocatedValue {
        self.value.clone().unwrap_or_else(|| LocatedValue::new("true", self.place.clone()))
    }
}

/// Whether gflags parses `text` as true. It parses any other boolean value as false.
pub(super) fn is_true(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "1" | "t" | "true" | "y" | "yes" | "on")
}

fn is_false(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "0" | "f" | "false" | "n" | "no" | "off")
}

/// Parses the arguments of a process into flags.
pub(super) fn parse(process: &Process) -> Vec<CommandFlag> {
    match (process.role, process.implementation) {
        (ProcessRole::Master | ProcessRole::RealClient, _)
        | (ProcessRole::Metadata | ProcessRole::Store, Implementation::Mcctl) => gflags(&process.args),
        _ => argparse(&process.args),
    }
}

fn split(word: &LocatedValue) -> Option<(&str, Option<LocatedValue>)> {
    let body = word.text.strip_prefix("--").or_else(|| word.text.strip_prefix('-'))?;
    if body.is_empty() || body.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '=') {
        return None;
    }
    match word.text.split_once('=') {
        Some((_, value)) => {
            let name = body.split('=').next().unwrap_or(body);
            Some((name, Some(LocatedValue::new(value, word.place.clone()))))
        }
        None => Some((body, None)),
    }
}

/// Flags of mcctl's master that take no value.
const MCCTL_SWITCHES: &[&str] = &["discard_data"];

/// Whether the master's flag `name` takes no value.
fn is_switch(name: &str) -> bool {
    master_flag(name).map_or(MCCTL_SWITCHES.contains(&name), |flag| flag.is_switch())
}

fn gflags(args: &[LocatedValue]) -> Vec<CommandFlag> {
    let mut flags = Vec::new();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        if word.text == "--" {
            break;
        }
        // `-Dkey=value` of `mcctl serve store`.
        if let Some(pair) = word.text.strip_prefix("-D").filter(|pair| pair.contains('=')) {
            let value = Some(LocatedValue::new(pair, word.place.clone()));
            let place = word.place.clone();
            flags.push(CommandFlag { name: "D".into(), spelled: "-D".into(), value, place, stray: None });
            continue;
        }
        let Some((name, value)) = split(word) else { continue };
        let mut name = match name.replace('-', "_") {
            define if define == "define" => "D".to_owned(),
            name => name,
        };
        let spelled = word.text.split('=').next().unwrap_or_default().to_owned();
        let mut flag = CommandFlag { name: name.clone(), spelled, value, place: word.place.clone(), stray: None };
        if flag.value.is_none() {
            let positive = name.strip_prefix("no").filter(|n| is_switch(n));
            if let Some(positive) = positive.filter(|_| master_flag(&name).is_none()) {
                name = positive.to_owned();
                flag.value = Some(LocatedValue::new("false", word.place.clone()));
            } else if is_switch(&name) {
                flag.value = Some(LocatedValue::new("true", word.place.clone()));
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

fn argparse(args: &[LocatedValue]) -> Vec<CommandFlag> {
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
                LocatedValue::new(pair, word.place.clone())
            };
            let place = word.place.clone();
            flags.push(CommandFlag { name: "D".into(), spelled: "-D".into(), value: Some(pair), place, stray: None });
            continue;
        }
        let Some((name, value)) = split(word) else { continue };
        let spelled = word.text.split('=').next().unwrap_or_default().to_owned();
        let name = name.replace('-', "_");
        let value = value.or_else(|| words.next_if(|next| !next.text.starts_with("--")).cloned());
        flags.push(CommandFlag { name, spelled, value, place: word.place.clone(), stray: None });
    }
    flags
}

/// The last flag in `flags` whose name is in `names`.
pub(super) fn last<'f>(flags: &'f [CommandFlag], names: &[&str]) -> Option<&'f CommandFlag> {
    flags.iter().rev().find(|flag| names.contains(&flag.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::model::RuntimeKind;

    fn flags(role: ProcessRole, line: &str) -> Vec<(String, Option<String>)> {
        let place = SourceLocation { file: "x".into(), line: 1 };
        let mut process = Process::new("x", role, place.clone(), RuntimeKind::Shell);
        process.args = line.split(' ').map(|w| LocatedValue::new(w, place.clone())).collect();
        parse(&process).into_iter().map(|f| (f.name, f.value.map(|v| v.text))).collect()
    }

    #[test]
    fn gflags_switches_do_not_consume_the_next_argument() {
        let some = |text: &str| Some(text.to_owned());
        let line = "--rpc-port 1 -enable_ha false --noenable_offload --eviction_ratio=0.1 stray";
        assert_eq!(
            flags(ProcessRole::Master, line),
            [
                ("rpc_port".into(), some("1")),
                ("enable_ha".into(), some("true")),
                ("enable_offload".into(), some("false")),
                ("eviction_ratio".into(), some("0.1"))
            ]
        );
    }

    #[test]
    fn argparse_flags_consume_the_next_argument() {
        let some = |text: &str| Some(text.to_owned());
        let line = "--config=/a -Dprotocol=tcp -D a=b --port 1 --x --y";
        assert_eq!(
            flags(ProcessRole::Store, line),
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
