//! Registered memory regions.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::{ProtectionDomain, is_leaked};
use crate::memory::Slice;
use crate::verbs::{AccessFlags, VerbsError};

/// A memory region (MR): the device may read and write it, and so may peers if allowed. Keeps the
/// memory alive.
#[derive(Debug)]
pub struct MemoryRegion {
    mr: NonNull<ffi::ibv_mr>,
    lkey: u32,
    rkey: u32,
    memory: Slice,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: not tied to a thread, and verbs are thread-safe.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above. Nothing is read through the pointer after creation.
unsafe impl Sync for MemoryRegion {}

/// Whether memory can be registered with relaxed ordering. (The device and the host may still
/// ignore the flag.)
pub fn relaxed_ordering() -> bool {
    ffi::has_reg_mr_iova2()
}

impl MemoryRegion {
    /// Registers `memory`. The pages are faulted in and locked. This takes about a second for
    /// several GiB, and the locked pages count toward RLIMIT_MEMLOCK.
    ///
    /// # Errors
    /// Fails if the device or the system rejects the registration.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        memory: &Slice,
        rights: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        use ffi::ibv_access_flags as access;
        let mut flags = access::IBV_ACCESS_LOCAL_WRITE;
        if rights.remote {
            flags |= access::IBV_ACCESS_REMOTE_WRITE | access::IBV_ACCESS_REMOTE_READ;
        }
        let at = memory.pointer(0).as_ptr().cast();
        let len = memory.len();
        let address = memory.address();
        let mr = if rights.relaxed && relaxed_ordering() {
            flags |= access::IBV_ACCESS_RELAXED_ORDERING;
            // SAFETY: the domain is valid. The slice's bytes are readable and writable, and the
            // region keeps them alive until it is deregistered. No reference to them ever exists,
            // so the device may write to them at any time.
            unsafe { ffi::ibv_reg_mr_iova2(domain.raw(), at, len, address, flags.0) }
        } else {
            // SAFETY: as above. The flags fit in an `i32`.
            unsafe { ffi::ibv_reg_mr(domain.raw(), at, len, flags.0 as i32) }
        };
        let mr = NonNull::new(mr).ok_or_else(|| {
            let detail = format!(" with {len} bytes at {address:#x}");
            domain.device().error("ibv_reg_mr", detail, io::Error::last_os_error())
        })?;
        // SAFETY: the library created the region, and only reads it.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Ok(MemoryRegion { mr, lkey, rkey, memory: memory.clone(), domain: Arc::clone(domain) })
    }

    /// The key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers' work requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address in this process.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The memory that is registered.
    pub fn memory(&self) -> &Slice {
        &self.memory
    }

    /// The protection domain in which the memory is registered.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: deregistered once. After this returns 0, the device no longer accesses the
        // memory.
        let rc = unsafe { ffi::ibv_dereg_mr(self.mr.as_ptr()) };
        if is_leaked("ibv_dereg_mr", self.domain.device().name(), rc) {
            // The device may still write to the memory, so the memory must not be freed.
            std::mem::forget((self.memory.clone(), Arc::clone(&self.domain)));
        }
    }
}
