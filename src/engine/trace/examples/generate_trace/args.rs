//! The command line.

use std::num::NonZeroU32;
use std::str::FromStr;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::common::{Output, Result};

/// A kind of trace.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// What the trace is modeled on.
    pub(crate) about: &'static str,
    /// Number of requests without `--requests`.
    pub(crate) requests: usize,
    /// Default of `--sessions`. `None` for kinds that refuse the option.
    pub(crate) sessions: Option<usize>,
    pub(crate) generate: fn(&Options, &mut Output) -> Result<()>,
}

pub(crate) struct Options {
    pub(crate) requests: usize,
    /// 1 for kinds that refuse `--sessions`.
    pub(crate) sessions: usize,
    pub(crate) seed: u64,
    pub(crate) scale: f64,
}

impl Options {
    pub(crate) fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed)
    }

    /// A length of the published trace, divided by the scale; at least 1.
    pub(crate) fn tokens(&self, length: f64) -> u64 {
        ((length / self.scale).round() as u64).max(1)
    }
}

/// What the command line requests.
pub(crate) enum Command<'a> {
    Help,
    Generate(&'a Kind, Options),
}

/// Why the arguments are invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ArgumentError(String);

const COUNT: &str = "a whole number from 1 to 4294967295";
const SEED: &str = "a whole number from 0 to 18446744073709551615";
const SCALE: &str = "a positive number";

/// Parses the arguments after the program's name.
///
/// # Errors
/// One line, if the kind, an option or a value is missing or invalid.
pub(crate) fn parse(args: impl IntoIterator<Item = String>, kinds: &[Kind]) -> Result<Command<'_>, ArgumentError> {
    let mut args = args.into_iter();
    let names = || kinds.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    let mut named: Option<&Kind> = None;
    let (mut requests, mut sessions, mut seed, mut scale) = (None, None, 1, 1.0);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--requests" => requests = Some(value::<NonZeroU32>(&arg, args.next(), COUNT)?),
            "--sessions" => sessions = Some(value::<NonZeroU32>(&arg, args.next(), COUNT)?),
            "--seed" => seed = value(&arg, args.next(), SEED)?,
            "--scale" => scale = value::<Scale>(&arg, args.next(), SCALE)?.0,
            option if option.starts_with('-') => {
                return Err(ArgumentError(format!(
                    "unknown option '{}'; --help lists the options",
                    option.escape_debug()
                )));
            }
            extra if named.is_some() => {
                return Err(ArgumentError(format!("unexpected argument '{}'", extra.escape_debug())));
            }
            name => {
                let unknown =
                    || ArgumentError(format!("unknown kind '{}'; use one of {}", name.escape_debug(), names()));
                named = Some(kinds.iter().find(|kind| kind.name == name).ok_or_else(unknown)?);
            }
        }
    }
    let kind = named.ok_or_else(|| ArgumentError(format!("missing kind; use one of {}", names())))?;
    if sessions.is_some() && kind.sessions.is_none() {
        return Err(ArgumentError(format!("--sessions does not apply to '{}'; use --requests", kind.name)));
    }
    let default = kind.sessions.unwrap_or(1);
    let sessions = sessions.map_or(default, |sessions| sessions.get() as usize);
    let requests = requests.map_or(kind.requests * sessions / default, |requests| requests.get() as usize);
    Ok(Command::Generate(kind, Options { requests, sessions, seed, scale }))
}

fn value<T: FromStr>(option: &str, text: Option<String>, expected: &str) -> Result<T, ArgumentError> {
    let text = text.ok_or_else(|| ArgumentError(format!("{option} requires a value: {expected}")))?;
    text.parse().map_err(|_| ArgumentError(format!("{option} requires {expected}, found '{}'", text.escape_debug())))
}

struct Scale(f64);

impl FromStr for Scale {
    type Err = ();

    fn from_str(text: &str) -> Result<Scale, ()> {
        let scale = text.parse().map_err(|_| ())?;
        if f64::is_finite(scale) && scale > 0.0 { Ok(Scale(scale)) } else { Err(()) }
    }
}

/// The text of `--help`.
pub(crate) fn usage(kinds: &[Kind]) -> String {
    let mut rows = String::new();
    for kind in kinds {
        let sessions = kind.sessions.map_or("-".to_owned(), |sessions| sessions.to_string());
        rows += &format!("  {:<9} {:>8}  {sessions:>8}  {}\n", kind.name, kind.requests, kind.about);
    }
    format!(
        "\
Writes a synthetic request trace in one of the public formats to stdout.
The same arguments produce the same bytes.

Usage: generate_trace KIND [OPTIONS]

  KIND      requests  sessions  modeled on
{rows}
Options:
  --requests N  Size of the trace in requests; each session has at least one
                [default: see the table; in proportion to --sessions if that is given]
  --sessions N  Size of the trace in sessions, for the kinds with a default in the table
  --seed N      Seed of the random numbers [default: 1]
  --scale F     Divides all lengths in tokens by F; the block size is unchanged [default: 1]
  -h, --help    Prints this text

--requests and --sessions change neither the lengths nor the time that the trace covers.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KINDS;

    fn parsed(line: &str) -> Result<(&'static str, Options), ArgumentError> {
        match parse(line.split_whitespace().map(str::to_owned), KINDS)? {
            Command::Help => Err(ArgumentError("help".to_owned())),
            Command::Generate(kind, options) => Ok((kind.name, options)),
        }
    }

    #[test]
    fn help_lists_each_kind_and_option() {
        for line in ["--help", "-h", "weka --seed 2 --help"] {
            assert_eq!(parsed(line).err().map(|error| error.0).as_deref(), Some("help"), "{line}");
        }
        let usage = usage(KINDS);
        let options = ["--requests N", "--sessions N", "--seed N", "--scale F"];
        for part in KINDS.iter().map(|kind| kind.name).chain(options) {
            assert!(usage.lines().any(|line| line.starts_with(&format!("  {part} "))), "{part}");
        }
    }

    #[test]
    fn requests_default_to_the_proportion_of_sessions() {
        for (line, requests, sessions) in [
            ("weka", 59_274, 739),
            ("weka --sessions 20", 1604, 20),
            ("--sessions 20 tracelab --requests 7", 7, 20),
            ("mooncake", 12_031, 1),
        ] {
            let (_, options) = parsed(line).unwrap();
            assert_eq!((options.requests, options.sessions, options.seed), (requests, sessions, 1), "{line}");
        }
    }

    #[test]
    fn a_wrong_argument_is_named_in_one_line() {
        for (line, named) in [
            ("", "missing kind"),
            ("nope", "unknown kind 'nope'"),
            ("mooncake vllm", "'vllm'"),
            ("mooncake --fast 1", "'--fast'"),
            ("mooncake --seed", "--seed requires a value"),
            ("mooncake --seed -1", "found '-1'"),
            ("mooncake --requests 0", "found '0'"),
            ("mooncake --scale inf", "found 'inf'"),
            ("mooncake --scale 0", "found '0'"),
            ("mooncake --sessions 4", "--sessions does not apply to 'mooncake'"),
        ] {
            let message = parsed(line).err().unwrap().to_string();
            assert!(message.contains(named) && !message.contains('\n'), "{line}: {message}");
        }
        let message = parse(["a\nb".to_owned()], KINDS).err().unwrap().to_string();
        assert!(message.contains(r"'a\nb'"), "{message}");
    }
}
