//! Waiting until a descriptor has something to read, and waking somebody who waits so.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Most descriptors of one call.
pub const WAIT_MAX: usize = 64;

/// Wait until one of `fds`, at most [`WAIT_MAX`] of them, can be read (or is broken, which a read then tells), `timeout` is over, or
/// a signal came: bit `i` of the answer stands for `fds[i]`.
///
/// # Errors
/// What `ppoll` says; too many descriptors.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<u64> {
    if fds.len() > WAIT_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut list = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; WAIT_MAX];
    for (place, fd) in list.iter_mut().zip(fds) {
        place.fd = fd.as_raw_fd();
    }
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `list` has at least `fds.len()` entries (checked), the time is valid, and a null mask leaves the signals as they are.
    let rc = unsafe { libc::ppoll(list.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const time, std::ptr::null()) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    Ok(list[..fds.len()].iter().enumerate().filter(|(_, p)| p.revents != 0).fold(0, |bits, (i, _)| bits | 1 << i))
}

/// Wakes who waits for its descriptor to be readable.
#[derive(Debug)]
pub struct Wake(File);

impl Wake {
    /// A new one, not woken.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Wake> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(Wake(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Make it readable. What was woken and not cleared stays so.
    pub fn wake(&self) {
        // The only failure is that the counter is full, and then it is readable.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Make it not readable.
    pub fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_woken_is_readable_until_it_is_cleared() {
        let (one, other) = (Wake::new().unwrap(), Wake::new().unwrap());
        let both = [one.as_fd(), other.as_fd()];
        assert_eq!(wait_readable(&both, Duration::ZERO).unwrap(), 0);
        other.wake();
        other.wake();
        assert_eq!(wait_readable(&both, Duration::from_secs(5)).unwrap(), 2);
        other.clear();
        assert_eq!(wait_readable(&both, Duration::from_micros(10)).unwrap(), 0);
        assert!(wait_readable(&[one.as_fd(); WAIT_MAX + 1], Duration::ZERO).is_err());
    }
}
