//! Renders one script per serving process with its command line.

use std::collections::BTreeMap;

use crate::render::{RenderContext, RenderedFile, notes, quoting, requirements};
use crate::{ComponentRole, ProcessPlan, SglangClient};
use mcctl_base::upstream::python_client;

/// Renders the files HOST/NAME.sh.
pub(crate) fn files(context: &RenderContext<'_>) -> Vec<RenderedFile> {
    let serves = |plan: &&ProcessPlan| plan.role.is_engine() || plan.role == ComponentRole::Router;
    let mut names: BTreeMap<ComponentRole, Vec<&str>> = BTreeMap::new();
    for plan in &context.plans {
        names.entry(plan.role).or_default().push(&plan.name);
    }
    let file = |plan: &ProcessPlan| RenderedFile {
        name: format!("{}/{}.sh", plan.host, plan.name),
        text: text(context, plan, &names),
    };
    context.plans.iter().filter(serves).map(file).collect()
}

/// Maximum number of processes that a comment lists.
const NAMES_MAX: usize = 16;

/// The processes that start before `plan`. `names` contains the processes of each role.
fn started_first(plan: &ProcessPlan, names: &BTreeMap<ComponentRole, Vec<&str>>) -> Option<String> {
    let all = || plan.after.iter().filter_map(|role| names.get(role));
    let count: usize = all().map(Vec::len).sum();
    let listed: Vec<&str> = all().flatten().take(NAMES_MAX).copied().collect();
    let more = match count - listed.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (count > 0).then(|| format!("{}{more}", listed.join(", ")))
}

fn text(context: &RenderContext<'_>, plan: &ProcessPlan, names: &BTreeMap<ComponentRole, Vec<&str>>) -> String {
    let mut text = format!("#!/bin/sh\n# {}\n", context.head);
    text.push_str(&format!("# {} on {}, needs {}.\n", plan.name, plan.host, requirements(plan)));
    if plan.role == ComponentRole::Decode {
        text.push_str("# Decode servers do not use HiCache; prefill servers query the store.\n");
    }
    let has_client = context.spec.serving.client != SglangClient::Upstream;
    if has_client && matches!(plan.role, ComponentRole::Server | ComponentRole::Prefill) {
        text.push_str(&format!("# SGLang's Python environment needs mcctl's client: {}\n", python_client::INSTALL));
    }
    for note in notes(context, plan) {
        text.push_str(&format!("# {note}\n"));
    }
    if let Some(first) = started_first(plan, names) {
        text.push_str(&format!("# Start first: {first}.\n"));
    }
    text.push_str("set -eu\n");
    if plan.resources.rdma {
        text.push_str("ulimit -l unlimited # RDMA registers L2 and the segment\n");
    }
    for (name, value) in &plan.env {
        text.push_str(&format!("export {name}={}\n", quoting::shell(value)));
    }
    if let Some(script) = plan.wait_script() {
        text.push_str(&format!("bash -c {}\n", quoting::shell(&script)));
    }
    text.push_str(&format!("exec {}\n", quoting::shell_lines(&plan.argv)));
    text
}
