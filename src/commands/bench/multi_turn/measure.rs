//! Carry out a session between signals.

use std::pin::pin;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::commands::bench::multi_turn::live::Screen;
use crate::commands::error::Failure;
use crate::commands::runtime::{self, Signals};
use crate::engine::env::RealEnv;
use crate::engine::load::session::{Before, Executed, Observer, Observers, Session, Step};
use crate::engine::load::target::Target;
use crate::engine::sys::descriptors;

/// What was measured.
pub struct Measured {
    /// The endpoints, by their index.
    pub sides: Vec<(String, Target)>,
    /// Their passes.
    pub executed: Executed,
    /// Why all of it may be doubted, as far as it is known already.
    pub doubts: Vec<String>,
    /// The signal that ended it early.
    pub signal: Option<&'static str>,
}

impl Measured {
    /// Requests that a bug of ours broke off.
    pub fn bugs(&self) -> u64 {
        self.executed.passes.iter().map(|pass| pass.ran.bugs).sum()
    }

    /// Did at some endpoint nothing go well, though it was asked?
    pub fn is_away(&self) -> bool {
        let of = |side: usize| self.executed.passes.iter().filter(move |pass| pass.id.side_name == self.sides[side].0);
        (0..self.sides.len()).any(|side| {
            let well: u64 = of(side).map(|pass| pass.tally.all.requests).sum();
            well == 0 && of(side).any(|pass| pass.tally.failed() > 0)
        })
    }
}

/// Carry out `session`, watched by `observers`. The first SIGINT or SIGTERM lets what is in flight end, the second does not.
///
/// # Errors
/// Signals cannot be taken, or there is no runtime.
pub fn carry_out(
    session: Session,
    earlier: Vec<Before>,
    observers: Vec<&mut dyn Observer>,
    screen: &Screen,
) -> Result<Measured, Failure> {
    allow_connections(&session)?;
    let sides = session.sides.iter().map(|side| (side.name.clone(), side.target.clone())).collect();
    // All sides are asked the same.
    let doubts = session.sides.first().map(|side| side.workload.notes()).unwrap_or_default();
    runtime::block_on(0, async {
        let mut signals = Signals::take()?;
        // A file that reaches a limit is an error like a full disk, not the end of the process.
        let _too_large = signal(SignalKind::from_raw(nix::libc::SIGXFSZ));
        let (tell, mut stop) = mpsc::channel(2);
        let mut observers = Observers(observers);
        let mut signal: Option<&'static str> = None;
        let mut signals_seen = 0_u32;
        let mut running = pin!(session.go_on(RealEnv::new(), earlier, &mut stop, &mut observers));
        let executed = loop {
            tokio::select! {
                executed = &mut running => break executed,
                came = signals.next() => {
                    signal.get_or_insert(came);
                    signals_seen += 1;
                    match signals_seen {
                        1 => screen.warn(&format!("{came}: nothing more is sent; once more to give up what is in flight")),
                        2 => screen.warn(&format!("{came}: what is in flight is given up")),
                        _ => {}
                    }
                    // The run has ended when nobody takes it.
                    let _ = tell.try_send(());
                }
            }
        };
        Ok(Measured { sides, executed, doubts, signal })
    })
}

/// Descriptors of this process beside its connections, at most.
const OTHER_DESCRIPTORS: u64 = 100;

/// Every request in flight has a connection, but for those that share one of HTTP/2: have the host allow as many.
fn allow_connections(session: &Session) -> Result<(), Failure> {
    let connections = session.schedule.iter().filter_map(|(at, step)| match step {
        Step::Pass(plan) => {
            let at_once = plan.rules.in_flight.min(plan.part.len());
            let via = &session.sides.get(*at)?.target.via;
            Some(if via.http2 && via.tls.is_none() { at_once.div_ceil(via.streams.max(1)) } else { at_once })
        }
        Step::Control(_) => None,
    });
    let wanted = connections.max().unwrap_or(0) as u64 + OTHER_DESCRIPTORS;
    let tried = || format!("cannot have {wanted} connections and files open");
    match descriptors::allow(wanted) {
        Ok(allowed) if allowed < wanted => Err(Failure::host(tried())
            .found(format!("this host allows {allowed} to a process"))
            .next("raise the hard limit (ulimit -Hn), or ask for fewer requests at once (--max-parallel)")),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::host(tried()).found(error.to_string())),
    }
}
