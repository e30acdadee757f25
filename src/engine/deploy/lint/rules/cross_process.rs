//! Settings that must match or fit together across the processes of one store.

use std::collections::BTreeMap;

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, LocatedValue, Process, ProcessRole, RuntimeKind, SglangMode};
use crate::lint::nearest::nearest;
use crate::lint::rules::listeners::VLLM_HTTP;
use crate::lint::settings::{ProcessView, SettingReader, SettingValue, SettingsOrigin};
use crate::lint::shell::word::base_name;
use crate::lint::view::DeploymentView;
use crate::plan::models;
use mcctl_base::upstream::sglang::DECODE_OFFLOAD;
use mcctl_base::upstream::{TRANSPORTS, ports};

/// Names of networks and protocols that are not names of transports.
const NETWORKS: &[&str] =
    &["ib", "infiniband", "roce", "rocev2", "verbs", "ethernet", "eth", "ucx", "udp", "quic", "grpc", "http", "shm"];

/// A segment is reached through its owner's transport, so one store needs one transport.
pub(super) fn protocol(view: &DeploymentView<'_>, out: &mut Findings) {
    let known = |located: &LocatedValue| TRANSPORTS.contains(&located.text.as_str());
    for (member, reader) in view.readers() {
        let SettingValue::Is(_) = member.client("protocol") else { continue };
        let Some(located) = member.protocol().filter(|located| !known(located) && !located.text.is_empty()) else {
            continue;
        };
        let evidence = match reader {
            SettingReader::Service => "the service only logs a warning; the engine then rejects the transport 20 times",
            _ => "the transfer engine has no transport with that name",
        };
        let near = nearest(&located.text, TRANSPORTS.iter().copied().filter(|name| name.len() > 2));
        let remedy = near.map_or_else(|| "use tcp or rdma".to_owned(), |near| format!("use {near}"));
        let who = member.process.describe();
        // A build of one's own may have a transport of its own. It is not named like a network.
        if near.is_some() || NETWORKS.contains(&located.text.as_str()) {
            let what = format!("{who} cannot start: unknown transport '{}'", located.text);
            out.error(&located.place, what, evidence, remedy);
        } else {
            let what = format!("{who} cannot start, unless its build has a transport '{}'", located.text);
            out.warning(&located.place, what, evidence, remedy);
        }
    }
    let all: Vec<(&ProcessView<'_>, LocatedValue, bool)> = view
        .store_users()
        .filter_map(|member| {
            let chosen = matches!(member.client("protocol"), SettingValue::Is(_));
            member.protocol().filter(known).map(|located| (member, located, chosen))
        })
        .collect();
    let Some((first, theirs, _)) =
        all.iter().find(|(member, ..)| member.process.role == ProcessRole::Store).or(all.first())
    else {
        return;
    };
    for (member, located, chosen) in &all {
        // A host may run clients of several stores, and a directory may have settings for several.
        let other_store = match (master_text(member), master_text(first)) {
            (Some(ours), Some(theirs)) => ours != theirs,
            _ => member.process.runtime == RuntimeKind::Running,
        };
        if located.text == theirs.text || other_store || !member.process.surely_meets(first.process) {
            continue;
        }
        let how = if *chosen { "" } else { " (default)" };
        let theirs_chosen = all.iter().any(|(other, _, chosen)| std::ptr::eq(*other, *first) && *chosen);
        let their_how = if theirs_chosen { "" } else { " (default)" };
        out.error(
            &located.place,
            format!(
                "{} and {} use different transports, so neither can reach the other's memory",
                member.process.describe(),
                first.process.describe()
            ),
            format!("{}{how} here, {}{their_how} at {}", located.text, theirs.text, theirs.place),
            format!("set MOONCAKE_PROTOCOL={} here, or {} for the other process", theirs.text, located.text),
        );
    }
}

/// The master address of a client, if known.
fn master_text(member: &ProcessView<'_>) -> Option<String> {
    match member.client("master_server_address") {
        SettingValue::Is(located) => Some(located.text),
        _ => None,
    }
}

/// The settings that determine page keys. Servers with different values cannot read each other's
/// pages.
fn fingerprint(member: &ProcessView<'_>) -> Option<Vec<(&'static str, String, Option<LocatedValue>)>> {
    if !member.process.args_whole {
        return None;
    }
    let mut parts = Vec::new();
    let mut part = |what: &'static str, names: &[&str], default: &str| -> Option<()> {
        let flag = member.flag(names);
        let located = flag.and_then(|flag| flag.value.clone());
        if located.as_ref().is_some_and(|located| !located.is_known()) {
            return None;
        }
        let text = located.as_ref().map_or_else(|| default.to_owned(), |located| located.text.clone());
        parts.push((what, text, located));
        Some(())
    };
    part("--pp-size", &["pp_size", "pp", "pipeline_parallel_size"], "1")?;
    part("--page-size", &["page_size"], "the attention backend's default")?;
    part("--kv-cache-dtype", &["kv_cache_dtype"], "auto")?;
    let name = ["served_model_name"];
    match member.flag(&name) {
        Some(_) => part("--served-model-name", &name, "")?,
        None => part("--model-path", &["model_path", "model"], "none")?,
    }
    parts.push(attention_tp(member)?);
    let tag = member.extra.as_ref().and_then(|node| node.get("extra_backend_tag")?.text().map(str::to_owned));
    let place = member.flag(&["hicache_storage_backend_extra_config"]).and_then(|flag| flag.value.clone());
    parts.push(("extra_backend_tag", tag.unwrap_or_else(|| "none".to_owned()), place));
    Some(parts)
}

/// The name of the part that [`attention_tp`] returns.
const ATTENTION_TP: &str = "the attention TP size";

/// The number of ranks among which the attention heads are split, and where it is set. With DP
/// attention, each replica has a part of the ranks. Empty if pages do not depend on it.
fn attention_tp(member: &ProcessView<'_>) -> Option<(&'static str, String, Option<LocatedValue>)> {
    const TP: &[&str] = &["tp_size", "tp", "tensor_parallel_size"];
    let tp = member.number(TP, 1)?;
    let place = member.flag(TP).and_then(|flag| flag.value.clone());
    let is_split = member.switch(&["enable_dp_attention"]);
    let dp = if is_split { member.number(&["dp_size", "dp", "data_parallel_size"], 1)? } else { 1 };
    let cp = member.number(&["attn_cp_size", "attention_context_parallel_size"], 1)?;
    // The latent rows of MLA are the same on every rank, and tp_lcm_size divides the pages of
    // servers with different sizes alike.
    let model = member.value(&["model_path", "model"]).map_or("", |located| base_name(&located.text));
    let is_latent = models::by_name(model).is_ok_and(|known| known.geometry.is_latent());
    if is_latent || member.extra.as_ref().is_some_and(|extra| extra.get("tp_lcm_size").is_some()) {
        return Some((ATTENTION_TP, String::new(), place));
    }
    let ranks = tp.checked_div(dp)?.checked_div(cp)?;
    Some((ATTENTION_TP, ranks.to_string(), place))
}

/// Servers of one store that should share pages need the same page size, ranks, model and prefix.
pub(super) fn same_keys(view: &DeploymentView<'_>, out: &mut Findings) {
    let mut groups: BTreeMap<String, Vec<&ProcessView<'_>>> = BTreeMap::new();
    for member in view.sglang().filter(|member| member.uses_mooncake() == Some(true)) {
        if let Some(master) = master_text(member) {
            groups.entry(master).or_default().push(member);
        }
    }
    for members in groups.values() {
        let Some((first, rest)) = members.split_first() else { continue };
        let Some(base) = fingerprint(first) else { continue };
        for member in rest {
            let Some(other) = fingerprint(member).filter(|_| member.process.surely_meets(first.process)) else {
                continue;
            };
            let of_model = |parts: &[(&str, String, Option<LocatedValue>)]| {
                parts
                    .iter()
                    .find(|(what, ..)| what.contains("model"))
                    .map(|(what, text, _)| (what.to_string(), text.clone()))
            };
            if of_model(&base) != of_model(&other) {
                // Servers with different models share no pages, which is intended.
                continue;
            }
            for ((what, ours, located), (_, theirs, _)) in other.iter().zip(&base) {
                if ours == theirs || what.contains("model") || ours.is_empty() || theirs.is_empty() {
                    continue;
                }
                let place = located.as_ref().map_or(&member.process.place, |located| &located.place);
                let prefill_only = member.process.role != first.process.role;
                let next = if prefill_only {
                    "the same value on both sides of a disaggregated deployment"
                } else {
                    "the same value everywhere"
                };
                out.warning(
                    place,
                    format!(
                        "{} and {} cannot read each other's pages: {what} differs",
                        member.process.describe(),
                        first.process.describe()
                    ),
                    format!("{what} is {ours} here, {theirs} at {}", first.process.place),
                    match *what {
                        ATTENTION_TP => {
                            format!("set --tp-size, and --dp-size with --enable-dp-attention, to {next}, or use separate stores")
                        }
                        what => format!("set {what} to {next}, or use separate stores"),
                    },
                );
            }
        }
    }
}

/// HiCache flags that have no effect on their own, or whose values SGLang replaces.
pub(super) fn hicache_flags(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.sglang().filter(|member| member.process.runtime != RuntimeKind::File) {
        let on = member.switch(&["enable_hierarchical_cache", "enable_hicache", DECODE_OFFLOAD]);
        let backend = member.flag(&["hicache_storage_backend"]);
        if let (false, true, Some(flag)) = (on, member.process.args_whole, backend) {
            out.warning(
                &flag.place,
                format!("{} does not use the store: HiCache is off", member.process.describe()),
                "--hicache-storage-backend is set, but --enable-hierarchical-cache is not",
                "add --enable-hierarchical-cache",
            );
        }
        let is_set = ["MOONCAKE_MASTER", "MOONCAKE_CLIENT"].iter().find_map(|name| member.process.env.get(*name));
        if let (None, true, true, Some(variable)) = (backend, on, member.process.args_whole, is_set)
            && !member.switch(&["enable_unified_cache_external_linker"])
        {
            out.warning(
                variable.place(),
                format!("{} does not use the store: HiCache has no storage backend", member.process.describe()),
                "MOONCAKE_MASTER is set, but --hicache-storage-backend is not",
                "add --hicache-storage-backend mooncake",
            );
        }
        layout(member, out);
        if let Some(located) = member.value(&["hicache_storage_prefetch_policy"])
            && backend.is_some()
        {
            match located.text.as_str() {
                "best_effort" => out.warning(
                    &located.place,
                    "pages in the store are seldom used: with best_effort, SGLang starts computing before they arrive",
                    "--hicache-storage-prefetch-policy best_effort",
                    "use timeout or wait_complete",
                ),
                "timeout" | "wait_complete" => {}
                other => out.error(
                    &located.place,
                    format!("SGLang exits at startup: unknown prefetch policy '{other}'"),
                    "valid policies are best_effort, wait_complete and timeout",
                    "use --hicache-storage-prefetch-policy timeout",
                ),
            }
        }
    }
}

fn layout(member: &ProcessView<'_>, out: &mut Findings) {
    let layouts = ["layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head"];
    let Some(located) = member.value(&["hicache_mem_layout"]) else { return };
    let layout = located.text.as_str();
    if !layouts.contains(&layout) {
        out.error(
            &located.place,
            format!("SGLang exits at startup: unknown memory layout '{layout}'"),
            format!("valid layouts are {}", layouts.join(", ")),
            "use --hicache-mem-layout page_first",
        );
        return;
    }
    let io = member.value(&["hicache_io_backend"]).map(|located| located.text.as_str());
    let to = if io == Some("direct") { "page_first_direct" } else { "page_first" };
    let is_dynamic = member.value(&["hicache_storage_backend"]).is_some_and(|backend| backend.text == "dynamic");
    if is_dynamic && member.has_mooncake_backend() && layout == "layer_first" {
        out.error(
            &located.place,
            "layer_first does not work with mcctl's client: models without MLA fail at startup",
            "--hicache-mem-layout layer_first with --hicache-storage-backend dynamic; SGLang does not replace it",
            format!("use --hicache-mem-layout {to}"),
        );
    } else if member.has_mooncake_backend() && layout == "layer_first" {
        out.warning(
            &located.place,
            "layer_first does not work with mooncake: SGLang substitutes another layout, and older releases fail",
            format!("--hicache-mem-layout layer_first with --hicache-storage-backend mooncake; SGLang uses {to}"),
            format!("use --hicache-mem-layout {to}"),
        );
    } else if layout == "page_first_direct" && member.flag(&["hicache_io_backend"]).is_none() {
        out.info(
            &located.place,
            "the kernel I/O backend does not support page_first_direct: SGLang switches to direct",
            "--hicache-io-backend is not set, and its default is kernel",
            "use --hicache-io-backend direct to make this explicit",
        );
    } else if layout == "page_first_direct" && io == Some("kernel") {
        out.warning(
            &located.place,
            "the kernel I/O backend does not support page_first_direct: SGLang switches to direct",
            "--hicache-io-backend kernel",
            "use --hicache-io-backend direct, or --hicache-mem-layout page_first",
        );
    } else if layout == "page_first" && io == Some("direct") {
        out.warning(
            &located.place,
            "direct I/O does not support page_first: SGLang switches to page_first_direct",
            "--hicache-io-backend direct",
            "use --hicache-mem-layout page_first_direct, or --hicache-io-backend kernel",
        );
    }
}

/// A client without a master address.
pub(super) fn master_missing(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.clients().filter(|member| member.uses_mooncake() == Some(true)) {
        let process = member.process;
        if process.role == ProcessRole::RealClient || !process.env_whole || !process.args_whole {
            continue;
        }
        let lacks = |key: &str| matches!(member.client(key), SettingValue::Unset);
        if !lacks("master_server_address") || process.role.is_sglang() && !lacks("client_server_address") {
            continue;
        }
        // The same applies to a store service's settings file.
        let what = match member.origin {
            SettingsOrigin::Environment => "MOONCAKE_MASTER is not set",
            _ => "master_server_address is missing",
        };
        out.error(
            &process.place,
            format!("{} cannot start: no master address is set", process.describe()),
            what,
            "set MOONCAKE_MASTER=HOST:50051",
        );
    }
}

/// A process that listens on a port: what the port is for, and the address if it is a certain one.
type PortUser<'a> = (&'a Process, &'static str, Option<String>);

/// Two processes that listen on the same port in one network namespace.
pub(super) fn port_taken(view: &DeploymentView<'_>, out: &mut Findings) {
    let mut taken: BTreeMap<(String, u16), Vec<PortUser<'_>>> = BTreeMap::new();
    // Running processes have already bound their ports.
    let starts =
        |member: &&ProcessView<'_>| !matches!(member.process.runtime, RuntimeKind::File | RuntimeKind::Running);
    for member in view.member.iter().filter(starts) {
        let address = listening_address(member);
        for (port, what, place) in listening_ports(member) {
            let key = (member.process.network.clone(), port);
            let users = taken.entry(key).or_default();
            let own = users.iter().find(|(other, ..)| std::ptr::eq(*other, member.process));
            let is_apart = |theirs: &Option<String>| matches!((theirs, &address), (Some(a), Some(b)) if a != b);
            let other =
                users.iter().find(|(other, _, theirs)| other.surely_overlaps(member.process) && !is_apart(theirs));
            let reuses = |process: &Process| process.role == ProcessRole::Vllm;
            match (other, own) {
                // vLLM sets SO_REUSEPORT, so both servers start.
                (Some((other, ..)), None) if reuses(other) && reuses(member.process) => out.warning(
                    &place,
                    format!(
                        "{} and {} share port {port}: each connection reaches one of them, by chance",
                        member.process.describe(),
                        other.describe()
                    ),
                    format!("port {port}: HTTP here and at {}; vLLM opens it with SO_REUSEPORT", other.place),
                    "use a different port for one of them",
                ),
                (Some((other, theirs, _)), None) => out.error(
                    &place,
                    format!(
                        "{} cannot start: port {port} is already used in the same network namespace",
                        member.process.describe()
                    ),
                    format!("port {port}: {what} here, {theirs} of {} at {}", other.describe(), other.place),
                    "use a different port for one of them",
                ),
                (_, Some((_, theirs, _))) if port > 0 && member.process.implementation == Implementation::Upstream => {
                    out.error(
                        &place,
                        format!("{} cannot start: it uses port {port} twice", member.process.describe()),
                        format!("port {port}: {what} and {theirs}"),
                        "use a different port for one of them",
                    )
                }
                _ => users.push((member.process, what, address.clone())),
            }
        }
    }
}

/// The address that a process listens on, if it is a certain one. Another process may use the same
/// port at another address.
fn listening_address(member: &ProcessView<'_>) -> Option<String> {
    let names: &[&str] = match member.process.role {
        ProcessRole::Master => &["rpc_address", "rpc-address"],
        ProcessRole::Up => &["bind", "host"],
        _ => &["host"],
    };
    let text = member.value(names)?.text.trim().to_owned();
    let is_any = matches!(text.as_str(), "" | "0.0.0.0" | "::" | "[::]" | "localhost");
    (!is_any).then_some(text)
}

fn listening_ports(member: &ProcessView<'_>) -> Vec<(u16, &'static str, mcctl_base::check::SourceLocation)> {
    let mut ports = Vec::new();
    let at = member.process.place.clone();
    let mut add = |names: &[&str], default: u16, what: &'static str| {
        let place = member.flag(names).map_or_else(|| at.clone(), |flag| flag.place.clone());
        if let Some(port) =
            member.number(names, default.into()).and_then(|port| u16::try_from(port).ok()).filter(|p| *p > 0)
        {
            ports.push((port, what, place));
        }
    };
    match member.process.role {
        ProcessRole::Master => {
            let place = |names: &[&str]| member.flag(names).map_or_else(|| at.clone(), |flag| flag.place.clone());
            let rpc = member.rpc_port().map(|port| (port, "RPC", place(&["rpc_port", "port"])));
            let admin = member.master_port("metrics_port").map(|port| (port, "metrics", place(&["metrics_port"])));
            let metadata = (member.master_switch("enable_http_metadata_server") == Some(true))
                .then(|| member.master_port("http_metadata_server_port"))
                .flatten()
                .map(|port| (port, "metadata", place(&["http_metadata_server_port", "enable_http_metadata_server"])));
            // A standby does not listen, and masters on one host may share a port that only the
            // leader opens.
            return [rpc, admin, metadata].into_iter().flatten().filter(|(port, ..)| *port > 0).collect();
        }
        ProcessRole::Metadata => add(&["port"], ports::METADATA, "metadata"),
        ProcessRole::Store => {
            add(&["port"], ports::STORE_REST, "REST");
            let on = matches!(member.client("enable_client_http_server"), SettingValue::Is(located) if super::kubernetes::is_yes(&located.text));
            if on {
                match member.client("client_http_port") {
                    SettingValue::Is(located) => {
                        ports.extend(located.text.parse().ok().map(|port| (port, "client HTTP", located.place)))
                    }
                    SettingValue::Unset => ports.push((ports::CLIENT_HTTP, "client HTTP", at)),
                    SettingValue::Unknown => {}
                }
            }
        }
        ProcessRole::RealClient => add(&["port"], ports::CLIENT_RPC, "RPC"),
        // A settings file may set the port.
        ProcessRole::Sglang(_) | ProcessRole::Vllm
            if member.flag(&["config"]).is_some() && member.flag(&["port"]).is_none() => {}
        ProcessRole::Vllm => {
            let is_first = member.number(&["node_rank"], 0) == Some(0);
            if is_first && !member.switch(&["headless"]) && member.flag(&["uds"]).is_none() {
                add(&["port"], VLLM_HTTP, "HTTP");
            }
        }
        ProcessRole::Sglang(_) if member.number(&["node_rank"], 0) == Some(0) => {
            add(&["port"], 30000, "HTTP");
            if matches!(member.process.role, ProcessRole::Sglang(SglangMode::Prefill)) {
                add(&["disaggregation_bootstrap_port"], 8998, "bootstrap");
            }
        }
        ProcessRole::Router => add(&["port"], 30000, "HTTP"),
        _ => {}
    }
    ports
}
