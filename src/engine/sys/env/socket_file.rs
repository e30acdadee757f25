//! Unix sockets, which only processes of the same user on this host can connect to.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use tokio::net::{UnixListener, UnixStream};

use crate::env::Listener;

/// Access to a socket: reading and writing by its owner.
const OWNER_ONLY: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
/// Number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A bound Unix socket. Its file is removed when it is dropped.
pub struct SocketFileListener {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFileListener {
    /// Listens on a new socket at `path` that only the process's user can connect to. A socket that
    /// no process listens on is replaced. Must be called within an async runtime.
    ///
    /// # Errors
    /// `path` exists and is not an unused socket, or the socket cannot be created there.
    pub fn bind(path: &Path) -> io::Result<SocketFileListener> {
        remove_unused(path)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let unbound = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        // Linux gives the file the mode of the socket, so no other user can connect at any time.
        fchmod(&unbound, OWNER_ONLY)?;
        bind(unbound.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&unbound, Backlog::new(BACKLOG)?)?;
        let listener = UnixListener::from_std(unbound.into())?;
        Ok(SocketFileListener { listener, path: path.to_owned(), identity: identity(path)? })
    }
}

fn remove_unused(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::other("the file exists and is not a socket")),
        Ok(_) if !is_refused(path)? => Err(io::Error::other("another process uses this socket")),
        Ok(_) => fs::remove_file(path),
    }
}

/// Whether no process has the socket at `path` open. Other answers than a refusal do not prove
/// this: the queue may be full, or the socket may be of another type.
fn is_refused(path: &Path) -> io::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(connect(probe.as_raw_fd(), &UnixAddr::new(path)?) == Err(Errno::ECONNREFUSED))
}

/// The device and inode of a file, which identify it.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Drop for SocketFileListener {
    fn drop(&mut self) {
        // Another process may have replaced the file.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener for SocketFileListener {
    type Stream = UnixStream;

    /// The peer's address is the path of the socket.
    async fn accept(&mut self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.listener.accept().await?;
        Ok((stream, self.path.display().to_string()))
    }

    /// 0: the socket has no port.
    fn port(&self) -> u16 {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_socket_belongs_to_its_user_and_replaces_only_an_unused_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        // A process that was killed leaves its socket.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut listener = SocketFileListener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let _client = UnixStream::connect(&path).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().1, path.display().to_string());
        assert!(SocketFileListener::bind(&path).is_err(), "in use");
        let other = dir.path().join("other.sock");
        let datagrams = std::os::unix::net::UnixDatagram::bind(&other).unwrap();
        assert!(SocketFileListener::bind(&other).is_err(), "of another type");
        drop(datagrams);
        fs::rename(&other, &path).unwrap();
        drop(listener);
        assert!(path.exists(), "it belongs to another process");
        fs::remove_file(&path).unwrap();
        drop(SocketFileListener::bind(&path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "text").unwrap();
        assert!(SocketFileListener::bind(&path).is_err(), "not a socket");
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
