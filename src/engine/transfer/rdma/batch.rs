//! The state of a submitted batch: how many fragments are pending, which fragments failed, and
//! which thread is waiting.
//!
//! Successful fragments are only counted. A failed fragment is returned to the thread that waits
//! for the batch, because only that thread decides whether to retry it. Completions are handled by
//! whichever thread is polling, and that thread has its own batch to process.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::TransferError;
use crate::types::OpKind;
use mcctl_sys::readiness::WakeEvent;
use mcctl_sys::verbs::{CompletionStatus, MemoryRegion};

/// Why a fragment failed.
#[derive(Clone, Debug)]
pub(super) enum WorkError {
    /// This fragment's work completion has an error status. Includes the vendor error code.
    Status(CompletionStatus, u32),
    /// The fragment was flushed because another request on its queue pair failed, or it was never
    /// posted. The fragment itself is not at fault.
    Dropped,
    /// No completion arrived on the connection for this long.
    Silent(Duration),
    /// The device rejected the work request.
    Device(TransferError),
    /// No connection could be established.
    Link(TransferError),
}

/// A fragment as a work request, ready to be posted on one device.
pub(super) struct WorkRequest {
    pub(super) batch: Arc<Batch>,
    pub(super) part: u32,
    pub(super) kind: OpKind,
    /// Keeps the memory registered and alive until the device no longer uses it.
    pub(super) region: Arc<MemoryRegion>,
    /// The fragment's offset in the region.
    pub(super) offset: usize,
    pub(super) len: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
}

/// The fragments of one submitted batch.
pub(super) struct Batch {
    /// Fragments that are posted or waiting to be posted.
    open: AtomicUsize,
    succeeded: AtomicU64,
    failed: AtomicBool,
    events: Mutex<BatchEvents>,
    waker: Arc<CqWaker>,
}

#[derive(Default)]
struct BatchEvents {
    failures: Vec<(u32, WorkError)>,
    waiter: Option<Thread>,
}

impl Batch {
    pub(super) fn new(waker: Arc<CqWaker>) -> Arc<Batch> {
        Arc::new(Batch {
            open: AtomicUsize::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            events: Mutex::default(),
            waker,
        })
    }

    /// Adds `parts` pending fragments. Must be called before they are posted, because one may
    /// complete before the posting call returns.
    pub(super) fn add_pending(&self, parts: usize) {
        self.open.fetch_add(parts, Ordering::SeqCst);
    }

    /// Records that `parts` fragments succeeded.
    pub(super) fn done(&self, parts: usize) {
        self.succeeded.fetch_add(parts as u64, Ordering::Relaxed);
        if self.open.fetch_sub(parts, Ordering::SeqCst) == parts {
            self.wake();
        }
    }

    /// Records that a fragment failed.
    pub(super) fn failed(&self, part: u32, error: WorkError) {
        self.events().failures.push((part, error));
        self.failed.store(true, Ordering::SeqCst);
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.wake();
    }

    /// Returns the number of pending fragments.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Returns the number of fragments that have succeeded.
    pub(super) fn succeeded(&self) -> u64 {
        self.succeeded.load(Ordering::Relaxed)
    }

    /// Whether the waiting thread has something to do: the batch has ended, or a fragment failed.
    pub(super) fn has_events(&self) -> bool {
        self.failed.load(Ordering::SeqCst) || self.open() == 0
    }

    /// Whether fragments have failed.
    pub(super) fn has_failures(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Removes and returns the failed fragments.
    pub(super) fn take_failures(&self) -> Vec<(u32, WorkError)> {
        if !self.failed.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut events = self.events();
        self.failed.store(false, Ordering::SeqCst);
        std::mem::take(&mut events.failures)
    }

    /// Registers the calling thread as the one waiting for the batch.
    pub(super) fn set_waiter(&self) {
        self.events().waiter = Some(thread::current());
    }

    /// Wakes the waiting thread.
    pub(super) fn wake(&self) {
        if let Some(waiter) = &self.events().waiter {
            waiter.unpark();
        }
        self.waker.notify();
    }

    fn events(&self) -> MutexGuard<'_, BatchEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that is sleeping on the devices' completion channels, if any.
pub(super) struct CqWaker {
    sleeping: AtomicBool,
    wake: WakeEvent,
}

impl CqWaker {
    pub(super) fn new() -> std::io::Result<CqWaker> {
        Ok(CqWaker { sleeping: AtomicBool::new(false), wake: WakeEvent::new()? })
    }

    /// Records that a thread is about to sleep. Wake-ups from here on are not lost.
    pub(super) fn begin_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    /// Records that the thread is awake again. `woken` is set if this waker woke it.
    pub(super) fn end_sleep(&self, woken: bool) {
        self.sleeping.store(false, Ordering::SeqCst);
        if woken {
            self.wake.clear();
        }
    }

    fn notify(&self) {
        if self.sleeping.load(Ordering::SeqCst) {
            self.wake.wake();
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_events_when_it_ends_or_a_fragment_fails() {
        let batch = Batch::new(Arc::new(CqWaker::new().unwrap()));
        assert!(batch.has_events(), "an empty batch has ended");
        batch.add_pending(3);
        assert!(!batch.has_events());
        batch.done(1);
        assert!(!batch.has_events() && !batch.has_failures());
        batch.failed(7, WorkError::Dropped);
        assert!(batch.has_events() && batch.open() == 1);
        assert_eq!(batch.take_failures().iter().map(|(part, _)| *part).collect::<Vec<_>>(), [7]);
        assert!(!batch.has_events() && batch.take_failures().is_empty());
        batch.done(1);
        assert!(batch.has_events() && batch.succeeded() == 2);
    }

    #[test]
    fn the_last_fragment_wakes_only_a_sleeping_thread() {
        use mcctl_sys::readiness::wait_readable;
        let waker = Arc::new(CqWaker::new().unwrap());
        let batch = Batch::new(Arc::clone(&waker));
        batch.add_pending(2);
        batch.done(1);
        waker.begin_sleep();
        assert_eq!(wait_readable(&[waker.fd()], Duration::ZERO).unwrap(), 0);
        batch.done(1);
        assert_eq!(wait_readable(&[waker.fd()], Duration::from_secs(5)).unwrap(), 1);
        waker.end_sleep(true);
        batch.wake();
        assert_eq!(wait_readable(&[waker.fd()], Duration::ZERO).unwrap(), 0);
    }
}
