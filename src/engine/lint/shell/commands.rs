//! Simple commands: assignments, calls of functions, and programs.

use std::collections::BTreeMap;

use crate::engine::check::{Finding, Severity};
use crate::engine::lint::catalogue::CONTINUATION;
use crate::engine::lint::model::{LocatedValue, Variable};
use crate::engine::lint::release;
use crate::engine::lint::shell::choice::{BranchChoice, BranchPath, ScriptSpan};
use crate::engine::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::engine::lint::shell::expansion::{BranchWorld, ShellField, WORLDS_MAX};
use crate::engine::lint::shell::parser;
use crate::engine::lint::shell::syntax::{AssignedText, RawWord, ShellAssignment, ShellNode};
use crate::engine::lint::shell::variables::{GuardedPart, ShellValue};
use crate::engine::lint::shell::word::{WordPiece, pieces};

/// Limit on the worlds of an assignment and of a function call.
const ASSIGNED_WORLDS_MAX: usize = 8;

/// Programs that may run a command in a network of its own.
const APART: &[&str] = &["unshare", "nsenter", "netns", "firejail", "apptainer", "singularity", "bwrap"];

/// Commands that start no other program, whatever their arguments are.
const PLAIN: &[&str] = &[
    "[",
    "alias",
    "apt",
    "apt-get",
    "awk",
    "basename",
    "bc",
    "cat",
    "cd",
    "chmod",
    "chown",
    "cp",
    "curl",
    "cut",
    "date",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "export",
    "false",
    "fgrep",
    "find",
    "free",
    "fuser",
    "getent",
    "git",
    "grep",
    "hash",
    "head",
    "hostname",
    "id",
    "ifconfig",
    "ip",
    "jq",
    "less",
    "ln",
    "ls",
    "lscpu",
    "lsof",
    "make",
    "md5sum",
    "mkdir",
    "mktemp",
    "mv",
    "nc",
    "netstat",
    "nproc",
    "numfmt",
    "nvidia-smi",
    "open",
    "pgrep",
    "popd",
    "printf",
    "ps",
    "pushd",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "rsync",
    "scp",
    "sed",
    "seq",
    "sleep",
    "sort",
    "ss",
    "stat",
    "tail",
    "tar",
    "tee",
    "test",
    "top",
    "touch",
    "tr",
    "true",
    "type",
    "umask",
    "uname",
    "uniq",
    "wc",
    "wget",
    "which",
    "yq",
    "yum",
    "rocm-smi",
    "amd-smi",
    "ibstat",
    "ibv_devinfo",
    "rdma",
    "journalctl",
    "huggingface-cli",
    "hf",
];

impl Evaluator<'_> {
    pub(super) fn simple(
        &mut self,
        assignments: &[ShellAssignment],
        words: &[RawWord],
        node: &ShellNode,
    ) -> ControlFlow {
        for raw in assigned_words(assignments).chain(words) {
            self.run_substitutions(raw);
        }
        if words.is_empty() {
            assignments.iter().for_each(|assignment| self.assign(assignment));
            return ControlFlow::Next;
        }
        let mut world = self.world();
        let first = self.fields(&words[..1], &mut world);
        let name = first.first().map(|field| field.text.clone()).unwrap_or_default();
        if self.functions.contains_key(&name) {
            return self.call(&name, first.get(1..).unwrap_or_default(), &words[1..]);
        }
        if let Some(flow) = self.builtin(&name, words, node) {
            return flow;
        }
        self.has_commands = true;
        self.stop_by(&name, words);
        if self.use_input(&name, words) {
            return ControlFlow::Next;
        }
        self.change_files(&name, words);
        if PLAIN.contains(&name.as_str()) {
            return ControlFlow::Next;
        }
        if words[0].raw.starts_with("--") {
            self.note_lost_flags(&words[0]);
            return ControlFlow::Next;
        }
        self.program(assignments, words, node);
        if name == "exec" && words.len() > 1 { ControlFlow::LeaveScript } else { ControlFlow::Next }
    }

    /// Follows the commands inside `$(..)` that may start a program.
    fn run_substitutions(&mut self, word: &RawWord) {
        if !word.raw.contains("$(") && !word.raw.contains('`') || !is_of_interest(&word.raw) {
            return;
        }
        for piece in pieces(&word.raw, false) {
            let WordPiece::Command { text, line, .. } = piece else { continue };
            let block = parser::parse(&text, word.line.saturating_add(line));
            let (variables, path) = (self.variables.clone(), self.path.clone());
            self.run_block(&block);
            (self.variables, self.path) = (variables, path);
        }
    }

    /// The value of an assignment in `world`.
    fn assigned(&mut self, assignment: &ShellAssignment, world: &mut BranchWorld) -> Vec<GuardedPart> {
        match &assignment.value {
            AssignedText::Word(word) => {
                let mut text = self.text_of(word, world);
                // A counter has another value after the next run.
                if self.in_unknown_loop && word.raw.contains('$') && text.parse::<i64>().is_ok() {
                    text = format!("${}", assignment.name);
                }
                vec![GuardedPart::always(LocatedValue::new(text, self.at(word.line)))]
            }
            AssignedText::Array(words) => {
                let part = |field: ShellField| GuardedPart {
                    is_open: field.is_open,
                    ..GuardedPart::always(LocatedValue::new(field.text, field.place))
                };
                self.fields(words, world).into_iter().map(part).collect()
            }
            AssignedText::Kept => Vec::new(),
        }
    }

    /// Runs an assignment that lasts.
    pub(super) fn assign(&mut self, assignment: &ShellAssignment) {
        let name = &assignment.name;
        let path = self.path.clone();
        if assignment.index.is_some() {
            // An associative array, or an array that is filled by position.
            let value = ShellValue::Unknown(LocatedValue::new(format!("${name}"), self.at(assignment.line)));
            self.variables.assign(name, &path, value, false);
            return;
        }
        let is_array = matches!(assignment.value, AssignedText::Array(_));
        let (appended, is_append) = match appended_part(assignment) {
            Some(rest) => (rest, true),
            None => (assignment.clone(), assignment.append),
        };
        let values = self.in_worlds(ASSIGNED_WORLDS_MAX, |this, world| this.assigned(&appended, world));
        if is_append {
            for (at, (world, parts)) in values.iter().enumerate() {
                let guard = if values.len() == 1 && at == 0 { &path } else { &world.path };
                self.variables.append(name, guard, parts.clone(), is_array);
            }
            return;
        }
        let uses_default = values.iter().any(|(world, _)| world.uses_default);
        for (at, (world, parts)) in values.into_iter().enumerate() {
            let value = if is_array { ShellValue::Array(parts) } else { ShellValue::Text(parts) };
            match at {
                // The first value applies unless one of the others does.
                0 => self.variables.assign(name, &path, value, uses_default),
                _ => self.variables.learn(name, &world.path, value),
            }
        }
    }

    /// Calls a function of the script.
    fn call(&mut self, name: &str, behind: &[ShellField], words: &[RawWord]) -> ControlFlow {
        let Some(function) = self.functions.get_mut(name) else { return ControlFlow::Next };
        function.is_called = true;
        let body = function.body.clone();
        // A function that calls itself repeats its commands.
        if self.running.contains(name) {
            return ControlFlow::Next;
        }
        let behind = behind.to_vec();
        let calls = self.in_worlds(ASSIGNED_WORLDS_MAX, |this, world| {
            let mut fields = behind.clone();
            fields.extend(this.fields(words, world));
            fields
        });
        let (before, variants) = (self.path.clone(), self.variants.clone());
        let mut flow = ControlFlow::Next;
        let subject = self.out.fresh_subject();
        self.running.insert(name.to_owned());
        for (at, (world, fields)) in calls.into_iter().enumerate() {
            self.variants = variants.with(&BranchChoice { subject, text: at.to_string().into(), is: true });
            let known = !fields.iter().any(|field| field.is_list);
            let all = fields.into_iter().map(|field| LocatedValue::new(field.text, field.place)).collect();
            let saved = std::mem::replace(&mut self.positional, known.then_some(all));
            self.shifts = self.shifts.saturating_add(1000);
            self.locals.push(BTreeMap::new());
            self.path = world.path;
            flow = self.run_block(&body);
            for (name, variable) in self.locals.pop().unwrap_or_default() {
                self.variables.restore(&name, variable);
            }
            self.positional = saved;
            self.shifts = self.shifts.saturating_add(1000);
        }
        self.running.remove(name);
        (self.path, self.variants) = (before, variants);
        if flow == ControlFlow::LeaveScript { flow } else { ControlFlow::Next }
    }

    /// Runs a program in every world.
    fn program(&mut self, assignments: &[ShellAssignment], words: &[RawWord], node: &ShellNode) {
        let start = self.out.tick();
        let subject = self.out.fresh_subject();
        let first = self.out.processes.len();
        let mut visited: Vec<(Vec<String>, BTreeMap<String, Variable>)> = Vec::new();
        let runs = self.in_worlds(WORLDS_MAX, |this, world| {
            let mut fields = this.fields(words, world);
            this.add_script(&mut fields);
            // A package that only a branch installs may be absent.
            let is_certain = !this.is_uncertain && world.path == BranchPath::default();
            let installed = release::packages(&located(&fields)).into_iter();
            this.base.packages.extend(installed.map(|package| if is_certain { package } else { package.unknown() }));
            let texts: Vec<String> = fields.iter().map(|field| field.text.clone()).collect();
            if !texts.iter().any(|text| is_of_interest(text)) {
                return fields;
            }
            let mut env = this.environment(world, false);
            for assignment in assignments {
                let parts = this.assigned(assignment, world);
                if let Some(part) = parts.into_iter().next() {
                    env.insert(assignment.name.clone(), Variable::Text(part.located));
                }
            }
            if visited.iter().any(|(known, variables)| *known == texts && *variables == env) {
                return fields;
            }
            let variant = BranchChoice { subject, text: visited.len().to_string().into(), is: true };
            this.start_in(world, env.clone(), &fields, start, &variant);
            visited.push((texts, env));
            fields
        });
        if self.out.processes.len() == first {
            for (_, fields) in &runs {
                self.note_unread(fields, node);
            }
        }
    }

    /// Replaces the script that a shell reads from a written file or from standard input by `-c TEXT`.
    fn add_script(&mut self, fields: &mut Vec<ShellField>) {
        let is_shell =
            |field: &ShellField| matches!(field.text.rsplit('/').next(), Some("sh" | "bash" | "dash" | "zsh" | "ash"));
        let Some(at) = fields.iter().rposition(is_shell) else {
            // `./start.sh` that this script has written.
            let written = fields.first().and_then(|first| self.written_script(&first.text));
            if let Some(written) = written {
                let place = fields[0].place.clone();
                let mut all: Vec<ShellField> =
                    ["bash", "-c"].iter().map(|word| ShellField::new(*word, place.clone())).collect();
                all.push(ShellField::new(written.text, written.place));
                all.append(fields);
                *fields = all;
            }
            return;
        };
        let behind = fields[at + 1..].iter().position(|field| !field.text.starts_with('-'));
        if fields[at + 1..].iter().any(|field| field.text.starts_with('-') && field.text.ends_with('c')) {
            return;
        }
        let script = match behind.and_then(|behind| fields.get(at + 1 + behind)) {
            Some(file) => self.written_script(&file.text.clone()),
            None => self.input.clone().map(|text| LocatedValue::new(text.text, text.place)),
        };
        let Some(script) = script else { return };
        let rest = fields.split_off(at + 1 + behind.unwrap_or(fields.len() - at - 1));
        fields.truncate(at + 1);
        fields.push(ShellField::new("-c", script.place.clone()));
        fields.push(ShellField::new(script.text, script.place));
        fields.extend(rest);
    }

    fn start_in(
        &mut self,
        world: &BranchWorld,
        env: BTreeMap<String, Variable>,
        fields: &[ShellField],
        start: u32,
        variant: &BranchChoice,
    ) {
        let located = located(fields);
        let uses = |names: &[&str]| fields.iter().any(|field| names.contains(&base_name(&field.text)));
        if uses(&["xargs", "parallel"]) {
            let place = fields.first().map_or_else(|| self.place.clone(), |field| field.place.clone());
            self.out.not_read(place, 1, "its arguments are only known at run time");
            return;
        }
        // `timeout` stops the program.
        let is_bounded = fields.iter().any(|field| field.text == "timeout") && !self.in_background;
        let span = ScriptSpan {
            script: self.script,
            path: world.path.clone(),
            variants: self.variants.with(variant),
            start,
            end: is_bounded.then_some(start),
            foreground: !self.in_background,
            uncertain: self.is_uncertain,
            may_end: self.has_inner_trap || uses(APART) || uses(&["timeout"]),
        };
        self.base.env = env;
        self.base.span = Some(span);
        self.base.args_whole = is_whole(fields);
        // An unknown word before a known program is a wrapper, or empty.
        let skipped = usize::from(located.len() > 1 && !located[0].is_known() && located[1].is_known());
        let before = self.out.processes.len();
        (self.start)(&self.base, &located, self.depth, self.out);
        if self.out.processes.len() == before && skipped == 1 {
            let mut rest = located[1..].to_vec();
            if rest[0].text == "-m" {
                rest.insert(0, LocatedValue::new("python3", located[0].place.clone()));
            }
            (self.start)(&self.base, &rest, self.depth, self.out);
        }
        self.base.env = BTreeMap::new();
        self.base.args_whole = true;
    }

    /// Reports a flag that is a command of its own: a comment between the lines of a command ends the command.
    fn note_lost_flags(&mut self, word: &RawWord) {
        self.out.found.push(Finding {
            id: CONTINUATION.id,
            severity: Severity::Error,
            finding: "the command ends above this line; this flag and the next ones are not passed to it".to_owned(),
            evidence: format!("{} begins a command of its own", word.raw),
            remedy: "remove the comment or the empty line between the lines of the command".to_owned(),
            place: Some(self.at(word.line)),
        });
    }

    /// Lists a command of which it is not known what it starts.
    fn note_unread(&mut self, fields: &[ShellField], node: &ShellNode) {
        let Some(first) = fields.first() else { return };
        let place = self.at(node.line);
        if first.text.contains('$') {
            let is_python = first.text.to_ascii_lowercase().contains("python");
            if !is_python && !first.text.to_ascii_lowercase().contains("sudo") {
                self.out.not_read(place, node.lines, "the name of the command is only known at run time");
            }
            return;
        }
        let is_script = first.text.ends_with(".py") || first.text.starts_with("python");
        let is_start = |at: usize| {
            let text = |at: usize| fields.get(at).map_or("", |field| field.text.as_str());
            let base = text(at).rsplit('/').next().unwrap_or_default();
            let is_value = text(at - 1).starts_with("--");
            match base {
                "sglang" | "vllm" | "mcctl" => !is_value && text(at + 1) == "serve",
                base => !is_value && is_known_program(base) && text(at + 1).starts_with('-'),
            }
        };
        let named = (1..fields.len()).find(|at| is_start(*at)).map(|at| at - 1);
        if let Some(at) = named.filter(|_| !is_script) {
            let name = first.text.rsplit('/').next().unwrap_or_default();
            self.out.not_read(place, node.lines, format!("{name} is passed a command line of {}", fields[at + 1].text));
        }
    }
}

fn assigned_words(assignments: &[ShellAssignment]) -> impl Iterator<Item = &RawWord> {
    assignments.iter().flat_map(|assignment| match &assignment.value {
        AssignedText::Word(word) => std::slice::from_ref(word),
        AssignedText::Array(words) => words.as_slice(),
        AssignedText::Kept => &[],
    })
}

/// The appended part of `name="$name more"`.
fn appended_part(assignment: &ShellAssignment) -> Option<ShellAssignment> {
    let AssignedText::Word(word) = &assignment.value else { return None };
    let name = &assignment.name;
    let quoted = word.raw.starts_with('"');
    let inner = word.raw.strip_prefix('"').unwrap_or(&word.raw);
    let rest =
        [format!("${{{name}}}"), format!("${name}")].iter().find_map(|used| inner.strip_prefix(used.as_str()))?;
    if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '[') {
        return None;
    }
    let raw = format!("{}{rest}", if quoted { "\"" } else { "" });
    let value = AssignedText::Word(RawWord { raw, line: word.line });
    Some(ShellAssignment { value, append: true, ..assignment.clone() })
}

/// Whether a word may be part of a command line that starts a supported program or another shell.
fn is_of_interest(text: &str) -> bool {
    const PARTS: &[&str] = &["mooncake", "mc_store", "sglang", "vllm", "mcctl", "smg", "docker", "podman", "nerdctl"];
    let base = text.rsplit('/').next().unwrap_or(text);
    PARTS.iter().any(|part| text.contains(part))
        || matches!(base, "sh" | "bash" | "dash" | "ash" | "zsh" | "launch_server" | "ssh" | "su" | "pip" | "pip3")
}

/// Whether the word is the name of a supported program.
fn is_known_program(text: &str) -> bool {
    let base = text.rsplit('/').next().unwrap_or(text);
    matches!(
        base,
        "mooncake_master"
            | "mooncake_client"
            | "mc_store_rest_server"
            | "mooncake_store_service"
            | "mooncake_http_metadata_server"
            | "sglang.launch_server"
            | "mooncake.mooncake_store_service"
            | "vllm.entrypoints.openai.api_server"
    )
}

/// Whether the arguments are known to be complete: no unknown word may be several words, or none.
fn is_whole(fields: &[ShellField]) -> bool {
    fields.iter().enumerate().all(|(at, field)| {
        if field.is_list {
            return false;
        }
        if !field.is_open {
            return true;
        }
        // The value of the flag before it, unless its name is that of a list.
        let before = at.checked_sub(1).and_then(|at| fields.get(at));
        let is_value = before.is_some_and(|flag| flag.text.starts_with("--") && !flag.text.contains('='));
        let name = field.text.to_ascii_uppercase();
        is_value && !["ARG", "OPT", "FLAG", "EXTRA", "PARAM"].iter().any(|part| name.contains(part))
    })
}

fn located(fields: &[ShellField]) -> Vec<LocatedValue> {
    fields.iter().map(|field| LocatedValue::new(field.text.clone(), field.place.clone())).collect()
}

/// The last part of a path.
fn base_name(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}
