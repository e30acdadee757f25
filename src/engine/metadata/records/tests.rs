//! Tests of the rules for overwriting records.

use super::*;

/// Writes as one step, as the service makes them.
impl MetadataTable {
    /// Writes `value` under `key`, unless `key` may belong to a live owner.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> WriteOutcome {
        let planned = self.plan_put(key, value);
        self.perform(planned)
    }

    /// Writes `value` once the owner of `key` has failed to respond to a probe, and removes the
    /// owner's segment descriptor. If the record is no longer `current`, another write came first,
    /// and this becomes a normal [`MetadataTable::put`].
    pub(crate) fn take_over(&mut self, key: &[u8], current: &[u8], value: &[u8]) -> WriteOutcome {
        let planned = self.plan_take_over(key, current, value);
        self.perform(planned)
    }

    /// Removes the record under `key`. Returns false if it did not exist.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.plan_remove(key).is_some_and(|change| self.apply(&change))
    }

    fn perform(&mut self, planned: PlannedWrite<'_>) -> WriteOutcome {
        for change in &planned.changes {
            self.apply(change);
        }
        planned.outcome
    }

    /// Removes all records that belong to the owner of `name`.
    pub(crate) fn remove_segment(&mut self, keys: &KeySpace, name: &str) -> RemovedRecords {
        let (removed, changes) = self.plan_remove_segment(keys, name);
        for change in &changes {
            self.apply(change);
        }
        removed
    }
}

const RPC: &[u8] = b"mooncake/rpc_meta/a";
const RAM: &[u8] = b"mooncake/ram/a";

fn meta(port: u16) -> Bytes {
    format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into()
}

fn owned_by(port: u16) -> MetadataTable {
    let mut table = MetadataTable::default();
    assert_eq!(table.put(RPC, &meta(port)), WriteOutcome::Updated);
    assert_eq!(table.put(RAM, b"descriptor"), WriteOutcome::Updated);
    table
}

fn conflict(port: u16) -> WriteOutcome {
    WriteOutcome::Conflict { owner: Some(HostPort::new("127.0.0.1", port)), current: meta(port) }
}

#[test]
fn other_records_are_overwritten_and_an_equal_rpc_meta_is_unchanged() {
    let mut table = owned_by(1);
    assert_eq!(table.put(RAM, b"other"), WriteOutcome::Updated);
    assert_eq!(table.get(RAM), Some("other".into()));
    assert_eq!(table.put(RPC, &meta(1)), WriteOutcome::Unchanged);
}

#[test]
fn a_name_is_not_reassigned_without_probing_its_owner() {
    let mut table = owned_by(1);
    assert_eq!(table.put(RPC, &meta(2)), conflict(1));
    assert_eq!((table.get(RPC), table.get(RAM)), (Some(meta(1)), Some("descriptor".into())));
}

#[test]
fn a_name_that_changes_owners_loses_its_old_descriptor() {
    let mut table = owned_by(1);
    assert_eq!(table.take_over(RPC, &meta(1), &meta(2)), WriteOutcome::Updated);
    assert_eq!((table.get(RPC), table.get(RAM)), (Some(meta(2)), None));
    let mut slashed = MetadataTable::default();
    slashed.put(b"mooncake/x/rpc_meta/n/v", &meta(1));
    slashed.put(b"mooncake/x/n/v", b"descriptor");
    slashed.take_over(b"mooncake/x/rpc_meta/n/v", &meta(1), &meta(2));
    assert_eq!(slashed.get(b"mooncake/x/n/v"), None);
}

#[test]
fn only_one_of_two_concurrent_take_overs_succeeds() {
    let mut table = owned_by(1);
    assert_eq!(table.take_over(RPC, &meta(1), &meta(2)), WriteOutcome::Updated);
    table.put(RAM, b"of the second");
    assert_eq!(table.take_over(RPC, &meta(1), &meta(3)), conflict(2));
    assert_eq!(table.get(RAM), Some("of the second".into()));
}

#[test]
fn an_expired_owner_is_not_probed_unless_it_returns() {
    let keys = KeySpace::default();
    let mut table = owned_by(1);
    table.mark_owner_expired(&keys, "a");
    table.mark_owner_expired(&keys, "never seen");
    assert_eq!(table.put(RPC, &meta(1)), WriteOutcome::Unchanged);
    assert_eq!(table.put(RPC, &meta(2)), conflict(1));
    table.mark_owner_expired(&keys, "a");
    assert_eq!(table.put(RPC, &meta(2)), WriteOutcome::Updated);
    assert_eq!(table.get(RAM), None);
    assert_eq!(table.put(RPC, &meta(3)), conflict(2));
}

#[test]
fn a_later_announcement_of_the_endpoint_frees_only_the_older_name() {
    let mut table = owned_by(1);
    table.put(b"mooncake/rpc_meta/b", &meta(1));
    assert_eq!(table.put(RPC, &meta(2)), WriteOutcome::Updated);
    // In the other direction, b announced later, so it must be probed.
    assert_eq!(table.put(b"mooncake/rpc_meta/b", &meta(3)), conflict(1));
}

#[test]
fn only_current_records_determine_which_endpoints_were_reassigned() {
    let (b, c) = (b"mooncake/rpc_meta/b".as_slice(), b"mooncake/rpc_meta/c".as_slice());
    let mut table = owned_by(1);
    // Announced, then withdrawn in each possible way.
    table.put(b, &meta(1));
    table.remove(b);
    assert_eq!(table.put(RPC, &meta(2)), conflict(1));
    table.put(c, &meta(1));
    table.take_over(c, &meta(1), &meta(9));
    assert_eq!(table.put(RPC, &meta(2)), conflict(1));
    // Not an announcement: the key is not an `rpc_meta` key.
    table.put(b"mooncake/ram/b", &meta(1));
    assert_eq!(table.put(RPC, &meta(2)), conflict(1));
    table.put(b, &meta(1));
    assert_eq!(table.put(RPC, &meta(2)), WriteOutcome::Updated);
    for key in [RPC, b, c] {
        table.remove(key);
    }
    assert!(table.announced.is_empty());
}

#[test]
fn announced_endpoints_are_remembered_only_with_a_plausible_host() {
    let at = |host_bytes: usize| {
        let host = "h".repeat(host_bytes);
        format!("{{\"ip_or_host_name\":\"{host}\",\"rpc_port\":1}}").into_bytes()
    };
    let (b, c) = (b"mooncake/rpc_meta/b", b"mooncake/rpc_meta/c");
    let mut table = MetadataTable::default();
    for key in [RPC, b] {
        assert_eq!(table.put(key, &at(HOST_BYTES_MAX + 1)), WriteOutcome::Updated);
    }
    assert!(table.announced.is_empty());
    // The owner must therefore be probed, although another name has since announced the endpoint.
    assert!(matches!(table.put(RPC, &at(1)), WriteOutcome::Conflict { owner: Some(_), .. }));
    assert_eq!(table.put(c, &at(HOST_BYTES_MAX)), WriteOutcome::Updated);
    assert_eq!(table.announced.len(), 1);
    for key in [RPC, b, c] {
        assert!(table.remove(key));
    }
    assert!(table.announced.is_empty());
}

#[test]
fn an_owner_without_an_address_keeps_the_name() {
    let mut table = MetadataTable::default();
    table.put(RPC, b"{\"x\":1}");
    let current = Bytes::from("{\"x\":1}");
    assert_eq!(table.put(RPC, b"{\"x\":2}"), WriteOutcome::Conflict { owner: None, current });
}

#[test]
fn removing_a_segment_removes_exactly_its_two_records() {
    let mut table = owned_by(1);
    table.put(b"mooncake/ram/b", b"b");
    assert_eq!(table.remove_segment(&KeySpace::default(), "a"), RemovedRecords { ram: true, rpc_meta: true });
    assert_eq!(table.remove_segment(&KeySpace::default(), "a"), RemovedRecords::default());
    assert_eq!((table.len(), table.bytes), (1, "mooncake/ram/b".len() + 1));
}

#[test]
fn a_segment_named_rpc_meta_can_update_its_descriptor() {
    let mut table = MetadataTable::default();
    for key in [b"mooncake/ram/rpc_meta".as_slice(), b"mooncake/my_rpc_meta/x"] {
        assert_eq!(table.put(key, b"1"), WriteOutcome::Updated);
        assert_eq!(table.put(key, b"2"), WriteOutcome::Updated);
    }
}

#[test]
fn a_write_beyond_the_limits_is_refused_without_a_trace() {
    let mut table = MetadataTable { limits: TableBounds { records: 3, bytes: 100 }, ..MetadataTable::default() };
    assert_eq!(table.put(&[b'k'; KEY_BYTES_MAX + 1], b""), WriteOutcome::Full);
    assert_eq!(table.put(b"k", &[0; 100]), WriteOutcome::Full);
    assert!(table.is_empty());
    for key in [b"a", b"b", b"c"] {
        assert_eq!(table.put(key, &[0; 9]), WriteOutcome::Updated);
    }
    assert_eq!(table.put(b"d", b""), WriteOutcome::Full);
    // Existing records may still be changed, within the byte limit.
    assert_eq!(table.put(b"a", &[0; 79]), WriteOutcome::Updated);
    assert_eq!(table.put(b"b", &[0; 10]), WriteOutcome::Full);
    assert_eq!((table.len(), table.bytes), (3, 100));
    assert!(table.remove(b"a"));
    assert_eq!(table.put(b"d", b""), WriteOutcome::Updated);
}

#[test]
fn a_take_over_that_does_not_fit_changes_nothing() {
    let mut table = owned_by(1);
    table.limits = TableBounds { records: 2, bytes: table.bytes };
    assert_eq!(table.take_over(RPC, &meta(1), &[b' '; 100]), WriteOutcome::Full);
    assert_eq!((table.get(RPC), table.get(RAM)), (Some(meta(1)), Some("descriptor".into())));
    // The descriptor's room is available.
    assert_eq!(table.take_over(RPC, &meta(1), &meta(10)), WriteOutcome::Updated);
    assert_eq!((table.get(RPC), table.get(RAM)), (Some(meta(10)), None));
}

#[test]
fn a_write_that_changes_nothing_has_no_changes() {
    let mut table = owned_by(1);
    let planned = table.plan_put(RAM, b"descriptor");
    assert_eq!((planned.outcome, planned.changes.len()), (WriteOutcome::Updated, 0));
    let same = meta(1);
    let other = meta(2);
    let planned = table.plan_put(RPC, &same);
    assert_eq!((planned.outcome, planned.changes.len()), (WriteOutcome::Unchanged, 0));
    assert_eq!(table.plan_put(RPC, &other).changes.len(), 0);
    assert_eq!(table.plan_take_over(RPC, &same, &other).changes.len(), 2);
    assert_eq!(table.plan_remove(b"mooncake/ram/b"), None);
    assert!(!table.apply(&MetadataChange::Remove { key: b"mooncake/ram/b".into() }));
}

#[test]
fn a_table_of_the_same_records_in_the_same_order_decides_alike() {
    let (b, c) = (b"mooncake/rpc_meta/b".as_slice(), b"mooncake/rpc_meta/c".as_slice());
    let mut table = owned_by(1);
    table.put(b, &meta(2));
    table.put(c, &meta(1));
    // Written before c, and now after it.
    table.take_over(b, &meta(2), &meta(1));
    let mut copy = MetadataTable::default();
    for (key, value) in table.image().into_records() {
        copy.apply(&MetadataChange::Put { key: (&*key).into(), value: (&*value).into() });
    }
    for table in [&mut table, &mut copy] {
        assert_eq!(table.put(b, &meta(3)), conflict(1));
        assert_eq!(table.put(c, &meta(3)), WriteOutcome::Updated);
        assert_eq!(table.put(RPC, &meta(3)), WriteOutcome::Updated);
    }
    assert_eq!((table.bytes, table.len()), (copy.bytes, copy.len()));
}
