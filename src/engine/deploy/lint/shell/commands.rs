//! Simple commands: assignments, calls of functions, and programs.

use std::collections::BTreeMap;

use crate::lint::catalogue::CONTINUATION;
use crate::lint::model::{LocatedValue, Variable};
use crate::lint::release;
use crate::lint::shell::choice::{BranchChoice, BranchPath, ScriptSpan};
use crate::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::lint::shell::expansion::{BranchWorld, WORLDS_MAX};
use crate::lint::shell::field::ShellField;
use crate::lint::shell::parser;
use crate::lint::shell::syntax::{AssignedText, RawWord, ShellAssignment, ShellNode};
use crate::lint::shell::variables::{GuardedPart, ShellValue};
use crate::lint::shell::word::{WordPiece, base_name, pieces};
use mcctl_base::check::{Finding, Severity};

/// Limit on the worlds of an assignment and of a function call.
const ASSIGNED_WORLDS_MAX: usize = 8;

/// Programs that may run a command in a network of its own.
const APART: &[&str] = &["unshare", "nsenter", "netns", "firejail", "apptainer", "singularity", "bwrap"];

/// Common commands that start no other program, whatever their arguments are.
const STARTS_NOTHING: &[&str] = &[
    "[", "alias", "amd-smi", "apt", "apt-get", "awk", "basename", "bc", "cat", "cd", "chmod", "chown", "cp", "curl",
    "cut", "date", "df", "diff", "dirname", "du", "echo", "egrep", "export", "false", "fgrep", "find", "free", "fuser",
    "getent", "git", "grep", "hash", "head", "hf", "hostname", "ibstat", "id", "ifconfig", "ip", "jq", "less", "ln",
    "ls", "lscpu", "lsof", "make", "md5sum", "mkdir", "mktemp", "mv", "nc", "netstat", "nproc", "numfmt", "open",
    "pgrep", "popd", "printf", "ps", "pushd", "pwd", "rdma", "readlink", "realpath", "rm", "rmdir", "rocm-smi",
    "rsync", "scp", "sed", "seq", "sleep", "sort", "ss", "stat", "tail", "tar", "tee", "test", "top", "touch", "tr",
    "true", "type", "umask", "uname", "uniq", "wc", "wget", "which", "yq", "yum",
];

/// Names of the supported programs that start without a sub-command.
const PROGRAMS: &[&str] = &[
    "mooncake_master",
    "mooncake_client",
    "mc_store_rest_server",
    "mooncake_store_service",
    "mooncake_http_metadata_server",
    "sglang.launch_server",
    "mooncake.mooncake_store_service",
    "vllm.entrypoints.openai.api_server",
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
        let name = first.first().map(|field| field.text().to_owned()).unwrap_or_default();
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
        self.change_files(words);
        if STARTS_NOTHING.contains(&name.as_str()) {
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
            self.run_isolated(&block);
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
                vec![GuardedPart::always(ShellField::new(text, self.at(word.line)))]
            }
            AssignedText::Array(words) => self.fields(words, world).into_iter().map(GuardedPart::always).collect(),
            AssignedText::Kept => Vec::new(),
        }
    }

    /// Runs an assignment that lasts.
    pub(super) fn assign(&mut self, assignment: &ShellAssignment) {
        let name = &assignment.name;
        if assignment.index.is_some() {
            // An associative array, or an array that is filled by position.
            self.make_unknown(name, assignment.line);
            return;
        }
        let is_array = matches!(assignment.value, AssignedText::Array(_));
        let assignment = appended_part(assignment).unwrap_or_else(|| assignment.clone());
        let values = self.in_worlds(ASSIGNED_WORLDS_MAX, |this, world| this.assigned(&assignment, world));
        let (is_only, uses_default) = (values.len() == 1, values.iter().any(|(world, _)| world.uses_default));
        for (at, (world, parts)) in values.into_iter().enumerate() {
            let value = ShellValue { parts, is_array, is_outside: false };
            match at {
                _ if assignment.append => {
                    let guard = if is_only { &self.path } else { &world.path };
                    self.variables.append(name, guard, value);
                }
                // The first value applies unless one of the others does.
                0 => self.variables.assign(name, &self.path, value, uses_default),
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
            self.variants = variants.with(&BranchChoice { subject, pattern: at.to_string().into(), is: true });
            let is_known = !fields.iter().any(|field| field.is_list);
            let saved = std::mem::replace(&mut self.positional, is_known.then_some(fields));
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
            let texts: Vec<String> = fields.iter().map(|field| field.text().to_owned()).collect();
            if !texts.iter().any(|text| is_of_interest(text)) {
                return fields;
            }
            let mut env = this.environment(world, false);
            for assignment in assignments {
                if let Some(part) = this.assigned(assignment, world).into_iter().next() {
                    env.insert(assignment.name.clone(), Variable::Text(part.field.located));
                }
            }
            if visited.iter().any(|(known, variables)| *known == texts && *variables == env) {
                return fields;
            }
            let variant = BranchChoice { subject, pattern: visited.len().to_string().into(), is: true };
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

    /// Replaces the script that a shell reads from a written file or from standard input by
    /// `-c TEXT`.
    fn add_script(&mut self, fields: &mut Vec<ShellField>) {
        let is_shell = |field: &ShellField| matches!(base_name(field.text()), "sh" | "bash" | "dash" | "zsh" | "ash");
        let shell = fields.iter().rposition(is_shell);
        let behind = shell.map_or(0, |at| at + 1);
        if shell.is_some() && fields[behind..].iter().any(|f| f.text().starts_with('-') && f.text().ends_with('c')) {
            return;
        }
        let file = (behind..fields.len()).find(|at| !fields[*at].text().starts_with('-'));
        let script = match file {
            Some(at) => self.written_script(fields[at].text()),
            None => self.input.clone().filter(|_| shell.is_some()).map(|input| input.located),
        };
        let Some(script) = script else { return };
        // `./start.sh` is run by a shell, too.
        let words = if shell.is_some() { &["-c"][..] } else { &["bash", "-c"] };
        let added =
            words.iter().map(|word| ShellField::new(*word, script.place.clone())).chain([script.clone().into()]);
        fields.splice(behind..file.unwrap_or(fields.len()), added.collect::<Vec<_>>());
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
        let uses = |names: &[&str]| fields.iter().any(|field| names.contains(&base_name(field.text())));
        if uses(&["xargs", "parallel"]) {
            let place = fields.first().map_or(&self.place, |field| &field.located.place).clone();
            self.out.not_read(place, 1, "its arguments are only known at run time");
            return;
        }
        // `timeout` stops the program.
        let is_bounded = fields.iter().any(|field| field.text() == "timeout") && !self.in_background;
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
        let is_wrapped = located.len() > 1 && !located[0].is_known() && located[1].is_known();
        let before = self.out.processes.len();
        (self.start)(&self.base, &located, self.depth, self.out);
        if self.out.processes.len() == before && is_wrapped {
            let mut rest = located[1..].to_vec();
            if rest[0].text == "-m" {
                rest.insert(0, LocatedValue::new("python3", located[0].place.clone()));
            }
            (self.start)(&self.base, &rest, self.depth, self.out);
        }
        self.base.env = BTreeMap::new();
        self.base.args_whole = true;
    }

    /// Reports a flag that is a command of its own: a comment between the lines of a command ends
    /// the command.
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
        let text = |at: usize| fields.get(at).map_or("", ShellField::text);
        let name = base_name(text(0));
        let place = self.at(node.line);
        if text(0).contains('$') {
            let lower = text(0).to_ascii_lowercase();
            if !lower.contains("python") && !lower.contains("sudo") {
                self.out.not_read(place, node.lines, "the name of the command is only known at run time");
            }
            return;
        }
        let is_start = |at: usize| match base_name(text(at)) {
            _ if text(at - 1).starts_with("--") => false,
            "sglang" | "vllm" | "mcctl" => text(at + 1) == "serve",
            base => PROGRAMS.contains(&base) && text(at + 1).starts_with('-'),
        };
        let started = (1..fields.len()).find(|at| is_start(*at)).map(text);
        if let Some(program) = started.filter(|_| !name.ends_with(".py") && !text(0).starts_with("python")) {
            self.out.not_read(place, node.lines, format!("{name} is passed a command line of {program}"));
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
    PARTS.iter().any(|part| text.contains(part))
        || matches!(
            base_name(text),
            "sh" | "bash" | "dash" | "ash" | "zsh" | "launch_server" | "ssh" | "su" | "pip" | "pip3"
        )
}

/// Whether the arguments are known to be complete: no unknown word may be several words, or none.
fn is_whole(fields: &[ShellField]) -> bool {
    fields.iter().enumerate().all(|(at, field)| {
        if field.is_list || !field.may_split {
            return !field.is_list;
        }
        // The value of the flag before it, unless its name is that of a list.
        let before = at.checked_sub(1).map_or("", |at| fields[at].text());
        let is_value = before.starts_with("--") && !before.contains('=');
        let name = field.text().to_ascii_uppercase();
        is_value && !["ARG", "OPT", "FLAG", "EXTRA", "PARAM"].iter().any(|part| name.contains(part))
    })
}

fn located(fields: &[ShellField]) -> Vec<LocatedValue> {
    fields.iter().map(|field| field.located.clone()).collect()
}
