//! Identity of a run: version, command line, time and host. Part of every JSON report and records
//! file.

use serde::{Deserialize, Serialize};

use crate::engine::base::Unix;
use crate::engine::deploy::render::shell_quoted;
use crate::engine::env;

/// Identity of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands::bench) struct Identity {
    pub version: String,
    /// Command line with secrets masked.
    pub command: Vec<String>,
    /// Start time of the run, in UTC.
    pub started: String,
    /// Number of CPU cores available to the load generator.
    pub processors: usize,
    pub seed: u64,
}

impl Identity {
    /// Returns the identity of this process.
    pub(crate) fn of_this_run(seed: u64, now: Unix) -> Identity {
        let command = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
        let mut command = without_secrets(command);
        if let Some(program) = command.first_mut() {
            *program = program.rsplit('/').next().unwrap_or_default().to_owned();
        }
        Identity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            started: utc(now),
            processors: env::processors(),
            seed,
        }
    }

    /// Returns the command line, quoted for a shell.
    pub(crate) fn line(&self) -> String {
        self.command.iter().map(|arg| shell_quoted(arg)).collect::<Vec<_>>().join(" ")
    }
}

/// Flags whose values are secret.
const SECRET: [&str; 4] = ["--header", "--api-key", "--key", "--token"];

/// Masks the secrets in a command line with `***`: header values, keys, and user names and
/// passwords in URLs.
fn without_secrets(args: impl Iterator<Item = String>) -> Vec<String> {
    let mut hide = false;
    let hidden = |value: &str| match value.split_once(['=', ':']) {
        // The header name is not secret.
        Some((name, _)) => format!("{name}=***"),
        None => "***".to_owned(),
    };
    args.map(|arg| {
        // A flag may have several values, up to the next flag.
        hide &= !arg.starts_with('-');
        if hide {
            return hidden(&arg);
        }
        if SECRET.contains(&arg.as_str()) {
            hide = true;
            return arg;
        }
        if let Some((flag, value)) = arg.split_once('=')
            && SECRET.contains(&flag)
        {
            return format!("{flag}={}", hidden(value));
        }
        without_user(&arg)
    })
    .collect()
}

/// Masks the user name and password in a URL.
fn without_user(arg: &str) -> String {
    let Some((scheme, rest)) = arg.split_once("://") else { return arg.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***@{}", &rest[at + 1..]),
        None => arg.to_owned(),
    }
}

/// Formats a time like `2026-11-21T20:31:00Z`.
pub(in crate::commands::bench) fn utc(at: Unix) -> String {
    let seconds = at.0.div_euclid(1_000);
    let days = seconds.div_euclid(86_400);
    let second = seconds.rem_euclid(86_400);
    // Days since 0000-03-01, which makes a leap day the last day of its year. An era is 400 years.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month_of_year = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month_of_year <= 2);
    let hour = second / 3_600;
    let minute = second / 60 % 60;
    let second = second % 60;
    format!("{year:04}-{month_of_year:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        let args = [
            "mcctl",
            "--header",
            "Authorization: Bearer x",
            "--header=X-Key=y",
            "--url=http://u:p@h/a@b",
            "--api-key",
            "z",
        ];
        let hidden = without_secrets(args.iter().map(|arg| (*arg).to_owned()));
        assert_eq!(
            hidden,
            [
                "mcctl",
                "--header",
                "Authorization=***",
                "--header=X-Key=***",
                "--url=http://***@h/a@b",
                "--api-key",
                "***"
            ]
        );
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(utc(Unix(0)), "1970-01-01T00:00:00Z");
        assert_eq!(utc(Unix(951_782_400_000)), "2000-02-29T00:00:00Z");
        assert_eq!(utc(Unix(1_795_293_060_123)), "2026-11-21T20:31:00Z");
        assert_eq!(utc(Unix(-1)), "1969-12-31T23:59:59Z");
    }
}
