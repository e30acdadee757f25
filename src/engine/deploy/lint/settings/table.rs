//! The settings of the store's clients: one row per setting, with its type and its names in each
//! program that reads it.
//!
//! A rule about a setting is written once, for its type or its key.
//! [`ProcessView::client`](super::ProcessView::client) finds the value, wherever it is set.

use crate::lint::connectors::{LMCACHE_PREFIX, VLLM_KEYS};
use mcctl_base::upstream::{STORE_KEYS, client_flag_for, sglang, store_variable};

/// A kind of program that reads settings of a store client. It determines the names, the syntax and
/// the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SettingReader {
    /// `mooncake_store_service`.
    Service,
    /// `mcctl serve store`.
    McctlNode,
    /// `mooncake_client`.
    RealClient,
    Sglang,
    Vllm,
    Lmcache,
    /// Variables that SGLang or a store service may read.
    Variables,
}

/// What a setting's value is. Each type has one rule that checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingType {
    /// `HOST:PORT` of a master or of a client's RPC server; for a master also `etcd://HOST:PORT`.
    Address,
    /// `P2PHANDSHAKE`, or the URL of a metadata service.
    Metadata,
    /// The name under which the client is reached.
    HostName,
    Transport,
    /// RDMA devices, separated by commas.
    Devices,
    Size,
    Switch,
    Port,
    Text,
}

/// A setting of a store client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSetting {
    /// The key in a settings file of the store service, or the one of SGLang.
    pub key: &'static str,
    pub kind: SettingType,
    /// Further names of the flag of `mcctl serve store`.
    node: &'static [&'static str],
    /// Names in LMCache's `extra_config`, if they are not `mooncake_KEY` and the key itself.
    lmcache: &'static [&'static str],
}

const fn setting(key: &'static str, kind: SettingType) -> ClientSetting {
    ClientSetting { key, kind, node: &[], lmcache: &[] }
}

impl ClientSetting {
    const fn node(mut self, names: &'static [&'static str]) -> ClientSetting {
        self.node = names;
        self
    }

    const fn lmcache(mut self, names: &'static [&'static str]) -> ClientSetting {
        self.lmcache = names;
        self
    }

    /// The names of the setting in the file, or of the flag, that `reader` reads. Empty if it does
    /// not read the setting. The first name that is set applies.
    pub(crate) fn names(&self, reader: SettingReader) -> Vec<String> {
        let own = |known: bool| if known { vec![self.key.to_owned()] } else { Vec::new() };
        match reader {
            SettingReader::Service => own(STORE_KEYS.iter().any(|row| row.key == self.key)),
            SettingReader::McctlNode => {
                std::iter::once(self.key).chain(self.node.iter().copied()).map(str::to_owned).collect()
            }
            SettingReader::RealClient => {
                client_flag_for(self.key).map(|flag| flag.name.to_owned()).into_iter().collect()
            }
            SettingReader::Sglang => own(sglang::KEYS.iter().any(|(key, _)| *key == self.key)),
            SettingReader::Vllm => own(VLLM_KEYS.contains(&self.key)),
            SettingReader::Lmcache if !self.lmcache.is_empty() => {
                self.lmcache.iter().map(|name| (*name).to_owned()).collect()
            }
            SettingReader::Lmcache => vec![format!("{LMCACHE_PREFIX}{}", self.key), self.key.to_owned()],
            SettingReader::Variables => Vec::new(),
        }
    }

    /// The environment variable from which `reader` reads the setting, if there is one.
    pub(crate) fn variable(&self, reader: SettingReader) -> Option<&'static str> {
        match reader {
            SettingReader::Service | SettingReader::McctlNode => store_variable(self.key),
            SettingReader::Sglang => sglang::variable_of(self.key),
            SettingReader::Variables => sglang::variable_of(self.key).or_else(|| store_variable(self.key)),
            SettingReader::RealClient | SettingReader::Vllm | SettingReader::Lmcache => None,
        }
    }
}

/// The settings that store clients read.
#[rustfmt::skip]
pub(super) const SETTINGS: &[ClientSetting] = &[
    setting("master_server_address", SettingType::Address).node(&["master"])
        .lmcache(&["mooncake_master_server_addr", "mooncake_master_server_address", "master_server_address"]),
    setting("client_server_address", SettingType::Address),
    setting("metadata_server", SettingType::Metadata),
    setting("local_hostname", SettingType::HostName),
    setting("protocol", SettingType::Transport),
    setting("device_name", SettingType::Devices).node(&["rdma_devices"])
        .lmcache(&["mooncake_rdma_devices", "mooncake_device_name", "device_name"]),
    setting("global_segment_size", SettingType::Size).node(&["segment_size"]),
    setting("local_buffer_size", SettingType::Size),
    setting("enable_ssd_offload", SettingType::Switch),
    setting("ssd_offload_path", SettingType::Text),
    setting("enable_client_http_server", SettingType::Switch),
    setting("client_http_port", SettingType::Port),
    setting("master_metrics_port", SettingType::Port),
    setting("check_server", SettingType::Switch),
    setting("standalone_storage", SettingType::Switch),
    setting("tenant_id", SettingType::Text),
];

/// The setting with this key.
pub(crate) fn client_setting(key: &str) -> Option<&'static ClientSetting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// The settings of this type.
pub(crate) fn settings_of(kind: SettingType) -> impl Iterator<Item = &'static ClientSetting> {
    SETTINGS.iter().filter(move |setting| setting.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_base::upstream::CLIENT_FLAGS;

    /// Keys of SGLang that no rule reads.
    const ONLY_SGLANG: [&str; 7] = [
        "extra_backend_tag",
        "enable_group_semantics",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
        "tp_lcm_size",
    ];

    #[test]
    fn the_table_has_every_setting_of_every_program() {
        let of_flags = CLIENT_FLAGS.iter().filter_map(|flag| flag.key);
        let keys = STORE_KEYS.iter().map(|row| row.key).chain(sglang::KEYS.iter().map(|(key, _)| *key)).chain(of_flags);
        for key in keys.filter(|key| !ONLY_SGLANG.contains(key) && *key != "interface_v1") {
            assert!(client_setting(key).is_some(), "{key}");
        }
    }

    #[test]
    fn each_program_has_its_own_names() {
        let names = |key, reader| client_setting(key).map(|setting| setting.names(reader)).unwrap_or_default();
        assert_eq!(names("protocol", SettingReader::Lmcache), ["mooncake_protocol", "protocol"]);
        assert_eq!(names("master_server_address", SettingReader::Lmcache)[0], "mooncake_master_server_addr");
        assert_eq!(names("device_name", SettingReader::RealClient), ["device_names"]);
        assert_eq!(names("local_hostname", SettingReader::Vllm), Vec::<String>::new());
        let variable = |key, reader| client_setting(key).and_then(|setting| setting.variable(reader));
        assert_eq!(variable("master_server_address", SettingReader::Variables), Some("MOONCAKE_MASTER"));
        assert_eq!(variable("local_buffer_size", SettingReader::Sglang), None);
    }
}
