//! The segments in the report, with what an operator must notice about each.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::commands::status::missed;
use crate::engine::admin::MasterStatus;
use crate::engine::admin::types::SegmentDetail;
use crate::engine::base::HostPort;
use crate::engine::base::text::escaped;

/// A segment in the JSON document: the fields that are shown, under their names in the admin HTTP
/// API, and what follows from them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SegmentStatusEntry<'a> {
    pub segment_name: &'a str,
    pub segment_id: &'a str,
    pub client_id: &'a str,
    pub size_bytes: u64,
    pub te_endpoint: &'a str,
    pub protocol: &'a str,
    pub status: &'a str,
    /// Bytes in use in this segment; `null` if no segment of another client has its name, or the
    /// master does not report it.
    pub used_bytes: Option<u64>,
    pub allocator_used_bytes: u64,
    pub allocator_capacity_bytes: u64,
    /// Milliseconds for which the segment accepts no new objects; `null` if it does.
    pub held_ms: Option<u64>,
    /// Milliseconds until the restored segment is dropped, because its node has not called since;
    /// `null` if it has.
    pub unconfirmed_ms: Option<u64>,
    /// With `unconfirmed_ms`: number of replicas that cannot be read until the node calls.
    pub unconfirmed_replicas: Option<u64>,
    /// The client of a newer process of the same node, which sends heartbeats instead of this one;
    /// `null` if there is none.
    pub replaced_by: Option<&'a str>,
    /// Milliseconds until the client expires, unless it calls again; `null` if the master does not
    /// report it.
    pub expires_ms: Option<u64>,
}

impl<'a> From<&'a SegmentDetail> for SegmentStatusEntry<'a> {
    fn from(segment: &'a SegmentDetail) -> SegmentStatusEntry<'a> {
        SegmentStatusEntry {
            segment_name: &segment.segment_name,
            segment_id: &segment.segment_id,
            client_id: &segment.client_id,
            size_bytes: segment.size_bytes,
            te_endpoint: &segment.te_endpoint,
            protocol: &segment.protocol,
            status: &segment.status,
            used_bytes: segment.used_bytes,
            allocator_used_bytes: segment.allocator_used_bytes,
            allocator_capacity_bytes: segment.allocator_capacity_bytes,
            held_ms: segment.held_ms,
            unconfirmed_ms: segment.unconfirmed_ms,
            unconfirmed_replicas: segment.unconfirmed_replicas,
            replaced_by: None,
            expires_ms: None,
        }
    }
}

impl SegmentStatusEntry<'_> {
    /// The use of the segment, and the capacity that this is a part of.
    pub(super) fn usage(&self) -> (u64, u64) {
        match self.used_bytes {
            Some(used) => (used, self.size_bytes),
            None => (self.allocator_used_bytes, self.allocator_capacity_bytes),
        }
    }

    /// The status in the table.
    pub(super) fn shown_status(&self) -> String {
        match (self.replaced_by, self.unconfirmed_ms, self.held_ms) {
            (Some(_), ..) => "replaced".to_owned(),
            (None, Some(_), _) => "waiting for node".to_owned(),
            (None, None, Some(ms)) => format!("{}, no puts for {} s", self.status, whole_seconds(ms)),
            (None, None, None) => self.status.to_owned(),
        }
    }
}

/// Milliseconds as seconds, rounded up.
pub(super) fn whole_seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// The segments of a master, in its order.
pub(super) fn of(status: &MasterStatus) -> Vec<SegmentStatusEntry<'_>> {
    let none = BTreeMap::new();
    let mut entries: Vec<_> = status.segments.iter().map(SegmentStatusEntry::from).collect();
    mark_replaced(&mut entries, status.heartbeats.as_ref().unwrap_or(&none));
    for entry in &mut entries {
        let left = status.expiries.get(entry.client_id);
        entry.expires_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    }
    entries
}

/// Marks the segments of a client that has missed a heartbeat, if another client with the same name
/// has not: the node's process has restarted. Processes without a port in their name may share it.
fn mark_replaced(entries: &mut [SegmentStatusEntry<'_>], heartbeats: &BTreeMap<String, Duration>) {
    let missed_of = |entry: &SegmentStatusEntry<'_>| heartbeats.get(entry.client_id).map(|age| missed(*age));
    let mut alive = BTreeMap::new();
    for entry in entries.iter().filter(|entry| missed_of(entry) == Some(0)) {
        alive.insert(entry.segment_name, entry.client_id);
    }
    for entry in entries {
        let has_port = HostPort::split(entry.segment_name).is_ok_and(|(_, port)| port.is_some());
        if has_port && missed_of(entry).is_some_and(|missed| missed > 0) {
            entry.replaced_by = alive.get(entry.segment_name).copied();
        }
    }
}

/// The names of segments for a message; a longer list is cut.
pub(super) fn names<'a>(segments: impl Iterator<Item = &'a SegmentStatusEntry<'a>>) -> String {
    const SHOWN_MAX: usize = 3;
    let mut names: Vec<String> = Vec::new();
    for segment in segments {
        let name = escaped(segment.segment_name);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(SHOWN_MAX);
    names.truncate(SHOWN_MAX);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(name: &str, client: &str) -> SegmentDetail {
        SegmentDetail { segment_name: name.to_owned(), client_id: client.to_owned(), ..SegmentDetail::default() }
    }

    #[test]
    fn a_client_without_heartbeats_is_replaced_by_one_with_its_name() {
        let segments = [
            segment("n:1", "old"),
            segment("n:1", "new"),
            segment("m:1", "missing"),
            segment("shared", "late"),
            segment("shared", "alive"),
        ];
        let ages = [("old", 3_000), ("new", 400), ("missing", 3_000), ("late", 3_000), ("alive", 100)];
        let heartbeats = ages.map(|(client, ms)| (client.to_owned(), Duration::from_millis(ms))).into();
        let mut entries: Vec<_> = segments.iter().map(SegmentStatusEntry::from).collect();
        mark_replaced(&mut entries, &heartbeats);
        let replaced: Vec<_> = entries.iter().map(|entry| entry.replaced_by).collect();
        assert_eq!(replaced, [Some("new"), None, None, None, None]);
        assert_eq!(entries[0].shown_status(), "replaced");
    }

    #[test]
    fn a_list_of_names_is_cut() {
        let segments = ["a", "b", "b", "c", "d", "e"].map(|name| segment(name, "x"));
        let entries: Vec<_> = segments.iter().map(SegmentStatusEntry::from).collect();
        assert_eq!(names(entries.iter()), "a, b, c and 2 more");
        assert_eq!(names(entries[..2].iter()), "a, b");
    }
}
