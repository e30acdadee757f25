//! A completion queue with its channel.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{Device, left_behind, outcome};
use crate::engine::sys::verbs::{Completion, Status, VerbsError};

/// Completions that are taken out by one call of the library.
const AT_ONCE: usize = 32;

/// A completion queue. It must never overrun: no more work may be under way in its pairs than it has entries.
#[derive(Debug)]
pub struct Queue {
    cq: NonNull<ffi::ibv_cq>,
    channel: Channel,
    entries: u32,
}

/// The channel on which a queue tells that something completed.
#[derive(Debug)]
struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    device: Device,
}

// SAFETY: neither is tied to a thread, and verbs are thread-safe.
unsafe impl Send for Channel {}
// SAFETY: as above; the descriptor that is read through the pointer never changes.
unsafe impl Sync for Channel {}
// SAFETY: it is not tied to a thread, and verbs are thread-safe.
unsafe impl Send for Queue {}
// SAFETY: as above; polling, arming and getting events lock within the library.
unsafe impl Sync for Queue {}

impl Queue {
    /// A new one of at least so many entries, on completion vector `vector` (any number: it is taken modulo those there are).
    ///
    /// # Errors
    /// The device has no more, or none so large.
    pub fn new(device: &Device, entries: u32, vector: u32) -> Result<Arc<Queue>, VerbsError> {
        let channel = Channel::new(device)?;
        let size = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(vector % device.completion_vectors()).unwrap_or(0);
        // SAFETY: the context is open and the channel valid; the queue holds both.
        let cq = unsafe { ffi::ibv_create_cq(device.context(), size, null_mut(), channel.raw.as_ptr(), vector) };
        let cq = NonNull::new(cq).ok_or_else(|| {
            let detail = format!(" with {entries} entries on vector {vector}");
            device.error("ibv_create_cq", detail, io::Error::last_os_error())
        })?;
        // SAFETY: the library made it; its size changes only by a verb that is not used here.
        let entries = u32::try_from(unsafe { (*cq.as_ptr()).cqe }).unwrap_or(entries);
        Ok(Arc::new(Queue { cq, channel, entries }))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.channel.device
    }

    /// How many completions it holds.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Take completions out: as many as there are, and as `into` has room for. How many.
    ///
    /// # Errors
    /// The queue is broken: it overran, or the device is gone.
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut done = 0;
        let mut list = [ffi::ibv_wc::default(); AT_ONCE];
        while done < into.len() {
            let room = (into.len() - done).min(AT_ONCE);
            // SAFETY: the queue is valid, and `list` has room for as many as are asked for.
            let count = unsafe { ffi::ibv_poll_cq(self.cq.as_ptr(), room as c_int, list.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                // the library's number is a plain -1 or a negative error number, without errno
                let source = io::Error::from_raw_os_error(if count == -1 { libc::EIO } else { count.saturating_neg() });
                return Err(self.device().error("ibv_poll_cq", String::new(), source));
            };
            for (place, wc) in into[done..].iter_mut().zip(&list[..count.min(room)]) {
                *place = Completion {
                    id: wc.wr_id,
                    pair: wc.qp_num,
                    status: Status(wc.status),
                    vendor_error: wc.vendor_err,
                };
            }
            done += count.min(room);
            if count < room {
                break;
            }
        }
        Ok(done)
    }

    /// Ask for one event on the channel at the next completion. Poll once more after it: what completed before makes none.
    ///
    /// # Errors
    /// The device is gone.
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is valid.
        let rc = unsafe { ffi::ibv_req_notify_cq(self.cq.as_ptr(), 0) };
        outcome(rc).map_err(|source| self.device().error("ibv_req_notify_cq", String::new(), source))
    }

    /// The channel's descriptor: readable when an event is there. It does not block.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Take the events out of the channel: how many.
    pub fn clear(&self) -> usize {
        let mut count: u32 = 0;
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is valid, the places are for writing, and the descriptor does not block.
            if unsafe { ffi::ibv_get_cq_event(self.channel.raw.as_ptr(), &raw mut cq, &raw mut context) } != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: all events of this channel are this queue's, its only one; as many were got and are acknowledged now.
            unsafe { ffi::ibv_ack_cq_events(self.cq.as_ptr(), count) };
        }
        count as usize
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.cq.as_ptr()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: it is ended once, before its channel; its pairs hold it, so there is none. All events that were got are
        // acknowledged, so that this does not wait.
        let rc = unsafe { ffi::ibv_destroy_cq(self.cq.as_ptr()) };
        if left_behind("ibv_destroy_cq", self.device().name(), rc) {
            std::mem::forget(self.device().clone());
        }
    }
}

impl Channel {
    fn new(device: &Device) -> Result<Channel, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ffi::ibv_create_comp_channel(device.context()) })
            .ok_or_else(|| device.error("ibv_create_comp_channel", String::new(), io::Error::last_os_error()))?;
        let channel = Channel { raw, device: device.clone() };
        let flags = fcntl(channel.fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        flags
            .and_then(|flags| fcntl(channel.fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)))
            .map_err(|e| device.error("fcntl", String::new(), e.into()))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is valid and keeps its descriptor open until it is ended, which is not before `self` is gone.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it is ended once, after its queue. If that could not be ended, the library refuses, and nothing is freed.
        let rc = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if left_behind("ibv_destroy_comp_channel", self.device.name(), rc) {
            std::mem::forget(self.device.clone());
        }
    }
}
