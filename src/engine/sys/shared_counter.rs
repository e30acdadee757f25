//! A counter in a memfd, which other processes on the host can read.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::memfd::MFdFlags;

use crate::engine::sys::memory::Memory;
use crate::engine::sys::pages::map_shared;
use crate::engine::sys::shared_memory::{SharedFileError, SharedView};

/// A counter that other processes can read.
#[derive(Debug)]
pub struct SharedCounter(Memory);

/// Size of a counter's file.
const COUNTER_BYTES: usize = 4096;

impl SharedCounter {
    /// Creates a counter with the value 0.
    ///
    /// # Errors
    /// Fails if the host does not support sealed memfds.
    pub fn new() -> io::Result<SharedCounter> {
        let bytes = NonZeroUsize::new(COUNTER_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        map_shared(bytes, bytes, MFdFlags::empty(), |_| Ok(())).map(SharedCounter)
    }

    /// The file to send to other processes.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.shared_file()
    }

    /// Returns the number of increments so far.
    pub fn current(&self) -> u64 {
        self.value().load(Ordering::SeqCst)
    }

    /// Adds 1. Each view that loads the value afterward, in any process, sees it.
    pub fn increment(&self) {
        self.value().fetch_add(1, Ordering::SeqCst);
    }

    fn value(&self) -> &AtomicU64 {
        // SAFETY: the address is the start of a mapping of a whole page, which is valid and aligned as long as `self`.
        // Other processes can only read it, and this one only accesses it through this function.
        unsafe { AtomicU64::from_ptr(self.0.address() as *mut u64) }
    }
}

/// A read-only mapping of another process's counter. It stays valid after that process has ended.
#[derive(Debug)]
pub struct SharedCounterView(SharedView);

impl SharedCounterView {
    /// Maps the counter in `file`.
    ///
    /// # Errors
    /// Same as [`SharedView::map`].
    pub fn map(file: &OwnedFd) -> Result<SharedCounterView, SharedFileError> {
        SharedView::map(file, COUNTER_BYTES as u64).map(SharedCounterView)
    }

    /// The current value. Reads of shared memory before this call are complete when it returns, and later ones have not begun.
    pub fn current(&self) -> u64 {
        std::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: the address is the start of a mapping of a whole page, which is valid and aligned as long as `self`.
        // The value is only loaded, which needs no write access.
        let value = unsafe { AtomicU64::from_ptr(self.0.start().as_ptr().cast()) }.load(Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_visible_to_its_views() {
        let counter = SharedCounter::new().unwrap();
        let view = SharedCounterView::map(&counter.file().unwrap().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(view.current(), 0);
        counter.increment();
        assert_eq!((counter.current(), view.current()), (1, 1));
    }
}
