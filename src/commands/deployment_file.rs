//! Reads the deployment file, which `render`, `lint`, `size-hugepages` and `doctor` share.

use std::io::Read;
use std::path::Path;

use crate::commands::error::Failure;
use crate::commands::{extra_flags, input, output};
use crate::engine::deploy::{
    DeploymentSpec, FileFormat, FitFinding, Platform, ProcessPlan, fit, parse, plan_processes, size_notes,
};

/// Maximum number of bytes read, slightly above the size limit for a deployment file.
const READ_MAX: u64 = 128 << 10;
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

/// Parses the deployment file at `path`, with the overrides `sets`. Reports ambiguous sizes on stderr.
///
/// # Errors
/// The file cannot be read, or is invalid.
pub fn read(path: &Path, sets: &[String]) -> Result<DeploymentSpec, Failure> {
    let Some(format) = format_of(path) else {
        return Err(failure(path, "not a valid deployment file name").next("use the extension .toml, .yaml or .yml"));
    };
    let mut text = String::new();
    let read = input::open(path).and_then(|file| file.take(READ_MAX).read_to_string(&mut text));
    read.map_err(|error| {
        Failure::usage(format!("cannot read {}", path.display()))
            .found(error.to_string())
            .next("run mcctl init to write a deployment file")
    })?;
    let spec = parse(&text, format, sets).map_err(|error| failure(path, &error.to_string()))?;
    extra_flags::check(&spec).map_err(|error| failure(path, &error.to_string()))?;
    for note in size_notes(&text, format, sets) {
        output::say(format!("note: {note}"));
    }
    Ok(spec)
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

/// Reports on stderr that the processes on `platform` do not fit the hosts in `spec`. An invalid deployment is reported elsewhere.
pub fn say_misfits(spec: &DeploymentSpec, platform: Platform) {
    let Ok(plans) = plan_processes(spec, platform) else { return };
    for FitFinding { severity, key, what, remedy, .. } in fit(spec, &plans, platform) {
        output::say(format!("{severity}: {what} [{key}]\n  next: {remedy}"));
    }
}
