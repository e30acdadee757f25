//! The segments of others that are remembered, and which of them are forgotten again. Pure: `now` comes in.
//!
//! A remembered segment costs its descriptor, a breaker and up to four open lanes at either end. So those that nobody has used for a
//! while are dropped, and those that were not used for longest give way when the table is full. One that is in use (somebody else
//! holds it) is never dropped.
//!
//! Nothing happens by time alone: the table is looked through when a segment is asked for and the last look was a minute ago. An
//! engine that asks for nothing more keeps what it has, lanes included; it cannot become more meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::base::Mono;

/// Most segments of others that are remembered.
pub(super) const REMOTES_MAX: usize = 65_536;
/// One that was not used for so long is dropped.
const UNUSED_MAX: Duration = Duration::from_secs(5 * 60);
/// They are looked through at most so often.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// The part of a full table that gives way at once, so that not every insertion has to look at all of it.
const MAKE_ROOM: usize = 16;

/// What is remembered, by name.
pub(super) struct Remotes<R> {
    table: HashMap<String, Entry<R>>,
    swept: Mono,
    max: usize,
}

struct Entry<R> {
    remote: Arc<R>,
    /// When it was last asked for: `Mono`.
    used: AtomicU64,
}

impl<R> Entry<R> {
    /// Nobody holds it but the table. (Whoever gets it, gets it from the table or from somebody who holds it already.)
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.remote) == 1
    }
}

/// All of the table is in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<R> Remotes<R> {
    /// None; looked through for the first time a while after `now`.
    pub(super) fn new(now: Mono) -> Remotes<R> {
        Remotes { table: HashMap::new(), swept: now, max: REMOTES_MAX }
    }

    /// What is remembered under `name`; it is used `now`.
    pub(super) fn get(&self, name: &str, now: Mono) -> Option<Arc<R>> {
        let entry = self.table.get(name)?;
        entry.used.fetch_max(now.0, Ordering::Relaxed);
        Some(Arc::clone(&entry.remote))
    }

    /// Is it time for [`sweep`](Remotes::sweep)?
    pub(super) fn is_sweep_due(&self, now: Mono) -> bool {
        now.since(self.swept) >= SWEEP_EVERY
    }

    /// Drop what was not used for long, if it is time to look. Comes back for the caller to let go of without a lock.
    pub(super) fn sweep(&mut self, now: Mono) -> Vec<Arc<R>> {
        if !self.is_sweep_due(now) {
            return Vec::new();
        }
        self.swept = now;
        let unused = |entry: &mut Entry<R>| {
            let used = Mono(*entry.used.get_mut());
            entry.is_idle() && now.since(used) >= UNUSED_MAX
        };
        self.table.extract_if(|_, entry| unused(entry)).map(|(_, entry)| entry.remote).collect()
    }

    /// What is remembered under `name`, made if there is nothing; it is used `now`. What had to give way is added to `gone`.
    ///
    /// # Errors
    /// [`Full`].
    pub(super) fn get_or_insert(
        &mut self,
        name: &str,
        now: Mono,
        gone: &mut Vec<Arc<R>>,
        make: impl FnOnce() -> Arc<R>,
    ) -> Result<Arc<R>, Full> {
        if let Some(there) = self.get(name, now) {
            return Ok(there);
        }
        gone.extend(self.sweep(now));
        if self.table.len() >= self.max {
            gone.extend(self.make_room());
        }
        if self.table.len() >= self.max {
            return Err(Full);
        }
        let remote = make();
        let used = AtomicU64::new(now.0);
        self.table.insert(name.to_owned(), Entry { remote: Arc::clone(&remote), used });
        Ok(remote)
    }

    /// Drop those that were not used for longest, of those that are not in use.
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

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<R>> {
        self.table.values().map(|entry| &entry.remote)
    }

    /// Take all of them out.
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

    fn table(max: usize) -> Remotes<String> {
        Remotes { max, ..Remotes::new(at(0)) }
    }

    /// Use `name` at `seconds`; what had to give way.
    fn use_at(table: &mut Remotes<String>, name: &str, seconds: u64) -> Result<Vec<String>, Full> {
        let mut gone = Vec::new();
        table.get_or_insert(name, at(seconds), &mut gone, || Arc::new(name.to_owned()))?;
        let mut gone: Vec<String> = gone.iter().map(|name| name.to_string()).collect();
        gone.sort();
        Ok(gone)
    }

    #[test]
    fn what_is_used_stays_and_what_was_not_used_for_five_minutes_goes_with_the_next_insertion() {
        let mut table = table(100);
        for name in ["a", "b", "c"] {
            use_at(&mut table, name, 0).unwrap();
        }
        assert!(table.get("b", at(200)).is_some());
        assert_eq!(use_at(&mut table, "d", 299), Ok(vec![]));
        assert_eq!(use_at(&mut table, "e", 358), Ok(vec![]), "looked through less than a minute ago");
        assert_eq!(use_at(&mut table, "f", 359), Ok(vec!["a".to_owned(), "c".to_owned()]));
        assert_eq!(table.sweep(at(500)).iter().map(|r| r.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(table.iter().count(), 3);
    }

    #[test]
    fn what_somebody_holds_is_never_dropped() {
        let mut table = table(2);
        use_at(&mut table, "a", 0).unwrap();
        let held = table.get("a", at(0)).unwrap();
        assert!(table.sweep(at(1000)).is_empty());
        use_at(&mut table, "b", 1000).unwrap();
        assert_eq!(use_at(&mut table, "c", 1001), Ok(vec!["b".to_owned()]), "although a was used before it");
        let other = table.get("c", at(1002)).unwrap();
        assert_eq!(use_at(&mut table, "d", 1003), Err(Full));
        drop((held, other));
        assert_eq!(use_at(&mut table, "d", 1004), Ok(vec!["a".to_owned()]));
    }

    #[test]
    fn a_full_table_gives_up_the_sixteenth_that_was_not_used_for_longest() {
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
