//! The caller's memory: registered buffers, and slices of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mcctl_sys::caller_memory::{CallerMemoryError, MemoryUse, caller_memory};
use mcctl_sys::{Memory, Slice};
use mcctl_transfer::Registration;

use crate::host_memory::allocated;

/// The buffers that the caller has registered, by address.
#[derive(Default)]
pub(crate) struct CallerBuffers {
    by_address: BTreeMap<u64, RegisteredBuffer>,
}

struct RegisteredBuffer {
    memory: Arc<Memory>,
    registration: Registration,
}

impl CallerBuffers {
    /// Adds a registered buffer. Its memory permits reads and writes, and is not examined again.
    pub(crate) fn insert(&mut self, memory: Arc<Memory>, registration: Registration) {
        self.by_address.insert(memory.address(), RegisteredBuffer { memory, registration });
    }

    /// Removes the buffer that begins at `address`.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Registration> {
        self.by_address.remove(&address).map(|buffer| buffer.registration)
    }

    /// Removes all buffers, after the engine with their registrations has stopped.
    pub(crate) fn clear(&mut self) {
        self.by_address.clear();
    }

    /// Returns the `len` bytes at `address`: a slice of a registered buffer, or memory that is not
    /// registered.
    ///
    /// # Errors
    /// The range is not memory of this process, or does not permit the use.
    pub(crate) fn slice(&self, address: u64, len: usize, usage: MemoryUse) -> Result<Slice, CallerMemoryError> {
        if let Some(slice) = allocated(address, len) {
            return Ok(slice);
        }
        if let Some((start, buffer)) = self.by_address.range(..=address).next_back()
            && let Ok(offset) = usize::try_from(address - start)
            && let Ok(slice) = buffer.memory.slice(offset, len)
        {
            return Ok(slice);
        }
        unregistered(address, len, usage)
    }
}

/// Returns the `len` bytes at `address`, which belong to no registered buffer.
///
/// # Errors
/// The range is not memory of this process, or does not permit the use.
pub(crate) fn unregistered(address: u64, len: usize, usage: MemoryUse) -> Result<Slice, CallerMemoryError> {
    Ok(Arc::new(caller_memory(address, len, usage)?).whole())
}
