//! The report of `mcctl store verify`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::cli::table::{ListTable, wrapped_line};
use crate::engine::base::text::{counted, escaped};
use crate::engine::base::{ByteSize, ErrorCode, ObjectKey};
use crate::engine::store::{ObjectVerification, ReplicaState, StoreError};

/// Maximum number of damaged replicas in a table.
const DAMAGED_SHOWN: usize = 20;

/// What was found about the objects that were verified.
#[derive(Debug, Default)]
pub(super) struct VerifyReport {
    /// Number of keys to verify, and of those that were done.
    expected: usize,
    done: usize,
    objects: u64,
    total: ReplicaCounts,
    nodes: BTreeMap<String, NodeVerification>,
    damaged: Vec<DamagedReplica>,
    skipped: Vec<SkippedObject>,
    /// The first error of a replica that could not be read.
    error: Option<StoreError>,
}

/// Numbers of replicas by their state.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ReplicaCounts {
    replicas: u64,
    /// Bytes of the replicas that were compared with a checksum.
    bytes: u64,
    intact: u64,
    damaged: u64,
    no_checksum: u64,
    unreadable: u64,
}

#[derive(Debug, Default)]
struct NodeVerification {
    counts: ReplicaCounts,
    /// The first error of a replica that could not be read.
    error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct DamagedReplica {
    key: String,
    node: String,
    address: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct SkippedObject {
    key: String,
    reason: SkipReason,
}

/// Why an object has no replica to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum SkipReason {
    /// The object does not exist.
    Missing,
    /// A put of the key has not finished.
    Unfinished,
    /// The object was rewritten or moved each time that it was read.
    Changed,
    /// No complete replica is in a node's memory.
    NoMemoryReplica,
    /// The master returned another error code.
    Rejected,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct VerifyDocument<'a> {
    schema: &'static str,
    /// Whether all keys were done.
    complete: bool,
    objects: u64,
    #[serde(flatten)]
    total: ReplicaCounts,
    nodes: Vec<NodeEntry<'a>>,
    damaged_replicas: &'a [DamagedReplica],
    skipped: &'a [SkippedObject],
}

#[derive(Debug, Serialize)]
struct NodeEntry<'a> {
    node: &'a str,
    #[serde(flatten)]
    counts: ReplicaCounts,
    error: Option<&'a str>,
}

impl ReplicaCounts {
    fn add(&mut self, state: &ReplicaState, bytes: u64) {
        self.replicas += 1;
        match state {
            ReplicaState::Intact => self.intact += 1,
            ReplicaState::Damaged => self.damaged += 1,
            ReplicaState::NoChecksum => self.no_checksum += 1,
            ReplicaState::Unreadable(_) => self.unreadable += 1,
        }
        if matches!(state, ReplicaState::Intact | ReplicaState::Damaged) {
            self.bytes += bytes;
        }
    }
}

impl SkipReason {
    fn of(error: &StoreError) -> SkipReason {
        match error {
            StoreError::NoReplica { .. } => SkipReason::NoMemoryReplica,
            StoreError::LookupLost { .. } => SkipReason::Changed,
            error => match error.code() {
                ErrorCode::OBJECT_NOT_FOUND => SkipReason::Missing,
                ErrorCode::REPLICA_IS_NOT_READY => SkipReason::Unfinished,
                _ => SkipReason::Rejected,
            },
        }
    }

    fn text(self) -> &'static str {
        match self {
            SkipReason::Missing => "missing",
            SkipReason::Unfinished => "with an unfinished put",
            SkipReason::Changed => "changed during each read",
            SkipReason::NoMemoryReplica => "without a replica in memory",
            SkipReason::Rejected => "rejected by the master",
        }
    }
}

impl VerifyReport {
    /// Sets the number of keys to verify.
    pub(super) fn expect(&mut self, keys: usize) {
        self.expected = keys;
    }

    /// Adds the result of a key.
    pub(super) fn add(&mut self, key: &ObjectKey, object: Result<ObjectVerification, StoreError>) {
        self.done += 1;
        let name = || String::from_utf8_lossy(key.as_bytes()).into_owned();
        let object = match object {
            Ok(object) => object,
            Err(error) => {
                self.skipped.push(SkippedObject { key: name(), reason: SkipReason::of(&error) });
                return;
            }
        };
        self.objects += 1;
        for replica in object.replicas {
            self.total.add(&replica.state, object.size);
            let node = self.nodes.entry(replica.endpoint.clone()).or_default();
            node.counts.add(&replica.state, object.size);
            match replica.state {
                ReplicaState::Damaged => self.damaged.push(DamagedReplica {
                    key: name(),
                    node: replica.endpoint,
                    address: replica.address,
                    bytes: object.size,
                }),
                ReplicaState::Unreadable(error) => {
                    node.error.get_or_insert_with(|| error.to_string());
                    self.error.get_or_insert(error);
                }
                ReplicaState::Intact | ReplicaState::NoChecksum => {}
            }
        }
    }

    /// Whether no key is done.
    pub(super) fn is_empty(&self) -> bool {
        self.done == 0
    }

    /// Whether a replica is damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.total.damaged > 0
    }

    /// The objects that were not verified, with the reasons.
    pub(super) fn skipped(&self) -> impl ExactSizeIterator<Item = (&str, &'static str)> {
        self.skipped.iter().map(|object| (object.key.as_str(), object.reason.text()))
    }

    /// The first error of a replica that could not be read, if nothing worse was found.
    pub(super) fn cannot_read(&self) -> Option<&StoreError> {
        self.error.as_ref().filter(|_| !self.is_damaged())
    }

    /// The report as a document.
    pub(super) fn document(&self) -> VerifyDocument<'_> {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|(node, found)| NodeEntry { node, counts: found.counts, error: found.error.as_deref() });
        VerifyDocument {
            schema: "mcctl.store.verify/1",
            complete: self.done == self.expected,
            objects: self.objects,
            total: self.total,
            nodes: nodes.collect(),
            damaged_replicas: &self.damaged,
            skipped: &self.skipped,
        }
    }

    /// The report as text of at most `width` columns.
    pub(super) fn text(&self, width: usize) -> String {
        let ReplicaCounts { replicas, bytes, intact, damaged, no_checksum, unreadable } = self.total;
        let mut lines = vec![match (damaged, intact) {
            (0, 0) => "no replica was compared with a checksum".to_owned(),
            (0, _) => "no damage found".to_owned(),
            _ => format!("{damaged} of {} damaged", counted(replicas, "replica")),
        }];
        lines.push(format!(
            "{}, {}: {intact} intact, {damaged} damaged, {no_checksum} without a checksum, {unreadable} unreadable; {} compared",
            counted(self.objects, "object"),
            counted(replicas, "replica"),
            ByteSize(bytes)
        ));
        let mut reasons = BTreeMap::new();
        self.skipped.iter().for_each(|object| *reasons.entry(object.reason).or_insert(0u64) += 1);
        if !reasons.is_empty() {
            let reasons = reasons.iter().map(|(reason, count)| format!("{count} {}", reason.text()));
            lines.push(format!("not verified: {}", reasons.collect::<Vec<_>>().join(", ")));
        }
        if self.done < self.expected {
            lines.push(format!("stopped after {} of {}", self.done, counted(self.expected as u64, "object")));
        }
        let mut text: String = lines.iter().map(|line| wrapped_line(line, width)).collect();
        if !self.nodes.is_empty() {
            text.push('\n');
            text.push_str(&self.node_table());
        }
        for (node, found) in &self.nodes {
            if let Some(error) = &found.error {
                text.push_str(&wrapped_line(&format!("{node}: {error}"), width));
            }
        }
        if !self.damaged.is_empty() {
            text.push('\n');
            text.push_str(&self.damaged_table());
        }
        if let Some(more @ 1..) = self.damaged.len().checked_sub(DAMAGED_SHOWN) {
            text.push_str(&format!("and {more} more; --json lists all\n"));
        }
        text
    }

    fn node_table(&self) -> String {
        let header = ["NODE", "REPLICAS", "COMPARED", "INTACT", "DAMAGED", "NO CHECKSUM", "UNREADABLE"];
        let mut table = ListTable::new(header, &[1, 2, 3, 4, 5, 6]);
        for (node, NodeVerification { counts, .. }) in &self.nodes {
            table.row([
                escaped(node),
                counts.replicas.to_string(),
                ByteSize(counts.bytes).to_string(),
                counts.intact.to_string(),
                counts.damaged.to_string(),
                counts.no_checksum.to_string(),
                counts.unreadable.to_string(),
            ]);
        }
        table.text()
    }

    fn damaged_table(&self) -> String {
        let mut table = ListTable::new(["DAMAGED KEY", "NODE", "ADDRESS", "SIZE"], &[3]);
        for damaged in self.damaged.iter().take(DAMAGED_SHOWN) {
            table.row([
                escaped(&damaged.key),
                escaped(&damaged.node),
                format!("0x{:x}", damaged.address),
                ByteSize(damaged.bytes).to_string(),
            ]);
        }
        table.text()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::store::ReplicaVerification;

    fn object(size: u64, states: &[(&str, ReplicaState)]) -> ObjectVerification {
        let replica = |(endpoint, state): &(&str, ReplicaState)| ReplicaVerification {
            endpoint: (*endpoint).to_owned(),
            address: 0x1000,
            reads: 1,
            state: state.clone(),
        };
        ObjectVerification { size, replicas: states.iter().map(replica).collect() }
    }

    fn report(objects: Vec<(&str, Result<ObjectVerification, StoreError>)>) -> VerifyReport {
        let mut report = VerifyReport::default();
        report.expect(objects.len());
        objects.into_iter().for_each(|(key, object)| report.add(&ObjectKey::from(key), object));
        report
    }

    fn unreadable() -> ReplicaState {
        ReplicaState::Unreadable(StoreError::NoReplica { key: "c".into(), replicas: 1 })
    }

    fn mixed() -> VerifyReport {
        use ReplicaState::{Damaged, Intact, NoChecksum};
        let gone = StoreError::Refused { what: "BatchGetReplicaList", code: ErrorCode::OBJECT_NOT_FOUND };
        report(vec![
            ("a", Ok(object(1024, &[("n1:1", Intact), ("n2:1", Intact)]))),
            ("b\u{1b}", Ok(object(2048, &[("n1:1", Damaged), ("n2:1", Intact)]))),
            ("c", Ok(object(100, &[("n2:1", unreadable())]))),
            ("d", Ok(object(100, &[("n2:1", NoChecksum)]))),
            ("e", Err(gone)),
            ("f", Err(StoreError::LookupLost { key: "f".into() })),
        ])
    }

    #[test]
    fn the_text_begins_with_the_result_and_counts_by_node() {
        insta::assert_snapshot!(mixed().text(100), @r"
        1 of 6 replicas damaged
        4 objects, 6 replicas: 3 intact, 1 damaged, 1 without a checksum, 1 unreadable; 6 KiB compared
        not verified: 1 missing, 1 changed during each read

         NODE  REPLICAS  COMPARED  INTACT  DAMAGED  NO CHECKSUM  UNREADABLE
         n1:1         2     3 KiB       1        1            0           0
         n2:1         4     3 KiB       2        0            1           1
        n2:1: object 'c' has no readable memory replica (1 replicas listed)

         DAMAGED KEY  NODE  ADDRESS   SIZE
         b\u{1b}      n1:1  0x1000   2 KiB
        ");
    }

    #[test]
    fn the_document_has_totals_nodes_and_damaged_replicas() {
        let document = serde_json::to_value(mixed().document()).expect("JSON");
        let counts = |intact: u64, damaged: u64, no_checksum: u64, unreadable: u64, bytes: u64| {
            let replicas = intact + damaged + no_checksum + unreadable;
            json!({"replicas": replicas, "bytes": bytes, "intact": intact, "damaged": damaged, "no_checksum": no_checksum,
                "unreadable": unreadable})
        };
        let merged = |mut base: Value, more: Value| {
            base.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            base
        };
        let error = "object 'c' has no readable memory replica (1 replicas listed)";
        let expected = json!({
            "schema": "mcctl.store.verify/1",
            "complete": true,
            "objects": 4,
            "nodes": [
                merged(counts(1, 1, 0, 0, 3072), json!({"node": "n1:1", "error": null})),
                merged(counts(2, 0, 1, 1, 3072), json!({"node": "n2:1", "error": error})),
            ],
            "damaged_replicas": [{"key": "b\u{1b}", "node": "n1:1", "address": 4096, "bytes": 2048}],
            "skipped": [{"key": "e", "reason": "missing"}, {"key": "f", "reason": "changed"}],
        });
        assert_eq!(document, merged(expected, counts(3, 1, 1, 1, 6144)));
    }

    #[test]
    fn the_text_lists_twenty_damaged_replicas_and_the_document_all() {
        let damaged = || object(1, &[("n:1", ReplicaState::Damaged)]);
        let mut report = report((0..25).map(|_| ("k", Ok(damaged()))).collect());
        let text = report.text(100);
        assert_eq!(text.lines().filter(|line| line.starts_with(" k ")).count(), 20);
        assert!(text.ends_with("\nand 5 more; --json lists all\n"), "{text}");
        assert_eq!(report.document().damaged_replicas.len(), 25);
        assert!(report.document().complete);
        report.expect(30);
        assert!(!report.document().complete && report.text(100).contains("\nstopped after 25 of 30 objects\n"));
    }

    #[test]
    fn damage_is_worse_than_an_unreadable_replica() {
        let both = mixed();
        assert!(both.is_damaged() && both.skipped().len() == 2 && both.cannot_read().is_none());
        let one = report(vec![("c", Ok(object(1, &[("n:1", unreadable())])))]);
        assert!(!one.is_damaged() && one.skipped().len() == 0 && one.cannot_read().is_some());
        assert!(one.text(100).starts_with("no replica was compared with a checksum\n"));
    }
}
