//! Reads the deployment file, which `render`, `lint`, `size-hugepages` and `doctor` share.

use std::io::{self, Read};
use std::path::Path;

use crate::commands::cli::error::Failure;
use crate::commands::cli::extra_flags;
use crate::commands::cli::input;
use crate::commands::cli::output;
use crate::engine::deploy::{
    DeployError, DeploymentSpec, FILE_BYTES_MAX, FileFormat, FitFinding, Platform, ProcessPlan, fit, parse,
    plain_secrets, plan_processes, size_notes,
};

/// Maximum length of an error message, in characters.
const MESSAGE_MAX: usize = 400;

/// Whether the name of `path` is that of a deployment file.
pub fn is_named(path: &Path) -> bool {
    format_of(path).is_some()
}

/// The format for the extension of `path`.
pub fn format_of(path: &Path) -> Option<FileFormat> {
    FileFormat::of_extension(path.extension()?.to_str()?)
}

/// The error for the deployment file at `path`.
pub fn failure(path: &Path, what: &str) -> Failure {
    // A parser's message may quote the whole file.
    let short: String = what.chars().take(MESSAGE_MAX).collect();
    let more = if short.len() < what.len() { " ..." } else { "" };
    Failure::usage(format!("{}: {short}{more}", path.display()))
}

/// Parses the deployment file at `path`, with the overrides `sets`. Reports ambiguous sizes on
/// stderr.
///
/// # Errors
/// The file cannot be read, or is invalid.
pub fn read(path: &Path, sets: &[String]) -> Result<DeploymentSpec, Failure> {
    let Some(format) = format_of(path) else {
        return Err(failure(path, "not a valid deployment file name").next("use the extension .toml, .yaml or .yml"));
    };
    let unreadable = |error: String| {
        Failure::usage(format!("cannot read {}", path.display()))
            .found(error)
            .next("run mcctl init to write a deployment file")
    };
    let (bytes, size) = contents(path).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(failure(path, &DeployError::TooLarge { bytes: size, most: FILE_BYTES_MAX }.to_string()));
    }
    let text = String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
    let spec = parse(&text, format, sets).map_err(|error| failure(path, &error.to_string()))?;
    extra_flags::check(&spec).map_err(|error| failure(path, &error.to_string()))?;
    for note in size_notes(&text, format, sets) {
        output::say(format!("note: {note}"));
    }
    Ok(spec)
}

/// The contents of the file, up to one byte more than the limit, and its size in bytes. The size of
/// a pipe is unknown.
fn contents(path: &Path) -> io::Result<(Vec<u8>, Option<u64>)> {
    let file = input::open(path)?;
    let size = file.metadata().ok().filter(|found| found.is_file()).map(|found| found.len());
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes, size))
}

/// The processes of `spec`, read from `path`, on the platform that the file describes.
///
/// # Errors
/// The file contradicts itself.
pub fn planned(path: &Path, spec: &DeploymentSpec) -> Result<(Platform, Vec<ProcessPlan>), Failure> {
    let platform = spec.main_platform();
    let plans = plan_processes(spec, platform).map_err(|error| failure(path, &error.to_string()))?;
    Ok((platform, plans))
}

/// Reports on stderr that the processes on `platform` do not fit the hosts in `spec`. An invalid
/// deployment is reported elsewhere.
pub fn say_misfits(spec: &DeploymentSpec, platform: Platform) {
    let Ok(plans) = plan_processes(spec, platform) else { return };
    for FitFinding { severity, key, what, remedy, .. } in fit(spec, &plans, platform) {
        output::say(format!("{severity}: {what} [{key}]\n  next: {remedy}"));
    }
}

/// Reports on stderr that rendered files contain secrets in plain text.
pub fn say_plain_secrets(spec: &DeploymentSpec) {
    for secret in plain_secrets(spec) {
        output::say(format!("warning: {}\n  next: {}", secret.finding(), secret.remedy));
    }
}
