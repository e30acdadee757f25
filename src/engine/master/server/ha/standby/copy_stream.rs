//! A standby's stream: it applies what the leader sends, and acknowledges.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, deadline};
use crate::engine::ha::frame::{Frame, FrameKind};
use crate::engine::ha::message::{Changes, ClientPings, SnapshotEnd, StateDigest};
use crate::engine::ha::planted::{HaMistake, is_planted};
use crate::engine::ha::{HaEvent, HaMessage, HistoryId, MemberInfo};
use crate::engine::journal::JournalError;
use crate::engine::master::server::ha::disk::HaDisk;
use crate::engine::master::server::ha::driver::{HaDriver, drop_elsewhere};
use crate::engine::master::server::ha::standby::copy::StandbyCopy;
use crate::engine::master::server::ha::standby::deferred::DeferredFrames;
use crate::engine::master::server::ha::stream::{FrameReader, StreamError, StreamMessage};
use crate::engine::master::server::log::MasterLog;

/// The leader sends pings much more often than this.
const LEADER_SILENCE_MAX: Duration = Duration::from_secs(3);

/// Number of deferred frames that are handled before others are received.
const DEFERRED_PER_TURN: usize = 4;

/// The processing of a snapshot.
type SnapshotLoad<'a> = BoxFuture<'a, Result<(), StreamError>>;

/// A connection to a leader that this standby follows.
pub(in crate::engine::master::server::ha) struct CopyStream<'a, E, B> {
    pub driver: &'a Arc<HaDriver<E, B>>,
    pub leader: &'a MemberInfo,
    /// The leader's changes belong to this history.
    pub history: HistoryId,
}

impl<E: Env, B: ElectionBackend> CopyStream<'_, E, B> {
    /// Receives frames, and sends the messages, until the connection ends.
    pub async fn run(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        mut messages: mpsc::Receiver<StreamMessage>,
    ) -> Result<Infallible, StreamError> {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut frames = FrameReader::new(reader);
        let mut out = Vec::new();
        let (mut load, mut deferred) = (None, DeferredFrames::default());
        // Deferred frames and new ones take turns.
        let mut is_turn = true;
        loop {
            let may_continue = load.is_none() && !deferred.is_empty();
            tokio::select! {
                biased;
                message = messages.recv() => {
                    let mut next = Some(message.ok_or(StreamError::Closed)?);
                    while let Some(message) = next {
                        message.put(&mut out, 0, 0);
                        next = messages.try_recv().ok();
                    }
                }
                loaded = end_of(&mut load) => {
                    loaded?;
                    load = None;
                }
                () = std::future::ready(()), if may_continue && is_turn => {
                    is_turn = false;
                    load = self.handle_deferred(&mut deferred, &mut writer).await?;
                }
                frame = deadline(&self.driver.env, LEADER_SILENCE_MAX, frames.next()) => {
                    let frame = frame.map_err(|_| StreamError::Silent(LEADER_SILENCE_MAX))??;
                    is_turn = true;
                    if DeferredFrames::is_ordered(&frame) && (load.is_some() || !deferred.is_empty()) {
                        deferred.push(frame)?;
                    } else {
                        load = self.handle(&frame, &mut writer).await?.or(load);
                    }
                }
                () = std::future::ready(()), if may_continue => {
                    load = self.handle_deferred(&mut deferred, &mut writer).await?;
                }
            }
            if !out.is_empty() {
                self.write(&mut writer, &out).await?;
                out.clear();
            }
        }
    }

    async fn write(&self, writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), StreamError> {
        let written = deadline(&self.driver.env, LEADER_SILENCE_MAX, writer.write_all(bytes)).await;
        Ok(written.map_err(|_| StreamError::NotAccepted(LEADER_SILENCE_MAX))??)
    }

    /// Handles some deferred frames, more than one, so that they become fewer although others arrive.
    async fn handle_deferred(
        &self,
        deferred: &mut DeferredFrames,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Option<SnapshotLoad<'_>>, StreamError> {
        let mut load = None;
        for _ in 0..DEFERRED_PER_TURN {
            if load.is_some() {
                break;
            }
            let Some(frame) = deferred.pop() else { break };
            load = self.handle(&frame, writer).await?;
        }
        Ok(load)
    }

    /// Handles a frame. Returns the processing of a snapshot that is complete. The frames that follow must wait for it, but pings must be
    /// answered.
    async fn handle(
        &self,
        frame: &Frame,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Option<SnapshotLoad<'_>>, StreamError> {
        let (driver, now) = (self.driver, self.driver.env.now());
        match frame.kind {
            FrameKind::Control => {
                let message = HaMessage::decode(&frame.payload)?;
                if let HaMessage::Ping { last, .. } = message {
                    driver.state().leader_last = last;
                }
                driver.update(HaEvent::Received { from: self.leader.id, message });
            }
            FrameKind::Changes => {
                let changes = Changes::decode(&frame.payload)?;
                match driver.hub.disk.as_ref().and_then(HaDisk::log) {
                    Some(log) => self.store(frame.sequence, changes, &log).await?,
                    None => self.keep(frame.sequence, changes, writer).await?,
                }
            }
            FrameKind::SnapshotChunk => driver.copy().load(now, &frame.payload)?,
            FrameKind::SnapshotEnd => {
                let end = SnapshotEnd::decode(&frame.payload)?;
                return Ok(Some(self.load(frame.sequence, end).boxed()));
            }
            FrameKind::Clients => {
                let mut copy = driver.copy();
                for (client, age_ms) in ClientPings::decode(&frame.payload)?.0 {
                    copy.record_call(client, now - Duration::from_millis(age_ms.into()));
                }
                copy.drop_old_calls(now);
            }
            FrameKind::Digest => {
                let digest = StateDigest::decode(&frame.payload)?;
                if !driver.copy().agrees(frame.sequence, &digest) {
                    let what = format!(
                        "the copy differs from the leader's state after change {}, in the object slots from {} on, the segments or the clients",
                        frame.sequence, digest.from
                    );
                    return Err(StreamError::Damaged(what));
                }
                driver.state().digests += 1;
            }
        }
        Ok(None)
    }

    /// Acknowledges changes, of which the first is number `first`, and applies them. While they are applied, the acknowledgement is on its way;
    /// nothing comes in between that could prevent that they are applied.
    async fn keep(
        &self,
        first: u64,
        changes: Changes<'_>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), StreamError> {
        let mut out = Vec::new();
        {
            let copy = self.driver.copy();
            if !copy.is_following() {
                return Ok(());
            }
            check_order(&copy, first)?;
            let last = (first + changes.iter().count() as u64).saturating_sub(1).max(copy.applied);
            drop(copy);
            if let Some(ack) = self.driver.acknowledge(last) {
                StreamMessage::Control(ack).put(&mut out, 0, 0);
            }
        }
        let mut writing = pin!(self.write(writer, &out));
        let written = writing.as_mut().now_or_never();
        let applied = self.apply(first, changes, None)?;
        self.driver.update(HaEvent::Applied { last: applied });
        match written {
            Some(written) => written,
            None => writing.await,
        }
    }

    /// Applies changes, stores them in the data directory, and acknowledges them.
    async fn store(&self, first: u64, changes: Changes<'_>, log: &MasterLog) -> Result<(), StreamError> {
        {
            let copy = self.driver.copy();
            if !copy.is_following() {
                return Ok(());
            }
            check_order(&copy, first)?;
        }
        let applied = self.apply(first, changes, Some(log))?;
        if is_planted(HaMistake::AcknowledgedBeforeStored) {
            self.driver.update(HaEvent::Applied { last: applied });
        }
        if !log.store_copied(applied).await {
            return Err(StreamError::NotStored);
        }
        self.driver.update(HaEvent::Applied { last: applied });
        Ok(())
    }

    /// Applies changes, and passes them to the log. Returns the last change that the copy contains.
    fn apply(&self, first: u64, changes: Changes<'_>, log: Option<&MasterLog>) -> Result<u64, StreamError> {
        let (env, mut copy) = (&self.driver.env, self.driver.copy());
        let now = env.now();
        for (sequence, change) in (first..).zip(changes.iter()) {
            if copy.apply(now, sequence, change)? {
                self.driver.hub.tail.append(sequence, change);
                if let Some(log) = log {
                    log.append(sequence, change, env.unix());
                }
            }
        }
        Ok(copy.applied)
    }

    /// Checks the leader's snapshot, which contains all changes up to `last`, replaces the copy by it, and stores it.
    async fn load(&self, last: u64, end: SnapshotEnd) -> Result<(), StreamError> {
        let driver = self.driver;
        let snapshot = driver.copy().take_load();
        // Computing the digest takes long.
        let check = move || {
            let is_intact = (snapshot.objects(), snapshot.digest()) == (end.objects, end.digest);
            is_intact.then_some(snapshot)
        };
        let checked = driver.env.run_blocking(check).await;
        let differs = || StreamError::Damaged("the snapshot differs from the leader's state".to_owned());
        let snapshot = checked.ok_or_else(differs)?;
        let (before, generation) = {
            let mut copy = driver.copy();
            if !copy.is_following() {
                drop_elsewhere(&driver.env, snapshot);
                return Ok(());
            }
            (copy.replace(snapshot, self.history, last), copy.generation())
        };
        drop_elsewhere(&driver.env, before);
        driver.hub.tail.restart(last + 1);
        tracing::info!(objects = end.objects, change = last, "snapshot received from the leader");
        // It continues if this stream ends.
        let (done, stored) = oneshot::channel();
        let storing = driver.clone();
        driver.spawn(async move {
            let _ = done.send(storing.store_copy(generation, last).await);
        });
        match stored.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(StreamError::NotStored),
        }
    }
}

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Stores a copy that has replaced another one in the data directory, if there is one, and acknowledges its changes, up to `last`. No
    /// change is applied to it in the meantime.
    async fn store_copy(self: &Arc<Self>, generation: u64, last: u64) -> Result<(), JournalError> {
        let (member, discarded) = (self.state().core.me().id, self.copies_discarded());
        let ended = match &self.hub.disk {
            Some(disk) => Some(disk.end_log().await),
            None => None,
        };
        let begun = self.use_disk(move |disk, driver| {
            let (now, format) = (driver.env.now(), driver.settings.format);
            let note = {
                let mut copy = driver.copy();
                if copy.generation() != generation {
                    return Ok(());
                }
                copy.following().map(|standby| standby.begin_snapshot(now, format));
                copy.note(member)
            };
            let slices = |slots| {
                let mut copy = driver.copy();
                if copy.generation() == generation { copy.following()?.snapshot_slots(slots) } else { None }
            };
            let Some(ended) = ended else { return Ok(()) };
            disk.begin(ended, &driver.env, slices, last, note, discarded)
        });
        begun.await?;
        let is_current = self.copy().stored(generation);
        if is_current {
            self.update(HaEvent::Applied { last });
        }
        Ok(())
    }
}

/// The end of the processing of a snapshot, if there is one.
async fn end_of(load: &mut Option<SnapshotLoad<'_>>) -> Result<(), StreamError> {
    match load {
        Some(load) => load.await,
        None => std::future::pending().await,
    }
}

fn check_order(copy: &StandbyCopy, first: u64) -> Result<(), StreamError> {
    if first > copy.applied + 1 { Err(StreamError::Order) } else { Ok(()) }
}
