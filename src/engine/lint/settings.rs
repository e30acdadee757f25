//! The effective settings of a process: which source applies, and its value.
//!
//! Sources are not merged. A store service reads `-D`, then its file or its environment. SGLang reads the extra config if it specifies
//! a master, otherwise the file that a variable specifies, otherwise the environment.

use std::sync::Arc;

use crate::engine::base::ByteSize;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::check::SourceLocation;
use crate::engine::lint::flags::{self, CommandFlag};
use crate::engine::lint::model::{
    Implementation, LocatedValue, ParsedDeployment, Process, ProcessRole, RuntimeKind, SettingsFileKind, Variable,
};
use crate::engine::lint::settings_file::config_path;
use crate::engine::lint::yaml::{YamlNode, YamlValue};
use crate::engine::plan::size_text;
use crate::engine::upstream::python_client;
use crate::engine::upstream::sglang::{self, DECODE_OFFLOAD};
use crate::engine::upstream::{client_flag_for, master_flag, store_key, store_variable};

/// The value of a setting, if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    Is(LocatedValue),
    Unset,
    /// Set, or possibly set, in a source that was not provided.
    Unknown,
}

impl SettingValue {
    fn of(located: LocatedValue) -> SettingValue {
        if located.is_known() { SettingValue::Is(located) } else { SettingValue::Unknown }
    }
}

/// The source of a client's settings.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingsOrigin<'s> {
    Environment,
    /// A settings file that was provided.
    File(&'s YamlNode, Arc<str>),
    /// The inline JSON of the extra config.
    Inline(YamlNode, Arc<str>),
    /// A settings file that was not provided.
    Unread(LocatedValue),
}

/// A process with its parsed flags and effective settings.
#[derive(Clone, Debug)]
pub struct ProcessView<'s> {
    pub process: &'s Process,
    pub flags: Vec<CommandFlag>,
    /// Source of its Mooncake settings.
    pub origin: SettingsOrigin<'s>,
    /// The inline extra config, even if it is not the source of the settings.
    pub extra: Option<YamlNode>,
    /// The parse error of the inline extra config.
    pub extra_error: Option<(LocatedValue, String)>,
}

impl<'s> ProcessView<'s> {
    /// Parses the flags of `process`.
    pub fn new(deployment: &'s ParsedDeployment, process: &'s Process) -> ProcessView<'s> {
        let flags = flags::parse(process);
        let mut member =
            ProcessView { process, flags, origin: SettingsOrigin::Environment, extra: None, extra_error: None };
        let document = process.config.and_then(|at| deployment.documents.get(at));
        if process.role.is_sglang() {
            member.extra_config(document.map(|d| &d.node));
            let names_a_master = |node: &YamlNode| {
                let named = |key| node.get(key).is_some_and(|n| n.value != YamlValue::Null);
                named("master_server_address") || named("client_server_address")
            };
            let extra = member.flag(&["hicache_storage_backend_extra_config"]).and_then(|f| f.value.clone());
            if let Some(located) = extra {
                match (&member.extra, document) {
                    (Some(node), _) if names_a_master(node) => {
                        member.origin = SettingsOrigin::Inline(node.clone(), located.place.file.clone());
                        return member;
                    }
                    (Some(_), _) => {}
                    (None, Some(document)) if located.text.starts_with('@') && names_a_master(&document.node) => {
                        member.origin = SettingsOrigin::File(&document.node, document.file.clone());
                        return member;
                    }
                    (None, Some(_)) if located.text.starts_with('@') => {}
                    (None, _) if located.text.starts_with('@') || !located.is_known() => {
                        member.origin = SettingsOrigin::Unread(located);
                        return member;
                    }
                    (None, _) => {}
                }
            }
        }
        member.origin = match (config_path(process), document) {
            (_, Some(document)) if process.runtime == RuntimeKind::File => {
                SettingsOrigin::File(&document.node, document.file.clone())
            }
            (Some((SettingsFileKind::Extra, path)), _) if process.role.is_sglang() && path_is_extra(&member, &path) => {
                SettingsOrigin::Environment
            }
            (Some(_), Some(document)) => SettingsOrigin::File(&document.node, document.file.clone()),
            (Some((_, path)), None) => SettingsOrigin::Unread(path),
            (None, _) => SettingsOrigin::Environment,
        };
        member
    }

    fn extra_config(&mut self, document: Option<&YamlNode>) {
        let Some(located) = self.flag(&["hicache_storage_backend_extra_config"]).and_then(|f| f.value.clone()) else {
            return;
        };
        if located.text.starts_with('@') {
            self.extra = document.cloned();
        } else if located.is_known() {
            match YamlNode::json(&located.text, false) {
                Ok(mut node) => {
                    offset_lines(&mut node, located.place.line);
                    self.extra = Some(node);
                }
                Err(error) => self.extra_error = Some((located, error.to_string())),
            }
        }
    }

    /// The last flag whose name is in `names`.
    pub fn flag(&self, names: &[&str]) -> Option<&CommandFlag> {
        flags::last(&self.flags, names)
    }

    /// The value of a flag, if it is known.
    pub fn value(&self, names: &[&str]) -> Option<&LocatedValue> {
        self.flag(names)?.value.as_ref().filter(|located| located.is_known())
    }

    /// Whether an SGLang switch is set.
    pub fn switch(&self, names: &[&str]) -> bool {
        self.flag(names).is_some()
    }

    /// A setting of the master, from its flag or its settings file.
    pub fn master(&self, name: &str) -> SettingValue {
        if let Some(flag) = self.flag(&[name]) {
            return SettingValue::of(flag.located());
        }
        if self.flag(&["flagfile", "fromenv", "tryfromenv"]).is_some() {
            return SettingValue::Unknown;
        }
        match &self.origin {
            SettingsOrigin::File(node, file) => {
                let key = master_flag(name).and_then(|flag| flag.key).unwrap_or(name);
                self.in_file(node, file, key)
            }
            SettingsOrigin::Unread(_) => SettingValue::Unknown,
            _ if self.process.args_whole => SettingValue::Unset,
            _ => SettingValue::Unknown,
        }
    }

    /// Whether a switch of the master is on. `None` if unknown.
    pub fn master_switch(&self, name: &str) -> Option<bool> {
        match self.master(name) {
            SettingValue::Is(located) => Some(flags::is_true(&located.text)),
            SettingValue::Unset => Some(false),
            SettingValue::Unknown => None,
        }
    }

    /// A port of the master, if known.
    pub fn master_port(&self, name: &str) -> Option<u16> {
        match self.master(name) {
            SettingValue::Is(located) => located.text.parse().ok(),
            SettingValue::Unset => master_flag(name)?.default.parse().ok(),
            SettingValue::Unknown => None,
        }
    }

    /// The RPC port of the master, if known.
    pub fn rpc_port(&self) -> Option<u16> {
        match self.master_port("rpc_port")? {
            0 if matches!(self.origin, SettingsOrigin::Environment) => self.master_port("port"),
            0 => None,
            port => Some(port),
        }
    }

    fn in_file(&self, node: &YamlNode, file: &Arc<str>, key: &str) -> SettingValue {
        let Some(entry) = node.entry(key).filter(|entry| entry.value.value != YamlValue::Null) else {
            return SettingValue::Unset;
        };
        let text = match entry.value.text() {
            Some(text) => text.to_owned(),
            None => entry.value.to_json().to_string(),
        };
        SettingValue::of(LocatedValue::new(text, SourceLocation { file: file.clone(), line: entry.line }))
    }

    /// A Mooncake setting of a client, by its settings-file key: `protocol`, `global_segment_size`.
    pub fn client(&self, key: &str) -> SettingValue {
        let process = self.process;
        match process.role {
            ProcessRole::RealClient => {
                let flag = client_flag_for(key).map_or(key, |flag| flag.name);
                match self.flag(&[flag]) {
                    Some(flag) => SettingValue::of(flag.located()),
                    None if process.args_whole => SettingValue::Unset,
                    None => SettingValue::Unknown,
                }
            }
            ProcessRole::Store => self.of_service(key),
            ProcessRole::Sglang(_) => self.of_sglang(key),
            ProcessRole::Environment => self.variable(sglang::variable_of(key)),
            _ => SettingValue::Unknown,
        }
    }

    fn of_service(&self, key: &str) -> SettingValue {
        let define = self.flags.iter().rev().filter(|f| f.name == "D").find_map(|f| {
            let pair = f.value.as_ref()?;
            let (name, value) = pair.text.split_once('=')?;
            (name == key).then(|| LocatedValue::new(value, pair.place.clone()))
        });
        let flag = (self.process.implementation == Implementation::Mcctl).then(|| {
            let alias = match key {
                "master_server_address" => "master",
                "global_segment_size" => "segment_size",
                "device_name" => "rdma_devices",
                key => key,
            };
            self.flag(&[key, alias]).and_then(|f| f.value.clone())
        });
        if let Some(located) = define.or(flag.flatten()) {
            return SettingValue::of(located);
        }
        match &self.origin {
            SettingsOrigin::File(node, file) => self.in_file(node, file, key),
            SettingsOrigin::Unread(_) => SettingValue::Unknown,
            _ => self.variable(store_variable(key)),
        }
    }

    fn of_sglang(&self, key: &str) -> SettingValue {
        if key == "local_hostname" {
            for name in ["MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"] {
                match self.process.env.get(name) {
                    Some(Variable::Text(located)) => return SettingValue::of(located.clone()),
                    Some(Variable::Elsewhere(_)) => return SettingValue::Unknown,
                    None => {}
                }
            }
        }
        let from_node = match &self.origin {
            SettingsOrigin::Inline(node, file) => self.in_file(node, file, key),
            SettingsOrigin::File(node, file) => self.in_file(node, file, key),
            SettingsOrigin::Unread(_) => return SettingValue::Unknown,
            SettingsOrigin::Environment => return self.variable(sglang::variable_of(key)),
        };
        match from_node {
            SettingValue::Unset if key == "protocol" => self.variable(sglang::variable_of(key)),
            SettingValue::Unset if key == "local_hostname" && !self.process.env_whole => SettingValue::Unknown,
            setting => setting,
        }
    }

    /// The value of the variable `name`; unset if the setting has none.
    fn variable(&self, name: Option<&str>) -> SettingValue {
        let Some(name) = name else { return SettingValue::Unset };
        match self.process.env.get(name) {
            Some(Variable::Text(located)) => SettingValue::of(located.clone()),
            Some(Variable::Elsewhere(_)) => SettingValue::Unknown,
            None if self.process.env_whole => SettingValue::Unset,
            None => SettingValue::Unknown,
        }
    }

    /// Whether SGLang's storage backend is Mooncake: its own, or mcctl's client as a dynamic backend.
    pub fn has_mooncake_backend(&self) -> bool {
        let module = || self.extra.as_ref()?.get("module_path")?.text();
        match self.value(&["hicache_storage_backend"]).map(|backend| backend.text.as_str()) {
            Some("dynamic") => module() == Some(python_client::BACKEND_MODULE),
            backend => backend == Some("mooncake"),
        }
    }

    /// Whether the store client of the process is mcctl's.
    pub fn has_mcctl_client(&self) -> bool {
        let is_dynamic = || self.value(&["hicache_storage_backend"]).is_some_and(|backend| backend.text == "dynamic");
        self.process.implementation == Implementation::Mcctl
            || self.process.is_launched
            || self.process.role.is_sglang() && is_dynamic() && self.has_mooncake_backend()
    }

    /// Whether an SGLang server uses the store: HiCache is on and its storage backend is Mooncake. `None` if unknown.
    pub fn uses_mooncake(&self) -> Option<bool> {
        match self.process.role {
            ProcessRole::Sglang(_) if self.process.runtime == RuntimeKind::File => Some(true),
            ProcessRole::Sglang(_) => {
                let linker = self.switch(&["enable_unified_cache_external_linker"]);
                let hicache = self.switch(&["enable_hierarchical_cache", "enable_hicache", DECODE_OFFLOAD]);
                let backend = self.flag(&["hicache_storage_backend"]).map(|f| f.located());
                match backend {
                    Some(located) if !located.is_known() => None,
                    // The extra config names the backend's module, and is unknown.
                    Some(located) if located.text == "dynamic" && self.extra.is_none() => None,
                    Some(_) => Some(self.has_mooncake_backend() && hicache),
                    None if linker => Some(
                        self.value(&["unified_cache_external_linker_backend"]).is_none_or(|v| v.text == "mooncake"),
                    ),
                    None => Some(false),
                }
            }
            role => Some(role.is_client()),
        }
    }

    /// The transport, with the default if it is unset.
    pub fn protocol(&self) -> Option<LocatedValue> {
        match self.client("protocol") {
            SettingValue::Is(located) => {
                Some(LocatedValue::new(located.text.trim().to_ascii_lowercase(), located.place))
            }
            SettingValue::Unset => {
                let text = if self.process.role.is_sglang() { "rdma" } else { "tcp" };
                Some(LocatedValue::new(text, self.process.place.clone()))
            }
            SettingValue::Unknown => None,
        }
    }

    /// Whether the process discovers peers by handshake, without a metadata service.
    pub fn is_p2p(&self) -> Option<bool> {
        match self.client("metadata_server") {
            SettingValue::Is(located) => Some(located.text.trim().eq_ignore_ascii_case("p2phandshake")),
            SettingValue::Unset => Some(self.process.role != ProcessRole::RealClient),
            SettingValue::Unknown => None,
        }
    }

    /// The size of a store service's local buffer, in bytes: 1 GiB if it is not set. `None` if unknown or invalid.
    pub fn local_buffer(&self) -> Option<u64> {
        match self.client("local_buffer_size") {
            SettingValue::Is(located) => self.size(&located.text),
            SettingValue::Unset => size_text::store(store_key("local_buffer_size").default).ok(),
            SettingValue::Unknown => None,
        }
    }

    /// The bytes that the process contributes, across all ranks of an SGLang server. `None` if unknown or invalid.
    pub fn segment(&self) -> Option<(u64, SourceLocation)> {
        let located = match self.client("global_segment_size") {
            SettingValue::Is(located) => located,
            SettingValue::Unset => {
                let bytes = match self.process.role {
                    ProcessRole::Store => size_text::store(store_key("global_segment_size").default).ok()?,
                    _ => sglang::SEGMENT_BYTES,
                };
                return Some((bytes, self.process.place.clone()));
            }
            SettingValue::Unknown => return None,
        };
        let bytes = self.size(&located.text)?;
        Some((bytes, located.place))
    }

    /// Parses a size as the process does.
    pub fn size(&self, text: &str) -> Option<u64> {
        match (self.process.role, self.process.implementation) {
            (ProcessRole::Sglang(_), _) => size_text::sglang_segment(text).ok(),
            (_, Implementation::Mcctl) => text.parse::<ByteSize>().ok().map(|size| size.0),
            _ => size_text::store(text).ok(),
        }
    }

    /// The integer value of the flag whose name is in `names`.
    pub fn number(&self, names: &[&str], default: u64) -> Option<u64> {
        match self.flag(names) {
            Some(flag) => flag.value.as_ref()?.text.parse().ok(),
            None if self.process.args_whole => Some(default),
            None => None,
        }
    }

    /// The number of ranks of an SGLang server among which the segment is divided.
    pub fn ranks(&self) -> Option<u64> {
        let tp = self.number(&["tp_size", "tp", "tensor_parallel_size"], 1)?;
        let pp = self.number(&["pp_size", "pp", "pipeline_parallel_size"], 1)?;
        let dp = self.number(&["dp_size", "dp", "data_parallel_size"], 1)?;
        let tp = if self.switch(&["enable_dp_attention"]) { tp.checked_div(dp)? } else { tp };
        tp.max(1).checked_mul(pp.max(1))
    }

    /// The number of ranks of an SGLang server on one host.
    pub fn ranks_per_host(&self) -> Option<u64> {
        let tp = self.number(&["tp_size", "tp", "tensor_parallel_size"], 1)?;
        let pp = self.number(&["pp_size", "pp", "pipeline_parallel_size"], 1)?;
        // With DP attention, the replicas are part of the TP ranks.
        let dp = match self.switch(&["enable_dp_attention"]) {
            true => 1,
            false => self.number(&["dp_size", "dp", "data_parallel_size"], 1)?,
        };
        let nodes = self.number(&["nnodes"], 1)?.max(1);
        Some(tp.max(1).checked_mul(pp.max(1))?.checked_mul(dp.max(1))?.div_ceil(nodes))
    }

    /// Whether `MC_STORE_USE_HUGEPAGE` is set, to any value. `None` if unknown.
    pub fn huge_pages(&self) -> Option<bool> {
        match self.process.env.contains_key("MC_STORE_USE_HUGEPAGE") {
            true => Some(true),
            false if self.process.env_whole => Some(false),
            false => None,
        }
    }
}

/// Whether the path comes from the extra config's `@file`.
fn path_is_extra(member: &ProcessView<'_>, path: &LocatedValue) -> bool {
    let extra = member.flag(&["hicache_storage_backend_extra_config"]).and_then(|f| f.value.as_ref());
    extra.is_some_and(|extra| extra.text.strip_prefix('@') == Some(path.text.as_str()))
}

fn offset_lines(node: &mut YamlNode, first: u32) {
    let shift = first.saturating_sub(1);
    node.line = node.line.saturating_add(shift);
    match &mut node.value {
        YamlValue::Null => {}
        YamlValue::Scalar(text) => text.first_line = text.first_line.saturating_add(shift),
        YamlValue::List(items) => items.iter_mut().for_each(|item| offset_lines(item, first)),
        YamlValue::Map(entries) => {
            for entry in entries {
                entry.line = entry.line.saturating_add(shift);
                offset_lines(&mut entry.value, first);
            }
        }
    }
}

/// The host in `host:port`, `etcd://host:port` or `http://host:port/x`.
pub fn host_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let rest = rest.split(['/', ';', ',']).next().unwrap_or(rest);
    if let Some(inner) = rest.strip_prefix('[') {
        return inner.split(']').next().unwrap_or(inner);
    }
    match rest.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') => host,
        Some(_) => rest,
        None => rest,
    }
}

/// Whether the address is reachable only from its own host.
pub fn is_host_local(host: &str) -> bool {
    let host = host_of(host.trim());
    host_is_loopback(host) || matches!(host, "0.0.0.0" | "::" | "")
}
