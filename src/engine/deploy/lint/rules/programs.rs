//! Settings that mcctl's programs reject.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, LocatedValue, ProcessRole, RuntimeKind};
use crate::lint::nearest::nearest;
use crate::lint::programs::{
    METADATA_FLAGS, NODE_FLAGS, NODE_TRANSPORTS, REFUSED_BY_MASTER, REFUSED_BY_NODE, SNAPSHOT_STORES, UP_FLAGS,
    log_flags,
};
use crate::lint::read::launch::assignment;
use crate::lint::settings::{ProcessView, SettingValue};
use crate::lint::view::DeploymentView;

/// A flag, key or variable that `mcctl serve master` or `mcctl serve store` rejects at startup.
pub(super) fn unsupported(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.implementation == Implementation::Mcctl) {
        match member.process.role {
            ProcessRole::Master => {
                master(member, out);
                snapshot_stores(member, out);
            }
            ProcessRole::Store => node(member, out),
            _ => {}
        }
    }
}

fn master(member: &ProcessView<'_>, out: &mut Findings) {
    for refused in REFUSED_BY_MASTER {
        let SettingValue::Is(located) = member.master(refused.name) else { continue };
        if refused.is_requested(&located.text) {
            out.error(
                &located.place,
                format!("mcctl serve master rejects --{}", refused.name),
                format!("{} is not supported by mcctl", refused.feature),
                format!("remove --{}, or run mooncake_master", refused.name),
            );
        }
    }
}

fn snapshot_stores(member: &ProcessView<'_>, out: &mut Findings) {
    for (name, accepted, lacking) in SNAPSHOT_STORES {
        let SettingValue::Is(located) = member.master(name) else { continue };
        if !accepted.contains(&located.text.trim()) {
            out.error(
                &located.place,
                format!("mcctl serve master rejects --{name}={}", located.text),
                format!("{lacking} is not supported by mcctl"),
                format!("remove --{name}, or run mooncake_master"),
            );
        }
    }
}

fn node(member: &ProcessView<'_>, out: &mut Findings) {
    let mut error = |located: &LocatedValue, what: String, why: &str, remedy: &str| {
        out.error(&located.place, format!("mcctl serve store rejects {what}"), why, remedy);
    };
    for refused in REFUSED_BY_NODE {
        if let SettingValue::Is(located) = member.client(refused.name)
            && refused.is_requested(&located.text)
        {
            let why = format!("{} is not supported by mcctl", refused.feature);
            error(&located, refused.name.to_owned(), &why, "remove it, or run mooncake_store_service");
        }
    }
    if let Some(located) = member.protocol().filter(|located| !NODE_TRANSPORTS.contains(&located.text.as_str())) {
        let why = format!("mcctl supports only the transports {}", NODE_TRANSPORTS.join(" and "));
        error(&located, format!("protocol {}", located.text), &why, "use tcp or rdma, or run mooncake_store_service");
    }
    if let SettingValue::Is(located) = member.client("master_server_address")
        && let Some((scheme, _)) =
            located.text.split_once("://").filter(|(scheme, _)| !["http", "etcd"].contains(scheme))
    {
        let why = format!("mcctl does not support leader lookup through {scheme}");
        error(
            &located,
            format!("the master address {}", located.text),
            &why,
            "use HOST:PORT, or etcd://HOST:PORT with the masters' etcd",
        );
    }
    if let SettingValue::Is(located) = member.client("metadata_server")
        && located.text.trim().starts_with("redis://")
    {
        let why = "mcctl supports only P2PHANDSHAKE, an HTTP metadata service, and etcd";
        error(
            &located,
            format!("the metadata server {}", located.text),
            why,
            "use P2PHANDSHAKE, http://HOST:PORT/metadata or etcd://HOST:PORT",
        );
    }
}

/// A flag that `mcctl up`, `mcctl serve store` or `mcctl serve metadata` does not support.
/// (`master-flag` covers masters.)
pub(super) fn flags(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.implementation == Implementation::Mcctl) {
        let (command, own) = match member.process.role {
            ProcessRole::Up => ("mcctl up", UP_FLAGS),
            ProcessRole::Store => ("mcctl serve store", NODE_FLAGS),
            ProcessRole::Metadata => ("mcctl serve metadata", METADATA_FLAGS),
            _ => continue,
        };
        let known = || own.iter().copied().chain(log_flags());
        for flag in member.flags.iter().filter(|flag| !flag.spelled.contains('$')) {
            let name = flag.name.strip_prefix("no").filter(|name| known().any(|known| known == *name));
            if known().any(|known| known == name.unwrap_or(&flag.name)) {
                continue;
            }
            out.error(
                &flag.place,
                format!("{command} exits at startup: unknown flag {}", flag.spelled),
                format!("{command} does not have a flag with that name"),
                match nearest(&flag.name, known()) {
                    Some(near) => format!("use --{}", near.replace('_', "-")),
                    None => format!("remove it; {command} --help lists all flags"),
                },
            );
        }
    }
}

/// Options after the image are arguments of the program in the container.
pub(super) fn docker_options(view: &DeploymentView<'_>, out: &mut Findings) {
    for process in &view.deployment.processes {
        // `-e NAME=VALUE` among the program's arguments: no supported program has such a flag.
        let pairs = process.args.iter().zip(process.args.iter().skip(1));
        let among = pairs.filter(|(option, value)| {
            process.runtime == RuntimeKind::Docker && option.text == "-e" && assignment(&value.text).is_some()
        });
        let words: Vec<&LocatedValue> =
            process.misplaced.iter().chain(among.flat_map(|(option, value)| [option, value])).collect();
        let Some(first) = words.first() else { continue };
        out.error(
            &first.place,
            "docker run options after the image are passed to the program",
            words.iter().map(|located| located.text.as_str()).collect::<Vec<_>>().join(" "),
            "move them before the image",
        );
    }
}
