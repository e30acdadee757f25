//! What the ways to a peer say, check by check.

use std::net::Ipv6Addr;

use crate::engine::check::{Finding, Severity, Status};
use crate::engine::doctor::peer::explain::{self, Why, address, row};
use crate::engine::doctor::peer::{Facts, Peer};
use crate::engine::doctor::{finding, listed, plural, status};
use crate::engine::transfer::rdma::RdmaStep;
use crate::engine::transfer::rdma::path_probe::{ProbeFailure, ProbedDevice, ProbedPath};
use crate::engine::wire::json::{SegmentDescriptor, parse_gid};

const TARGET: &str = "where nothing runs yet, this is another end: mcctl bench transfer --mode target --protocol rdma";

pub(super) fn judge(id: &str, facts: &Facts) -> Status {
    if let Some(why) = &facts.no_start {
        return match id {
            "peer-connected" => Status::Found(vec![finding(
                "peer-connected",
                Severity::Error,
                "this host's own end cannot be started",
                why.clone(),
                "mcctl devices shows what each device lacks, mcctl doctor --only host --protocol rdma what the host does",
            )]),
            _ => Status::Skipped("this host's own end cannot be started".to_owned()),
        };
    }
    match id {
        "peer-found" => status(facts.peers.iter().flat_map(found).collect(), || {
            facts.peers.iter().map(announced).collect::<Vec<_>>().join("; ")
        }),
        "peer-connected" => stage(facts, "peer-connected", Stage::Connected),
        "peer-answers" => stage(facts, "peer-answers", Stage::Answers),
        _ => stage(facts, "peer-packets", Stage::Packets),
    }
}

/// Can it be reached over RDMA, as far as it says?
pub(super) fn offers_rdma(descriptor: &SegmentDescriptor) -> bool {
    descriptor.protocol == "rdma" && descriptor.devices.iter().any(|device| gid_of(&device.gid).is_some())
}

fn gid_of(text: &str) -> Option<Ipv6Addr> {
    parse_gid(text).map(Ipv6Addr::from).filter(|gid| !gid.is_unspecified())
}

fn found(peer: &Peer) -> Vec<Finding> {
    let one = |severity, what: String, seen: String, next: &str| finding("peer-found", severity, what, seen, next);
    let descriptor = match &peer.found {
        Ok(descriptor) => descriptor,
        Err(why) => {
            let next = format!(
                "see that it runs (mcctl status lists the nodes by name), and that its port can be reached from here; {TARGET}"
            );
            return vec![one(Severity::Error, format!("no engine is found as {}", peer.segment), why.clone(), &next)];
        }
    };
    if descriptor.protocol != "rdma" {
        let seen = format!("its descriptor says protocol {}", descriptor.protocol);
        let next = "start it with --protocol rdma (MOONCAKE_PROTOCOL=rdma); where it was, it found no device: mcctl doctor there";
        return vec![one(Severity::Error, format!("{} does not move its bytes over rdma", peer.segment), seen, next)];
    }
    let without: Vec<&str> =
        descriptor.devices.iter().filter(|d| gid_of(&d.gid).is_none()).map(|d| d.name.as_str()).collect();
    if offers_rdma(descriptor) && without.is_empty() {
        return Vec::new();
    }
    let seen = match without.is_empty() {
        true => "its descriptor lists no device".to_owned(),
        false => format!("{} without a GID that can be used", without.join(", ")),
    };
    let severity = if offers_rdma(descriptor) { Severity::Warning } else { Severity::Error };
    let next = "see there with mcctl devices whether its ports are up and have addresses, and restart it when they are";
    vec![one(severity, format!("{} announces devices that nobody can reach", peer.segment), seen, next)]
}

fn announced(peer: &Peer) -> String {
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

/// How far a way is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connected,
    Answers,
    Packets,
}

/// Does `tried` get to this stage, and over it?
fn failure(tried: &ProbedPath, stage: Stage) -> Option<Result<(), &ProbeFailure>> {
    let moves = |failure: &ProbeFailure| matches!(failure.step, RdmaStep::Move | RdmaStep::Post);
    match (stage, &tried.attempt.result) {
        (Stage::Connected, Err(failure)) if !moves(failure) => Some(Err(failure)),
        (Stage::Connected, _) => Some(Ok(())),
        (Stage::Answers, Err(failure)) => moves(failure).then_some(Err(failure)),
        (Stage::Answers, Ok(_)) => Some(Ok(())),
        (Stage::Packets, Err(_)) => None,
        (Stage::Packets, Ok(figures)) => figures.read.as_ref().map(|read| read.result.as_ref().map(drop)),
    }
}

/// Does it carry bytes?
pub(super) fn works(tried: &ProbedPath) -> bool {
    tried.attempt.works()
}

fn stage(facts: &Facts, id: &'static str, stage: Stage) -> Status {
    let mut findings = Vec::new();
    let (mut good, mut seen) = (Vec::new(), 0);
    for peer in &facts.peers {
        let any_works = peer.trials.ways.iter().any(works);
        if stage == Stage::Connected {
            findings.extend(
                peer.trials.unused.iter().map(|unused| unused_device(id, &unused.device, &unused.why, any_works)),
            );
        }
        let mut groups: Vec<(Why, Vec<String>)> = Vec::new();
        for tried in &peer.trials.ways {
            let end = &peer.trials.ends[tried.end];
            let Some(result) = failure(tried, stage) else { continue };
            seen += 1;
            match result {
                Ok(()) => good.push(name(peer, end, tried)),
                Err(failure) => {
                    let bytes = tried.attempt.result.as_ref().ok().and_then(|figures| figures.read.as_ref());
                    let why = match (stage, bytes) {
                        (Stage::Packets, Some(read)) => explain::packets(end, read.bytes, failure),
                        _ => explain::why(end, tried, failure),
                    };
                    let line = format!("{}: {}", ends(peer, end, tried), failure.message);
                    // A row that was tried on one way of a device is advice for all of them.
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
            let count = plural(lines.len(), "way");
            let next = rails.map_or(why.next.clone(), |hint| format!("{hint}; else {}", why.next));
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
            Stage::Connected => "no peer with RDMA devices is found",
            Stage::Answers => "no way is connected",
            Stage::Packets => "no way carries packets, or the peer offers no memory to read",
        };
        return Status::Skipped(nothing.to_owned());
    }
    status(findings, || format!("{}: {}", plural(good.len(), "way"), listed(&good)))
}

fn unused_device(id: &'static str, device: &str, why: &str, any_works: bool) -> Finding {
    let severity = if any_works { Severity::Info } else { Severity::Warning };
    let next = "mcctl devices shows its state, its addresses and what it lacks";
    finding(id, severity, format!("{device} of this host is not used"), why, next)
}

/// Only devices of one name reach each other, on a network of one rail for each.
fn rails(peer: &Peer) -> Option<&'static str> {
    let trials = &peer.trials;
    let same = |tried: &ProbedPath| trials.ends[tried.end].device == tried.theirs;
    let is_so = trials.ends.len() > 1
        && trials.ways.iter().any(works)
        && trials.ways.iter().all(|tried| works(tried) == same(tried));
    is_so.then_some(
        "only devices of the same name reach each other: on a network of one rail for each, set MC_ENABLE_DEST_DEVICE_AFFINITY=1 \
         on every host",
    )
}

fn name(peer: &Peer, end: &ProbedDevice, tried: &ProbedPath) -> String {
    let figures = explain::figures(&tried.attempt).map(|text| format!(" ({text})")).unwrap_or_default();
    format!("{} to {}@{}{figures}", end.device, peer.segment, tried.theirs)
}

/// Both ends with their addresses.
fn ends(peer: &Peer, end: &ProbedDevice, tried: &ProbedPath) -> String {
    let (ours, theirs) = (row(&tried.attempt.gid), address(&tried.their_gid));
    let state = tried.attempt.port_state.map_or_else(String::new, |state| format!(" {state}"));
    format!(
        "{} port {}{state}, {ours}, MTU {}, to {}@{} {theirs}",
        end.device, end.port, end.mtu, peer.segment, tried.theirs
    )
}
