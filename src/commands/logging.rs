//! Log lines: where they go (stderr) and which are written.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::commands::error::Failure;
use crate::commands::flags::nearest;

/// The levels, quietest first.
pub const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

/// Write log lines of `flag`'s level, or of the one that `MCCTL_LOG` or upstream's `MC_LOG_LEVEL` names, or of `fallback`.
/// Besides a level, each may be a filter such as `info,mcctl::engine::rpc=debug`.
///
/// # Errors
/// The level is unknown.
pub fn init(flag: Option<&str>, fallback: &str) -> Result<(), Failure> {
    let env = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| (text, name.to_owned()));
    let (text, origin) = flag
        .map(|text| (text.to_owned(), "--log-level".to_owned()))
        .or_else(|| env("MCCTL_LOG"))
        .or_else(|| env("MC_LOG_LEVEL"))
        .unwrap_or_else(|| (fallback.to_owned(), "default".to_owned()));
    let filter = filter(&text, &origin)?;
    // A second initialisation (tests call commands in one process) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(false)
        // A reader of stderr that went away must not end a service.
        .log_internal_errors(false)
        .try_init();
    Ok(())
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
