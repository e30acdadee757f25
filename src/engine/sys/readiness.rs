//! Waits for readable descriptors, and wakes waiting threads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Maximum number of descriptors per call.
pub const WAIT_MAX: usize = 64;

/// Waits until one of `fds` (at most [`WAIT_MAX`] descriptors) is readable or has failed (a read then fails), `timeout`
/// has expired, or a signal has arrived. Bit `i` of the result corresponds to `fds[i]`.
///
/// # Errors
/// Fails with the error from `ppoll`, or if there are too many descriptors.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<u64> {
    if fds.len() > WAIT_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut list = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; WAIT_MAX];
    for (slot, fd) in list.iter_mut().zip(fds) {
        slot.fd = fd.as_raw_fd();
    }
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `list` has at least `fds.len()` entries (checked). The time is valid, and a null mask leaves the signal
    // mask unchanged.
    let rc = unsafe { libc::ppoll(list.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const time, std::ptr::null()) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    Ok(list[..fds.len()].iter().enumerate().filter(|(_, p)| p.revents != 0).fold(0, |bits, (i, _)| bits | 1 << i))
}

/// An event that wakes threads that are waiting for its descriptor to become readable.
#[derive(Debug)]
pub struct WakeEvent(File);

impl WakeEvent {
    /// Creates an event that is not set.
    ///
    /// # Errors
    /// Fails if no file descriptor is available.
    pub fn new() -> io::Result<WakeEvent> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        Ok(WakeEvent(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the descriptor readable until [`clear`](WakeEvent::clear) is called.
    pub fn wake(&self) {
        // The write can fail only if the counter is full, in which case the descriptor is already readable.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Clears the event, so that the descriptor is no longer readable.
    pub fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_event_is_readable_until_cleared() {
        let (one, other) = (WakeEvent::new().unwrap(), WakeEvent::new().unwrap());
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
