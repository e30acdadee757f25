//! Where the flag parser of services reads flag files and variables.

use std::path::Path;

use crate::commands::cli::error::Failure;
use crate::commands::cli::gflags::FlagSources;
use crate::commands::cli::settings::read_text;

/// Maximum flag file size, in bytes.
const FLAGFILE_BYTES_MAX: u64 = 1 << 20;

/// This process's flag files and environment.
pub struct ProcessSources;

impl FlagSources for ProcessSources {
    fn read(&self, path: &Path) -> Result<String, Failure> {
        read_text(path, "--flagfile", FLAGFILE_BYTES_MAX)
    }

    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}
