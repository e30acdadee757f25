//! Shell scripts and command lines: follows them, and starts their commands as processes.

use crate::lint::model::{LocatedValue, Process};
use crate::lint::read::{launch, session};
use crate::lint::shell::Evaluator;
use crate::lint::shell::effects::ScriptEffects;
use mcctl_base::check::SourceLocation;

/// Adds the processes that `text` starts to `out`, each as an extended copy of `base`. `text`
/// begins at `place`; `positional` replaces `$@`. `None` if the arguments of the script are not
/// known.
pub(crate) fn run(
    base: &Process,
    text: &str,
    place: &SourceLocation,
    positional: Option<&[LocatedValue]>,
    depth: usize,
    out: &mut ScriptEffects,
) {
    if depth > launch::DEPTH_MAX {
        out.not_read(place.clone(), 1, "shells are nested too deeply");
        return;
    }
    let before = out.processes.len();
    let mut script = Evaluator::new(base, place, positional, depth, launch::start, out);
    script.follow(text);
    // A script without commands is a list of variables.
    if depth == 0 {
        let environment = script.into_environment();
        if out.processes.len() == before && (!environment.env.is_empty() || out.written.is_empty()) {
            out.processes.push(environment);
        }
    }
    if session::may_be_ended(text) {
        let spans = out.processes.iter_mut().skip(before).filter_map(|process| process.span.as_mut());
        spans.for_each(|span| span.may_end = true);
    }
}
