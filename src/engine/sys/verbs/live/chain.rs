//! Work requests on their way into a pair.

use std::marker::PhantomData;
use std::ptr::null_mut;

use ibverbs_sys as ffi;

use super::Region;
use crate::engine::sys::memory::OutOfRange;
use crate::engine::sys::verbs::{Direction, Work};

/// Work requests that are posted together. It borrows the regions they are about.
#[derive(Default)]
pub struct Chain<'r> {
    works: Vec<ffi::ibv_send_wr>,
    stretches: Vec<ffi::ibv_sge>,
    regions: PhantomData<&'r Region>,
}

// SAFETY: the pointers in it are written before each use and used only while it is borrowed exclusively; between, they mean nothing.
unsafe impl Send for Chain<'_> {}
// SAFETY: through a shared borrow only its length is read.
unsafe impl Sync for Chain<'_> {}

impl<'r> Chain<'r> {
    /// An empty one.
    pub fn new() -> Chain<'r> {
        Chain::default()
    }

    /// Add a request about `region`.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn push(&mut self, region: &'r Region, work: Work) -> Result<(), OutOfRange> {
        let len = work.len as usize;
        if work.offset.checked_add(len).is_none_or(|end| end > region.len()) {
            return Err(OutOfRange { offset: work.offset, len, size: region.len() });
        }
        self.stretches.push(ffi::ibv_sge {
            addr: region.address() + work.offset as u64,
            length: work.len,
            lkey: region.lkey(),
        });
        let signaled = if work.signaled { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        self.works.push(ffi::ibv_send_wr {
            wr_id: work.id,
            // some devices take a stretch of no bytes for one of 2 GiB
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

    /// How many requests.
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Take them all out.
    pub fn clear(&mut self) {
        self.works.clear();
        self.stretches.clear();
    }

    /// An empty chain, for other regions, with this one's room.
    pub fn recycle<'s>(mut self) -> Chain<'s> {
        self.clear();
        Chain { works: self.works, stretches: self.stretches, regions: PhantomData }
    }

    /// Link the requests, those that write up to `inline` bytes with their bytes. Null when there is none. The pointers are good
    /// until the chain is touched again.
    pub(super) fn link(&mut self, inline: u32) -> *mut ffi::ibv_send_wr {
        let count = self.works.len();
        let (works, stretches) = (self.works.as_mut_ptr(), self.stretches.as_mut_ptr());
        for i in 0..count {
            // SAFETY: both lists have `count` entries; nobody else borrows them.
            let (work, stretch) = unsafe { (works.add(i), stretches.add(i)) };
            // SAFETY: as above: inside the lists, initialised, borrowed by nobody else.
            unsafe {
                (*work).sg_list = stretch;
                (*work).next = if i + 1 < count { work.add(1) } else { null_mut() };
                let taken_along = (*work).opcode == ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE
                    && (1..=inline).contains(&(*stretch).length);
                let flag = ffi::ibv_send_flags::IBV_SEND_INLINE.0;
                (*work).send_flags = if taken_along { (*work).send_flags | flag } else { (*work).send_flags & !flag };
            }
        }
        if count == 0 { null_mut() } else { works }
    }

    /// The place of a request in the chain; `None` when it is none of it.
    pub(super) fn place(&self, work: *const ffi::ibv_send_wr) -> Option<usize> {
        self.works.iter().position(|w| std::ptr::eq(w, work))
    }

    /// Take the first `count` out.
    pub(super) fn drop_first(&mut self, count: usize) {
        self.works.drain(..count);
        self.stretches.drain(..count);
    }
}

impl std::fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({} requests)", self.len())
    }
}
