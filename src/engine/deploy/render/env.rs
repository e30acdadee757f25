//! Renders one environment file per process, for a shell (`set -a; . FILE`) and for
//! `EnvironmentFile=`.

use crate::ProcessPlan;
use crate::render::{RenderContext, RenderedFile, notes, quoting, requirements};

/// Renders the files HOST/NAME.env.
pub(crate) fn files(context: &RenderContext<'_>) -> Vec<RenderedFile> {
    let name = |plan: &ProcessPlan| format!("{}/{}.env", plan.host, plan.name);
    context.plans.iter().map(|plan| RenderedFile { name: name(plan), text: text(context, plan) }).collect()
}

/// The variables of `plan`, with a comment.
pub(crate) fn text(context: &RenderContext<'_>, plan: &ProcessPlan) -> String {
    let mut text = format!("# {}\n", context.head);
    text.push_str(&format!("# {} on {}, needs {}. Command line:\n", plan.name, plan.host, requirements(plan)));
    text.push_str(&format!("#   {}\n", quoting::shell_line(&plan.argv)));
    for note in notes(context, plan) {
        text.push_str(&format!("# {note}\n"));
    }
    for (name, value) in &plan.env {
        text.push_str(&format!("{name}={}\n", quoting::env_value(value)));
    }
    text
}
