//! Control structures: branches, loops, functions, pipelines and background jobs.

use crate::engine::lint::shell::choice::{BranchChoice, BranchPath};
use crate::engine::lint::shell::condition::ConditionResult;
use crate::engine::lint::shell::evaluator::{ControlFlow, Evaluator, NESTING_MAX, ShellFunction};
use crate::engine::lint::shell::syntax::{RawWord, ShellBlock, ShellCommand, ShellNode};
use crate::engine::lint::shell::variables::ShellValue;

/// Limit on the runs of one loop.
const RUNS_MAX: usize = 64;

impl Evaluator<'_> {
    /// Runs the commands until one of them leaves the block.
    pub(super) fn run_block(&mut self, block: &[ShellNode]) -> ControlFlow {
        if self.nesting > NESTING_MAX {
            if let Some(first) = block.first() {
                let place = self.at(first.line);
                self.out.not_read(place, 1, "blocks and function calls are nested too deeply");
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
            ShellCommand::Simple { assignments, words } => self.simple(assignments, words, node),
            ShellCommand::Declaration { keyword, options, assignments } => {
                self.declare(keyword, options, assignments);
                ControlFlow::Next
            }
            ShellCommand::Test(_) => ControlFlow::Next,
            ShellCommand::Arithmetic(word) => {
                self.arithmetic_assignment(&word.raw, word.line);
                ControlFlow::Next
            }
            ShellCommand::Pipeline(parts) => self.pipeline(parts),
            ShellCommand::Not(inner) => {
                self.run(inner);
                ControlFlow::Next
            }
            ShellCommand::Both(left, right) => {
                let result = self.decide(left);
                match result {
                    ConditionResult::Known(true) | ConditionResult::Command => self.run(right),
                    ConditionResult::Known(false) => ControlFlow::Next,
                    ConditionResult::Choice { yes, no } => self.optional(&yes, &no, right),
                }
            }
            ShellCommand::Either(left, right) => {
                let first = self.out.processes.len();
                let result = self.decide(left);
                match self.as_choice(result) {
                    ConditionResult::Known(false) => self.run(right),
                    ConditionResult::Choice { yes, no } => {
                        // What the left side started does not run if it failed.
                        for span in self.out.processes[first..].iter_mut().filter_map(|process| process.span.as_mut()) {
                            yes.iter().for_each(|choice| span.path.push(choice.clone()));
                        }
                        self.optional(&no, &yes, right)
                    }
                    _ => ControlFlow::Next,
                }
            }
            ShellCommand::Background(inner) => self.background(inner),
            ShellCommand::Group(block) => self.run_block(block),
            ShellCommand::Subshell(block) => {
                let (variables, path) = (self.variables.clone(), self.path.clone());
                self.run_block(block);
                (self.variables, self.path) = (variables, path);
                ControlFlow::Next
            }
            ShellCommand::If(arms, otherwise) => self.branch(arms, otherwise),
            ShellCommand::Case(subject, arms) => self.case(subject, arms),
            ShellCommand::For { name, words, body } => self.each(name, words.as_deref(), body, node),
            ShellCommand::CountedFor { header, body } => self.counted(header, body, node),
            ShellCommand::While { until, condition, body } => self.repeat(*until, condition, body, node),
            ShellCommand::Function(name, body) => {
                let function = ShellFunction { body: body.clone(), is_called: false };
                self.functions.insert(name.clone(), function);
                ControlFlow::Next
            }
            ShellCommand::Redirected(body, redirects) => self.redirected(body, redirects),
            ShellCommand::Unreadable => {
                let place = self.at(node.line);
                self.out.not_read(place, node.lines, "the syntax is not supported");
                ControlFlow::Next
            }
        }
    }

    /// Runs `node` only if `choices` hold. If it leaves, the rest runs only with the opposite choices.
    fn optional(&mut self, choices: &[BranchChoice], opposite: &[BranchChoice], node: &ShellNode) -> ControlFlow {
        let before = self.path.clone();
        let flow = match self.enter(&before, choices) {
            true => self.run(node),
            false => ControlFlow::Next,
        };
        self.path = before;
        if flow != ControlFlow::Next {
            // Nothing follows if the opposite cannot happen either.
            let before = self.path.clone();
            return if self.enter(&before, opposite) { ControlFlow::Next } else { flow };
        }
        ControlFlow::Next
    }

    /// Sets the path to `before` and `choices`. False if they contradict each other.
    pub(super) fn enter(&mut self, before: &BranchPath, choices: &[BranchChoice]) -> bool {
        let mut path = BranchPath::default();
        choices.iter().for_each(|choice| path.push(choice.clone()));
        let is_possible = !before.contradicts(&path) && !path.contradicts(&path);
        self.path = before.clone();
        self.path.extend(&path);
        is_possible
    }

    fn branch(&mut self, arms: &[(ShellBlock, ShellBlock)], otherwise: &ShellBlock) -> ControlFlow {
        let before = self.path.clone();
        // The choices for which no arm so far is taken, and those that hold after an arm that leaves.
        let (mut against, mut after): (Vec<BranchChoice>, Vec<BranchChoice>) = (Vec::new(), Vec::new());
        let (mut staying, mut flow) = (Vec::new(), ControlFlow::Next);
        for (condition, body) in arms {
            self.enter(&before, &against);
            let result = self.decide_block(condition);
            match self.as_choice(result) {
                ConditionResult::Known(false) => {}
                ConditionResult::Choice { yes, no } => {
                    let reached: Vec<BranchChoice> = against.iter().chain(&yes).cloned().collect();
                    if self.enter(&before, &reached) {
                        // If an earlier arm stays, this arm is not taken although its condition may hold.
                        let marker = (!staying.is_empty()).then(|| self.mark());
                        match (self.run_block(body), marker) {
                            (ControlFlow::Next, _) => staying.push(yes),
                            (ended, marker) => {
                                flow = ended;
                                match marker {
                                    Some(marker) => after.push(marker.negated()),
                                    None => after.extend(no.iter().cloned()),
                                }
                            }
                        }
                    }
                    against.extend(no);
                }
                _ => return self.last_arm(body, before, &against, &staying, after, flow),
            }
        }
        self.last_arm(otherwise, before, &against, &staying, after, flow)
    }

    /// Runs the arm that is taken if no other one is. `after` and `flow` come from the arms that leave, and `staying` has the choices of the
    /// others.
    pub(super) fn last_arm(
        &mut self,
        body: &ShellBlock,
        before: BranchPath,
        against: &[BranchChoice],
        staying: &[Vec<BranchChoice>],
        mut after: Vec<BranchChoice>,
        flow: ControlFlow,
    ) -> ControlFlow {
        let is_possible = self.enter(&before, against);
        let marker = (staying.len() > 1).then(|| self.mark());
        let ended = if is_possible { self.run_block(body) } else { ControlFlow::Next };
        self.path = before;
        if ended != ControlFlow::Next {
            match (staying, marker) {
                ([], _) => return flow.max_of(ended),
                ([only], _) => after.extend(only.iter().cloned()),
                (_, Some(marker)) => after.push(marker.negated()),
                (_, None) => {}
            }
        }
        self.hold(after);
        ControlFlow::Next
    }

    /// Adds a choice of its own to the path, so that another path can exclude what follows.
    fn mark(&mut self) -> BranchChoice {
        let marker = self.fresh_choice();
        self.path.push(marker.clone());
        marker
    }

    /// Adds the choices that hold for the rest of a block.
    pub(super) fn hold(&mut self, choices: Vec<BranchChoice>) {
        for choice in choices {
            let mut path = BranchPath::default();
            path.push(choice.clone());
            if !self.path.contradicts(&path) {
                self.path.push(choice);
            }
        }
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
            let place = self.at(node.line);
            self.out.not_read(place, 1, "a loop with an unknown number of runs starts processes");
        }
        // Whether the last run leaves the function is not known either.
        ControlFlow::LeaveLoop
    }

    /// Runs `body` as long as `next` sets up another run. `next` returns whether there is one, or `None` if that is not known.
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
            && fields.iter().all(|field| !field.is_open && !field.text.contains('*'));
        self.iterate(body, node, |this, run| {
            let text = match (is_known, fields.get(run)) {
                (true, None) => return Some(false),
                (true, Some(field)) => field.text.clone(),
                (false, _) => format!("${name}"),
            };
            let (path, value) = (this.path.clone(), ShellValue::text(text, this.at(node.line)));
            this.variables.assign(name, &path, value, world.uses_default);
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
            let output = self.stream_of(part);
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

    fn background(&mut self, inner: &ShellNode) -> ControlFlow {
        let first = self.out.processes.len();
        let was_background = std::mem::replace(&mut self.in_background, true);
        let saved = match inner.command {
            ShellCommand::Simple { .. } => None,
            _ => Some((self.variables.clone(), self.path.clone())),
        };
        self.run(inner);
        if let Some((variables, path)) = saved {
            (self.variables, self.path) = (variables, path);
        }
        self.in_background = was_background;
        self.jobs.push((first..self.out.processes.len()).collect());
        ControlFlow::Next
    }

    /// Runs the functions that the script defines but does not call, each on its own.
    pub(super) fn run_uncalled(&mut self) {
        let uncalled: Vec<(String, ShellFunction)> = self
            .functions
            .iter()
            .filter(|(_, function)| !function.is_called)
            .map(|(name, function)| (name.clone(), function.clone()))
            .collect();
        self.is_uncertain = true;
        self.positional = None;
        for (name, function) in uncalled {
            // A function that an earlier one of this list has called.
            if self.functions.get(&name).is_some_and(|known| known.is_called) {
                continue;
            }
            let (variables, before) = (self.variables.clone(), self.path.clone());
            let choice = self.fresh_choice();
            self.path = BranchPath::default();
            self.path.push(choice);
            self.run_block(&function.body);
            (self.variables, self.path) = (variables, before);
        }
    }
}

impl ControlFlow {
    fn max_of(self, other: ControlFlow) -> ControlFlow {
        // A loop may be left by one branch only: the rest of the function is then reached.
        let rank = |flow| match flow {
            ControlFlow::Next => 0,
            ControlFlow::LeaveLoop => 1,
            ControlFlow::LeaveFunction => 2,
            ControlFlow::LeaveScript => 3,
        };
        if self == ControlFlow::Next || rank(other) < rank(self) { other } else { self }
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
