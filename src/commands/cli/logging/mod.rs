//! Logging: level, format, and output to stderr or a file. Log writes never block the program.

mod file;
mod json;
mod sink;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::nearest;
use crate::commands::cli::logging::file::LogFile;
use crate::commands::cli::logging::json::JsonFormat;
use crate::commands::cli::logging::sink::Sink;
use crate::engine::base::ByteSize;

/// The log levels, least verbose first.
pub const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];
/// Heading in help texts of the options that all commands have. They follow a command's own
/// options.
pub const COMMON: &str = "Common options";
/// The log formats. The first is the default.
pub const FORMATS: &[&str] = &["text", "json"];
/// Default size at which a log file is rotated.
pub const FILE_MAX_SIZE: &str = "100mb";
/// Default number of rotated files to keep.
pub const FILE_KEEP: &str = "5";
/// Maximum number of rotated files to keep.
pub const FILE_KEEP_MAX: u64 = 1000;

/// Log flags before the command. Level and format are also accepted after the command.
#[derive(Clone, Debug, clap::Args)]
pub struct LogOptions {
    /// Log level: off, error, warn, info, debug, trace, or a filter [environment: MCCTL_LOG,
    /// MC_LOG_LEVEL]
    #[arg(id = "log_level", long = "log-level", global = true, value_name = "LEVEL", help_heading = COMMON)]
    pub level: Option<String>,
    /// Log format (json: one object per line)
    #[arg(id = "log_format", long = "log-format", global = true, value_name = "FORMAT", default_value = FORMATS[0], value_parser = FORMATS.to_vec(),
        help_heading = COMMON)]
    pub format: String,
    #[command(flatten)]
    pub file: LogFileOptions,
}

/// Log file flags. They are not global, because `bench multi-turn --log-file` means a different
/// file.
#[derive(Clone, Debug, clap::Args)]
pub struct LogFileOptions {
    /// Append log lines to this file instead of stderr
    #[arg(long = "log-file", value_name = "FILE", help_heading = COMMON)]
    pub path: Option<PathBuf>,
    /// Rotate the log file (PATH to PATH.1 and so on) before it exceeds this size; 0 means no
    /// rotation
    #[arg(long = "log-file-max-size", value_name = "SIZE", default_value = FILE_MAX_SIZE, help_heading = COMMON)]
    pub max_size: ByteSize,
    /// Number of rotated log files to keep
    #[arg(long = "log-file-keep", value_name = "N", default_value = FILE_KEEP,
        value_parser = clap::value_parser!(u32).range(0..=FILE_KEEP_MAX as i64), help_heading = COMMON)]
    pub keep: u32,
}

impl LogOptions {
    /// These options, overridden by the non-default values in `later`, the flags after the command.
    pub fn with_file(&self, later: &LogFileOptions) -> LogOptions {
        let usual = LogFileOptions::default();
        let before = &self.file;
        let file = LogFileOptions {
            path: later.path.as_ref().or(before.path.as_ref()).cloned(),
            max_size: if later.max_size == usual.max_size { before.max_size } else { later.max_size },
            keep: if later.keep == usual.keep { before.keep } else { later.keep },
        };
        LogOptions { file, ..self.clone() }
    }
}

impl Default for LogFileOptions {
    fn default() -> LogFileOptions {
        LogFileOptions {
            path: None,
            max_size: FILE_MAX_SIZE.parse().expect("a size"),
            keep: FILE_KEEP.parse().expect("a number"),
        }
    }
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { level: None, format: FORMATS[0].to_owned(), file: LogFileOptions::default() }
    }
}

/// The log file, if one is configured.
static FILE: OnceLock<Sink> = OnceLock::new();

/// Starts logging with `options`. The level comes from the first of `options`, `MCCTL_LOG`,
/// upstream's `MC_LOG_LEVEL` and `fallback` that is set. Each is a level or a filter such as
/// `info,mcctl_net::rpc=debug`.
///
/// # Errors
/// The level is unknown, or the log file cannot be opened.
pub fn init(options: &LogOptions, fallback: &str) -> Result<(), Failure> {
    let env = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| (text, name.to_owned()));
    let (text, origin) = options
        .level
        .clone()
        .map(|text| (text, "--log-level".to_owned()))
        .or_else(|| env("MCCTL_LOG"))
        .or_else(|| env("MC_LOG_LEVEL"))
        .unwrap_or_else(|| (fallback.to_owned(), "default".to_owned()));
    let filter = filter(&text, &origin)?;
    let sink = match &options.file.path {
        None => sink::stderr(),
        Some(path) => {
            let opened = LogFile::open(path, options.file.max_size.0, options.file.keep);
            let file = opened.map_err(|error| {
                Failure::host(format!("cannot open the log file {}", path.display()))
                    .tried(format!("--log-file {}", path.display()))
                    .found(error.to_string())
                    .next("use a writable path, or remove --log-file")
            })?;
            FILE.get_or_init(|| Sink::start("log", file))
        }
    };
    let is_coloured =
        options.file.path.is_none() && io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || SinkWriter(sink))
        .with_ansi(is_coloured)
        .with_target(false)
        .log_internal_errors(false);
    // Ignore a second initialization: tests run several commands in one process.
    let _ = match options.format.as_str() {
        "json" => builder.event_format(JsonFormat).try_init(),
        _ => builder.try_init(),
    };
    Ok(())
}

/// Writes `text` to stderr and waits until it is written, but only briefly if the process reading
/// stderr has stalled.
pub fn to_stderr(text: &str) {
    sink::stderr().push_and_wait(text.as_bytes());
}

/// Logs an error that was written to stderr, if log lines go to a file instead.
pub fn to_file(text: &str) {
    if FILE.get().is_some() {
        tracing::error!("{}", text.trim_end().trim_start_matches("error: "));
    }
}

/// Reopens the log file, if one is configured, after log rotation has moved it.
pub fn reopen() {
    match FILE.get() {
        Some(sink) => sink.reopen(),
        None => tracing::info!("SIGHUP has no effect without a log file (--log-file)"),
    }
}

/// Maximum wait at the end of a command for the process reading stderr, such as a pager.
const READER_MAX: Duration = Duration::from_secs(600);

/// Whether this process is a service. On exit, a service does not wait for a stalled process
/// reading its stderr.
static IS_SERVICE: AtomicBool = AtomicBool::new(false);

/// Marks this process as a service: it exits on a signal even if its stderr is not read.
pub fn mark_service() {
    IS_SERVICE.store(true, Ordering::Relaxed);
}

/// Writes the queued lines before the process exits. A service waits at most [`sink::FLUSH_MAX`]
/// for the log file and the same time for stderr. A command waits at most `READER_MAX` for its
/// stderr to be read or closed.
pub fn finish() {
    if let Some(sink) = FILE.get() {
        sink.flush(sink::FLUSH_MAX);
    }
    sink::flush_stderr(if IS_SERVICE.load(Ordering::Relaxed) { sink::FLUSH_MAX } else { READER_MAX });
}

/// The tracing subscriber's writer. Each event is one write.
struct SinkWriter(&'static Sink);

impl io::Write for SinkWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn filter(text: &str, origin: &str) -> Result<EnvFilter, Failure> {
    let lower = text.trim().to_ascii_lowercase();
    let name = match lower.as_str() {
        // Level names from Python and glog.
        "warning" => "warn",
        "critical" | "fatal" => "error",
        "notset" => "trace",
        other => other,
    };
    if !LEVELS.contains(&name) && !name.contains(['=', ',']) {
        let failure = Failure::usage(format!("invalid log level '{text}'")).found(format!("'{text}' from {origin}"));
        return Err(match nearest(name, LEVELS.iter()) {
            Some(near) => failure.next(format!("did you mean {near}? Levels: {}", LEVELS.join(", "))),
            None => failure.next(format!("use one of {}", LEVELS.join(", "))),
        });
    }
    EnvFilter::try_new(if name.contains(['=', ',']) { text } else { name }).map_err(|error| {
        Failure::usage(format!("invalid log filter '{text}'")).found(format!("{error}, from {origin}"))
    })
}

/// The level for glog's `--minloglevel` and `--v`.
pub fn from_glog(min: i64, verbose: i64) -> &'static str {
    match (min, verbose) {
        (_, 2..) => "trace",
        (_, 1) => "debug",
        (..=0, _) => "info",
        (1, _) => "warn",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_has_several_spellings_or_is_a_filter() {
        for good in ["info", "INFO", "warning", "CRITICAL", "off", "info,mcctl_net::rpc=debug"] {
            assert!(filter(good, "test").is_ok(), "{good}");
        }
    }

    #[test]
    fn log_file_flags_before_and_after_the_command_are_merged() {
        let file = |path: Option<&str>, max_size: &str, keep| LogFileOptions {
            path: path.map(PathBuf::from),
            max_size: max_size.parse().expect("a size"),
            keep,
        };
        let before = LogOptions { file: file(Some("a"), "1mb", 5), ..LogOptions::default() };
        let both = before.with_file(&file(None, FILE_MAX_SIZE, 3)).file;
        assert_eq!((both.path, both.max_size.0, both.keep), (Some("a".into()), 1 << 20, 3));
        let both = before.with_file(&file(Some("b"), "2mb", 5)).file;
        assert_eq!((both.path, both.max_size.0, both.keep), (Some("b".into()), 2 << 20, 5));
    }

    #[test]
    fn an_unknown_level_suggests_the_nearest_one() {
        let failure = filter("inof", "MCCTL_LOG").expect_err("unknown");
        assert!(failure.what.contains("'inof'") && failure.found.is_some_and(|found| found.contains("MCCTL_LOG")));
        assert!(failure.next.is_some_and(|next| next.starts_with("did you mean info?")));
    }

    #[test]
    fn glog_levels_map_to_log_levels() {
        assert_eq!(
            [from_glog(0, 0), from_glog(1, 0), from_glog(2, 0), from_glog(0, 1), from_glog(0, 3)],
            ["info", "warn", "error", "debug", "trace"]
        );
    }
}
