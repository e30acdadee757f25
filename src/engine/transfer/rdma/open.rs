//! Opening the host's devices: which, at which port, with which address, within which limits.

use std::path::Path;
use std::sync::Arc;

use crate::engine::sys::Tree;
use crate::engine::sys::verbs::{self, Absent, Device};
use crate::engine::topology::{Choice, Gid, Host, LeftOut, Matrix};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::rdma::fault::{Blame, RdmaFault, RdmaStep};
use crate::engine::transfer::rdma::gid;
use crate::engine::transfer::rdma::nic::{Limits, Nic, Place};
use crate::engine::transfer::rdma::settings::{RdmaSettings, RdmaWish};
use crate::engine::transfer::rdma::trial::Unused;

/// What this host has, as its files say.
///
/// # Errors
/// They cannot be read.
pub(super) fn host() -> Result<Host, TransferError> {
    let tree = Tree::new(Path::new("/")).map_err(|error| no_rdma(format!("/: {error}")))?;
    Ok(Host::read(&tree))
}

fn no_rdma(why: String) -> TransferError {
    TransferError::NoRdma { why }
}

/// Open the devices that `wish` and `settings` ask for: those of them that can be used, at least one; and the others, each with why.
///
/// # Errors
/// None can be used, and why each cannot.
pub(super) fn nics(
    host: &Host,
    wish: &RdmaWish,
    settings: &RdmaSettings,
) -> Result<(Vec<Arc<Nic>>, Vec<Unused>), TransferError> {
    // Says what is missing, where verbs cannot be had at all.
    let listed = verbs::devices().map_err(|absent| no_rdma(told(&absent)))?;
    let (names, mut unused) = names(host, wish, settings);
    if names.is_empty() {
        let why: Vec<&str> = unused.iter().map(|unused| unused.why.as_str()).collect();
        let why = if why.is_empty() { "there is no RDMA device".to_owned() } else { why.join("; ") };
        let next = if wish.devices.is_empty() { "; name the devices to use with --device-name" } else { "" };
        return Err(no_rdma(format!("{why}{next}")));
    }
    let (mut nics, mut problems) = (Vec::new(), Vec::new());
    let is_there = |name: &String| listed.iter().any(|device| device.name == *name);
    let not_there = |name: &str| {
        let there: Vec<&str> = listed.iter().map(|device| device.name.as_str()).collect();
        format!("{name}: there is no such device; there are {}", there.join(", "))
    };
    // A host that has devices is not one without RDMA: TCP does not take the place of a name that is wrong.
    if !wish.devices.is_empty() && !listed.is_empty() && !names.iter().any(is_there) {
        return Err(TransferError::Rdma(Arc::new(RdmaFault {
            device: String::new(),
            port: 0,
            gid: String::new(),
            peer: String::new(),
            step: RdmaStep::Open,
            problem: not_there(&names.join(", ")),
            blame: Blame::Device,
            remedy: Some("give --device-name names that mcctl devices lists"),
        })));
    }
    for name in names {
        if !is_there(&name) {
            problems.push(Unused { why: not_there(&name), device: name });
            continue;
        }
        match open(host, &name, nics.len(), settings) {
            Ok(nic) => nics.push(Arc::new(nic)),
            Err(why) => problems.push(Unused { device: name, why }),
        }
    }
    if nics.is_empty() {
        let why: Vec<&str> = problems.iter().map(|problem| problem.why.as_str()).collect();
        return Err(no_rdma(why.join("; ")));
    }
    for Unused { why, .. } in &problems {
        tracing::warn!(problem = %why, "device is not used");
    }
    unused.extend(problems);
    Ok((nics, unused))
}

/// The devices to open, and those that are left alone without being tried.
fn names(host: &Host, wish: &RdmaWish, settings: &RdmaSettings) -> (Vec<String>, Vec<Unused>) {
    if wish.devices.is_empty() {
        let (choice, _) = Choice::of(host, &settings.choice);
        let picked = choice.picked.into_iter().map(|picked| picked.device).collect();
        let unused = |out: LeftOut| Unused { why: format!("{}: {}", out.device, out.why), device: out.device };
        return (picked, choice.left_out.into_iter().map(unused).collect());
    }
    let (mut names, mut unused) = (Vec::<String>::new(), Vec::new());
    let filtered = |name: &String| settings.choice.filter.as_ref().is_some_and(|only| !only.contains(name));
    for name in &wish.devices {
        if filtered(name) {
            unused.push(Unused { device: name.clone(), why: format!("{name}: MC_TE_FILTERS does not name it") });
        } else if !names.contains(name) {
            names.push(name.clone());
        }
    }
    (names, unused)
}

/// Why verbs cannot be had, and what to do.
fn told(absent: &Absent) -> String {
    match absent {
        Absent::Failed(error) => error.to_string(),
        absent => format!("{absent} ({})", absent.remedy()),
    }
}

fn open(host: &Host, name: &str, index: usize, settings: &RdmaSettings) -> Result<Nic, String> {
    let device = Device::open(name).map_err(|absent| told(&absent))?;
    let port = u8::try_from(settings.choice.port)
        .map_err(|_| format!("{name}: MC_IB_PORT={} is no port: they count from 1 to 255", settings.choice.port))?;
    let place = place(host, &device, port, settings)?;
    let attributes = device.attributes();
    let pairs = settings.pairs_per_endpoint;
    let limits = Limits {
        pairs,
        requests: settings.requests_per_pair.min(attributes.max_qp_wr.max(1)) as usize,
        inline: settings.inline_bytes,
        sge: settings.sge.min(attributes.max_sge.max(1)),
        endpoints: settings.endpoints_max.min((attributes.max_qp as usize / pairs).max(1)),
    };
    let entries = settings.completions.min(attributes.max_cqe.max(1));
    let vector = u32::try_from(index).unwrap_or(0);
    let gid = format!("{} {}", place.gid_index, std::net::Ipv6Addr::from(place.gid));
    tracing::info!(device = name, port, %gid, lid = place.lid, mtu = place.mtu, "rdma device is in use");
    Nic::new(index, device, port, place, limits, entries, vector).map_err(|error| error.to_string())
}

/// The address of `device`'s port now.
///
/// # Errors
/// It carries no data, or has no address that can be used.
pub(super) fn place(host: &Host, device: &Device, port: u8, settings: &RdmaSettings) -> Result<Place, String> {
    let places = places(host, device, port, settings)?;
    places.into_iter().next().ok_or_else(|| format!("{}: port {port} has no GID", device.name()))
}

/// The same with those to try in turn where it does not lead to a peer.
///
/// # Errors
/// As [`place`].
pub(super) fn places(host: &Host, device: &Device, port: u8, settings: &RdmaSettings) -> Result<Vec<Place>, String> {
    let name = device.name();
    let attributes = device.port(port).map_err(|error| error.to_string())?;
    if !attributes.state.is_active() {
        return Err(format!("{name}: port {port} is {}, not ACTIVE: is the link up?", attributes.state));
    }
    let described = host.devices.iter().find(|d| d.name == name).and_then(|d| d.port(u32::from(port)));
    let described = described.ok_or_else(|| format!("{name}: /sys does not show port {port}"))?;
    let rows = gid::rows(&described.gids, settings.choice.gid_index);
    let rows = rows.map_err(|none| format!("{name}: port {port}: {none}"))?;
    let place = |row: &&Gid| Place {
        gid_index: row.index,
        gid: row.gid.octets(),
        lid: attributes.lid,
        mtu: attributes.active_mtu.bytes().min(settings.mtu),
    };
    Ok(rows.iter().map(place).collect())
}

/// Which devices are near which memory: as the file of `MC_CUSTOM_TOPO_JSON` says, or the host.
///
/// # Errors
/// The file is there and is no matrix.
pub(super) fn matrix(host: &Host, names: &[String], settings: &RdmaSettings) -> Result<Matrix, TransferError> {
    let Some(file) = &settings.topology_file else { return Ok(Matrix::of(host, names)) };
    let text = match std::fs::read_to_string(file) {
        Ok(text) if !text.trim().is_empty() => text,
        outcome => {
            let problem = outcome.err().map_or_else(|| "it is empty".to_owned(), |error| error.to_string());
            tracing::warn!(file, problem, "MC_CUSTOM_TOPO_JSON is not used");
            return Ok(Matrix::of(host, names));
        }
    };
    Matrix::from_json(&text, names)
        .map_err(|error| no_rdma(format!("{file} (MC_CUSTOM_TOPO_JSON) is not a topology matrix: {error}")))
}
