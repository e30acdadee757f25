//! Lists of work requests.

use std::marker::PhantomData;
use std::ptr::null_mut;

use ibverbs_sys as ffi;

use super::MemoryRegion;
use crate::memory::OutOfRange;
use crate::verbs::{Direction, RdmaRequest};

/// Work requests that are posted together. Borrows their memory regions.
#[derive(Default)]
pub struct WorkRequestList<'r> {
    requests: Vec<ffi::ibv_send_wr>,
    sges: Vec<ffi::ibv_sge>,
    regions: PhantomData<&'r MemoryRegion>,
}

// SAFETY: the pointers in the list are written before each use, and used only while the list is
// exclusively borrowed.
unsafe impl Send for WorkRequestList<'_> {}
// SAFETY: only the length is read through a shared borrow.
unsafe impl Sync for WorkRequestList<'_> {}

impl<'r> WorkRequestList<'r> {
    /// Creates an empty list.
    pub fn new() -> WorkRequestList<'r> {
        WorkRequestList::default()
    }

    /// Adds a request for a range of `region`.
    ///
    /// # Errors
    /// Fails if the range exceeds the region.
    pub fn push(&mut self, region: &'r MemoryRegion, work: RdmaRequest) -> Result<(), OutOfRange> {
        let len = work.len as usize;
        if work.offset.checked_add(len).is_none_or(|end| end > region.len()) {
            return Err(OutOfRange { offset: work.offset, len, size: region.len() });
        }
        self.sges.push(ffi::ibv_sge {
            addr: region.address() + work.offset as u64,
            length: work.len,
            lkey: region.lkey(),
        });
        let signaled = if work.signaled { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        self.requests.push(ffi::ibv_send_wr {
            wr_id: work.id,
            // Some devices interpret a zero-byte SGE as 2 GiB.
            num_sge: i32::from(work.len != 0),
            opcode: match work.direction {
                Direction::Read => ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
                Direction::Write => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            },
            send_flags: signaled,
            wr: ffi::ibv_send_wr_remote {
                rdma: ffi::ibv_send_wr_rdma { remote_addr: work.remote_address, rkey: work.rkey },
            },
            ..ffi::ibv_send_wr::default()
        });
        Ok(())
    }

    /// Number of work requests in the list.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Removes all requests. Keeps the allocated memory.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
    }

    /// Returns an empty list that can be used with other regions and reuses this list's
    /// allocations.
    pub fn recycle<'s>(mut self) -> WorkRequestList<'s> {
        self.clear();
        WorkRequestList { requests: self.requests, sges: self.sges, regions: PhantomData }
    }

    /// Links the requests, and marks writes of up to `inline` bytes as inline. Returns null if the
    /// list is empty. The pointers are valid until the list is modified.
    pub(super) fn link(&mut self, inline: u32) -> *mut ffi::ibv_send_wr {
        let count = self.requests.len();
        let requests = self.requests.as_mut_ptr();
        let sges = self.sges.as_mut_ptr();
        for i in 0..count {
            // SAFETY: both lists have `count` entries, and nothing else borrows them.
            let (work, sge) = unsafe { (requests.add(i), sges.add(i)) };
            // SAFETY: as above: the pointers are inside the lists, initialized, and not borrowed
            // elsewhere.
            unsafe {
                (*work).sg_list = sge;
                (*work).next = if i + 1 < count { work.add(1) } else { null_mut() };
                let is_inline =
                    (*work).opcode == ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE && (1..=inline).contains(&(*sge).length);
                let flag = ffi::ibv_send_flags::IBV_SEND_INLINE.0;
                (*work).send_flags = if is_inline { (*work).send_flags | flag } else { (*work).send_flags & !flag };
            }
        }
        if count == 0 { null_mut() } else { requests }
    }

    /// Position of a request in the list. `None` if the request is not in the list.
    pub(super) fn index_of(&self, work: *const ffi::ibv_send_wr) -> Option<usize> {
        self.requests.iter().position(|w| std::ptr::eq(w, work))
    }

    /// Removes the first `count` requests.
    pub(super) fn drop_first(&mut self, count: usize) {
        self.requests.drain(..count);
        self.sges.drain(..count);
    }
}

impl std::fmt::Debug for WorkRequestList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({} requests)", self.len())
    }
}
