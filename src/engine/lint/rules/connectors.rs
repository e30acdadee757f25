//! Settings of the store connectors of vLLM and LMCache.

use crate::engine::base::ByteSize;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::check::SourceLocation;
use crate::engine::lint::connectors::{
    LMCACHE_OWN_KEYS, LMCACHE_PLAIN_KEYS, LMCACHE_PREFIX, VLLM_MODES, VLLM_SEGMENT_BYTES,
};
use crate::engine::lint::findings::Findings;
use crate::engine::lint::model::{LocatedValue, ProcessRole, SettingsFile, SettingsFileKind};
use crate::engine::lint::nearest::nearest;
use crate::engine::lint::settings::{ProcessView, host_of};
use crate::engine::lint::view::DeploymentView;
use crate::engine::lint::yaml::{YamlNode, YamlValue};
use crate::engine::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use crate::engine::upstream::{SERIES, STORE_SETUP_KEYS, STORE_SETUP_MASTER};

/// The scalar value of a key, if it is set.
fn text<'n>(node: &'n YamlNode, key: &str) -> Option<&'n str> {
    node.get(key).filter(|value| value.value != YamlValue::Null)?.text()
}

fn at(document: &SettingsFile, key: &str) -> SourceLocation {
    let line = document.node.entry(key).map_or(document.node.line, |entry| entry.line);
    SourceLocation { file: document.file.clone(), line }
}

/// The program that reads a connector's settings file, and its metadata server. `None` for the files of other programs.
pub fn metadata_server(document: &SettingsFile) -> Option<(&'static str, LocatedValue)> {
    let key = "metadata_server";
    let (program, node, keys) = match document.kind {
        SettingsFileKind::Vllm => ("vLLM", &document.node, vec![key.to_owned()]),
        SettingsFileKind::Lmcache => {
            ("LMCache", document.node.get("extra_config")?, vec![format!("{LMCACHE_PREFIX}{key}"), key.to_owned()])
        }
        SettingsFileKind::Store | SettingsFileKind::Extra | SettingsFileKind::Master => return None,
    };
    let (entry, url) = keys.iter().find_map(|key| Some((node.entry(key)?, text(node, key)?)))?;
    let place = SourceLocation { file: document.file.clone(), line: entry.line };
    Some((program, LocatedValue::new(url, place)))
}

/// Whether the server uses MooncakeStoreConnector. `None` if unknown.
pub fn has_store_connector(member: &ProcessView<'_>) -> Option<bool> {
    let Some(flag) = member.flag(&["kv_transfer_config"]) else { return Some(false) };
    let located = flag.value.as_ref().filter(|located| located.is_known())?;
    Some(located.text.contains("MooncakeStoreConnector"))
}

/// vLLM exits if mode and segment contradict each other, or if it cannot parse a size.
pub fn vllm(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.role == ProcessRole::Vllm) {
        let connector = has_store_connector(member);
        if connector == Some(true) && member.process.lacks_var("MOONCAKE_CONFIG_PATH") {
            out.error(
                &member.process.place,
                "vLLM cannot start: MooncakeStoreConnector needs MOONCAKE_CONFIG_PATH",
                "MOONCAKE_CONFIG_PATH is not set",
                "set MOONCAKE_CONFIG_PATH to a JSON file with mode, metadata_server and master_server_address",
            );
        }
        let Some(document) = member.process.config.and_then(|at| view.deployment.documents.get(at)) else { continue };
        let is_read = document.kind == SettingsFileKind::Vllm || connector == Some(true);
        if document.kind != SettingsFileKind::Lmcache && is_read {
            vllm_file(document, out);
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
        if let Some(text) = text(node, key).filter(|text| size(text).is_none() && !text.contains('$')) {
            out.error(
                &at(document, key),
                format!("vLLM cannot start: {key} '{text}' is not a valid size"),
                "vLLM accepts a number with the unit b, kb, mb or gb (powers of 1024)",
                "use a size such as 16gb",
            );
        }
    }
    let segment = text(node, "global_segment_size").map_or(Some(VLLM_SEGMENT_BYTES), size);
    let is_standalone = mode == "standalone-store";
    match segment {
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
    if text(node, "local_buffer_size").and_then(size) == Some(0) {
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

/// Parses a size as vLLM does. Returns bytes.
fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim() {
        "" | "b" => 1u64,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the string contains only digits, and the cast saturates"
    )]
    let bytes = bytes as u64;
    Some(bytes)
}

/// LMCache passes `extra_config` to the store, whose client ignores some of the keys that LMCache documents.
pub fn lmcache(view: &DeploymentView<'_>, out: &mut Findings) {
    for document in view.deployment.documents.iter().filter(|document| document.kind == SettingsFileKind::Lmcache) {
        let url = text(&document.node, "remote_url").filter(|url| url.starts_with("mooncakestore://"));
        let extra = document.node.get("extra_config").filter(|node| !node.entries().is_empty());
        let Some(url) = url else { continue };
        let Some(extra) = extra else {
            out.warning(
                &at(document, "remote_url"),
                "LMCache cannot start without MOONCAKE_CONFIG_PATH: extra_config is missing",
                url,
                format!("add extra_config with local_hostname, metadata_server and {LMCACHE_PREFIX}master_server_addr"),
            );
            continue;
        };
        master(document, url, extra, out);
        for key in ["local_hostname", "metadata_server"] {
            if text(extra, key).is_none() && text(extra, &format!("{LMCACHE_PREFIX}{key}")).is_none() {
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

/// The connector reads the master's address from a single key, not from the URL.
fn master(document: &SettingsFile, url: &str, extra: &YamlNode, out: &mut Findings) {
    let key = format!("{LMCACHE_PREFIX}master_server_addr");
    if text(extra, &key).is_some_and(|text| !text.trim().is_empty()) {
        return;
    }
    let in_url = url.trim_start_matches("mooncakestore://").split(['/', '?']).next().unwrap_or_default();
    let ignored = ["master_server_address", "mooncake_master_server_address", "master_server_addr"];
    let ignored = ignored.iter().find_map(|key| Some((extra.entry(key)?, text(extra, key)?)));
    let wanted = ignored.map_or(in_url, |(_, text)| text);
    let is_default = wanted == STORE_SETUP_MASTER || host_is_loopback(host_of(wanted)) && wanted.ends_with(":50051");
    if is_default {
        return;
    }
    let (line, why) = match ignored {
        Some((entry, _)) => (entry.line, format!("the store client of Mooncake {SERIES} does not read {}", entry.key)),
        None => (at(document, "remote_url").line, format!("{url}: the connector ignores the host in remote_url")),
    };
    out.error(
        &SourceLocation { file: document.file.clone(), line },
        format!("LMCache connects only to a master at {STORE_SETUP_MASTER}"),
        why,
        format!("add {key}: {} to extra_config", if wanted.is_empty() { "HOST:50051" } else { wanted }),
    );
}

/// Keys in `extra_config` that are intended for the store but that its client does not read.
fn keys(document: &SettingsFile, extra: &YamlNode, out: &mut Findings) {
    for entry in extra.entries() {
        let place = SourceLocation { file: document.file.clone(), line: entry.line };
        let key = entry.key.as_str();
        let stripped = key.strip_prefix(LMCACHE_PREFIX);
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
        let is_known = LMCACHE_OWN_KEYS.contains(&key)
            || LMCACHE_PLAIN_KEYS.contains(&key)
            || stripped.is_some_and(|key| STORE_SETUP_KEYS.contains(&key) || LMCACHE_PLAIN_KEYS.contains(&key));
        if is_known {
            continue;
        }
        let near = match stripped {
            Some(stripped) => {
                nearest(stripped, STORE_SETUP_KEYS.iter().copied()).map(|n| format!("{LMCACHE_PREFIX}{n}"))
            }
            None => nearest(key, LMCACHE_PLAIN_KEYS.iter().copied()).map(str::to_owned),
        };
        if let Some(near) = near {
            out.warning(
                &place,
                format!("{key} has no effect: neither LMCache nor the store reads it"),
                "unknown keys are ignored",
                format!("use {near}"),
            );
        }
    }
}
