//! Memory for the caller's buffers.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use mcctl_sys::{Memory, MemoryPolicy, MemorySource, Slice};
use mcctl_transfer::TransferSettings;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;

use crate::arguments::Natural;
use crate::interpreter::detached;

/// The memory of all allocators in this process, by address. It is used instead of plain memory at
/// the same address, because nodes on the same host can copy from it.
static BLOCKS: RwLock<BTreeMap<u64, Arc<Memory>>> = RwLock::new(BTreeMap::new());

/// Returns the `len` bytes at `address`, if an allocator has allocated them.
pub(crate) fn allocated(address: u64, len: usize) -> Option<Slice> {
    let blocks = BLOCKS.read().unwrap_or_else(PoisonError::into_inner);
    let (start, memory) = blocks.range(..=address).next_back()?;
    memory.slice(usize::try_from(address - start).ok()?, len).ok()
}

/// Allocates memory for buffers of the store, on huge pages if `MC_STORE_USE_HUGEPAGE` is set.
/// Nodes on the same host can read it in place.
#[pyclass(module = "mcctl_mooncake._native")]
pub(crate) struct MooncakeHostMemAllocator {
    /// The addresses that this allocator has returned.
    addresses: Mutex<HashSet<u64>>,
}

#[pymethods]
impl MooncakeHostMemAllocator {
    #[new]
    fn new() -> MooncakeHostMemAllocator {
        MooncakeHostMemAllocator { addresses: Mutex::default() }
    }

    /// Allocates `size` bytes and returns their address.
    fn alloc(&self, py: Python<'_>, size: Natural) -> PyResult<u64> {
        let Natural(size) = size;
        if size == 0 {
            return Err(PyRuntimeError::new_err("cannot allocate 0 bytes"));
        }
        let lookup = |name: &str| std::env::var(name).ok();
        let ((policy, warnings), (settings, _)) =
            (MemoryPolicy::from_env(&lookup), TransferSettings::from_env(&lookup));
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let policy = MemoryPolicy { private: !settings.shared_memory.enabled, ..policy };
        let memory = detached(py, || MemorySource::new(policy).buffer(size));
        let memory = memory.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let address = memory.address();
        BLOCKS.write().unwrap_or_else(PoisonError::into_inner).insert(address, Arc::new(memory));
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
        Ok(address)
    }

    /// Frees memory. Returns 0, or -1 if `address` was not returned by `alloc`.
    fn free(&self, py: Python<'_>, address: Natural) -> i32 {
        let Natural(address) = address;
        if !self.addresses.lock().unwrap_or_else(PoisonError::into_inner).remove(&address) {
            return -1;
        }
        let block = BLOCKS.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        detached(py, || drop(block));
        0
    }
}
