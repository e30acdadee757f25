//! The state of a script while it is followed.
//!
//! Further methods: `flow.rs` (control structures), `commands.rs` (programs), `builtins.rs`,
//! `condition.rs`, `jobs.rs`, `written.rs` (files and here-documents), `expansion.rs` and
//! `substitution.rs` (values of words).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lint::model::{LocatedValue, Process};
use crate::lint::shell::choice::BranchPath;
use crate::lint::shell::effects::{ScriptEffects, StreamText};
use crate::lint::shell::field::ShellField;
use crate::lint::shell::parser;
use crate::lint::shell::places::WrittenFile;
use crate::lint::shell::syntax::ShellBlock;
use crate::lint::shell::variables::{ShellVariable, ShellVariables};
use mcctl_base::check::SourceLocation;

/// Limit on the number of commands that are followed in one script, including repetitions in loops
/// and functions.
pub(super) const STEPS_MAX: u32 = 20_000;
/// Limit on the nesting of blocks and function calls.
pub(super) const NESTING_MAX: u32 = 40;

/// Adds the processes that a command line starts. The arguments are the process that the shell
/// itself is, the words, and the depth of nested shells.
pub(super) type StartCommand = fn(&Process, &[LocatedValue], usize, &mut ScriptEffects);

/// The point at which a script continues after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ControlFlow {
    Next,
    /// `break` or `continue`.
    LeaveLoop,
    /// `return`
    LeaveFunction,
    /// `exit` or `exec`
    LeaveScript,
}

/// A function of the script.
#[derive(Clone, Debug)]
pub(super) struct ShellFunction {
    pub body: Arc<ShellBlock>,
    pub is_called: bool,
}

/// A script that is being followed.
pub(crate) struct Evaluator<'a> {
    /// The shell's own process. Its variables are in `variables`.
    pub(super) base: Process,
    pub(super) out: &'a mut ScriptEffects,
    pub(super) start: StartCommand,
    /// Depth of nested shells.
    pub(super) depth: usize,
    pub(super) script: u32,
    /// Location of the text. Line 0 means that lines have no meaning.
    pub(super) place: SourceLocation,
    pub(super) variables: ShellVariables,
    pub(super) functions: BTreeMap<String, ShellFunction>,
    /// `$1` and so on. `None` if the caller is not known.
    pub(super) positional: Option<Vec<ShellField>>,
    /// Changes with each `shift`, for the keys of subjects.
    pub(super) shifts: u32,
    pub(super) path: BranchPath,
    /// The variants of the commands that run this text.
    pub(super) variants: BranchPath,
    pub(super) nesting: u32,
    /// Names of the local variables of the functions that are being run.
    pub(super) locals: Vec<BTreeMap<String, Option<ShellVariable>>>,
    /// Indices of the processes of each background job.
    pub(super) jobs: Vec<Vec<usize>>,
    pub(super) in_background: bool,
    /// In a loop with an unknown number of runs, or in a function that is not called.
    pub(super) is_uncertain: bool,
    /// A function has set a trap, which may end processes when the function returns.
    pub(super) has_inner_trap: bool,
    /// In a loop with an unknown number of runs.
    pub(super) in_unknown_loop: bool,
    /// The files that the script has written and that have a known text, by base name.
    pub(super) files: BTreeMap<String, WrittenFile>,
    /// Standard input of the current command, if the script defines it.
    pub(super) input: Option<StreamText>,
    /// The script is too long to be followed.
    pub(super) is_too_long: bool,
    /// The script runs programs.
    pub(super) has_commands: bool,
    /// Functions that are being run, to stop at recursion.
    pub(super) running: BTreeSet<String>,
}

impl<'a> Evaluator<'a> {
    /// A script that runs as `base`, whose text is at `place`.
    pub(crate) fn new(
        base: &Process,
        place: &SourceLocation,
        positional: Option<&[LocatedValue]>,
        depth: usize,
        start: StartCommand,
        out: &'a mut ScriptEffects,
    ) -> Evaluator<'a> {
        let mut base = base.clone();
        let variables = ShellVariables::inherited(std::mem::take(&mut base.env));
        let span = base.span.clone().unwrap_or_default();
        let script = if base.span.is_some() { span.script } else { out.new_script() };
        Evaluator {
            in_background: base.span.is_some() && !span.foreground,
            is_uncertain: span.uncertain,
            has_inner_trap: false,
            in_unknown_loop: false,
            path: span.path,
            variants: span.variants,
            base,
            out,
            start,
            depth,
            script,
            place: place.clone(),
            variables,
            functions: BTreeMap::new(),
            positional: positional.map(|all| all.iter().cloned().map(ShellField::from).collect()),
            shifts: 0,
            nesting: 0,
            locals: Vec::new(),
            jobs: Vec::new(),
            files: BTreeMap::new(),
            input: None,
            is_too_long: false,
            has_commands: false,
            running: BTreeSet::new(),
        }
    }

    /// Follows `text` to its end, then the functions that it defines and does not call.
    pub(crate) fn follow(&mut self, text: &str) {
        let block = parser::parse(text, self.place.line.max(1));
        self.run_block(&block);
        self.run_uncalled();
    }

    /// The shell's own process with its variables at the end of the script.
    pub(crate) fn into_environment(mut self) -> Process {
        let mut world = self.world();
        // The variables of a script without commands are its content.
        self.base.env = self.environment(&mut world, !self.has_commands);
        self.base
    }

    /// The location of `line`.
    pub(super) fn at(&self, line: u32) -> SourceLocation {
        match self.place.line {
            0 => self.place.clone(),
            _ => SourceLocation { file: self.place.file.clone(), line },
        }
    }

    /// Counts a command. False if the script is too long to be followed.
    pub(super) fn step(&mut self, line: u32) -> bool {
        self.out.steps = self.out.steps.saturating_add(1);
        if self.out.steps >= STEPS_MAX && !self.is_too_long {
            self.is_too_long = true;
            self.out.not_read(self.at(line), 1, format!("the script runs more than {STEPS_MAX} commands"));
        }
        self.out.steps < STEPS_MAX
    }
}
