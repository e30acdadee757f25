//! The effective value of a store client's setting, from the source that its program reads.

use crate::lint::model::{Implementation, LocatedValue, ProcessRole, Variable};
use crate::lint::settings::{ClientSetting, ProcessView, SettingReader, SettingValue, SettingsOrigin, client_setting};

impl ProcessView<'_> {
    /// The kind of program that reads the process's store settings. `None` if it reads none.
    pub(crate) fn reader(&self) -> Option<SettingReader> {
        match (self.process.role, self.process.implementation) {
            (ProcessRole::RealClient, _) => Some(SettingReader::RealClient),
            (ProcessRole::Store, Implementation::Mcctl) => Some(SettingReader::McctlNode),
            (ProcessRole::Store, Implementation::Upstream) => Some(SettingReader::Service),
            (ProcessRole::Sglang(_), _) => Some(SettingReader::Sglang),
            (ProcessRole::Vllm, _) => Some(SettingReader::Vllm),
            (ProcessRole::Lmcache, _) => Some(SettingReader::Lmcache),
            (ProcessRole::Environment, _) => Some(SettingReader::Variables),
            _ => None,
        }
    }

    /// A setting of a store client, by its key: `protocol`, `global_segment_size`.
    pub(crate) fn client(&self, key: &str) -> SettingValue {
        let (Some(reader), Some(setting)) = (self.reader(), client_setting(key)) else { return SettingValue::Unknown };
        match reader {
            SettingReader::RealClient => {
                let names = setting.names(reader);
                match names.first().and_then(|name| self.flag(&[name.as_str()])) {
                    Some(flag) => SettingValue::of(flag.located()),
                    None if self.process.args_whole => SettingValue::Unset,
                    None => SettingValue::Unknown,
                }
            }
            SettingReader::Service | SettingReader::McctlNode => self.of_service(setting, reader),
            SettingReader::Sglang => self.of_sglang(setting),
            SettingReader::Vllm | SettingReader::Lmcache => self.of_connector(setting, reader),
            SettingReader::Variables => self.variable(setting.variable(reader)),
        }
    }

    fn of_service(&self, setting: &ClientSetting, reader: SettingReader) -> SettingValue {
        let define = self.flags.iter().rev().filter(|f| f.name == "D").find_map(|f| {
            let pair = f.value.as_ref()?;
            let (name, value) = pair.text.split_once('=')?;
            (name == setting.key).then(|| LocatedValue::new(value, pair.place.clone()))
        });
        let flag = (reader == SettingReader::McctlNode).then(|| {
            let names = setting.names(reader);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.flag(&names).and_then(|f| f.value.clone())
        });
        if let Some(located) = define.or(flag.flatten()) {
            return SettingValue::of(located);
        }
        match &self.origin {
            SettingsOrigin::File(node, file) => self.in_file(node, file, setting.key),
            SettingsOrigin::Unread(_) => SettingValue::Unknown,
            _ => self.variable(setting.variable(reader)),
        }
    }

    fn of_sglang(&self, setting: &ClientSetting) -> SettingValue {
        let key = setting.key;
        let variable = || self.variable(setting.variable(SettingReader::Sglang));
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
            SettingsOrigin::Environment => return variable(),
        };
        match from_node {
            SettingValue::Unset if key == "protocol" => variable(),
            SettingValue::Unset if key == "local_hostname" && !self.process.env_whole => SettingValue::Unknown,
            setting => setting,
        }
    }

    /// vLLM and LMCache read their settings only from a file.
    fn of_connector(&self, setting: &ClientSetting, reader: SettingReader) -> SettingValue {
        let SettingsOrigin::File(node, file) = &self.origin else { return SettingValue::Unknown };
        let values = setting.names(reader).into_iter().map(|name| self.in_file(node, file, &name));
        values.into_iter().find(|value| *value != SettingValue::Unset).unwrap_or(SettingValue::Unset)
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
}
