//! What a process will really take a setting to be: which of its sources counts, and what that one says.
//!
//! Sources are not merged. A store service reads `-D`, then its file or its environment; SGLang reads the extra config if that names a
//! master, else the file that a variable names, else the environment.

use std::sync::Arc;

use crate::engine::base::ByteSize;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::check::Place;
use crate::engine::lint::flags::{self, Flag};
use crate::engine::lint::names::{DECODE_OFFLOAD, SERVICE_KEYS, SGLANG_KEYS};
use crate::engine::lint::node::{Node, Value};
use crate::engine::lint::read::config_path;
use crate::engine::lint::scene::{DocumentKind, Habitat, Make, Process, Role, Said, Scene, Variable};
use crate::engine::plan::size_text;

/// What is known of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// It is this.
    Is(Said),
    /// Nobody sets it.
    Unset,
    /// It is set elsewhere, or may be.
    Unknown,
}

impl Setting {
    fn of(said: Said) -> Setting {
        if said.is_known() { Setting::Is(said) } else { Setting::Unknown }
    }
}

/// Where a client's settings come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin<'s> {
    /// Variables.
    Environment,
    /// A file that was given, too.
    File(&'s Node, Arc<str>),
    /// The JSON of the extra config.
    Inline(Node, Arc<str>),
    /// A file that was not given.
    Unread(Said),
}

/// A process with its flags read.
#[derive(Clone, Debug)]
pub struct Seen<'s> {
    /// The process.
    pub process: &'s Process,
    /// Its flags.
    pub flags: Vec<Flag>,
    /// Where its Mooncake settings come from.
    pub origin: Origin<'s>,
    /// The inline extra config, whether it counts as a source or not.
    pub extra: Option<Node>,
    /// Why the inline extra config cannot be read.
    pub extra_error: Option<(Said, String)>,
}

impl<'s> Seen<'s> {
    /// Read the flags of `process`.
    pub fn new(scene: &'s Scene, process: &'s Process) -> Seen<'s> {
        let flags = flags::of(process);
        let mut seen = Seen { process, flags, origin: Origin::Environment, extra: None, extra_error: None };
        let document = process.config.and_then(|at| scene.documents.get(at));
        if process.role.is_sglang() {
            seen.extra_config(document.map(|d| &d.node));
            let names_a_master = |node: &Node| {
                let named = |key| node.get(key).is_some_and(|n| n.value != Value::Null);
                named("master_server_address") || named("client_server_address")
            };
            let extra = seen.flag(&["hicache_storage_backend_extra_config"]).and_then(|f| f.value.clone());
            if let Some(said) = extra {
                match (&seen.extra, document) {
                    (Some(node), _) if names_a_master(node) => {
                        seen.origin = Origin::Inline(node.clone(), said.place.file.clone());
                        return seen;
                    }
                    (Some(_), _) => {}
                    (None, Some(document)) if said.text.starts_with('@') && names_a_master(&document.node) => {
                        seen.origin = Origin::File(&document.node, document.file.clone());
                        return seen;
                    }
                    (None, Some(_)) if said.text.starts_with('@') => {}
                    (None, _) if said.text.starts_with('@') || !said.is_known() => {
                        seen.origin = Origin::Unread(said);
                        return seen;
                    }
                    (None, _) => {}
                }
            }
        }
        seen.origin = match (config_path(process), document) {
            (_, Some(document)) if process.habitat == Habitat::File => {
                Origin::File(&document.node, document.file.clone())
            }
            (Some((DocumentKind::Extra, path)), _) if process.role.is_sglang() && path_is_extra(&seen, &path) => {
                Origin::Environment
            }
            (Some(_), Some(document)) => Origin::File(&document.node, document.file.clone()),
            (Some((_, path)), None) => Origin::Unread(path),
            (None, _) => Origin::Environment,
        };
        seen
    }

    fn extra_config(&mut self, document: Option<&Node>) {
        let Some(said) = self.flag(&["hicache_storage_backend_extra_config"]).and_then(|f| f.value.clone()) else {
            return;
        };
        if said.text.starts_with('@') {
            self.extra = document.cloned();
        } else if said.is_known() {
            match Node::json(&said.text, false) {
                Ok(mut node) => {
                    place_all(&mut node, said.place.line);
                    self.extra = Some(node);
                }
                Err(error) => self.extra_error = Some((said, error.to_string())),
            }
        }
    }

    /// The last flag with one of `names`.
    pub fn flag(&self, names: &[&str]) -> Option<&Flag> {
        flags::last(&self.flags, names)
    }

    /// The value of a flag, if it is known.
    pub fn value(&self, names: &[&str]) -> Option<&Said> {
        self.flag(names)?.value.as_ref().filter(|said| said.is_known())
    }

    /// Is a switch of SGLang given?
    pub fn switch(&self, names: &[&str]) -> bool {
        self.flag(names).is_some()
    }

    /// A setting of the master: its flag, or its file, or nothing.
    pub fn master(&self, name: &str) -> Setting {
        if let Some(flag) = self.flag(&[name]) {
            return Setting::of(flag.said());
        }
        if self.flag(&["flagfile", "fromenv", "tryfromenv"]).is_some() {
            return Setting::Unknown;
        }
        match &self.origin {
            Origin::File(node, file) => {
                let key = if name == "client_ttl" { "client_live_ttl_sec" } else { name };
                self.in_file(node, file, key)
            }
            Origin::Unread(_) => Setting::Unknown,
            _ if self.process.args_whole => Setting::Unset,
            _ => Setting::Unknown,
        }
    }

    /// Is a switch of the master on? `None`: not known.
    pub fn master_switch(&self, name: &str) -> Option<bool> {
        match self.master(name) {
            Setting::Is(said) => Some(flags::is_true(&said.text)),
            Setting::Unset => Some(false),
            Setting::Unknown => None,
        }
    }

    /// A port of the master, where it is known.
    pub fn master_port(&self, name: &str, default: u16) -> Option<u16> {
        match self.master(name) {
            Setting::Is(said) => said.text.parse().ok(),
            Setting::Unset => Some(default),
            Setting::Unknown => None,
        }
    }

    /// The RPC port of the master.
    pub fn rpc_port(&self) -> Option<u16> {
        match self.master_port("rpc_port", 0)? {
            0 if matches!(self.origin, Origin::Environment) => self.master_port("port", 50051),
            0 => None,
            port => Some(port),
        }
    }

    fn in_file(&self, node: &Node, file: &Arc<str>, key: &str) -> Setting {
        let Some(entry) = node.entry(key).filter(|entry| entry.value.value != Value::Null) else {
            return Setting::Unset;
        };
        let text = match entry.value.text() {
            Some(text) => text.to_owned(),
            None => entry.value.to_json().to_string(),
        };
        Setting::of(Said::new(text, Place { file: file.clone(), line: entry.line }))
    }

    /// A Mooncake setting of a client by its key in settings files: `protocol`, `global_segment_size`.
    pub fn client(&self, key: &str) -> Setting {
        let process = self.process;
        match process.role {
            Role::RealClient => {
                let flag = match key {
                    "device_name" => "device_names",
                    "local_hostname" => "host",
                    "enable_ssd_offload" => "enable_offload",
                    key => key,
                };
                match self.flag(&[flag]) {
                    Some(flag) => Setting::of(flag.said()),
                    None if process.args_whole => Setting::Unset,
                    None => Setting::Unknown,
                }
            }
            Role::Store => self.of_service(key),
            Role::Sglang(_) => self.of_sglang(key),
            Role::Environment => self.variable(key, SGLANG_KEYS),
            _ => Setting::Unknown,
        }
    }

    fn of_service(&self, key: &str) -> Setting {
        let define = self.flags.iter().rev().filter(|f| f.name == "D").find_map(|f| {
            let pair = f.value.as_ref()?;
            let (name, value) = pair.text.split_once('=')?;
            (name == key).then(|| Said::new(value, pair.place.clone()))
        });
        let flag = (self.process.make == Make::Mcctl).then(|| {
            let alias = match key {
                "master_server_address" => "master",
                "global_segment_size" => "segment_size",
                "device_name" => "rdma_devices",
                key => key,
            };
            self.flag(&[key, alias]).and_then(|f| f.value.clone())
        });
        if let Some(said) = define.or(flag.flatten()) {
            return Setting::of(said);
        }
        match &self.origin {
            Origin::File(node, file) => self.in_file(node, file, key),
            Origin::Unread(_) => Setting::Unknown,
            _ => self.variable(key, SERVICE_KEYS),
        }
    }

    fn of_sglang(&self, key: &str) -> Setting {
        if key == "local_hostname" {
            for name in ["MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"] {
                match self.process.env.get(name) {
                    Some(Variable::Text(said)) => return Setting::of(said.clone()),
                    Some(Variable::Elsewhere(_)) => return Setting::Unknown,
                    None => {}
                }
            }
        }
        let from_node = match &self.origin {
            Origin::Inline(node, file) => self.in_file(node, file, key),
            Origin::File(node, file) => self.in_file(node, file, key),
            Origin::Unread(_) => return Setting::Unknown,
            Origin::Environment => return self.variable(key, SGLANG_KEYS),
        };
        match from_node {
            Setting::Unset if key == "protocol" => self.variable(key, SGLANG_KEYS),
            Setting::Unset if key == "local_hostname" && !self.process.env_whole => Setting::Unknown,
            setting => setting,
        }
    }

    fn variable(&self, key: &str, table: &[(&str, &str)]) -> Setting {
        let Some((_, name)) = table.iter().find(|(known, name)| *known == key && !name.is_empty()) else {
            return Setting::Unset;
        };
        match self.process.env.get(*name) {
            Some(Variable::Text(said)) => Setting::of(said.clone()),
            Some(Variable::Elsewhere(_)) => Setting::Unknown,
            None if self.process.env_whole => Setting::Unset,
            None => Setting::Unknown,
        }
    }

    /// Does a SGLang server use the store: HiCache on, with Mooncake behind it? `None`: not known.
    pub fn uses_mooncake(&self) -> Option<bool> {
        match self.process.role {
            Role::Sglang(_) if self.process.habitat == Habitat::File => Some(true),
            Role::Sglang(_) => {
                let linker = self.switch(&["enable_unified_cache_external_linker"]);
                let hicache = self.switch(&["enable_hierarchical_cache", "enable_hicache", DECODE_OFFLOAD]);
                let backend = self.flag(&["hicache_storage_backend"]).map(|f| f.said());
                match backend {
                    Some(said) if !said.is_known() => None,
                    Some(said) => Some(said.text == "mooncake" && hicache),
                    None if linker => Some(
                        self.value(&["unified_cache_external_linker_backend"]).is_none_or(|v| v.text == "mooncake"),
                    ),
                    None => Some(false),
                }
            }
            role => Some(role.is_client()),
        }
    }

    /// The transport, with the default where nobody chose.
    pub fn protocol(&self) -> Option<Said> {
        match self.client("protocol") {
            Setting::Is(said) => Some(Said::new(said.text.trim().to_ascii_lowercase(), said.place)),
            Setting::Unset => {
                let text = if self.process.role.is_sglang() { "rdma" } else { "tcp" };
                Some(Said::new(text, self.process.place.clone()))
            }
            Setting::Unknown => None,
        }
    }

    /// Does it find others by asking them, without a metadata service?
    pub fn is_p2p(&self) -> Option<bool> {
        match self.client("metadata_server") {
            Setting::Is(said) => Some(said.text.trim().eq_ignore_ascii_case("p2phandshake")),
            Setting::Unset => Some(self.process.role != Role::RealClient),
            Setting::Unknown => None,
        }
    }

    /// Bytes that it lends, all ranks of a SGLang server together; `None` when that is not known or no size.
    pub fn segment(&self) -> Option<(u64, Place)> {
        let said = match self.client("global_segment_size") {
            Setting::Is(said) => said,
            Setting::Unset => {
                let bytes = match self.process.role {
                    Role::Store => 3_355_443_200,
                    _ => 4 * ByteSize::GIB,
                };
                return Some((bytes, self.process.place.clone()));
            }
            Setting::Unknown => return None,
        };
        let bytes = self.size(&said.text)?;
        Some((bytes, said.place))
    }

    /// A size as the process reads it.
    pub fn size(&self, text: &str) -> Option<u64> {
        match (self.process.role, self.process.make) {
            (Role::Sglang(_), _) => size_text::sglang_segment(text).ok(),
            (_, Make::Mcctl) => text.parse::<ByteSize>().ok().map(|size| size.0),
            _ => size_text::store(text).ok(),
        }
    }

    /// A whole number after one of `names`.
    pub fn number(&self, names: &[&str], default: u64) -> Option<u64> {
        match self.flag(names) {
            Some(flag) => flag.value.as_ref()?.text.parse().ok(),
            None if self.process.args_whole => Some(default),
            None => None,
        }
    }

    /// Ranks of a SGLang server among which the segment is divided.
    pub fn ranks(&self) -> Option<u64> {
        let tp = self.number(&["tp_size", "tp", "tensor_parallel_size"], 1)?;
        let pp = self.number(&["pp_size", "pp", "pipeline_parallel_size"], 1)?;
        let dp = self.number(&["dp_size", "dp", "data_parallel_size"], 1)?;
        let tp = if self.switch(&["enable_dp_attention"]) { tp.checked_div(dp)? } else { tp };
        tp.max(1).checked_mul(pp.max(1))
    }

    /// Processes of a SGLang server on one of its hosts.
    pub fn ranks_here(&self) -> Option<u64> {
        let tp = self.number(&["tp_size", "tp", "tensor_parallel_size"], 1)?;
        let pp = self.number(&["pp_size", "pp", "pipeline_parallel_size"], 1)?;
        // With DP attention the replicas are among the ranks of TP.
        let dp = match self.switch(&["enable_dp_attention"]) {
            true => 1,
            false => self.number(&["dp_size", "dp", "data_parallel_size"], 1)?,
        };
        let nodes = self.number(&["nnodes"], 1)?.max(1);
        Some(tp.max(1).checked_mul(pp.max(1))?.checked_mul(dp.max(1))?.div_ceil(nodes))
    }

    /// Is `MC_STORE_USE_HUGEPAGE` set, whatever to? `None`: not known.
    pub fn huge_pages(&self) -> Option<bool> {
        match self.process.env.contains_key("MC_STORE_USE_HUGEPAGE") {
            true => Some(true),
            false if self.process.env_whole => Some(false),
            false => None,
        }
    }
}

/// Was the path given as the extra config's `@file`, and does it name no master?
fn path_is_extra(seen: &Seen<'_>, path: &Said) -> bool {
    let extra = seen.flag(&["hicache_storage_backend_extra_config"]).and_then(|f| f.value.as_ref());
    extra.is_some_and(|extra| extra.text.strip_prefix('@') == Some(path.text.as_str()))
}

fn place_all(node: &mut Node, first: u32) {
    let shift = first.saturating_sub(1);
    node.line = node.line.saturating_add(shift);
    match &mut node.value {
        Value::Null => {}
        Value::Scalar(text) => text.first_line = text.first_line.saturating_add(shift),
        Value::List(items) => items.iter_mut().for_each(|item| place_all(item, first)),
        Value::Map(entries) => {
            for entry in entries {
                entry.line = entry.line.saturating_add(shift);
                place_all(&mut entry.value, first);
            }
        }
    }
}

/// The host of `host:port`, `etcd://host:port`, `http://host:port/x`.
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

/// Can nobody else call this name?
pub fn is_here_only(host: &str) -> bool {
    let host = host_of(host.trim());
    host_is_loopback(host) || matches!(host, "0.0.0.0" | "::" | "")
}
