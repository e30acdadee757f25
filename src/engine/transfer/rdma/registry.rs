//! Memory that the devices may touch: every registered stretch on every device, in pieces where a device takes no more at once; and
//! what a batch registers for itself, because nobody did before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread;

use crate::engine::sys::verbs::{Region, Rights, VerbsError};
use crate::engine::sys::{Memory, Slice};
use crate::engine::transfer::rdma::nic::Nic;
use crate::engine::transfer::rdma::settings::RdmaSettings;
use crate::engine::transfer::rdma::slices::Spans;

/// Pieces begin at multiples of this, so that no huge page is in two.
const PIECE_STEP: u64 = 2 << 20;
/// Registering less than this is not worth a thread.
const PARALLEL_MIN: usize = 64 << 20;

/// A stretch of our memory, with a region on each device, or on those where it was needed so far.
pub(super) struct Local {
    slice: Slice,
    rights: Rights,
    regions: Mutex<Vec<Option<Arc<Region>>>>,
    location: OnceLock<String>,
}

impl Local {
    fn new(slice: Slice, rights: Rights, devices: usize) -> Arc<Local> {
        Arc::new(Local { slice, rights, regions: Mutex::new(vec![None; devices]), location: OnceLock::new() })
    }

    pub(super) fn address(&self) -> u64 {
        self.slice.address()
    }

    pub(super) fn len(&self) -> usize {
        self.slice.len()
    }

    /// Where it is, as far as that is known.
    pub(super) fn location(&self) -> &str {
        self.location.get().map_or("*", String::as_str)
    }

    /// Its regions, on every device.
    pub(super) fn regions(&self) -> Vec<Arc<Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten().cloned().collect()
    }

    /// Its region on `nic`; made now if there is none.
    pub(super) fn region(&self, nic: &Nic) -> Result<Arc<Region>, VerbsError> {
        let regions = || self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = &regions()[nic.index] {
            return Ok(Arc::clone(region));
        }
        // Not under the lock: it may take long. Where two do it at once, the second's is dropped again.
        let made = Arc::new(Region::register(&nic.domain, &self.slice, self.rights)?);
        let region = Arc::clone(regions()[nic.index].get_or_insert(made));
        Ok(region)
    }
}

/// Stretches of our memory, and where each is.
#[derive(Default)]
pub(super) struct Known {
    pub(super) spans: Spans,
    pub(super) locals: Vec<Arc<Local>>,
}

impl Known {
    fn of(locals: Vec<Arc<Local>>) -> Known {
        let spans = locals.iter().map(|local| (local.address(), local.len() as u64)).collect();
        Known { spans, locals }
    }

    /// Is all of `slice` in it?
    pub(super) fn covers(&self, slice: &Slice) -> bool {
        let (mut at, end) = (slice.address(), slice.address() + slice.len() as u64);
        while at < end {
            let Some(span) = self.spans.find(at) else { return false };
            at = span.start + span.len;
        }
        true
    }
}

/// What is registered.
pub(super) struct Registry {
    nics: Vec<Arc<Nic>>,
    /// By address. Not locked while a device registers: that may take seconds.
    table: Mutex<BTreeMap<u64, Vec<Arc<Local>>>>,
    known: RwLock<Arc<Known>>,
    piece_max: u64,
    relaxed: bool,
    /// With several devices at a time; `None`: where it pays.
    parallel: Option<bool>,
    /// Most threads that register at a time; `None`: one a device.
    threads: Option<usize>,
}

impl Registry {
    /// `piece_max` is the most that every device takes at once, bytes.
    pub(super) fn new(nics: Vec<Arc<Nic>>, piece_max: u64, relaxed: bool, settings: &RdmaSettings) -> Registry {
        let piece_max = if piece_max >= PIECE_STEP { piece_max - piece_max % PIECE_STEP } else { piece_max.max(4096) };
        let (table, known) = (Mutex::default(), RwLock::default());
        let (parallel, threads) = (settings.register_in_parallel, settings.registering_threads);
        Registry { nics, table, known, piece_max, relaxed, parallel, threads }
    }

    /// Register `memory` on every device; its pieces, in order.
    ///
    /// # Errors
    /// A device refuses; nothing is registered then.
    pub(super) fn register(
        &self,
        memory: &Arc<Memory>,
        remote: bool,
    ) -> Result<Vec<Arc<Local>>, (Arc<Nic>, VerbsError)> {
        let rights = Rights { remote, relaxed: self.relaxed };
        let piece = |(offset, len)| {
            Local::new(memory.slice(offset, len).expect("cut inside the memory"), rights, self.nics.len())
        };
        let pieces: Vec<Arc<Local>> = cuts(memory.len(), self.piece_max).into_iter().map(piece).collect();
        let on = |nic: &Arc<Nic>| {
            pieces.iter().try_for_each(|piece| piece.region(nic).map(drop)).map_err(|error| (Arc::clone(nic), error))
        };
        let pays = self.nics.len() > 1 && memory.len() >= PARALLEL_MIN;
        match self.nics.split_first() {
            // The first device alone makes the pages; the others find them.
            Some((first, others)) if self.parallel.unwrap_or(pays) && !others.is_empty() => {
                on(first)?;
                let at_once = self.threads.unwrap_or(others.len()).max(1);
                others.chunks(at_once).try_for_each(|some| {
                    thread::scope(|scope| {
                        let on = &on;
                        let threads: Vec<_> = some.iter().map(|nic| scope.spawn(move || on(nic))).collect();
                        threads.into_iter().try_for_each(|thread| thread.join().expect("registering does not panic"))
                    })
                })?;
            }
            _ => self.nics.iter().try_for_each(on)?,
        }
        for piece in &pieces {
            // Its pages are there now.
            if let Some(node) = piece.slice.numa_node() {
                piece.location.get_or_init(|| format!("cpu:{node}"));
            }
        }
        let mut table = self.table();
        table.insert(memory.address(), pieces.clone());
        self.renew(&table);
        Ok(pieces)
    }

    /// Undo it. Regions that an operation of ours is using last until it is over.
    pub(super) fn deregister(&self, memory: &Arc<Memory>) {
        let mut table = self.table();
        let gone = table.remove(&memory.address());
        self.renew(&table);
        drop(table);
        drop(gone);
    }

    /// Let go of everything.
    pub(super) fn clear(&self) {
        let mut table = self.table();
        let gone = std::mem::take(&mut *table);
        self.renew(&table);
        drop(table);
        drop(gone);
    }

    /// What is registered now.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `slice` for one batch alone: registered on the devices as they are needed.
    pub(super) fn lend(&self, slice: &Slice) -> Known {
        let rights = Rights { remote: false, relaxed: self.relaxed };
        let part = |(offset, len)| slice.part(offset, len).expect("cut inside the slice");
        let pieces = cuts(slice.len(), self.piece_max).into_iter().map(part);
        Known::of(pieces.map(|part| Local::new(part, rights, self.nics.len())).collect())
    }

    /// The region on `nic` that `slice`, which is registered, begins in.
    pub(super) fn scratch(&self, slice: &Slice, nic: &Nic) -> Result<Arc<Region>, VerbsError> {
        let known = self.known();
        match known.spans.find(slice.address()) {
            Some(span) => known.locals[span.index].region(nic),
            None => self.lend(slice).locals[0].region(nic),
        }
    }

    fn renew(&self, table: &BTreeMap<u64, Vec<Arc<Local>>>) {
        let known = Arc::new(Known::of(table.values().flatten().cloned().collect()));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Arc<Local>>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `len` bytes in pieces of at most `max`: where each begins, and how long it is.
fn cuts(len: usize, max: u64) -> Vec<(usize, usize)> {
    let max = usize::try_from(max).unwrap_or(usize::MAX).max(1);
    (0..len).step_by(max).map(|offset| (offset, max.min(len - offset))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_pieces_of_a_memory_are_its_bytes_once_each(len in 0usize..100_000, max in 1u64..10_000) {
            let mut end = 0;
            for (offset, piece) in cuts(len, max) {
                prop_assert_eq!(offset, end);
                prop_assert!(piece > 0);
                end += piece;
            }
            prop_assert_eq!(end, len);
        }
    }
}
