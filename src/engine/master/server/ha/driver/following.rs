//! A standby follows its leader: it connects, opens the stream, and determines why it ended.

use std::time::Duration;

use crate::digest::DIGEST_VERSION;
use crate::record::DATA_FORMAT_NEWEST;
use crate::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::driver::{HaDriver, StreamOf};
use crate::server::ha::handshake::{ContinuedSettings, Hello, StreamStart};
use crate::server::ha::standby::connection::{Opening, connect, refuses};
use crate::server::ha::standby::leader_stream::{FollowStep, FollowedLeader, LeaderStream};
use crate::server::ha::stream::StreamError;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::{HaEvent, MemberId};
use mcctl_journal::JournalError;
use mcctl_sys::env::Env;

/// Pause before the next attempt to connect.
const RETRY: Duration = Duration::from_millis(50);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Connects to the leader, if the copy permits it.
    pub(super) fn connect(&mut self) {
        if !self.copy.is_following() {
            return self.wait_to_connect();
        }
        let Some(followed) = &self.followed else { return };
        let at = followed.leader.replication.clone();
        let hello = self.hello();
        let context = self.context.clone();
        self.begin_attempt(async move |attempt| {
            // The leader counts the changes in the hello as acknowledged.
            let result = if context.wait_stored(hello.applied).await {
                connect(&context.env, &at, &context.settings.secret, &hello).await
            } else {
                Err(StreamError::NotStored.to_string())
            };
            DriverEvent::Connected { attempt, result }
        });
    }

    /// This standby and its copy, for the leader. A copy that is to be replaced does not count.
    fn hello(&self) -> Hello {
        let me = self.core.me();
        let (standby, history, applied) = match self.replacement {
            Some(id) => (id, None, 0),
            None => (me.id, self.copy.history, self.copy.applied),
        };
        Hello {
            cluster: self.context.settings.cluster.clone(),
            standby,
            history,
            applied,
            format: DATA_FORMAT_NEWEST.number(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            rpc: Some(me.rpc.to_string()),
            settings: Some(ContinuedSettings::of(&self.copy.policy)),
            digest: DIGEST_VERSION,
            metadata: self.context.settings.metadata.clone(),
        }
    }

    /// Runs a task for the leader that this standby follows. `work` is passed the number of the
    /// attempt, for the event that it returns.
    fn begin_attempt<F>(&mut self, work: impl FnOnce(u64) -> F)
    where
        F: Future<Output = DriverEvent<StreamOf<E>>> + Send + 'static,
    {
        self.attempts += 1;
        let attempt = self.attempts;
        let work = work(attempt);
        let events = self.context.events.clone();
        let task = self.spawn(async move {
            // An error means that the driver has ended.
            let _ = events.send(work.await);
        });
        if let Some(followed) = &mut self.followed {
            followed.step = FollowStep::Busy { attempt, task };
        }
    }

    /// The leader, if this attempt is still the current one.
    fn attempted(&mut self, number: u64) -> Option<&mut FollowedLeader<StreamOf<E>>> {
        let is_current = |step: &FollowStep<_>| matches!(step, FollowStep::Busy { attempt, .. } if *attempt == number);
        self.followed.as_mut().filter(|followed| is_current(&followed.step))
    }

    fn wait_to_connect(&mut self) {
        if let Some(followed) = &mut self.followed {
            followed.step = FollowStep::Waiting(self.context.env.now() + RETRY);
        }
    }

    /// Connects again, after a pause, because of this problem.
    fn retry(&mut self, problem: String) {
        self.wait_to_connect();
        if let Some(followed) = &mut self.followed {
            followed.report(problem);
        }
    }

    /// Handles the end of an attempt to connect.
    pub(super) fn handle_connection(&mut self, attempt: u64, result: Result<Opening<StreamOf<E>>, String>) {
        let is_following = self.copy.is_following();
        let Some(followed) = self.attempted(attempt) else { return };
        let opening = match result {
            Ok(opening) => opening,
            Err(problem) => return self.retry(problem),
        };
        // The answer is about a copy that follows.
        if !is_following {
            return self.wait_to_connect();
        }
        let leader = followed.leader.id;
        if opening.welcome.leader == leader {
            self.context.hub.set_leader_metadata(leader, opening.welcome.metadata.clone());
        }
        match &opening.welcome.start {
            StreamStart::Refused(why) => self.retry(format!("the leader refuses: {why}")),
            _ if opening.welcome.leader != leader => {
                self.retry("the leader has restarted with a new copy".to_owned());
            }
            StreamStart::Snapshot if !self.copy.is_replaceable() && self.replacement.is_none() => {
                self.begin_replacement()
            }
            StreamStart::Snapshot => self.open_stream(opening),
            StreamStart::Changes => self.continue_history(opening),
        }
    }

    /// Prepares to replace the copy by the leader's snapshot. The new copy must not be confused
    /// with the one in the sync record, so it has a new ID. Until it is complete, the old copy is
    /// kept with its own ID: it may be the only one with its changes.
    fn begin_replacement(&mut self) {
        tracing::info!("this copy differs from the leader's history or is too old: a snapshot replaces it");
        self.replacement = Some(MemberId(self.context.env.rng()));
        self.wait_to_connect();
    }

    /// Sets the history of the following changes. The data directory stores it before it contains
    /// them.
    fn continue_history(&mut self, opening: Opening<StreamOf<E>>) {
        let history = opening.welcome.history;
        self.copy.is_uncertain = false;
        if self.copy.history == Some(history) {
            return self.open_stream(opening);
        }
        if self.context.hub.disk.is_none() {
            self.copy.continue_history(history);
            return self.open_stream(opening);
        }
        let note = CopyNote::new(self.core.me().id, Some(history), self.copy.parent_of_next(), CopyStored::OnDisk);
        let number = self.context.number_note();
        let context = self.context.clone();
        self.begin_attempt(async move |attempt| {
            let result = context.use_disk(move |disk| disk.store_note(note, true, number)).await;
            DriverEvent::HistoryNoted { attempt, opening, result }
        });
    }

    /// Handles the result of storing the history.
    pub(super) fn end_note(&mut self, attempt: u64, opening: Opening<StreamOf<E>>, result: Result<(), JournalError>) {
        if self.attempted(attempt).is_none() {
            return;
        }
        match result {
            Ok(()) if !self.copy.is_following() => self.wait_to_connect(),
            Ok(()) => {
                self.copy.continue_history(opening.welcome.history);
                self.open_stream(opening);
            }
            Err(error) => self.retry(error.to_string()),
        }
    }

    fn open_stream(&mut self, opening: Opening<StreamOf<E>>) {
        let Some(followed) = &mut self.followed else { return };
        let leader = followed.leader.id;
        let Opening { stream, welcome, applied } = opening;
        let rpc = &followed.leader.rpc;
        match welcome.start {
            StreamStart::Changes => {
                tracing::info!(change = applied, "following leader {rpc} from this copy's last change")
            }
            _ => tracing::info!("following leader {rpc}, which sends a snapshot"),
        }
        if self.context.settings.metadata.is_some() && welcome.metadata.is_none() {
            tracing::warn!(
                "leader {rpc} runs without --enable-http-metadata-server: this standby cannot pass on writes of metadata records"
            );
        }
        self.attempts += 1;
        let stream = LeaderStream::new(self.attempts, stream, &welcome);
        followed.step = FollowStep::Streaming(Box::new(stream));
        let is_replacing = self.replacement.is_some();
        self.events.push_back(HaEvent::StreamOpened { leader, is_replacing });
        if welcome.start == StreamStart::Changes {
            // An earlier stream may have ended before its last changes were stored, so the core
            // does not count them yet.
            self.events.push_back(HaEvent::Applied { last: applied });
        }
        self.run_core();
    }

    /// Handles the end of the stream from the leader. If the leader's process may have ended, its
    /// port is probed.
    pub(super) fn end_stream(&mut self, error: &StreamError) {
        let Some(FollowedLeader { leader, step: FollowStep::Streaming(_), .. }) = &self.followed else { return };
        let rpc = leader.rpc.clone();
        let load = self.copy.cancel_load();
        self.context.drop_elsewhere(load);
        let problem = error.to_string();
        let is_copy_damaged = matches!(error, StreamError::Apply(_) | StreamError::Damaged(_));
        if is_copy_damaged && self.replacement.is_some() {
            tracing::error!(%error, "the snapshot of the leader cannot be used: this copy is kept");
            self.retry(problem);
            return self.update(HaEvent::StreamClosed { process_gone: false });
        }
        if is_copy_damaged {
            tracing::error!(%error, "this standby's copy of the state is damaged: it is discarded");
            self.retry(problem);
            return self.update(HaEvent::CopyDamaged);
        }
        if !error.has_peer_closed() {
            self.retry(problem);
            return self.update(HaEvent::StreamClosed { process_gone: false });
        }
        let env = self.context.env.clone();
        self.begin_attempt(async move |attempt| {
            let is_gone = refuses(&env, &rpc).await;
            DriverEvent::Probed { attempt, is_gone, problem }
        });
    }

    /// Handles the result of probing the port of a leader whose stream has ended.
    pub(super) fn end_probe(&mut self, attempt: u64, is_gone: bool, problem: String) {
        if self.attempted(attempt).is_some() {
            self.retry(problem);
            self.update(HaEvent::StreamClosed { process_gone: is_gone });
        }
    }
}
