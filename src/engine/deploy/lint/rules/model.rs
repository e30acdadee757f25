//! Settings of HiCache that SGLang rejects for some models.

use crate::lint::findings::Findings;
use crate::lint::settings::ProcessView;
use crate::lint::view::DeploymentView;
use crate::plan::models;

/// The layouts that SGLang accepts for models with a state per prefix.
///
/// Source: `sglang/srt/mem_cache/pool_host/mamba.py`, `MambaPoolHost.__init__`.
const STATE_LAYOUTS: &[&str] = &["page_first", "page_first_direct", "page_first_kv_split"];

/// Known models for which SGLang rejects the L2 size or the layout.
pub(super) fn hicache(view: &DeploymentView<'_>, out: &mut Findings) {
    let on = ["enable_hierarchical_cache", "enable_hicache"];
    for member in view.sglang().filter(|member| member.switch(&on)) {
        let Some(path) = member.value(&["model_path", "model"]) else { continue };
        let Ok(model) = models::by_name(&path.text) else { continue };
        let name = model.names.first().map_or("", String::as_str);
        if model.geometry.compressed.is_some() {
            size(member, name, out);
        }
        if model.geometry.has_states() {
            layout(member, name, out);
        }
    }
}

fn size(member: &ProcessView<'_>, name: &str, out: &mut Findings) {
    let Some(size) = member.value(&["hicache_size"]).filter(|size| size.text.trim() != "0") else { return };
    out.error(
        &size.place,
        format!("SGLang exits at startup: for {name}, it sizes L2 only by a ratio"),
        format!("--hicache-size {}", size.text),
        "use --hicache-ratio",
    );
}

fn layout(member: &ProcessView<'_>, name: &str, out: &mut Findings) {
    let Some(layout) = member.value(&["hicache_mem_layout"]) else { return };
    // The store replaces layer_first by one of them.
    if STATE_LAYOUTS.contains(&layout.text.trim()) || layout.text.trim() == "layer_first" {
        return;
    }
    out.error(
        &layout.place,
        format!("SGLang exits at startup: {name} keeps a state per prefix, for which it has no such layout"),
        format!("--hicache-mem-layout {}", layout.text),
        "use page_first with the I/O backend kernel, or page_first_direct with direct",
    );
}
