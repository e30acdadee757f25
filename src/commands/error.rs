//! What a command says when it does not succeed: what happened, what was tried, what was found, what to do; and the exit code.
//!
//! The exit codes are a contract (README, `tests/it/cli/exit.rs`). Errors of the engine carry conditions; this floor gives them
//! words. On a terminal the parts stand one below the other; elsewhere (journals, container logs) they are one line.

use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use crate::commands::logging;
use crate::engine::base::text::masked;

/// How a run of the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// It ran, and the answer is no: a key that is not there, a check that failed.
    No,
    /// The command line or a configuration file is wrong.
    Usage,
    /// Something outside is unreachable.
    Unreachable,
    /// This host cannot do it: permission, memory, device, port.
    Host,
    /// A bug in mcctl.
    Bug,
    /// What the program that is imitated byte for byte gives; its codes are its own.
    Imitated(u8),
}

impl Exit {
    /// The number that the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::No => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::Host => 4,
            Exit::Bug => 70,
            Exit::Imitated(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// What a command gives back.
pub type Outcome = Result<Exit, Failure>;

/// Why a command ended early, in the words that the user reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What is wrong, where: one sentence without a full stop.
    pub what: String,
    /// What was tried, with address, path and where the value came from.
    pub tried: Option<String>,
    /// What was found instead.
    pub found: Option<String>,
    /// What to do about it.
    pub next: Option<String>,
}

impl Failure {
    /// A failure with exit code `exit` that says `what`.
    pub fn new(exit: Exit, what: impl Into<String>) -> Failure {
        Failure { exit, what: what.into(), tried: None, found: None, next: None }
    }

    /// The command line or a configuration file is wrong.
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, what)
    }

    /// Something outside is unreachable.
    pub fn unreachable(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Unreachable, what)
    }

    /// This host cannot do it.
    pub fn host(what: impl Into<String>) -> Failure {
        Failure::new(Exit::Host, what)
    }

    /// The answer is no.
    pub fn no(what: impl Into<String>) -> Failure {
        Failure::new(Exit::No, what)
    }

    /// What was tried.
    pub fn tried(mut self, text: impl Into<String>) -> Failure {
        self.tried = Some(text.into());
        self
    }

    /// What was found.
    pub fn found(mut self, text: impl Into<String>) -> Failure {
        self.found = Some(text.into());
        self
    }

    /// What to do.
    pub fn next(mut self, text: impl Into<String>) -> Failure {
        self.next = Some(text.into());
        self
    }

    /// The reader of our output went away: that ends the command well, and nothing is said.
    fn reader_gone() -> Failure {
        Failure::new(Exit::Done, "")
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("tried", &self.tried), ("found", &self.found), ("next", &self.next)]
            .into_iter()
            .filter_map(|(name, part)| part.as_deref().map(|text| (name, text)))
    }

    /// The failure as a block of lines, for a terminal.
    pub fn block(&self, colour: bool) -> String {
        let head = if colour { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
        let mut text = format!("{head} {}\n", self.what);
        for (name, part) in self.parts() {
            text.push_str(&format!("  {name:<6}  {part}\n"));
        }
        masked(&text).into_owned()
    }

    /// The failure as one line, for everything that is not a terminal.
    pub fn line(&self) -> String {
        let mut text = format!("error: {}", self.what);
        for (name, part) in self.parts() {
            text.push_str(&format!("; {name}: {part}"));
        }
        masked(&text).replace('\n', " ") + "\n"
    }

    /// Say it on stderr and give the exit code.
    pub fn report(&self) -> Exit {
        if !self.what.is_empty() {
            let text = match io::stderr().is_terminal() {
                true => self.block(std::env::var_os("NO_COLOR").is_none()),
                false => self.line(),
            };
            logging::to_stderr(&text);
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

/// From writing to stdout.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::reader_gone();
        }
        Failure::host("cannot write to stdout").found(error.to_string())
    }
}

impl From<clap::Error> for Failure {
    /// clap's message in our parts.
    fn from(error: clap::Error) -> Failure {
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut what = lines.next().unwrap_or("wrong arguments").trim_start_matches("error: ").to_owned();
        let mut next = None;
        for line in lines {
            if let Some(tip) = line.strip_prefix("tip: ") {
                next.get_or_insert(tip.to_owned());
            } else if line.starts_with("Usage:") {
                next.get_or_insert(line.to_owned());
            } else if line.starts_with("For more information") {
                next.get_or_insert("--help tells more".to_owned());
            } else {
                what = format!("{what} {line}");
            }
        }
        Failure { next, ..Failure::usage(what) }
    }
}

/// Make a panic say that it is a bug. The code 70 is given by [`guard`]; a task of a server that panics ends only itself.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let said = info.payload();
        let said = said.downcast_ref::<&str>().copied().or(said.downcast_ref::<String>().map(String::as_str));
        Failure::new(Exit::Bug, format!("a bug in mcctl {}", env!("CARGO_PKG_VERSION")))
            .found(format!("panic at {place}: {}", said.unwrap_or("no message")))
            .next("report this line together with the command that was run")
            .report();
    }));
}

/// Run `work`; a panic in it ends with exit code 70.
pub fn guard(work: impl FnOnce() -> Exit) -> Exit {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(Exit::Bug)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Failure {
        Failure::host("port 50051 is in use").tried("listen on 0.0.0.0:50051 (default)").next("stop it")
    }

    #[test]
    fn a_terminal_gets_a_block_and_a_log_gets_one_line() {
        assert_eq!(
            sample().block(false),
            "error: port 50051 is in use\n  tried   listen on 0.0.0.0:50051 (default)\n  next    stop it\n"
        );
        assert_eq!(
            sample().line(),
            "error: port 50051 is in use; tried: listen on 0.0.0.0:50051 (default); next: stop it\n"
        );
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
    fn a_closed_stdout_is_success_and_any_other_trouble_is_not() {
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((gone.exit, gone.report()), (Exit::Done, Exit::Done));
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).exit, Exit::Host);
    }

    #[test]
    fn a_panic_is_a_bug() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let exit = guard(|| panic!("on purpose"));
        std::panic::set_hook(hook);
        assert_eq!(exit.code(), 70);
    }
}
