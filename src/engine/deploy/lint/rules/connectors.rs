//! Settings of the store connectors of vLLM and LMCache.

use crate::lint::connectors::{
    LMCACHE_OWN_KEYS, LMCACHE_PLAIN_KEYS, LMCACHE_PREFIX, LMCACHE_RELEASE, LMCACHE_SCHEME, VLLM_MODES,
    VLLM_SEGMENT_BYTES, uses_mooncake, vllm_size,
};
use crate::lint::findings::Findings;
use crate::lint::model::{ProcessRole, RuntimeKind, SettingsFile, SettingsFileKind};
use crate::lint::nearest::nearest;
use crate::lint::settings::{ProcessView, SettingValue, host_of};
use crate::lint::view::DeploymentView;
use crate::lint::yaml::{YamlNode, YamlValue};
use crate::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use mcctl_base::ByteSize;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::{SourceLocation, listed};
use mcctl_base::upstream::{SERIES, STORE_SETUP_KEYS, STORE_SETUP_MASTER};

/// The scalar value of a key, if it is set.
fn text<'n>(node: &'n YamlNode, key: &str) -> Option<&'n str> {
    node.get(key).filter(|value| value.value != YamlValue::Null)?.text()
}

fn at(document: &SettingsFile, key: &str) -> SourceLocation {
    let line = document.node.entry(key).map_or(document.node.line, |entry| entry.line);
    SourceLocation { file: document.file.clone(), line }
}

/// vLLM exits if mode and segment contradict each other, or if it cannot parse a size.
pub(super) fn vllm(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.role == ProcessRole::Vllm) {
        // The connector of the old engine has the same name, and other settings.
        if member.process.var("VLLM_USE_V1").is_some_and(|located| located.text.trim() == "0") {
            continue;
        }
        let connector = member.has_store_connector();
        if connector == Some(true) && member.process.lacks_var("MOONCAKE_CONFIG_PATH") {
            out.error(
                &member.process.place,
                "vLLM cannot start: MooncakeStoreConnector needs MOONCAKE_CONFIG_PATH",
                "MOONCAKE_CONFIG_PATH is not set",
                "set MOONCAKE_CONFIG_PATH to a JSON file with mode, metadata_server and master_server_address",
            );
        }
        transfer_config(member, out);
        if connector == Some(true) {
            hash_seed(view, member, out);
        }
        let Some(document) = member.process.config.and_then(|at| view.deployment.documents.get(at)) else { continue };
        let is_read = document.kind == SettingsFileKind::Vllm || connector == Some(true);
        if document.kind != SettingsFileKind::Lmcache && is_read {
            vllm_file(document, out);
        }
    }
}

/// Values of `kv_role` and of `kv_load_failure_policy` in `--kv-transfer-config`.
const ROLES: &[&str] = &["kv_producer", "kv_consumer", "kv_both"];
const POLICIES: &[&str] = &["recompute", "fail"];

/// The JSON of `--kv-transfer-config` for MooncakeStoreConnector.
fn transfer_config(member: &ProcessView<'_>, out: &mut Findings) {
    let Some(located) = member.value(&["kv_transfer_config"]) else { return };
    let Ok(node) = YamlNode::json(&located.text, false) else { return };
    if member.has_store_connector() != Some(true) || !located.text.trim_start().starts_with('{') {
        return;
    }
    match text(&node, "kv_role") {
        Some(role) if ROLES.contains(&role) => {}
        role => out.error(
            &located.place,
            match role {
                Some(role) => format!("vLLM cannot start: kv_role cannot be '{role}'"),
                None => "vLLM cannot start: a connector requires kv_role".to_owned(),
            },
            format!("valid roles are {}", listed(ROLES)),
            "set \"kv_role\": \"kv_both\"",
        ),
    }
    match text(&node, "kv_load_failure_policy") {
        Some("recompute") => {}
        Some(other) if !POLICIES.contains(&other) => out.error(
            &located.place,
            format!("vLLM cannot start: kv_load_failure_policy cannot be '{other}'"),
            "valid policies are recompute and fail",
            "use \"kv_load_failure_policy\": \"recompute\"",
        ),
        // Producers write blocks for others.
        _ if only_stores(member) => {}
        policy => out.warning(
            &located.place,
            "a request ends with an error if the store evicts one of its blocks before they are loaded",
            match policy {
                Some(policy) => format!("kv_load_failure_policy is {policy}"),
                None => "kv_load_failure_policy is not set (default fail)".to_owned(),
            },
            "set \"kv_load_failure_policy\": \"recompute\", if the model supports it",
        ),
    }
}

/// Whether a vLLM server only writes to the store: a producer, or one that does not look up blocks.
fn only_stores(member: &ProcessView<'_>) -> bool {
    let Some(Ok(node)) = member.value(&["kv_transfer_config"]).map(|located| YamlNode::json(&located.text, false))
    else {
        return false;
    };
    let looks_up = node.path(&["kv_connector_extra_config", "enable_lookup"]).and_then(YamlNode::boolean);
    text(&node, "kv_role") == Some("kv_producer") || looks_up == Some(false)
}

/// vLLM's block hashes begin with a random value, unless PYTHONHASHSEED is set. Processes with
/// other values store under other keys.
fn hash_seed(view: &DeploymentView<'_>, member: &ProcessView<'_>, out: &mut Findings) {
    const SEED: &str = "PYTHONHASHSEED";
    let process = member.process;
    let who = process.describe();
    let Some(variable) = process.env.get(SEED) else {
        let finding = format!("{who} finds no blocks of other vLLM processes, or of itself after a restart");
        let evidence = format!("{SEED} is not set, so block hashes begin with a random value");
        let remedy = format!("set {SEED}=0 for all vLLM processes of the store");
        // Only a file that a script reads hides a variable: what its caller exports is not part of
        // the deployment.
        let is_unset = process.env_whole || process.runtime == RuntimeKind::Shell && process.env_files.is_empty();
        if is_unset && !only_stores(member) {
            out.warning(&process.place, finding, evidence, remedy);
        }
        return;
    };
    let Some(seed) = process.var(SEED) else { return };
    // Python itself refuses other values.
    if !seed.text.is_empty() && seed.text != "random" && seed.text.parse::<u32>().is_err() {
        out.error(
            variable.place(),
            format!("{who} cannot start: Python rejects {SEED}={}", seed.text),
            "valid values are random, and whole numbers from 0 to 4294967295",
            format!("set {SEED}=0"),
        );
        return;
    }
    let of_store = |other: &&ProcessView<'_>| {
        other.process.role == ProcessRole::Vllm
            && other.has_store_connector() == Some(true)
            && is_same_store(other, member)
            && other.process.surely_meets(process)
    };
    let first = view.member.iter().filter(of_store).find_map(|other| other.process.var(SEED));
    if let Some(first) = first.filter(|first| first.text != seed.text) {
        out.warning(
            &seed.place,
            format!("{who} finds no blocks of the other vLLM processes: its block hashes begin with another value"),
            format!("{SEED} is {} here, {} at {}", seed.text, first.text, first.place),
            format!("set the same {SEED} for all vLLM processes of the store"),
        );
    }
}

/// Whether both processes certainly use one store: the same master, or else the same settings file.
fn is_same_store(one: &ProcessView<'_>, other: &ProcessView<'_>) -> bool {
    match (one.client("master_server_address"), other.client("master_server_address")) {
        (SettingValue::Is(ours), SettingValue::Is(theirs)) => ours.text == theirs.text,
        _ => {
            let file =
                |member: &ProcessView<'_>| member.process.var("MOONCAKE_CONFIG_PATH").map(|path| path.text.clone());
            file(one).is_some() && file(one) == file(other)
        }
    }
}

fn vllm_file(document: &SettingsFile, out: &mut Findings) {
    let node = &document.node;
    let mode = text(node, "mode").unwrap_or(VLLM_MODES[0]);
    if !VLLM_MODES.contains(&mode) {
        out.error(
            &at(document, "mode"),
            format!("vLLM cannot start: unknown mode '{mode}'"),
            format!("valid modes are {}", VLLM_MODES.join(" and ")),
            format!("use {}", nearest(mode, VLLM_MODES.iter().copied()).unwrap_or(VLLM_MODES[0])),
        );
        return;
    }
    for key in ["global_segment_size", "local_buffer_size"] {
        // A script may write a file with values that are only known when it runs.
        if let Some(text) = text(node, key).filter(|text| vllm_size(text).is_none() && !text.contains('$')) {
            out.error(
                &at(document, key),
                format!("vLLM cannot start: {key} '{text}' is not a valid size"),
                "vLLM accepts a number with the unit b, kb, mb or gb (powers of 1024)",
                "use a size such as 16gb",
            );
        }
    }
    let segment = text(node, "global_segment_size").map_or(Some(VLLM_SEGMENT_BYTES), vllm_size);
    let is_standalone = mode == "standalone-store";
    match segment {
        // The first releases with this connector had no modes.
        Some(0) if !is_standalone && node.get("mode").is_none() => out.warning(
            &at(document, "global_segment_size"),
            "vLLM cannot start if its release has modes: mode embedded, the default, requires a segment",
            "global_segment_size is 0, and mode is not set",
            "set \"mode\": \"standalone-store\", or a global_segment_size of at least 16 MiB",
        ),
        Some(0) if !is_standalone => out.error(
            &at(document, "global_segment_size"),
            "vLLM cannot start: mode embedded requires a segment",
            "global_segment_size is 0",
            "set \"mode\": \"standalone-store\", or a global_segment_size of at least 16 MiB",
        ),
        Some(bytes) if bytes > 0 && is_standalone => out.error(
            &at(document, if node.get("global_segment_size").is_some() { "global_segment_size" } else { "mode" }),
            "vLLM cannot start: mode standalone-store requires global_segment_size 0",
            format!("global_segment_size is {}", ByteSize(bytes)),
            "set \"global_segment_size\": 0",
        ),
        Some(bytes) if bytes > 0 && bytes < PLAIN_SEGMENT_BYTES_MIN => out.error(
            &at(document, "global_segment_size"),
            "vLLM cannot start: its segment is too small to mount (-600)",
            format!("{} per rank; the minimum is 16 MiB", ByteSize(bytes)),
            "set it to 16mb or more",
        ),
        _ => {}
    }
    if text(node, "local_buffer_size").and_then(vllm_size) == Some(0) {
        out.error(
            &at(document, "local_buffer_size"),
            "vLLM cannot start: local_buffer_size must not be 0",
            "local_buffer_size is 0",
            "remove the key (the default is 4 GiB), or set a size",
        );
    }
    if text(node, "master_server_address").is_none_or(|text| text.trim().is_empty()) {
        out.error(
            &at(document, "master_server_address"),
            "vLLM cannot start: the file does not set the master's address",
            "master_server_address is missing",
            "add \"master_server_address\": \"HOST:50051\"",
        );
    }
}

/// LMCache passes `extra_config` to the store, whose client ignores some of the keys that LMCache
/// documents.
pub(super) fn lmcache(view: &DeploymentView<'_>, out: &mut Findings) {
    for document in view.deployment.documents.iter().filter(|document| document.kind == SettingsFileKind::Lmcache) {
        if !uses_mooncake(&document.node) {
            continue;
        }
        let url = text(&document.node, "remote_url").filter(|url| url.starts_with(LMCACHE_SCHEME));
        let extra = document.node.get("extra_config").filter(|node| !node.entries().is_empty());
        // Without any setting of the store, LMCache reads the file that MOONCAKE_CONFIG_PATH names.
        let Some(extra) = extra.filter(|extra| extra.entries().iter().any(|entry| is_store_key(&entry.key))) else {
            let key = if url.is_some() { "remote_url" } else { "remote_storage_plugins" };
            out.warning(
                &at(document, key),
                "LMCache cannot start without MOONCAKE_CONFIG_PATH: extra_config has no settings of the store",
                url.map_or_else(|| "remote_storage_plugins has mooncakestore".to_owned(), str::to_owned),
                format!("add extra_config with local_hostname, metadata_server and {LMCACHE_PREFIX}master_server_addr"),
            );
            if let Some(extra) = extra {
                keys(document, extra, out);
            }
            continue;
        };
        master(document, url, extra, out);
        for key in ["local_hostname", "metadata_server"] {
            if extra.get(key).is_none() && extra.get(&format!("{LMCACHE_PREFIX}{key}")).is_none() {
                out.error(
                    &at(document, "extra_config"),
                    format!("LMCache cannot start: the store requires {key}"),
                    format!("extra_config has no {key}"),
                    match key {
                        "metadata_server" => "add metadata_server: P2PHANDSHAKE".to_owned(),
                        _ => format!("add {key}, a name or address of this host that other hosts can reach"),
                    },
                );
            }
        }
        keys(document, extra, out);
    }
}

/// Whether a key in `extra_config` is a setting of the store, in any release.
fn is_store_key(key: &str) -> bool {
    let stripped = key.strip_prefix(LMCACHE_PREFIX);
    LMCACHE_PLAIN_KEYS.contains(&key)
        || stripped.is_some_and(|key| STORE_SETUP_KEYS.contains(&key) || LMCACHE_PLAIN_KEYS.contains(&key))
}

/// The connector of current releases reads the master's address from a single key, not from the
/// URL. Earlier ones read others.
fn master(document: &SettingsFile, url: Option<&str>, extra: &YamlNode, out: &mut Findings) {
    let key = format!("{LMCACHE_PREFIX}master_server_addr");
    if text(extra, &key).is_some_and(|text| !text.trim().is_empty()) {
        return;
    }
    let in_url =
        url.unwrap_or_default().trim_start_matches(LMCACHE_SCHEME).split(['/', '?']).next().unwrap_or_default();
    let ignored = ["master_server_address", "mooncake_master_server_address", "master_server_addr"];
    let ignored = ignored.iter().find_map(|key| Some((extra.entry(key)?, text(extra, key)?)));
    let wanted = ignored.map_or(in_url, |(_, text)| text);
    let is_default = wanted == STORE_SETUP_MASTER || host_is_loopback(host_of(wanted)) && wanted.ends_with(":50051");
    if is_default {
        return;
    }
    let (line, why) = match ignored {
        Some((entry, _)) => (entry.line, format!("the store client of Mooncake {SERIES} does not read {}", entry.key)),
        None => match url {
            Some(url) => {
                (at(document, "remote_url").line, format!("{url}: the connector ignores the host in remote_url"))
            }
            None => (at(document, "extra_config").line, format!("extra_config has no {key}")),
        },
    };
    out.warning(
        &SourceLocation { file: document.file.clone(), line },
        format!("LMCache {LMCACHE_RELEASE} connects only to a master at {STORE_SETUP_MASTER}"),
        why,
        format!("add {key}: {} to extra_config", if wanted.is_empty() { "HOST:50051" } else { wanted }),
    );
}

/// Keys in `extra_config` that are intended for the store but that its client does not read.
fn keys(document: &SettingsFile, extra: &YamlNode, out: &mut Findings) {
    for entry in extra.entries() {
        let place = SourceLocation { file: document.file.clone(), line: entry.line };
        let key = entry.key.as_str();
        if matches!(key, "device_name" | "mooncake_device_name") {
            if entry.value.text().is_some_and(|text| !text.trim().is_empty()) {
                out.warning(
                    &place,
                    format!("{key} has no effect: the store client of Mooncake {SERIES} does not read it"),
                    "LMCache passes it to the store as device_name",
                    format!("use {LMCACHE_PREFIX}rdma_devices"),
                );
            }
            continue;
        }
        if LMCACHE_OWN_KEYS.contains(&key) || is_store_key(key) {
            continue;
        }
        let known = LMCACHE_OWN_KEYS.iter().chain(LMCACHE_PLAIN_KEYS).map(|known| (*known).to_owned());
        let of_store = STORE_SETUP_KEYS.iter().map(|known| format!("{LMCACHE_PREFIX}{known}"));
        let known: Vec<String> = known.chain(of_store).collect();
        if let Some(near) = nearest(key, known.iter().map(String::as_str)) {
            out.warning(
                &place,
                format!("{key} has no effect: neither LMCache nor the store reads it"),
                "unknown keys are ignored",
                format!("use {near}"),
            );
        } else if key.starts_with(LMCACHE_PREFIX) {
            out.info(
                &place,
                format!("{key} is not a setting of LMCache {LMCACHE_RELEASE} or of the store"),
                "unknown keys are ignored",
                "remove it, unless the release in use reads it",
            );
        }
    }
}
