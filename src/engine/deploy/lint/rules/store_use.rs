//! Servers with settings for the store that never use it.

use crate::lint::findings::Findings;
use crate::lint::model::{LocatedValue, Process, ProcessRole, RuntimeKind, SglangMode, Variable};
use crate::lint::settings::ProcessView;
use crate::lint::view::DeploymentView;
use mcctl_base::upstream::sglang::DECODE_OFFLOAD;

/// Variables that make sense only for a server that uses the store.
const STORE_ONLY: &[&str] = &["MOONCAKE_MASTER", "MOONCAKE_CLIENT", "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"];

/// Flags with which SGLang uses the store without HiCache, or with which a file may enable HiCache.
const OTHER_USES: &[&str] =
    &["enable_unified_cache_external_linker", "enable_mm_global_cache", "config", DECODE_OFFLOAD];

/// An SGLang server with Mooncake variables but without HiCache. `decode-without-hicache` has
/// decode servers, which seldom use it.
pub(super) fn without_hicache(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.sglang().filter(|member| has_no_hicache(member)) {
        let mut set = STORE_ONLY.iter().filter_map(|name| Some((*name, member.process.env.get(*name)?)));
        let Some((name, variable)) = set.next() else { continue };
        if is_shared(view, member.process, variable) {
            continue;
        }
        out.warning(
            variable.place(),
            format!("{name} has no effect on {}: HiCache is off", member.process.describe()),
            format!("{name} is set, but --enable-hierarchical-cache is not"),
            "add --enable-hierarchical-cache and --hicache-storage-backend mooncake, or remove the variables",
        );
    }
}

fn has_no_hicache(member: &ProcessView<'_>) -> bool {
    let process = member.process;
    let is_whole = process.args_whole && process.args.iter().all(LocatedValue::is_known);
    let on = ["enable_hierarchical_cache", "enable_hicache", "hicache_storage_backend"];
    matches!(process.role, ProcessRole::Sglang(SglangMode::Whole | SglangMode::Prefill))
        && process.runtime != RuntimeKind::File
        && is_whole
        && !member.switch(&on)
        && !member.switch(OTHER_USES)
}

/// Whether another process gets the variable from the same line, and may use it: a script or a
/// ConfigMap for several processes.
fn is_shared(view: &DeploymentView<'_>, process: &Process, variable: &Variable) -> bool {
    view.member.iter().any(|other| {
        let has_it = || other.process.env.values().any(|value| value.place() == variable.place());
        !std::ptr::eq(other.process, process) && !has_no_hicache(other) && has_it()
    })
}
