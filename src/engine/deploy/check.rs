//! Validation of a deployment file before processes are planned.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use crate::check_options;
use crate::error::invalid_value;
use crate::kube::grammar;
use crate::plan::master_disk::{LOG_FILES_BYTES, volatile_folder};
use crate::value_syntax::{device_names, is_path, variables};
use crate::{
    DeployError, DeploySize, DeploymentSpec, HugePageSize, MetadataKind, Platform, Programs, ServingMode, StoreProtocol,
};
use mcctl_base::addr::host_is_loopback;
use mcctl_base::text::Quoted;
use mcctl_base::upstream::sglang::{IO_BACKENDS, LAYOUTS, PREFETCH_POLICIES, WRITE_POLICIES};
use mcctl_base::upstream::{MASTER_FLAGS, find};

/// Maximum number of hosts per list, and of replicas.
const COUNT_MAX: usize = 4096;
/// Maximum length of the deployment name. Object names consist of this name and a suffix such as
/// `-prefill-1000`, and must not exceed 63 characters.
const NAME_MAX: usize = 40;
/// Minimum memory for a master: its memory usage when no keys are stored.
const MASTER_MEMORY_MIN: DeploySize = DeploySize(64 << 20);
/// Minimum size of the volume for a master's data directory: its log with few keys.
const MASTER_STORAGE_MIN: DeploySize = DeploySize(LOG_FILES_BYTES);

/// Validates `spec` for `platform`.
///
/// # Errors
/// The first invalid or contradictory value.
pub(crate) fn check(spec: &DeploymentSpec, platform: Platform) -> Result<(), DeployError> {
    texts(spec)?;
    numbers(spec)?;
    master(spec)?;
    programs(spec)?;
    data_dir(spec, platform)?;
    transfer(spec)?;
    contributed_memory(spec, platform)?;
    serving(spec)?;
    check_options::check(spec, platform)?;
    if platform == Platform::Hosts { hosts(spec) } else { cluster(spec) }
}

fn texts(spec: &DeploymentSpec) -> Result<(), DeployError> {
    if spec.version != 1 {
        return Err(invalid_value(
            "version",
            format!("unknown schema version {}; this release supports 1", spec.version),
        ));
    }
    let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = &spec.name;
    if name.is_empty()
        || name.len() > NAME_MAX
        || !name.chars().all(label)
        || name.starts_with(|c: char| !c.is_ascii_lowercase())
        || name.ends_with('-')
    {
        let what = format!("{} is not a DNS label of at most {NAME_MAX} characters (a-z, 0-9, -)", Quoted(name));
        return Err(invalid_value("name", what));
    }
    let model = &spec.model;
    if model.path.is_empty() {
        return Err(invalid_value("model.path", "required: set it to a model directory or a Hugging Face Hub name"));
    }
    for (key, value) in [("model.path", &model.path), ("model.served_name", &model.served_name)] {
        if value.starts_with('-') {
            return Err(invalid_value(key, format!("{} must not begin with '-'", Quoted(value))));
        }
    }
    // Container mounts use ':' as a separator.
    if model.path.starts_with('/') && model.path.contains(':') {
        return Err(invalid_value("model.path", format!("{} must not contain ':'", Quoted(&model.path))));
    }
    for (key, value, known) in [
        ("model.layout", &model.layout, LAYOUTS),
        ("model.io_backend", &model.io_backend, IO_BACKENDS),
        ("model.write_policy", &model.write_policy, WRITE_POLICIES),
        ("model.prefetch_policy", &model.prefetch_policy, PREFETCH_POLICIES),
    ] {
        if !known.contains(&value.as_str()) {
            let mut what = format!("{} is not one of {}", Quoted(value), known.join(", "));
            if value == "layer_first" {
                what.push_str("; this layout does not work with Mooncake");
            }
            return Err(invalid_value(key, what));
        }
    }
    // These values end up in units, scripts and manifests, which cannot represent line breaks or
    // NUL characters in an argument.
    let words: [(&'static str, Vec<&String>); 12] = [
        ("model.path", vec![&model.path]),
        ("model.served_name", vec![&model.served_name]),
        ("model.extra_args", model.extra_args.iter().collect()),
        ("model.env", model.env.iter().flat_map(|(name, value)| [name, value]).collect()),
        ("master.extra_flags", spec.master.extra_flags.iter().collect()),
        ("transfer.devices", spec.transfer.devices.iter().collect()),
        ("serving.router.extra_args", spec.serving.router.extra_args.iter().collect()),
        ("serving.ib_devices", spec.serving.ib_devices.iter().collect()),
        ("host", vec![&spec.host.bin_dir, &spec.host.python, &spec.host.user]),
        ("images", vec![&spec.images.sglang, &spec.images.store, &spec.images.router, &spec.images.mcctl]),
        ("metadata.url", vec![&spec.metadata.url]),
        ("kubernetes.model_mount", vec![&spec.kubernetes.model_mount]),
    ];
    for (key, values) in words {
        if let Some(bad) = values.iter().find(|value| value.chars().any(char::is_control)) {
            return Err(invalid_value(key, format!("{} contains a control character", Quoted(bad))));
        }
    }
    variables("model.env", &model.env)?;
    device_names("transfer.devices", &spec.transfer.devices)?;
    device_names("serving.ib_devices", &spec.serving.ib_devices)?;
    let ssd = &spec.nodes.ssd_path;
    if !ssd.is_empty() && (!is_path(ssd) || ssd.split('/').any(|part| part == "..")) {
        return Err(invalid_value("nodes.ssd_path", format!("{} must be an absolute path without '..'", Quoted(ssd))));
    }
    let python = &spec.host.python;
    let user = &spec.host.user;
    if python.is_empty() || python.starts_with('-') {
        return Err(invalid_value("host.python", format!("{} is not a valid program name", Quoted(python))));
    }
    let in_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if user.starts_with('-') || !user.chars().all(in_name) {
        return Err(invalid_value("host.user", format!("{} is not a valid user name", Quoted(user))));
    }
    let bin_dir = &spec.host.bin_dir;
    if !bin_dir.is_empty() && !is_path(bin_dir) {
        return Err(invalid_value("host.bin_dir", format!("{} must be an absolute path", Quoted(bin_dir))));
    }
    Ok(())
}

fn numbers(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let master = &spec.master;
    let serving = &spec.serving;
    for (key, port) in [
        ("master.rpc_port", master.rpc_port),
        ("master.admin_port", master.admin_port),
        ("metadata.port", spec.metadata.port),
        ("metadata.proxy_port", spec.metadata.proxy_port),
        ("nodes.rest_port", spec.nodes.rest_port),
        ("nodes.client_http_port", spec.nodes.client_http_port),
        ("serving.port", serving.port),
        ("serving.dist_port", serving.dist_port),
        ("serving.bootstrap_port", serving.bootstrap_port),
        ("serving.router.port", serving.router.port),
    ] {
        if port == 0 {
            return Err(invalid_value(key, "must not be 0: other processes need a fixed port"));
        }
    }
    for (key, value) in [
        ("model.tp", spec.model.tp),
        ("model.page_size", spec.model.page_size),
        ("master.client_ttl_s", master.client_ttl_s),
        ("master.lease_ttl_ms", master.lease_ttl_ms),
        ("master.rpc_threads", master.rpc_threads.into()),
        ("serving.replicas", serving.replicas.into()),
        ("serving.nnodes", serving.nnodes.into()),
        ("serving.prefill.replicas", serving.prefill.replicas.into()),
        ("serving.decode.replicas", serving.decode.replicas.into()),
    ] {
        if value == 0 {
            return Err(invalid_value(key, "must be at least 1"));
        }
        if value > u64::from(u32::MAX) {
            return Err(invalid_value(key, format!("{value} is too large")));
        }
    }
    for (key, count) in [
        ("serving.replicas", serving.replicas),
        ("serving.nnodes", serving.nnodes),
        ("serving.prefill.replicas", serving.prefill.replicas),
        ("serving.decode.replicas", serving.decode.replicas),
        ("nodes.replicas", spec.nodes.replicas),
        ("master.ha.replicas", master.ha.as_ref().map_or(0, |ha| ha.replicas)),
        ("master.rpc_threads", master.rpc_threads),
        ("kubernetes.rdma_count", spec.kubernetes.rdma_count),
    ] {
        if count as usize > COUNT_MAX {
            return Err(invalid_value(key, format!("{count} exceeds the limit of {COUNT_MAX}")));
        }
    }
    if !(master.high_watermark > 0.0 && master.high_watermark <= 1.0) {
        return Err(invalid_value("master.high_watermark", "must be greater than 0 and at most 1"));
    }
    if master.memory < MASTER_MEMORY_MIN {
        return Err(invalid_value("master.memory", format!("a master needs at least {MASTER_MEMORY_MIN}")));
    }
    if spec.model.hicache_ratio.is_some_and(|ratio| !(ratio > 0.0 && ratio.is_finite())) {
        return Err(invalid_value("model.hicache_ratio", "must be a positive number"));
    }
    if spec.model.hicache_size_gb.is_some() && spec.model.hicache_ratio.is_some() {
        return Err(invalid_value(
            "model.hicache_ratio",
            "conflicts with hicache_size_gb: if both are set, SGLang ignores the ratio",
        ));
    }
    if spec.model.hicache_size_gb == Some(0) {
        return Err(invalid_value("model.hicache_size_gb", "with 0, SGLang uses the ratio; set hicache_ratio instead"));
    }
    Ok(())
}

fn master(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let master = &spec.master;
    let url = &spec.metadata.url;
    if !url.is_empty() && spec.metadata.kind != MetadataKind::Http {
        return Err(invalid_value("metadata.url", "has no effect with kind = \"p2p\""));
    }
    if !url.is_empty() && !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(invalid_value("metadata.url", format!("{} is not an HTTP URL", Quoted(url))));
    }
    if url.contains(',') {
        let what = format!(
            "{} is a list, which Mooncake's clients in SGLang do not accept: use one URL, such as that of a Service or of a proxy on each \
             host (mcctl serve metadata --forward-to)",
            Quoted(url)
        );
        return Err(invalid_value("metadata.url", what));
    }
    let Some(ha) = &master.ha else {
        return Ok(());
    };
    if ha.etcd.is_empty() {
        return Err(invalid_value("master.ha.etcd", "required: list the etcd members as HOST:PORT"));
    }
    for member in &ha.etcd {
        let good = mcctl_base::HostPort::split(member)
            .is_ok_and(|(host, port)| is_host(&host) && port.is_some_and(|port| port > 0));
        if !good {
            let what = format!("{} must be HOST:PORT, without http:// or a trailing slash", Quoted(member));
            return Err(invalid_value("master.ha.etcd", what));
        }
    }
    let id = &ha.cluster_id;
    if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        return Err(invalid_value(
            "master.ha.cluster_id",
            format!("{} may contain only letters, digits, '_', '-' and '.'", Quoted(id)),
        ));
    }
    if spec.programs == Programs::Upstream && ha.oplog && !spec.mooncake.has(find(MASTER_FLAGS, "enable_oplog").since) {
        let what =
            format!("release {} does not support the oplog: a failover would lose all keys", spec.mooncake.text());
        return Err(invalid_value("master.ha.oplog", what));
    }
    if !ha.secret_file.is_empty() {
        if spec.programs == Programs::Upstream {
            let what = "upstream's masters replicate through etcd, and have no secret: remove it";
            return Err(invalid_value("master.ha.secret_file", what));
        }
        if !is_path(&ha.secret_file) {
            let what = format!("{} must be an absolute path", Quoted(&ha.secret_file));
            return Err(invalid_value("master.ha.secret_file", what));
        }
    }
    if spec.replicates_metadata() && spec.programs == Programs::Upstream {
        let what = "the metadata service inside upstream's masters is not replicated; for high availability, use p2p, an external url or \
                    programs = \"mcctl\"";
        return Err(invalid_value("metadata.kind", what));
    }
    Ok(())
}

fn programs(spec: &DeploymentSpec) -> Result<(), DeployError> {
    if spec.programs == Programs::Upstream {
        return Ok(());
    }
    if !spec.nodes.ssd_path.is_empty() {
        let what = "mcctl's nodes do not support an SSD tier yet; set programs = \"upstream\"";
        return Err(invalid_value("nodes.ssd_path", what));
    }
    Ok(())
}

fn data_dir(spec: &DeploymentSpec, platform: Platform) -> Result<(), DeployError> {
    let key = "master.data_dir";
    if let (Programs::Upstream, Some(path)) = (spec.programs, &spec.master.data_dir)
        && !path.is_empty()
    {
        let what = "mooncake_master has no data directory: remove it, or set programs = \"mcctl\"";
        return Err(invalid_value(key, what));
    }
    let is_given = spec.master.data_dir.as_ref().is_some_and(|path| !path.is_empty());
    if is_given && !spec.has_volume_per_master(platform) {
        let what = "several masters in a RoleBasedGroup would share one volume: set data_dir = \"\", or render k8s, \
                    which gives each master a claim";
        return Err(invalid_value(key, what));
    }
    let Some(path) = spec.data_dir(platform) else {
        let volume = [
            ("kubernetes.storage_class", !spec.kubernetes.storage_class.is_empty()),
            ("kubernetes.master_storage", spec.kubernetes.master_storage.is_some()),
        ];
        let what = match spec.has_volume_per_master(platform) {
            true => "has no effect: the master has no data directory",
            false => "has no effect: several masters in a RoleBasedGroup have no data directory",
        };
        let set = volume.iter().find(|(_, is_set)| *is_set);
        return set.map_or(Ok(()), |(key, _)| Err(invalid_value(key, what)));
    };
    let parts = || path.split('/').filter(|part| !part.is_empty());
    if !is_path(&path) || parts().count() == 0 || parts().any(|part| part == ".." || part == ".") {
        let what = format!("{} must be the absolute path of a directory, without '..'", Quoted(&path));
        return Err(invalid_value(key, what));
    }
    if let Some(folder) = volatile_folder(Path::new(&path)) {
        let what = format!("{} is below {folder}, which a reboot empties", Quoted(&path));
        return Err(invalid_value(key, what));
    }
    match spec.kubernetes.master_storage {
        Some(size) if size < MASTER_STORAGE_MIN => {
            let what = format!("{size} is too small: the log alone may need {MASTER_STORAGE_MIN}");
            Err(invalid_value("kubernetes.master_storage", what))
        }
        _ => Ok(()),
    }
}

fn transfer(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let transfer = &spec.transfer;
    match transfer.protocol {
        StoreProtocol::Rdma if transfer.devices.is_empty() => Err(invalid_value(
            "transfer.devices",
            "required: if no devices are listed, rdma can silently fall back to TCP; run mcctl devices to list them",
        )),
        StoreProtocol::Tcp if !transfer.devices.is_empty() => Err(invalid_value(
            "transfer.devices",
            "has no effect with protocol = \"tcp\": remove it, or set protocol = \"rdma\"",
        )),
        StoreProtocol::Tcp if transfer.gid_index.is_some() => {
            Err(invalid_value("transfer.gid_index", "has no effect with protocol = \"tcp\""))
        }
        _ if transfer.nic_nodes == 0 || transfer.nic_nodes > 64 => {
            Err(invalid_value("transfer.nic_nodes", "must be between 1 and 64"))
        }
        _ => Ok(()),
    }
}

fn contributed_memory(spec: &DeploymentSpec, platform: Platform) -> Result<(), DeployError> {
    let nodes = &spec.nodes;
    let count =
        if platform == Platform::Hosts { nodes.hosts.len() } else { nodes.replicas as usize + nodes.hosts.len() };
    if spec.segment.engines.0 == 0 && count == 0 {
        return Err(invalid_value(
            "segment.engines",
            "no process contributes memory to the store: set a segment size, or add store nodes",
        ));
    }
    if count > 0 && nodes.segment.0 == 0 {
        return Err(invalid_value("nodes.segment", "must not be 0: the only purpose of a node is to serve a segment"));
    }
    let mut numa = nodes.numa.clone();
    numa.sort_unstable();
    numa.dedup();
    if numa.iter().any(|node| *node > 1023) {
        return Err(invalid_value("nodes.numa", "must contain numbers from 0 to 1023"));
    }
    if numa.len() != nodes.numa.len() {
        return Err(invalid_value("nodes.numa", "must not list a NUMA node twice"));
    }
    let span = u16::try_from(nodes.numa.len().max(1)).unwrap_or(u16::MAX);
    if nodes.rest_port.checked_add(span).is_none() || nodes.client_http_port.checked_add(span).is_none() {
        return Err(invalid_value("nodes.rest_port", "too high: no ports are left for the other NUMA nodes"));
    }
    if spec.hugepages.size != HugePageSize::None
        && spec.model.hicache_size_gb.is_none()
        && spec.model.device_tokens.is_none()
    {
        let what = "cannot compute the number of huge pages: set hicache_size_gb or, if L2 is sized by hicache_ratio, device_tokens";
        return Err(invalid_value("hugepages.size", what));
    }
    Ok(())
}

fn serving(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let serving = &spec.serving;
    match serving.mode {
        ServingMode::Distributed if serving.nnodes < 2 => Err(invalid_value(
            "serving.nnodes",
            "a distributed server needs at least 2 hosts; for one host, set mode = \"single\"",
        )),
        ServingMode::Single | ServingMode::Pd if serving.nnodes != 1 => {
            Err(invalid_value("serving.nnodes", "must be 1 unless mode = \"distributed\""))
        }
        _ => Ok(()),
    }
}

/// Whether `host` is a name or an address that is valid in a URL, a script and a file name.
pub fn is_host(host: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let label = |label: &str| !label.is_empty() && !label.starts_with('-') && label.chars().all(word);
    host.len() <= 253 && (host.split('.').all(label) || host.parse::<IpAddr>().is_ok())
}

fn hosts(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let master = &spec.master;
    let serving = &spec.serving;
    let mut lists: Vec<(&'static str, Vec<&String>, bool)> = vec![
        ("master.hosts", master.hosts.iter().collect(), true),
        ("nodes.hosts", spec.nodes.hosts.iter().collect(), false),
    ];
    if serving.mode == ServingMode::Pd {
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
            return Err(invalid_value(key, "requires at least one host"));
        }
        if list.len() > COUNT_MAX {
            return Err(invalid_value(key, format!("{} hosts exceed the limit of {COUNT_MAX}", list.len())));
        }
        for &host in list {
            if !is_host(host) {
                return Err(invalid_value(key, format!("{} is not a valid host name or address", Quoted(host))));
            }
            if host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
                return Err(invalid_value(key, format!("{host} is not an address that other hosts can reach")));
            }
            let seen = if host_is_loopback(host) { &mut loopback } else { &mut outside };
            seen.get_or_insert((key, host));
        }
    }
    if let (Some((key, inside)), Some((_, other))) = (loopback, outside) {
        return Err(invalid_value(key, format!("{inside} is a loopback address, which {other} cannot reach")));
    }
    if serving.mode == ServingMode::Distributed && !serving.hosts.len().is_multiple_of(serving.nnodes as usize) {
        let what =
            format!("the number of hosts ({}) is not a multiple of nnodes = {}", serving.hosts.len(), serving.nnodes);
        return Err(invalid_value("serving.hosts", what));
    }
    match &master.ha {
        None if master.hosts.len() != 1 => {
            Err(invalid_value("master.hosts", "more than one master requires [master.ha] with etcd"))
        }
        Some(_) if master.hosts.len() < 2 => {
            Err(invalid_value("master.hosts", "high availability requires at least two masters"))
        }
        Some(_) => match master.hosts.iter().find(|host| host.parse::<IpAddr>().is_err()) {
            Some(name) => {
                let what = format!("{name} must be an IP address: the master binds to it and publishes it in etcd");
                Err(invalid_value("master.hosts", what))
            }
            None if master.lab => Ok(()),
            None => masters_are_apart(&master.hosts),
        },
        None => Ok(()),
    }
}

/// Checks that no two masters run on one host, where they would use the same ports and the same
/// data directory.
fn masters_are_apart(hosts: &[String]) -> Result<(), DeployError> {
    let mut known: BTreeMap<IpAddr, &String> = BTreeMap::new();
    for host in hosts {
        let Ok(address) = host.parse::<IpAddr>() else { continue };
        let address = if address.is_loopback() { Ipv4Addr::LOCALHOST.into() } else { address.to_canonical() };
        if let Some(other) = known.insert(address, host) {
            let what = format!(
                "{other} and {host} are the same host; each master requires a host of its own; for a lab on one machine, set lab = true"
            );
            return Err(invalid_value("master.hosts", what));
        }
    }
    Ok(())
}

fn cluster(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let kubernetes = &spec.kubernetes;
    if !kubernetes.model_claim.is_empty() && !kubernetes.model_host_path.is_empty() {
        return Err(invalid_value("kubernetes.model_claim", "conflicts with model_host_path: set only one of them"));
    }
    for (key, value, wrong_with) in [
        ("kubernetes.namespace", &kubernetes.namespace, grammar::dns_label(&kubernetes.namespace)),
        ("kubernetes.rdma_resource", &kubernetes.rdma_resource, grammar::qualified_key(&kubernetes.rdma_resource)),
        ("kubernetes.gpu_resource", &kubernetes.gpu_resource, grammar::qualified_key(&kubernetes.gpu_resource)),
    ] {
        if let Some(what) = wrong_with {
            return Err(invalid_value(key, format!("{} is {what}", Quoted(value))));
        }
    }
    for (key, value) in &kubernetes.node_selector {
        if let Some(what) = grammar::qualified_key(key).or_else(|| grammar::label_value(value)) {
            return Err(invalid_value(
                "kubernetes.node_selector",
                format!("{} = {} is {what}", Quoted(key), Quoted(value)),
            ));
        }
    }
    let class = &kubernetes.storage_class;
    if let Some(what) = grammar::dns_subdomain(class).filter(|_| !class.is_empty()) {
        return Err(invalid_value("kubernetes.storage_class", format!("{} is {what}", Quoted(class))));
    }
    let secret = &kubernetes.ha_secret;
    if let Some(what) = grammar::dns_subdomain(secret).filter(|_| !secret.is_empty()) {
        return Err(invalid_value("kubernetes.ha_secret", format!("{} is {what}", Quoted(secret))));
    }
    if !secret.is_empty() && (spec.programs == Programs::Upstream || spec.master.ha.is_none()) {
        let what =
            "has an effect only for several masters of mcctl: remove it, or set programs = \"mcctl\" and [master.ha]";
        return Err(invalid_value("kubernetes.ha_secret", what));
    }
    if secret.is_empty() && spec.master.ha.as_ref().is_some_and(|ha| !ha.secret_file.is_empty()) {
        let what =
            "has no effect in Kubernetes: set kubernetes.ha_secret to the name of a Secret with the key ha-secret";
        return Err(invalid_value("master.ha.secret_file", what));
    }
    model_volume(spec)?;
    if spec.master.ha.as_ref().is_some_and(|ha| ha.replicas < 2) {
        return Err(invalid_value("master.ha.replicas", "high availability requires at least two masters"));
    }
    Ok(())
}

/// Checks that the model path is under its volume's mount path.
fn model_volume(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let kubernetes = &spec.kubernetes;
    let model = &spec.model.path;
    let claim = &kubernetes.model_claim;
    let folder = &kubernetes.model_host_path;
    let mount = &kubernetes.model_mount;
    if claim.is_empty() && folder.is_empty() {
        return Ok(());
    }
    if let Some(what) = grammar::dns_subdomain(claim).filter(|_| !claim.is_empty()) {
        return Err(invalid_value("kubernetes.model_claim", format!("{} is {what}", Quoted(claim))));
    }
    if !folder.is_empty() && !is_path(folder) {
        return Err(invalid_value(
            "kubernetes.model_host_path",
            format!("{} must be an absolute path", Quoted(folder)),
        ));
    }
    if !is_path(mount) || mount == "/" {
        return Err(invalid_value(
            "kubernetes.model_mount",
            format!("{} must be the absolute path of a directory", Quoted(mount)),
        ));
    }
    if model.starts_with('/') && !Path::new(model).starts_with(mount) {
        let what = format!("{} is not under the model mount {}", Quoted(model), Quoted(mount));
        return Err(invalid_value("kubernetes.model_mount", what));
    }
    Ok(())
}
