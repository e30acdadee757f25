//! The caveats of the report: why calls to the store may fail although the master responds, or what
//! will be lost.

use std::time::Duration;

use thiserror::Error;

use crate::commands::cli::args::show_duration;
use crate::commands::status::data_dir::DataDirStatus;
use crate::commands::status::segments::{SegmentStatusEntry, names, whole_seconds};
use crate::commands::status::{HEARTBEAT, StatusDocument, heartbeat, masters, missed};
use crate::engine::base::ByteSize;
use crate::engine::base::text::counted;
use crate::engine::base::text::escaped;

/// A reason why calls to the store may fail even though the master responds.
#[derive(Clone, Debug, PartialEq, Error)]
pub(super) enum StatusCaveat {
    #[error("no node has mounted a segment, so every put fails")]
    NoSegments,
    #[error(
        "{segment}: no heartbeat for {}, {missed} missed; after {}, the master removes the node, and its objects are lost",
        show_duration(*.age), after(*.expires_s)
    )]
    HeartbeatsMissed { segment: String, age: Duration, missed: u64, expires_s: Option<u64> },
    #[error(
        "{segment}: two rows, because its process has restarted. The old client has sent no heartbeat for {}. Its objects cannot be \
         read, and puts into its memory fail, until its row is removed after {}",
        show_duration(*.age), after(*.expires_s)
    )]
    Replaced { segment: String, age: Duration, expires_s: Option<u64> },
    #[error(
        "{}: restored objects ({}) wait for a heartbeat of {segments}. Until then, reads do not find them, and puts of their keys are refused. \
         They are lost after {seconds} s without one",
        if *.nodes == 1 { "a node is missing".to_owned() } else { format!("{} nodes are missing", .nodes) },
        counted(*.replicas, "replica")
    )]
    Unconfirmed { segments: String, nodes: usize, replicas: u64, seconds: u64 },
    #[error(
        "{segments}: reads work, but no new objects are stored there for {seconds} s, while a late write from before may still arrive{}",
        if *.is_all { ". Every put fails until then: no other segment is mounted" } else { "" }
    )]
    Held { segments: String, seconds: u64, is_all: bool },
    #[error(
        "puts fail for lack of memory ({rate:.1}/s): {} of {} are used. Pinned objects, and those under a read lease, are not evicted. Add a \
         node, or remove pinned objects; the master's log has details",
        ByteSize(*.used), ByteSize(*.capacity)
    )]
    NoMemory { rate: f64, used: u64, capacity: u64 },
    #[error("node {0} is unreachable")]
    NodeUnreachable(String),
    #[error("{error}: the leader serves {}, and no failover is possible until etcd responds", outage(*.left, *.has_standby))]
    LeaderWithoutEtcd { error: String, left: Option<u64>, has_standby: bool },
    #[error("{0}: this standby cannot be promoted until etcd responds")]
    StandbyWithoutEtcd(String),
    #[error(
        "this leader cannot prove that it leads, so all calls wait until etcd responds, or another master is elected"
    )]
    Fenced,
    #[error(
        "after a disk error, the master continues without its data directory: its next restart loses all keys. Check the disk, and restart it at a \
         quiet time with --discard-data once"
    )]
    MemoryOnly,
    #[error("no standby is in sync: a failover now loses keys")]
    NoStandbyInSync,
    #[error("this standby cannot be promoted without loss: {0}")]
    NotPromotable(String),
    #[error(
        "{host}: {} for {method} cannot be decoded{}. Its client may be newer than this mcctl; see the section on requests of an unknown release in docs/TROUBLESHOOTING.md",
        counted(*.requests, "request"),
        if .release.is_empty() { String::new() } else { format!("; its other calls are those of {}", escaped(.release)) }
    )]
    UnknownRequests { host: String, method: String, requests: u64, release: String },
    #[error("node {node} read damaged objects from {segment}: checksum mismatches: {count}")]
    ChecksumMismatches { node: String, segment: String, count: u64 },
    #[error("node {node}: the memory of host {host} is suspect: ten checksum mismatches within a minute")]
    SuspectHost { node: String, host: String },
    #[error(
        "{} may have wrong bytes: the client started the write again, and ended it over another connection",
        counted(*.0, "object")
    )]
    SuspiciousWrites(u64),
    #[error(
        "the data directory's disk is almost full: {} free. Until the next snapshot is complete, the master may need {}: {} for the snapshot, {} \
         for the log. On a full disk, the master stops, or continues without the directory (--on-disk-error)",
        ByteSize(.0.free_bytes),
        ByteSize(.0.needed_bytes),
        ByteSize(.0.snapshot_bytes),
        ByteSize(.0.log_bytes)
    )]
    DiskAlmostFull(DataDirStatus),
}

/// The caveats of a report, in the order in which they are shown.
pub(super) fn caveats(status: &StatusDocument<'_>) -> Vec<StatusCaveat> {
    let mut caveats = Vec::new();
    if status.ready && status.segments.is_empty() {
        caveats.push(StatusCaveat::NoSegments);
    }
    caveats.extend(segment_caveats(status));
    let is_closed = caveats.iter().any(|caveat| matches!(caveat, StatusCaveat::Held { is_all: true, .. }));
    if let Some(rates) = status.rates.filter(|rates| rates.failed_allocations > 0.0 && !is_closed) {
        let rate = rates.failed_allocations;
        let used = status.used_bytes;
        let capacity = status.capacity_bytes;
        caveats.push(StatusCaveat::NoMemory { rate, used, capacity });
    }
    let is_fenced = !status.ready && status.keys_of_copy.is_none() && status.masters.is_some();
    if let Some(error) = status.etcd_error.map(escaped).filter(|_| !is_fenced) {
        caveats.push(match status.keys_of_copy {
            None => StatusCaveat::LeaderWithoutEtcd {
                error,
                left: status.etcd_outage_left_ms.map(|ms| ms / 1000),
                has_standby: status.masters.as_deref().is_some_and(masters::has_standby_in_sync),
            },
            Some(_) => StatusCaveat::StandbyWithoutEtcd(error),
        });
    }
    if is_fenced {
        caveats.push(StatusCaveat::Fenced);
    }
    if status.memory_only == Some(true) {
        caveats.push(StatusCaveat::MemoryOnly);
    }
    if status.keys_of_copy.is_none() && status.masters.as_deref().is_some_and(|all| !masters::has_standby_in_sync(all))
    {
        caveats.push(StatusCaveat::NoStandbyInSync);
    }
    caveats.extend(status.not_promotable.map(|why| StatusCaveat::NotPromotable(escaped(why))));
    let failed = status.nodes.iter().filter(|node| node.has_failed());
    caveats.extend(failed.map(|node| StatusCaveat::NodeUnreachable(node.at().to_owned())));
    for node in &status.nodes {
        let at = || node.at().to_owned();
        caveats.extend(node.mismatches().map(|(segment, count)| StatusCaveat::ChecksumMismatches {
            node: at(),
            segment: escaped(segment),
            count,
        }));
        let suspects = node.suspect_peers().iter();
        caveats.extend(suspects.map(|host| StatusCaveat::SuspectHost { node: at(), host: escaped(host) }));
    }
    let suspicious = status.completed_writes.map(|writes| writes.suspicious).filter(|count| *count > 0);
    caveats.extend(suspicious.map(StatusCaveat::SuspiciousWrites));
    let unknown = status.unknown_requests.iter().map(|found| StatusCaveat::UnknownRequests {
        host: escaped(&found.host),
        method: escaped(&found.method),
        requests: found.requests,
        release: found.release.clone(),
    });
    caveats.extend(unknown);
    let almost_full = status.data_dir.filter(|dir| dir.is_almost_full() && status.memory_only != Some(true));
    caveats.extend(almost_full.map(StatusCaveat::DiskAlmostFull));
    caveats
}

/// The caveats about single segments. Those that concern many segments at once, as after a
/// failover, are one caveat.
fn segment_caveats(status: &StatusDocument<'_>) -> Vec<StatusCaveat> {
    let mut caveats = Vec::new();
    for entry in &status.segments {
        let Some(age) = heartbeat(status, entry).map(|age| Duration::from_secs(age.as_secs())) else { continue };
        let segment = escaped(entry.segment_name);
        let expires_s = entry.expires_ms.map(whole_seconds);
        if entry.replaced_by.is_some() {
            caveats.push(StatusCaveat::Replaced { segment, age, expires_s });
        } else if heartbeat(status, entry).is_some_and(|age| missed(age) >= 2) {
            let missed = missed(age + HEARTBEAT / 2);
            caveats.push(StatusCaveat::HeartbeatsMissed { segment, age, missed, expires_s });
        }
    }
    let all = || status.segments.iter();
    if let Some(ms) = all().filter_map(|entry| entry.unconfirmed_ms).max() {
        let unconfirmed = || all().filter(|entry| entry.unconfirmed_ms.is_some());
        let mut nodes: Vec<&str> = unconfirmed().map(|entry| entry.client_id).collect();
        nodes.sort_unstable();
        nodes.dedup();
        caveats.push(StatusCaveat::Unconfirmed {
            segments: names(unconfirmed()),
            nodes: nodes.len(),
            replicas: unconfirmed().filter_map(|entry| entry.unconfirmed_replicas).sum(),
            seconds: whole_seconds(ms),
        });
    }
    if let Some(ms) = all().filter_map(|entry| entry.held_ms).max() {
        let is_closed = |entry: &SegmentStatusEntry<'_>| entry.held_ms.is_some() || entry.unconfirmed_ms.is_some();
        caveats.push(StatusCaveat::Held {
            segments: names(all().filter(|entry| entry.held_ms.is_some())),
            seconds: whole_seconds(ms),
            is_all: all().all(is_closed),
        });
    }
    caveats
}

/// The time until a client expires, for a sentence.
fn after(expires_s: Option<u64>) -> String {
    expires_s.map_or_else(|| "--client-ttl".to_owned(), |seconds| format!("{seconds} s more"))
}

/// For how long a leader serves without etcd. `left` is in seconds; `None`: the time is not
/// limited.
fn outage(left: Option<u64>, has_standby: bool) -> String {
    match (left, has_standby) {
        (None, _) => "while its standbys in sync respond".to_owned(),
        (Some(left), false) => format!("for {left} s more, then all calls wait"),
        (Some(left), true) => format!(
            "for {left} s more while its standbys in sync respond, then all calls wait (--when-not-in-sync promote-after)"
        ),
    }
}
