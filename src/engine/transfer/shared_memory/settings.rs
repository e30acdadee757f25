//! Whether processes on the same host share memory, and over which socket.

use std::io;
use std::path::{Path, PathBuf};

use mcctl_sys::packet_socket::{UNIX_PATH_BYTES_MAX, UnixSocketAddress};
use mcctl_wire::json::SharedMemoryDescriptor;

/// Extension of the sockets in [`SharedMemorySettings::directory`].
pub(super) const SOCKET_EXTENSION: &str = "mcctl-shm";

/// Settings for memory that is shared between processes on the same host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemorySettings {
    /// Whether to share memory with other processes, and to use theirs.
    pub enabled: bool,
    /// Directory of the sockets. `None` means sockets without a file, which connect only processes
    /// in the same network namespace.
    ///
    /// An engine creates its socket in this directory. It also searches this directory for other
    /// engines' sockets, and ignores the directories that they announce: containers may have
    /// mounted the volume at different paths.
    pub directory: Option<PathBuf>,
}

impl Default for SharedMemorySettings {
    fn default() -> SharedMemorySettings {
        SharedMemorySettings { enabled: true, directory: None }
    }
}

/// The errors with which an engine cannot create a socket in a directory.
#[derive(Debug, thiserror::Error)]
pub enum SocketDirectoryError {
    /// The directory does not exist, or it is a file.
    #[error("{0}")]
    Unusable(io::Error),
    /// The path of a socket in the directory exceeds the size of a Unix socket address.
    #[error("the path of a socket in it has {bytes} bytes, and the limit is {UNIX_PATH_BYTES_MAX}")]
    TooLong { bytes: usize },
}

impl SharedMemorySettings {
    /// Parses the value of the flag or variable with the directory. A relative path is made
    /// absolute, because other processes have another working directory. Empty means `None`.
    pub fn directory_from(text: impl AsRef<Path>) -> Option<PathBuf> {
        let text = Some(text.as_ref()).filter(|text| !text.as_os_str().is_empty())?;
        // Fails only if the working directory does not exist.
        Some(std::path::absolute(text).unwrap_or_else(|_| text.to_owned()))
    }

    /// Checks the directory, unless shared memory is turned off.
    ///
    /// # Errors
    /// The directory does not exist, or its path is too long.
    pub fn check_directory(&self) -> Result<(), SocketDirectoryError> {
        let Some(directory) = self.directory.as_ref().filter(|_| self.enabled) else { return Ok(()) };
        // The number has the same length for every socket.
        let bytes = self.new_address(0).to_string().len();
        if bytes > UNIX_PATH_BYTES_MAX {
            return Err(SocketDirectoryError::TooLong { bytes });
        }
        let is_directory = std::fs::metadata(directory).map(|found| found.is_dir());
        match is_directory.map_err(SocketDirectoryError::Unusable)? {
            true => Ok(()),
            false => Err(SocketDirectoryError::Unusable(io::ErrorKind::NotADirectory.into())),
        }
    }

    /// The address for a new socket, given a random number.
    pub(super) fn new_address(&self, random: u64) -> UnixSocketAddress {
        let name = format!("mcctl-{}-{random:016x}", std::process::id());
        match &self.directory {
            None => UnixSocketAddress::Abstract(name),
            Some(directory) => UnixSocketAddress::Path(directory.join(name).with_extension(SOCKET_EXTENSION)),
        }
    }

    /// The address at which this process reaches the socket in `descriptor`.
    pub(super) fn address_of(&self, descriptor: &SharedMemoryDescriptor) -> UnixSocketAddress {
        let address = UnixSocketAddress::parse(&descriptor.socket);
        match (&self.directory, &address) {
            (Some(directory), UnixSocketAddress::Path(path)) => {
                let name = path.file_name().unwrap_or_default();
                UnixSocketAddress::Path(directory.join(Path::new(name)))
            }
            _ => address,
        }
    }
}

/// The user to which the kernel maps users from outside a container's user namespace.
const UNMAPPED_USER: u32 = 65_534;

/// Whether a client of user `client` and a node of user `node` may share memory: they have the same
/// user, or the client is root. Processes of the user 65534 do not share memory, because the kernel
/// also reports that number for unknown users.
pub fn may_share(client: u32, node: u32) -> bool {
    client == 0 || (client == node && client != UNMAPPED_USER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_may_share_memory() {
        for (client, node, allowed) in [
            (1000, 1000, true),
            (0, 1000, true),
            (0, 0, true),
            (1000, 0, false),
            (1000, 1001, false),
            (65_534, 65_534, false),
            (0, 65_534, true),
        ] {
            assert_eq!(may_share(client, node), allowed, "{client} {node}");
        }
    }

    #[test]
    fn a_directory_that_cannot_hold_a_socket_is_an_error() {
        let check =
            |enabled, path: &str| SharedMemorySettings { enabled, directory: Some(path.into()) }.check_directory();
        check(true, "/").unwrap();
        for unusable in ["/nonexistent", "/proc/self/status"] {
            assert!(matches!(check(true, unusable), Err(SocketDirectoryError::Unusable(_))), "{unusable}");
            check(false, unusable).unwrap();
        }
        let long = format!("/{}", "x".repeat(100));
        assert!(matches!(check(true, &long), Err(SocketDirectoryError::TooLong { bytes }) if bytes > 107));
        SharedMemorySettings::default().check_directory().unwrap();
        let relative = SharedMemorySettings::directory_from("sockets").unwrap();
        assert_eq!(relative, std::env::current_dir().unwrap().join("sockets"));
        assert_eq!(SharedMemorySettings::directory_from(""), None);
    }

    #[test]
    fn an_engine_uses_sockets_in_its_own_directory() {
        let settings = |directory: Option<&str>| SharedMemorySettings {
            directory: directory.map(PathBuf::from),
            ..SharedMemorySettings::default()
        };
        let address = |directory, socket: &str| {
            settings(directory)
                .address_of(&SharedMemoryDescriptor { socket: socket.to_owned(), token: [0; 16] })
                .to_string()
        };
        assert_eq!(address(None, "@name"), "@name");
        assert_eq!(address(Some("/b"), "@name"), "@name");
        assert_eq!(address(None, "/a/x.sock"), "/a/x.sock");
        assert_eq!(address(Some("/b"), "/a/x.sock"), "/b/x.sock");
        assert_eq!(address(Some("/b"), "/a/../x.sock"), "/b/x.sock");
        let own = settings(Some("/b")).new_address(5).to_string();
        assert!(own.starts_with("/b/mcctl-") && own.ends_with("-0000000000000005.mcctl-shm"), "{own}");
        assert!(settings(None).new_address(5).to_string().starts_with("@mcctl-"));
    }
}
