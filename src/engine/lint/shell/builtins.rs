//! Commands of the shell itself.

use crate::engine::lint::model::LocatedValue;
use crate::engine::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::engine::lint::shell::parser;
use crate::engine::lint::shell::syntax::{AssignedText, RawWord, ShellAssignment, ShellNode};
use crate::engine::lint::shell::variables::{GuardedPart, ShellValue};
use crate::engine::lint::shell::word::is_name;

/// Files that set up a user's shell or a Python environment. They start nothing.
const SETUP_FILES: &[&str] =
    &["activate", ".bashrc", ".profile", ".bash_profile", "profile", "bashrc", "conda.sh", "setvars.sh", "set_env.sh"];

impl Evaluator<'_> {
    /// Runs `export`, `local` and their relatives.
    pub(super) fn declare(&mut self, keyword: &str, options: &[RawWord], assignments: &[ShellAssignment]) {
        let is_export =
            keyword == "export" || options.iter().any(|option| option.raw.starts_with('-') && option.raw.contains('x'));
        for assignment in assignments {
            let name = &assignment.name;
            if keyword == "local" || matches!(keyword, "declare" | "typeset") && !self.locals.is_empty() {
                let saved = self.variables.get(name).cloned();
                if let Some(frame) = self.locals.last_mut() {
                    frame.entry(name.clone()).or_insert(saved);
                }
                if assignment.value == AssignedText::Kept {
                    let path = self.path.clone();
                    self.variables.assign(name, &path, ShellValue::Unset, false);
                }
            }
            if assignment.value != AssignedText::Kept {
                self.assign(assignment);
            }
            if is_export {
                let place = self.at(assignment.line);
                self.variables.export(name, &place);
            }
        }
    }

    pub(super) fn make_unknown(&mut self, name: &str, line: u32) {
        if is_name(name) {
            let path = self.path.clone();
            let value = ShellValue::Unknown(LocatedValue::new(format!("${name}"), self.at(line)));
            self.variables.assign(name, &path, value, false);
        }
    }

    /// Runs a command of the shell. `None` for any other command.
    pub(super) fn builtin(&mut self, name: &str, words: &[RawWord], node: &ShellNode) -> Option<ControlFlow> {
        let line = node.line;
        match name {
            "exit" => return Some(ControlFlow::LeaveScript),
            "return" => return Some(ControlFlow::LeaveFunction),
            "break" | "continue" => return Some(ControlFlow::LeaveLoop),
            "eval" => {
                let place = self.at(line);
                self.out.not_read(place, node.lines, "eval runs text that is computed");
            }
            "source" | "." => self.source(words, node),
            "trap" => self.has_inner_trap |= !self.running.is_empty(),
            "shopt" | "complete" | "enable" | "[[" => {}
            "alias" | ":" => {
                let mut world = self.world();
                self.fields(words, &mut world);
            }
            "set" => self.set(words),
            "unset" => {
                let path = self.path.clone();
                for word in words[1..].iter().filter(|word| is_name(&word.raw)) {
                    self.functions.remove(&word.raw);
                    self.variables.assign(&word.raw, &path, ShellValue::Unset, false);
                }
            }
            "shift" => {
                self.shifts = self.shifts.saturating_add(1);
                let count = words.get(1).map_or(Some(1), |word| word.raw.parse().ok());
                let rest = match (&self.positional, count) {
                    (Some(all), Some(count)) => Some(all.get(count..).unwrap_or_default().to_vec()),
                    _ => None,
                };
                self.positional = rest;
            }
            "read" | "mapfile" | "readarray" | "getopts" => {
                for word in &words[1..] {
                    self.make_unknown(word.raw.trim_matches('"'), line);
                }
            }
            "printf" if words.get(1).is_some_and(|word| word.raw == "-v") => {
                if let Some(word) = words.get(2) {
                    self.make_unknown(&word.raw, line);
                }
            }
            "let" => {
                for word in &words[1..] {
                    self.arithmetic_assignment(word.raw.trim_matches(['"', '\'']), line);
                }
            }
            "ulimit" => {
                let mut world = self.world();
                let fields = self.fields(words, &mut world);
                if let Some(at) = fields.iter().position(|f| f.text.starts_with('-') && f.text.ends_with('l')) {
                    let value = fields.get(at + 1).map(|f| LocatedValue::new(f.text.clone(), f.place.clone()));
                    self.base.limits.memlock = value;
                }
            }
            "kill" => self.kill(words),
            "wait" => self.wait(words),
            _ => return None,
        }
        Some(ControlFlow::Next)
    }

    fn set(&mut self, words: &[RawWord]) {
        let all: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
        match all.as_slice() {
            [_, "--", ..] => {
                let mut world = self.world();
                let fields = self.fields(&words[2..], &mut world);
                let is_known = world.others.is_empty() && fields.iter().all(|field| !field.is_open);
                let located = fields.into_iter().map(|field| LocatedValue::new(field.text, field.place)).collect();
                self.positional = is_known.then_some(located);
                self.shifts = self.shifts.saturating_add(1);
            }
            [_, "-o", "allexport"] => self.variables.export_all = true,
            [_, "+o", "allexport"] => self.variables.export_all = false,
            [_, options, ..] if options.starts_with('-') && options.contains('a') => self.variables.export_all = true,
            [_, options, ..] if options.starts_with('+') && options.contains('a') => self.variables.export_all = false,
            _ => {}
        }
    }

    /// Runs `(( .. ))`, `let`, or the header of a loop.
    pub(super) fn arithmetic_assignment(&mut self, text: &str, line: u32) {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let (name, operator) = match (name, rest.trim()) {
            ("", rest) if rest.starts_with("++") || rest.starts_with("--") => (&rest[2..], &rest[..2]),
            (name, rest) => (name, rest),
        };
        if !is_name(name) || operator.starts_with(['<', '>']) || operator.starts_with("==") {
            return;
        }
        let mut world = self.world();
        let value = match operator {
            "++" => self.arithmetic(&format!("{name}+1"), &mut world),
            "--" => self.arithmetic(&format!("{name}-1"), &mut world),
            _ => match operator.split_once('=') {
                Some(("", value)) => self.arithmetic(value, &mut world),
                Some((sign @ ("+" | "-" | "*" | "/"), value)) => {
                    self.arithmetic(&format!("{name}{sign}({value})"), &mut world)
                }
                _ => return,
            },
        };
        let place = self.at(line);
        let value = value.filter(|_| !self.in_unknown_loop);
        let text = value.map_or_else(|| format!("${name}"), |number| number.to_string());
        let path = self.path.clone();
        self.variables.assign(
            name,
            &path,
            ShellValue::Text(vec![GuardedPart::always(LocatedValue::new(text, place))]),
            world.uses_default,
        );
    }

    /// Runs `source FILE`: text that this script has written, or a file that the caller may have provided.
    fn source(&mut self, words: &[RawWord], node: &ShellNode) {
        let mut world = self.world();
        let fields = self.fields(words, &mut world);
        let Some(field) = fields.get(1) else { return };
        let base = field.text.rsplit('/').next().unwrap_or_default().to_owned();
        let written = self.files.get(&base).and_then(|known| self.out.written.get(known.index));
        if let Some(written) = written.cloned()
            && self.nesting < 10
        {
            let block = parser::parse(&written.text, written.place.line.max(1));
            let saved = std::mem::replace(&mut self.place, written.place);
            self.run_block(&block);
            self.place = saved;
            return;
        }
        self.base.env_files.push(LocatedValue::new(field.text.clone(), field.place.clone()));
        self.base.env_whole = false;
        self.variables.touch_all();
        if !SETUP_FILES.contains(&base.as_str()) {
            let place = self.at(node.line);
            let name = if base.is_empty() || base.contains('$') { "another file".to_owned() } else { base.clone() };
            self.out.not_read_without(place, node.lines, format!("{name} is read by source"), Some(field.text.clone()));
        }
    }
}
