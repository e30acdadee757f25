//! `mcctl serve master`: mooncake_master's flags and files to a master, with its admin HTTP and, on request, the metadata service.

use std::path::Path;

use crate::commands::config_file::{self, CONFIG_BYTES_MAX, Typing};
use crate::commands::error::{Failure, Outcome};
use crate::commands::gflags::Parsed;
use crate::commands::logging;
use crate::commands::serve::{master_flags, settings_of, start_logging};
use crate::commands::settings::{Settings, read_text};

/// Run a master until a signal ends it.
///
/// # Errors
/// What the user has to know.
pub fn run(parsed: &Parsed, log_level: Option<&str>) -> Outcome {
    let settings = settings(parsed)?;
    let glog = (settings.is_given("minloglevel") || settings.is_given("v"))
        .then(|| logging::from_glog(settings.whole("minloglevel"), settings.whole("v")));
    start_logging(&settings, log_level, glog)?;
    Err(Failure::host("serve master is not there yet"))
}

/// Flags over the file that `--config-path` names over defaults.
fn settings(parsed: &Parsed) -> Result<Settings, Failure> {
    let flags = settings_of(&master_flags::TABLE, parsed)?;
    let path = flags.text("config_path");
    if path.is_empty() {
        return Ok(flags);
    }
    let path = Path::new(path);
    let text = read_text(path, "--config-path", CONFIG_BYTES_MAX)?;
    let mut settings = Settings::new(&master_flags::TABLE);
    settings.assign_all(&config_file::parse(&master_flags::TABLE, path, &text, Typing::Strict)?)?;
    settings.assign_all(&parsed.assignments)?;
    Ok(settings)
}
