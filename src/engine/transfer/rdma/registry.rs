//! Memory registered on the devices. Every registered region is registered on every device, in
//! pieces if it exceeds a device's limit. Other memory is registered temporarily for a single
//! batch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread;

use crate::rdma::nic::Nic;
use crate::rdma::settings::RdmaSettings;
use crate::rdma::slices::Spans;
use mcctl_sys::verbs::{AccessFlags, MemoryRegion, VerbsError};
use mcctl_sys::{Memory, Slice};

/// Pieces begin at multiples of this offset, so that no huge page spans two pieces.
const PIECE_STEP: u64 = 2 << 20;
/// Minimum size, in bytes, of a region that is registered in parallel by default.
const PARALLEL_MIN: usize = 64 << 20;

/// A piece of our memory, with a memory region (MR) on each device, or only on the devices that
/// needed one.
pub(super) struct RegisteredPiece {
    slice: Slice,
    rights: AccessFlags,
    regions: Mutex<Vec<Option<Arc<MemoryRegion>>>>,
    location: OnceLock<String>,
}

impl RegisteredPiece {
    fn new(slice: Slice, rights: AccessFlags, devices: usize) -> Arc<RegisteredPiece> {
        Arc::new(RegisteredPiece { slice, rights, regions: Mutex::new(vec![None; devices]), location: OnceLock::new() })
    }

    pub(super) fn address(&self) -> u64 {
        self.slice.address()
    }

    pub(super) fn len(&self) -> usize {
        self.slice.len()
    }

    /// Returns the NUMA location, `*` if unknown.
    pub(super) fn location(&self) -> &str {
        self.location.get().map_or("*", String::as_str)
    }

    /// Returns the piece's MRs, one per device.
    pub(super) fn regions(&self) -> Vec<Arc<MemoryRegion>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten().cloned().collect()
    }

    /// Returns the piece's MR on `nic`. Registers it if missing.
    pub(super) fn region(&self, nic: &Nic) -> Result<Arc<MemoryRegion>, VerbsError> {
        let regions = || self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = &regions()[nic.index] {
            return Ok(Arc::clone(region));
        }
        // Do not hold the lock during registration, because that may take a long time. If two
        // threads register at once, the second MR is dropped.
        let made = Arc::new(MemoryRegion::register(&nic.domain, &self.slice, self.rights)?);
        let region = Arc::clone(regions()[nic.index].get_or_insert(made));
        Ok(region)
    }
}

/// Pieces of our memory, with a lookup by address.
#[derive(Default)]
pub(super) struct RegisteredMemory {
    pub(super) spans: Spans,
    pub(super) locals: Vec<Arc<RegisteredPiece>>,
}

impl RegisteredMemory {
    fn of(locals: Vec<Arc<RegisteredPiece>>) -> RegisteredMemory {
        let spans = locals.iter().map(|local| (local.address(), local.len() as u64)).collect();
        RegisteredMemory { spans, locals }
    }

    /// Whether all of `slice` is registered.
    pub(super) fn covers(&self, slice: &Slice) -> bool {
        let mut at = slice.address();
        let end = slice.address() + slice.len() as u64;
        while at < end {
            let Some(span) = self.spans.find(at) else { return false };
            at = span.start + span.len;
        }
        true
    }
}

/// The memory registered on all devices.
pub(super) struct Registry {
    nics: Vec<Arc<Nic>>,
    /// Keyed by address. Not locked while a device registers memory, which may take seconds.
    table: Mutex<BTreeMap<u64, Vec<Arc<RegisteredPiece>>>>,
    known: RwLock<Arc<RegisteredMemory>>,
    piece_bytes_max: u64,
    relaxed: bool,
    /// Whether to register on several devices in parallel. `None` means for large regions only.
    parallel: Option<bool>,
    /// Maximum number of registering threads. `None` means one per device.
    threads: Option<usize>,
}

impl Registry {
    /// `piece_bytes_max` is the largest registration that every device accepts, in bytes.
    pub(super) fn new(nics: Vec<Arc<Nic>>, piece_bytes_max: u64, relaxed: bool, settings: &RdmaSettings) -> Registry {
        let piece_bytes_max = if piece_bytes_max >= PIECE_STEP {
            piece_bytes_max - piece_bytes_max % PIECE_STEP
        } else {
            piece_bytes_max.max(4096)
        };
        let table = Mutex::default();
        let known = RwLock::default();
        let parallel = settings.register_in_parallel;
        let threads = settings.registering_threads;
        Registry { nics, table, known, piece_bytes_max, relaxed, parallel, threads }
    }

    /// Registers `memory` on every device and returns its pieces in order.
    ///
    /// # Errors
    /// Fails if a device cannot register the memory. On failure, nothing is registered.
    pub(super) fn register(
        &self,
        memory: &Arc<Memory>,
        remote: bool,
    ) -> Result<Vec<Arc<RegisteredPiece>>, (Arc<Nic>, VerbsError)> {
        let rights = AccessFlags { remote, relaxed: self.relaxed };
        let piece = |(offset, len)| {
            RegisteredPiece::new(
                memory.slice(offset, len).expect("piece lies within the memory"),
                rights,
                self.nics.len(),
            )
        };
        let pieces: Vec<Arc<RegisteredPiece>> =
            cuts(memory.len(), self.piece_bytes_max).into_iter().map(piece).collect();
        let on = |nic: &Arc<Nic>| {
            pieces.iter().try_for_each(|piece| piece.region(nic).map(drop)).map_err(|error| (Arc::clone(nic), error))
        };
        let pays = self.nics.len() > 1 && memory.len() >= PARALLEL_MIN;
        match self.nics.split_first() {
            // Registering on the first device faults the pages in, so they are present for the
            // other devices.
            Some((first, others)) if self.parallel.unwrap_or(pays) && !others.is_empty() => {
                on(first)?;
                let at_once = self.threads.unwrap_or(others.len()).max(1);
                others.chunks(at_once).try_for_each(|some| {
                    thread::scope(|scope| {
                        let on = &on;
                        let threads: Vec<_> = some.iter().map(|nic| scope.spawn(move || on(nic))).collect();
                        threads.into_iter().try_for_each(|thread| thread.join().expect("registration does not panic"))
                    })
                })?;
            }
            _ => self.nics.iter().try_for_each(on)?,
        }
        for piece in &pieces {
            // The piece's pages are present now.
            if let Some(node) = piece.slice.numa_node() {
                piece.location.get_or_init(|| format!("cpu:{node}"));
            }
        }
        let mut table = self.table();
        table.insert(memory.address(), pieces.clone());
        self.renew(&table);
        Ok(pieces)
    }

    /// Deregisters `memory`. MRs in use by one of our operations exist until the operation ends.
    pub(super) fn deregister(&self, memory: &Arc<Memory>) {
        let mut table = self.table();
        let gone = table.remove(&memory.address());
        self.renew(&table);
        drop(table);
        drop(gone);
    }

    /// Deregisters all memory on all devices.
    pub(super) fn clear(&self) {
        let mut table = self.table();
        let gone = std::mem::take(&mut *table);
        self.renew(&table);
        drop(table);
        drop(gone);
    }

    /// Returns a snapshot of the registered memory.
    pub(super) fn snapshot(&self) -> Arc<RegisteredMemory> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Prepares `slice` for one batch. The slice is registered on each device on first use.
    pub(super) fn register_temporarily(&self, slice: &Slice) -> RegisteredMemory {
        let rights = AccessFlags { remote: false, relaxed: self.relaxed };
        let part = |(offset, len)| slice.part(offset, len).expect("piece lies within the slice");
        let pieces = cuts(slice.len(), self.piece_bytes_max).into_iter().map(part);
        RegisteredMemory::of(pieces.map(|part| RegisteredPiece::new(part, rights, self.nics.len())).collect())
    }

    /// Returns the MR on `nic` that contains the first byte of `slice`. Registers `slice`
    /// temporarily if it is not registered.
    pub(super) fn scratch(&self, slice: &Slice, nic: &Nic) -> Result<Arc<MemoryRegion>, VerbsError> {
        let known = self.snapshot();
        match known.spans.find(slice.address()) {
            Some(span) => known.locals[span.index].region(nic),
            None => self.register_temporarily(slice).locals[0].region(nic),
        }
    }

    fn renew(&self, table: &BTreeMap<u64, Vec<Arc<RegisteredPiece>>>) {
        let known = Arc::new(RegisteredMemory::of(table.values().flatten().cloned().collect()));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Arc<RegisteredPiece>>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits `len` bytes into pieces of at most `max`. Returns the offset and length of each piece.
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
        fn pieces_cover_the_memory_exactly_once(len in 0usize..100_000, max in 1u64..10_000) {
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
