//! The data that a standby stores in its data directory: changes, and copies that have replaced
//! others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;

use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::driver::{CopyStep, HaDriver};
use crate::server::ha::standby::copy_to_store::CopyToStore;
use crate::server::ha::standby::load::{CheckedSnapshot, check_snapshot};
use crate::server::ha::stream::StreamError;
use crate::server::log::MasterLog;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::HaEvent;
use mcctl_election::ha::message::SnapshotEnd;
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_journal::JournalError;
use mcctl_sys::env::Env;

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Stores the changes up to `last`, which are applied, and acknowledges them.
    pub(super) fn store_changes(&mut self, last: u64, log: Arc<MasterLog>) {
        if is_planted(HaMistake::AcknowledgedBeforeStored) {
            self.update(HaEvent::Applied { last });
        }
        if log.try_store_copied(last) {
            self.update(HaEvent::Applied { last });
        } else if let Some(stream) = self.stream() {
            stream.wait_stored(last, async move { log.store_copied(last).await }.boxed());
        }
    }

    /// Handles the result of storing the changes that the stream has waited for.
    pub(super) fn end_wait(&mut self, is_stored: bool) -> Result<(), StreamError> {
        let Some(last) = self.stream().and_then(|stream| stream.end_wait()) else { return Ok(()) };
        if !is_stored {
            return Err(StreamError::NotStored);
        }
        self.update(HaEvent::Applied { last });
        Ok(())
    }

    /// Handles the end of the leader's snapshot, which contains all changes up to `last`.
    pub(super) fn check_snapshot(&mut self, last: u64, end: SnapshotEnd) {
        let Some(stream) = self.stream() else { return };
        stream.is_loading = true;
        let number = stream.number;
        let snapshot = self.copy.take_load();
        let env = self.context.env.clone();
        let events = self.context.events.clone();
        self.spawn(async move {
            let now = env.now();
            let checked = env.run_blocking(move || check_snapshot(snapshot, end, number, last, now)).await;
            let _ = events.send(DriverEvent::SnapshotChecked(checked));
        });
    }

    /// Replaces the copy by a snapshot that was checked, and stores it.
    pub(super) fn use_snapshot(&mut self, checked: CheckedSnapshot) {
        let CheckedSnapshot { stream: number, last, objects, snapshot } = checked;
        let is_following = self.copy.is_following();
        let Some(stream) = self.stream().filter(|stream| stream.number == number) else {
            return self.context.drop_elsewhere(snapshot);
        };
        let Some(snapshot) = snapshot else {
            let differs = "the snapshot differs from the leader's state".to_owned();
            return self.end_stream(&StreamError::Damaged(differs));
        };
        if !is_following {
            stream.is_loading = false;
            return self.context.drop_elsewhere(snapshot);
        }
        let history = stream.history;
        let before = self.copy.replace(snapshot, history, last);
        self.context.drop_elsewhere(before);
        self.publish_metadata();
        if let Some(id) = self.replacement.take() {
            self.update(HaEvent::Replaced { id });
        }
        self.context.hub.tail.restart(last + 1);
        tracing::info!(objects, change = last, "snapshot received from the leader");
        self.store_copy(last);
    }

    /// Stores a copy that has replaced another one in the data directory, if there is one. No
    /// change is applied to it in the meantime. Storing continues if the stream ends.
    fn store_copy(&mut self, last: u64) {
        if self.context.hub.disk.is_none() {
            return self.end_load(last);
        }
        let Some(mut copy) = self.copy.begin_store(self.core.me().id) else { return };
        let number = self.context.number_note();
        let context = self.context.clone();
        self.spawn(async move {
            let Some(disk) = &context.hub.disk else { return };
            let ended = disk.end_log().await;
            let storing = context.clone();
            let store = move || {
                let Some(disk) = &storing.hub.disk else { return (copy, Ok(())) };
                let stored = copy.store(disk, ended, &storing.env, storing.settings.format, number);
                (copy, stored.or_else(|error| disk.fail(error)))
            };
            let (copy, result) = context.env.run_blocking(store).await;
            let _ = context.events.send(DriverEvent::CopyStored { copy, result });
        });
    }

    /// Handles the result of storing a copy that has replaced another one: it is stored, cannot be
    /// stored, or no longer needs to be.
    pub(super) fn end_store(&mut self, copy: CopyToStore, result: Result<(), JournalError>) {
        let last = copy.applied;
        let is_cancelled = copy.is_cancelled.load(Ordering::Relaxed);
        if result.is_err() {
            // The process ends.
            self.context.drop_elsewhere(copy);
            if self.stream().is_some_and(|stream| stream.is_loading) {
                self.end_stream(&StreamError::NotStored);
            }
            return;
        }
        if let Err(discarded) = self.copy.end_store(copy) {
            return self.context.drop_elsewhere(discarded);
        }
        if is_cancelled && self.copy_next.is_none() {
            // The copy was to be made ready to serve, but another master leads.
            return self.store_copy(last);
        }
        self.end_load(last);
        if let Some(CopyStep::Prepare { lossy }) = self.copy_next.take() {
            self.prepare(lossy);
            self.run_core();
        }
    }

    /// Ends the loading of a snapshot, which is now the copy and is stored. The frames after it are
    /// handled next.
    fn end_load(&mut self, last: u64) {
        if let Some(stream) = self.stream() {
            stream.is_loading = false;
        }
        self.update(HaEvent::Applied { last });
    }
}
