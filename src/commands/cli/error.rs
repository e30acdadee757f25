//! Exit codes and error messages of commands: what happened, what was tried, what was found, and
//! what to do next.
//!
//! The exit codes are a contract (`docs/commands.md`, `tests/it/cli/exit.rs`). Engine errors
//! describe conditions; commands turn them into messages. On a terminal, a message is a block of
//! lines. Elsewhere (journals, container logs), it is a single line.

use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Mutex;

use clap::error::{ContextKind, ContextValue};
use serde::Serialize;

use crate::commands::cli::logging;
use crate::engine::base::text::{masked, masked_address, printable};

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// The command completed with a negative result: a key does not exist, or a check failed.
    No,
    /// The command line or a configuration file is wrong.
    Usage,
    /// A service outside this process is unreachable.
    Unreachable,
    /// Missing permission, memory, device or free port on this host.
    Host,
    /// A bug in mcctl.
    Bug,
    /// The signal with this number stopped the command. The exit code is the one that a shell
    /// reports for a process killed by the signal.
    Signal(u8),
    /// An exit code of the upstream program that a symlink imitates byte for byte.
    Imitated(u8),
}

impl Exit {
    /// The process exit code.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::No => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::Host => 4,
            Exit::Bug => 70,
            Exit::Signal(number) => 128 + number,
            Exit::Imitated(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// The kind of a failure in the error document of `--json`. The names are a contract
/// (`docs/json.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The command completed with a negative result.
    Negative,
    /// The key does not exist.
    NotFound,
    /// A signal stopped the command.
    Interrupted,
    Usage,
    Unreachable,
    Host,
    Bug,
}

impl From<Exit> for FailureKind {
    /// The kind of failures that have no more specific one.
    fn from(exit: Exit) -> FailureKind {
        match exit {
            Exit::Done | Exit::No | Exit::Imitated(_) => FailureKind::Negative,
            Exit::Usage => FailureKind::Usage,
            Exit::Unreachable => FailureKind::Unreachable,
            Exit::Host => FailureKind::Host,
            Exit::Bug => FailureKind::Bug,
            Exit::Signal(_) => FailureKind::Interrupted,
        }
    }
}

/// The result of a command.
pub type Outcome = Result<Exit, Failure>;

/// Why a command failed, as shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// The kind, if the exit code does not determine it.
    pub kind: Option<FailureKind>,
    /// The cause, with the value found: one sentence without a final period.
    pub what: String,
    /// The action that failed, with address or path and the origin of the value.
    pub tried: Option<String>,
    /// The evidence: an error from the system or from a peer.
    pub found: Option<String>,
    /// The command or setting that fixes the problem.
    pub next: Option<String>,
}

impl Failure {
    /// A failure with exit code `exit` and first line `what`.
    pub fn new(exit: Exit, what: impl Into<String>) -> Failure {
        Failure { exit, kind: None, what: what.into(), tried: None, found: None, next: None }
    }

    /// A failure with [`Exit::Usage`].
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, what)
    }

    /// A failure with [`Exit::Unreachable`].
    pub fn unreachable(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Unreachable, what)
    }

    /// A failure with [`Exit::Host`].
    pub fn host(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Host, what)
    }

    /// A failure with [`Exit::No`].
    pub fn no(what: impl Into<String>) -> Failure {
        Failure::new(Exit::No, what)
    }

    /// A failure with [`Exit::No`]: the key does not exist.
    pub fn not_found(what: impl Into<String>) -> Failure {
        Failure { kind: Some(FailureKind::NotFound), ..Failure::no(what) }
    }

    /// A failure with [`Exit::No`]: a signal stopped the command before it had a result.
    pub fn interrupted(what: impl Into<String>) -> Failure {
        Failure { kind: Some(FailureKind::Interrupted), ..Failure::no(what) }
    }

    /// Sets the action that failed.
    pub fn tried(mut self, text: impl Into<String>) -> Failure {
        self.tried = Some(text.into());
        self
    }

    /// Sets the evidence for the failure.
    pub fn found(mut self, text: impl Into<String>) -> Failure {
        self.found = Some(text.into());
        self
    }

    /// Sets the command or setting that fixes the problem.
    pub fn next(mut self, text: impl Into<String>) -> Failure {
        self.next = Some(text.into());
        self
    }

    /// The process reading stdout closed the pipe: exit code 0, no message.
    fn closed_pipe() -> Failure {
        Failure::new(Exit::Done, "")
    }

    /// Whether this is only the closed pipe of a reader that has enough.
    pub fn is_closed_pipe(&self) -> bool {
        self.exit == Exit::Done && self.what.is_empty()
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("tried", &self.tried), ("found", &self.found), ("next", &self.next)]
            .into_iter()
            .filter_map(|(name, part)| part.as_deref().map(|text| (name, text)))
    }

    /// `text` without passwords and without control characters, which come from files, peers and
    /// the command line.
    pub fn shown(text: &str) -> String {
        masked(&printable(text)).into_owned()
    }

    /// The failure as a multi-line block, for a terminal.
    pub fn block(&self, colour: bool) -> String {
        let head = if colour { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
        let mut text = format!("{head} {}\n", Failure::shown(&self.what));
        for (name, part) in self.parts() {
            text.push_str(&format!("  {name:<6}  {}\n", Failure::shown(part)));
        }
        text
    }

    /// The failure as a single line, for pipes and files.
    pub fn line(&self) -> String {
        let mut text = format!("error: {}", self.what);
        for (name, part) in self.parts() {
            text.push_str(&format!("; {name}: {part}"));
        }
        Failure::shown(&text).replace('\n', " ") + "\n"
    }

    /// Prints the failure to stderr and returns its exit code.
    pub fn report(&self) -> Exit {
        if !self.what.is_empty() {
            let text = match io::stderr().is_terminal() {
                true => self.block(std::env::var_os("NO_COLOR").is_none()),
                false => self.line(),
            };
            logging::to_stderr(&text);
            logging::to_file(&self.line());
        }
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.line().trim_end())
    }
}

impl std::error::Error for Failure {}

/// An error writing to stdout.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::closed_pipe();
        }
        Failure::host("cannot write to stdout").found(error.to_string())
    }
}

impl From<clap::Error> for Failure {
    /// clap's message, split into the parts of a failure.
    fn from(error: clap::Error) -> Failure {
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut what = lines.next().unwrap_or("invalid arguments").trim_start_matches("error: ").to_owned();
        if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
            what = what.replace(value.as_str(), &masked_address(value));
        }
        let mut next = None;
        for line in lines {
            if let Some(tip) = line.strip_prefix("tip: ") {
                // "to pass '--x' as a value, use '-- --x'" is misleading: an unknown flag is rarely
                // meant as a value.
                if !tip.starts_with("to pass '-") {
                    next.get_or_insert(tip.to_owned());
                }
            } else if line.starts_with("Usage:") {
                next.get_or_insert(format!("see --help; {}", line.replacen("Usage:", "usage:", 1)));
            } else if line.starts_with("For more information") {
                next.get_or_insert("see --help".to_owned());
            } else {
                what = format!("{what} {line}");
            }
        }
        Failure { next, ..Failure::usage(what) }
    }
}

/// An error and its sources, separated by colons.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(source) = inner {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        inner = source.source();
    }
    text
}

/// The failure of the last panic, which [`guard`] returns.
static LAST_PANIC: Mutex<Option<Failure>> = Mutex::new(None);

/// Reports every panic as a bug. A panic in a server's task ends only that task, unless it makes
/// the master's state unusable.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let location = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let payload = info.payload();
        let message = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let failure = Failure::new(Exit::Bug, format!("bug in mcctl {}", env!("CARGO_PKG_VERSION")))
            .found(format!("panic at {location}: {}", message.unwrap_or("no message")))
            .next("report this line together with the command line");
        failure.report();
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = Some(failure);
        }
    }));
}

/// Runs `work`.
///
/// # Errors
/// `work` panicked. The panic hook has already reported the failure.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, Failure> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|_| {
        let reported = LAST_PANIC.lock().ok().and_then(|mut last| last.take());
        reported.unwrap_or_else(|| Failure::new(Exit::Bug, "bug in mcctl"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Failure {
        Failure::host("port 50051 is in use").tried("listen on 0.0.0.0:50051 (default)").next("stop it")
    }

    #[test]
    fn a_terminal_gets_a_block_and_a_log_one_line() {
        insta::assert_snapshot!(format!("{}{}", sample().block(false), sample().line()), @r"
        error: port 50051 is in use
          tried   listen on 0.0.0.0:50051 (default)
          next    stop it
        error: port 50051 is in use; tried: listen on 0.0.0.0:50051 (default); next: stop it
        ");
    }

    #[test]
    fn colour_is_only_in_the_first_word_of_a_block() {
        assert!(sample().block(true).starts_with("\x1b[1;31merror:\x1b[0m port"));
        assert!(!sample().block(false).contains('\x1b') && !sample().line().contains('\x1b'));
    }

    #[test]
    fn a_password_in_a_url_is_masked_in_every_part() {
        let url = "http://me:secret@h:1/";
        let failure = Failure::host(url).tried(url).found(url).next(url);
        for text in [failure.block(false), failure.line()] {
            assert!(!text.contains("secret") && text.matches("http://me:***@h:1/").count() == 4, "{text}");
        }
    }

    #[test]
    fn control_characters_are_escaped_in_every_part() {
        let text = "x\u{1b}[31m\u{7}\u{9b}";
        let failure = Failure::host(text).tried(text).found(text).next(text);
        for shown in [failure.block(false), failure.line(), failure.to_string()] {
            assert_eq!(shown.matches("x\\u{1b}[31m\\u{7}\\u{9b}").count(), 4, "{shown}");
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
        }
    }

    #[test]
    fn a_closed_stdout_is_success_and_a_full_disk_is_not() {
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((gone.exit, gone.report()), (Exit::Done, Exit::Done));
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).exit, Exit::Host);
    }

    #[test]
    fn a_panic_has_exit_code_70() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let outcome: Result<(), Failure> = guard(|| panic!("on purpose"));
        std::panic::set_hook(hook);
        assert_eq!(outcome.map_err(|failure| failure.exit.code()), Err(70));
    }
}
