//! Upstream's sizing script: its command line, output and exit codes, formatted like Python 3.11's
//! `argparse` at 80 columns.
//!
//! mcctl differs from the script in two cases. With `--available-hugetlb`, an invalid
//! `--hugepage-size` crashes the script with a traceback and the exit code for "arena may fall
//! back"; mcctl prints the matching error and exits with code 64. Numbers that need more than
//! 127 bits are rejected with code 64.

use std::path::Path;

use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::engine::plan::python_text::repr;
use crate::engine::plan::upstream::{self, ScriptError, ScriptInput};
use crate::engine::sys::hugetlb;

/// The script's name in its container image; `--compat` also uses this name in messages.
pub const PROGRAM: &str = "mooncake-hicache-sizing";

/// Exit code for invalid sizes.
const BAD_SIZE: u8 = 64;
/// Exit code for invalid options.
const BAD_OPTION: u8 = 2;
/// The line width of `argparse` at 80 columns.
const WIDTH: usize = 78;

const OPTIONS: [&str; 8] = [
    "-h",
    "--help",
    "--tp-size",
    "--hicache-size",
    "--global-segment-size",
    "--arena-pool-size",
    "--hugepage-size",
    "--available-hugetlb",
];
const REQUIRED: usize = 3;

const DETAILS: &str = "
Estimate HugeTLB capacity needed for a Mooncake HiCache launch. The tool
reports both a baseline floor and a cleaner arena-backed target derived from
benchmark bring-up experience.

options:
  -h, --help            show this help message and exit
  --tp-size TP_SIZE
  --hicache-size HICACHE_SIZE
  --global-segment-size GLOBAL_SEGMENT_SIZE
  --arena-pool-size ARENA_POOL_SIZE
  --hugepage-size HUGEPAGE_SIZE
  --available-hugetlb AVAILABLE_HUGETLB
                        Override detected HugeTLB capacity with an explicit
                        size such as '96gb'. If omitted, the tool tries
                        /sys/kernel/mm/hugepages.
";

/// The result of parsing a command line.
#[derive(Debug, PartialEq, Eq)]
enum ScriptCommand {
    Run(ScriptInput),
    Help,
    /// An `argparse` error message.
    Wrong(String),
    /// The tp size is out of range.
    Refused(ScriptError),
}

/// The output of a run of the script.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptOutput {
    pub exit_code: u8,
    pub stdout: String,
    /// Without its last newline.
    pub stderr: String,
}

impl ScriptOutput {
    fn success(stdout: String, exit_code: u8) -> ScriptOutput {
        ScriptOutput { exit_code, stdout, stderr: String::new() }
    }

    fn failure(stderr: String, exit_code: u8) -> ScriptOutput {
        ScriptOutput { exit_code, stdout: String::new(), stderr }
    }

    fn refusal(error: &ScriptError) -> ScriptOutput {
        ScriptOutput::failure(format!("error: {error}"), BAD_SIZE)
    }
}

/// Runs the script as `program` with `args`, and returns its exit code.
///
/// # Errors
/// stdout cannot be written.
pub fn run(program: &str, args: &[String]) -> Result<u8, Failure> {
    let run = compute(program, args);
    if !run.stderr.is_empty() {
        output::say(run.stderr);
    }
    output::data(run.stdout)?;
    Ok(run.exit_code)
}

/// What the script prints as `program` with `args`. Reads the huge page pools of this host if the
/// arguments do not contain their capacity.
pub fn compute(program: &str, args: &[String]) -> ScriptOutput {
    let request = match parse(args) {
        ScriptCommand::Run(request) => request,
        ScriptCommand::Help => return ScriptOutput::success(format!("{}{DETAILS}", usage(program)), 0),
        ScriptCommand::Wrong(message) => {
            return ScriptOutput::failure(format!("{}{program}: error: {message}", usage(program)), BAD_OPTION);
        }
        ScriptCommand::Refused(error) => return ScriptOutput::refusal(&error),
    };
    let pages_of = |kib| hugetlb::total_pages(Path::new("/sys"), u64::try_from(kib).ok()?);
    let result = upstream::estimate(&request, &pages_of);
    match result.and_then(|estimate| Ok((upstream::summary(&request, &estimate)?, estimate.status))) {
        Ok((text, status)) => ScriptOutput::success(text, status.exit()),
        Err(error) => ScriptOutput::refusal(&error),
    }
}

/// Formats the usage like `argparse`. Words that do not fit start the next line, aligned with the
/// first option.
fn usage(program: &str) -> String {
    let indent = "usage: ".len() + program.len() + 1;
    let mut words = vec!["[-h]".to_owned()];
    for (i, option) in OPTIONS[2..].iter().enumerate() {
        let value = option[2..].to_uppercase().replace('-', "_");
        match i < REQUIRED {
            true => words.extend([(*option).to_owned(), value]),
            false => words.push(format!("[{option} {value}]")),
        }
    }
    let mut text = format!("usage: {program}");
    let mut column = text.len();
    for word in words {
        if column + 1 + word.len() > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            text.push(' ');
            column += 1;
        }
        column += word.len();
        text.push_str(&word);
    }
    text + "\n"
}

/// The kind of an argument, determined before any argument is consumed.
enum ArgumentKind<'a> {
    Plain,
    /// The first `--`; all arguments after it are positional.
    Separator,
    /// A known option by its index in [`OPTIONS`], with the value after `=`.
    Known(usize, Option<&'a str>),
    /// Looks like an option but is unknown.
    Unknown,
}

fn parse(args: &[String]) -> ScriptCommand {
    let mut kinds = Vec::new();
    for arg in args {
        // Only the first `--` is a separator.
        if kinds.iter().any(|kind| matches!(kind, ArgumentKind::Separator)) {
            kinds.push(ArgumentKind::Plain);
            continue;
        }
        match classify(arg) {
            Ok(kind) => kinds.push(kind),
            Err(message) => return ScriptCommand::Wrong(message.to_string()),
        }
    }
    let mut values: [Option<String>; OPTIONS.len()] = Default::default();
    let mut tp = None;
    let mut extras: Vec<&str> = Vec::new();
    let mut at = 0;
    while at < args.len() {
        let (option, attached) = match kinds[at] {
            ArgumentKind::Known(option, attached) => (option, attached),
            _ => {
                extras.push(&args[at]);
                at += 1;
                continue;
            }
        };
        if option < 2 {
            match help(&args[at], attached) {
                None => return ScriptCommand::Help,
                Some(message) => return ScriptCommand::Wrong(message),
            }
        }
        let value = match (attached, kinds.get(at + 1)) {
            (Some(value), _) => {
                at += 1;
                value.to_owned()
            }
            (None, Some(ArgumentKind::Plain)) => {
                at += 2;
                args[at - 1].clone()
            }
            (None, _) => return ScriptCommand::Wrong(format!("argument {}: expected one argument", OPTIONS[option])),
        };
        if option == 2 {
            match upstream::tp(&value) {
                None => {
                    return ScriptCommand::Wrong(format!("argument --tp-size: invalid int value: {}", repr(&value)));
                }
                Some(number) => tp = Some(number),
            }
        }
        values[option] = Some(value);
    }
    let missing: Vec<&str> = (2..2 + REQUIRED).filter(|i| values[*i].is_none()).map(|i| OPTIONS[i]).collect();
    if !missing.is_empty() {
        return ScriptCommand::Wrong(format!("the following arguments are required: {}", missing.join(", ")));
    }
    if !extras.is_empty() {
        return ScriptCommand::Wrong(format!("unrecognized arguments: {}", extras.join(" ")));
    }
    let [_, _, _, hicache, segment, arena, hugepage, available] = values;
    match (tp, hicache, segment) {
        (Some(Ok(tp)), Some(hicache), Some(segment)) => ScriptCommand::Run(ScriptInput {
            tp,
            hicache,
            segment,
            arena: arena.unwrap_or_else(|| "0".to_owned()),
            hugepage: hugepage.unwrap_or_else(|| "2mb".to_owned()),
            available,
        }),
        (Some(Err(error)), ..) => ScriptCommand::Refused(error),
        // Unreachable: required arguments were checked above.
        _ => ScriptCommand::Wrong("arguments are required".to_owned()),
    }
}

/// `-h` and `--help` take no value. Letters after `-h` are further one-letter options, of which
/// only `-h` exists.
fn help(arg: &str, attached: Option<&str>) -> Option<String> {
    let ignored = |value: &str| Some(format!("argument -h/--help: ignored explicit argument {}", repr(value)));
    let mut rest = attached?;
    if arg.starts_with("--") || rest.is_empty() {
        return ignored(rest);
    }
    while let Some(more) = rest.strip_prefix('h') {
        if more.is_empty() {
            return None;
        }
        rest = more;
    }
    ignored(rest)
}

/// An abbreviation that matches several options.
#[derive(Debug, thiserror::Error)]
#[error("ambiguous option: {argument} could match {matching}")]
struct AmbiguousOption {
    argument: String,
    matching: String,
}

/// `ArgumentParser._parse_optional`.
fn classify(arg: &str) -> Result<ArgumentKind<'_>, AmbiguousOption> {
    if arg == "--" {
        return Ok(ArgumentKind::Separator);
    }
    if !arg.starts_with('-') || arg.len() == 1 {
        return Ok(ArgumentKind::Plain);
    }
    let place = |name: &str| OPTIONS.iter().position(|option| *option == name);
    if let Some(option) = place(arg) {
        return Ok(ArgumentKind::Known(option, None));
    }
    let (name, value) = match arg.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (arg, None),
    };
    if let (Some(option), Some(_)) = (place(name), value) {
        return Ok(ArgumentKind::Known(option, value));
    }
    if arg.starts_with("--") {
        let matching: Vec<usize> = (0..OPTIONS.len()).filter(|i| OPTIONS[*i].starts_with(name)).collect();
        match matching[..] {
            [option] => return Ok(ArgumentKind::Known(option, value)),
            [] => {}
            _ => {
                let names: Vec<&str> = matching.iter().map(|i| OPTIONS[*i]).collect();
                return Err(AmbiguousOption { argument: arg.to_owned(), matching: names.join(", ") });
            }
        }
    } else if let Some(letters) = arg.strip_prefix("-h") {
        return Ok(ArgumentKind::Known(0, Some(letters)));
    }
    if is_negative_number(arg) || arg.contains(' ') { Ok(ArgumentKind::Plain) } else { Ok(ArgumentKind::Unknown) }
}

/// `^-\d+$|^-\d*\.\d+$`, where `$` also matches before a final newline.
fn is_negative_number(arg: &str) -> bool {
    let text = arg.strip_suffix('\n').unwrap_or(arg);
    let Some(number) = text.strip_prefix('-') else { return false };
    let digits = |text: &str| text.chars().all(upstream::is_decimal);
    match number.split_once('.') {
        None => !number.is_empty() && digits(number),
        Some((whole, fraction)) => digits(whole) && !fraction.is_empty() && digits(fraction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &[&str]) -> String {
        let args: Vec<String> = line.iter().map(|arg| (*arg).to_owned()).collect();
        match parse(&args) {
            ScriptCommand::Wrong(message) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn option_errors_match_argparse() {
        for (line, message) in [
            (
                &["--tp-size", "1", "--"][..],
                "the following arguments are required: --hicache-size, --global-segment-size",
            ),
            (&["--tp-size", "--", "1"], "argument --tp-size: expected one argument"),
            (&["--h", "8gb"], "ambiguous option: --h could match --help, --hicache-size, --hugepage-size"),
            (&["--tp-size=x"], "argument --tp-size: invalid int value: 'x'"),
            (&["--tp-size"], "argument --tp-size: expected one argument"),
            (&["--tp-size", "-8gb"], "argument --tp-size: expected one argument"),
            (&["-h=x"], "argument -h/--help: ignored explicit argument 'x'"),
            (&["-hhx"], "argument -h/--help: ignored explicit argument 'x'"),
            (&["--help=3"], "argument -h/--help: ignored explicit argument '3'"),
            (&["--tp", "1", "--hi", "1", "--g", "1", "a", "-z", "--", "--tp"], "unrecognized arguments: a -z -- --tp"),
        ] {
            assert_eq!(wrong(line), message, "{line:?}");
        }
    }

    #[test]
    fn negative_numbers_and_texts_with_blanks_are_values() {
        for value in ["-2", "-.5", "-8 gb", "-", ""] {
            let args = ["--tp=1", "--hicache-size", value, "--global=1"].map(str::to_owned);
            assert!(matches!(parse(&args), ScriptCommand::Run(request) if request.hicache == value), "{value:?}");
        }
        assert_eq!(parse(&["-hh".to_owned()]), ScriptCommand::Help);
    }
}
