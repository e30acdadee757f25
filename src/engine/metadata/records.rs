//! The metadata service's records and the rules for overwriting them, without sockets or a clock.
//!
//! Values are opaque, with one exception from Mooncake: a key `<prefix>rpc_meta/<name>` contains the address of the name's owner, and the
//! name is not assigned to another process while the owner is alive. The service determines whether the owner is alive (see `probe`). The
//! table returns the address to probe, and decides without a probe in two cases:
//!
//! * The owner was reported as expired ([`MetadataTable::mark_owner_expired`]).
//! * Another name has since announced the same host and port, so any process that responds there is not the old owner.
//!
//! A name that changes owners loses its old segment descriptor. This is necessary because a starting engine appends its buffers to the
//! existing descriptor under its name: if the old descriptor remained, the new engine would announce the dead engine's memory as its own.

use std::collections::BTreeSet;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::engine::base::HostPort;
use crate::engine::metadata::{KeySpace, VALUE_BYTES_MAX};
use crate::engine::wire::json::RpcMeta;

#[derive(Debug, Default)]
pub struct MetadataTable {
    records: HashMap<Box<[u8]>, MetadataRecord, foldhash::fast::FixedState>,
    /// Total size of keys and values.
    bytes: usize,
    /// For each endpoint: the write numbers ([`MetadataRecord::written`]) of the `rpc_meta` records with this endpoint. Not counted in
    /// `bytes`, but each record adds at most [`HOST_BYTES_MAX`] bytes and a few numbers.
    announced: EndpointWrites,
    writes: u64,
    limits: TableBounds,
}

#[derive(Debug)]
struct TableBounds {
    records: usize,
    bytes: usize,
}

impl Default for TableBounds {
    fn default() -> TableBounds {
        TableBounds { records: RECORDS_MAX, bytes: TABLE_BYTES_MAX }
    }
}

#[derive(Debug)]
struct MetadataRecord {
    value: Bytes,
    /// Number of the write that created the record. The number increases with every write to the table.
    written: u64,
    /// The owner is known to be dead (`rpc_meta` only).
    expired: bool,
}

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Updated,
    /// The record already has exactly this value.
    Unchanged,
    /// Another process owns the name. If `owner` does not respond, call [`MetadataTable::take_over`].
    Conflict {
        /// Address of the owner's handshake port; `None` if the record does not contain it.
        owner: Option<HostPort>,
        current: Bytes,
    },
    /// The table is full.
    Full,
}

/// The records that [`MetadataTable::remove_segment`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedRecords {
    pub ram: bool,
    pub rpc_meta: bool,
}

impl MetadataTable {
    /// Returns the record under `key`.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.records.get(key).map(|record| record.value.clone())
    }

    /// Writes `value` under `key`, unless `key` may belong to a live owner.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> WriteOutcome {
        if rpc_meta_name(key).is_some()
            && let Some(record) = self.records.get_mut(key)
        {
            if record.value == value {
                record.expired = false;
                return WriteOutcome::Unchanged;
            }
            if !record.expired && !is_reassigned(&self.announced, record) {
                return WriteOutcome::Conflict { owner: endpoint(&record.value), current: record.value.clone() };
            }
            self.drop_descriptor_of(key);
        }
        self.write(key, value)
    }

    /// Writes `value` once the owner of `key` has failed to respond to a probe, and removes the owner's segment descriptor. If the record is no
    /// longer `current`, another write came first, and this becomes a normal [`MetadataTable::put`].
    pub fn take_over(&mut self, key: &[u8], current: &[u8], value: &[u8]) -> WriteOutcome {
        match self.records.get(key) {
            Some(record) if record.value == *current => {
                self.drop_descriptor_of(key);
                self.write(key, value)
            }
            _ => self.put(key, value),
        }
    }

    /// Removes the record under `key`. Returns false if it did not exist.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        match self.records.remove(key) {
            Some(record) => {
                self.bytes -= key.len() + record.value.len();
                self.withdraw(key, &record);
                true
            }
            None => false,
        }
    }

    /// Removes all records that belong to the owner of `name`.
    pub fn remove_segment(&mut self, keys: &KeySpace, name: &str) -> RemovedRecords {
        RemovedRecords {
            ram: self.remove(keys.ram_key(name).as_bytes()),
            rpc_meta: self.remove(keys.rpc_meta_key(name).as_bytes()),
        }
    }

    /// Marks the owner of `name` as expired: the owner's records remain, but the next process that requests the name gets it without a
    /// probe.
    pub fn mark_owner_expired(&mut self, keys: &KeySpace, name: &str) {
        if let Some(record) = self.records.get_mut(keys.rpc_meta_key(name).as_bytes()) {
            record.expired = true;
        }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if the table has no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> WriteOutcome {
        let current = self.records.get(key);
        let bytes = match current {
            Some(record) => self.bytes - record.value.len() + value.len(),
            None => self.bytes + key.len() + value.len(),
        };
        let one_more = usize::from(current.is_none());
        let too_long = key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX;
        if too_long || bytes > self.limits.bytes || self.len() + one_more > self.limits.records {
            return WriteOutcome::Full;
        }
        self.bytes = bytes;
        self.writes += 1;
        // Copied, because a value from a connection shares the connection's read buffer.
        let record = MetadataRecord { value: Bytes::copy_from_slice(value), written: self.writes, expired: false };
        if let Some(endpoint) = announced_by(key, value) {
            self.announced.entry(endpoint).or_default().insert(record.written);
        }
        if let Some(before) = self.records.insert(key.into(), record) {
            self.withdraw(key, &before);
        }
        WriteOutcome::Updated
    }

    /// Removes the endpoint of a replaced or removed record.
    fn withdraw(&mut self, key: &[u8], record: &MetadataRecord) {
        let Some(endpoint) = announced_by(key, &record.value) else { return };
        if let Some(times) = self.announced.get_mut(&endpoint) {
            times.remove(&record.written);
            if times.is_empty() {
                self.announced.remove(&endpoint);
            }
        }
    }

    /// Removes the segment descriptor that belongs to the `rpc_meta` record `key`.
    fn drop_descriptor_of(&mut self, key: &[u8]) {
        let Some((prefix, name)) = rpc_meta_name(key) else { return };
        let folder: &[u8] = if name.contains(&b'/') { b"" } else { b"ram/" };
        self.remove(&[prefix, folder, name].concat());
    }
}

/// Splits the key of an `rpc_meta` record into prefix and name; `None` for any other key. Upstream searches for `rpc_meta` anywhere in the
/// key, so a segment named `rpc_meta` could never update its descriptor. Here, only a whole path component matches.
fn rpc_meta_name(key: &[u8]) -> Option<(&[u8], &[u8])> {
    const FOLDER: &[u8] = b"rpc_meta/";
    let at = key.windows(FOLDER.len()).position(|window| window == FOLDER)?;
    let starts_a_folder = at == 0 || key[at - 1] == b'/';
    starts_a_folder.then(|| (&key[..at], &key[at + FOLDER.len()..]))
}

/// The write numbers of the current records, by announced endpoint.
type EndpointWrites = HashMap<HostPort, BTreeSet<u64>, foldhash::fast::FixedState>;

/// Returns true if another name announced the same endpoint after `record` was written.
fn is_reassigned(announced: &EndpointWrites, record: &MetadataRecord) -> bool {
    let times = endpoint(&record.value).and_then(|endpoint| announced.get(&endpoint));
    times.and_then(BTreeSet::last).is_some_and(|last| *last > record.written)
}

/// Returns the endpoint that the record under `key` announces, if it is plausible.
fn announced_by(key: &[u8], value: &[u8]) -> Option<HostPort> {
    rpc_meta_name(key).and_then(|_| endpoint(value)).filter(|endpoint| endpoint.host.len() <= HOST_BYTES_MAX)
}

/// Returns the address of the handshake port in an `rpc_meta` record.
fn endpoint(value: &[u8]) -> Option<HostPort> {
    RpcMeta::from_json(value).ok().map(|RpcMeta(endpoint)| endpoint)
}

/// Maximum number of records: two for each of 100,000 engines.
pub const RECORDS_MAX: usize = 200_000;
/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 4 << 10;
/// Maximum length of an announced host that is remembered, in bytes. No resolvable name and no address is longer.
const HOST_BYTES_MAX: usize = 255;
/// Maximum total size of keys and values.
pub const TABLE_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

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
}
