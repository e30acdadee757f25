//! Flags for memory that is shared between processes on the same host.

use std::path::{Path, PathBuf};

use crate::commands::cli::error::Failure;
use crate::engine::transfer::{SharedMemorySettings, SocketDirectoryError};

/// Flags of a command whose client may share memory with nodes on this host.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SharedMemoryArgs {
    /// Use the transport for nodes on this host too, instead of reading their memory directly
    /// [environment: MCCTL_SHARED_MEMORY=0]
    #[arg(long, alias = "no_shared_memory")]
    pub no_shared_memory: bool,
    /// Directory with the nodes' Unix sockets of shared memory. Containers need a volume that both
    /// mount [environment: MCCTL_SHARED_MEMORY_SOCKET]
    #[arg(long, alias = "shared_memory_socket", value_name = "DIR")]
    pub shared_memory_socket: Option<PathBuf>,
}

impl SharedMemoryArgs {
    /// The settings from the environment, changed by the flags that are set.
    pub fn apply(&self, settings: &mut SharedMemorySettings) {
        settings.enabled &= !self.no_shared_memory;
        if let Some(directory) = &self.shared_memory_socket {
            settings.directory = SharedMemorySettings::directory_from(directory);
        }
    }

    /// What chose the directory.
    pub fn origin(&self) -> &'static str {
        if self.shared_memory_socket.is_some() { "--shared-memory-socket" } else { "MCCTL_SHARED_MEMORY_SOCKET" }
    }
}

/// Checks the directory of the sockets, which `origin` chose.
///
/// # Errors
/// The directory does not exist, or its path is too long.
pub fn check(settings: &SharedMemorySettings, origin: &str) -> Result<(), Failure> {
    settings.check_directory().map_err(|error| {
        let directory = settings.directory.as_deref().unwrap_or(Path::new("")).display();
        let next = match &error {
            SocketDirectoryError::Unusable(_) => "create the directory, or mount the shared volume there",
            SocketDirectoryError::TooLong { .. } => "use a directory with a shorter path",
        };
        Failure::usage(format!("cannot use shared memory sockets in {directory}"))
            .tried(origin.to_owned())
            .found(error.to_string())
            .next(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    #[test]
    fn flags_override_the_environment() {
        let applied = |args: &SharedMemoryArgs, enabled| {
            let mut settings = SharedMemorySettings { enabled, directory: Some("/env".into()) };
            args.apply(&mut settings);
            (settings.enabled, settings.directory)
        };
        let none = SharedMemoryArgs::default();
        assert_eq!(applied(&none, true), (true, Some("/env".into())));
        assert_eq!(applied(&none, false), (false, Some("/env".into())));
        let both = SharedMemoryArgs { no_shared_memory: true, shared_memory_socket: Some("/flag".into()) };
        assert_eq!(applied(&both, true), (false, Some("/flag".into())));
        let relative = SharedMemoryArgs { shared_memory_socket: Some("flag".into()), ..none };
        assert!(applied(&relative, true).1.is_some_and(|path| path.is_absolute()));
    }

    #[test]
    fn a_missing_directory_is_reported_with_its_flag() {
        let settings = SharedMemorySettings { enabled: true, directory: Some("/nonexistent".into()) };
        let failure = check(&settings, "--shared-memory-socket").unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.what.contains("/nonexistent"), "{failure}");
        check(&SharedMemorySettings { enabled: false, ..settings }, "--shared-memory-socket").unwrap();
    }
}
