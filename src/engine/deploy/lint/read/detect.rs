//! The type of a file, by its name and its content.

use crate::lint::model::{Process, ProcessRole, RuntimeKind, SettingsFileKind};
use crate::lint::read::{compose, deployment, env_file, kubernetes, launch, passive, script, systemd};
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell::word::base_name;
use crate::lint::source::{FileKind, ReadError, SourceFile};
use crate::lint::yaml::YamlNode;
use mcctl_base::check::SourceLocation;
use mcctl_base::upstream::{MASTER_FLAGS, STORE_KEYS, UpstreamFlag, sglang};

/// Limit on the size of a script, a unit or an environment file, in bytes.
const SCRIPT_BYTES_MAX: usize = 256 << 10;
/// Limit on the number of `=` in a script, a unit or an environment file. Each one may set a
/// variable that all later processes inherit.
const ASSIGNMENTS_MAX: usize = 4096;

/// Whether the user, the file's name or its first line marks it as a shell script.
pub(super) fn is_named_script(source: &SourceFile<'_>) -> bool {
    match source.kind {
        Some(kind) => kind == FileKind::Shell,
        None => matches!(extension(source.name).as_str(), "sh" | "bash") || source.bytes.starts_with(b"#!"),
    }
}

/// The extension of a file in lower case.
pub(super) fn extension(name: &str) -> String {
    base_name(name).rsplit_once('.').map_or_else(String::new, |(_, extension)| extension.to_ascii_lowercase())
}

pub(super) fn detect(source: &SourceFile<'_>, text: &str) -> Result<(FileKind, Vec<YamlNode>, bool), ReadError> {
    let is_script = matches!(extension(source.name).as_str(), "sh" | "bash");
    let is_json = extension(source.name) == "json" || !is_script && text.trim_start().starts_with('{');
    let nodes = || if is_json { YamlNode::json(text, true).map(|node| vec![node]) } else { YamlNode::yaml(text) };
    match source.kind {
        Some(kind @ (FileKind::Unit | FileKind::Env | FileKind::Shell)) => {
            check_script_limits(text)?;
            return Ok((kind, Vec::new(), false));
        }
        Some(FileKind::Deployment) => return Ok((FileKind::Deployment, Vec::new(), false)),
        Some(kind) => return Ok((kind, nodes()?, is_json)),
        None => {}
    }
    if extension(source.name) == "toml" {
        let is_deployment = deployment::is_toml_deployment(text);
        return if is_deployment { Ok((FileKind::Deployment, Vec::new(), false)) } else { Err(ReadError::Unknown) };
    }
    if let Some(what) = host_setup_kind(source.name, text) {
        return Err(ReadError::NothingToCheck { what });
    }
    if systemd::is_unit(text) {
        check_script_limits(text)?;
        return Ok((FileKind::Unit, Vec::new(), false));
    }
    let named_env = extension(source.name) == "env" || base_name(source.name).starts_with(".env");
    if named_env || env_file::is_env_file(text) {
        check_script_limits(text)?;
        return Ok((FileKind::Env, Vec::new(), false));
    }
    let named_yaml = matches!(extension(source.name).as_str(), "yaml" | "yml" | "json");
    let named_shell = matches!(extension(source.name).as_str(), "sh" | "bash") || text.starts_with("#!");
    if is_json || named_yaml || !named_shell {
        match nodes() {
            Ok(nodes) => {
                let is_other = nodes.iter().any(|node| node.get("prefill_url").is_some());
                if let Some(kind) = nodes.iter().find_map(kind_of).filter(|_| !is_other) {
                    return Ok((kind, nodes, is_json));
                }
                if let Some(what) = passive_yaml_kind(source.name, &nodes).or_else(|| passive::monitoring_kind(&nodes))
                {
                    return Err(ReadError::NothingToCheck { what });
                }
                if named_yaml && nodes.first().is_some_and(deployment::is_yaml_deployment) {
                    return Ok((FileKind::Deployment, Vec::new(), false));
                }
                if named_yaml || is_json {
                    return Err(if nodes.is_empty() { ReadError::Empty } else { ReadError::Unknown });
                }
            }
            Err(error) if named_yaml || is_json => return Err(error),
            // A file that looks like a manifest is a broken manifest, not a script.
            Err(error) if text.lines().any(|line| line.starts_with("apiVersion:") || line.starts_with("services:")) => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    check_script_limits(text)?;
    if named_shell {
        return Ok((FileKind::Shell, Vec::new(), false));
    }
    let mut started = ScriptEffects::default();
    let place = SourceLocation { file: source.name.into(), line: 1 };
    let base = Process::new("command line", ProcessRole::Other, place.clone(), RuntimeKind::Shell);
    script::run(&base, text, &place, None, 0, &mut started);
    let of_use = |process: &Process| {
        process.role != ProcessRole::Other
            || !process.misplaced.is_empty()
            || process.env.keys().any(|name| launch::has_known_prefix(name))
    };
    if started.processes.iter().any(of_use) {
        Ok((FileKind::Shell, Vec::new(), false))
    } else {
        Err(ReadError::Unknown)
    }
}

/// A description of the file, if it configures a host but starts no processes.
fn host_setup_kind(name: &str, text: &str) -> Option<&'static str> {
    let is_in = |folder: &str| name.rsplit('/').nth(1) == Some(folder);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    if extension(name) == "conf" {
        let is_kernel_setting = |line: &str| {
            let key = line.split_once('=').map(|(key, _)| key.trim().trim_start_matches('-')).unwrap_or_default();
            let known = ["vm.", "net.", "kernel.", "fs.", "vm/", "net/", "kernel/", "fs/"];
            known.iter().any(|start| key.starts_with(start))
        };
        let is_path = |line: &str| {
            let mut words = line.split_whitespace();
            let kind = words.next().is_some_and(|w| w.len() <= 3 && w.starts_with(|c: char| c.is_ascii_alphabetic()));
            kind && words.next().is_some_and(|path| path.starts_with('/'))
        };
        if is_in("sysctl.d") || lines.clone().next().is_some() && lines.clone().all(is_kernel_setting) {
            return Some("kernel settings (sysctl.d)");
        }
        if is_in("sysusers.d") {
            return Some("users to create (sysusers.d)");
        }
        if is_in("tmpfiles.d") || lines.clone().next().is_some() && lines.clone().all(is_path) {
            return Some("files to create (tmpfiles.d)");
        }
    }
    let is_unit = ["target", "slice", "socket", "timer", "mount", "path"].contains(&extension(name).as_str())
        && lines.next().is_some_and(|line| line.starts_with('[') && line.ends_with(']'));
    is_unit.then_some("a unit without a [Service] section")
}

/// A description of the YAML file, if it is for another tool and starts no processes itself.
fn passive_yaml_kind(name: &str, nodes: &[YamlNode]) -> Option<&'static str> {
    let base = base_name(name).rsplit_once('.').map_or("", |(base, _)| base);
    if nodes.is_empty() || nodes.iter().any(|node| node.entries().is_empty()) {
        return None;
    }
    if nodes.iter().all(|node| node.get("prefill_url").is_some() || node.get("decode_url").is_some()) {
        return Some("settings of vLLM's transfer between prefill and decode");
    }
    let of_helm = |node: &YamlNode| node.path(&["image", "repository"]).is_some() || node.get("replicaCount").is_some();
    match base {
        "Chart" => Some("Helm chart metadata"),
        "kustomization" => Some("a kustomization; check the output of kustomize build instead"),
        _ if base.starts_with("values") || base.ends_with("values") || nodes.iter().any(of_helm) => {
            Some("Helm values; check the output of helm template instead")
        }
        _ => None,
    }
}

fn kind_of(node: &YamlNode) -> Option<FileKind> {
    if kubernetes::is_kubernetes_document(node) {
        return Some(FileKind::Kubernetes);
    }
    if compose::is_compose_file(node) {
        return Some(FileKind::Compose);
    }
    document_kind(node).map(|kind| match kind {
        SettingsFileKind::Store => FileKind::StoreConfig,
        SettingsFileKind::Extra => FileKind::ExtraConfig,
        SettingsFileKind::Master => FileKind::MasterConfig,
        SettingsFileKind::Vllm => FileKind::VllmConfig,
        SettingsFileKind::Lmcache => FileKind::LmcacheConfig,
    })
}

/// The type of the settings file `node`, by its keys.
pub(super) fn document_kind(node: &YamlNode) -> Option<SettingsFileKind> {
    let has = |key: &str| node.get(key).is_some();
    let of_store = STORE_KEYS.iter().filter(|row| has(row.key)).count();
    let of_sglang = sglang::KEYS.iter().filter(|(key, _)| has(key)).count();
    let only_sglang = ["extra_backend_tag", "check_server", "standalone_storage", "prefetch_threshold", "tp_lcm_size"];
    let own_key = |flag: &UpstreamFlag| flag.key.is_some_and(|key| key != flag.name && has(key));
    let of_master =
        MASTER_FLAGS.iter().map(|flag| usize::from(has(flag.name)) + usize::from(own_key(flag))).sum::<usize>();
    // Only vLLM's settings have `mode`.
    if has("mode") && has("master_server_address") {
        return Some(SettingsFileKind::Vllm);
    }
    let of_lmcache = ["chunk_size", "local_cpu", "max_local_cpu_size", "remote_serde", "extra_config"];
    if has("remote_url") || of_lmcache.iter().filter(|key| has(key)).count() > 1 {
        return Some(SettingsFileKind::Lmcache);
    }
    if of_master > of_store.max(of_sglang) {
        return Some(SettingsFileKind::Master);
    }
    if of_sglang > 0 && (only_sglang.iter().any(|key| has(key)) || of_sglang > of_store) {
        return Some(SettingsFileKind::Extra);
    }
    (of_store > 0).then_some(SettingsFileKind::Store)
}

/// Rejects files that are parsed line by line and larger than any real one.
fn check_script_limits(text: &str) -> Result<(), ReadError> {
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(ReadError::TooLarge { most: SCRIPT_BYTES_MAX });
    }
    if text.matches('=').nth(ASSIGNMENTS_MAX).is_some() {
        return Err(ReadError::TooMany { what: "assignments", most: ASSIGNMENTS_MAX });
    }
    Ok(())
}
