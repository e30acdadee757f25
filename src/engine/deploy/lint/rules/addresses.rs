//! Addresses of masters and metadata services: their syntax, and whether the build of the program
//! can use them.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, LocatedValue};
use crate::lint::release::{WheelOrigin, wheel_origin};
use crate::lint::settings::{ProcessView, SettingReader, SettingType, SettingValue, settings_of};
use crate::lint::view::DeploymentView;

/// Addresses in a syntax that the process does not accept.
pub(super) fn address_form(view: &DeploymentView<'_>, out: &mut Findings) {
    for (member, _) in view.readers() {
        for setting in settings_of(SettingType::Address).filter(|setting| setting.key == "master_server_address") {
            if let SettingValue::Is(located) = member.client(setting.key) {
                master(member, &located, out);
            }
        }
        for setting in settings_of(SettingType::Metadata) {
            if let SettingValue::Is(located) = member.client(setting.key) {
                metadata(member, &located, out);
            }
        }
    }
}

fn master(member: &ProcessView<'_>, located: &LocatedValue, out: &mut Findings) {
    let text = located.text.trim();
    let who = member.process.describe();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    // `unsupported` reports schemes that mcctl does not support.
    if member.process.implementation == Implementation::Mcctl && scheme.is_some() {
        return;
    }
    match scheme {
        None | Some("etcd") if address_error(text).is_some() => out.error(
            &located.place,
            format!("{who} cannot reach the master: the address is invalid"),
            format!("'{text}': {}", address_error(text).unwrap_or_default()),
            "use HOST:PORT with the RPC port (default 50051)",
        ),
        Some("etcd") if text.ends_with('/') => out.error(
            &located.place,
            format!("{who} cannot reach the master: the etcd address has a trailing slash"),
            format!("lookups through {text} time out after 5 s"),
            format!("use {}", text.trim_end_matches('/')),
        ),
        Some("etcd") => {}
        Some(other @ ("redis" | "k8s")) => out.warning(
            &located.place,
            format!("{who} finds the leader through {other} only if its Mooncake is built for it"),
            format!("{text}; the wheels on PyPI are built with etcd only"),
            "use etcd://HOST:PORT with the masters' etcd, or HOST:PORT",
        ),
        Some(other) => out.error(
            &located.place,
            format!("{who} cannot reach the master: the address must not begin with {other}://"),
            text.to_owned(),
            "use HOST:PORT with the RPC port, or etcd://HOST:PORT with the masters' etcd",
        ),
        None if !text.is_empty() && !text.contains(':') => out.error(
            &located.place,
            format!("{who} cannot reach the master: the address has no port"),
            text.to_owned(),
            format!("use {text}:50051"),
        ),
        None if text.ends_with(":9003") || text.ends_with(":8080") => out.warning(
            &located.place,
            format!("{who} uses an HTTP port as the master's RPC port"),
            format!("{text}; by default, 9003 is the metrics port and 8080 the metadata port"),
            "use the RPC port (default 50051)",
        ),
        None => {}
    }
}

fn metadata(member: &ProcessView<'_>, located: &LocatedValue, out: &mut Findings) {
    let text = located.text.trim();
    let lower = text.to_ascii_lowercase();
    let who = member.process.describe();
    let is_known = ["http://", "https://", "etcd://", "redis://"].iter().any(|scheme| lower.starts_with(scheme));
    // An address without a scheme refers to etcd.
    let is_etcd = !text.contains("://") && text.contains(':');
    if let Some(wrong) = address_error(text).filter(|_| is_etcd || is_known) {
        out.error(
            &located.place,
            format!("{who} cannot reach the metadata service: the address is invalid"),
            format!("'{text}': {wrong}"),
            "use P2PHANDSHAKE, or http://HOST:PORT/metadata",
        );
    } else if is_etcd {
        out.warning(
            &located.place,
            format!("{who} treats '{text}' as an etcd address: it has no scheme"),
            "valid metadata servers are P2PHANDSHAKE, http://HOST:PORT/metadata or etcd://HOST:PORT",
            format!("use etcd://{text} if etcd is intended"),
        );
    } else if !text.is_empty() && !is_known && lower != "p2phandshake" {
        out.error(
            &located.place,
            format!("{who} cannot reach the metadata service: '{text}' is not a valid address"),
            "valid forms are P2PHANDSHAKE, http://HOST:PORT/metadata and etcd://HOST:PORT",
            "use P2PHANDSHAKE",
        );
    } else if lower.starts_with("http") && is_url_list(text) {
        // mcctl's clients use the first service that responds.
        if member.process.implementation == Implementation::Upstream {
            out.error(
                &located.place,
                format!("{who} cannot reach the metadata service: Mooncake's clients do not accept a list of URLs"),
                text.to_owned(),
                "use one URL: that of a Service, or of a proxy on this host (mcctl serve metadata --forward-to HOST:PORT,HOST:PORT)",
            );
        }
    } else if lower.starts_with("http") && !text.trim_end_matches('/').ends_with("/metadata") {
        let path = text.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
        let what = format!("{who} gets 404 from the metadata service: the URL's path is not /metadata");
        match path {
            "" => {
                let remedy = format!("use {}/metadata", text.trim_end_matches('/'));
                out.error(&located.place, what, text.to_owned(), remedy);
            }
            // A server that is not Mooncake's may have another path.
            _ => out.warning(&located.place, what, text.to_owned(), "use http://HOST:PORT/metadata"),
        }
    }
}

/// A metadata server of a kind that the program's build does not support. The program aborts when
/// it starts its transfer engine.
pub(super) fn metadata_build(view: &DeploymentView<'_>, out: &mut Findings) {
    for (member, reader) in view.readers() {
        // `unsupported` reports the same for mcctl's node.
        if member.process.implementation == Implementation::Mcctl {
            continue;
        }
        for setting in settings_of(SettingType::Metadata) {
            let SettingValue::Is(located) = member.client(setting.key) else { continue };
            if !located.text.trim().to_ascii_lowercase().starts_with("redis://") {
                continue;
            }
            let who = match reader {
                SettingReader::Variables => "a client with these variables".to_owned(),
                _ => member.process.describe(),
            };
            let evidence = format!("{}; the wheels on PyPI are built with http and etcd only", located.text.trim());
            let remedy = "use P2PHANDSHAKE, http://HOST:PORT/metadata or etcd://HOST:PORT";
            match wheel_origin(member.process) {
                WheelOrigin::PyPi => out.error(
                    &located.place,
                    format!("{who} aborts at startup: the Python wheel has no plug-in for redis metadata"),
                    evidence,
                    remedy,
                ),
                WheelOrigin::Image => out.warning(
                    &located.place,
                    format!("{who} aborts at startup, unless its image has a Mooncake built with USE_REDIS"),
                    evidence,
                    remedy,
                ),
            }
        }
    }
}

/// Whether `text` contains several URLs, separated by commas.
pub(super) fn is_url_list(text: &str) -> bool {
    text.split(',').filter(|part| part.contains("://")).count() > 1
}

/// The error in the hosts and ports of an address, if it is definite.
fn address_error(text: &str) -> Option<String> {
    if text.contains(char::is_whitespace) {
        return Some("it contains a space".to_owned());
    }
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    if rest.contains("://") {
        return None;
    }
    let authority = rest.split('/').next().unwrap_or(rest);
    authority.split([',', ';']).find_map(|part| {
        let part = part.rsplit('@').next().unwrap_or(part);
        let port = match part.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?.1.strip_prefix(':')?,
            // An IPv6 address without brackets has no port.
            None if part.matches(':').count() > 1 => return None,
            None => part.split_once(':')?.1,
        };
        match port.parse::<u16>() {
            Ok(1..) => None,
            _ if port.is_empty() => Some("no port follows the colon".to_owned()),
            _ => Some(format!("{port} is not a valid port (1 to 65535)")),
        }
    })
}
