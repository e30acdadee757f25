//! Waits for readable descriptors, detects closed connections, and wakes waiting threads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Maximum number of descriptors per call.
pub const WAIT_MAX: usize = 64;

/// Waits until one of `fds` (at most [`WAIT_MAX`] descriptors) is readable or has failed (a read
/// then fails), `timeout` has expired, or a signal has arrived. Bit `i` of the result corresponds
/// to `fds[i]`.
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
    // SAFETY: `list` has at least `fds.len()` entries (checked). The time is valid, and a null mask
    // leaves the signal mask unchanged.
    let rc = unsafe { libc::ppoll(list.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const time, std::ptr::null()) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    Ok(list[..fds.len()].iter().enumerate().filter(|(_, p)| p.revents != 0).fold(0, |bits, (i, _)| bits | 1 << i))
}

/// Whether the peer of this stream socket has closed or reset the connection. This is known before
/// the bytes that it sent earlier have been read. Costs one system call, which neither waits nor
/// reads.
pub fn is_hung_up(socket: &impl AsFd) -> bool {
    let mut query = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: `query` is one entry, and the kernel uses it only during the call.
    let found = unsafe { libc::poll(&raw mut query, 1, 0) };
    // `POLLHUP` and `POLLERR` are reported without being requested. A signal makes the call fail
    // only if nothing was found.
    found > 0
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
        // The write can fail only if the counter is full, in which case the descriptor is already
        // readable.
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
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::socket::discard_on_close;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connected, listener.accept().unwrap().0)
    }

    /// Waits until the kernel has delivered the end of the connection, which it does
    /// asynchronously.
    fn wait_until_hung_up(socket: &TcpStream) {
        for _ in 0..10_000 {
            if is_hung_up(socket) {
                return;
            }
            wait_readable(&[], Duration::from_millis(1)).unwrap();
        }
        panic!("the peer's close was not noticed");
    }

    #[test]
    fn unread_bytes_neither_look_like_a_close_nor_hide_one() {
        let (socket, mut peer) = pair();
        assert!(!is_hung_up(&socket));
        peer.write_all(b"x").unwrap();
        assert_eq!(socket.peek(&mut [0]).unwrap(), 1);
        assert!(!is_hung_up(&socket));
        drop(peer);
        wait_until_hung_up(&socket);
        let mut rest = Vec::new();
        (&socket).read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"x");
        assert!(is_hung_up(&socket));
    }

    #[test]
    fn a_reset_connection_is_hung_up_even_after_its_error_was_read() {
        let (socket, peer) = pair();
        discard_on_close(&peer).unwrap();
        drop(peer);
        wait_until_hung_up(&socket);
        assert_eq!((&socket).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(is_hung_up(&socket));
    }

    #[test]
    fn a_wake_event_is_readable_until_cleared() {
        let one = WakeEvent::new().unwrap();
        let other = WakeEvent::new().unwrap();
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
