//! Which settings file a process reads.

use crate::lint::flags;
use crate::lint::model::{LocatedValue, Process, ProcessRole, SettingsFileKind};

/// The settings file that a process reads.
pub(crate) fn config_path(process: &Process) -> Option<(SettingsFileKind, LocatedValue)> {
    let given = flags::parse(process);
    let flag = |names: &[&str]| flags::last(&given, names).and_then(|f| f.value.clone());
    match process.role {
        ProcessRole::Master => flag(&["config_path", "config"]).map(|path| (SettingsFileKind::Master, path)),
        ProcessRole::Store => {
            let path = flag(&["config"]).or_else(|| process.var("MOONCAKE_CONFIG_PATH").cloned());
            path.map(|path| (SettingsFileKind::Store, path))
        }
        ProcessRole::Sglang(_) => {
            let extra = flag(&["hicache_storage_backend_extra_config"]);
            let from_file =
                extra.and_then(|located| Some(LocatedValue::new(located.text.strip_prefix('@')?, located.place)));
            let path = from_file.or_else(|| process.var("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH").cloned());
            path.map(|path| (SettingsFileKind::Extra, path))
        }
        ProcessRole::Vllm => process.var("MOONCAKE_CONFIG_PATH").map(|path| (SettingsFileKind::Vllm, path.clone())),
        _ => None,
    }
}
