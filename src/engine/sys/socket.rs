//! Sends from and receives into [`Memory`](crate::Memory), and creates listeners that std cannot
//! create.
//!
//! Each call makes one system call. Loops, deadlines and protocols are up to the callers.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind,
    listen as nix_listen, recvmsg, setsockopt, socket, sockopt,
};

use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};

use crate::memory::Slice;

/// Idle time after which keepalive probes are sent, in seconds.
const KEEPALIVE_IDLE_S: u32 = 60;
/// Interval between keepalive probes, in seconds.
const KEEPALIVE_INTERVAL_S: u32 = 10;
/// Number of unanswered probes after which the connection is closed.
const KEEPALIVE_PROBES: u32 = 6;
/// A connection with unacknowledged bytes or a zero window is closed after the same time as an idle
/// one whose probes go unanswered. (With this option, Linux closes the idle connection after this
/// time too, regardless of the number of probes, so the two times must match.)
const UNACKNOWLEDGED_MAX_MS: u32 = (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) * 1000;

/// Maximum number of parts per call.
pub const PARTS_MAX: usize = 64;

/// A part to send: plain bytes, or bytes in registered memory.
pub enum SendPart<'a> {
    Bytes(&'a [u8]),
    /// Memory that peers may write at the same time.
    Memory(&'a Slice),
}

/// A destination for received bytes.
pub enum ReceivePart<'a> {
    Bytes(&'a mut [u8]),
    /// Memory that peers may read at the same time.
    Memory(&'a Slice),
}

/// Sends `parts` one after another. The first `done` bytes, counted across all parts, were sent
/// earlier. Returns the number of bytes sent by this call. Parts beyond the first [`PARTS_MAX`] are
/// left for another call.
///
/// # Errors
/// Fails with the error from `sendmsg`: `WouldBlock` if the socket's send timeout expired before
/// any byte was sent. Never raises SIGPIPE.
pub fn send<'a>(socket: BorrowedFd<'_>, parts: impl Iterator<Item = SendPart<'a>>, done: usize) -> io::Result<usize> {
    let mut vectors = IoVectors::new(done);
    for part in parts {
        match part {
            SendPart::Bytes(bytes) => vectors.push(bytes.as_ptr().cast_mut().cast(), bytes.len()),
            SendPart::Memory(slice) => vectors.push(slice.pointer(0).as_ptr().cast(), slice.len()),
        }
    }
    vectors.call(|message| {
        // SAFETY: each part is valid for reading for its length. Bytes and slices are borrowed for
        // at least 'a, and slices keep their memory alive. The kernel copies the bytes. If a peer
        // writes them at the same time, only the copied content changes.
        unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
    })
}

/// Receives into `parts` one after another. The first `done` bytes, counted across all parts, were
/// received earlier. Returns the number of bytes received by this call, or 0 if the peer has closed
/// the connection. Blocks until all bytes have arrived, the peer has closed the connection, or the
/// socket's receive timeout has expired. Waiting in the kernel uses a fifth less CPU time than
/// returning after every few segments.
///
/// # Errors
/// Fails with the error from `recvmsg`: `WouldBlock` if the socket's receive timeout expired before
/// any byte arrived.
pub fn receive<'a>(
    socket: BorrowedFd<'_>,
    parts: impl Iterator<Item = ReceivePart<'a>>,
    done: usize,
) -> io::Result<usize> {
    let mut vectors = IoVectors::new(done);
    for part in parts {
        match part {
            ReceivePart::Bytes(bytes) => vectors.push(bytes.as_mut_ptr().cast(), bytes.len()),
            ReceivePart::Memory(slice) => vectors.push(slice.pointer(0).as_ptr().cast(), slice.len()),
        }
    }
    vectors.call(|message| {
        // SAFETY: each part is valid for writing for its length. Bytes are borrowed exclusively for
        // 'a. Slices are borrowed for 'a and keep their memory alive, and no reference to its bytes
        // exists (see `sys::memory`). The kernel writes no more than the lengths.
        unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_WAITALL) }
    })
}

/// A message's I/O vectors, excluding the bytes that have already been transferred.
struct IoVectors {
    list: [libc::iovec; PARTS_MAX],
    len: usize,
    done: usize,
}

impl IoVectors {
    fn new(done: usize) -> IoVectors {
        IoVectors { list: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX], len: 0, done }
    }

    fn push(&mut self, base: *mut libc::c_void, bytes: usize) {
        let skipped = bytes.min(self.done);
        self.done -= skipped;
        if skipped < bytes && self.len < PARTS_MAX {
            self.list[self.len] = libc::iovec { iov_base: base.wrapping_byte_add(skipped), iov_len: bytes - skipped };
            self.len += 1;
        }
    }

    /// Passes the message to `with`, and retries if a signal interrupts the call.
    fn call(&mut self, with: impl Fn(*mut libc::msghdr) -> isize) -> io::Result<usize> {
        // SAFETY: an all-zero msghdr is valid: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr();
        message.msg_iovlen = self.len as _;
        loop {
            match usize::try_from(with(&raw mut message)) {
                Ok(bytes) => return Ok(bytes),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Listens on `at`. Up to `backlog` connections may wait to be accepted. An IPv6 wildcard address
/// accepts IPv4 peers too.
///
/// std's listener has a fixed backlog of 128, which peers that open a connection per request
/// exceed.
///
/// # Errors
/// Fails with the error from the failed system call.
pub fn listen(at: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let family = if at.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if at.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(at))?;
    nix_listen(&fd, Backlog::new(backlog)?)?;
    Ok(TcpListener::from(fd))
}

/// Closes connections accepted by `listener` two minutes after their peer's host has disappeared.
/// Otherwise, such a connection and its resources would remain forever. Accepted connections
/// inherit the options.
///
/// # Errors
/// Fails with the error from `setsockopt`.
pub fn enable_keepalive(listener: &impl AsFd) -> io::Result<()> {
    setsockopt(listener, sockopt::KeepAlive, &true)?;
    setsockopt(listener, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(listener, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(listener, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(listener, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MAX_MS)?;
    Ok(())
}

/// Sets the options that `listener`'s connections inherit: no delay for small packets, keepalive
/// ([`enable_keepalive`]), and an error if a call blocks for longer than `limit`. The listener's
/// own `accept` also fails with `WouldBlock` after that time.
///
/// # Errors
/// Fails with the error from `setsockopt`.
pub fn prepare_listener(listener: &TcpListener, limit: Duration) -> io::Result<()> {
    let seconds = libc::time_t::try_from(limit.as_secs().max(1)).unwrap_or(libc::time_t::MAX);
    let limit = TimeVal::new(seconds, 0);
    setsockopt(listener, sockopt::TcpNoDelay, &true)?;
    enable_keepalive(listener)?;
    setsockopt(listener, sockopt::ReceiveTimeout, &limit)?;
    setsockopt(listener, sockopt::SendTimeout, &limit)?;
    Ok(())
}

/// Makes closing `stream` discard unsent bytes and reset the connection, instead of sending the
/// rest in the background.
///
/// # Errors
/// Fails with the error from `setsockopt`.
pub fn discard_on_close(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    Ok(())
}

/// Returns the number of bytes that `stream` has received, and that its peer has acknowledged.
///
/// # Errors
/// Fails with the error from `getsockopt`. A kernel before Linux 4.1 does not count the bytes; the
/// result is then 0.
pub fn bytes_moved(stream: &TcpStream) -> io::Result<u64> {
    let info = tcp_info(stream)?;
    Ok(number(&info, BYTES_ACKED) + number(&info, BYTES_RECEIVED))
}

/// The number of bytes of the kernel's `struct tcp_info` up to its 64-bit numbers of bytes
/// (linux/tcp.h). The type in libc may end earlier.
const TCP_INFO_BYTES: usize = 136;
/// Offset of tcpi_last_data_sent (32 bits).
const LAST_DATA_SENT: usize = 44;
/// Offsets of tcpi_bytes_acked and tcpi_bytes_received (64 bits).
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

/// The time since the kernel established `stream`, which a listener has accepted, and on which
/// nothing has been sent. The kernel measures it in ticks of up to 10 ms.
///
/// # Errors
/// Fails with the error from `getsockopt`.
pub fn established_for(stream: &TcpStream) -> io::Result<Duration> {
    // The kernel initializes this time when it establishes the connection
    // (`tcp_create_openreq_child`).
    let info = tcp_info(stream)?;
    let millis = info[LAST_DATA_SENT..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
    Ok(Duration::from_millis(u64::from(millis)))
}

fn number(info: &[u8; TCP_INFO_BYTES], offset: usize) -> u64 {
    info[offset..].first_chunk().copied().map_or(0, u64::from_ne_bytes)
}

fn tcp_info(stream: &TcpStream) -> io::Result<[u8; TCP_INFO_BYTES]> {
    let mut info = [0; TCP_INFO_BYTES];
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `info`, which has that size. An older
    // kernel writes fewer.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info)
}

/// Returns true if the peer has closed `stream`, or has sent bytes. For a connection on which no
/// bytes are expected.
pub fn is_closed_by_peer(stream: &TcpStream) -> bool {
    let mut byte = [0; 1];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let seen = nix::sys::socket::recv(stream.as_raw_fd(), &mut byte, flags).map_err(io::Error::from);
    !seen.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted))
}

/// Enables kernel timestamps for bytes that arrive on `socket`, for [`receive_with_age`].
///
/// # Errors
/// Fails with the error from `setsockopt`.
pub fn enable_rx_timestamps(socket: &impl AsFd) -> io::Result<()> {
    setsockopt(socket, sockopt::ReceiveTimestampns, &true)?;
    Ok(())
}

/// Ages above this limit are ignored, because they result from a wall-clock change.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Receives into `bytes` without blocking. Returns the number of bytes (0 if the peer has closed
/// the connection), and how long the last byte waited in the kernel, according to its arrival
/// timestamp ([`enable_rx_timestamps`]). Without a timestamp, that time is zero.
///
/// # Errors
/// Fails with the error from `recvmsg`: `WouldBlock` if no bytes are available.
pub fn receive_with_age(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Duration)> {
    /// Room for one timestamp, aligned as the kernel's headers require.
    #[repr(align(8))]
    struct TimestampBuffer([u8; 64]);
    let mut notes = TimestampBuffer([0; 64]);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut notes.0), MsgFlags::MSG_DONTWAIT)?;
    let arrived = message.cmsgs().ok().and_then(|mut notes| {
        notes.find_map(|note| match note {
            ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
            _ => None,
        })
    });
    // The timestamp is wall-clock time. The age is the difference from the current time on the same
    // clock, so only a clock step in between could make it wrong.
    let age = arrived.and_then(|at| {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME).ok()?);
        now.checked_sub(at).filter(|age| *age <= AGE_MAX)
    });
    Ok((message.bytes, age.unwrap_or_default()))
}

/// Wakes every thread that is waiting in `accept` on this listener. Each `accept` returns an error.
///
/// # Errors
/// Fails with the error from `shutdown`.
pub fn stop_listening(listener: &TcpListener) -> io::Result<()> {
    nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use nix::sys::socket::getsockopt;
    use std::io::{Read, Write};
    use std::sync::Arc;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    fn out<'a>(head: &'a [u8], body: &'a Slice) -> impl Iterator<Item = SendPart<'a>> {
        [SendPart::Bytes(head), SendPart::Memory(body)].into_iter()
    }

    #[test]
    fn the_kernel_counts_the_bytes_of_a_connection() {
        let (mut a, mut b) = pair();
        let before = [bytes_moved(&a).unwrap(), bytes_moved(&b).unwrap()];
        a.write_all(&[1; 1000]).unwrap();
        b.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(bytes_moved(&b).unwrap() - before[1], 1000);
        b.write_all(&[1; 10]).unwrap();
        a.read_exact(&mut [0; 10]).unwrap();
        // The response acknowledges the request.
        assert_eq!(bytes_moved(&a).unwrap() - before[0], 1010);
    }

    #[test]
    fn send_resumes_at_any_offset() {
        let memory = Arc::new(Memory::from_vec(b"....BODY....".to_vec()));
        let body = memory.slice(4, 4).unwrap();
        for done in 0..8 {
            let (a, mut b) = pair();
            assert_eq!(send(a.as_fd(), out(b"head", &body), done).unwrap(), 8 - done);
            drop(a);
            let mut got = String::new();
            b.read_to_string(&mut got).unwrap();
            assert_eq!(got, "headBODY"[done..]);
        }
    }

    #[test]
    fn receive_writes_only_into_the_given_parts() {
        for done in 0..8 {
            let memory = Arc::new(Memory::from_vec(vec![b'.'; 12]));
            let body = memory.slice(4, 4).unwrap();
            let (mut a, b) = pair();
            a.write_all(&b"headBODYmore"[done..]).unwrap();
            let mut head = *b"____";
            assert_eq!(
                receive(b.as_fd(), [ReceivePart::Bytes(&mut head), ReceivePart::Memory(&body)].into_iter(), done)
                    .unwrap(),
                8 - done
            );
            assert_eq!(&head[done.min(4)..], &b"head"[done.min(4)..]);
            let skipped = done.saturating_sub(4);
            assert_eq!(&memory.whole().to_vec()[4 + skipped..], &b"BODY...."[skipped..]);
        }
    }

    #[test]
    fn the_age_of_bytes_is_their_time_in_the_kernel() {
        let (mut a, b) = pair();
        enable_rx_timestamps(&b).unwrap();
        a.write_all(b"old").unwrap();
        let before = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let waited = || Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()) - Duration::from(before);
        while waited() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        let mut bytes = [0; 8];
        let (count, age) = receive_with_age(b.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"old");
        // The first packets after a socket first enables timestamps may not have one yet.
        assert!(
            age.is_zero() || age >= Duration::from_millis(20) && age <= waited() + Duration::from_millis(20),
            "{age:?}"
        );
        assert_eq!(receive_with_age(b.as_fd(), &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(receive_with_age(b.as_fd(), &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn send_limits_the_parts_per_call() {
        let (a, mut b) = pair();
        let letters: Vec<[u8; 1]> = (0..100).map(|n| [b'a' + n % 26]).collect();
        let parts = || letters.iter().map(|letter| SendPart::Bytes(letter));
        assert_eq!(send(a.as_fd(), parts(), 0).unwrap(), PARTS_MAX);
        assert_eq!(send(a.as_fd(), parts(), PARTS_MAX).unwrap(), 100 - PARTS_MAX);
        drop(a);
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        assert_eq!(got, letters.concat());
    }

    #[test]
    fn connections_inherit_listener_options() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        prepare_listener(&listener, Duration::from_secs(7)).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        assert!(accepted.nodelay().unwrap());
        let questions = (
            getsockopt(&accepted, sockopt::KeepAlive).unwrap(),
            getsockopt(&accepted, sockopt::TcpKeepIdle).unwrap(),
            getsockopt(&accepted, sockopt::TcpKeepInterval).unwrap(),
            getsockopt(&accepted, sockopt::TcpKeepCount).unwrap(),
            getsockopt(&accepted, sockopt::TcpUserTimeout).unwrap(),
        );
        assert_eq!(questions, (true, 60, 10, 6, 120_000));
        assert_eq!(accepted.read_timeout().unwrap(), Some(Duration::from_secs(7)));
        assert_eq!(accepted.write_timeout().unwrap(), Some(Duration::from_secs(7)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the kernel's clock")]
    fn a_connection_ages_while_it_waits_to_be_accepted() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(80));
        peer.write_all(b"x").unwrap();
        let accepted = listener.accept().unwrap().0;
        assert!(established_for(&accepted).unwrap() >= Duration::from_millis(60));
    }

    #[test]
    fn a_closed_peer_is_noticed_without_reading() {
        let (a, mut b) = pair();
        assert!(!is_closed_by_peer(&a));
        b.write_all(b"x").unwrap();
        (&a).read_exact(&mut [0]).unwrap();
        assert!(!is_closed_by_peer(&a));
        drop(b);
        // The kernel delivers the end of the stream asynchronously.
        assert_eq!((&a).read(&mut [0]).unwrap(), 0);
        assert!(is_closed_by_peer(&a));
    }

    #[test]
    fn discard_on_close_drops_unsent_bytes() {
        let (a, mut b) = pair();
        a.set_nonblocking(true).unwrap();
        let memory = Arc::new(Memory::from_vec(vec![1; 64 << 20]));
        let sent = send(a.as_fd(), out(&[], &memory.whole()), 0).unwrap();
        assert!(sent < memory.len());
        discard_on_close(&a).unwrap();
        drop(a);
        let mut got = Vec::new();
        assert_eq!(b.read_to_end(&mut got).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(got.len() < sent);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "gives the other thread time to block; the test passes either way")]
    fn receive_returns_zero_at_eof_and_stop_wakes_accept() {
        let (a, b) = pair();
        drop(a);
        let memory = Arc::new(Memory::from_vec(vec![0; 4]));
        assert_eq!(receive(b.as_fd(), [ReceivePart::Memory(&memory.whole())].into_iter(), 0).unwrap(), 0);

        let listener = Arc::new(listen("[::]:0".parse().unwrap(), 16).unwrap());
        let waiting = std::thread::spawn({
            let listener = Arc::clone(&listener);
            move || listener.accept().is_err()
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        stop_listening(&listener).unwrap();
        assert!(waiting.join().unwrap());
    }
}
