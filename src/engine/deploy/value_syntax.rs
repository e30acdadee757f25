//! The syntax of values: paths, variables and names of devices.

use std::collections::BTreeMap;

use crate::DeployError;
use crate::error::invalid_value;
use mcctl_base::text::Quoted;

/// Whether `text` is an absolute path without characters that units, scripts or manifests would
/// interpret.
pub(crate) fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.chars().all(|c| c.is_alphanumeric() || "/_-.+@".contains(c))
}

/// Checks the names and values of variables.
pub(crate) fn variables(key: &'static str, env: &BTreeMap<String, String>) -> Result<(), DeployError> {
    for (name, value) in env {
        let head = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !head || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(invalid_value(key, format!("{} is not a valid variable name", Quoted(name))));
        }
        if value.chars().any(char::is_control) {
            return Err(invalid_value(key, format!("{} contains a control character", Quoted(value))));
        }
    }
    Ok(())
}

/// Checks that `devices` are names of RDMA devices.
pub(crate) fn device_names(key: &'static str, devices: &[String]) -> Result<(), DeployError> {
    let is_name =
        |device: &str| !device.is_empty() && device.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
    match devices.iter().find(|device| !is_name(device)) {
        Some(bad) => Err(invalid_value(key, format!("{} is not a valid device name", Quoted(bad)))),
        None => Ok(()),
    }
}
