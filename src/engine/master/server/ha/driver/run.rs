//! The driver's loop.

use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;

use crate::server::ha::HaCommand;
use crate::server::ha::driver::acceptor::accept_standbys;
use crate::server::ha::driver::etcd::watch_records;
use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::driver::{HaDriver, StreamOf};
use crate::server::ha::standby::leader_stream::{FollowStep, FollowedLeader, StreamStep};
use crate::server::ha::stream::StreamError;
use mcctl_base::Mono;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::HaEvent;
use mcctl_sys::env::{Env, Listener, Net};

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Runs until `stopping` is true. `listener` accepts standbys.
    pub(crate) async fn run(
        mut self,
        listener: <E::Net as Net>::Listener,
        mut commands: mpsc::Receiver<HaCommand>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let port = listener.port();
        self.spawn(accept_standbys(self.context.clone(), listener));
        self.spawn(watch_records(self.backend.clone(), self.context.clone()));
        self.update(HaEvent::ListensOn { port });
        let mut stopped = pin!(wait_for_stop(&mut stopping));
        let mut timer = LoopTimer::default();
        loop {
            let now = self.context.env.now();
            let boottime = self.context.env.boottime();
            self.context.hub.note_run(boottime);
            self.do_due(now, boottime);
            self.handle_deferred();
            self.refresh_view();
            let is_busy = self.has_deferred();
            timer.set(&self.context.env, now + self.until_due(now, boottime));
            tokio::select! {
                biased;
                () = &mut stopped => return,
                Some(event) = self.queue.recv() => self.handle(event),
                Some(command) = commands.recv() => self.obey(command),
                step = next_step(&mut self.followed) => self.handle_step(step),
                (stream, frame) = self.standbys.next() => self.handle_standby_frame(stream, frame),
                Some(ended) = self.tasks.join_next() => resume_panic(ended),
                () = std::future::ready(()), if is_busy => {}
                () = timer.wait() => {}
            }
        }
    }

    /// Performs the work that is due at this time, on both clocks.
    fn do_due(&mut self, now: Mono, boottime: Mono) {
        if self.core.next_timeout() <= boottime {
            self.update(HaEvent::Timeout);
        }
        if now >= self.next_tick {
            self.tick(now);
        }
        if let Some(FollowedLeader { step: FollowStep::Waiting(at), .. }) = &self.followed
            && now >= *at
        {
            self.connect();
        }
    }

    /// The time until something is due.
    fn until_due(&self, now: Mono, boottime: Mono) -> Duration {
        let until_timeout = self.core.next_timeout().since(boottime);
        let until_attempt = match &self.followed {
            Some(FollowedLeader { step: FollowStep::Waiting(at), .. }) => at.since(now),
            _ => Duration::MAX,
        };
        until_timeout.min(self.next_tick.since(now)).min(until_attempt)
    }

    /// Performs the request of another thread.
    fn obey(&mut self, command: HaCommand) {
        match command {
            HaCommand::StepDown { is_ending, answer } => {
                self.hand_over_requests.push(answer);
                self.update(HaEvent::StepDown { is_ending });
            }
            HaCommand::Leave(answer) => {
                let is_following = self.core.is_following();
                self.update(HaEvent::Leave);
                let _ = answer.send(is_following);
            }
        }
    }

    fn handle(&mut self, event: DriverEvent<StreamOf<E>>) {
        match event {
            DriverEvent::Core(event) => self.update(event),
            DriverEvent::LeaseRequested { event, error } => {
                self.report_request(error.as_ref());
                self.update(event);
            }
            DriverEvent::RecordsRead { sent, seen } => self.end_observation(sent, seen),
            DriverEvent::RecordsChanged => self.observe(),
            DriverEvent::Elected { txn, outcome } => self.end_election(txn, outcome),
            DriverEvent::SyncWritten { txn, outcome } => self.end_sync_write(txn, outcome),
            DriverEvent::Connected { attempt, result } => self.handle_connection(attempt, result),
            DriverEvent::HistoryNoted { attempt, opening, result } => self.end_note(attempt, opening, result),
            DriverEvent::Probed { attempt, is_gone, problem } => self.end_probe(attempt, is_gone, problem),
            DriverEvent::SnapshotChecked(checked) => self.use_snapshot(checked),
            DriverEvent::CopyStored { copy, result } => self.end_store(copy, result),
            DriverEvent::CopyPrepared(prepared) => self.end_prepare(*prepared),
            DriverEvent::CopyResumed { generation, standby } => self.end_resume(generation, standby),
            DriverEvent::UseCopy(work) => work(&mut self.copy),
            DriverEvent::HandshakeFailed { peer, error } => self.report_handshake(&peer, &error),
            DriverEvent::StandbyAsked { peer, hello, answer } => {
                let _ = answer.send(self.answer_standby(&peer, &hello));
            }
            DriverEvent::StandbyAnswered(answered) => self.open_standby(*answered),
            DriverEvent::StandbyEnded { stream, error } => self.close_standby(stream, &error),
        }
    }
}

/// A timer that is set again only for an earlier time, because most rounds of the loop have the
/// same one.
#[derive(Default)]
struct LoopTimer(Option<(Mono, BoxFuture<'static, ()>)>);

impl LoopTimer {
    /// Ends the next wait at `at`, or earlier.
    fn set<E: Env>(&mut self, env: &E, at: Mono) {
        if self.0.as_ref().is_none_or(|(earliest, _)| at < *earliest) {
            let clock = env.clone();
            let sleep = async move { clock.sleep(at.since(clock.now())).await };
            self.0 = Some((at, sleep.boxed()));
        }
    }

    async fn wait(&mut self) {
        if let Some((_, sleep)) = &mut self.0 {
            sleep.await;
        }
        self.0 = None;
    }
}

/// Waits until the value is true, or its sender was dropped.
async fn wait_for_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// The next step of the stream from the leader, if there is one.
async fn next_step<S: AsyncRead + AsyncWrite + Unpin>(
    followed: &mut Option<FollowedLeader<S>>,
) -> Result<StreamStep, StreamError> {
    match followed.as_mut().and_then(FollowedLeader::stream) {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Continues the panic of a task.
fn resume_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        resume_unwind(error.into_panic());
    }
}
