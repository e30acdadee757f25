//! Judges the paths to a peer, check by check.

use std::net::Ipv6Addr;

use crate::peer::explain::{self, Diagnosis, address, row};
use crate::peer::{PeerFacts, PeerProbe};
use crate::{finding, listed, status};
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::counted;
use mcctl_transfer::DeviceStep;
use mcctl_transfer::path_probe::{PathProbeFailure, ProbedDevice, ProbedPath};
use mcctl_wire::json::{SegmentDescriptor, parse_gid};

const TARGET: &str = "if no engine is running yet, start one: mcctl bench transfer --mode target --protocol rdma";

pub(super) fn judge(id: &str, facts: &PeerFacts) -> CheckStatus {
    if let Some(why) = &facts.no_start {
        return match id {
            "peer-connected" => CheckStatus::Found(vec![finding(
                "peer-connected",
                Severity::Error,
                "this host's engine cannot start",
                why.clone(),
                "run mcctl devices and mcctl doctor --only host --protocol rdma to see what is missing",
            )]),
            _ => CheckStatus::Skipped("this host's engine cannot start".to_owned()),
        };
    }
    match id {
        "peer-found" => status(facts.peers.iter().flat_map(found).collect(), || {
            facts.peers.iter().map(announced).collect::<Vec<_>>().join("; ")
        }),
        "peer-connected" => stage(facts, "peer-connected", PeerStage::Connected),
        "peer-answers" => stage(facts, "peer-answers", PeerStage::Answers),
        _ => stage(facts, "peer-packets", PeerStage::Packets),
    }
}

/// Whether the descriptor announces RDMA devices with usable GIDs.
pub(super) fn offers_rdma(descriptor: &SegmentDescriptor) -> bool {
    descriptor.protocol == "rdma" && descriptor.devices.iter().any(|device| gid_of(&device.gid).is_some())
}

fn gid_of(text: &str) -> Option<Ipv6Addr> {
    parse_gid(text).map(Ipv6Addr::from).filter(|gid| !gid.is_unspecified())
}

fn found(peer: &PeerProbe) -> Vec<Finding> {
    let one = |severity, what: String, seen: String, next: &str| finding("peer-found", severity, what, seen, next);
    let descriptor = match &peer.found {
        Ok(descriptor) => descriptor,
        Err(why) => {
            let next = format!(
                "check that it is running (mcctl status lists the nodes by name) and that its port is reachable from this host; {TARGET}"
            );
            return vec![one(Severity::Error, format!("no engine found at {}", peer.segment), why.into(), &next)];
        }
    };
    if descriptor.protocol != "rdma" {
        let seen = format!("its descriptor has protocol {}", descriptor.protocol);
        let next = "start it with --protocol rdma (MOONCAKE_PROTOCOL=rdma); if it already was, it found no device: run mcctl doctor on that host";
        return vec![one(Severity::Error, format!("{} does not use rdma", peer.segment), seen, next)];
    }
    let without: Vec<&str> =
        descriptor.devices.iter().filter(|d| gid_of(&d.gid).is_none()).map(|d| d.name.as_str()).collect();
    if offers_rdma(descriptor) && without.is_empty() {
        return Vec::new();
    }
    let seen = match without.is_empty() {
        true => "its descriptor lists no device".to_owned(),
        false => format!("{} without a usable GID", without.join(", ")),
    };
    let severity = if offers_rdma(descriptor) { Severity::Warning } else { Severity::Error };
    let next = "run mcctl devices on that host to check that its ports are up and have GIDs, then restart the engine";
    vec![one(severity, format!("{} announces unreachable devices", peer.segment), seen, next)]
}

fn announced(peer: &PeerProbe) -> String {
    let devices: Vec<String> = match &peer.found {
        Ok(descriptor) => descriptor
            .devices
            .iter()
            .map(|d| format!("{} {}", d.name, gid_of(&d.gid).map_or_else(|| d.gid.clone(), |gid| address(&gid))))
            .collect(),
        Err(_) => Vec::new(),
    };
    format!("{}: {}", peer.segment, devices.join(", "))
}

/// A stage of testing a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerStage {
    Connected,
    Answers,
    Packets,
}

/// The result of `path` at this stage; `None` if the path did not reach this stage.
fn failure(path: &ProbedPath, stage: PeerStage) -> Option<Result<(), &PathProbeFailure>> {
    let moves = |failure: &PathProbeFailure| matches!(failure.step, DeviceStep::Move | DeviceStep::Post);
    match (stage, &path.attempt.result) {
        (PeerStage::Connected, Err(failure)) if !moves(failure) => Some(Err(failure)),
        (PeerStage::Connected, _) => Some(Ok(())),
        (PeerStage::Answers, Err(failure)) => moves(failure).then_some(Err(failure)),
        (PeerStage::Answers, Ok(_)) => Some(Ok(())),
        (PeerStage::Packets, Err(_)) => None,
        (PeerStage::Packets, Ok(figures)) => figures.read.as_ref().map(|read| read.result.as_ref().map(drop)),
    }
}

/// Whether the path transfers data.
pub(super) fn works(path: &ProbedPath) -> bool {
    path.attempt.works()
}

fn stage(facts: &PeerFacts, id: &'static str, stage: PeerStage) -> CheckStatus {
    let mut findings = Vec::new();
    let mut good = Vec::new();
    let mut seen = 0;
    for peer in &facts.peers {
        let any_works = peer.probes.paths.iter().any(works);
        if stage == PeerStage::Connected {
            findings.extend(
                peer.probes.unused.iter().map(|unused| unused_device(id, &unused.device, &unused.why, any_works)),
            );
        }
        let mut groups: Vec<(Diagnosis, Vec<String>)> = Vec::new();
        for path in &peer.probes.paths {
            let end = &peer.probes.ends[path.end];
            let Some(result) = failure(path, stage) else { continue };
            seen += 1;
            match result {
                Ok(()) => good.push(name(peer, end, path)),
                Err(failure) => {
                    let bytes = path.attempt.result.as_ref().ok().and_then(|figures| figures.read.as_ref());
                    let why = match (stage, bytes) {
                        (PeerStage::Packets, Some(read)) => explain::packets(end, read.bytes, failure),
                        _ => explain::why(end, path, failure),
                    };
                    let line = format!("{}: {}", ends(peer, end, path), failure.message);
                    // A GID tested on one path of a device applies to all its paths.
                    match groups.iter_mut().find(|(other, _)| other.what == why.what) {
                        Some((_, lines)) => lines.push(line),
                        None => groups.push((why, vec![line])),
                    }
                }
            }
        }
        let severity = if any_works { Severity::Warning } else { Severity::Error };
        let rails = rails(peer);
        for (why, lines) in groups {
            let count = counted(lines.len(), "path");
            let next = rails.map_or(why.next.clone(), |hint| format!("{hint}; otherwise {}", why.next));
            findings.push(finding(
                id,
                severity,
                format!("{count} to {}: {}", peer.segment, why.what),
                listed(&lines),
                next,
            ));
        }
    }
    if seen == 0 && findings.is_empty() {
        let nothing = match stage {
            PeerStage::Connected => "no peer with RDMA devices was found",
            PeerStage::Answers => "no path is connected",
            PeerStage::Packets => "no path transfers packets, or the peer has no readable memory",
        };
        return CheckStatus::Skipped(nothing.to_owned());
    }
    status(findings, || format!("{}: {}", counted(good.len(), "path"), listed(&good)))
}

fn unused_device(id: &'static str, device: &str, why: &str, any_works: bool) -> Finding {
    let severity = if any_works { Severity::Info } else { Severity::Warning };
    let next = "run mcctl devices to see its state, its GIDs and what is missing";
    finding(id, severity, format!("{device} on this host is not used"), why, next)
}

/// Detects a rail-optimized network, in which only devices with the same name can reach each other.
fn rails(peer: &PeerProbe) -> Option<&'static str> {
    let probes = &peer.probes;
    let same = |path: &ProbedPath| probes.ends[path.end].device == path.remote;
    let is_so = probes.ends.len() > 1
        && probes.paths.iter().any(works)
        && probes.paths.iter().all(|path| works(path) == same(path));
    is_so.then_some(
        "only devices of the same name reach each other: on a rail-optimized network, set MC_ENABLE_DEST_DEVICE_AFFINITY=1 \
         on every host",
    )
}

fn name(peer: &PeerProbe, end: &ProbedDevice, path: &ProbedPath) -> String {
    let figures = explain::figures(&path.attempt).map(|text| format!(" ({text})")).unwrap_or_default();
    format!("{} to {}@{}{figures}", end.device, peer.segment, path.remote)
}

/// Formats both endpoints with their addresses.
fn ends(peer: &PeerProbe, end: &ProbedDevice, path: &ProbedPath) -> String {
    let local = row(&path.attempt.gid);
    let remote = address(&path.their_gid);
    let state = path.attempt.port_state.map_or_else(String::new, |state| format!(" {state}"));
    format!(
        "{} port {}{state}, {local}, MTU {}, to {}@{} {remote}",
        end.device, end.port, end.mtu, peer.segment, path.remote
    )
}
