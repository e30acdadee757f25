//! Unix sockets, which only processes of the same user on this host can connect to.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::engine::env::Listener;

/// Access to a socket: reading and writing by its owner.
const OWNER_ONLY: u32 = 0o600;

/// A bound Unix socket. Its file is removed when it is dropped.
pub struct SocketFileListener {
    listener: UnixListener,
    path: PathBuf,
}

impl SocketFileListener {
    /// Listens on a new socket at `path` that only the process's user can connect to. A socket that no process listens on is replaced. Must
    /// be called within an async runtime.
    ///
    /// # Errors
    /// `path` exists and is not an unused socket, or the socket cannot be created there. The error contains the path.
    pub fn bind(path: &Path) -> io::Result<SocketFileListener> {
        let failed = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
        remove_unused(path).map_err(failed)?;
        // The permissions are set before the socket has its name, so that no other user can connect in the meantime.
        let mut unnamed = path.as_os_str().to_owned();
        unnamed.push(".new");
        let unnamed = PathBuf::from(unnamed);
        remove_unused(&unnamed).map_err(failed)?;
        let listener = UnixListener::bind(&unnamed).map_err(failed)?;
        fs::set_permissions(&unnamed, Permissions::from_mode(OWNER_ONLY))
            .and_then(|()| fs::rename(&unnamed, path))
            .inspect_err(|_| {
                let _ = fs::remove_file(&unnamed);
            })
            .map_err(failed)?;
        Ok(SocketFileListener { listener, path: path.to_owned() })
    }
}

fn remove_unused(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::other("the file exists and is not a socket")),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            Err(io::Error::other("another process listens on this socket"))
        }
        Ok(_) => fs::remove_file(path),
    }
}

impl Drop for SocketFileListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
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
    use super::*;

    #[tokio::test]
    async fn a_socket_belongs_to_its_user_and_replaces_only_an_unused_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        // A process that was killed leaves its socket.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut listener = SocketFileListener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, OWNER_ONLY);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let _client = UnixStream::connect(&path).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().1, path.display().to_string());
        assert!(SocketFileListener::bind(&path).is_err(), "in use");
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "text").unwrap();
        assert!(SocketFileListener::bind(&path).is_err(), "not a socket");
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
