//! A batch under way: how many of its parts are, which of them came to grief, and who waits for it.
//!
//! Parts that end well are only counted. One that does not goes back to whoever waits for the batch, who alone decides what becomes
//! of it: completions are handled by whichever thread polls, and that thread has its own batch to see to.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::engine::sys::readiness::Wake;
use crate::engine::sys::verbs::{Region, Status};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::transport::OpKind;

/// Why a part came back.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The device says so: what went wrong with this very part.
    Status(Status, u32),
    /// The device dropped it because something else went wrong on the same connection, or it was never posted; nothing speaks against
    /// the part itself.
    Dropped,
    /// The device said nothing of it, nor of anything else on the same connection, for so long.
    Silent(Duration),
    /// The device did not take it.
    Device(TransferError),
    /// There is no connection.
    Link(TransferError),
}

/// A part of a batch, ready to be posted on one device.
pub(super) struct Work {
    pub(super) batch: Arc<Batch>,
    pub(super) part: u32,
    pub(super) kind: OpKind,
    /// Keeps the bytes registered, and so alive, until the device has let go of them.
    pub(super) region: Arc<Region>,
    /// Where the part begins in the region.
    pub(super) offset: usize,
    pub(super) len: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
}

/// The parts of one ticket.
pub(super) struct Batch {
    /// Parts that are posted, or wait to be.
    open: AtomicUsize,
    /// Parts that ended well.
    good: AtomicU64,
    troubled: AtomicBool,
    news: Mutex<News>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct News {
    troubles: Vec<(u32, Trouble)>,
    waiter: Option<Thread>,
}

impl Batch {
    pub(super) fn new(bell: Arc<Bell>) -> Arc<Batch> {
        Arc::new(Batch {
            open: AtomicUsize::new(0),
            good: AtomicU64::new(0),
            troubled: AtomicBool::new(false),
            news: Mutex::default(),
            bell,
        })
    }

    /// `parts` more are handed out. Before they are: a part may be over before its poster is.
    pub(super) fn opened(&self, parts: usize) {
        self.open.fetch_add(parts, Ordering::SeqCst);
    }

    /// `parts` ended well.
    pub(super) fn done(&self, parts: usize) {
        self.good.fetch_add(parts as u64, Ordering::Relaxed);
        if self.open.fetch_sub(parts, Ordering::SeqCst) == parts {
            self.wake();
        }
    }

    /// A part did not end well.
    pub(super) fn troubled(&self, part: u32, trouble: Trouble) {
        self.news().troubles.push((part, trouble));
        self.troubled.store(true, Ordering::SeqCst);
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.wake();
    }

    /// Parts under way.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Parts that ended well so far.
    pub(super) fn good(&self) -> u64 {
        self.good.load(Ordering::Relaxed)
    }

    /// Is there something for whoever waits: the end, or a part that came back?
    pub(super) fn has_news(&self) -> bool {
        self.troubled.load(Ordering::SeqCst) || self.open() == 0
    }

    /// Are there parts that came back?
    pub(super) fn has_troubles(&self) -> bool {
        self.troubled.load(Ordering::SeqCst)
    }

    /// The parts that came back.
    pub(super) fn take_troubles(&self) -> Vec<(u32, Trouble)> {
        if !self.troubled.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut news = self.news();
        self.troubled.store(false, Ordering::SeqCst);
        std::mem::take(&mut news.troubles)
    }

    /// The calling thread is the one that waits.
    pub(super) fn attend(&self) {
        self.news().waiter = Some(thread::current());
    }

    /// Wake whoever waits.
    pub(super) fn wake(&self) {
        if let Some(waiter) = &self.news().waiter {
            waiter.unpark();
        }
        self.bell.ring();
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that sleeps on the devices' completion channels. Rung only while one does.
pub(super) struct Bell {
    sleeping: AtomicBool,
    wake: Wake,
}

impl Bell {
    pub(super) fn new() -> std::io::Result<Bell> {
        Ok(Bell { sleeping: AtomicBool::new(false), wake: Wake::new()? })
    }

    /// Somebody is about to sleep. What is rung from here on is heard.
    pub(super) fn listen(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    /// Nobody sleeps any more. `rung`: the bell was heard.
    pub(super) fn stop_listening(&self, rung: bool) {
        self.sleeping.store(false, Ordering::SeqCst);
        if rung {
            self.wake.clear();
        }
    }

    fn ring(&self) {
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
    fn there_is_news_when_all_is_over_or_a_part_came_back() {
        let batch = Batch::new(Arc::new(Bell::new().unwrap()));
        assert!(batch.has_news(), "of nothing, all is over");
        batch.opened(3);
        assert!(!batch.has_news());
        batch.done(1);
        assert!(!batch.has_news() && !batch.has_troubles());
        batch.troubled(7, Trouble::Dropped);
        assert!(batch.has_news() && batch.open() == 1);
        assert_eq!(batch.take_troubles().iter().map(|(part, _)| *part).collect::<Vec<_>>(), [7]);
        assert!(!batch.has_news() && batch.take_troubles().is_empty());
        batch.done(1);
        assert!(batch.has_news() && batch.good() == 2);
    }

    #[test]
    fn who_sleeps_is_woken_by_the_last_part_and_nobody_is_when_nobody_sleeps() {
        use crate::engine::sys::readiness::wait_readable;
        let bell = Arc::new(Bell::new().unwrap());
        let batch = Batch::new(Arc::clone(&bell));
        batch.opened(2);
        batch.done(1);
        bell.listen();
        assert_eq!(wait_readable(&[bell.fd()], Duration::ZERO).unwrap(), 0);
        batch.done(1);
        assert_eq!(wait_readable(&[bell.fd()], Duration::from_secs(5)).unwrap(), 1);
        bell.stop_listening(true);
        batch.wake();
        assert_eq!(wait_readable(&[bell.fd()], Duration::ZERO).unwrap(), 0);
    }
}
