//! The effective settings of a process: which source applies, and its value.
//!
//! Sources are not merged. A store service reads `-D`, then its file or its environment. SGLang
//! reads the extra config if it specifies a master, otherwise the file that a variable specifies,
//! otherwise the environment.

mod address;
mod client;
mod file;
mod table;

pub(super) use address::{host_of, is_host_local};
pub(super) use file::config_path;
pub(super) use table::{ClientSetting, SettingReader, SettingType, client_setting, settings_of};

use std::sync::Arc;

use crate::lint::connectors::{VLLM_SEGMENT_BYTES, vllm_size};
use crate::lint::flags::{self, CommandFlag};
use crate::lint::model::{
    Implementation, LocatedValue, ParsedDeployment, Process, ProcessRole, RuntimeKind, SettingsFileKind,
};
use crate::lint::yaml::{YamlNode, YamlValue};
use crate::plan::size_text;
use mcctl_base::ByteSize;
use mcctl_base::check::SourceLocation;
use mcctl_base::upstream::python_client;
use mcctl_base::upstream::sglang::{self, DECODE_OFFLOAD};
use mcctl_base::upstream::{master_flag, store_key};

/// The value of a setting, if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettingValue {
    Is(LocatedValue),
    Unset,
    /// Set, or possibly set, in a source that was not provided.
    Unknown,
}

impl SettingValue {
    fn of(located: LocatedValue) -> SettingValue {
        match located.is_known() && !has_placeholder(&located.text) {
            true => SettingValue::Is(located),
            false => SettingValue::Unknown,
        }
    }
}

/// Whether the text has a part that a person or a program replaces: `<master-ip>`,
/// `{{ .Values.port }}`, `xx.xx.xx.xx`, `HOST:PORT`.
fn has_placeholder(text: &str) -> bool {
    let in_angles = text.split_once('<').is_some_and(|(_, rest)| rest.contains('>'));
    let in_braces =
        text.contains("{{") || !text.contains('"') && text.split_once('{').is_some_and(|(_, rest)| rest.contains('}'));
    let lower = text.to_ascii_lowercase();
    let is_example = lower.contains("xx.xx") || lower.contains("x.x.x") || lower.contains("xxx");
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest).split('/').next().unwrap_or(text);
    let is_capital = |port: &str| port.len() > 2 && port.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_named = authority.rsplit_once(':').is_some_and(|(_, port)| is_capital(port));
    in_angles || in_braces || is_example || is_named
}

/// The source of a client's settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SettingsOrigin<'s> {
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
pub(super) struct ProcessView<'s> {
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
    pub(super) fn new(deployment: &'s ParsedDeployment, process: &'s Process) -> ProcessView<'s> {
        let flags = flags::parse(process);
        let mut member =
            ProcessView { process, flags, origin: SettingsOrigin::Environment, extra: None, extra_error: None };
        let document = process.config.and_then(|at| deployment.documents.get(at));
        if process.role == ProcessRole::Lmcache {
            if let Some(document) = document
                && let Some(extra) = document.node.get("extra_config")
            {
                member.origin = SettingsOrigin::File(extra, document.file.clone());
            }
            return member;
        }
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
    pub(super) fn flag(&self, names: &[&str]) -> Option<&CommandFlag> {
        flags::last(&self.flags, names)
    }

    /// The value of a flag, if it is known.
    pub(super) fn value(&self, names: &[&str]) -> Option<&LocatedValue> {
        self.flag(names)?.value.as_ref().filter(|located| located.is_known())
    }

    /// Whether an SGLang switch is set.
    pub(super) fn switch(&self, names: &[&str]) -> bool {
        self.flag(names).is_some()
    }

    /// A setting of the master, from its flag or its settings file.
    pub(super) fn master(&self, name: &str) -> SettingValue {
        if let Some(flag) = self.flag(&[name]) {
            return SettingValue::of(flag.located());
        }
        if self.flag(&["flagfile", "fromenv", "tryfromenv"]).is_some() {
            return SettingValue::Unknown;
        }
        match &self.origin {
            SettingsOrigin::File(node, file) => {
                let key = master_flag(name).and_then(|flag| flag.key).unwrap_or(name);
                match self.in_file(node, file, key) {
                    // A flag of the command line, which is not in the files, may set it.
                    SettingValue::Unset if !self.process.args_whole => SettingValue::Unknown,
                    value => value,
                }
            }
            SettingsOrigin::Unread(_) => SettingValue::Unknown,
            _ if self.process.args_whole => SettingValue::Unset,
            _ => SettingValue::Unknown,
        }
    }

    /// Whether a switch of the master is on. `None` if unknown.
    pub(super) fn master_switch(&self, name: &str) -> Option<bool> {
        match self.master(name) {
            SettingValue::Is(located) => Some(flags::is_true(&located.text)),
            SettingValue::Unset => Some(false),
            SettingValue::Unknown => None,
        }
    }

    /// A port of the master, if known.
    pub(super) fn master_port(&self, name: &str) -> Option<u16> {
        match self.master(name) {
            SettingValue::Is(located) => located.text.parse().ok(),
            SettingValue::Unset => master_flag(name)?.default.parse().ok(),
            SettingValue::Unknown => None,
        }
    }

    /// The RPC port of the master, if known.
    pub(super) fn rpc_port(&self) -> Option<u16> {
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

    /// Whether SGLang's storage backend is Mooncake: its own, or mcctl's client as a dynamic
    /// backend.
    pub(super) fn has_mooncake_backend(&self) -> bool {
        let module = || self.extra.as_ref()?.get("module_path")?.text();
        match self.value(&["hicache_storage_backend"]).map(|backend| backend.text.as_str()) {
            Some("dynamic") => module() == Some(python_client::BACKEND_MODULE),
            backend => backend == Some("mooncake"),
        }
    }

    /// Whether the store client of the process is mcctl's.
    pub(super) fn has_mcctl_client(&self) -> bool {
        let is_dynamic = || self.value(&["hicache_storage_backend"]).is_some_and(|backend| backend.text == "dynamic");
        self.process.implementation == Implementation::Mcctl
            || self.process.is_launched
            || self.process.role.is_sglang() && is_dynamic() && self.has_mooncake_backend()
    }

    /// Whether an SGLang server uses the store: HiCache is on and its storage backend is Mooncake.
    /// `None` if unknown.
    pub(super) fn uses_mooncake(&self) -> Option<bool> {
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
            ProcessRole::Vllm => match &self.origin {
                SettingsOrigin::File(..) if self.process.runtime == RuntimeKind::File => Some(true),
                _ => self.has_store_connector(),
            },
            ProcessRole::Lmcache => Some(true),
            role => Some(role.is_client()),
        }
    }

    /// Whether a vLLM server uses MooncakeStoreConnector. `None` if unknown.
    pub(super) fn has_store_connector(&self) -> Option<bool> {
        let Some(flag) = self.flag(&["kv_transfer_config"]) else {
            return if self.process.args_whole { Some(false) } else { None };
        };
        let located = flag.value.as_ref().filter(|located| located.is_known())?;
        Some(located.text.contains("MooncakeStoreConnector"))
    }

    /// Whether an SGLang server uses a real client on its host, or may do so. Such a server has no
    /// transport and no segment of its own.
    pub(super) fn may_use_real_client(&self) -> bool {
        let is_on = |text: &str| matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes");
        self.process.role.is_sglang()
            && matches!(self.client("client_server_address"), SettingValue::Is(_))
            && match self.client("standalone_storage") {
                SettingValue::Is(located) => is_on(&located.text),
                SettingValue::Unset => false,
                SettingValue::Unknown => true,
            }
    }

    /// The transport, with the default if it is unset.
    pub(super) fn protocol(&self) -> Option<LocatedValue> {
        if self.may_use_real_client() {
            return None;
        }
        match self.client("protocol") {
            SettingValue::Is(located) => {
                Some(LocatedValue::new(located.text.trim().to_ascii_lowercase(), located.place))
            }
            SettingValue::Unset => {
                let is_rdma = self.process.role.is_sglang() || self.process.role == ProcessRole::Vllm;
                let text = if is_rdma { "rdma" } else { "tcp" };
                Some(LocatedValue::new(text, self.process.place.clone()))
            }
            SettingValue::Unknown => None,
        }
    }

    /// Whether the process discovers peers by handshake, without a metadata service.
    pub(super) fn is_p2p(&self) -> Option<bool> {
        match self.client("metadata_server") {
            SettingValue::Is(located) => Some(located.text.trim().eq_ignore_ascii_case("p2phandshake")),
            SettingValue::Unset => Some(self.process.role != ProcessRole::RealClient),
            SettingValue::Unknown => None,
        }
    }

    /// The size of a store service's local buffer, in bytes: 1 GiB if it is not set. `None` if
    /// unknown or invalid.
    pub(super) fn local_buffer(&self) -> Option<u64> {
        match self.client("local_buffer_size") {
            SettingValue::Is(located) => self.size(&located.text),
            SettingValue::Unset => size_text::store(store_key("local_buffer_size").default).ok(),
            SettingValue::Unknown => None,
        }
    }

    /// The bytes that the process contributes, across all ranks of an SGLang server. `None` if
    /// unknown or invalid.
    pub(super) fn segment(&self) -> Option<(u64, SourceLocation)> {
        if self.may_use_real_client() {
            return None;
        }
        let located = match self.client("global_segment_size") {
            SettingValue::Is(located) => located,
            SettingValue::Unset => {
                let bytes = match self.process.role {
                    ProcessRole::Store => size_text::store(store_key("global_segment_size").default).ok()?,
                    ProcessRole::Vllm => VLLM_SEGMENT_BYTES,
                    ProcessRole::Lmcache => return None,
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
    pub(super) fn size(&self, text: &str) -> Option<u64> {
        match (self.process.role, self.process.implementation) {
            (ProcessRole::Sglang(_), _) => size_text::sglang_segment(text).ok(),
            (ProcessRole::Vllm, _) => vllm_size(text),
            (_, Implementation::Mcctl) => text.parse::<ByteSize>().ok().map(|size| size.0),
            _ => size_text::store(text).ok(),
        }
    }

    /// The integer value of the flag whose name is in `names`.
    pub(super) fn number(&self, names: &[&str], default: u64) -> Option<u64> {
        match self.flag(names) {
            Some(flag) => flag.value.as_ref()?.text.parse().ok(),
            None if self.process.args_whole => Some(default),
            None => None,
        }
    }

    /// The number of ranks of an SGLang server among which the segment is divided.
    pub(super) fn ranks(&self) -> Option<u64> {
        let tp = self.number(&["tp_size", "tp", "tensor_parallel_size"], 1)?;
        let pp = self.number(&["pp_size", "pp", "pipeline_parallel_size"], 1)?;
        let dp = self.number(&["dp_size", "dp", "data_parallel_size"], 1)?;
        let tp = if self.switch(&["enable_dp_attention"]) { tp.checked_div(dp)? } else { tp };
        tp.max(1).checked_mul(pp.max(1))
    }

    /// The number of ranks of an SGLang server on one host.
    pub(super) fn ranks_per_host(&self) -> Option<u64> {
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
    pub(super) fn huge_pages(&self) -> Option<bool> {
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
