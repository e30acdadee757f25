//! Log lines: which are written, in which format, and where they go (stderr or a file). Writing never blocks the program.

mod file;
mod json;
mod sink;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::commands::error::Failure;
use crate::commands::flags::nearest;
use crate::commands::logging::file::LogFile;
use crate::commands::logging::json::Json;
use crate::commands::logging::sink::Sink;
use crate::engine::base::ByteSize;

/// The levels, quietest first.
pub const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];
/// The formats, the default first.
pub const FORMATS: &[&str] = &["text", "json"];
/// Size at which a log file is rotated, by default.
pub const FILE_MAX_SIZE: &str = "100mb";
/// Rotated files that are kept, by default.
pub const FILE_KEEP: &str = "5";
/// The most rotated files that can be kept.
pub const FILE_KEEP_MAX: u64 = 1000;

/// The flags about log lines, which stand before the command; level and format may stand after it, too.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Log lines to write: off, error, warn, info, debug, trace, or a filter [environment: MCCTL_LOG, MC_LOG_LEVEL]
    #[arg(id = "log_level", long = "log-level", global = true, value_name = "LEVEL")]
    pub level: Option<String>,
    /// Format of log lines; json is one object a line
    #[arg(id = "log_format", long = "log-format", global = true, value_name = "FORMAT", default_value = FORMATS[0], value_parser = FORMATS.to_vec(),
        hide_short_help = true)]
    pub format: String,
    /// Where they go.
    #[command(flatten)]
    pub file: FileOptions,
}

/// The flags about the log file. They are not global, since `bench multi-turn` has a `--log-file` of another meaning.
#[derive(Clone, Debug, clap::Args)]
pub struct FileOptions {
    /// File for log lines instead of stderr; lines are appended
    #[arg(long = "log-file", value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Rotate the log file (PATH to PATH.1 and so on) before it exceeds this size; 0 never rotates
    #[arg(long = "log-file-max-size", value_name = "SIZE", default_value = FILE_MAX_SIZE, hide_short_help = true)]
    pub max_size: ByteSize,
    /// Rotated log files to keep
    #[arg(long = "log-file-keep", value_name = "N", default_value = FILE_KEEP,
        value_parser = clap::value_parser!(u32).range(0..=FILE_KEEP_MAX as i64), hide_short_help = true)]
    pub keep: u32,
}

impl Options {
    /// The same, with what `later`, the flags behind the command, has other than the defaults.
    pub fn with_file(&self, later: &FileOptions) -> Options {
        let (usual, before) = (FileOptions::default(), &self.file);
        let file = FileOptions {
            path: later.path.as_ref().or(before.path.as_ref()).cloned(),
            max_size: if later.max_size == usual.max_size { before.max_size } else { later.max_size },
            keep: if later.keep == usual.keep { before.keep } else { later.keep },
        };
        Options { file, ..self.clone() }
    }
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            path: None,
            max_size: FILE_MAX_SIZE.parse().expect("a size"),
            keep: FILE_KEEP.parse().expect("a number"),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { level: None, format: FORMATS[0].to_owned(), file: FileOptions::default() }
    }
}

/// The log file, if log lines go to one.
static FILE: OnceLock<Sink> = OnceLock::new();

/// Write log lines as `options` ask: of their level, or of the one that `MCCTL_LOG` or upstream's `MC_LOG_LEVEL` names, or of
/// `fallback`. Besides a level, each may be a filter such as `info,mcctl::engine::rpc=debug`.
///
/// # Errors
/// The level is unknown, or the log file cannot be opened.
pub fn init(options: &Options, fallback: &str) -> Result<(), Failure> {
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
                    .next("give a path that this user can write, or leave --log-file out")
            })?;
            FILE.get_or_init(|| Sink::start("log", file))
        }
    };
    let is_coloured =
        options.file.path.is_none() && io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Queued(sink))
        .with_ansi(is_coloured)
        .with_target(false)
        .log_internal_errors(false);
    // A second initialisation (tests call commands in one process) keeps the first.
    let _ = match options.format.as_str() {
        "json" => builder.event_format(Json).try_init(),
        _ => builder.try_init(),
    };
    Ok(())
}

/// Does a person watch the log lines? They go to a terminal then.
pub fn is_watched() -> bool {
    FILE.get().is_none() && io::stderr().is_terminal()
}

/// Write `text` to stderr and wait until it is written, but only briefly where its reader has stalled.
pub fn to_stderr(text: &str) {
    sink::stderr().push_and_wait(text.as_bytes());
}

/// Open the log file again, if there is one: log rotation has moved it away.
pub fn reopen() {
    match FILE.get() {
        Some(sink) => sink.reopen(),
        None => tracing::info!("SIGHUP: no effect, since there is no log file (--log-file)"),
    }
}

/// The longest wait at the end of a command for a reader of stderr, such as a pager.
const READER_MAX: Duration = Duration::from_secs(600);

/// Does the end of this process not wait for a stalled reader of stderr?
static IS_SERVICE: AtomicBool = AtomicBool::new(false);

/// This process is a service: a signal ends it, whether stderr is read or not.
pub fn mark_service() {
    IS_SERVICE.store(true, Ordering::Relaxed);
}

/// Wait for the lines that are queued: for at most [`sink::FLUSH_MAX`] each for log file and stderr of a service, and for stderr of a
/// command until they are read or the reader is gone.
pub fn finish() {
    if let Some(sink) = FILE.get() {
        sink.flush(sink::FLUSH_MAX);
    }
    sink::flush_stderr(if IS_SERVICE.load(Ordering::Relaxed) { sink::FLUSH_MAX } else { READER_MAX });
}

/// The end of a sink that the subscriber writes to: an event is one write.
struct Queued(&'static Sink);

impl io::Write for Queued {
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
        // Python's and glog's words.
        "warning" => "warn",
        "critical" | "fatal" => "error",
        "notset" => "trace",
        other => other,
    };
    if !LEVELS.contains(&name) && !name.contains(['=', ',']) {
        let failure = Failure::usage(format!("'{text}' is not a log level")).found(format!("'{text}' from {origin}"));
        return Err(match nearest(name, LEVELS.iter()) {
            Some(near) => failure.next(format!("the nearest known one is {near}; all: {}", LEVELS.join(", "))),
            None => failure.next(format!("one of {}", LEVELS.join(", "))),
        });
    }
    EnvFilter::try_new(if name.contains(['=', ',']) { text } else { name }).map_err(|error| {
        Failure::usage(format!("'{text}' is not a log filter")).found(format!("{error}, from {origin}"))
    })
}

/// The level that glog's `--minloglevel` and `--v` mean.
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
    fn a_level_may_be_ours_pythons_or_a_filter() {
        for good in ["info", "INFO", "warning", "CRITICAL", "off", "info,mcctl::engine::rpc=debug"] {
            assert!(filter(good, "test").is_ok(), "{good}");
        }
    }

    #[test]
    fn log_file_flags_before_and_behind_the_command_add_up() {
        let file = |path: Option<&str>, max_size: &str, keep| FileOptions {
            path: path.map(PathBuf::from),
            max_size: max_size.parse().expect("a size"),
            keep,
        };
        let before = Options { file: file(Some("a"), "1mb", 5), ..Options::default() };
        let both = before.with_file(&file(None, FILE_MAX_SIZE, 3)).file;
        assert_eq!((both.path, both.max_size.0, both.keep), (Some("a".into()), 1 << 20, 3));
        let both = before.with_file(&file(Some("b"), "2mb", 5)).file;
        assert_eq!((both.path, both.max_size.0, both.keep), (Some("b".into()), 2 << 20, 5));
    }

    #[test]
    fn an_unknown_level_names_the_nearest_one() {
        let line = filter("inof", "MCCTL_LOG").expect_err("unknown").line();
        assert!(line.starts_with(
            "error: 'inof' is not a log level; found: 'inof' from MCCTL_LOG; next: the nearest known one is info"
        ));
    }

    #[test]
    fn glog_levels_map_to_ours() {
        assert_eq!(
            [from_glog(0, 0), from_glog(1, 0), from_glog(2, 0), from_glog(0, 1), from_glog(0, 3)],
            ["info", "warn", "error", "debug", "trace"]
        );
    }
}
