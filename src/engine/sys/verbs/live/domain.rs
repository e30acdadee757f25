//! A protection domain: pairs of it can use regions of it, and no others.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::{Device, left_behind};
use crate::engine::sys::verbs::VerbsError;

/// A protection domain.
#[derive(Debug)]
pub struct Domain {
    pd: NonNull<ffi::ibv_pd>,
    device: Device,
}

// SAFETY: it is not tied to a thread, and verbs are thread-safe.
unsafe impl Send for Domain {}
// SAFETY: as above; nothing is read through the pointer here.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one.
    ///
    /// # Errors
    /// The device has no more.
    pub fn new(device: &Device) -> Result<Arc<Domain>, VerbsError> {
        // SAFETY: the context is open.
        let pd = NonNull::new(unsafe { ffi::ibv_alloc_pd(device.context()) })
            .ok_or_else(|| device.error("ibv_alloc_pd", String::new(), io::Error::last_os_error()))?;
        Ok(Arc::new(Domain { pd, device: device.clone() }))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: it is ended once: all that is made from it holds it.
        let rc = unsafe { ffi::ibv_dealloc_pd(self.pd.as_ptr()) };
        if left_behind("ibv_dealloc_pd", self.device.name(), rc) {
            std::mem::forget(self.device.clone());
        }
    }
}
