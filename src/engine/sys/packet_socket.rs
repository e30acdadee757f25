//! Unix sockets that keep message boundaries (`SOCK_SEQPACKET`), and send file descriptors with
//! messages.
//!
//! Each call makes one system call or a few. Protocols are up to the callers.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    getsockopt, listen, sendmsg, setsockopt, shutdown, socket, sockopt,
};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::time::{TimeVal, TimeValLike};

/// Maximum number of descriptors per message.
pub const DESCRIPTORS_MAX: usize = 64;
/// Room for the control data of a message: the kernel's maximum of 253 descriptors, and a header.
const CONTROL_BYTES: usize = 2048;
/// Access to a socket in a directory: reading and writing by its owner.
const OWNER_ONLY: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Maximum length of the path of a Unix socket: `sun_path` without its terminating zero byte.
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Extension of a socket on which its process does not listen yet.
const HIDDEN_EXTENSION: &str = "mcctl-new";
/// A process listens on its new socket sooner than this.
const HIDDEN_AGE_MAX: Duration = Duration::from_secs(60);

/// The address of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnixSocketAddress {
    /// A name without a file. It is only visible in its network namespace.
    Abstract(String),
    Path(PathBuf),
}

impl UnixSocketAddress {
    /// Parses the text from [`Display`](fmt::Display).
    pub fn parse(text: &str) -> UnixSocketAddress {
        match text.strip_prefix('@') {
            Some(name) => UnixSocketAddress::Abstract(name.to_owned()),
            None => UnixSocketAddress::Path(PathBuf::from(text)),
        }
    }

    fn for_kernel(&self) -> nix::Result<UnixAddr> {
        match self {
            UnixSocketAddress::Abstract(name) => UnixAddr::new_abstract(name.as_bytes()),
            UnixSocketAddress::Path(path) => UnixAddr::new(path),
        }
    }
}

/// An abstract name begins with `@`.
impl fmt::Display for UnixSocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnixSocketAddress::Abstract(name) => write!(f, "@{name}"),
            UnixSocketAddress::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Accepts connections. Removes its file when it is dropped.
#[derive(Debug)]
pub struct PacketListener {
    socket: OwnedFd,
    path: Option<PathBuf>,
}

impl PacketListener {
    /// Listens on `address`. A socket in a directory appears there once it can be connected to, and
    /// only its owner's processes and root can connect to it.
    ///
    /// # Errors
    /// Fails with the error from the failed system call.
    pub fn bind(address: &UnixSocketAddress, backlog: i32) -> io::Result<PacketListener> {
        let unbound = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let backlog = Backlog::new(backlog)?;
        let path = match address {
            UnixSocketAddress::Abstract(_) => {
                bind(unbound.as_raw_fd(), &address.for_kernel()?)?;
                listen(&unbound, backlog)?;
                None
            }
            UnixSocketAddress::Path(path) => {
                // Linux gives the file the mode of the socket.
                fchmod(&unbound, OWNER_ONLY)?;
                let hidden = path.with_extension(HIDDEN_EXTENSION);
                bind(unbound.as_raw_fd(), &UnixAddr::new(&hidden)?)?;
                let shown = listen(&unbound, backlog).map_err(io::Error::from).and_then(|()| fs::rename(&hidden, path));
                shown.inspect_err(|_| drop(fs::remove_file(&hidden)))?;
                Some(path.clone())
            }
        };
        Ok(PacketListener { socket: unbound, path })
    }

    /// Waits for a connection, without a time limit.
    ///
    /// # Errors
    /// Fails with the error from `accept4`, for example after [`stop`](PacketListener::stop).
    pub fn accept(&self) -> io::Result<PacketSocket> {
        let accepted = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: the descriptor was just created and has no other owner.
        Ok(PacketSocket(unsafe { OwnedFd::from_raw_fd(accepted) }))
    }

    /// Wakes every thread that waits in [`accept`](PacketListener::accept), which then fails.
    pub fn stop(&self) {
        // Fails only if the socket no longer listens.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes the sockets in `directory` with this extension on which no process listens, and those
/// whose process ended before it listened. At most `limit` entries are examined.
pub fn remove_unused_sockets(directory: &Path, extension: &str, limit: usize) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.take(limit).filter_map(|entry| Some(entry.ok()?.path())) {
        let Some(found) = path.extension() else { continue };
        let is_hidden = found == HIDDEN_EXTENSION;
        let is_unused = || {
            let Ok(metadata) = fs::symlink_metadata(&path) else { return false };
            let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
            let is_socket = metadata.file_type().is_socket();
            if !is_socket || (is_hidden && age.is_none_or(|age| age < HIDDEN_AGE_MAX)) {
                return false;
            }
            // The kernel refuses connections to other files, too.
            let refused = PacketSocket::connect(&UnixSocketAddress::Path(path.clone()), Duration::from_millis(100));
            refused.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if (is_hidden || found == extension) && is_unused() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// This process's effective user ID.
pub fn effective_user() -> u32 {
    // SAFETY: the call takes no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

/// A connection. Both ends may be used by several threads.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// A received message, whose bytes are in the buffer of the call.
#[derive(Debug)]
pub struct ReceivedPacket {
    /// Number of bytes; 0 if the peer has closed the connection.
    pub len: usize,
    pub descriptors: Vec<OwnedFd>,
    /// Whether bytes or descriptors of the message did not fit.
    pub truncated: bool,
}

impl PacketSocket {
    /// Connects to `address`. `limit` applies to connecting, and to each later call that sends.
    ///
    /// # Errors
    /// Fails with the error from the failed system call: `ConnectionRefused` or `NotFound` if no
    /// process listens.
    pub fn connect(address: &UnixSocketAddress, limit: Duration) -> io::Result<PacketSocket> {
        let unconnected = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let connected = PacketSocket(unconnected);
        connected.limit_send(limit)?;
        connect(connected.0.as_raw_fd(), &address.for_kernel()?)?;
        Ok(connected)
    }

    /// The effective user ID that the peer had when it connected or began to listen.
    ///
    /// # Errors
    /// Fails with the error from `getsockopt`.
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(getsockopt(&self.0, sockopt::PeerCredentials)?.uid())
    }

    /// Makes each later call that receives fail with `WouldBlock` after `limit`. `None` means no
    /// limit.
    ///
    /// # Errors
    /// Fails with the error from `setsockopt`.
    pub fn limit_receive(&self, limit: Option<Duration>) -> io::Result<()> {
        Ok(setsockopt(&self.0, sockopt::ReceiveTimeout, &limit.map_or(TimeVal::zero(), time_value))?)
    }

    /// Makes each later call that sends fail with `WouldBlock` after `limit`.
    ///
    /// # Errors
    /// Fails with the error from `setsockopt`.
    pub fn limit_send(&self, limit: Duration) -> io::Result<()> {
        Ok(setsockopt(&self.0, sockopt::SendTimeout, &time_value(limit))?)
    }

    /// Sends a message, which is delivered as a whole or not at all.
    ///
    /// # Errors
    /// Fails with the error from `sendmsg`. Never raises SIGPIPE.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        let parts = [io::IoSlice::new(message)];
        loop {
            match sendmsg::<()>(self.0.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None) {
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Receives a message into `into`. Descriptors are closed with the returned value.
    ///
    /// # Errors
    /// Fails with the error from `recvmsg`: `WouldBlock` if the limit of
    /// [`limit_receive`](PacketSocket::limit_receive) has passed.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<ReceivedPacket> {
        // Aligned for the header.
        #[repr(align(8))]
        struct ControlBuffer([u8; CONTROL_BYTES]);
        let mut control = ControlBuffer([0; CONTROL_BYTES]);
        let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: an all-zero msghdr is valid: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let len = loop {
            // SAFETY: the message points to one part and to the control buffer, both of which are
            // exclusively borrowed and have the given lengths.
            let count = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
            match usize::try_from(count) {
                Ok(len) => break len,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        };
        // nix drops the descriptors of a truncated message without closing them, so they are taken
        // here.
        let mut descriptors = Vec::new();
        // SAFETY: the kernel has filled in the message. Its control data are in the buffer, which
        // is still borrowed.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !header.is_null() {
            // SAFETY: the header is in the control data that the kernel has written.
            let found = unsafe { std::ptr::read_unaligned(header) };
            // SAFETY: the call computes a length.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                // SAFETY: as above. The data follow the header.
                let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
                let bytes = (found.cmsg_len as usize).saturating_sub(empty);
                for at in 0..bytes / size_of::<RawFd>() {
                    // SAFETY: the kernel has written that number of descriptors, which it has
                    // opened for this process. Each of them gets one owner.
                    descriptors.push(unsafe { OwnedFd::from_raw_fd(std::ptr::read_unaligned(data.add(at))) });
                }
            }
            // SAFETY: as for the first header.
            header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
        }
        let truncated = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        Ok(ReceivedPacket { len, descriptors, truncated })
    }

    /// Ends receiving: messages that have arrived can still be received, then the end. The peer can
    /// no longer send.
    pub fn end_receiving(&self) {
        // Fails only if the connection is already closed.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Read);
    }

    /// Ends the connection in both directions. Threads that wait for it are woken.
    pub fn close(&self) {
        // Fails only if the connection is already closed.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// At least 1 ms, because 0 would mean no limit.
fn time_value(limit: Duration) -> TimeVal {
    TimeVal::milliseconds(i64::try_from(limit.as_millis().max(1)).unwrap_or(i64::from(i32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    fn pair(address: &UnixSocketAddress) -> (PacketListener, PacketSocket, PacketSocket) {
        let listener = PacketListener::bind(address, 4).unwrap();
        let client = PacketSocket::connect(address, Duration::from_secs(1)).unwrap();
        let server = listener.accept().unwrap();
        (listener, client, server)
    }

    fn unique(name: &str) -> UnixSocketAddress {
        UnixSocketAddress::Abstract(format!("mcctl-test-{}-{name}", std::process::id()))
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (_listener, client, server) = pair(&unique("whole"));
        assert_eq!(server.peer_user().unwrap(), effective_user());
        assert_eq!(client.peer_user().unwrap(), effective_user());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        file.rewind().unwrap();
        client.send(b"one", &[file.as_fd(), file.as_fd()]).unwrap();
        client.send(b"two", &[]).unwrap();
        let mut bytes = [0; 10];
        let one = server.receive(&mut bytes).unwrap();
        assert_eq!((one.len, one.descriptors.len(), one.truncated, &bytes[..3]), (3, 2, false, &b"one"[..]));
        let mut text = String::new();
        fs::File::from(one.descriptors.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        let two = server.receive(&mut bytes[..2]).unwrap();
        assert_eq!((two.len, two.truncated), (2, true), "it does not fit");
        drop(client);
        assert_eq!(server.receive(&mut bytes).unwrap().len, 0);
    }

    #[test]
    fn receiving_times_out_and_ends_after_the_messages_that_have_arrived() {
        let (_listener, client, server) = pair(&unique("ends"));
        server.limit_receive(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(server.receive(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        client.send(b"sent", &[]).unwrap();
        server.end_receiving();
        assert_eq!(server.receive(&mut [0; 4]).unwrap().len, 4);
        assert_eq!(server.receive(&mut [0; 4]).unwrap().len, 0);
        assert_eq!(client.send(b"late", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        server.send(b"answer", &[]).unwrap();
        assert_eq!(client.receive(&mut [0; 10]).unwrap().len, 6);
    }

    #[test]
    fn a_socket_file_is_private_and_removed_with_its_listener() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let address = UnixSocketAddress::parse(path.to_str().unwrap());
        let (listener, _client, _server) = pair(&address);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        remove_unused_sockets(directory.path(), "sock", 10);
        assert!(path.exists(), "in use");
        let stale = directory.path().join("b.sock");
        let kept = directory.path().join("kept");
        let unused = PacketListener::bind(&UnixSocketAddress::Path(stale.clone()), 1).unwrap();
        fs::rename(&stale, &kept).unwrap();
        drop(unused);
        fs::rename(&kept, &stale).unwrap();
        fs::rename(directory.path().join("a.sock"), directory.path().join("moved.sock")).unwrap();
        fs::write(&path, "text").unwrap();
        remove_unused_sockets(directory.path(), "sock", 10);
        assert!(!stale.exists() && path.exists(), "a file is not a socket");
        assert!(directory.path().join("moved.sock").exists(), "in use");
        drop(listener);
    }

    #[test]
    fn a_socket_of_a_process_that_never_listened_is_removed_after_a_minute() {
        use nix::fcntl::AT_FDCWD;
        use nix::sys::stat::{UtimensatFlags, utimensat};
        use nix::sys::time::TimeSpec;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a").with_extension(HIDDEN_EXTENSION);
        let bound = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(bound.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        remove_unused_sockets(directory.path(), "sock", 10);
        assert!(path.exists(), "its process may be about to listen");
        let past = TimeSpec::seconds(1_000_000_000);
        utimensat(AT_FDCWD, &path, &past, &past, UtimensatFlags::FollowSymlink).unwrap();
        remove_unused_sockets(directory.path(), "sock", 10);
        assert!(!path.exists());
    }

    #[test]
    fn an_address_without_a_listener_is_refused() {
        let limit = Duration::from_secs(1);
        let abstract_name = PacketSocket::connect(&unique("none"), limit).unwrap_err();
        assert_eq!(abstract_name.kind(), io::ErrorKind::ConnectionRefused);
        let path = PacketSocket::connect(&UnixSocketAddress::parse("/nonexistent/a.sock"), limit).unwrap_err();
        assert_eq!(path.kind(), io::ErrorKind::NotFound);
        for text in ["@name", "/a/b.sock"] {
            assert_eq!(UnixSocketAddress::parse(text).to_string(), text);
        }
    }
}
