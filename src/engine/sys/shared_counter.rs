//! A counter in a memfd, which other processes on the host can read, and which shows them whether
//! its owner is running.
//!
//! The mark of the owner is a robust futex: when the thread that holds it ends, also because its
//! process was killed, the kernel changes the mark. A child process made with `fork` does not
//! inherit it, unlike the owner's sockets, so those would not show the owner's end.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sys::memfd::MFdFlags;

use crate::memory::Memory;
use crate::pages::map_shared;
use crate::shared_memory::{SharedFileError, SharedView};

/// A counter that other processes can read.
#[derive(Debug)]
pub struct SharedCounter(Memory);

/// Size of a counter's file.
const COUNTER_BYTES: usize = 4096;
/// Offset of the owner's mark in the file: the number of the owner's thread, or 0.
const MARK: usize = 8;
/// The bit that the kernel sets in a robust futex when its owner ends (`FUTEX_OWNER_DIED` in
/// linux/futex.h).
const OWNER_DIED: u32 = 0x4000_0000;

/// An entry in a thread's list of robust futexes, or the list's head (`struct robust_list` in
/// linux/futex.h).
#[repr(C)]
struct RobustEntry {
    next: *const RobustEntry,
}

/// What the kernel reads when a thread ends (`struct robust_list_head` in linux/futex.h).
#[repr(C)]
struct RobustList {
    head: RobustEntry,
    /// Distance from an entry to its futex.
    futex_offset: libc::c_long,
    pending: *const RobustEntry,
    /// The list has only this entry.
    mark: RobustEntry,
}

/// The current thread as the owner of a counter.
#[derive(Debug)]
pub struct CounterOwner<'a> {
    counter: &'a SharedCounter,
    /// The kernel's list, which belongs to the thread that made it. It is never freed.
    list: *mut RobustList,
}

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

    /// Makes the current thread the owner until the result is dropped or the thread ends. Views
    /// then see that the counter has lost its owner. The thread must not use other robust futexes.
    /// Keeps 32 bytes of memory for good.
    ///
    /// # Errors
    /// Fails if the kernel refuses the list.
    pub fn own(&self) -> io::Result<CounterOwner<'_>> {
        let mark = self.mark();
        // The kernel reads the list when the thread ends, so it is never freed.
        let list = Box::into_raw(Box::new(RobustList {
            head: RobustEntry { next: ptr::null() },
            futex_offset: 0,
            pending: ptr::null(),
            mark: RobustEntry { next: ptr::null() },
        }));
        // SAFETY: `list` is valid, and nothing else has its address yet. The entries refer to each
        // other, as the kernel expects. set_robust_list stores the address. It replaces the list of
        // the C library, which is empty in this thread (see above). gettid has no memory arguments.
        // (The function of the C library is newer than the oldest one that packages are built for.)
        let (rc, thread) = unsafe {
            let head = &raw const (*list).head;
            let entry = &raw const (*list).mark;
            (*list).head.next = entry;
            (*list).mark.next = head;
            (*list).futex_offset = ptr::from_ref(mark).addr().wrapping_sub(entry.addr()).cast_signed() as libc::c_long;
            let bytes = size_of::<RobustList>() - size_of::<RobustEntry>();
            (libc::syscall(libc::SYS_set_robust_list, list, bytes), libc::syscall(libc::SYS_gettid))
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        mark.store(u32::try_from(thread).map_err(io::Error::other)?, Ordering::SeqCst);
        Ok(CounterOwner { counter: self, list })
    }

    #[expect(clippy::cast_possible_truncation, reason = "an address of this process")]
    fn mark(&self) -> &AtomicU32 {
        // SAFETY: the address is inside a mapping of a whole page, which is valid as long as
        // `self`, and aligned for the type. Other processes can only read it. This one and the
        // kernel access it only atomically.
        unsafe { AtomicU32::from_ptr((self.0.address() as usize + MARK) as *mut u32) }
    }

    fn value(&self) -> &AtomicU64 {
        // SAFETY: the address is the start of a mapping of a whole page, which is valid and aligned
        // as long as `self`. Other processes can only read it, and this one only accesses it
        // through this function.
        unsafe { AtomicU64::from_ptr(self.0.address() as *mut u64) }
    }
}

impl Drop for CounterOwner<'_> {
    fn drop(&mut self) {
        // The kernel leaves a mark alone that is not this thread's number.
        self.counter.mark().store(0, Ordering::SeqCst);
        // SAFETY: the list is never freed. The type is not `Send`, so this is the thread that owns
        // the list, and the kernel reads it only when this thread ends. The list is then empty: the
        // kernel does not read the mark, whose memory may be unmapped by then.
        unsafe { (*self.list).head.next = &raw const (*self.list).head };
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

    /// The current value; `None` if the counter has no owner. Reads of shared memory before this
    /// call are complete when it returns, and later ones have not begun.
    pub fn current(&self) -> Option<u64> {
        std::sync::atomic::fence(Ordering::SeqCst);
        let start = self.0.start().as_ptr();
        // SAFETY: the address is the start of a mapping of a whole page, which is valid and aligned
        // as long as `self`. The values are only loaded, which needs no write access.
        let (value, mark) = unsafe {
            let mark = AtomicU32::from_ptr(start.add(MARK).cast()).load(Ordering::SeqCst);
            (AtomicU64::from_ptr(start.cast()).load(Ordering::SeqCst), mark)
        };
        std::sync::atomic::fence(Ordering::SeqCst);
        (mark != 0 && mark & OWNER_DIED == 0).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_view() -> (SharedCounter, SharedCounterView) {
        let counter = SharedCounter::new().unwrap();
        let view = SharedCounterView::map(&counter.file().unwrap().try_clone_to_owned().unwrap()).unwrap();
        (counter, view)
    }

    #[test]
    fn a_counter_is_visible_to_its_views_while_it_has_an_owner() {
        let (counter, view) = with_view();
        assert_eq!(view.current(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let owner = counter.own().unwrap();
                assert_eq!(view.current(), Some(0));
                counter.increment();
                assert_eq!((counter.current(), view.current()), (1, Some(1)));
                drop(owner);
                assert_eq!(view.current(), None);
            });
        });
    }

    #[test]
    fn the_end_of_the_owners_thread_ends_the_ownership() {
        let (counter, view) = with_view();
        let counter = std::sync::Arc::new(counter);
        let owned = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                std::mem::forget(counter.own().unwrap());
                owned.wait();
            });
            owned.wait();
            thread.join().unwrap();
        });
        // The kernel changes the mark before the thread counts as ended.
        assert_eq!(view.current(), None);
    }

    #[test]
    fn the_kernels_list_is_empty_after_the_end_of_the_ownership() {
        std::thread::spawn(|| {
            let counter = SharedCounter::new().unwrap();
            let owner = counter.own().unwrap();
            let list = owner.list;
            // SAFETY: the list is never freed, and belongs to this thread.
            let is_empty = || unsafe { std::ptr::eq((*list).head.next, &raw const (*list).head) };
            assert!(!is_empty());
            drop(owner);
            assert!(is_empty());
            // The kernel reads the list when the thread ends, after the counter was unmapped.
            drop(counter);
        })
        .join()
        .unwrap();
    }
}
