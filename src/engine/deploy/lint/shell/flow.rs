//! Control structures: branches, loops, functions, pipelines and background jobs.

use crate::lint::shell::choice::BranchPath;
use crate::lint::shell::condition::ConditionResult;
use crate::lint::shell::evaluator::{ControlFlow, Evaluator, NESTING_MAX, ShellFunction};
use crate::lint::shell::expansion::CHOICES_MAX;
use crate::lint::shell::syntax::{RawWord, ShellBlock, ShellCommand, ShellNode};
use crate::lint::shell::variables::ShellValue;

/// Limit on the runs of one loop.
const RUNS_MAX: usize = 64;

impl Evaluator<'_> {
    /// Runs the commands until one of them leaves the block.
    pub(super) fn run_block(&mut self, block: &[ShellNode]) -> ControlFlow {
        if self.nesting > NESTING_MAX {
            if let Some(first) = block.first() {
                self.out.not_read(self.at(first.line), 1, "blocks and function calls are nested too deeply");
            }
            return ControlFlow::Next;
        }
        self.nesting += 1;
        let mut flow = ControlFlow::Next;
        for node in block {
            if !self.step(node.line) {
                flow = ControlFlow::LeaveScript;
                break;
            }
            flow = self.run(node);
            if flow != ControlFlow::Next {
                break;
            }
        }
        self.nesting -= 1;
        flow
    }

    /// Runs one command, which may contain others.
    pub(super) fn run(&mut self, node: &ShellNode) -> ControlFlow {
        match &node.command {
            ShellCommand::Simple { assignments, words } => return self.simple(assignments, words, node),
            ShellCommand::Declaration { keyword, options, assignments } => self.declare(keyword, options, assignments),
            ShellCommand::Test(_) => {}
            ShellCommand::Arithmetic(word) => self.arithmetic_assignment(&word.raw, word.line),
            ShellCommand::Pipeline(parts) => return self.pipeline(parts),
            ShellCommand::Not(inner) => {
                self.run(inner);
            }
            ShellCommand::Both(left, right) => {
                return match self.decide(left) {
                    ConditionResult::Known(true) | ConditionResult::Command => self.run(right),
                    ConditionResult::Known(false) => ControlFlow::Next,
                    ConditionResult::Choice { yes, no } => self.optional(&yes, &no, right),
                };
            }
            ShellCommand::Either(left, right) => {
                let first = self.out.processes.len();
                let result = self.decide(left);
                match self.as_choice(result) {
                    ConditionResult::Known(false) => return self.run(right),
                    ConditionResult::Choice { yes, no } => {
                        // What the left side started does not run if it failed.
                        let spans = self.out.processes[first..].iter_mut().filter_map(|process| process.span.as_mut());
                        spans.for_each(|span| span.path.extend(&yes));
                        return self.optional(&no, &yes, right);
                    }
                    _ => {}
                }
            }
            ShellCommand::Background(inner) => self.background(inner),
            ShellCommand::Group(block) => return self.run_block(block),
            ShellCommand::Subshell(block) => self.run_isolated(block),
            ShellCommand::If(arms, otherwise) => {
                let bodies: Vec<&ShellBlock> = arms.iter().map(|(_, body)| body).chain([otherwise]).collect();
                return self.arms(&bodies, |this, at| match arms.get(at) {
                    Some((condition, _)) => this.decide_block(condition),
                    None => ConditionResult::Known(true),
                });
            }
            ShellCommand::Case(subject, arms) => {
                let bodies: Vec<&ShellBlock> = arms.iter().map(|(_, body)| body).collect();
                return self.arms(&bodies, |this, at| this.matched(subject, &arms[at].0));
            }
            ShellCommand::For { name, words, body } => return self.each(name, words.as_deref(), body, node),
            ShellCommand::CountedFor { header, body } => return self.counted(header, body, node),
            ShellCommand::While { until, condition, body } => return self.repeat(*until, condition, body, node),
            ShellCommand::Function(name, body) => {
                let function = ShellFunction { body: body.clone(), is_called: false };
                self.functions.insert(name.clone(), function);
            }
            ShellCommand::Redirected(body, redirects) => return self.redirected(body, redirects),
            ShellCommand::Unreadable => {
                self.out.not_read(self.at(node.line), node.lines, "the syntax is not supported");
            }
        }
        ControlFlow::Next
    }

    /// Runs `block` in a shell of its own, whose variables are lost at its end.
    pub(super) fn run_isolated(&mut self, block: &[ShellNode]) {
        let (variables, path) = (self.variables.clone(), self.path.clone());
        self.run_block(block);
        (self.variables, self.path) = (variables, path);
    }

    /// Runs `node` only if `choices` hold. If it leaves, the rest runs only with the opposite
    /// choices.
    fn optional(&mut self, choices: &BranchPath, opposite: &BranchPath, node: &ShellNode) -> ControlFlow {
        let before = self.path.clone();
        let flow = if self.enter(choices) { self.run(node) } else { ControlFlow::Next };
        self.path = before;
        // Nothing follows if the opposite cannot happen either.
        if flow == ControlFlow::Next || self.enter(opposite) { ControlFlow::Next } else { flow }
    }

    /// Adds `choices` to the path. False if they cannot hold.
    fn enter(&mut self, choices: &BranchPath) -> bool {
        let is_possible = !self.path.contradicts(choices) && !choices.contradicts(choices);
        self.path.extend(choices);
        is_possible
    }

    /// Runs the arms of `if` or `case`, the first whose condition holds. `decide` returns the
    /// result of the condition of an arm.
    fn arms(
        &mut self,
        bodies: &[&ShellBlock],
        mut decide: impl FnMut(&mut Self, usize) -> ConditionResult,
    ) -> ControlFlow {
        let before = self.path.clone();
        // The path on which no arm so far is taken, the choices after an arm that leaves, and those
        // of each arm that stays.
        let (mut against, mut after) = (before.clone(), BranchPath::default());
        let (mut staying, mut flow): (Vec<BranchPath>, ControlFlow) = (Vec::new(), ControlFlow::Next);
        let mut is_reached = true;
        for (at, body) in bodies.iter().enumerate() {
            if let Some(first) = body.first().filter(|_| against.count() > before.count() + CHOICES_MAX) {
                self.out.not_read(self.at(first.line), 1, format!("it follows more than {CHOICES_MAX} branches"));
                break;
            }
            self.path = against.clone();
            let result = decide(self, at);
            let (yes, no) = match self.as_choice(result) {
                ConditionResult::Known(false) => continue,
                ConditionResult::Choice { yes, no } => (yes, Some(no)),
                _ => (BranchPath::default(), None),
            };
            self.path = against.clone();
            let is_possible = self.enter(&yes) && is_reached;
            // Without a choice of its own, an arm that leaves may look like one that stays.
            let is_alone = match no {
                Some(_) => staying.iter().all(|theirs| theirs.contradicts(&yes)),
                None => staying.len() < 2,
            };
            let marker = (!is_alone).then(|| self.fresh_choice());
            marker.iter().for_each(|marker| self.path.push(marker.clone()));
            match is_possible.then(|| self.run_block(body)) {
                None => {}
                Some(ControlFlow::Next) => staying.push(yes),
                Some(ended) => {
                    match (marker, &no, staying.as_slice()) {
                        (Some(marker), ..) => after.push(marker.negated()),
                        (None, Some(no), _) => after.extend(no),
                        (None, None, [only]) => after.extend(only),
                        // No arm stays.
                        (None, None, _) => {
                            self.path = before;
                            return flow.max_of(ended);
                        }
                    }
                    flow = ended;
                }
            }
            let Some(no) = no else { break };
            self.path = against;
            is_reached &= self.enter(&no);
            against = std::mem::take(&mut self.path);
        }
        self.path = before;
        self.path.extend(&after);
        ControlFlow::Next
    }

    /// Runs `body` in a loop whose number of runs is not known.
    fn unknown_runs(&mut self, body: &ShellBlock, node: &ShellNode) -> ControlFlow {
        let before = self.path.clone();
        let was_uncertain = std::mem::replace(&mut self.is_uncertain, true);
        let was_in_loop = std::mem::replace(&mut self.in_unknown_loop, true);
        let first = self.out.processes.len();
        let choice = self.fresh_choice();
        self.path.push(choice);
        self.run_block(body);
        self.path = before;
        (self.is_uncertain, self.in_unknown_loop) = (was_uncertain, was_in_loop);
        if self.out.processes.len() > first {
            self.out.not_read(self.at(node.line), 1, "a loop with an unknown number of runs starts processes");
        }
        // Whether the last run leaves the function is not known either.
        ControlFlow::LeaveLoop
    }

    /// Runs `body` as long as `next` sets up another run. `next` returns whether there is one, or
    /// `None` if that is not known.
    fn iterate(
        &mut self,
        body: &ShellBlock,
        node: &ShellNode,
        mut next: impl FnMut(&mut Self, usize) -> Option<bool>,
    ) -> ControlFlow {
        let before = self.path.clone();
        let mut flow = ControlFlow::Next;
        for run in 0..=RUNS_MAX {
            match next(self, run).filter(|more| run < RUNS_MAX || !more) {
                Some(false) => break,
                Some(true) => flow = self.run_block(body),
                None => flow = self.unknown_runs(body, node),
            }
            if flow != ControlFlow::Next {
                break;
            }
        }
        if matches!(flow, ControlFlow::LeaveFunction | ControlFlow::LeaveScript) {
            return flow;
        }
        self.path = before;
        ControlFlow::Next
    }

    fn each(&mut self, name: &str, words: Option<&[RawWord]>, body: &ShellBlock, node: &ShellNode) -> ControlFlow {
        let all = [RawWord { raw: "\"$@\"".to_owned(), line: node.line }];
        let mut world = self.world();
        let fields = self.fields(words.unwrap_or(&all), &mut world);
        let is_known = world.others.is_empty()
            && fields.len() <= RUNS_MAX
            && !fields.iter().any(|field| field.may_split || field.text().contains('*'));
        self.iterate(body, node, |this, run| {
            let text = match (is_known, fields.get(run)) {
                (true, None) => return Some(false),
                (true, Some(field)) => field.text(),
                (false, _) => &format!("${name}"),
            };
            let value = ShellValue::text(text, this.at(node.line));
            this.variables.assign(name, &this.path, value, world.uses_default);
            is_known.then_some(true)
        })
    }

    fn counted(&mut self, header: &str, body: &ShellBlock, node: &ShellNode) -> ControlFlow {
        let parts: Vec<&str> = header.split(';').collect();
        self.iterate(body, node, |this, run| {
            let [init, condition, update] = parts.as_slice() else { return None };
            this.arithmetic_assignment(if run == 0 { init } else { update }, node.line);
            let mut world = this.world();
            let more = this.arithmetic(condition, &mut world).filter(|_| world.others.is_empty());
            if more.is_none() || run == RUNS_MAX {
                // The counter has another value in each run.
                this.make_unknown(init.split('=').next().unwrap_or_default().trim(), node.line);
            }
            more.map(|more| more != 0)
        })
    }

    fn repeat(&mut self, until: bool, condition: &ShellBlock, body: &ShellBlock, node: &ShellNode) -> ControlFlow {
        let is_endless = condition.iter().all(is_constant);
        self.iterate(body, node, |this, run| {
            // `while true` is left by `break`, if at all.
            if is_endless && run > 0 {
                return Some(false);
            }
            match this.decide_block(condition) {
                ConditionResult::Known(value) => Some(value != until),
                _ => None,
            }
        })
    }

    fn pipeline(&mut self, parts: &[ShellNode]) -> ControlFlow {
        let saved = self.input.take();
        let first = self.out.processes.len();
        let mut flow = ControlFlow::Next;
        for (at, part) in parts.iter().enumerate() {
            // All but the last command run at the same time as the next one.
            let was_background = self.in_background;
            self.in_background |= at + 1 < parts.len();
            let output = self.streams(|this, world| this.output_of(part, world)).into_iter().next();
            flow = self.run(part);
            self.in_background = was_background;
            self.input = output;
        }
        self.input = saved;
        if parts.len() > 1 && !self.in_background {
            // The script waits for all parts.
            self.end(|at, _| at >= first);
        }
        // Each part is a process of its own: `exit` leaves only that.
        if parts.len() > 1 { ControlFlow::Next } else { flow }
    }

    fn background(&mut self, inner: &ShellNode) {
        let (first, nested) = (self.out.processes.len(), self.jobs.len());
        let was_background = std::mem::replace(&mut self.in_background, true);
        match inner.command {
            ShellCommand::Simple { .. } => {
                self.run(inner);
            }
            _ => self.run_isolated(std::slice::from_ref(inner)),
        }
        self.in_background = was_background;
        let started: Vec<usize> = (first..self.out.processes.len()).collect();
        // Its commands run one after another, but for the jobs among them.
        let in_turn = |at: &&usize| !self.jobs.iter().skip(nested).any(|job| job.contains(*at));
        let in_turn: Vec<usize> = started.iter().filter(in_turn).copied().collect();
        let start = |at: usize| self.out.processes[at].span.as_ref().map(|span| span.start);
        if in_turn.iter().any(|at| start(*at) != start(in_turn[0])) {
            for at in in_turn {
                self.out.processes[at].span.iter_mut().for_each(|span| span.may_end = true);
            }
        }
        self.jobs.push(started);
    }

    /// Runs the functions that the script defines but does not call, each on its own.
    pub(super) fn run_uncalled(&mut self) {
        self.is_uncertain = true;
        self.positional = None;
        for name in self.functions.keys().cloned().collect::<Vec<_>>() {
            // An earlier function of this list may have called it.
            let Some(function) = self.functions.get(&name).filter(|function| !function.is_called) else { continue };
            let body = function.body.clone();
            let choice = self.fresh_choice();
            let before = std::mem::replace(&mut self.path, choice.into());
            self.run_isolated(&body);
            self.path = before;
        }
    }
}

impl ControlFlow {
    /// The flow after branches that leave with `self` and with `other`. A loop may be left by one
    /// branch only: the rest of the function is then reached.
    fn max_of(self, other: ControlFlow) -> ControlFlow {
        if self == ControlFlow::Next { other } else { self.min(other) }
    }
}

/// Whether a condition has no variables: `true`, `:`, `[ 1 ]`.
fn is_constant(node: &ShellNode) -> bool {
    match &node.command {
        ShellCommand::Simple { words, .. } => words.iter().all(|word| !word.raw.contains('$')),
        ShellCommand::Test(word) | ShellCommand::Arithmetic(word) => {
            !word.raw.contains(|c: char| c == '$' || c.is_ascii_alphabetic())
        }
        _ => false,
    }
}
