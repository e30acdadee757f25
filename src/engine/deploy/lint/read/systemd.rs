//! The `[Service]` section of systemd units.

use std::sync::Arc;

use crate::lint::model::{LocatedValue, Process, ProcessRole, RuntimeKind, Variable};
use crate::lint::read::env_file::unquoted;
use crate::lint::read::launch::{self, assignment, expanded};
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell::word::base_name;
use crate::lint::shell_lexer::commands;
use mcctl_base::check::SourceLocation;

/// A setting of `[Service]`: key, value with continuation lines joined, and words with their
/// locations.
struct UnitSetting {
    key: String,
    value: LocatedValue,
    words: Vec<LocatedValue>,
}

/// Whether `text` is a unit with a `[Service]` section.
pub(crate) fn is_unit(text: &str) -> bool {
    text.lines().any(|line| line.trim() == "[Service]")
}

/// Adds the processes that the unit starts.
pub(crate) fn read(text: &str, file: &Arc<str>, sink: &mut ScriptEffects) {
    let base_name = base_name(file);
    let place = |line| SourceLocation { file: file.clone(), line };
    let mut process = Process::new(format!("unit {base_name}"), ProcessRole::Other, place(1), RuntimeKind::Unit);
    process.network = format!("unit {file}");
    let settings = settings(text, file);
    let last = |key: &str| settings.iter().rev().find(|s| s.key == key).map(|s| s.value.clone());
    for setting in &settings {
        match setting.key.as_str() {
            "Environment" => {
                for word in &setting.words {
                    if let Some((name, value)) = assignment(&word.text) {
                        let located = LocatedValue::new(value, word.place.clone());
                        process.env.insert(name.to_owned(), Variable::Text(located));
                    }
                }
            }
            "EnvironmentFile" => {
                let name = unquoted(&setting.value.text).trim_start_matches('-').to_owned();
                process.env_files.push(LocatedValue::new(name, setting.value.place.clone()));
                process.env_whole = false;
            }
            "PassEnvironment" => {
                for word in &setting.words {
                    let located = LocatedValue::new(format!("${}", word.text), word.place.clone());
                    process.env.insert(word.text.clone(), Variable::Elsewhere(located));
                }
            }
            "AmbientCapabilities" => process.limits.capabilities.extend(setting.words.iter().cloned()),
            _ => {}
        }
    }
    process.limits.memlock = last("LimitMEMLOCK");
    process.limits.grace = last("TimeoutStopSec").or_else(|| last("TimeoutSec"));
    // A dynamic user has no privileges, whatever its name is.
    process.limits.user = last("User").or_else(|| last("DynamicUser").filter(|value| is_true(&value.text)));
    process.limits.host_network = true;
    if let Some(memory) = last("MemoryMax").or_else(|| last("MemoryLimit")) {
        process.limits.resources.entry("memory".into()).or_default().limit = Some(memory);
    }
    if let Some(quota) = last("CPUQuota") {
        // Percent of one CPU.
        if let Some(share) = quota.text.trim_end_matches('%').parse::<f64>().ok().filter(|_| quota.text.ends_with('%'))
        {
            let cpus = LocatedValue::new(format!("{}", share / 100.0), quota.place);
            process.limits.resources.entry("cpu".into()).or_default().limit = Some(cpus);
        }
    }
    let before = sink.processes.len();
    for setting in settings.iter().filter(|s| s.key == "ExecStart") {
        let mut words = setting.words.clone();
        if let Some(first) = words.first_mut() {
            first.text = first.text.trim_start_matches(['-', '@', ':', '+', '!']).to_owned();
        }
        launch::start(&process, &expanded(&words, &process.env), 0, sink);
    }
    if sink.processes.len() == before {
        sink.processes.push(process);
    }
}

/// Whether systemd interprets the value as true.
fn is_true(text: &str) -> bool {
    ["1", "yes", "true", "on"].iter().any(|word| text.trim().eq_ignore_ascii_case(word))
}

fn settings(text: &str, file: &Arc<str>) -> Vec<UnitSetting> {
    let mut out: Vec<UnitSetting> = Vec::new();
    let mut in_service = false;
    let mut lines = text.lines().zip(1u32..).peekable();
    while let Some((line, number)) = lines.next() {
        let trimmed = line.trim();
        if trimmed.starts_with('[') {
            in_service = trimmed == "[Service]";
        }
        if !in_service || trimmed.is_empty() || trimmed.starts_with(['#', ';', '[']) {
            continue;
        }
        // Comments between continuation lines are skipped but still count as lines.
        let mut whole = trimmed.to_owned();
        while whole.ends_with('\\') {
            whole.pop();
            whole.push_str("\\\n");
            match lines.next() {
                Some((next, _)) if next.trim().starts_with(['#', ';']) => whole.push('\\'),
                Some((next, _)) => whole.push_str(next.trim()),
                None => break,
            }
        }
        let Some((key, value)) = whole.split_once('=') else { continue };
        let key = key.trim().to_owned();
        let value = value.trim();
        if value.is_empty() {
            // An empty value resets the setting.
            out.retain(|setting| setting.key != key);
            continue;
        }
        let place = |line| SourceLocation { file: file.clone(), line };
        // A lone `;` separates commands in ExecStart. Specifiers such as `%h` stay unexpanded.
        let words = commands(value, number).into_iter().flatten();
        let words = words.map(|w| LocatedValue::new(w.text.replace("%%", "%"), place(w.line))).collect();
        let value = LocatedValue::new(value.replace("\\\n", " "), place(number));
        out.push(UnitSetting { key, value, words });
    }
    out
}
