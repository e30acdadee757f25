//! The metadata service's records and the rules for overwriting them, without sockets or a clock.
//!
//! Values are opaque, with one exception from Mooncake: a key `<prefix>rpc_meta/<name>` contains
//! the address of the name's owner, and the name is not assigned to another process while the owner
//! is alive. The service determines whether the owner is alive (see `probe`). The table returns the
//! address to probe, and decides without a probe in two cases:
//!
//! * The owner was reported as expired ([`MetadataTable::mark_owner_expired`]).
//! * Another name has since announced the same host and port, so any process that responds there is
//!   not the old owner.
//!
//! A name that changes owners loses its old segment descriptor. This is necessary because a
//! starting engine appends its buffers to the existing descriptor under its name: if the old
//! descriptor remained, the new engine would announce the dead engine's memory as its own.
//!
//! A write is decided first ([`MetadataTable::plan_put`] and the other plans), and its changes are
//! then applied ([`MetadataTable::apply`]), so that they can be stored in between. The same changes
//! in the same order lead to the same decisions.
//!
//! [`SharedTable`] is a table for several threads.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use hashbrown::HashMap;

use crate::change::MetadataChange;
use crate::{KeySpace, VALUE_BYTES_MAX};
use mcctl_base::HostPort;
use mcctl_wire::json::RpcMeta;

#[derive(Debug, Default)]
pub struct MetadataTable {
    records: HashMap<Bytes, MetadataRecord, foldhash::fast::FixedState>,
    /// Total size of keys and values.
    bytes: usize,
    /// For each endpoint: the write numbers ([`MetadataRecord::written`]) of the `rpc_meta` records
    /// with this endpoint. Not counted in `bytes`, but each record adds at most [`HOST_BYTES_MAX`]
    /// bytes and a few numbers.
    announced: EndpointWrites,
    writes: u64,
    /// The sum of the hashes of all records ([`MetadataTable::digest`]).
    digest: u64,
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
    /// Number of the write that created the record. The number increases with every write to the
    /// table.
    written: u64,
    /// Hash of key and value.
    hash: u64,
    /// The owner is known to be dead (`rpc_meta` only). Not stored: without the mark, the owner is
    /// probed, which costs time, but no name.
    expired: bool,
}

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Updated,
    /// The record already has exactly this value.
    Unchanged,
    /// Another process owns the name. If `owner` does not respond, call
    /// [`MetadataTable::plan_take_over`].
    Conflict {
        /// Address of the owner's handshake port; `None` if the record does not contain it.
        owner: Option<HostPort>,
        current: Bytes,
    },
    /// The table is full.
    Full,
}

/// A decision about a write: its result, and the changes that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedWrite<'a> {
    pub outcome: WriteOutcome,
    pub changes: Vec<MetadataChange<'a>>,
}

impl PlannedWrite<'_> {
    fn without_changes(outcome: WriteOutcome) -> Self {
        PlannedWrite { outcome, changes: Vec::new() }
    }
}

/// All records at one moment.
#[derive(Debug, Default)]
pub struct TableImage(Vec<(u64, Bytes, Bytes)>);

impl TableImage {
    /// The keys and values, in the order in which they were written.
    pub fn into_records(self) -> Vec<(Bytes, Bytes)> {
        let TableImage(mut records) = self;
        records.sort_unstable_by_key(|(written, ..)| *written);
        records.into_iter().map(|(_, key, value)| (key, value)).collect()
    }
}

/// The records that [`MetadataTable::plan_remove_segment`] removes.
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

    /// Decides on a write of `value` under `key`, which may belong to a live owner. Changes no
    /// record, but an owner that writes the same value again no longer counts as expired.
    pub fn plan_put<'a>(&mut self, key: &'a [u8], value: &'a [u8]) -> PlannedWrite<'a> {
        let Some(record) = self.records.get_mut(key) else { return self.plan_write(key, value, false) };
        let is_same = record.value == value;
        if rpc_meta_name(key).is_none() {
            // The order of these records decides nothing.
            return match is_same {
                true => PlannedWrite::without_changes(WriteOutcome::Updated),
                false => self.plan_write(key, value, false),
            };
        }
        if is_same {
            record.expired = false;
            return PlannedWrite::without_changes(WriteOutcome::Unchanged);
        }
        if !record.expired && !is_reassigned(&self.announced, record) {
            let owner = endpoint(&record.value);
            let current = record.value.clone();
            return PlannedWrite::without_changes(WriteOutcome::Conflict { owner, current });
        }
        self.plan_write(key, value, true)
    }

    /// Decides on a write of `value` once the owner of `key` has failed to respond to a probe. The
    /// owner's segment descriptor is removed. If the record is no longer `current`, another write
    /// came first, and this becomes a [`MetadataTable::plan_put`].
    pub fn plan_take_over<'a>(&mut self, key: &'a [u8], current: &[u8], value: &'a [u8]) -> PlannedWrite<'a> {
        match self.records.get(key) {
            Some(record) if record.value == *current && value != current => self.plan_write(key, value, true),
            _ => self.plan_put(key, value),
        }
    }

    /// The change that removes the record under `key`, if it exists.
    pub fn plan_remove<'a>(&self, key: &'a [u8]) -> Option<MetadataChange<'a>> {
        self.records.contains_key(key).then_some(MetadataChange::Remove { key: Cow::Borrowed(key) })
    }

    /// Applies a change, without a check of rules and limits. Returns false if it removes a record
    /// that does not exist.
    pub fn apply(&mut self, change: &MetadataChange<'_>) -> bool {
        match change {
            MetadataChange::Put { key, value } => {
                self.store(key, value);
                true
            }
            MetadataChange::Remove { key } => match self.records.remove(&**key) {
                Some(record) => {
                    self.withdraw(key, &record);
                    true
                }
                None => false,
            },
        }
    }

    /// Copies all records. The copy shares their bytes.
    pub fn image(&self) -> TableImage {
        let copy = |(key, record): (&Bytes, &MetadataRecord)| (record.written, key.clone(), record.value.clone());
        TableImage(self.records.iter().map(copy).collect())
    }

    /// Decides on the removal of all records that belong to the owner of `name`.
    pub fn plan_remove_segment(&self, keys: &KeySpace, name: &str) -> (RemovedRecords, Vec<MetadataChange<'static>>) {
        let keys = [keys.ram_key(name), keys.rpc_meta_key(name)];
        let [ram, rpc_meta] = keys.each_ref().map(|key| self.records.contains_key(key.as_bytes()));
        let removed = keys.into_iter().zip([ram, rpc_meta]).filter(|(_, exists)| *exists);
        let changes = removed.map(|(key, _)| MetadataChange::Remove { key: Cow::Owned(key.into_bytes()) });
        (RemovedRecords { ram, rpc_meta }, changes.collect())
    }

    /// Marks the owner of `name` as expired: the owner's records remain, but the next process that
    /// requests the name gets it without a probe.
    pub fn mark_owner_expired(&mut self, keys: &KeySpace, name: &str) {
        if let Some(record) = self.records.get_mut(keys.rpc_meta_key(name).as_bytes()) {
            record.expired = true;
        }
    }

    /// A digest of all keys and values. It does not depend on the order in which they were written.
    /// 0 if there are no records.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if the table has no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Decides on a write that the rules allow. If `key` changes owners, the segment descriptor of
    /// the previous one is removed.
    fn plan_write<'a>(&self, key: &'a [u8], value: &'a [u8], changes_owner: bool) -> PlannedWrite<'a> {
        let bytes_of = |key: &[u8]| self.records.get(key).map(|record| key.len() + record.value.len());
        let descriptor = changes_owner.then(|| descriptor_key(key)).flatten();
        let descriptor = descriptor.and_then(|key| bytes_of(&key).map(|bytes| (key, bytes)));
        let replaced = bytes_of(key);
        let freed = replaced.unwrap_or(0) + descriptor.as_ref().map_or(0, |(_, bytes)| *bytes);
        let removed = usize::from(replaced.is_some()) + usize::from(descriptor.is_some());
        let bytes = self.bytes - freed + key.len() + value.len();
        let too_long = key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX;
        if too_long || bytes > self.limits.bytes || self.len() - removed + 1 > self.limits.records {
            return PlannedWrite::without_changes(WriteOutcome::Full);
        }
        let remove = descriptor.map(|(key, _)| MetadataChange::Remove { key: Cow::Owned(key) });
        let put = MetadataChange::Put { key: Cow::Borrowed(key), value: Cow::Borrowed(value) };
        PlannedWrite { outcome: WriteOutcome::Updated, changes: remove.into_iter().chain([put]).collect() }
    }

    fn store(&mut self, key: &[u8], value: &[u8]) {
        self.writes += 1;
        self.bytes += key.len() + value.len();
        // Copied, because a value from a connection shares the connection's read buffer.
        let value = Bytes::copy_from_slice(value);
        let hash = record_hash(key, &value);
        let record = MetadataRecord { value, written: self.writes, hash, expired: false };
        if let Some(endpoint) = announced_by(key, &record.value) {
            self.announced.entry(endpoint).or_default().insert(record.written);
        }
        self.digest = self.digest.wrapping_add(record.hash);
        if let Some(before) = self.records.insert(Bytes::copy_from_slice(key), record) {
            self.withdraw(key, &before);
        }
    }

    /// Removes a replaced or removed record from the sums and from the announced endpoints.
    fn withdraw(&mut self, key: &[u8], record: &MetadataRecord) {
        self.bytes -= key.len() + record.value.len();
        self.digest = self.digest.wrapping_sub(record.hash);
        let Some(endpoint) = announced_by(key, &record.value) else { return };
        if let Some(times) = self.announced.get_mut(&endpoint) {
            times.remove(&record.written);
            if times.is_empty() {
                self.announced.remove(&endpoint);
            }
        }
    }
}

/// A table that several threads use. Clones share the records.
#[derive(Clone, Debug, Default)]
pub struct SharedTable(Arc<Mutex<MetadataTable>>);

impl SharedTable {
    /// A table with these records.
    pub fn new(table: MetadataTable) -> SharedTable {
        SharedTable(Arc::new(Mutex::new(table)))
    }

    /// Locks the table. Do not wait for anything while it is locked.
    pub fn lock(&self) -> MutexGuard<'_, MetadataTable> {
        // After a panic while the table was locked, its sums may be wrong. The records are
        // complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash of a record, for [`MetadataTable::digest`]. Masters of different releases compare it,
/// so it never changes.
fn record_hash(key: &[u8], value: &[u8]) -> u64 {
    let crc = crc32c_append(crc32c_append(crc32c(&(key.len() as u64).to_le_bytes()), key), value);
    let mut hash = u64::from(crc) | (value.len() as u64) << 32;
    // The finalizer of SplitMix64: the sum of such hashes shows which records there are.
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// The key of the segment descriptor that belongs to the `rpc_meta` record `key`.
fn descriptor_key(key: &[u8]) -> Option<Vec<u8>> {
    let (prefix, name) = rpc_meta_name(key)?;
    let folder: &[u8] = if name.contains(&b'/') { b"" } else { b"ram/" };
    Some([prefix, folder, name].concat())
}

/// Splits the key of an `rpc_meta` record into prefix and name; `None` for any other key. Upstream
/// searches for `rpc_meta` anywhere in the key, so a segment named `rpc_meta` could never update
/// its descriptor. Here, only a whole path component matches.
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
/// Maximum length of an announced host that is remembered, in bytes. No resolvable name and no
/// address is longer.
const HOST_BYTES_MAX: usize = 255;
/// Maximum total size of keys and values.
pub const TABLE_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests;
