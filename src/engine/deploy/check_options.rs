//! Validation of access control, settings of roles, host capacities and pod options.

use std::net::IpAddr;

use crate::error::invalid_value;
use crate::kube::grammar;
use crate::value_syntax::{device_names, is_path, variables};
use crate::{
    AccessSection, DeployError, DeploymentSpec, ExtraVolume, HugePageSize, PdServersSection, Platform, PodToleration,
    Programs, ServingMode, StoreProtocol,
};
use mcctl_base::cidr::CidrList;
use mcctl_base::text::Quoted;

/// The flag that a decode server needs to use the store, and that comes with settings of its own.
const DECODE_OFFLOAD: &str = "--disaggregation-decode-enable-offload-kvcache";
/// The names of roles in `kubernetes.volumes`.
const ROLES: [&str; 6] = ["master", "store", "server", "prefill", "decode", "router"];

/// Validates the optional parts of `spec` for `platform`.
///
/// # Errors
/// The first invalid or contradictory value.
pub(crate) fn check(spec: &DeploymentSpec, platform: Platform) -> Result<(), DeployError> {
    variables("serving.router.env", &spec.serving.router.env)?;
    servers("serving.prefill", &spec.serving.prefill, spec)?;
    servers("serving.decode", &spec.serving.decode, spec)?;
    hub(spec)?;
    access(spec, platform)?;
    runbook_base(&spec.monitoring.runbook_base)?;
    capacity(spec)?;
    if platform == Platform::Hosts { Ok(()) } else { pods(spec) }
}

fn servers(section: &str, servers: &PdServersSection, spec: &DeploymentSpec) -> Result<(), DeployError> {
    let is_decode = section == "serving.decode";
    let key = |name: &'static str, decode: &'static str| if is_decode { decode } else { name };
    if spec.serving.mode != ServingMode::Pd {
        let is_set = servers.clone()
            != PdServersSection {
                hosts: servers.hosts.clone(),
                replicas: servers.replicas,
                port: servers.port,
                ..PdServersSection::default()
            };
        return match is_set {
            true => {
                Err(invalid_value(key("serving.prefill", "serving.decode"), "has an effect only with mode = \"pd\""))
            }
            false => Ok(()),
        };
    }
    for size in [servers.tp, servers.pp, servers.dp, servers.hicache_size_gb].into_iter().flatten() {
        if size == 0 || size > u64::from(u32::MAX) {
            return Err(invalid_value(
                key("serving.prefill", "serving.decode"),
                format!("the size {size} is not between 1 and {}", u32::MAX),
            ));
        }
    }
    let args = key("serving.prefill.extra_args", "serving.decode.extra_args");
    if let Some(bad) = servers.extra_args.iter().find(|arg| arg.chars().any(char::is_control)) {
        return Err(invalid_value(args, format!("{} contains a control character", Quoted(bad))));
    }
    if servers.extra_args.iter().any(|arg| arg == DECODE_OFFLOAD) {
        let what = "--disaggregation-decode-enable-offload-kvcache needs the settings of the store, too: set serving.decode.offload = true";
        return Err(invalid_value(args, what));
    }
    variables(key("serving.prefill.env", "serving.decode.env"), &servers.env)?;
    let devices = key("serving.prefill.devices", "serving.decode.devices");
    device_names(devices, &servers.devices)?;
    if !servers.devices.is_empty() && spec.transfer.protocol == StoreProtocol::Tcp {
        return Err(invalid_value(
            devices,
            "has no effect with protocol = \"tcp\": remove it, or set protocol = \"rdma\"",
        ));
    }
    if servers.offload && !is_decode {
        return Err(invalid_value(
            "serving.prefill.offload",
            "has an effect only for decode servers: prefill servers always store",
        ));
    }
    if is_decode && servers.hicache_size_gb.is_some() && !servers.offload {
        return Err(invalid_value(
            "serving.decode.hicache_size_gb",
            "has no effect without offload = true: these servers have no L2",
        ));
    }
    if servers.first_gpu.is_some_and(|gpu| gpu > 1023) {
        return Err(invalid_value(key("serving.prefill.first_gpu", "serving.decode.first_gpu"), "must be below 1024"));
    }
    Ok(())
}

fn hub(spec: &DeploymentSpec) -> Result<(), DeployError> {
    for (key, path) in [("model.cache_dir", &spec.model.cache_dir), ("model.token_file", &spec.model.token_file)] {
        absolute(key, path)?;
    }
    Ok(())
}

/// Checks that `path` is empty or absolute.
fn absolute(key: &'static str, path: &str) -> Result<(), DeployError> {
    match path.is_empty() || is_path(path) && !path.split('/').any(|part| part == "..") {
        true => Ok(()),
        false => Err(invalid_value(key, format!("{} must be an absolute path without '..'", Quoted(path)))),
    }
}

/// Checks that the base is empty, or an HTTP URL to which `/FILE#SECTION` can be appended.
fn runbook_base(base: &str) -> Result<(), DeployError> {
    let host = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://"));
    let is_url = host.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let is_plain = !base.contains(|c: char| c.is_whitespace() || c.is_control() || "#?{}\"".contains(c));
    match base.is_empty() || is_url && is_plain {
        true => Ok(()),
        false => {
            let what = format!("{} must be an http:// or https:// URL without '?' and '#'", Quoted(base));
            Err(invalid_value("monitoring.runbook_base", what))
        }
    }
}

fn access(spec: &DeploymentSpec, platform: Platform) -> Result<(), DeployError> {
    let access = &spec.access;
    let kubernetes = &spec.kubernetes;
    let secrets = [
        ("kubernetes.token_secret", &kubernetes.token_secret),
        ("kubernetes.tls_secret", &kubernetes.tls_secret),
        ("kubernetes.client_ca_secret", &kubernetes.client_ca_secret),
    ];
    let set_secret = secrets.iter().find(|(_, name)| !name.is_empty());
    let is_default = *access == AccessSection::default();
    if spec.programs == Programs::Upstream && (!is_default || set_secret.is_some()) {
        let what =
            "upstream's programs have no access control: set programs = \"mcctl\", or remove it and use a firewall";
        return Err(invalid_value(
            if is_default { set_secret.map_or("access", |(key, _)| key) } else { "access" },
            what,
        ));
    }
    for (key, path) in access.paths() {
        absolute(key, path)?;
    }
    if access.tls_cert.is_empty() != access.tls_key.is_empty() {
        let what = "tls_cert and tls_key belong together: set both";
        return Err(invalid_value(if access.tls_cert.is_empty() { "access.tls_cert" } else { "access.tls_key" }, what));
    }
    if !access.client_ca.is_empty() && access.tls_cert.is_empty() {
        return Err(invalid_value(
            "access.client_ca",
            "requires tls_cert and tls_key: client certificates exist only with TLS",
        ));
    }
    if access.monitoring_cert.is_empty() != access.monitoring_key.is_empty() {
        return Err(invalid_value(
            "access.monitoring_key",
            "monitoring_cert and monitoring_key belong together: set both",
        ));
    }
    networks(spec, platform)?;
    let on_hosts = platform == Platform::Hosts;
    if !on_hosts {
        let replaced = access.files().into_iter().zip(secrets);
        for ((key, is_set), (secret, name)) in replaced {
            if is_set && name.is_empty() {
                return Err(invalid_value(
                    key,
                    format!("has no effect in Kubernetes: set {secret} to the name of a Secret"),
                ));
            }
        }
        for (key, name) in secrets {
            if let Some(what) = grammar::dns_subdomain(name).filter(|_| !name.is_empty()) {
                return Err(invalid_value(key, format!("{} is {what}", Quoted(name))));
            }
        }
        if !kubernetes.client_ca_secret.is_empty() && kubernetes.tls_secret.is_empty() {
            return Err(invalid_value(
                "kubernetes.client_ca_secret",
                "requires tls_secret: client certificates exist only with TLS",
            ));
        }
    }
    let has = |at: usize| if on_hosts { access.files()[at].1 } else { !secrets[at].1.is_empty() };
    let tokens = has(0);
    let tls = has(1);
    let certificates = has(2);
    if access.protect_metrics && !tokens && !certificates {
        return Err(invalid_value(
            "access.protect_metrics",
            "requires tokens or client certificates: set token_file or client_ca",
        ));
    }
    if spec.embeds_metadata() && (tokens || tls) {
        let what = "the wheel's clients have neither tokens nor the store's certificates, so the master would refuse their records: use p2p";
        return Err(invalid_value("metadata.kind", what));
    }
    Ok(())
}

/// Checks the allowed networks, and that all hosts of the store's processes and clients are in
/// them.
fn networks(spec: &DeploymentSpec, platform: Platform) -> Result<(), DeployError> {
    let key = "access.allow_cidr";
    let access = &spec.access;
    if access.allow_cidr.is_empty() {
        return Ok(());
    }
    let text = access.allow_cidr.join(",");
    let list: CidrList = text.parse().map_err(|error| invalid_value(key, format!("{error}")))?;
    if platform != Platform::Hosts {
        return Ok(());
    }
    let serving = &spec.serving;
    let mut clients = match serving.mode {
        ServingMode::Pd => vec![&serving.prefill.hosts],
        _ => vec![&serving.hosts],
    };
    if serving.mode == ServingMode::Pd && serving.decode.offload {
        clients.push(&serving.decode.hosts);
    }
    for host in spec.master.hosts.iter().chain(&spec.nodes.hosts).chain(clients.into_iter().flatten()) {
        let address = if host == "localhost" { Some(IpAddr::from([127, 0, 0, 1])) } else { host.parse().ok() };
        if address.is_some_and(|address| !list.contains(address)) {
            return Err(invalid_value(
                key,
                format!("does not contain {host}, whose connections the store would refuse"),
            ));
        }
    }
    Ok(())
}

fn capacity(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let host = &spec.host;
    if host.memory.is_some_and(|size| size.0 == 0) {
        return Err(invalid_value("host.memory", "must not be 0: leave it unset if it is unknown"));
    }
    if let (Some(memory), Some(pages)) = (host.memory, host.hugepages)
        && pages > memory
    {
        return Err(invalid_value(
            "host.hugepages",
            format!("{pages} is more than host.memory, {memory}, of which it is a part"),
        ));
    }
    if host.hugepages.is_some_and(|size| size.0 > 0) && spec.hugepages.size == HugePageSize::None {
        return Err(invalid_value(
            "host.hugepages",
            "has no effect with hugepages.size = \"none\": set the size of a page",
        ));
    }
    device_names("host.nics", &host.nics)?;
    let mut nodes = host.nic_numa.clone();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() != host.nic_numa.len() {
        return Err(invalid_value("host.nic_numa", "must not list a NUMA node twice"));
    }
    if nodes.iter().any(|node| *node > 1023) {
        return Err(invalid_value("host.nic_numa", "must contain numbers from 0 to 1023"));
    }
    let counted = host.nic_numa.len() as u64;
    if counted > 0 && spec.transfer.nic_nodes != 1 && spec.transfer.nic_nodes != counted {
        let what = format!(
            "{} contradicts host.nic_numa, which lists {counted} NUMA nodes: remove it",
            spec.transfer.nic_nodes
        );
        return Err(invalid_value("transfer.nic_nodes", what));
    }
    Ok(())
}

fn pods(spec: &DeploymentSpec) -> Result<(), DeployError> {
    let kubernetes = &spec.kubernetes;
    if !kubernetes.cache_claim.is_empty() && !kubernetes.cache_host_path.is_empty() {
        return Err(invalid_value("kubernetes.cache_claim", "conflicts with cache_host_path: set only one of them"));
    }
    absolute("kubernetes.cache_host_path", &kubernetes.cache_host_path)?;
    for (key, name) in [
        ("kubernetes.cache_claim", &kubernetes.cache_claim),
        ("kubernetes.hf_token_secret", &kubernetes.hf_token_secret),
        ("kubernetes.priority_class", &kubernetes.priority_class),
        ("kubernetes.service_account", &kubernetes.service_account),
    ] {
        if let Some(what) = grammar::dns_subdomain(name).filter(|_| !name.is_empty()) {
            return Err(invalid_value(key, format!("{} is {what}", Quoted(name))));
        }
    }
    if kubernetes.network_policy && kubernetes.host_network {
        return Err(invalid_value(
            "kubernetes.network_policy",
            "has no effect with host_network = true: use a firewall",
        ));
    }
    for name in &kubernetes.pull_secrets {
        if let Some(what) = grammar::dns_subdomain(name) {
            return Err(invalid_value("kubernetes.pull_secrets", format!("{} is {what}", Quoted(name))));
        }
    }
    for key in kubernetes.annotations.keys() {
        if let Some(what) = grammar::qualified_key(key) {
            return Err(invalid_value("kubernetes.annotations", format!("{} is {what}", Quoted(key))));
        }
    }
    if let Some(what) = kubernetes.tolerations.iter().find_map(wrong_toleration) {
        return Err(invalid_value("kubernetes.tolerations", what));
    }
    let mut names: Vec<&str> = Vec::new();
    for volume in &kubernetes.volumes {
        if let Some(what) = wrong_volume(volume) {
            return Err(invalid_value("kubernetes.volumes", format!("{}: {what}", Quoted(&volume.name))));
        }
        if names.contains(&volume.name.as_str()) {
            return Err(invalid_value(
                "kubernetes.volumes",
                format!("the name {} is used twice", Quoted(&volume.name)),
            ));
        }
        names.push(&volume.name);
    }
    Ok(())
}

/// What the API server would refuse.
fn wrong_toleration(toleration: &PodToleration) -> Option<String> {
    let PodToleration { key, operator, value, effect, toleration_seconds } = toleration;
    if !["", "Equal", "Exists"].contains(&operator.as_str()) {
        return Some(format!("the operator {} is neither Equal nor Exists", Quoted(operator)));
    }
    if !["", "NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str()) {
        return Some(format!("the effect {} is not NoSchedule, PreferNoSchedule or NoExecute", Quoted(effect)));
    }
    if key.is_empty() && operator != "Exists" {
        return Some("a toleration without a key requires operator = \"Exists\"".to_owned());
    }
    if operator == "Exists" && !value.is_empty() {
        return Some(format!("the operator Exists takes no value, but has {}", Quoted(value)));
    }
    if toleration_seconds.is_some() && effect != "NoExecute" {
        return Some("toleration_seconds requires effect = \"NoExecute\"".to_owned());
    }
    let key = grammar::qualified_key(key).filter(|_| !key.is_empty()).map(|what| format!("{} is {what}", Quoted(key)));
    key.or_else(|| grammar::label_value(value).map(|what| format!("{} is {what}", Quoted(value))))
}

/// Volume names that `render` uses itself.
const RESERVED: [&str; 9] =
    ["shm", "model", "data", "tmp", "secret", "model-cache", "access-tokens", "access-tls", "access-ca"];

fn wrong_volume(volume: &ExtraVolume) -> Option<String> {
    if let Some(what) = grammar::dns_label(&volume.name) {
        return Some(format!("the name is {what}"));
    }
    if RESERVED.contains(&volume.name.as_str()) || volume.name.starts_with("host-") {
        return Some("render uses this name for a volume of its own".to_owned());
    }
    if !is_path(&volume.mount_path) || volume.mount_path == "/" || volume.mount_path.contains(':') {
        return Some("mount_path must be the absolute path of a directory".to_owned());
    }
    match volume.sources().as_slice() {
        [("host_path", path)] if !is_path(path) => return Some("host_path must be an absolute path".to_owned()),
        [("host_path", _)] => {}
        [(_, name)] => {
            if let Some(what) = grammar::dns_subdomain(name) {
                return Some(format!("{} is {what}", Quoted(name)));
            }
        }
        _ => return Some("exactly one of claim, host_path, config_map and secret is required".to_owned()),
    }
    let unknown = volume.roles.iter().find(|role| !ROLES.contains(&role.as_str()))?;
    Some(format!("the role {} is not one of {}", Quoted(unknown), ROLES.join(", ")))
}
