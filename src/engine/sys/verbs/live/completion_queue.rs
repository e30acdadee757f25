//! Completion queues, each with its channel.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{RdmaDevice, is_leaked, outcome};
use crate::verbs::{CompletionStatus, VerbsError, WorkCompletion};

/// Maximum number of completions fetched per library call.
const AT_ONCE: usize = 32;

/// A completion queue. It must never overrun: its queue pairs must not have more outstanding work
/// requests than the queue has entries.
#[derive(Debug)]
pub struct CompletionQueue {
    cq: NonNull<ffi::ibv_cq>,
    channel: CompletionChannel,
    entries: u32,
}

/// The channel on which a completion queue reports completions.
#[derive(Debug)]
struct CompletionChannel {
    raw: NonNull<ffi::ibv_comp_channel>,
    device: RdmaDevice,
}

// SAFETY: not tied to a thread, and verbs are thread-safe.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above. The descriptor read through the pointer never changes.
unsafe impl Sync for CompletionChannel {}
// SAFETY: not tied to a thread, and verbs are thread-safe.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above. Polling, arming and getting events take locks in the library.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue with at least `entries` entries on completion vector `vector` (modulo the
    /// number of vectors).
    ///
    /// # Errors
    /// Fails if the device has no completion queues left, or cannot create one of that size.
    pub fn new(device: &RdmaDevice, entries: u32, vector: u32) -> Result<Arc<CompletionQueue>, VerbsError> {
        let channel = CompletionChannel::new(device)?;
        let size = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(vector % device.completion_vectors()).unwrap_or(0);
        // SAFETY: the context is open and the channel is valid. The queue keeps both alive.
        let cq = unsafe { ffi::ibv_create_cq(device.context(), size, null_mut(), channel.raw.as_ptr(), vector) };
        let cq = NonNull::new(cq).ok_or_else(|| {
            let detail = format!(" with {entries} entries on vector {vector}");
            device.error("ibv_create_cq", detail, io::Error::last_os_error())
        })?;
        // SAFETY: the library created the queue. Only a verb that is not used here changes its
        // size.
        let entries = u32::try_from(unsafe { (*cq.as_ptr()).cqe }).unwrap_or(entries);
        Ok(Arc::new(CompletionQueue { cq, channel, entries }))
    }

    /// The device on which the queue was created.
    pub fn device(&self) -> &RdmaDevice {
        &self.channel.device
    }

    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Fetches available completions, up to the length of `into`. Returns the number of fetched
    /// completions.
    ///
    /// # Errors
    /// Fails if the queue is broken: it overran, or the device is gone.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut done = 0;
        let mut list = [ffi::ibv_wc::default(); AT_ONCE];
        while done < into.len() {
            let batch = (into.len() - done).min(AT_ONCE);
            #[expect(clippy::cast_possible_truncation, reason = "at most AT_ONCE")]
            let wanted = batch as c_int;
            // SAFETY: the queue is valid, and `list` has room for the requested number.
            let count = unsafe { ffi::ibv_poll_cq(self.cq.as_ptr(), wanted, list.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                // The library returns -1 or a negative error number, without errno.
                let source = io::Error::from_raw_os_error(if count == -1 { libc::EIO } else { count.saturating_neg() });
                return Err(self.device().error("ibv_poll_cq", String::new(), source));
            };
            for (slot, wc) in into[done..].iter_mut().zip(&list[..count.min(batch)]) {
                *slot = WorkCompletion {
                    id: wc.wr_id,
                    qp: wc.qp_num,
                    status: CompletionStatus(wc.status),
                    vendor_error: wc.vendor_err,
                };
            }
            done += count.min(batch);
            if count < batch {
                break;
            }
        }
        Ok(done)
    }

    /// Requests one event on the channel for the next completion. Poll once more afterward: earlier
    /// completions generate no event.
    ///
    /// # Errors
    /// Fails if the device is gone.
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is valid.
        let rc = unsafe { ffi::ibv_req_notify_cq(self.cq.as_ptr(), 0) };
        outcome(rc).map_err(|source| self.device().error("ibv_req_notify_cq", String::new(), source))
    }

    /// The channel's descriptor, which is non-blocking and readable if an event is pending.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Removes all events from the channel. Returns the number of removed events.
    pub fn clear(&self) -> usize {
        let mut count: u32 = 0;
        loop {
            let mut cq = null_mut();
            let mut context = null_mut();
            // SAFETY: the channel is valid, the variables are writable, and the descriptor does not
            // block.
            if unsafe { ffi::ibv_get_cq_event(self.channel.raw.as_ptr(), &raw mut cq, &raw mut context) } != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: all events of this channel belong to its only queue. Exactly the number
            // received is acknowledged.
            unsafe { ffi::ibv_ack_cq_events(self.cq.as_ptr(), count) };
        }
        count as usize
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.cq.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: destroyed once, before its channel. Its queue pairs keep it alive, so none exist.
        // All received events are acknowledged, so this does not block.
        let rc = unsafe { ffi::ibv_destroy_cq(self.cq.as_ptr()) };
        if is_leaked("ibv_destroy_cq", self.device().name(), rc) {
            std::mem::forget(self.device().clone());
        }
    }
}

impl CompletionChannel {
    fn new(device: &RdmaDevice) -> Result<CompletionChannel, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ffi::ibv_create_comp_channel(device.context()) })
            .ok_or_else(|| device.error("ibv_create_comp_channel", String::new(), io::Error::last_os_error()))?;
        let channel = CompletionChannel { raw, device: device.clone() };
        let flags = fcntl(channel.fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        flags
            .and_then(|flags| fcntl(channel.fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)))
            .map_err(|e| device.error("fcntl", String::new(), e.into()))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is valid and keeps its descriptor open until the channel is
        // destroyed, which does not happen before `self` is dropped.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: destroyed once, after its queue. If the queue could not be destroyed, the library
        // rejects the call, and nothing is freed.
        let rc = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if is_leaked("ibv_destroy_comp_channel", self.device.name(), rc) {
            std::mem::forget(self.device.clone());
        }
    }
}
