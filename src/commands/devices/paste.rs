//! The lines that make SGLang and Mooncake use what was chosen.

use super::Picture;

/// Variables and their values.
pub(super) fn environment(picture: &Picture) -> impl Iterator<Item = (&'static str, String)> {
    let choice = &picture.choice;
    let mut lines = Vec::new();
    if choice.picked.is_empty() {
        lines.push(("MOONCAKE_PROTOCOL", "tcp".to_owned()));
        let announced = picture.host.interfaces.iter().find(|i| i.announced);
        if let Some(ip) = announced.and_then(|i| i.addresses.iter().find(|ip| ip.is_ipv4())) {
            lines.push(("MOONCAKE_LOCAL_HOSTNAME", ip.to_string()));
        }
    } else {
        lines.push(("MOONCAKE_DEVICE", names(picture)));
        if let Some(index) = choice.gid_index {
            lines.push(("MC_GID_INDEX", index.to_string()));
        }
        if picture.wish.port != 1 {
            lines.push(("MC_IB_PORT", picture.wish.port.to_string()));
        }
    }
    lines.into_iter()
}

/// Flags of SGLang.
pub(super) fn flags(picture: &Picture) -> Vec<String> {
    let names = names(picture);
    if names.is_empty() { Vec::new() } else { vec![format!("--disaggregation-ib-device {names}")] }
}

fn names(picture: &Picture) -> String {
    let names: Vec<&str> = picture.choice.picked.iter().map(|p| p.device.as_str()).collect();
    names.join(",")
}
