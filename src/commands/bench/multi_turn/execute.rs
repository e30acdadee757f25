//! Runs a session and handles signals.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::env;
use crate::commands::bench::multi_turn::progress::Screen;
use crate::commands::cli::error::Failure;
use crate::commands::cli::runtime::{self, Signals, StopSignal};
use crate::engine::load::LoadCaveat;
use crate::engine::load::session::{Observer, Observers, PreviousPass, Session, SessionResult};
use crate::engine::load::target::LoadTarget;
use crate::engine::sys::descriptors;

/// The results of a session.
pub(crate) struct MeasuredRun {
    /// Endpoint names and targets, by index.
    pub sides: Vec<(String, LoadTarget)>,
    pub executed: SessionResult,
    /// Whether the workload has sessions of several conversations.
    pub has_session_trees: bool,
    /// Caveats about the whole run.
    pub caveats: Vec<BenchCaveat>,
    /// The signal that ended the run early.
    pub signal: Option<StopSignal>,
}

/// Runs `session` with `observers`. After the first SIGINT or SIGTERM, requests in flight may
/// complete. A second signal aborts them.
///
/// # Errors
/// Signal handlers or the runtime cannot be set up, or the open file limit on this host is too low.
pub(crate) fn run(
    session: Session,
    earlier: Vec<PreviousPass>,
    observers: Vec<&mut dyn Observer>,
    screen: &Screen,
) -> Result<MeasuredRun, Failure> {
    allow_connections(&session)?;
    let sides = session.sides.iter().map(|side| (side.name.clone(), side.target.clone())).collect();
    let scripts = |side: &crate::engine::load::session::LoadEndpoint| side.workload.scripts();
    let has_session_trees = session.sides.first().is_some_and(|side| scripts(side).iter().any(|it| it.node.is_some()));
    // All sides run the same workload.
    let notes = session.sides.first().map(|side| side.workload.notes()).unwrap_or_default();
    let caveats = notes.into_iter().map(|note| LoadCaveat::Workload(note).into()).collect();
    runtime::block_on(0, async {
        let mut signals = Signals::take()?;
        // Ignore SIGXFSZ so that exceeding the file size limit causes a write error, like a full
        // disk.
        let _too_large = signal(SignalKind::from_raw(nix::libc::SIGXFSZ));
        let (stop_sender, mut stop) = mpsc::channel(2);
        let mut observers = Observers(observers);
        let mut signal: Option<StopSignal> = None;
        let mut signals_seen = 0_u32;
        let mut running = session.go_on_here(env(), earlier, &mut stop, &mut observers);
        let executed = loop {
            tokio::select! {
                executed = &mut running => break executed,
                received = signals.next() => {
                    signal.get_or_insert(received);
                    signals_seen += 1;
                    match signals_seen {
                        1 => screen.warn(&format!("{received}: sending no more requests; send the signal again to abort those in flight")),
                        2 => screen.warn(&format!("{received}: aborting requests in flight")),
                        _ => {}
                    }
                    // This send fails only if the run has already ended.
                    let _ = stop_sender.try_send(());
                }
            }
        };
        Ok(MeasuredRun { sides, executed, has_session_trees, caveats, signal })
    })
}

/// File descriptors reserved for uses other than connections.
const OTHER_DESCRIPTORS: u64 = 100;

/// Raises the open file limit to cover all connections.
fn allow_connections(session: &Session) -> Result<(), Failure> {
    let required = session.connections_max() as u64 + OTHER_DESCRIPTORS;
    let tried = || format!("cannot open {required} connections and files");
    match descriptors::allow(required) {
        Ok(allowed) if allowed < required => Err(Failure::host(tried())
            .found(format!("the per-process limit is {allowed}"))
            .next("raise the hard limit (ulimit -Hn), or lower --max-parallel or --live-sessions")),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::host(tried()).found(error.to_string())),
    }
}
