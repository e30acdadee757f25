//! What was run, when and where: the head of everything that a run leaves.

use serde::{Deserialize, Serialize};

use crate::engine::base::Unix;
use crate::engine::env;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands::bench) struct Identity {
    /// Version of mcctl.
    pub version: String,
    /// The command line. Keys and values of headers are not in it.
    pub command: Vec<String>,
    /// When it began, UTC.
    pub started: String,
    /// Processors of this machine that it may use.
    pub processors: usize,
    /// All random choices come from it.
    pub seed: u64,
}

impl Identity {
    /// That of this process.
    pub fn of_this_run(seed: u64, now: Unix) -> Identity {
        let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
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

    /// The command line as it can be given to a shell.
    pub fn line(&self) -> String {
        let words = self
            .command
            .iter()
            .map(|word| shlex::try_quote(word).map_or_else(|_| word.clone(), |word| word.into_owned()));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Flags whose values are nobody else's business.
const SECRET: [&str; 4] = ["--header", "--api-key", "--key", "--token"];

/// The words of a command line with `***` in place of what is secret: values of headers, keys, user and password of a URL.
fn without_secrets(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut hide = false;
    let hidden = |value: &str| match value.split_once(['=', ':']) {
        // The name of a header may be seen.
        Some((name, _)) => format!("{name}=***"),
        None => "***".to_owned(),
    };
    words
        .map(|word| {
            // A flag may have several values: they go on to the next flag.
            hide &= !word.starts_with('-');
            if hide {
                return hidden(&word);
            }
            if SECRET.contains(&word.as_str()) {
                hide = true;
                return word;
            }
            if let Some((flag, value)) = word.split_once('=')
                && SECRET.contains(&flag)
            {
                return format!("{flag}={}", hidden(value));
            }
            without_user(&word)
        })
        .collect()
}

/// `http://user:password@host` without the first two.
fn without_user(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***@{}", &rest[at + 1..]),
        None => word.to_owned(),
    }
}

/// `2026-11-21T20:31:00Z`.
pub(in crate::commands::bench) fn utc(at: Unix) -> String {
    let seconds = at.0.div_euclid(1_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, so that a leap day is the last of its year; an era has 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month_of_year) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + i64::from(month_of_year <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month_of_year:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_in_no_report() {
        let words = [
            "mcctl",
            "--header",
            "Authorization: Bearer x",
            "--header=X-Key=y",
            "--url=http://u:p@h/a@b",
            "--api-key",
            "z",
        ];
        let hidden = without_secrets(words.iter().map(|word| (*word).to_owned()));
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
    fn days_are_those_of_the_calendar() {
        assert_eq!(utc(Unix(0)), "1970-01-01T00:00:00Z");
        assert_eq!(utc(Unix(951_782_400_000)), "2000-02-29T00:00:00Z");
        assert_eq!(utc(Unix(1_795_293_060_123)), "2026-11-21T20:31:00Z");
        assert_eq!(utc(Unix(-1)), "1969-12-31T23:59:59Z");
    }
}
