//! The newest changes of the state, for the streams to standbys.
//!
//! Changes are appended while the state is locked. Each stream has a cursor, and copies the changes
//! after it. If a cursor falls far behind, requests that change something are delayed, so that it
//! can catch up. A cursor that still falls too far behind is lost, and its standby then needs a
//! snapshot.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use mcctl_election::ha::message::Changes;

/// Maximum delay of a request that changes something, while a cursor is far behind.
const DELAY_MAX: Duration = Duration::from_millis(100);
/// The share of the memory for changes from which requests are delayed.
const DELAYED_FROM: f64 = 0.75;

/// Sizes of a tail, in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct TailLimits {
    /// At this size, a segment is complete.
    pub segment: usize,
    /// Maximum memory for the changes that are kept for standbys that connect again.
    pub kept: usize,
    /// Maximum memory for all changes. The cursors of older changes are lost.
    pub max: usize,
}

impl TailLimits {
    /// The sizes for a process that may use `memory` bytes. A larger store has more changes while a
    /// standby joins, and the snapshot that it receives takes longer.
    pub(in crate::server) fn for_memory(memory: u64) -> TailLimits {
        let least = TailLimits::default();
        let share = |part: u64, least: usize, most: usize| {
            usize::try_from(memory / part).unwrap_or(usize::MAX).clamp(least, most)
        };
        let kept = share(256, least.kept, 2 << 30);
        TailLimits { kept, max: share(16, least.max, 32 << 30), ..least }
    }
}

impl Default for TailLimits {
    fn default() -> TailLimits {
        TailLimits { segment: 64 << 10, kept: 16 << 20, max: 512 << 20 }
    }
}

/// The newest changes and digests, in segments.
#[derive(Debug)]
pub(in crate::server) struct ChangeTail {
    inner: Mutex<TailInner>,
    appended: AtomicU64,
    /// The delay of requests, in microseconds ([`ChangeTail::write_delay`]).
    delay_us: AtomicU64,
    /// The last change that was announced to the streams.
    announced: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct TailInner {
    limits: TailLimits,
    segments: VecDeque<TailSegment>,
    /// Number of segments that were removed.
    removed: u64,
    /// Memory that the segments have allocated, in bytes.
    bytes: usize,
    /// The first change that `segments` contains, or will contain.
    first: u64,
    /// The segments at which the cursors of streams are.
    cursors: BTreeMap<u64, u64>,
    next_cursor: u64,
}

#[derive(Debug)]
struct TailSegment {
    first: u64,
    /// Number of changes; 0 for a digest.
    count: u64,
    /// Changes as in a frame, or a digest.
    bytes: Vec<u8>,
    kind: TailKind,
}

/// The type of a part of the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::ha) enum TailKind {
    Changes,
    /// A digest of the state after the change before it.
    Digest,
}

/// A part of the tail that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::ha) struct TailPart {
    pub kind: TailKind,
    /// The first change in it; of a digest, the change that it belongs to.
    pub sequence: u64,
}

/// The tail no longer has the cursor's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the leader no longer has the changes that the standby needs")]
pub(in crate::server::ha) struct CursorTooOld;

/// The position of a stream.
#[derive(Debug)]
pub(in crate::server::ha) struct TailCursor {
    tail: Arc<ChangeTail>,
    id: u64,
    segment: u64,
    offset: usize,
    /// The number of the change that is read next.
    next: u64,
}

impl ChangeTail {
    /// A tail that begins with change number 1.
    pub(in crate::server::ha) fn new() -> ChangeTail {
        let inner = TailInner { first: 1, ..TailInner::default() };
        ChangeTail {
            inner: Mutex::new(inner),
            appended: AtomicU64::new(0),
            delay_us: AtomicU64::new(0),
            announced: watch::Sender::new(0),
        }
    }

    /// Sets the sizes, before the first change.
    pub(in crate::server) fn set_limits(&self, limits: TailLimits) {
        self.lock().limits = limits;
    }

    /// Maximum memory for all changes, in bytes.
    pub(in crate::server::ha) fn bytes_max(&self) -> usize {
        self.lock().limits.max
    }

    /// Time by which a request is delayed that changes something, because a cursor is far behind:
    /// zero up to three quarters of the memory for changes, and [`DELAY_MAX`] if it is full.
    #[inline]
    pub(in crate::server) fn write_delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::Relaxed))
    }

    /// Removes the segments that are not needed, and sets the delay of requests.
    fn trim(&self, inner: &mut TailInner) {
        inner.trim();
        let share = inner.used_share();
        let delay = DELAY_MAX.mul_f64(((share - DELAYED_FROM) / (1.0 - DELAYED_FROM)).clamp(0.0, 1.0));
        let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        if self.delay_us.load(Ordering::Relaxed) != delay {
            self.delay_us.store(delay, Ordering::Relaxed);
        }
    }

    /// The number of the last change; 0 if there was none.
    pub(crate) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// The number of the last change that was appended before this call. Later ones are appended
    /// after it by the order of the lock, so their threads see everything that this thread has
    /// stored before.
    pub(in crate::server::ha) fn last_locked(&self) -> u64 {
        let _order = self.lock();
        self.appended()
    }

    /// Removes everything, and invalidates all cursors. The next change is number `first`.
    pub(in crate::server::ha) fn restart(&self, first: u64) {
        let mut inner = self.lock();
        // A cursor may be at the segment that would have been the next one.
        let segments = inner.segments.len() as u64 + 1;
        inner.removed += segments;
        inner.segments.clear();
        inner.cursors.clear();
        inner.first = first;
        inner.bytes = 0;
        self.trim(&mut inner);
        self.appended.store(first - 1, Ordering::Release);
    }

    /// Appends a change, which must be the next one.
    pub(crate) fn append(&self, sequence: u64, change: &[u8]) {
        let mut inner = self.lock();
        let needed = change.len() + size_of::<u32>();
        let is_full = |segment: &TailSegment| {
            segment.kind == TailKind::Digest || segment.bytes.len() + needed > segment.bytes.capacity()
        };
        if inner.segments.back().is_none_or(is_full) {
            let bytes = Vec::with_capacity(inner.limits.segment.max(needed));
            inner.begin(TailSegment { first: sequence, count: 0, bytes, kind: TailKind::Changes });
            self.trim(&mut inner);
        }
        let Some(segment) = inner.segments.back_mut() else { return };
        Changes::add(&mut segment.bytes, change);
        segment.count += 1;
        self.appended.store(sequence, Ordering::Release);
    }

    /// Appends a digest of the state after the last change.
    pub(in crate::server::ha) fn append_digest(&self, digest: Vec<u8>) {
        let mut inner = self.lock();
        let first = self.appended() + 1;
        inner.begin(TailSegment { first, count: 0, bytes: digest, kind: TailKind::Digest });
        self.trim(&mut inner);
    }

    /// Wakes the streams, if there are new changes. Call it after the state was unlocked.
    #[inline]
    pub(crate) fn notify(&self) {
        let last = self.appended();
        if *self.announced.borrow() < last {
            self.announced.send_if_modified(|announced| std::mem::replace(announced, last) != last);
        }
    }

    /// Wakes the streams after a restart or for a digest.
    pub(in crate::server::ha) fn notify_always(&self) {
        self.announced.send_replace(self.appended());
    }

    /// Reports the last announced change after each announcement.
    pub(in crate::server::ha) fn subscribe(&self) -> watch::Receiver<u64> {
        self.announced.subscribe()
    }

    /// A cursor after the change `last`; `None` if the tail does not have the changes after it.
    pub(in crate::server::ha) fn cursor(self: &Arc<Self>, last: u64) -> Option<TailCursor> {
        let mut inner = self.lock();
        let next = last + 1;
        if next < inner.first || last > self.appended() {
            return None;
        }
        let mut segment = inner.removed + inner.segments.len() as u64;
        let mut offset = 0;
        let nth = inner.segments.iter().position(|it| it.kind == TailKind::Changes && next < it.first + it.count);
        if let Some(nth) = nth
            && let Some(found) = inner.segments.get(nth)
        {
            segment = inner.removed + nth as u64;
            for _ in found.first..next {
                offset += change_bytes(&found.bytes[offset..]);
            }
        } else if let Some(last) = inner.segments.back().filter(|last| last.kind == TailKind::Changes) {
            // The next change may be appended to this segment.
            segment -= 1;
            offset = last.bytes.len();
        }
        inner.next_cursor += 1;
        let id = inner.next_cursor;
        inner.cursors.insert(id, segment);
        Some(TailCursor { tail: self.clone(), id, segment, offset, next })
    }

    /// Size of the changes after change number `last`, in bytes. May include up to one segment of
    /// earlier changes.
    pub(in crate::server::ha) fn bytes_behind(&self, last: u64) -> u64 {
        let inner = self.lock();
        let behind = inner.segments.iter().rev().take_while(|segment| segment.first + segment.count > last + 1);
        behind.map(|segment| segment.bytes.len() as u64).sum()
    }

    fn lock(&self) -> MutexGuard<'_, TailInner> {
        self.inner.lock().expect("no thread panics while it has the tail locked")
    }
}

fn change_bytes(entry: &[u8]) -> usize {
    let length = entry.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    size_of::<u32>() + length as usize
}

impl TailSegment {
    /// Memory that it has allocated, in bytes.
    fn allocated(&self) -> usize {
        size_of::<TailSegment>() + self.bytes.capacity()
    }
}

impl TailInner {
    /// Appends a segment. The one before it no longer grows.
    fn begin(&mut self, segment: TailSegment) {
        if let Some(last) = self.segments.back_mut() {
            let before = last.allocated();
            last.bytes.shrink_to_fit();
            self.bytes = self.bytes - before + last.allocated();
        }
        self.bytes += segment.allocated();
        self.segments.push_back(segment);
    }

    /// The segment of the oldest cursor that is not lost.
    fn oldest_cursor(&self) -> Option<u64> {
        self.cursors.values().copied().filter(|segment| *segment >= self.removed).min()
    }

    /// The share of the memory for changes that is in use because a cursor is behind.
    fn used_share(&self) -> f64 {
        let last = self.removed + self.segments.len() as u64;
        let is_behind = self.oldest_cursor().is_some_and(|segment| segment + 2 < last);
        if is_behind { self.bytes as f64 / self.limits.max as f64 } else { 0.0 }
    }

    /// Removes the segments that are not needed.
    fn trim(&mut self) {
        loop {
            let is_needed = self.oldest_cursor() == Some(self.removed);
            let limit = if is_needed { self.limits.max } else { self.limits.kept };
            if self.bytes <= limit || self.segments.len() < 2 {
                return;
            }
            let Some(segment) = self.segments.pop_front() else { return };
            self.removed += 1;
            self.bytes -= segment.allocated();
            self.first = segment.first + segment.count;
        }
    }
}

impl TailCursor {
    #[cfg(test)]
    fn next(&self) -> u64 {
        self.next
    }

    /// Appends the next part to `out`, as in a frame. Returns `None` at the end of the tail.
    ///
    /// # Errors
    /// The tail no longer has the changes.
    pub(in crate::server::ha) fn read(&mut self, out: &mut Vec<u8>) -> Result<Option<TailPart>, CursorTooOld> {
        let mut inner = self.tail.lock();
        loop {
            if self.segment < inner.removed {
                return Err(CursorTooOld);
            }
            let nth = usize::try_from(self.segment - inner.removed).unwrap_or(usize::MAX);
            let Some(segment) = inner.segments.get(nth) else { return Ok(None) };
            if self.offset < segment.bytes.len() {
                let kind = segment.kind;
                let sequence = if kind == TailKind::Digest { segment.first - 1 } else { self.next };
                out.extend_from_slice(&segment.bytes[self.offset..]);
                self.offset = segment.bytes.len();
                self.next = segment.first + segment.count;
                return Ok(Some(TailPart { kind, sequence }));
            }
            if nth + 1 >= inner.segments.len() && segment.kind == TailKind::Changes {
                // It may still grow.
                return Ok(None);
            }
            self.segment += 1;
            self.offset = 0;
            let id = self.id;
            let segment = self.segment;
            inner.cursors.insert(id, segment);
            self.tail.trim(&mut inner);
        }
    }
}

impl Drop for TailCursor {
    fn drop(&mut self) {
        let mut inner = self.tail.lock();
        inner.cursors.remove(&self.id);
        self.tail.trim(&mut inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_with_the_memory_of_the_process() {
        let sizes = |gib: u64| {
            let limits = TailLimits::for_memory(gib << 30);
            (limits.kept >> 20, limits.max >> 20)
        };
        assert_eq!([sizes(1), sizes(64), sizes(4096)], [(16, 512), (256, 4096), (2048, 32768)]);
    }

    /// Reads the numbers of all changes after the cursor, and the digests with the change that they
    /// belong to.
    fn read(cursor: &mut TailCursor) -> Result<(Vec<u64>, Vec<u64>), CursorTooOld> {
        let mut found = Vec::new();
        let mut digests = Vec::new();
        let mut bytes = Vec::new();
        while let Some(part) = cursor.read(&mut bytes)? {
            if part.kind == TailKind::Digest {
                digests.push(part.sequence);
            } else {
                let mut payload = Vec::new();
                Changes::begin(&mut payload, mcctl_base::Unix(0));
                payload.extend_from_slice(&bytes);
                let changes = Changes::decode(&payload).unwrap();
                let numbers = changes.iter().map(|change| u64::from_le_bytes(*change.first_chunk().unwrap()));
                found.extend(numbers);
                assert_eq!(found.last().copied(), Some(cursor.next() - 1));
            }
            bytes.clear();
        }
        Ok((found, digests))
    }

    fn append(tail: &ChangeTail, numbers: std::ops::RangeInclusive<u64>, bytes: usize) {
        for number in numbers {
            let mut change = number.to_le_bytes().to_vec();
            change.resize(bytes, 0);
            tail.append(number, &change);
        }
    }

    #[test]
    fn a_cursor_reads_the_changes_after_it() {
        let tail = Arc::new(ChangeTail::new());
        let mut early = tail.cursor(0).unwrap();
        assert!(tail.cursor(1).is_none(), "that change does not exist");
        append(&tail, 1..=5000, 40);
        tail.append_digest(vec![1]);
        append(&tail, 5001..=5002, 40);
        for last in [0, 1, 1400, 4999, 5001] {
            let (found, digests) = read(&mut tail.cursor(last).unwrap()).unwrap();
            assert_eq!(found, (last + 1..=5002).collect::<Vec<u64>>());
            assert_eq!(digests, if last <= 4999 { vec![5000] } else { Vec::new() });
        }
        let mut end = tail.cursor(5002).unwrap();
        assert!(read(&mut end).unwrap().0.is_empty());
        append(&tail, 5003..=5003, 40);
        assert_eq!(read(&mut end).unwrap().0, [5003]);
        assert_eq!(read(&mut early).unwrap().0.len(), 5003);
    }

    #[test]
    fn the_memory_of_small_segments_is_limited() {
        let tail = Arc::new(ChangeTail::new());
        for number in 1..=1000 {
            append(&tail, number..=number, 40);
            tail.append_digest(vec![0; 40]);
        }
        let allocated = |tail: &ChangeTail| tail.lock().segments.iter().map(TailSegment::allocated).sum::<usize>();
        assert!(allocated(&tail) < 1 << 20, "{}", allocated(&tail));
        assert_eq!(allocated(&tail), tail.lock().bytes);
        let limits = TailLimits::default();
        for _ in 0..2 * limits.kept / limits.segment {
            tail.append_digest(vec![0; limits.segment]);
        }
        assert!(allocated(&tail) <= limits.kept, "{}", allocated(&tail));
        assert_eq!(allocated(&tail), tail.lock().bytes);
    }

    #[test]
    fn a_restart_invalidates_cursors_at_the_end() {
        let tail = Arc::new(ChangeTail::new());
        append(&tail, 1..=3, 40);
        tail.append_digest(vec![1]);
        let mut behind_digest = tail.cursor(3).unwrap();
        let mut reader = tail.cursor(0).unwrap();
        assert_eq!(read(&mut reader).unwrap().1, [3]);
        tail.restart(1);
        append(&tail, 1..=5, 40);
        assert_eq!(read(&mut behind_digest), Err(CursorTooOld));
        assert_eq!(read(&mut reader), Err(CursorTooOld));
        assert_eq!(read(&mut tail.cursor(3).unwrap()).unwrap().0, [4, 5]);
    }

    #[test]
    fn requests_are_delayed_while_a_cursor_is_far_behind() {
        let tail = Arc::new(ChangeTail::new());
        tail.set_limits(TailLimits { segment: 1000, kept: 2000, max: 10_000 });
        let mut slow = tail.cursor(0).unwrap();
        let mut delays = Vec::new();
        for number in 1..=10 {
            append(&tail, number..=number, 900);
            delays.push(tail.write_delay());
        }
        assert!(delays[..6].iter().all(Duration::is_zero) && delays.is_sorted(), "{delays:?}");
        assert!(delays[9] > DELAY_MAX / 2 && delays[9] <= DELAY_MAX, "{delays:?}");
        assert_eq!(read(&mut slow).unwrap().0.len(), 10);
        assert_eq!(tail.write_delay(), Duration::ZERO, "it has caught up");
        append(&tail, 11..=40, 900);
        assert_eq!(tail.write_delay(), Duration::ZERO, "it is lost");
        assert_eq!(read(&mut slow), Err(CursorTooOld));
        let ended = tail.cursor(39).unwrap();
        append(&tail, 41..=47, 900);
        assert!(!tail.write_delay().is_zero());
        drop(ended);
        assert_eq!(tail.write_delay(), Duration::ZERO, "its stream has ended");
    }

    #[test]
    fn changes_are_kept_for_cursors_and_for_a_while() {
        let tail = Arc::new(ChangeTail::new());
        let mut slow = tail.cursor(0).unwrap();
        let count = (3 * TailLimits::default().kept / 60_000) as u64;
        append(&tail, 1..=count, 60_000);
        assert_eq!(read(&mut slow).unwrap().0.len() as u64, count);
        append(&tail, count + 1..=count + 2, 60_000);
        assert!(tail.cursor(0).is_none() && tail.cursor(count - 10).is_some());
        assert!(tail.bytes_behind(count) >= 2 * 60_000);
        tail.restart(9);
        assert_eq!(read(&mut slow), Err(CursorTooOld));
        assert_eq!(tail.appended(), 8);
    }
}
