//! The end of processes: `kill`, `wait`, and programs that stop others.

use crate::lint::model::{Process, RuntimeKind};
use crate::lint::shell::evaluator::Evaluator;
use crate::lint::shell::syntax::RawWord;
use crate::lint::shell::word::base_name;

/// Parts of names of commands that stop processes. What such a command stops is not known.
const STOPPING: &[&str] = &["kill", "stop", "clean", "shutdown", "teardown", "terminate", "restart", "reset", "fuser"];

impl Evaluator<'_> {
    /// Ends the processes `which` of this script.
    pub(super) fn end(&mut self, which: impl Fn(usize, &Process) -> bool) {
        let now = self.out.tick();
        let script = self.script;
        for (at, process) in self.out.processes.iter_mut().enumerate() {
            let is_chosen = which(at, process);
            if let Some(span) = process.span.as_mut().filter(|span| is_chosen && span.script == script) {
                span.end.get_or_insert(now);
            }
        }
    }

    /// The jobs that the words name: `$!` in a variable, or `%1`. `None` if one of them is not
    /// known.
    fn named_jobs(&mut self, words: &[RawWord]) -> Option<Vec<usize>> {
        let all = self.in_worlds(8, |this, world| this.fields(words, world));
        let mut jobs = Vec::new();
        for field in all.iter().flat_map(|(_, fields)| fields) {
            let text = field.text();
            // A process group, as in `kill -- -$!`.
            let text = text.strip_prefix('-').filter(|rest| rest.starts_with('$')).unwrap_or(text);
            if text.starts_with('-') || matches!(text, "TERM" | "KILL" | "INT" | "HUP" | "9" | "15") {
                continue;
            }
            let job = match text.strip_prefix("$!") {
                Some(job) => job.parse::<usize>().ok(),
                None => text.strip_prefix('%').and_then(|n| n.parse::<usize>().ok()?.checked_sub(1)),
            };
            jobs.extend(self.jobs.get(job?)?);
        }
        Some(jobs)
    }

    /// The processes so far may have ended.
    fn may_end(&mut self) {
        let script = self.script;
        let spans = self.out.processes.iter_mut().filter_map(|process| process.span.as_mut());
        spans.filter(|span| span.script == script).for_each(|span| span.may_end = true);
    }

    /// Runs `kill` or `wait`, which returns when the processes have exited. Without a known job,
    /// all processes may have ended.
    pub(super) fn end_named(&mut self, words: &[RawWord]) {
        // `kill -0` only tests whether the process exists. What follows may depend on the result.
        if words.iter().any(|word| word.raw == "-0") {
            self.may_end();
            return;
        }
        let named = self.named_jobs(&words[1..]).filter(|jobs| !jobs.is_empty());
        self.end(|at, _| named.as_ref().is_none_or(|jobs| jobs.contains(&at)));
    }

    /// Ends what another program may stop.
    pub(super) fn stop_by(&mut self, name: &str, words: &[RawWord]) {
        let base = base_name(name);
        if base == "tail" && words.iter().any(|word| word.raw.starts_with("--pid")) {
            self.may_end();
        }
        let all: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
        if matches!(base, "docker" | "podman" | "nerdctl") {
            if all.iter().any(|word| matches!(*word, "rm" | "stop" | "kill" | "restart" | "down"))
                && !all.contains(&"run")
            {
                self.end(|_, process| process.runtime == RuntimeKind::Docker);
            }
            return;
        }
        let is_wrapped = matches!(base, "sudo" | "bash" | "sh" | "xargs") || base.contains('$');
        let names = if is_wrapped { &all[..] } else { std::slice::from_ref(&base) };
        if names.iter().any(|name| STOPPING.iter().any(|part| name.contains(part))) {
            self.end(|_, _| true);
        }
    }
}
