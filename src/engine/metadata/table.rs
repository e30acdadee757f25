//! The records of the metadata service: who may write what, without sockets or clock.
//!
//! Values are opaque, with one exception that is Mooncake's: a key `<prefix>rpc_meta/<name>` says where the owner of a name is, and
//! is not given to another while the owner lives. Whether it lives is found out by the shell (see `probe`); the table says where
//! to ask, and decides at once where it can:
//! * the owner was reported as expired ([`Table::owner_expired`]);
//! * another name has since announced the same host and port, so whoever answers there is not the old owner.
//!
//! A name that changes hands loses its old segment descriptor with it: an engine that starts appends its buffers to the
//! descriptor it finds under its name, and would announce the dead one's memory as its own.

use std::collections::BTreeSet;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::engine::base::HostPort;
use crate::engine::metadata::{KeySpace, VALUE_BYTES_MAX};
use crate::engine::wire::json::RpcMeta;

/// All records.
#[derive(Debug, Default)]
pub struct Table {
    records: HashMap<Box<[u8]>, Record, foldhash::fast::FixedState>,
    /// Sum of keys and values.
    bytes: usize,
    /// When each `rpc_meta` record that names an endpoint was written ([`Record::written`]), by that endpoint. Not counted in `bytes`,
    /// but no more than [`HOST_BYTES_MAX`] and a few numbers for each record.
    announced: Announced,
    writes: u64,
    bounds: Bounds,
}

#[derive(Debug)]
struct Bounds {
    records: usize,
    bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { records: RECORDS_MAX, bytes: TABLE_BYTES_MAX }
    }
}

#[derive(Debug)]
struct Record {
    value: Bytes,
    /// Grows with each write of the table.
    written: u64,
    /// The owner is known to be gone (`rpc_meta` only).
    expired: bool,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// Written.
    Updated,
    /// It was there already, byte for byte.
    Unchanged,
    /// The name belongs to somebody else. If `owner` does not answer, go on with [`Table::take_over`].
    Conflict {
        /// Where the owner's handshake port is; `None` when the record does not say.
        owner: Option<HostPort>,
        /// What stands there.
        standing: Bytes,
    },
    /// The table is full.
    Full,
}

/// What [`Table::forget_segment`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// There was a segment descriptor.
    pub ram: bool,
    /// There was an `rpc_meta` record.
    pub rpc_meta: bool,
}

impl Table {
    /// The record under `key`.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.records.get(key).map(|record| record.value.clone())
    }

    /// Write `value` under `key`, if the key is free for it.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Put {
        if rpc_meta_name(key).is_some()
            && let Some(record) = self.records.get_mut(key)
        {
            if record.value == value {
                record.expired = false;
                return Put::Unchanged;
            }
            if !record.expired && !has_moved_on(&self.announced, record) {
                return Put::Conflict { owner: endpoint(&record.value), standing: record.value.clone() };
            }
            self.drop_descriptor_of(key);
        }
        self.write(key, value)
    }

    /// The owner of `key` did not answer: write `value`, provided that `standing` still stands there, and remove the owner's
    /// segment descriptor. If another write came first, this is a [`Table::put`] again.
    pub fn take_over(&mut self, key: &[u8], standing: &[u8], value: &[u8]) -> Put {
        match self.records.get(key) {
            Some(record) if record.value == *standing => {
                self.drop_descriptor_of(key);
                self.write(key, value)
            }
            _ => self.put(key, value),
        }
    }

    /// Remove the record under `key`; was there one?
    pub fn remove(&mut self, key: &[u8]) -> bool {
        match self.records.remove(key) {
            Some(record) => {
                self.bytes -= key.len() + record.value.len();
                self.retract(key, &record);
                true
            }
            None => false,
        }
    }

    /// Remove everything that the owner of `name` has written: it is gone.
    pub fn forget_segment(&mut self, keys: &KeySpace, name: &str) -> Forgotten {
        Forgotten {
            ram: self.remove(keys.ram_key(name).as_bytes()),
            rpc_meta: self.remove(keys.rpc_meta_key(name).as_bytes()),
        }
    }

    /// The owner of `name` has expired: its records stay, but the next one that wants the name gets it without a question.
    pub fn owner_expired(&mut self, keys: &KeySpace, name: &str) {
        if let Some(record) = self.records.get_mut(keys.rpc_meta_key(name).as_bytes()) {
            record.expired = true;
        }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Put {
        let standing = self.records.get(key);
        let bytes = match standing {
            Some(record) => self.bytes - record.value.len() + value.len(),
            None => self.bytes + key.len() + value.len(),
        };
        let one_more = usize::from(standing.is_none());
        let too_long = key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX;
        if too_long || bytes > self.bounds.bytes || self.len() + one_more > self.bounds.records {
            return Put::Full;
        }
        self.bytes = bytes;
        self.writes += 1;
        // A copy of its own: what was read from a connection shares that connection's read buffer.
        let record = Record { value: Bytes::copy_from_slice(value), written: self.writes, expired: false };
        if let Some(endpoint) = announced_by(key, value) {
            self.announced.entry(endpoint).or_default().insert(record.written);
        }
        if let Some(before) = self.records.insert(key.into(), record) {
            self.retract(key, &before);
        }
        Put::Updated
    }

    /// `record` stands under `key` no more.
    fn retract(&mut self, key: &[u8], record: &Record) {
        let Some(endpoint) = announced_by(key, &record.value) else { return };
        if let Some(times) = self.announced.get_mut(&endpoint) {
            times.remove(&record.written);
            if times.is_empty() {
                self.announced.remove(&endpoint);
            }
        }
    }

    /// Remove the segment descriptor that belongs to the `rpc_meta` record `key`.
    fn drop_descriptor_of(&mut self, key: &[u8]) {
        let Some((prefix, name)) = rpc_meta_name(key) else { return };
        let folder: &[u8] = if name.contains(&b'/') { b"" } else { b"ram/" };
        self.remove(&[prefix, folder, name].concat());
    }
}

/// Prefix and name in the key of an `rpc_meta` record; `None` for any other key. Upstream takes every key in which the text
/// occurs for one, so that a segment called `rpc_meta` could never update its descriptor; here it is the folder that counts.
fn rpc_meta_name(key: &[u8]) -> Option<(&[u8], &[u8])> {
    const FOLDER: &[u8] = b"rpc_meta/";
    let at = key.windows(FOLDER.len()).position(|window| window == FOLDER)?;
    let starts_a_folder = at == 0 || key[at - 1] == b'/';
    starts_a_folder.then(|| (&key[..at], &key[at + FOLDER.len()..]))
}

/// When the records that stand were written, by the endpoint that they announce.
type Announced = HashMap<HostPort, BTreeSet<u64>, foldhash::fast::FixedState>;

/// Has another name announced the same endpoint after `record` was written?
fn has_moved_on(announced: &Announced, record: &Record) -> bool {
    let times = endpoint(&record.value).and_then(|endpoint| announced.get(&endpoint));
    times.and_then(BTreeSet::last).is_some_and(|last| *last > record.written)
}

/// The endpoint that the record `value` announces under `key`, if it can be one.
fn announced_by(key: &[u8], value: &[u8]) -> Option<HostPort> {
    rpc_meta_name(key).and_then(|_| endpoint(value)).filter(|endpoint| endpoint.host.len() <= HOST_BYTES_MAX)
}

/// Where an `rpc_meta` record says that the handshake port is.
fn endpoint(value: &[u8]) -> Option<HostPort> {
    RpcMeta::from_json(value).ok().map(|RpcMeta(endpoint)| endpoint)
}

/// Records that are kept: two for each of 100,000 engines.
pub const RECORDS_MAX: usize = 200_000;
/// Longest key.
pub const KEY_BYTES_MAX: usize = 4 << 10;
/// Longest host that is remembered as announced: no name that can be resolved is longer, and no address.
const HOST_BYTES_MAX: usize = 255;
/// Bytes of all keys and values.
pub const TABLE_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    const RPC: &[u8] = b"mooncake/rpc_meta/a";
    const RAM: &[u8] = b"mooncake/ram/a";

    fn meta(port: u16) -> Bytes {
        format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into()
    }

    fn owned_by(port: u16) -> Table {
        let mut table = Table::default();
        assert_eq!(table.put(RPC, &meta(port)), Put::Updated);
        assert_eq!(table.put(RAM, b"descriptor"), Put::Updated);
        table
    }

    fn conflict(port: u16) -> Put {
        Put::Conflict { owner: Some(HostPort::new("127.0.0.1", port)), standing: meta(port) }
    }

    #[test]
    fn any_other_record_is_overwritten_and_the_same_rpc_meta_is_no_change() {
        let mut table = owned_by(1);
        assert_eq!(table.put(RAM, b"other"), Put::Updated);
        assert_eq!(table.get(RAM), Some("other".into()));
        assert_eq!(table.put(RPC, &meta(1)), Put::Unchanged);
    }

    #[test]
    fn a_name_is_not_given_away_without_asking_its_owner() {
        let mut table = owned_by(1);
        assert_eq!(table.put(RPC, &meta(2)), conflict(1));
        assert_eq!((table.get(RPC), table.get(RAM)), (Some(meta(1)), Some("descriptor".into())));
    }

    #[test]
    fn a_name_that_changes_hands_loses_its_old_descriptor() {
        let mut table = owned_by(1);
        assert_eq!(table.take_over(RPC, &meta(1), &meta(2)), Put::Updated);
        assert_eq!((table.get(RPC), table.get(RAM)), (Some(meta(2)), None));
        let mut slashed = Table::default();
        slashed.put(b"mooncake/x/rpc_meta/n/v", &meta(1));
        slashed.put(b"mooncake/x/n/v", b"descriptor");
        slashed.take_over(b"mooncake/x/rpc_meta/n/v", &meta(1), &meta(2));
        assert_eq!(slashed.get(b"mooncake/x/n/v"), None);
    }

    #[test]
    fn of_two_that_take_over_the_same_name_only_one_gets_it() {
        let mut table = owned_by(1);
        assert_eq!(table.take_over(RPC, &meta(1), &meta(2)), Put::Updated);
        table.put(RAM, b"of the second");
        assert_eq!(table.take_over(RPC, &meta(1), &meta(3)), conflict(2));
        assert_eq!(table.get(RAM), Some("of the second".into()));
    }

    #[test]
    fn an_expired_owner_is_not_asked_but_one_that_shows_up_again_is() {
        let keys = KeySpace::default();
        let mut table = owned_by(1);
        table.owner_expired(&keys, "a");
        table.owner_expired(&keys, "never seen");
        assert_eq!(table.put(RPC, &meta(1)), Put::Unchanged);
        assert_eq!(table.put(RPC, &meta(2)), conflict(1));
        table.owner_expired(&keys, "a");
        assert_eq!(table.put(RPC, &meta(2)), Put::Updated);
        assert_eq!(table.get(RAM), None);
        assert_eq!(table.put(RPC, &meta(3)), conflict(2));
    }

    #[test]
    fn an_endpoint_that_another_name_announced_later_says_nothing_about_the_first() {
        let mut table = owned_by(1);
        table.put(b"mooncake/rpc_meta/b", &meta(1));
        assert_eq!(table.put(RPC, &meta(2)), Put::Updated);
        // And the other way round: b is the later one, so it is asked.
        assert_eq!(table.put(b"mooncake/rpc_meta/b", &meta(3)), conflict(1));
    }

    #[test]
    fn only_the_records_that_stand_say_which_endpoints_have_moved_on() {
        let (b, c) = (b"mooncake/rpc_meta/b".as_slice(), b"mooncake/rpc_meta/c".as_slice());
        let mut table = owned_by(1);
        // announced, and taken back in each way that there is
        table.put(b, &meta(1));
        table.remove(b);
        assert_eq!(table.put(RPC, &meta(2)), conflict(1));
        table.put(c, &meta(1));
        table.take_over(c, &meta(1), &meta(9));
        assert_eq!(table.put(RPC, &meta(2)), conflict(1));
        // no announcement: the folder is not the one of names
        table.put(b"mooncake/ram/b", &meta(1));
        assert_eq!(table.put(RPC, &meta(2)), conflict(1));
        table.put(b, &meta(1));
        assert_eq!(table.put(RPC, &meta(2)), Put::Updated);
        for key in [RPC, b, c] {
            table.remove(key);
        }
        assert!(table.announced.is_empty());
    }

    #[test]
    fn what_is_announced_is_remembered_only_where_it_can_be_a_host() {
        let at = |host_bytes: usize| {
            let host = "h".repeat(host_bytes);
            format!("{{\"ip_or_host_name\":\"{host}\",\"rpc_port\":1}}").into_bytes()
        };
        let (b, c) = (b"mooncake/rpc_meta/b", b"mooncake/rpc_meta/c");
        let mut table = Table::default();
        for key in [RPC, b] {
            assert_eq!(table.put(key, &at(HOST_BYTES_MAX + 1)), Put::Updated);
        }
        assert!(table.announced.is_empty());
        // so its owner is asked, though another has announced it since
        assert!(matches!(table.put(RPC, &at(1)), Put::Conflict { owner: Some(_), .. }));
        assert_eq!(table.put(c, &at(HOST_BYTES_MAX)), Put::Updated);
        assert_eq!(table.announced.len(), 1);
        for key in [RPC, b, c] {
            assert!(table.remove(key));
        }
        assert!(table.announced.is_empty());
    }

    #[test]
    fn an_owner_that_cannot_be_asked_keeps_the_name() {
        let mut table = Table::default();
        table.put(RPC, b"{\"x\":1}");
        let standing = Bytes::from("{\"x\":1}");
        assert_eq!(table.put(RPC, b"{\"x\":2}"), Put::Conflict { owner: None, standing });
    }

    #[test]
    fn forgetting_a_segment_removes_both_records_and_nothing_else() {
        let mut table = owned_by(1);
        table.put(b"mooncake/ram/b", b"b");
        assert_eq!(table.forget_segment(&KeySpace::default(), "a"), Forgotten { ram: true, rpc_meta: true });
        assert_eq!(table.forget_segment(&KeySpace::default(), "a"), Forgotten::default());
        assert_eq!((table.len(), table.bytes), (1, "mooncake/ram/b".len() + 1));
    }

    #[test]
    fn a_segment_that_is_called_like_the_folder_can_update_its_descriptor() {
        let mut table = Table::default();
        for key in [b"mooncake/ram/rpc_meta".as_slice(), b"mooncake/my_rpc_meta/x"] {
            assert_eq!(table.put(key, b"1"), Put::Updated);
            assert_eq!(table.put(key, b"2"), Put::Updated);
        }
    }

    #[test]
    fn what_is_beyond_the_bounds_is_refused_and_leaves_no_trace() {
        let mut table = Table { bounds: Bounds { records: 3, bytes: 100 }, ..Table::default() };
        assert_eq!(table.put(&[b'k'; KEY_BYTES_MAX + 1], b""), Put::Full);
        assert_eq!(table.put(b"k", &[0; 100]), Put::Full);
        assert!(table.is_empty());
        for key in [b"a", b"b", b"c"] {
            assert_eq!(table.put(key, &[0; 9]), Put::Updated);
        }
        assert_eq!(table.put(b"d", b""), Put::Full);
        // What is there already may still change, within the bytes.
        assert_eq!(table.put(b"a", &[0; 79]), Put::Updated);
        assert_eq!(table.put(b"b", &[0; 10]), Put::Full);
        assert_eq!((table.len(), table.bytes), (3, 100));
        assert!(table.remove(b"a"));
        assert_eq!(table.put(b"d", b""), Put::Updated);
    }
}
