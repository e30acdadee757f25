//! The settings that make SGLang and Mooncake use the recommended devices.

use super::DeviceReport;

/// The environment variables to set, with their values.
pub(super) fn environment(report: &DeviceReport) -> impl Iterator<Item = (&'static str, String)> {
    let choice = &report.choice;
    let mut lines = Vec::new();
    if choice.picked.is_empty() {
        lines.push(("MOONCAKE_PROTOCOL", "tcp".to_owned()));
        let announced = report.host.interfaces.iter().find(|i| i.announced);
        if let Some(ip) = announced.and_then(|i| i.addresses.iter().find(|ip| ip.is_ipv4())) {
            lines.push(("MOONCAKE_LOCAL_HOSTNAME", ip.to_string()));
        }
    } else {
        lines.push(("MOONCAKE_DEVICE", names(report)));
        if let Some(index) = choice.gid_index {
            lines.push(("MC_GID_INDEX", index.to_string()));
        }
        if report.selection.port != 1 {
            lines.push(("MC_IB_PORT", report.selection.port.to_string()));
        }
    }
    lines.into_iter()
}

/// The flags to pass to SGLang.
pub(super) fn flags(report: &DeviceReport) -> Vec<String> {
    let names = names(report);
    if names.is_empty() { Vec::new() } else { vec![format!("--disaggregation-ib-device {names}")] }
}

fn names(report: &DeviceReport) -> String {
    let names: Vec<&str> = report.choice.picked.iter().map(|p| p.device.as_str()).collect();
    names.join(",")
}
