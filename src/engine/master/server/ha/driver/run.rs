//! The driver's loop: it accepts standbys, and does what is due.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};

use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, Listener, Net};
use crate::engine::ha::{HaEvent, HaRole};
use crate::engine::master::server::ha::driver::{HaDriver, NO_PANIC};
use crate::engine::master::server::ha::leader::replication::serve_standby;
use crate::engine::master::server::ha::{HaCommand, HaDisk};

/// Time between two checks of what changes without an event of the core.
const TICK: Duration = Duration::from_millis(20);
/// Maximum number of connections to the port for standbys that have not proved the secret yet. Further ones are closed.
const HANDSHAKES_MAX: usize = 64;
/// Time between two messages with the clients' last calls, and between two digests.
const CLIENTS_EVERY: Duration = Duration::from_secs(1);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Runs until `stopping` is true. `listener` accepts standbys.
    pub async fn run(
        self: Arc<Self>,
        mut listener: <E::Net as Net>::Listener,
        mut commands: mpsc::Receiver<HaCommand>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let port = listener.port();
        self.update(HaEvent::ListensOn { port });
        let watching = self.clone();
        self.spawn(async move { watching.watch().await });
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        // Connections must not delay the ticks, which renew the lease.
        let mut next_tick = self.env.now() + TICK;
        loop {
            let until_tick = next_tick.since(self.env.now());
            let until_timeout = self.state().core.next_timeout().since(self.env.boottime());
            tokio::select! {
                biased;
                () = wait_for_stop(&mut stopping) => return,
                () = self.env.sleep(until_timeout) => {
                    self.update(HaEvent::Timeout);
                    self.hub.set_view(self.view());
                }
                () = self.env.sleep(until_tick) => {
                    self.tick();
                    next_tick = self.env.now() + TICK;
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        if let Ok(permit) = handshakes.clone().try_acquire_owned() {
                            let driver = self.clone();
                            self.spawn(async move { serve_standby(&driver, stream, &peer, permit).await });
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a standby");
                        self.env.sleep(TICK).await;
                    }
                },
                Some(command) = commands.recv() => match command {
                    HaCommand::StepDown(answer) => {
                        self.update(HaEvent::StepDown);
                        let _ = answer.send(self.state().core.role() == HaRole::HandingOver);
                    }
                    HaCommand::Leave(answer) => {
                        let is_following = self.state().core.is_following();
                        self.update(HaEvent::Leave);
                        let _ = answer.send(is_following);
                    }
                },
            }
        }
    }

    fn tick(self: &Arc<Self>) {
        {
            let mut tasks = self.tasks.lock().expect(NO_PANIC);
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    resume_unwind(error.into_panic());
                }
            }
        }
        let (replicated, is_due, not_promoted) = {
            let core = &self.state().core;
            let replicated = core.replicated(self.hub.tail.appended());
            (replicated, core.role() == HaRole::Leader, core.not_promoted(self.env.boottime()))
        };
        if let Some(why) = not_promoted
            && self.state().repeated_messages.is_due(self.env.now(), "", &why)
        {
            tracing::warn!(why, "no master leads, and this standby is not promoted");
        }
        self.start_log_threads();
        if self.hub.gate.is_open() {
            // A range that is freed may be used again when the change cannot be lost here either.
            let log = self.hub.disk.as_ref().and_then(HaDisk::log);
            let durable = log.map_or(replicated, |log| log.writer.durable().min(replicated));
            self.shared.with_guarded(None, |guarded, _, _| guarded.state.durable(durable));
        }
        self.hub.tail.notify();
        let now = self.env.boottime();
        let is_due = is_due && {
            let mut state = self.state();
            let is_due = now >= state.clients_at && !state.links.is_empty();
            if is_due {
                state.clients_at = now + CLIENTS_EVERY;
            }
            is_due
        };
        if is_due {
            self.send_clients();
            self.send_digest();
        }
        self.hub.set_view(self.view());
    }
}

/// Waits until the value is true, or its sender is gone.
async fn wait_for_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}
