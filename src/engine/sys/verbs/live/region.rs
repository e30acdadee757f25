//! Registered memory.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::{Domain, left_behind};
use crate::engine::sys::memory::Slice;
use crate::engine::sys::verbs::{Rights, VerbsError};

/// Memory that a device may read and write, and peers, too, if that was allowed. The memory lives at least as long.
#[derive(Debug)]
pub struct Region {
    mr: NonNull<ffi::ibv_mr>,
    lkey: u32,
    rkey: u32,
    memory: Slice,
    domain: Arc<Domain>,
}

// SAFETY: it is not tied to a thread, and verbs are thread-safe.
unsafe impl Send for Region {}
// SAFETY: as above; nothing is read through the pointer after it was made.
unsafe impl Sync for Region {}

/// Can memory be registered so that a device may write out of order? (The device and the host may still ignore it.)
pub fn relaxed_ordering() -> bool {
    ffi::has_reg_mr_iova2()
}

impl Region {
    /// Register `memory`. The pages are made and locked: that takes time, about a second for some GiB, and RLIMIT_MEMLOCK.
    ///
    /// # Errors
    /// The device or the system refuses.
    pub fn register(domain: &Arc<Domain>, memory: &Slice, rights: Rights) -> Result<Region, VerbsError> {
        use ffi::ibv_access_flags as access;
        let mut flags = access::IBV_ACCESS_LOCAL_WRITE;
        if rights.remote {
            flags |= access::IBV_ACCESS_REMOTE_WRITE | access::IBV_ACCESS_REMOTE_READ;
        }
        let at = memory.pointer(0).as_ptr().cast();
        let (len, address) = (memory.len(), memory.address());
        let mr = if rights.relaxed && relaxed_ordering() {
            flags |= access::IBV_ACCESS_RELAXED_ORDERING;
            // SAFETY: the domain is valid. The slice's bytes are readable and writable, are kept by the region until it is
            // deregistered, and are never behind a reference, so that writes of the device at any time break no rule.
            unsafe { ffi::ibv_reg_mr_iova2(domain.raw(), at, len, address, flags.0) }
        } else {
            // SAFETY: as above. The flags are small.
            unsafe { ffi::ibv_reg_mr(domain.raw(), at, len, flags.0 as i32) }
        };
        let mr = NonNull::new(mr).ok_or_else(|| {
            let detail = format!(" with {len} bytes at {address:#x}");
            domain.device().error("ibv_reg_mr", detail, io::Error::last_os_error())
        })?;
        // SAFETY: the library made it, and only reads it.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Ok(Region { mr, lkey, rkey, memory: memory.clone(), domain: Arc::clone(domain) })
    }

    /// The key under which this side's work requests name it.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key under which peers' work requests name it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Has it no bytes?
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The memory.
    pub fn memory(&self) -> &Slice {
        &self.memory
    }

    /// Where it is registered.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is deregistered once. When this returns 0, the device touches the memory no more.
        let rc = unsafe { ffi::ibv_dereg_mr(self.mr.as_ptr()) };
        if left_behind("ibv_dereg_mr", self.domain.device().name(), rc) {
            // then the device may still write: the memory must stay
            std::mem::forget((self.memory.clone(), Arc::clone(&self.domain)));
        }
    }
}
