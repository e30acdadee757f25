//! The names of log targets. The engine is compiled as several crates, but its modules have the same names in the log: `mcctl::engine::...`.

use std::borrow::Cow;

/// The start of the engine's targets.
const ENGINE: &str = "mcctl::engine";

/// The start of all targets, in whichever crate. A filter compares only the starts of names.
const PROGRAM: &str = "mcctl";

/// The crates that contain parts of the engine, apart from `mcctl`.
const CRATES: [&str; 5] = ["mcctl_common", "mcctl_deploy", "mcctl_load", "mcctl_master", "mcctl_store"];

/// The name of a target, without the crate that its module is compiled in.
pub(super) fn shown(target: &str) -> Cow<'_, str> {
    match target.split_once("::") {
        Some((name, module)) if CRATES.contains(&name) => format!("mcctl::{module}").into(),
        _ => target.into(),
    }
}

/// The directives of a filter. A directive for modules of the engine becomes one for each crate.
pub(super) fn directives(filter: &str) -> String {
    let expand = |directive: &str| {
        let end = directive.find(['=', '[']).unwrap_or(directive.len());
        let (target, rest) = directive.split_at(end);
        let target = target.trim();
        let in_crate = match target.strip_prefix(ENGINE) {
            Some(module) => format!("::engine{module}"),
            // The start of the engine's name, such as `mcctl::`.
            None if ENGINE.starts_with(target) && target.len() > PROGRAM.len() => target[PROGRAM.len()..].to_owned(),
            None => return directive.to_owned(),
        };
        let for_crates = CRATES.map(|name| format!("{name}{in_crate}{rest}"));
        format!("{directive},{}", for_crates.join(","))
    };
    filter.split(',').map(expand).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_are_those_of_the_engine() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/engine/crates");
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = entries.map(|name| format!("mcctl_{}", name.to_string_lossy())).collect();
        names.sort();
        assert_eq!(names, CRATES);
    }

    #[test]
    fn a_target_has_the_same_name_in_filters_and_in_the_log() {
        let rpc = std::any::type_name::<crate::engine::rpc::StartError>();
        assert_ne!(rpc, shown(rpc));
        assert!(shown(rpc).starts_with("mcctl::engine::rpc::"), "{rpc}");
        let module = rpc.rsplit_once("::").expect("a module").0;
        for filter in ["mcctl=debug", "mcctl::=debug", "mcctl::eng=debug", "mcctl::engine::rpc=debug"] {
            let directives = directives(&format!("info,{filter}"));
            let mut targets = directives.split(',').filter_map(|directive| directive.strip_suffix("=debug"));
            assert!(targets.any(|target| module.starts_with(target)), "{directives}");
        }
        assert_eq!(shown("mcctl::commands::serve"), "mcctl::commands::serve");
        assert_eq!(shown("tokio_rustls::client"), "tokio_rustls::client");
        assert_eq!(directives("info,hyper=debug"), "info,hyper=debug");
    }
}
