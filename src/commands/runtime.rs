//! The runtime that a command's asynchronous work runs on, and the signals that end it.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::args::show_duration;
use crate::commands::error::Failure;
use crate::commands::logging;
use crate::engine::env::{RealEnv, deadline};

/// Run `work` to its end: on this thread for `threads` 0, else on that many worker threads besides.
///
/// # Errors
/// What `work` says, or that the host gives no threads.
pub fn block_on<T>(threads: usize, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(threads.max(1)).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::host("cannot start the runtime").found(error.to_string()))?;
    let outcome = runtime.block_on(work);
    // A thread that still waits for a peer that is silent is not waited for; it ends with the process.
    runtime.shutdown_background();
    outcome
}

/// What the end of a command may take, however silent the services are that it takes its leave of.
pub const STOP_MAX: Duration = Duration::from_secs(5);

/// Carry out `work`, the end of `what`, for no longer than [`STOP_MAX`]; `None` when that was not enough, which the log then says.
/// What is left undone ends with the process.
pub async fn stop_in_time<T>(what: &str, work: impl Future<Output = T>) -> Option<T> {
    match deadline(&RealEnv::new(), STOP_MAX, work).await {
        Ok(done) => Some(done),
        Err(_) => {
            let limit = show_duration(STOP_MAX);
            tracing::warn!("{what} did not end within {limit}, and is not waited for: its records may be left behind");
            None
        }
    }
}

/// SIGTERM and SIGINT (and SIGHUP, where that is asked for), from the moment that this is made: afterwards they end nothing by
/// themselves.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    int: Signal,
    hangup: Hangup,
}

/// What SIGHUP does.
#[derive(Debug)]
enum Hangup {
    /// What it did before: it ends the process, or is ignored.
    Untouched,
    /// It ends the command as SIGTERM does.
    Ends(Signal),
    /// It opens the log file again.
    ReopensLog(Signal),
}

impl Signals {
    /// Take the two signals over.
    ///
    /// # Errors
    /// The host refuses.
    pub fn take() -> Result<Signals, Failure> {
        Ok(Signals {
            term: take(SignalKind::terminate())?,
            int: take(SignalKind::interrupt())?,
            hangup: Hangup::Untouched,
        })
    }

    /// Take SIGHUP over, too: a terminal that goes away ends a command that has something to tidy up as SIGTERM does. Where it is
    /// ignored (`nohup`) it stays so.
    ///
    /// # Errors
    /// The host refuses.
    pub fn take_with_hangup() -> Result<Signals, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // The mask's lowest bit is signal 1, which SIGHUP is.
        let hangup = match ignored.is_some_and(|mask| mask & 1 == 1) {
            true => Hangup::Untouched,
            false => Hangup::Ends(take(SignalKind::hangup())?),
        };
        Ok(Signals { hangup, ..Signals::take()? })
    }

    /// Take SIGHUP over, too, to open the log file again: it never ends a service.
    ///
    /// # Errors
    /// The host refuses.
    pub fn take_for_service() -> Result<Signals, Failure> {
        logging::mark_service();
        Ok(Signals { hangup: Hangup::ReopensLog(take(SignalKind::hangup())?), ..Signals::take()? })
    }

    /// Wait for the next one that ends the command, and give its name.
    pub async fn next(&mut self) -> &'static str {
        let Signals { term, int, hangup } = self;
        let hung_up = async {
            match hangup {
                Hangup::Untouched => std::future::pending().await,
                Hangup::Ends(signal) => drop(signal.recv().await),
                Hangup::ReopensLog(signal) => loop {
                    signal.recv().await;
                    logging::reopen();
                },
            }
        };
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
            () = hung_up => "SIGHUP",
        }
    }
}

fn take(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::host("cannot handle signals").found(error.to_string()))
}
