//! The caller's memory: registered buffers, and slices of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mcctl_store::engine::sys::caller_memory::{CallerMemoryError, MemoryUse, caller_memory, permits};
use mcctl_store::engine::sys::{Memory, Slice};
use mcctl_store::engine::transfer::Registration;

use crate::host_memory::allocated;

/// The buffers that the caller has registered, by address.
#[derive(Default)]
pub struct CallerBuffers {
    by_address: BTreeMap<u64, RegisteredBuffer>,
}

struct RegisteredBuffer {
    memory: Arc<Memory>,
    registration: Registration,
    /// Whether the first and the last byte permitted reads and writes. Otherwise, each slice is examined.
    is_permitted: bool,
}

impl CallerBuffers {
    /// Adds a registered buffer.
    pub fn insert(&mut self, memory: Arc<Memory>, registration: Registration) {
        let ends = [0, memory.len().saturating_sub(1)];
        let is_permitted = ends.iter().all(|at| memory.slice(*at, 1).is_ok_and(|end| permits(&end, MemoryUse::Write)));
        self.by_address.insert(memory.address(), RegisteredBuffer { memory, registration, is_permitted });
    }

    /// Removes the buffer that begins at `address`.
    pub fn remove(&mut self, address: u64) -> Option<Registration> {
        self.by_address.remove(&address).map(|buffer| buffer.registration)
    }

    /// Removes all buffers, after the engine with their registrations has stopped.
    pub fn clear(&mut self) {
        self.by_address.clear();
    }

    /// Returns the `len` bytes at `address`: a slice of a registered buffer, or memory that is not registered.
    ///
    /// # Errors
    /// The range is not memory of this process, or does not permit the use.
    pub fn slice(&self, address: u64, len: usize, usage: MemoryUse) -> Result<Slice, CallerMemoryError> {
        if let Some(slice) = allocated(address, len) {
            return Ok(slice);
        }
        if let Some((start, buffer)) = self.by_address.range(..=address).next_back()
            && let Ok(offset) = usize::try_from(address - start)
            && let Ok(slice) = buffer.memory.slice(offset, len)
        {
            return match buffer.is_permitted || permits(&slice, usage) {
                true => Ok(slice),
                false => Err(CallerMemoryError::NotUsable { address, len, usage }),
            };
        }
        unregistered(address, len, usage)
    }
}

/// Returns the `len` bytes at `address`, which belong to no registered buffer.
///
/// # Errors
/// The range is not memory of this process, or does not permit the use.
pub fn unregistered(address: u64, len: usize, usage: MemoryUse) -> Result<Slice, CallerMemoryError> {
    Ok(Arc::new(caller_memory(address, len, usage)?).whole())
}
