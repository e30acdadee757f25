//! Protection domains.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::{RdmaDevice, is_leaked};
use crate::verbs::VerbsError;

/// A protection domain. Its queue pairs can only use memory regions in the same domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    pd: NonNull<ffi::ibv_pd>,
    device: RdmaDevice,
}

// SAFETY: not tied to a thread, and verbs are thread-safe.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above. Nothing is read through the pointer here.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Fails if the device has no protection domains left.
    pub fn new(device: &RdmaDevice) -> Result<Arc<ProtectionDomain>, VerbsError> {
        // SAFETY: the context is open.
        let pd = NonNull::new(unsafe { ffi::ibv_alloc_pd(device.context()) })
            .ok_or_else(|| device.error("ibv_alloc_pd", String::new(), io::Error::last_os_error()))?;
        Ok(Arc::new(ProtectionDomain { pd, device: device.clone() }))
    }

    /// The device on which the domain was created.
    pub fn device(&self) -> &RdmaDevice {
        &self.device
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: deallocated once: everything created from the domain keeps it alive.
        let rc = unsafe { ffi::ibv_dealloc_pd(self.pd.as_ptr()) };
        if is_leaked("ibv_dealloc_pd", self.device.name(), rc) {
            std::mem::forget(self.device.clone());
        }
    }
}
