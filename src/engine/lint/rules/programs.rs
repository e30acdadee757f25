//! What the programs of mcctl refuse.

use crate::engine::lint::names::{MCCTL_FLAGS, nearest};
use crate::engine::lint::programs::{
    METADATA_FLAGS, NODE_FLAGS, NODE_TRANSPORTS, REFUSED_BY_MASTER, REFUSED_BY_NODE, UP_FLAGS,
};
use crate::engine::lint::read::launch::assignment;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Make, Role, Said};
use crate::engine::lint::settings::{Seen, Setting};

/// A flag, key or variable that `mcctl serve master` or `mcctl serve store` refuses at its start.
pub fn unsupported(view: &View<'_>, out: &mut Findings) {
    for seen in view.seen.iter().filter(|seen| seen.process.make == Make::Mcctl) {
        match seen.process.role {
            Role::Master => master(seen, out),
            Role::Store => node(seen, out),
            _ => {}
        }
    }
}

fn master(seen: &Seen<'_>, out: &mut Findings) {
    for refused in REFUSED_BY_MASTER {
        let Setting::Is(said) = seen.master(refused.name) else { continue };
        if refused.is_asked_for(&said.text) {
            out.error(
                &said.place,
                format!("mcctl serve master refuses --{}", refused.name),
                format!("{} is not supported by mcctl", refused.feature),
                format!("remove --{}, or run mooncake_master", refused.name),
            );
        }
    }
}

fn node(seen: &Seen<'_>, out: &mut Findings) {
    let mut error = |said: &Said, what: String, why: &str, remedy: &str| {
        out.error(&said.place, format!("mcctl serve store refuses {what}"), why, remedy);
    };
    for refused in REFUSED_BY_NODE {
        if let Setting::Is(said) = seen.client(refused.name)
            && refused.is_asked_for(&said.text)
        {
            let why = format!("{} is not supported by mcctl", refused.feature);
            error(&said, refused.name.to_owned(), &why, "remove it, or run mooncake_store_service");
        }
    }
    if let Some(said) = seen.protocol().filter(|said| !NODE_TRANSPORTS.contains(&said.text.as_str())) {
        let why = format!("mcctl supports the transports {}", NODE_TRANSPORTS.join(" and "));
        error(&said, format!("protocol {}", said.text), &why, "use tcp or rdma, or run mooncake_store_service");
    }
    if let Setting::Is(said) = seen.client("master_server_address")
        && let Some((scheme, _)) = said.text.split_once("://").filter(|(scheme, _)| *scheme != "http")
    {
        let why = format!("mcctl does not look a leader up in {scheme}");
        error(
            &said,
            format!("the master address {}", said.text),
            &why,
            "give HOST:PORT, or run mooncake_store_service",
        );
    }
    if let Setting::Is(said) = seen.client("metadata_server")
        && ["etcd://", "redis://"].iter().any(|scheme| said.text.trim().starts_with(scheme))
    {
        let why = "mcctl supports P2PHANDSHAKE and an HTTP metadata service";
        error(
            &said,
            format!("the metadata server {}", said.text),
            why,
            "use P2PHANDSHAKE or http://HOST:PORT/metadata",
        );
    }
}

/// A flag that `mcctl up`, `mcctl serve store` or `mcctl serve metadata` does not have. (`master-flag` judges masters.)
pub fn flags(view: &View<'_>, out: &mut Findings) {
    for seen in view.seen.iter().filter(|seen| seen.process.make == Make::Mcctl) {
        let (command, own) = match seen.process.role {
            Role::Up => ("mcctl up", UP_FLAGS),
            Role::Store => ("mcctl serve store", NODE_FLAGS),
            Role::Metadata => ("mcctl serve metadata", METADATA_FLAGS),
            _ => continue,
        };
        let known = || own.iter().chain(MCCTL_FLAGS).copied();
        for flag in seen.flags.iter().filter(|flag| !flag.spelled.contains('$')) {
            let name = flag.name.strip_prefix("no").filter(|name| known().any(|known| known == *name));
            if known().any(|known| known == name.unwrap_or(&flag.name)) {
                continue;
            }
            out.error(
                &flag.place,
                format!("{command} ends at once: it has no flag {}", flag.spelled),
                format!("{command} has no flag of that name"),
                match nearest(&flag.name, known()) {
                    Some(near) => format!("write --{}", near.replace('_', "-")),
                    None => format!("remove it; {command} --help lists all"),
                },
            );
        }
    }
}

/// What stands behind the image is for the program in it.
pub fn docker_options(view: &View<'_>, out: &mut Findings) {
    for process in &view.scene.processes {
        // `-e NAME=VALUE` among the arguments of the program: none of ours has such a flag.
        let pairs = process.args.iter().zip(process.args.iter().skip(1));
        let among = pairs.filter(|(option, value)| {
            process.habitat == Habitat::Docker && option.text == "-e" && assignment(&value.text).is_some()
        });
        let words: Vec<&Said> =
            process.misplaced.iter().chain(among.flat_map(|(option, value)| [option, value])).collect();
        let Some(first) = words.first() else { continue };
        out.error(
            &first.place,
            "options of docker run behind the image are arguments of the program",
            words.iter().map(|said| said.text.as_str()).collect::<Vec<_>>().join(" "),
            "move them before the image",
        );
    }
}
