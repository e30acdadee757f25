//! What must hold between the values of a deployment file before any process is planned.

use std::net::IpAddr;

use crate::engine::base::addr::host_is_loopback;
use crate::engine::base::text::Quoted;
use crate::engine::deploy::error::wrong;
use crate::engine::deploy::{
    DeployError, Deployment, Ground, HugePageSize, MetadataKind, Mode, Programs, Protocol, Release, Size,
};
use crate::engine::kube::text;

/// Hosts of one list, and replicas.
const COUNT_MAX: usize = 4096;
/// The longest name: it stands before `-prefill-1000` in names of at most 63 characters.
const NAME_MAX: usize = 40;
/// What a master takes without any keys.
const MASTER_MEMORY_MIN: Size = Size(64 << 20);
/// Values that SGLang 0.5.23 takes, `sglang/srt/arg_groups/fields/memory.py`. `layer_first` cannot use Mooncake.
const LAYOUTS: &[&str] = &["page_first", "page_first_direct", "page_first_kv_split", "page_head"];
const IO_BACKENDS: &[&str] = &["direct", "kernel", "kernel_ascend"];
const WRITE_POLICIES: &[&str] = &["write_back", "write_through", "write_through_selective"];
const PREFETCH_POLICIES: &[&str] = &["best_effort", "wait_complete", "timeout"];

/// Check `wanted` for `ground`.
///
/// # Errors
/// The first thing that is wrong.
pub(crate) fn check(wanted: &Deployment, ground: Ground) -> Result<(), DeployError> {
    texts(wanted)?;
    numbers(wanted)?;
    master(wanted)?;
    programs(wanted)?;
    transfer(wanted)?;
    lending(wanted, ground)?;
    serving(wanted)?;
    if ground == Ground::Hosts { hosts(wanted) } else { cluster(wanted) }
}

fn texts(wanted: &Deployment) -> Result<(), DeployError> {
    if wanted.version != 1 {
        return Err(wrong("version", format!("{} is not known, only 1", wanted.version)));
    }
    let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = &wanted.name;
    if name.is_empty()
        || name.len() > NAME_MAX
        || !name.chars().all(label)
        || name.starts_with(|c: char| !c.is_ascii_lowercase())
        || name.ends_with('-')
    {
        let what = format!("{} is not a DNS label of at most {NAME_MAX} characters (a-z, 0-9, -)", Quoted(name));
        return Err(wrong("name", what));
    }
    let model = &wanted.model;
    if model.path.is_empty() {
        return Err(wrong("model.path", "name the folder of a model or its name on the hub"));
    }
    for (key, value) in [("model.path", &model.path), ("model.served_name", &model.served_name)] {
        if value.starts_with('-') {
            return Err(wrong(key, format!("{} would be read as a flag", Quoted(value))));
        }
    }
    // It stands on both sides of a ':' where containers mount it.
    if model.path.starts_with('/') && model.path.contains(':') {
        return Err(wrong("model.path", format!("{} has a ':'", Quoted(&model.path))));
    }
    for (key, value, known) in [
        ("model.layout", &model.layout, LAYOUTS),
        ("model.io_backend", &model.io_backend, IO_BACKENDS),
        ("model.write_policy", &model.write_policy, WRITE_POLICIES),
        ("model.prefetch_policy", &model.prefetch_policy, PREFETCH_POLICIES),
    ] {
        if !known.contains(&value.as_str()) {
            let mut what = format!("{} is none of {}", Quoted(value), known.join(", "));
            if value == "layer_first" {
                what.push_str("; a Mooncake store needs the keys of a page together");
            }
            return Err(wrong(key, what));
        }
    }
    // These go into units, scripts and manifests; none of those has a line break or a NUL in a word.
    let words: [(&'static str, Vec<&String>); 12] = [
        ("model.path", vec![&model.path]),
        ("model.served_name", vec![&model.served_name]),
        ("model.extra_args", model.extra_args.iter().collect()),
        ("model.env", model.env.iter().flat_map(|(name, value)| [name, value]).collect()),
        ("master.extra_flags", wanted.master.extra_flags.iter().collect()),
        ("transfer.devices", wanted.transfer.devices.iter().collect()),
        ("serving.router.extra_args", wanted.serving.router.extra_args.iter().collect()),
        ("serving.ib_devices", wanted.serving.ib_devices.iter().collect()),
        ("host", vec![&wanted.host.bin_dir, &wanted.host.python, &wanted.host.user]),
        ("images", vec![&wanted.images.sglang, &wanted.images.store, &wanted.images.router, &wanted.images.mcctl]),
        ("metadata.url", vec![&wanted.metadata.url]),
        ("kubernetes.model_mount", vec![&wanted.kubernetes.model_mount]),
    ];
    for (key, values) in words {
        if let Some(bad) = values.iter().find(|value| value.chars().any(char::is_control)) {
            return Err(wrong(key, format!("{} has a control character", Quoted(bad))));
        }
    }
    for name in model.env.keys() {
        let head = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !head || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(wrong("model.env", format!("{} is not the name of a variable", Quoted(name))));
        }
    }
    for device in wanted.transfer.devices.iter().chain(&wanted.serving.ib_devices) {
        if device.is_empty() || !device.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c)) {
            return Err(wrong("transfer.devices", format!("{} is not the name of a device", Quoted(device))));
        }
    }
    let ssd = &wanted.nodes.ssd_path;
    if !ssd.is_empty() && (!is_path(ssd) || ssd.split('/').any(|part| part == "..")) {
        return Err(wrong("nodes.ssd_path", format!("{} is not an absolute path without '..'", Quoted(ssd))));
    }
    let (python, user) = (&wanted.host.python, &wanted.host.user);
    if python.is_empty() || python.starts_with('-') {
        return Err(wrong("host.python", format!("{} is no program", Quoted(python))));
    }
    let in_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if user.starts_with('-') || !user.chars().all(in_name) {
        return Err(wrong("host.user", format!("{} is not the name of a user", Quoted(user))));
    }
    let bin_dir = &wanted.host.bin_dir;
    if !bin_dir.is_empty() && !is_path(bin_dir) {
        return Err(wrong("host.bin_dir", format!("{} is not an absolute path", Quoted(bin_dir))));
    }
    Ok(())
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.chars().all(|c| c.is_alphanumeric() || "/_-.+@".contains(c))
}

fn numbers(wanted: &Deployment) -> Result<(), DeployError> {
    let (master, serving) = (&wanted.master, &wanted.serving);
    for (key, port) in [
        ("master.rpc_port", master.rpc_port),
        ("master.admin_port", master.admin_port),
        ("metadata.port", wanted.metadata.port),
        ("nodes.rest_port", wanted.nodes.rest_port),
        ("nodes.client_http_port", wanted.nodes.client_http_port),
        ("serving.port", serving.port),
        ("serving.dist_port", serving.dist_port),
        ("serving.bootstrap_port", serving.bootstrap_port),
        ("serving.router.port", serving.router.port),
    ] {
        if port == 0 {
            return Err(wrong(key, "0 is no port that others could know"));
        }
    }
    for (key, value) in [
        ("model.tp", wanted.model.tp),
        ("model.page_size", wanted.model.page_size),
        ("master.client_ttl_s", master.client_ttl_s),
        ("master.lease_ttl_ms", master.lease_ttl_ms),
        ("master.rpc_threads", master.rpc_threads.into()),
        ("serving.replicas", serving.replicas.into()),
        ("serving.nnodes", serving.nnodes.into()),
        ("serving.prefill.replicas", serving.prefill.replicas.into()),
        ("serving.decode.replicas", serving.decode.replicas.into()),
    ] {
        if value == 0 {
            return Err(wrong(key, "must be at least 1"));
        }
        if value > u64::from(u32::MAX) {
            return Err(wrong(key, "is absurdly large"));
        }
    }
    for (key, count) in [
        ("serving.replicas", serving.replicas),
        ("serving.nnodes", serving.nnodes),
        ("serving.prefill.replicas", serving.prefill.replicas),
        ("serving.decode.replicas", serving.decode.replicas),
        ("nodes.replicas", wanted.nodes.replicas),
        ("master.ha.replicas", master.ha.as_ref().map_or(0, |ha| ha.replicas)),
        ("master.rpc_threads", master.rpc_threads),
        ("kubernetes.rdma_count", wanted.kubernetes.rdma_count),
    ] {
        if count as usize > COUNT_MAX {
            return Err(wrong(key, format!("{count} are more than {COUNT_MAX}")));
        }
    }
    if !(master.high_watermark > 0.0 && master.high_watermark <= 1.0) {
        return Err(wrong("master.high_watermark", "must be more than 0 and at most 1"));
    }
    if master.memory < MASTER_MEMORY_MIN {
        return Err(wrong("master.memory", format!("a master takes {MASTER_MEMORY_MIN} at least")));
    }
    if wanted.model.hicache_ratio.is_some_and(|ratio| !(ratio > 0.0 && ratio.is_finite())) {
        return Err(wrong("model.hicache_ratio", "must be a positive number"));
    }
    if wanted.model.hicache_size_gb.is_some() && wanted.model.hicache_ratio.is_some() {
        return Err(wrong("model.hicache_ratio", "hicache_size_gb is there, too; SGLang then ignores the ratio"));
    }
    if wanted.model.hicache_size_gb == Some(0) {
        return Err(wrong("model.hicache_size_gb", "0 means the ratio to SGLang; write hicache_ratio"));
    }
    Ok(())
}

fn master(wanted: &Deployment) -> Result<(), DeployError> {
    let master = &wanted.master;
    let embedded = wanted.metadata.kind == MetadataKind::Http && wanted.metadata.url.is_empty();
    let url = &wanted.metadata.url;
    if !url.is_empty() && wanted.metadata.kind != MetadataKind::Http {
        return Err(wrong("metadata.url", "is not used with kind p2p"));
    }
    if !url.is_empty() && !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(wrong("metadata.url", format!("{} is not an http URL", Quoted(url))));
    }
    let Some(ha) = &master.ha else {
        return Ok(());
    };
    if ha.etcd.is_empty() {
        return Err(wrong("master.ha.etcd", "name the members of etcd as HOST:PORT"));
    }
    for member in &ha.etcd {
        let good = crate::engine::base::HostPort::split(member)
            .is_ok_and(|(host, port)| is_host(&host) && port.is_some_and(|port| port > 0));
        if !good {
            let what = format!("{} is not HOST:PORT, without http:// and a slash at the end", Quoted(member));
            return Err(wrong("master.ha.etcd", what));
        }
    }
    let id = &ha.cluster_id;
    if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        return Err(wrong("master.ha.cluster_id", format!("{} is not a plain word", Quoted(id))));
    }
    if ha.oplog && wanted.mooncake < Release::V0_3_13Post1 {
        let what = format!("release {} has no oplog yet; a fail-over loses all keys", wanted.mooncake.text());
        return Err(wrong("master.ha.oplog", what));
    }
    if embedded {
        let what = "the service within a master ends with it; use p2p, or a url elsewhere, with high availability";
        return Err(wrong("metadata.kind", what));
    }
    Ok(())
}

fn programs(wanted: &Deployment) -> Result<(), DeployError> {
    if wanted.programs == Programs::Upstream {
        return Ok(());
    }
    let not_there = if wanted.master.ha.is_some() {
        Some(("master.ha", "mcctl's master has no high availability yet; use programs = \"upstream\""))
    } else if !wanted.nodes.ssd_path.is_empty() {
        Some(("nodes.ssd_path", "mcctl's nodes have no SSD tier yet; use programs = \"upstream\""))
    } else {
        None
    };
    not_there.map_or(Ok(()), |(key, what)| Err(wrong(key, what)))
}

fn transfer(wanted: &Deployment) -> Result<(), DeployError> {
    let transfer = &wanted.transfer;
    match transfer.protocol {
        Protocol::Rdma if transfer.devices.is_empty() => Err(wrong(
            "transfer.devices",
            "rdma without devices becomes TCP where none is found, without an error; name them (mcctl devices lists them)",
        )),
        Protocol::Tcp if !transfer.devices.is_empty() => Err(wrong(
            "transfer.devices",
            "they are not used with protocol tcp; remove them or set protocol = \"rdma\"",
        )),
        Protocol::Tcp if transfer.gid_index.is_some() => {
            Err(wrong("transfer.gid_index", "it is not used with protocol tcp"))
        }
        _ if transfer.nic_nodes == 0 || transfer.nic_nodes > 64 => {
            Err(wrong("transfer.nic_nodes", "must be from 1 to 64"))
        }
        _ => Ok(()),
    }
}

fn lending(wanted: &Deployment, ground: Ground) -> Result<(), DeployError> {
    let nodes = &wanted.nodes;
    let count = if ground == Ground::Hosts { nodes.hosts.len() } else { nodes.replicas as usize + nodes.hosts.len() };
    if wanted.segment.engines.0 == 0 && count == 0 {
        return Err(wrong("segment.engines", "nobody lends memory to the store: give engines a size, or add nodes"));
    }
    if count > 0 && nodes.segment.0 == 0 {
        return Err(wrong("nodes.segment", "a node that lends nothing is of no use"));
    }
    let mut numa = nodes.numa.clone();
    numa.sort_unstable();
    numa.dedup();
    if numa.len() != nodes.numa.len() || numa.iter().any(|node| *node > 1023) {
        return Err(wrong("nodes.numa", "name each NUMA node once"));
    }
    let span = u16::try_from(nodes.numa.len().max(1)).unwrap_or(u16::MAX);
    if nodes.rest_port.checked_add(span).is_none() || nodes.client_http_port.checked_add(span).is_none() {
        return Err(wrong("nodes.rest_port", "the ports of further NUMA nodes do not fit behind it"));
    }
    if wanted.hugepages.size != HugePageSize::None
        && wanted.model.hicache_size_gb.is_none()
        && wanted.model.device_tokens.is_none()
    {
        let what = "pages must be counted beforehand: give hicache_size_gb, or device_tokens for the ratio";
        return Err(wrong("hugepages.size", what));
    }
    Ok(())
}

fn serving(wanted: &Deployment) -> Result<(), DeployError> {
    let serving = &wanted.serving;
    match serving.mode {
        Mode::Distributed if serving.nnodes < 2 => {
            Err(wrong("serving.nnodes", "a distributed server is over 2 hosts or more; else use mode = \"single\""))
        }
        Mode::Single | Mode::Pd if serving.nnodes != 1 => {
            Err(wrong("serving.nnodes", "only mode = \"distributed\" has servers over several hosts"))
        }
        _ => Ok(()),
    }
}

/// A name or an address, fit for a URL, a script and the name of a folder.
fn is_host(host: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let label = |label: &str| !label.is_empty() && !label.starts_with('-') && label.chars().all(word);
    host.len() <= 253 && (host.split('.').all(label) || host.parse::<IpAddr>().is_ok())
}

fn hosts(wanted: &Deployment) -> Result<(), DeployError> {
    let (master, serving) = (&wanted.master, &wanted.serving);
    let mut lists: Vec<(&'static str, Vec<&String>, bool)> = vec![
        ("master.hosts", master.hosts.iter().collect(), true),
        ("nodes.hosts", wanted.nodes.hosts.iter().collect(), false),
    ];
    if serving.mode == Mode::Pd {
        lists.push(("serving.prefill.hosts", serving.prefill.hosts.iter().collect(), true));
        lists.push(("serving.decode.hosts", serving.decode.hosts.iter().collect(), true));
        lists.push(("serving.router.host", vec![&serving.router.host], true));
    } else {
        lists.push(("serving.hosts", serving.hosts.iter().collect(), true));
    }
    let mut loopback: Option<(&'static str, &String)> = None;
    let mut outside: Option<(&'static str, &String)> = None;
    for (key, list, needed) in &lists {
        if *needed && list.is_empty() {
            return Err(wrong(key, "name at least one host"));
        }
        if list.len() > COUNT_MAX {
            return Err(wrong(key, format!("{} hosts are more than {COUNT_MAX}", list.len())));
        }
        for &host in list {
            if !is_host(host) {
                return Err(wrong(key, format!("{} is not the name or address of a host", Quoted(host))));
            }
            if host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
                return Err(wrong(key, format!("{host} is no address that others can reach")));
            }
            let seen = if host_is_loopback(host) { &mut loopback } else { &mut outside };
            seen.get_or_insert((key, host));
        }
    }
    if let (Some((key, inside)), Some((_, other))) = (loopback, outside) {
        return Err(wrong(key, format!("{inside} is reached from its own host only, and {other} is another one")));
    }
    if serving.mode == Mode::Distributed && !serving.hosts.len().is_multiple_of(serving.nnodes as usize) {
        let what = format!("{} hosts are not {} for every server", serving.hosts.len(), serving.nnodes);
        return Err(wrong("serving.hosts", what));
    }
    match &master.ha {
        None if master.hosts.len() != 1 => {
            Err(wrong("master.hosts", "more than one master needs [master.ha] with etcd"))
        }
        Some(_) if master.hosts.len() < 2 => Err(wrong("master.hosts", "high availability needs two masters or more")),
        Some(_) => match master.hosts.iter().find(|host| host.parse::<IpAddr>().is_err()) {
            Some(name) => {
                let what = format!("{name} must be an address: a master binds to it and publishes it in etcd");
                Err(wrong("master.hosts", what))
            }
            None => Ok(()),
        },
        None => Ok(()),
    }
}

fn cluster(wanted: &Deployment) -> Result<(), DeployError> {
    let kubernetes = &wanted.kubernetes;
    if !kubernetes.model_claim.is_empty() && !kubernetes.model_host_path.is_empty() {
        return Err(wrong("kubernetes.model_claim", "model_host_path is there, too; there is one place for the model"));
    }
    for (key, value, wrong_with) in [
        ("kubernetes.namespace", &kubernetes.namespace, text::dns_label(&kubernetes.namespace)),
        ("kubernetes.rdma_resource", &kubernetes.rdma_resource, text::qualified_key(&kubernetes.rdma_resource)),
        ("kubernetes.gpu_resource", &kubernetes.gpu_resource, text::qualified_key(&kubernetes.gpu_resource)),
    ] {
        if let Some(what) = wrong_with {
            return Err(wrong(key, format!("{} is {what}", Quoted(value))));
        }
    }
    for (key, value) in &kubernetes.node_selector {
        if let Some(what) = text::qualified_key(key).or_else(|| text::label_value(value)) {
            return Err(wrong("kubernetes.node_selector", format!("{} = {} is {what}", Quoted(key), Quoted(value))));
        }
    }
    model_volume(wanted)?;
    if wanted.master.ha.as_ref().is_some_and(|ha| ha.replicas < 2) {
        return Err(wrong("master.ha.replicas", "high availability needs two masters or more"));
    }
    Ok(())
}

/// Is the model below the place where its volume is mounted?
fn model_volume(wanted: &Deployment) -> Result<(), DeployError> {
    let (kubernetes, model) = (&wanted.kubernetes, &wanted.model.path);
    let (claim, folder, mount) = (&kubernetes.model_claim, &kubernetes.model_host_path, &kubernetes.model_mount);
    if claim.is_empty() && folder.is_empty() {
        return Ok(());
    }
    if let Some(what) = text::dns_subdomain(claim).filter(|_| !claim.is_empty()) {
        return Err(wrong("kubernetes.model_claim", format!("{} is {what}", Quoted(claim))));
    }
    if !folder.is_empty() && !is_path(folder) {
        return Err(wrong("kubernetes.model_host_path", format!("{} is not an absolute path", Quoted(folder))));
    }
    if !is_path(mount) || mount == "/" {
        return Err(wrong("kubernetes.model_mount", format!("{} is not an absolute path of a folder", Quoted(mount))));
    }
    if model.starts_with('/') && !std::path::Path::new(model).starts_with(mount) {
        let what = format!("{} is not below {}, where the model is mounted", Quoted(model), Quoted(mount));
        return Err(wrong("kubernetes.model_mount", what));
    }
    Ok(())
}
