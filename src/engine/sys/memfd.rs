//! Files in memory that processes can share, and their seals.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// The name of the files, as in `/proc/PID/maps`.
const NAME: &std::ffi::CStr = c"mcctl";
/// `MFD_NOEXEC_SEAL`, which kernels before 6.3 reject.
const NO_EXEC: MFdFlags = MFdFlags::from_bits_retain(8);
/// The file can neither shrink nor grow, and no process can map it for writing from then on.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// The seals without which a file must not be mapped: its pages could disappear.
const REQUIRED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;

/// Creates a file of `bytes` zeroed bytes. `pages` selects huge pages.
///
/// # Errors
/// Fails with the error from the failed system call.
pub(crate) fn create(bytes: u64, pages: MFdFlags) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | pages;
    let file = memfd_create(NAME, flags | NO_EXEC).or_else(|_| memfd_create(NAME, flags))?;
    let length = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    nix::unistd::ftruncate(&file, length)?;
    Ok(file)
}

/// Seals a file against changes of its size, and against writes by other processes. Existing
/// mappings stay writable.
///
/// # Errors
/// Fails if the kernel does not support the seals.
pub(crate) fn seal(file: &impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    let rc = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the file is sealed so that the pages of a mapping cannot disappear.
///
/// # Errors
/// Fails if the file is not a memfd.
pub(crate) fn is_safe_to_map(file: &impl AsFd) -> io::Result<bool> {
    // SAFETY: the call takes no pointers.
    let seals = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 { Err(io::Error::last_os_error()) } else { Ok(seals & REQUIRED == REQUIRED) }
}

/// Maps the first `bytes` bytes of a file at an address chosen by the kernel.
///
/// # Errors
/// Fails with the error from `mmap`.
pub(crate) fn map(file: &OwnedFd, bytes: NonZeroUsize, access: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a mapping at an address chosen by the kernel does not affect existing memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes.get(), access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast::<u8>()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
