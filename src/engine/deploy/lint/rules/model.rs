//! Settings of HiCache that SGLang rejects for some models.

use crate::lint::findings::Findings;
use crate::lint::settings::ProcessView;
use crate::lint::view::DeploymentView;
use crate::plan::models::{self, KnownModel};

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
        layout(member, model, out);
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

fn layout(member: &ProcessView<'_>, model: &KnownModel, out: &mut Findings) {
    let Some(layout) = member.value(&["hicache_mem_layout"]) else { return };
    if model.geometry.has_layout(layout.text.trim()) {
        return;
    }
    let name = model.names.first().map_or("", String::as_str);
    out.error(
        &layout.place,
        format!("SGLang exits at startup: it has no such layout for the cache of {name}"),
        format!("--hicache-mem-layout {}", layout.text),
        "use page_first with the I/O backend kernel, or page_first_direct with direct",
    );
}
