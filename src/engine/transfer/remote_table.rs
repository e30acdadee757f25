//! The table of cached remote segments and its eviction. Pure: `now` is an argument.
//!
//! A cached segment costs a descriptor, a breaker and up to four connections, which both sides keep
//! open. Segments that have not been used for a while are dropped. If the table is full, the least
//! recently used ones are evicted. A segment in use (another `Arc` exists) is never dropped.
//!
//! There is no timer: the table is swept when a segment is requested and the last sweep was at
//! least a minute ago. An idle engine keeps its cached segments and connections, but their number
//! cannot grow.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcctl_base::Mono;

/// Maximum number of cached segments.
pub(super) const REMOTES_MAX: usize = 65_536;
/// A segment that has not been used for this long is dropped.
const UNUSED_MAX: Duration = Duration::from_secs(5 * 60);
/// Minimum time between sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// A full table evicts one in this many entries, so that most insertions do not scan the whole
/// table.
const MAKE_ROOM: usize = 16;

/// Cached segments, by name.
pub(super) struct RemoteTable<R> {
    table: HashMap<String, RemoteEntry<R>>,
    swept: Mono,
    max: usize,
}

struct RemoteEntry<R> {
    remote: Arc<R>,
    /// Time of the last use, as the inner value of a `Mono`.
    used: AtomicU64,
}

impl<R> RemoteEntry<R> {
    /// Whether only the table has a reference to the segment. (A new reference is cloned from the
    /// table's or from an existing one.)
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.remote) == 1
    }
}

/// Every entry of the full table is in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableFull;

impl<R> RemoteTable<R> {
    /// Creates an empty table. The first sweep is due [`SWEEP_EVERY`] after `now`.
    pub(super) fn new(now: Mono) -> RemoteTable<R> {
        RemoteTable { table: HashMap::new(), swept: now, max: REMOTES_MAX }
    }

    /// Returns the entry for `name` and marks it as used at `now`.
    pub(super) fn get(&self, name: &str, now: Mono) -> Option<Arc<R>> {
        let entry = self.table.get(name)?;
        entry.used.fetch_max(now.0, Ordering::Relaxed);
        Some(Arc::clone(&entry.remote))
    }

    /// Whether [`sweep`](RemoteTable::sweep) is due.
    pub(super) fn is_sweep_due(&self, now: Mono) -> bool {
        now.since(self.swept) >= SWEEP_EVERY
    }

    /// If a sweep is due, removes entries that have not been used for a long time. Returns them so
    /// that the caller can drop them after releasing the lock.
    pub(super) fn sweep(&mut self, now: Mono) -> Vec<Arc<R>> {
        if !self.is_sweep_due(now) {
            return Vec::new();
        }
        self.swept = now;
        let unused = |entry: &mut RemoteEntry<R>| {
            let used = Mono(*entry.used.get_mut());
            entry.is_idle() && now.since(used) >= UNUSED_MAX
        };
        self.table.extract_if(|_, entry| unused(entry)).map(|(_, entry)| entry.remote).collect()
    }

    /// Returns the entry for `name`, creating it if missing, and marks it as used at `now`. Adds
    /// evicted entries to `evicted`.
    ///
    /// # Errors
    /// Fails with [`TableFull`] if every entry is in use.
    pub(super) fn get_or_insert(
        &mut self,
        name: &str,
        now: Mono,
        evicted: &mut Vec<Arc<R>>,
        make: impl FnOnce() -> Arc<R>,
    ) -> Result<Arc<R>, TableFull> {
        if let Some(there) = self.get(name, now) {
            return Ok(there);
        }
        evicted.extend(self.sweep(now));
        if self.table.len() >= self.max {
            evicted.extend(self.make_room());
        }
        if self.table.len() >= self.max {
            return Err(TableFull);
        }
        let remote = make();
        let used = AtomicU64::new(now.0);
        self.table.insert(name.to_owned(), RemoteEntry { remote: Arc::clone(&remote), used });
        Ok(remote)
    }

    /// Removes the least recently used idle entries.
    fn make_room(&mut self) -> Vec<Arc<R>> {
        let idle = self.table.iter().filter(|(_, entry)| entry.is_idle());
        let mut idle: Vec<(u64, &str)> =
            idle.map(|(name, entry)| (entry.used.load(Ordering::Relaxed), name.as_str())).collect();
        let count = (self.max / MAKE_ROOM).max(1).min(idle.len());
        if count == 0 {
            return Vec::new();
        }
        idle.select_nth_unstable(count - 1);
        let names: Vec<String> = idle[..count].iter().map(|(_, name)| (*name).to_owned()).collect();
        names.iter().filter_map(|name| self.table.remove(name)).map(|entry| entry.remote).collect()
    }

    /// The entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<R>> {
        self.table.values().map(|entry| &entry.remote)
    }

    /// Removes and returns all entries.
    pub(super) fn take(&mut self) -> Vec<Arc<R>> {
        self.table.drain().map(|(_, entry)| entry.remote).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_ms(seconds * 1000)
    }

    fn table(max: usize) -> RemoteTable<String> {
        RemoteTable { max, ..RemoteTable::new(at(0)) }
    }

    /// Uses `name` at `seconds`. Returns the evicted names.
    fn use_at(table: &mut RemoteTable<String>, name: &str, seconds: u64) -> Result<Vec<String>, TableFull> {
        let mut evicted = Vec::new();
        table.get_or_insert(name, at(seconds), &mut evicted, || Arc::new(name.to_owned()))?;
        let mut evicted: Vec<String> = evicted.iter().map(|name| name.to_string()).collect();
        evicted.sort();
        Ok(evicted)
    }

    #[test]
    fn segments_unused_for_five_minutes_are_dropped_on_insertion() {
        let mut table = table(100);
        for name in ["a", "b", "c"] {
            use_at(&mut table, name, 0).unwrap();
        }
        assert!(table.get("b", at(200)).is_some());
        assert_eq!(use_at(&mut table, "d", 299), Ok(vec![]));
        assert_eq!(use_at(&mut table, "e", 358), Ok(vec![]), "swept less than a minute ago");
        assert_eq!(use_at(&mut table, "f", 359), Ok(vec!["a".to_owned(), "c".to_owned()]));
        assert_eq!(table.sweep(at(500)).iter().map(|r| r.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(table.iter().count(), 3);
    }

    #[test]
    fn segments_in_use_are_never_dropped() {
        let mut table = table(2);
        use_at(&mut table, "a", 0).unwrap();
        let held = table.get("a", at(0)).unwrap();
        assert!(table.sweep(at(1000)).is_empty());
        use_at(&mut table, "b", 1000).unwrap();
        assert_eq!(use_at(&mut table, "c", 1001), Ok(vec!["b".to_owned()]), "a is older, but in use");
        let other = table.get("c", at(1002)).unwrap();
        assert_eq!(use_at(&mut table, "d", 1003), Err(TableFull));
        drop((held, other));
        assert_eq!(use_at(&mut table, "d", 1004), Ok(vec!["a".to_owned()]));
    }

    #[test]
    fn a_full_table_evicts_the_least_recently_used_sixteenth() {
        let mut table = table(32);
        for i in 0..32 {
            use_at(&mut table, &format!("{i:02}"), i).unwrap();
        }
        assert!(table.get("00", at(40)).is_some());
        assert_eq!(use_at(&mut table, "new", 41), Ok(vec!["01".to_owned(), "02".to_owned()]));
        assert_eq!(use_at(&mut table, "newer", 42), Ok(vec![]));
        assert_eq!(table.iter().count(), 32);
        assert_eq!(table.take().len(), 32);
    }
}
