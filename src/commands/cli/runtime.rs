//! The async runtime for commands, and the signals that stop a command.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::logging;
use crate::engine::env::{RealEnv, deadline};
use crate::engine::sys::signal::is_hangup_ignored;

/// Runs `work` to completion: on this thread if `threads` is 0, otherwise on that many worker
/// threads.
///
/// # Errors
/// `work` fails, or the host cannot start threads.
pub fn block_on<T>(threads: usize, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(threads.max(1)).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::host("cannot start the runtime").found(error.to_string()))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)));
    // Do not wait for threads that are blocked on an unresponsive peer. They end with the process.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Timeout for a command's shutdown, even if services do not respond.
pub const STOP_MAX: Duration = Duration::from_secs(5);

/// Runs `work`, the shutdown of `what`, for at most [`STOP_MAX`]. On timeout, it returns `None` and
/// logs a warning; the remaining work ends with the process.
pub async fn stop_in_time<T>(what: &str, work: impl Future<Output = T>) -> Option<T> {
    stop_within(STOP_MAX, what, "its records may remain in the metadata service", work).await
}

/// Same as [`stop_in_time`], with the time limit `limit`. `consequence` is part of the warning.
pub async fn stop_within<T>(
    limit: Duration,
    what: &str,
    consequence: &str,
    work: impl Future<Output = T>,
) -> Option<T> {
    match deadline(&RealEnv::new(), limit, work).await {
        Ok(done) => Some(done),
        Err(_) => {
            let limit = show_duration(limit);
            tracing::warn!("{what} did not stop within {limit}: {consequence}");
            None
        }
    }
}

/// A signal that stops a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    Hangup,
    Interrupt,
    Terminate,
}

impl StopSignal {
    /// The name, such as `SIGINT`.
    pub const fn name(self) -> &'static str {
        match self {
            StopSignal::Hangup => "SIGHUP",
            StopSignal::Interrupt => "SIGINT",
            StopSignal::Terminate => "SIGTERM",
        }
    }

    /// The exit status that a shell reports for a process killed by the signal.
    const fn exit(self) -> Exit {
        Exit::Signal(match self {
            StopSignal::Hangup => 1,
            StopSignal::Interrupt => 2,
            StopSignal::Terminate => 15,
        })
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Handlers for SIGTERM and SIGINT, and optionally for SIGHUP. While they are installed, these
/// signals do not kill the process.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    int: Signal,
    hangup: HangupAction,
}

/// The effect of SIGHUP.
#[derive(Debug)]
enum HangupAction {
    /// mcctl installs no handler: the signal has its default action or is ignored.
    Untouched,
    /// Stops the command, like SIGTERM.
    Ends(Signal),
    /// Reopens the log file.
    ReopensLog(Signal),
}

impl Signals {
    /// Handles SIGTERM and SIGINT.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub fn take() -> Result<Signals, Failure> {
        Ok(Signals {
            term: take(SignalKind::terminate())?,
            int: take(SignalKind::interrupt())?,
            hangup: HangupAction::Untouched,
        })
    }

    /// Also handles SIGHUP like SIGTERM, so that a command cleans up when its terminal closes. An
    /// ignored SIGHUP (`nohup`) stays ignored.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub fn take_with_hangup() -> Result<Signals, Failure> {
        let hangup = match is_hangup_ignored() {
            true => HangupAction::Untouched,
            false => HangupAction::Ends(take(SignalKind::hangup())?),
        };
        Ok(Signals { hangup, ..Signals::take()? })
    }

    /// Also handles SIGHUP: it reopens the log file and never stops a service.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub fn take_for_service() -> Result<Signals, Failure> {
        logging::mark_service();
        Ok(Signals { hangup: HangupAction::ReopensLog(take(SignalKind::hangup())?), ..Signals::take()? })
    }

    /// Waits for the next signal that stops the command.
    pub async fn next(&mut self) -> StopSignal {
        let Signals { term, int, hangup } = self;
        let hung_up = async {
            match hangup {
                HangupAction::Untouched => std::future::pending().await,
                HangupAction::Ends(signal) => drop(signal.recv().await),
                HangupAction::ReopensLog(signal) => loop {
                    signal.recv().await;
                    logging::reopen();
                },
            }
        };
        tokio::select! {
            _ = term.recv() => StopSignal::Terminate,
            _ = int.recv() => StopSignal::Interrupt,
            () = hung_up => StopSignal::Hangup,
        }
    }
}

/// Runs `work`. With `reports`, SIGINT and SIGTERM end it with a failure, so that `--json` prints
/// an error document. The exit code is the one that a shell reports for a process killed by the
/// signal. Without `reports`, the signal kills the process.
///
/// # Errors
/// `work` fails, or a signal arrives.
pub async fn reporting_signals(reports: bool, work: impl Future<Output = Outcome>) -> Outcome {
    if !reports {
        return work.await;
    }
    let mut signals = Signals::take()?;
    tokio::select! {
        outcome = work => outcome,
        signal = signals.next() => {
            let failure = Failure::new(signal.exit(), format!("{signal}: stopped before the master responded"));
            Err(failure.next("the master may still perform the call: check the result with mcctl status or mcctl store exists"))
        }
    }
}

fn take(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::host("cannot handle signals").found(error.to_string()))
}
