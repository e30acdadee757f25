//! Memory that belongs to the user of a binding to another language, such as Python: an address and
//! a length.

use std::io;
use std::ptr::NonNull;

use procfs_core::FromBufRead;
use procfs_core::process::{MMPermissions, MemoryMaps};

use crate::memory::{Memory, MemoryBacking};

/// Bytes checked per system call.
const STEP: usize = 1 << 30;

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallerMemoryError {
    #[error("{len} bytes at address {address:#x} are not memory of this process, or it may not {usage}")]
    NotUsable { address: u64, len: usize, usage: MemoryUse },
}

/// What is done with the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    Read,
    Write,
    /// It is not known yet.
    Later,
    /// It is not known yet, and is not examined again. All pages must permit both. They may be
    /// populated later.
    Both,
}

impl std::fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryUse::Read => "read it",
            MemoryUse::Write => "write to it",
            MemoryUse::Later => "access it",
            MemoryUse::Both => "read and write all of it",
        })
    }
}

/// Returns the memory at an address that the caller of this process's API has passed. The caller
/// has promised that the memory remains valid until the value is dropped, as for the same functions
/// upstream. A range that cannot be used now is refused, so that a wrong address or a read-only
/// mapping causes an error, as far as that can be detected. With [`MemoryUse::Later`], only
/// unmapped ranges are refused. [`MemoryUse::Both`] reads the list of this process's mappings, and
/// is for memory that is registered once and used often.
///
/// # Errors
/// The range is not mapped, or its pages do not permit the use.
pub fn caller_memory(address: u64, len: usize, usage: MemoryUse) -> Result<Memory, CallerMemoryError> {
    let base = usize::try_from(address).ok().and_then(|address| NonNull::new(address as *mut u8));
    let Some(base) = base.filter(|_| is_usable(address, len, usage)) else {
        return Err(CallerMemoryError::NotUsable { address, len, usage });
    };
    // SAFETY: the range is mapped. That it stays so, and that nothing holds a reference to the
    // bytes, is the promise of the caller of the API (see above), because no check could establish
    // it.
    Ok(unsafe { Memory::from_parts(base, len, MemoryBacking::Caller) })
}

/// Whether all pages of the range are mapped, and permit the use.
fn is_usable(address: u64, len: usize, usage: MemoryUse) -> bool {
    let page = page_size();
    let Ok(address) = usize::try_from(address) else { return false };
    let start = address / page * page;
    let Some(end) = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return false;
    };
    let advice = match usage {
        MemoryUse::Read => libc::MADV_POPULATE_READ,
        MemoryUse::Write => libc::MADV_POPULATE_WRITE,
        MemoryUse::Later => return is_mapped(start, end, page),
        MemoryUse::Both => return has_permission(start as u64, end as u64, MMPermissions::READ | MMPermissions::WRITE),
    };
    loop {
        // SAFETY: the call touches the pages of the range as the copy does later, and changes no
        // byte. It fails where a copy would raise a signal.
        let rc = unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
        if rc == 0 {
            return true;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // No permission, memory of a device, or Linux before 5.14.
            Some(libc::EINVAL) => {
                let wanted = if usage == MemoryUse::Write { MMPermissions::WRITE } else { MMPermissions::READ };
                return has_permission(start as u64, end as u64, wanted);
            }
            _ => return false,
        }
    }
}

/// Whether the mappings of this process contain the whole range, with the permissions.
fn has_permission(start: u64, end: u64, wanted: MMPermissions) -> bool {
    let Ok(maps) = std::fs::File::open("/proc/self/maps").map(std::io::BufReader::new) else { return false };
    let Ok(maps) = MemoryMaps::from_buf_read(maps) else { return false };
    let mut at = start;
    for map in maps {
        if (map.address.0..map.address.1).contains(&at) && map.perms.contains(wanted) {
            at = map.address.1;
        }
    }
    at >= end
}

fn is_mapped(start: usize, end: usize, page: usize) -> bool {
    let mut residency = vec![0u8; STEP.min(end - start) / page];
    let mut at = start;
    while at < end {
        let step = STEP.min(end - at);
        // SAFETY: the call writes one byte per page of the range into `residency`, which has that
        // many. It only queries the range.
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
        let memory = caller_memory(owner.as_ptr() as u64, owner.len(), MemoryUse::Write).unwrap();
        memory.write_at(9_999, &[7]).unwrap();
        drop(memory);
        assert_eq!(owner.pop(), Some(7));
    }

    #[test]
    fn addresses_that_are_not_mapped_are_refused() {
        let owner = [1u8; 16];
        let address = owner.as_ptr() as u64;
        for (address, len) in [(0, 10), (8, 10), (u64::MAX, 2), (address, 1 << 46), (1 << 60, 1)] {
            for usage in [MemoryUse::Read, MemoryUse::Write, MemoryUse::Later, MemoryUse::Both] {
                assert!(caller_memory(address, len, usage).is_err(), "{address:#x} {len} {usage:?}");
            }
        }
    }

    #[test]
    fn memory_without_the_permission_is_refused() {
        use MemoryUse::{Both, Later, Read, Write};
        for (protection, allowed) in [
            (libc::PROT_NONE, &[Later][..]),
            (libc::PROT_READ, &[Later, Read]),
            (libc::PROT_READ | libc::PROT_WRITE, &[Later, Read, Write, Both]),
        ] {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new anonymous mapping of one page, which nothing accesses, and which is
            // removed below.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), page_size(), protection, flags, -1, 0) };
            for usage in [Later, Read, Write, Both] {
                let accepted = caller_memory(page as u64, 100, usage).is_ok();
                assert_eq!(accepted, allowed.contains(&usage), "{protection} {usage:?}");
            }
            // SAFETY: the mapping from above, which is no longer used.
            unsafe { libc::munmap(page, page_size()) };
        }
    }

    #[test]
    fn each_page_of_memory_for_both_uses_must_permit_them() {
        let (page, flags) = (page_size(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping of three pages, which nothing accesses, and which is
        // removed below.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), 3 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let is_accepted = |from: usize, pages: usize| {
            caller_memory((start as usize + from * page) as u64, pages * page, MemoryUse::Both).is_ok()
        };
        assert!(is_accepted(0, 3));
        for protection in [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_NONE] {
            // SAFETY: the page in the middle of the mapping from above, to whose bytes nothing
            // refers.
            assert_eq!(unsafe { libc::mprotect(start.byte_add(page), page, protection) }, 0);
            assert_eq!([is_accepted(0, 3), is_accepted(0, 1), is_accepted(2, 1)], [false, true, true], "{protection}");
        }
        // SAFETY: the mapping from above, which is no longer used.
        unsafe { libc::munmap(start, 3 * page) };
    }
}
