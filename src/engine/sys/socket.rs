//! Sending from and receiving into [`Memory`](crate::engine::sys::Memory), and listeners that std cannot make.
//!
//! One call here is one system call; loops, deadlines and protocols are their callers'.

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

use crate::engine::sys::memory::Slice;

/// A silent connection's peer is asked whether it is there after so long, seconds.
const KEEPALIVE_IDLE_S: u32 = 60;
/// Time between two such questions, seconds.
const KEEPALIVE_INTERVAL_S: u32 = 10;
/// Questions without an answer after which the connection is over.
const KEEPALIVE_PROBES: u32 = 6;
/// Bytes that nobody acknowledges, or a window that stays shut, end a connection after as long as silence does. (Where this is set,
/// Linux ends a silent connection by it, too, and no longer by the number of questions: the two must agree.)
const UNACKNOWLEDGED_MAX_MS: u32 = (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) * 1000;

/// Most parts of one call.
pub const PARTS_MAX: usize = 64;

/// What is sent: plain bytes, or bytes of registered memory.
pub enum Outgoing<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// Memory, which peers may write meanwhile.
    Memory(&'a Slice),
}

/// Where what is received goes.
pub enum Incoming<'a> {
    /// Bytes.
    Bytes(&'a mut [u8]),
    /// Memory, which peers may read meanwhile.
    Memory(&'a Slice),
}

/// Send `parts` one after another, of whose bytes (counted through all) the first `done` went out before. Gives how many went now;
/// parts beyond the first [`PARTS_MAX`] wait for another call.
///
/// # Errors
/// What `sendmsg` says; `WouldBlock` when the socket's send timeout passed without a byte. Never raises SIGPIPE.
pub fn send<'a>(socket: BorrowedFd<'_>, parts: impl Iterator<Item = Outgoing<'a>>, done: usize) -> io::Result<usize> {
    let mut vectors = Vectors::new(done);
    for part in parts {
        match part {
            Outgoing::Bytes(bytes) => vectors.push(bytes.as_ptr().cast_mut().cast(), bytes.len()),
            Outgoing::Memory(slice) => vectors.push(slice.pointer(0).as_ptr().cast(), slice.len()),
        }
    }
    vectors.call(|message| {
        // SAFETY: each part is valid for reading for its length: bytes are borrowed, and slices too, which keep their memory alive,
        // for at least 'a. The kernel copies; that a peer may write these bytes meanwhile only changes what is copied.
        unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
    })
}

/// Receive into `parts` one after another, of whose bytes (counted through all) the first `done` came before. Gives how many came
/// now; 0 when the peer has closed. Blocks until all have come, the peer has closed, or the socket's receive timeout was spent
/// waiting: staying in the kernel takes a fifth less CPU time than coming out for every few segments.
///
/// # Errors
/// What `recvmsg` says; `WouldBlock` when the socket's receive timeout passed without a byte.
pub fn receive<'a>(
    socket: BorrowedFd<'_>,
    parts: impl Iterator<Item = Incoming<'a>>,
    done: usize,
) -> io::Result<usize> {
    let mut vectors = Vectors::new(done);
    for part in parts {
        match part {
            Incoming::Bytes(bytes) => vectors.push(bytes.as_mut_ptr().cast(), bytes.len()),
            Incoming::Memory(slice) => vectors.push(slice.pointer(0).as_ptr().cast(), slice.len()),
        }
    }
    vectors.call(|message| {
        // SAFETY: each part is valid for writing for its length: bytes are borrowed exclusively for 'a; slices are borrowed for 'a,
        // keep their memory alive, and nobody holds a reference to its bytes (see `sys::memory`). The kernel writes no more than
        // the lengths.
        unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_WAITALL) }
    })
}

/// The parts of a message as the system calls want them, without the bytes that are done.
struct Vectors {
    list: [libc::iovec; PARTS_MAX],
    len: usize,
    done: usize,
}

impl Vectors {
    fn new(done: usize) -> Vectors {
        Vectors { list: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX], len: 0, done }
    }

    fn push(&mut self, base: *mut libc::c_void, bytes: usize) {
        let skipped = bytes.min(self.done);
        self.done -= skipped;
        if skipped < bytes && self.len < PARTS_MAX {
            self.list[self.len] = libc::iovec { iov_base: base.wrapping_byte_add(skipped), iov_len: bytes - skipped };
            self.len += 1;
        }
    }

    /// Call `with` with the message, again while a signal interrupts it.
    fn call(&mut self, with: impl Fn(*mut libc::msghdr) -> isize) -> io::Result<usize> {
        // SAFETY: a msghdr of zeros is a valid value: null pointers with zero lengths.
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

/// Listen at `at`. `backlog` connections may wait to be accepted; an IPv6 wildcard takes IPv4 peers too.
///
/// std's own listener has a fixed backlog of 128, which peers that open a connection per request overrun.
///
/// # Errors
/// What the system calls say.
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

/// Have the connections that `listener` accepts, which inherit this, end when their peer's host is gone without a word: two minutes
/// later. Without it such a peer's connection, and what is held for it, would stay for ever.
///
/// # Errors
/// What `setsockopt` says.
pub fn end_with_the_peers_host(listener: &impl AsFd) -> io::Result<()> {
    setsockopt(listener, sockopt::KeepAlive, &true)?;
    setsockopt(listener, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(listener, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(listener, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(listener, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MAX_MS)?;
    Ok(())
}

/// Set what `listener`'s connections inherit: no delay of small packets, an end when the peer's host is gone
/// ([`end_with_the_peers_host`]), and an error after `limit` of a blocked call. The listener's own `accept` then ends with
/// `WouldBlock` after that time.
///
/// # Errors
/// What `setsockopt` says.
pub fn prepare_listener(listener: &TcpListener, limit: Duration) -> io::Result<()> {
    let seconds = libc::time_t::try_from(limit.as_secs().max(1)).unwrap_or(libc::time_t::MAX);
    let limit = TimeVal::new(seconds, 0);
    setsockopt(listener, sockopt::TcpNoDelay, &true)?;
    end_with_the_peers_host(listener)?;
    setsockopt(listener, sockopt::ReceiveTimeout, &limit)?;
    setsockopt(listener, sockopt::SendTimeout, &limit)?;
    Ok(())
}

/// Make closing `stream` discard what it has not sent and reset the connection, instead of sending the rest in the background.
///
/// # Errors
/// What `setsockopt` says.
pub fn discard_on_close(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    Ok(())
}

/// How long `stream` has moved no byte in either direction.
///
/// # Errors
/// What `getsockopt` says.
pub fn silent_for(stream: &TcpStream) -> io::Result<Duration> {
    // SAFETY: a tcp_info of zeros is a valid value: it has integers only.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes into `info`, which has as many.
    let failed = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::from_millis(u64::from(info.tcpi_last_data_recv.min(info.tcpi_last_data_sent))))
}

/// Have the kernel note when the bytes of `socket` come in, for [`receive_aged`].
///
/// # Errors
/// What `setsockopt` says.
pub fn note_arrivals(socket: &impl AsFd) -> io::Result<()> {
    setsockopt(socket, sockopt::ReceiveTimestampns, &true)?;
    Ok(())
}

/// Longer than this no bytes are taken to have lain in the kernel: more is a wall clock that was set meanwhile.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Receive into `bytes` without waiting: how many came (0: the peer has closed), and for how long the last of them had lain in the
/// kernel, by the kernel's note of their arrival ([`note_arrivals`]); zero where there is none.
///
/// # Errors
/// What `recvmsg` says; `WouldBlock` when nothing is there.
pub fn receive_aged(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Duration)> {
    /// Room for one note, aligned as the kernel's headers have to be.
    #[repr(align(8))]
    struct Notes([u8; 64]);
    let mut notes = Notes([0; 64]);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut notes.0), MsgFlags::MSG_DONTWAIT)?;
    let arrived = message.cmsgs().ok().and_then(|mut notes| {
        notes.find_map(|note| match note {
            ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
            _ => None,
        })
    });
    // The kernel's note is on the wall clock. An age is its difference to the same clock's now, so that only a step of that clock in
    // between could falsify it.
    let age = arrived.and_then(|at| {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME).ok()?);
        now.checked_sub(at).filter(|age| *age <= AGE_MAX)
    });
    Ok((message.bytes, age.unwrap_or_default()))
}

/// Wake every thread that waits in `accept` on this listener; each gets an error.
///
/// # Errors
/// What `shutdown` says.
pub fn stop_listening(listener: &TcpListener) -> io::Result<()> {
    nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sys::Memory;
    use nix::sys::socket::getsockopt;
    use std::io::{Read, Write};
    use std::sync::Arc;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    fn out<'a>(head: &'a [u8], body: &'a Slice) -> impl Iterator<Item = Outgoing<'a>> {
        [Outgoing::Bytes(head), Outgoing::Memory(body)].into_iter()
    }

    #[test]
    fn head_and_body_go_out_in_order_from_any_point() {
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
    fn head_and_body_come_in_to_where_they_belong_and_nowhere_else() {
        for done in 0..8 {
            let memory = Arc::new(Memory::from_vec(vec![b'.'; 12]));
            let body = memory.slice(4, 4).unwrap();
            let (mut a, b) = pair();
            a.write_all(&b"headBODYmore"[done..]).unwrap();
            let mut head = *b"____";
            assert_eq!(
                receive(b.as_fd(), [Incoming::Bytes(&mut head), Incoming::Memory(&body)].into_iter(), done).unwrap(),
                8 - done
            );
            assert_eq!(&head[done.min(4)..], &b"head"[done.min(4)..]);
            let skipped = done.saturating_sub(4);
            assert_eq!(&memory.whole().to_vec()[4 + skipped..], &b"BODY...."[skipped..]);
        }
    }

    #[test]
    fn the_age_of_bytes_is_the_time_they_lay_unread() {
        let (mut a, b) = pair();
        note_arrivals(&b).unwrap();
        a.write_all(b"old").unwrap();
        let before = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let waited = || Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()) - Duration::from(before);
        while waited() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        let mut bytes = [0; 8];
        let (count, age) = receive_aged(b.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"old");
        // The first packets after the first socket asked for notes may still have none.
        assert!(
            age.is_zero() || age >= Duration::from_millis(20) && age <= waited() + Duration::from_millis(20),
            "{age:?}"
        );
        assert_eq!(receive_aged(b.as_fd(), &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(receive_aged(b.as_fd(), &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn parts_that_are_too_many_for_one_call_wait_for_the_next() {
        let (a, mut b) = pair();
        let letters: Vec<[u8; 1]> = (0..100).map(|n| [b'a' + n % 26]).collect();
        let parts = || letters.iter().map(|letter| Outgoing::Bytes(letter));
        assert_eq!(send(a.as_fd(), parts(), 0).unwrap(), PARTS_MAX);
        assert_eq!(send(a.as_fd(), parts(), PARTS_MAX).unwrap(), 100 - PARTS_MAX);
        drop(a);
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        assert_eq!(got, letters.concat());
    }

    #[test]
    fn connections_inherit_what_was_set_on_their_listener() {
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
    fn what_was_not_sent_is_discarded_when_it_is_asked_for() {
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
    #[expect(
        clippy::disallowed_methods,
        reason = "so that the other thread probably waits by then; either way is right"
    )]
    fn a_closed_peer_is_zero_bytes_and_a_waiting_accept_wakes_up() {
        let (a, b) = pair();
        drop(a);
        let memory = Arc::new(Memory::from_vec(vec![0; 4]));
        assert_eq!(receive(b.as_fd(), [Incoming::Memory(&memory.whole())].into_iter(), 0).unwrap(), 0);

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
