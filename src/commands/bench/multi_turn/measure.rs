//! Carry out a session between signals.

use std::pin::pin;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::commands::bench::multi_turn::live::Screen;
use crate::commands::error::Failure;
use crate::commands::runtime::{self, Signals};
use crate::engine::env::RealEnv;
use crate::engine::load::session::{Before, Executed, Observer, Observers, Session};
use crate::engine::load::target::Target;

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
    let sides = session.sides.iter().map(|side| (side.name.clone(), side.target.clone())).collect();
    runtime::block_on(0, async {
        let mut signals = Signals::take()?;
        // A file that reaches a limit is an error like a full disk, not the end of the process.
        let _too_large = signal(SignalKind::from_raw(nix::libc::SIGXFSZ));
        let (tell, mut stop) = mpsc::channel(2);
        let mut observers = Observers(observers);
        let mut signal = None;
        let mut running = pin!(session.go_on(RealEnv::new(), earlier, &mut stop, &mut observers));
        let executed = loop {
            tokio::select! {
                executed = &mut running => break executed,
                came = signals.next() => {
                    signal = Some(came);
                    screen.warn(&format!("{came}: nothing more is sent; once more to give up what is in flight"));
                    // The run has ended when nobody takes it.
                    let _ = tell.try_send(());
                }
            }
        };
        Ok(Measured { sides, executed, doubts: Vec::new(), signal })
    })
}
