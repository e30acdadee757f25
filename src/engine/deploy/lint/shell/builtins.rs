//! Commands of the shell itself.

use crate::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::lint::shell::parser;
use crate::lint::shell::syntax::{AssignedText, RawWord, ShellAssignment, ShellNode};
use crate::lint::shell::variables::ShellValue;
use crate::lint::shell::word::{base_name, is_name};

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
                    self.variables.assign(name, &self.path, ShellValue::default(), false);
                }
            }
            if assignment.value != AssignedText::Kept {
                self.assign(assignment);
            }
            if is_export {
                self.variables.export(name, &self.at(assignment.line));
            }
        }
    }

    pub(super) fn make_unknown(&mut self, name: &str, line: u32) {
        if is_name(name) {
            self.variables.assign(name, &self.path, ShellValue::unknown(name, self.at(line)), false);
        }
    }

    /// Runs a command of the shell. `None` for any other command.
    pub(super) fn builtin(&mut self, name: &str, words: &[RawWord], node: &ShellNode) -> Option<ControlFlow> {
        let line = node.line;
        match name {
            "exit" => return Some(ControlFlow::LeaveScript),
            "return" => return Some(ControlFlow::LeaveFunction),
            "break" | "continue" => return Some(ControlFlow::LeaveLoop),
            "eval" => self.out.not_read(self.at(line), node.lines, "eval runs text that is computed"),
            "source" | "." => self.source(words, node),
            "trap" => self.has_inner_trap |= !self.running.is_empty(),
            "shopt" | "complete" | "enable" | "[[" => {}
            "alias" | ":" => {
                let mut world = self.world();
                self.fields(words, &mut world);
            }
            "set" => self.set(words),
            "unset" => {
                for word in words[1..].iter().filter(|word| is_name(&word.raw)) {
                    self.functions.remove(&word.raw);
                    self.variables.assign(&word.raw, &self.path, ShellValue::default(), false);
                }
            }
            "shift" => {
                self.shifts = self.shifts.saturating_add(1);
                let count = words.get(1).map_or(Some(1), |word| word.raw.parse().ok());
                self.positional =
                    self.positional.take().zip(count).map(|(mut all, count)| all.split_off(count.min(all.len())));
            }
            "printf" if words.get(1).is_none_or(|word| word.raw != "-v") => return None,
            "read" | "mapfile" | "readarray" | "getopts" | "printf" => {
                words[1..].iter().for_each(|word| self.make_unknown(word.raw.trim_matches('"'), line));
            }
            "let" => {
                for word in &words[1..] {
                    self.arithmetic_assignment(word.raw.trim_matches(['"', '\'']), line);
                }
            }
            "ulimit" => {
                let mut world = self.world();
                let fields = self.fields(words, &mut world);
                if let Some(at) = fields.iter().position(|f| f.text().starts_with('-') && f.text().ends_with('l')) {
                    self.base.limits.memlock = fields.get(at + 1).map(|field| field.located.clone());
                }
            }
            "kill" | "wait" => self.end_named(words),
            _ => return None,
        }
        Some(ControlFlow::Next)
    }

    fn set(&mut self, words: &[RawWord]) {
        let option = words.get(1).map_or("", |word| word.raw.as_str());
        if option == "--" {
            let mut world = self.world();
            let fields = self.fields(&words[2..], &mut world);
            self.positional =
                (world.others.is_empty() && !fields.iter().any(|field| field.may_split)).then_some(fields);
            self.shifts = self.shifts.saturating_add(1);
        } else if option.starts_with(['-', '+'])
            && (option.contains('a') || words.get(2).is_some_and(|word| word.raw == "allexport"))
        {
            self.variables.export_all = option.starts_with('-');
        }
    }

    /// Runs `(( .. ))`, `let`, or a part of the header of a loop.
    pub(super) fn arithmetic_assignment(&mut self, text: &str, line: u32) {
        let text = text.trim();
        let stepped = text.trim_matches(['+', '-', ' ']);
        let (name, expression) = match text.split_once('=') {
            None if text.contains("++") => (stepped, format!("{stepped}+1")),
            None if text.contains("--") => (stepped, format!("{stepped}-1")),
            Some((left, value)) if !value.starts_with('=') => {
                let name = left.trim_end_matches(['+', '-', '*', '/', ' ']);
                let sign = left[name.len()..].trim();
                (name, if sign.is_empty() { value.to_owned() } else { format!("{name}{sign}({value})") })
            }
            _ => return,
        };
        if !is_name(name) {
            return;
        }
        let mut world = self.world();
        let number = self.arithmetic(&expression, &mut world).filter(|_| !self.in_unknown_loop);
        let value = number.map_or_else(|| format!("${name}"), |number| number.to_string());
        self.variables.assign(name, &self.path, ShellValue::text(value, self.at(line)), world.uses_default);
    }

    /// Runs `source FILE`: text that this script has written, or a file that the caller may have
    /// provided.
    fn source(&mut self, words: &[RawWord], node: &ShellNode) {
        let mut world = self.world();
        let fields = self.fields(words, &mut world);
        let Some(field) = fields.get(1) else { return };
        let base = base_name(field.text()).to_owned();
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
        self.base.env_files.push(field.located.clone());
        self.base.env_whole = false;
        self.variables.touch_all();
        if !SETUP_FILES.contains(&base.as_str()) {
            let name = if base.is_empty() || base.contains('$') { "another file" } else { &base };
            let needs = Some(field.text().to_owned());
            self.out.not_read_without(self.at(node.line), node.lines, format!("{name} is read by source"), needs);
        }
    }
}
