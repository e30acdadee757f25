//! Selects and opens the host's RDMA devices, with their ports, addresses and limits.

use std::path::Path;
use std::sync::Arc;

use crate::TransferError;
use crate::device_fault::{Blame, DeviceFault, DeviceStep};
use crate::options::TransportOptions;
use crate::path_probe::UnusedDevice;
use crate::rdma::PROTOCOL;
use crate::rdma::gid::{self, GidError};
use crate::rdma::nic::{Nic, NicLimits, PortAddress};
use crate::rdma::settings::RdmaSettings;
use crate::topology::{DeviceChoice, ExcludedDevice, Gid, HostTopology, Matrix};
use mcctl_sys::FileTree;
use mcctl_sys::verbs::{self, PortState, RdmaDevice, VerbsError, VerbsUnavailable};

/// Why a device or its port's address cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceOpenError {
    #[error("{}", with_remedy(.0))]
    Unavailable(#[from] VerbsUnavailable),
    #[error("{device}: MC_IB_PORT={port} is not a valid port number (1 to 255)")]
    PortNumber { device: String, port: u32 },
    #[error("{device}: port {port} is {state}, not ACTIVE; check that the link is up")]
    PortDown { device: String, port: u8, state: PortState },
    #[error("{device}: port {port} not found in /sys")]
    PortMissing { device: String, port: u8 },
    #[error("{device}: port {port} has no GID")]
    NoGid { device: String, port: u8 },
    /// The GID table is empty, or the configured index is not in use.
    #[error("{device}: port {port}: {source}")]
    Gid { device: String, port: u8, source: GidError },
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The host's devices could not be read.
    #[error(transparent)]
    Host(#[from] TransferError),
}

/// Reads the host's devices from `/sys` and `/proc`.
///
/// # Errors
/// Fails if the file system cannot be read.
pub(super) fn host() -> Result<HostTopology, TransferError> {
    let tree = FileTree::new(Path::new("/")).map_err(|error| no_rdma(format!("/: {error}")))?;
    Ok(HostTopology::read(&tree))
}

fn no_rdma(why: String) -> TransferError {
    TransferError::Unavailable { protocol: PROTOCOL, why }
}

/// Opens the devices selected by `options` and `settings`. Returns the usable devices (at least
/// one), and the unusable ones, each with the reason.
///
/// # Errors
/// Fails if none can be used, with the reason for each.
pub(super) fn nics(
    host: &HostTopology,
    options: &TransportOptions,
    settings: &RdmaSettings,
) -> Result<(Vec<Arc<Nic>>, Vec<UnusedDevice>), TransferError> {
    // If verbs are unavailable, this error describes what is missing.
    let listed = verbs::devices().map_err(|absent| no_rdma(with_remedy(&absent)))?;
    let (names, mut unused) = names(host, options, settings);
    if names.is_empty() {
        let why: Vec<&str> = unused.iter().map(|unused| unused.why.as_str()).collect();
        let why = if why.is_empty() { "no RDMA device found".to_owned() } else { why.join("; ") };
        let next = if options.devices.is_empty() { "; select devices with --device-name" } else { "" };
        return Err(no_rdma(format!("{why}{next}")));
    }
    let mut nics = Vec::new();
    let mut problems = Vec::new();
    let is_there = |name: &String| listed.iter().any(|device| device.name == *name);
    let not_there = |name: &str| {
        let there: Vec<&str> = listed.iter().map(|device| device.name.as_str()).collect();
        format!("{name}: RDMA device not found; available: {}", there.join(", "))
    };
    // A host with devices supports RDMA, so a misspelled name must not cause a fallback to TCP.
    if !options.devices.is_empty() && !listed.is_empty() && !names.iter().any(is_there) {
        return Err(TransferError::Device(Arc::new(DeviceFault {
            protocol: PROTOCOL,
            device: String::new(),
            port: 0,
            gid: String::new(),
            peer: String::new(),
            step: DeviceStep::Open,
            problem: not_there(&names.join(", ")),
            blame: Blame::Device,
            remedy: Some("set --device-name to a device listed by mcctl devices"),
        })));
    }
    for name in names {
        if !is_there(&name) {
            problems.push(UnusedDevice { why: not_there(&name), device: name });
            continue;
        }
        match open(host, &name, nics.len(), settings) {
            Ok(nic) => nics.push(Arc::new(nic)),
            Err(error) => problems.push(UnusedDevice { device: name, why: error.to_string() }),
        }
    }
    if nics.is_empty() {
        let why: Vec<&str> = problems.iter().map(|problem| problem.why.as_str()).collect();
        return Err(no_rdma(why.join("; ")));
    }
    for UnusedDevice { why, .. } in &problems {
        tracing::warn!(problem = %why, "rdma device is not used");
    }
    unused.extend(problems);
    Ok((nics, unused))
}

/// Returns the devices to open, and the devices already excluded, each with the reason for its
/// exclusion.
fn names(host: &HostTopology, options: &TransportOptions, settings: &RdmaSettings) -> (Vec<String>, Vec<UnusedDevice>) {
    if options.devices.is_empty() {
        let (choice, _) = DeviceChoice::of(host, &settings.choice);
        let picked = choice.picked.into_iter().map(|picked| picked.device).collect();
        let unused =
            |out: ExcludedDevice| UnusedDevice { why: format!("{}: {}", out.device, out.why), device: out.device };
        return (picked, choice.left_out.into_iter().map(unused).collect());
    }
    let (mut names, mut unused) = (Vec::<String>::new(), Vec::new());
    let filtered = |name: &String| settings.choice.filter.as_ref().is_some_and(|only| !only.contains(name));
    for name in &options.devices {
        if filtered(name) {
            unused.push(UnusedDevice { device: name.clone(), why: format!("{name}: excluded by MC_TE_FILTERS") });
        } else if !names.contains(name) {
            names.push(name.clone());
        }
    }
    (names, unused)
}

/// Formats the reason why verbs are unavailable, and the fix.
fn with_remedy(absent: &VerbsUnavailable) -> String {
    match absent {
        VerbsUnavailable::Failed(error) => error.to_string(),
        absent => format!("{absent} ({})", absent.remedy()),
    }
}

fn open(host: &HostTopology, name: &str, index: usize, settings: &RdmaSettings) -> Result<Nic, DeviceOpenError> {
    let device = RdmaDevice::open(name)?;
    let invalid = |_| DeviceOpenError::PortNumber { device: name.to_owned(), port: settings.choice.port };
    let port = u8::try_from(settings.choice.port).map_err(invalid)?;
    let address = address(host, &device, port, settings)?;
    let attributes = device.attributes();
    let qps = settings.pairs_per_endpoint;
    let limits = NicLimits {
        qps,
        requests: settings.requests_per_pair.min(attributes.max_qp_wr.max(1)) as usize,
        inline: settings.inline_bytes,
        sge: settings.sge.min(attributes.max_sge.max(1)),
        endpoints: settings.endpoints_max.min((attributes.max_qp as usize / qps).max(1)),
    };
    let entries = settings.completions.min(attributes.max_cqe.max(1));
    let vector = u32::try_from(index).unwrap_or(0);
    let gid = format!("{} {}", address.gid_index, std::net::Ipv6Addr::from(address.gid));
    tracing::info!(device = name, port, %gid, lid = address.lid, mtu = address.mtu, "rdma device is in use");
    Ok(Nic::new(index, device, port, address, limits, entries, vector)?)
}

/// Returns the current address of `device`'s port.
///
/// # Errors
/// Fails if the port is not active or has no usable address.
pub(super) fn address(
    host: &HostTopology,
    device: &RdmaDevice,
    port: u8,
    settings: &RdmaSettings,
) -> Result<PortAddress, DeviceOpenError> {
    let addresses = addresses(host, device, port, settings)?;
    addresses.into_iter().next().ok_or_else(|| DeviceOpenError::NoGid { device: device.name().to_owned(), port })
}

/// Returns the port's addresses: the preferred one, then the addresses to try if the preferred one
/// cannot reach a peer.
///
/// # Errors
/// Same as [`address`].
pub(super) fn addresses(
    host: &HostTopology,
    device: &RdmaDevice,
    port: u8,
    settings: &RdmaSettings,
) -> Result<Vec<PortAddress>, DeviceOpenError> {
    let name = device.name();
    let attributes = device.port(port)?;
    if !attributes.state.is_active() {
        return Err(DeviceOpenError::PortDown { device: name.to_owned(), port, state: attributes.state });
    }
    let described = host.devices.iter().find(|d| d.name == name).and_then(|d| d.port(u32::from(port)));
    let described = described.ok_or_else(|| DeviceOpenError::PortMissing { device: name.to_owned(), port })?;
    let rows = gid::rows(&described.gids, settings.choice.gid_index);
    let rows = rows.map_err(|source| DeviceOpenError::Gid { device: name.to_owned(), port, source })?;
    let address = |row: &&Gid| PortAddress {
        gid_index: row.index,
        gid: row.gid.octets(),
        lid: attributes.lid,
        mtu: attributes.active_mtu.bytes().min(settings.mtu),
    };
    Ok(rows.iter().map(address).collect())
}

/// Returns the topology matrix of devices and memory locations, from the `MC_CUSTOM_TOPO_JSON` file
/// or from the host.
///
/// # Errors
/// Fails if the file has content that is not a valid matrix.
pub(super) fn matrix(host: &HostTopology, names: &[String], settings: &RdmaSettings) -> Result<Matrix, TransferError> {
    let Some(file) = &settings.topology_file else { return Ok(Matrix::of(host, names)) };
    let text = match std::fs::read_to_string(file) {
        Ok(text) if !text.trim().is_empty() => text,
        outcome => {
            let problem = outcome.err().map_or_else(|| "the file is empty".to_owned(), |error| error.to_string());
            tracing::warn!(file, problem, "ignoring MC_CUSTOM_TOPO_JSON");
            return Ok(Matrix::of(host, names));
        }
    };
    Matrix::from_json(&text, names)
        .map_err(|error| no_rdma(format!("{file} (MC_CUSTOM_TOPO_JSON) is not a valid topology matrix: {error}")))
}
