//! What must be the same, or fit, among the clients of one store.

use std::collections::BTreeMap;

use crate::engine::lint::names::DECODE_OFFLOAD;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Make, Mode, Process, Role, Said};
use crate::engine::lint::settings::{Origin, Seen, Setting};

/// Segments are reached by the transport of their owner: one store has one transport.
pub fn protocol(view: &View<'_>, out: &mut Findings) {
    let all: Vec<(&Seen<'_>, Said, bool)> = view
        .clients()
        .filter_map(|seen| {
            let chosen = matches!(seen.client("protocol"), Setting::Is(_));
            seen.protocol().map(|said| (seen, said, chosen))
        })
        .collect();
    let known = [
        "tcp",
        "rdma",
        "efa",
        "cxl",
        "ascend",
        "nvlink",
        "nvlink_intra",
        "hip",
        "barex",
        "ub",
        "ubshmem",
        "cxi",
        "rpc_only",
        "nvmeof_generic",
        "local",
    ];
    for (seen, said, _) in all.iter().filter(|(_, said, _)| !known.contains(&said.text.as_str())) {
        out.error(
            &said.place,
            format!("{} cannot start: there is no transport '{}'", seen.process.called(), said.text),
            "the service only warns, and the engine then refuses it twenty times",
            "write tcp or rdma",
        );
    }
    let Some((first, theirs, _)) = all.iter().find(|(seen, ..)| seen.process.role == Role::Store).or(all.first())
    else {
        return;
    };
    for (seen, said, chosen) in &all {
        if said.text == theirs.text || !known.contains(&said.text.as_str()) || !known.contains(&theirs.text.as_str()) {
            continue;
        }
        // A host may run clients of several stores.
        let is_running = seen.process.habitat == Habitat::Running;
        if is_running && master_text(seen).is_none_or(|master| master_text(first).is_none_or(|other| other != master)) {
            continue;
        }
        let how = if *chosen { "" } else { ", the default" };
        let theirs_chosen = all.iter().any(|(other, _, chosen)| std::ptr::eq(*other, *first) && *chosen);
        let their_how = if theirs_chosen { "" } else { ", the default" };
        out.error(
            &said.place,
            format!(
                "{} and {} use different transports, so neither reaches what the other lends",
                seen.process.called(),
                first.process.called()
            ),
            format!("{}{how} here, {}{their_how} at {}", said.text, theirs.text, theirs.place),
            format!("set MOONCAKE_PROTOCOL={} here, or {} there", theirs.text, said.text),
        );
    }
}

/// A name by which the master is called, or that it is unknown.
fn master_text(seen: &Seen<'_>) -> Option<String> {
    match seen.client("master_server_address") {
        Setting::Is(said) => Some(said.text),
        _ => None,
    }
}

/// What decides the keys of a page: with different ones servers never find each other's pages.
fn fingerprint(seen: &Seen<'_>) -> Option<Vec<(&'static str, String, Option<Said>)>> {
    if !seen.process.args_whole {
        return None;
    }
    let mut parts = Vec::new();
    let mut part = |what: &'static str, names: &[&str], default: &str| -> Option<()> {
        let flag = seen.flag(names);
        let said = flag.and_then(|flag| flag.value.clone());
        if said.as_ref().is_some_and(|said| !said.is_known()) {
            return None;
        }
        let text = said.as_ref().map_or_else(|| default.to_owned(), |said| said.text.clone());
        parts.push((what, text, said));
        Some(())
    };
    part("--tp-size", &["tp_size", "tp", "tensor_parallel_size"], "1")?;
    part("--pp-size", &["pp_size", "pp", "pipeline_parallel_size"], "1")?;
    part("--page-size", &["page_size"], "that of its attention backend")?;
    part("--kv-cache-dtype", &["kv_cache_dtype"], "auto")?;
    let name = ["served_model_name"];
    match seen.flag(&name) {
        Some(_) => part("--served-model-name", &name, "")?,
        None => part("--model-path", &["model_path", "model"], "none")?,
    }
    let tag = seen.extra.as_ref().and_then(|node| node.get("extra_backend_tag")?.text().map(str::to_owned));
    let place = seen.flag(&["hicache_storage_backend_extra_config"]).and_then(|flag| flag.value.clone());
    parts.push(("extra_backend_tag", tag.unwrap_or_else(|| "none".to_owned()), place));
    Some(parts)
}

/// Servers of one store that are meant to share pages have the same page size, ranks, model and prefix.
pub fn same_keys(view: &View<'_>, out: &mut Findings) {
    let mut groups: BTreeMap<String, Vec<&Seen<'_>>> = BTreeMap::new();
    for seen in view.sglang().filter(|seen| seen.uses_mooncake() == Some(true)) {
        if let Some(master) = master_text(seen) {
            groups.entry(master).or_default().push(seen);
        }
    }
    for members in groups.values() {
        let Some((first, rest)) = members.split_first() else { continue };
        let Some(base) = fingerprint(first) else { continue };
        for seen in rest {
            let Some(other) = fingerprint(seen) else { continue };
            let of_model = |parts: &[(&str, String, Option<Said>)]| {
                parts
                    .iter()
                    .find(|(what, ..)| what.contains("model"))
                    .map(|(what, text, _)| (what.to_string(), text.clone()))
            };
            if of_model(&base) != of_model(&other) {
                // Another model shares nothing, and is not meant to.
                continue;
            }
            for ((what, ours, said), (_, theirs, _)) in other.iter().zip(&base) {
                if ours == theirs || what.contains("model") {
                    continue;
                }
                let place = said.as_ref().map_or(&seen.process.place, |said| &said.place);
                let prefill_only = seen.process.role != first.process.role;
                let next = if prefill_only {
                    "the same on both sides of a disaggregation, too"
                } else {
                    "the same everywhere"
                };
                out.warning(
                    place,
                    format!(
                        "{} and {} find none of each other's pages: {what} differs",
                        seen.process.called(),
                        first.process.called()
                    ),
                    format!("{what} is {ours} here, {theirs} at {}", first.process.place),
                    format!("give {what} {next}, or a store of its own"),
                );
            }
        }
    }
}

/// Flags of HiCache that do nothing alone, or that SGLang replaces.
pub fn hicache_flags(view: &View<'_>, out: &mut Findings) {
    for seen in view.sglang().filter(|seen| seen.process.habitat != Habitat::File) {
        let on = seen.switch(&["enable_hierarchical_cache", "enable_hicache", DECODE_OFFLOAD]);
        let backend = seen.flag(&["hicache_storage_backend"]);
        if let (false, Some(flag)) = (on, backend) {
            out.warning(
                &flag.place,
                format!("{} does not use the store: HiCache is off", seen.process.called()),
                "--hicache-storage-backend is given, --enable-hierarchical-cache is not",
                "add --enable-hierarchical-cache",
            );
        }
        let is_set = ["MOONCAKE_MASTER", "MOONCAKE_CLIENT"].iter().find_map(|name| seen.process.env.get(*name));
        if let (None, true, true, Some(variable)) = (backend, on, seen.process.args_whole, is_set)
            && !seen.switch(&["enable_unified_cache_external_linker"])
        {
            out.warning(
                variable.place(),
                format!("{} does not use the store: HiCache has no storage behind it", seen.process.called()),
                "MOONCAKE_MASTER is set, --hicache-storage-backend is not given",
                "add --hicache-storage-backend mooncake",
            );
        }
        layout(seen, backend.is_some_and(|flag| flag.said().text == "mooncake"), out);
        if let Some(said) = seen.value(&["hicache_storage_prefetch_policy"])
            && backend.is_some()
        {
            match said.text.as_str() {
                "best_effort" => out.warning(
                    &said.place,
                    "pages of the store are seldom used: best_effort starts to compute before they have come",
                    "--hicache-storage-prefetch-policy best_effort",
                    "write timeout, or wait_complete",
                ),
                "timeout" | "wait_complete" => {}
                other => out.error(
                    &said.place,
                    format!("SGLang ends at once: there is no prefetch policy '{other}'"),
                    "the policies are best_effort, wait_complete and timeout",
                    "write --hicache-storage-prefetch-policy timeout",
                ),
            }
        }
    }
}

fn layout(seen: &Seen<'_>, mooncake: bool, out: &mut Findings) {
    let layouts = ["layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head"];
    let Some(said) = seen.value(&["hicache_mem_layout"]) else { return };
    let layout = said.text.as_str();
    if !layouts.contains(&layout) {
        out.error(
            &said.place,
            format!("SGLang ends at once: there is no layout '{layout}'"),
            format!("the layouts are {}", layouts.join(", ")),
            "write --hicache-mem-layout page_first",
        );
        return;
    }
    let io = seen.value(&["hicache_io_backend"]).map(|said| said.text.as_str());
    if mooncake && layout == "layer_first" {
        let to = if io == Some("direct") { "page_first_direct" } else { "page_first" };
        out.warning(
            &said.place,
            "layer_first cannot be used with mooncake: SGLang takes another layout, and older releases fail",
            format!("--hicache-mem-layout layer_first, --hicache-storage-backend mooncake; it becomes {to}"),
            format!("write --hicache-mem-layout {to}"),
        );
    } else if layout == "page_first_direct" && seen.flag(&["hicache_io_backend"]).is_none() {
        out.info(
            &said.place,
            "page_first_direct is not moved by kernels: SGLang takes the direct I/O backend by itself",
            "--hicache-io-backend is not given, and kernel is its default",
            "write --hicache-io-backend direct, to say what is meant",
        );
    } else if layout == "page_first_direct" && io == Some("kernel") {
        out.warning(
            &said.place,
            "page_first_direct is not moved by kernels: SGLang takes the direct I/O backend",
            "--hicache-io-backend kernel",
            "write --hicache-io-backend direct, or --hicache-mem-layout page_first",
        );
    } else if layout == "page_first" && io == Some("direct") {
        out.warning(
            &said.place,
            "page_first is not moved by direct I/O: SGLang takes page_first_direct",
            "--hicache-io-backend direct",
            "write --hicache-mem-layout page_first_direct, or --hicache-io-backend kernel",
        );
    }
}

/// A client that is told of no master.
pub fn master_missing(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients().filter(|seen| seen.uses_mooncake() == Some(true)) {
        let process = seen.process;
        if process.role == Role::RealClient || !process.env_whole || !process.args_whole {
            continue;
        }
        let lacks = |key: &str| matches!(seen.client(key), Setting::Unset);
        if !lacks("master_server_address") || process.role.is_sglang() && !lacks("client_server_address") {
            continue;
        }
        // A settings file of the store service must have it as well.
        let what = match seen.origin {
            Origin::Environment => "MOONCAKE_MASTER is not set",
            _ => "there is no master_server_address",
        };
        out.error(
            &process.place,
            format!("{} cannot start: it is told of no master", process.called()),
            what,
            "set MOONCAKE_MASTER=HOST:50051",
        );
    }
}

/// Addresses in a form that their reader does not take.
pub fn address_form(view: &View<'_>, out: &mut Findings) {
    let bare = view.seen.iter().filter(|seen| seen.process.role == Role::Environment);
    for seen in view.clients().chain(bare) {
        if let Setting::Is(said) = seen.client("master_server_address") {
            let text = said.text.trim();
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            // `unsupported` reports what mcctl does not read.
            if seen.process.make == Make::Mcctl && scheme.is_some() {
                continue;
            }
            match scheme {
                None | Some("etcd") if wrong_address(text).is_some() => out.error(
                    &said.place,
                    format!("{} finds no master: its address is none", seen.process.called()),
                    format!("'{text}': {}", wrong_address(text).unwrap_or_default()),
                    "write HOST:PORT of the RPC port, which is 50051 by default",
                ),
                Some("etcd") if text.ends_with('/') => out.error(
                    &said.place,
                    format!("{} finds no master: the etcd address has a slash at its end", seen.process.called()),
                    format!("{text} ends in time-outs of 5 s"),
                    format!("write {}", text.trim_end_matches('/')),
                ),
                Some("etcd" | "redis" | "k8s") => {}
                Some(other) => out.error(
                    &said.place,
                    format!("{} finds no master: its address has no {other}:// before it", seen.process.called()),
                    text.to_owned(),
                    "write HOST:PORT of the RPC port, or etcd://HOST:PORT of the masters' etcd",
                ),
                None => {
                    let bare = !text.is_empty() && !text.contains(':');
                    if bare {
                        out.error(
                            &said.place,
                            format!("{} finds no master: its address has no port", seen.process.called()),
                            text.to_owned(),
                            format!("write {text}:50051"),
                        );
                    } else if text.ends_with(":9003") || text.ends_with(":8080") {
                        out.warning(
                            &said.place,
                            format!("{} asks an HTTP port as the master's RPC port", seen.process.called()),
                            format!(
                                "{text}; 9003 is the metrics port and 8080 the metadata port, unless set otherwise"
                            ),
                            "write the RPC port, which is 50051 by default",
                        );
                    }
                }
            }
        }
        if let Setting::Is(said) = seen.client("metadata_server") {
            let text = said.text.trim();
            let lower = text.to_ascii_lowercase();
            let is_known =
                ["http://", "https://", "etcd://", "redis://"].iter().any(|scheme| lower.starts_with(scheme));
            // Without a scheme it is the addresses of etcd.
            let is_etcd = !text.contains("://") && text.contains(':');
            if let Some(wrong) = wrong_address(text).filter(|_| is_etcd || lower.starts_with("http")) {
                out.error(
                    &said.place,
                    format!("{} finds no metadata service: its address is none", seen.process.called()),
                    format!("'{text}': {wrong}"),
                    "write P2PHANDSHAKE, or http://HOST:PORT/metadata",
                );
            } else if is_etcd {
                out.warning(
                    &said.place,
                    format!("{} takes '{text}' for an etcd: there is no scheme before it", seen.process.called()),
                    "a metadata server is P2PHANDSHAKE, http://HOST:PORT/metadata or etcd://HOST:PORT",
                    format!("write etcd://{text}, if etcd is meant"),
                );
            } else if !text.is_empty() && !is_known && lower != "p2phandshake" {
                out.error(
                    &said.place,
                    format!("{} finds no metadata service: '{text}' is none", seen.process.called()),
                    "it is P2PHANDSHAKE, or http://HOST:PORT/metadata, etcd:// or redis://",
                    "write P2PHANDSHAKE",
                );
            } else if text.starts_with("http") && !text.trim_end_matches('/').ends_with("/metadata") {
                out.error(
                    &said.place,
                    format!("{} gets 404 from its metadata service: the path is missing", seen.process.called()),
                    text.to_owned(),
                    format!("write {}/metadata", text.trim_end_matches('/')),
                );
            }
        }
    }
}

/// What is wrong with the hosts and ports of an address, if that is sure.
fn wrong_address(text: &str) -> Option<String> {
    if text.contains(char::is_whitespace) {
        return Some("there is a blank in it".to_owned());
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
            // Without brackets it is an address of IPv6, which has no port.
            None if part.matches(':').count() > 1 => return None,
            None => part.split_once(':')?.1,
        };
        match port.parse::<u16>() {
            Ok(1..) => None,
            _ if port.is_empty() => Some("there is no port behind the colon".to_owned()),
            _ => Some(format!("{port} is no port, which is a number from 1 to 65535")),
        }
    })
}

/// Two processes that listen on one port of one network.
pub fn port_taken(view: &View<'_>, out: &mut Findings) {
    let mut taken: BTreeMap<(String, u16), (&Process, String)> = BTreeMap::new();
    // What runs has its ports, whichever network it is in.
    let starts = |seen: &&Seen<'_>| !matches!(seen.process.habitat, Habitat::File | Habitat::Running);
    for seen in view.seen.iter().filter(starts) {
        for (port, what, place) in listens(seen) {
            let key = (seen.process.network.clone(), port);
            match taken.get(&key) {
                Some((other, theirs)) if !std::ptr::eq(*other, seen.process) => out.error(
                    &place,
                    format!("{} cannot start: its port {port} is taken in the same network", seen.process.called()),
                    format!("port {port}: {what} here, {theirs} of {} at {}", other.called(), other.place),
                    "give one of them another port",
                ),
                Some((_, theirs)) if port > 0 && seen.process.make == Make::Upstream => out.error(
                    &place,
                    format!("{} cannot start: it wants port {port} twice", seen.process.called()),
                    format!("port {port}: {what} and {theirs}"),
                    "give one of them another port",
                ),
                _ => {
                    taken.insert(key, (seen.process, what.to_owned()));
                }
            }
        }
    }
}

fn listens(seen: &Seen<'_>) -> Vec<(u16, &'static str, crate::engine::check::Place)> {
    let mut ports = Vec::new();
    let at = seen.process.place.clone();
    let mut add = |names: &[&str], default: u16, what: &'static str| {
        let place = seen.flag(names).map_or_else(|| at.clone(), |flag| flag.place.clone());
        if let Some(port) =
            seen.number(names, default.into()).and_then(|port| u16::try_from(port).ok()).filter(|p| *p > 0)
        {
            ports.push((port, what, place));
        }
    };
    match seen.process.role {
        Role::Master => {
            let place = |names: &[&str]| seen.flag(names).map_or_else(|| at.clone(), |flag| flag.place.clone());
            let rpc = seen.rpc_port().map(|port| (port, "RPC", place(&["rpc_port", "port"])));
            let admin = seen.master_port("metrics_port", 9003).map(|port| (port, "metrics", place(&["metrics_port"])));
            let metadata = (seen.master_switch("enable_http_metadata_server") == Some(true))
                .then(|| seen.master_port("http_metadata_server_port", 8080))
                .flatten()
                .map(|port| (port, "metadata", place(&["http_metadata_server_port", "enable_http_metadata_server"])));
            // A standby does not listen, and masters of one host may share what only a leader opens.
            return [rpc, admin, metadata].into_iter().flatten().filter(|(port, ..)| *port > 0).collect();
        }
        Role::Metadata => add(&["port"], 8080, "metadata"),
        Role::Store => {
            add(&["port"], 8080, "REST");
            let on = matches!(seen.client("enable_client_http_server"), Setting::Is(said) if super::kubernetes::is_yes(&said.text));
            if on {
                match seen.client("client_http_port") {
                    Setting::Is(said) => {
                        ports.extend(said.text.parse().ok().map(|port| (port, "client HTTP", said.place)))
                    }
                    Setting::Unset => ports.push((9300, "client HTTP", at)),
                    Setting::Unknown => {}
                }
            }
        }
        Role::RealClient => add(&["port"], 50052, "RPC"),
        Role::Sglang(_) if seen.number(&["node_rank"], 0) == Some(0) => {
            add(&["port"], 30000, "HTTP");
            if matches!(seen.process.role, Role::Sglang(Mode::Prefill)) {
                add(&["disaggregation_bootstrap_port"], 8998, "bootstrap");
            }
        }
        Role::Router => add(&["port"], 30000, "HTTP"),
        _ => {}
    }
    ports
}
