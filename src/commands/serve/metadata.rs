//! `mcctl serve metadata`: the transfer engine's metadata service alone.

use crate::commands::error::{Failure, Outcome};
use crate::commands::gflags::Parsed;
use crate::commands::serve::{metadata_flags, settings_of, start_logging};

/// Run the service until a signal ends it.
///
/// # Errors
/// What the user has to know.
pub fn run(parsed: &Parsed, log_level: Option<&str>) -> Outcome {
    let settings = settings_of(&metadata_flags::TABLE, parsed)?;
    start_logging(&settings, log_level, None)?;
    Err(Failure::host("serve metadata is not there yet"))
}
