//! Memory that belongs to the user of a binding to another language, such as Python: an address and a length.

use std::io;
use std::ptr::NonNull;

use crate::engine::sys::memory::{Memory, MemoryBacking};

/// Bytes checked per system call.
const STEP: usize = 1 << 30;

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallerMemoryError {
    #[error("{len} bytes at address {address:#x} are not memory of this process")]
    NotMapped { address: u64, len: usize },
}

/// Returns the memory at an address that the caller of this process's API has passed. The caller has promised that the memory remains valid
/// until the value is dropped, as for the same functions upstream. A range that is not mapped now is refused, so that a wrong address causes
/// an error, as far as that can be detected.
///
/// # Errors
/// The range is not mapped.
pub fn caller_memory(address: u64, len: usize) -> Result<Memory, CallerMemoryError> {
    let error = CallerMemoryError::NotMapped { address, len };
    let base = usize::try_from(address).ok().and_then(|address| NonNull::new(address as *mut u8));
    let Some(base) = base.filter(|_| is_mapped(address, len)) else { return Err(error) };
    // SAFETY: the range is mapped. That it stays so, and that nothing holds a reference to the bytes, is the promise of the caller of the
    // API (see above), because no check could establish it.
    Ok(unsafe { Memory::from_parts(base, len, MemoryBacking::Caller) })
}

/// Whether all pages of the range are mapped.
fn is_mapped(address: u64, len: usize) -> bool {
    let page = page_size();
    let Some(start) = usize::try_from(address).ok().map(|address| address / page * page) else { return false };
    let Some(end) = (address as usize).checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return false;
    };
    let mut residency = vec![0u8; STEP.min(end - start) / page];
    let mut at = start;
    while at < end {
        let step = STEP.min(end - at);
        // SAFETY: the call writes one byte per page of the range into `residency`, which has that many. It only queries the range.
        let rc = unsafe { libc::mincore(at as *mut libc::c_void, step, residency.as_mut_ptr()) };
        if rc != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
            return false;
        }
        at += step;
    }
    true
}

fn page_size() -> usize {
    // SAFETY: the call has no memory arguments.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_used_where_it_lies_and_not_freed() {
        let mut owner = vec![1u8; 10_000];
        let memory = caller_memory(owner.as_ptr() as u64, owner.len()).unwrap();
        memory.write_at(9_999, &[7]).unwrap();
        drop(memory);
        assert_eq!(owner.pop(), Some(7));
    }

    #[test]
    fn addresses_that_are_not_mapped_are_refused() {
        let owner = [1u8; 16];
        let address = owner.as_ptr() as u64;
        for (address, len) in [(0, 10), (8, 10), (u64::MAX, 2), (address, 1 << 46), (1 << 60, 1)] {
            assert!(caller_memory(address, len).is_err(), "{address:#x} {len}");
        }
    }
}
