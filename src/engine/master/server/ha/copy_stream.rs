//! A standby's stream: it applies what the leader sends, and acknowledges.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, deadline};
use crate::engine::ha::frame::{Frame, FrameKind};
use crate::engine::ha::message::{Changes, ClientPings, SnapshotEnd, StateDigest};
use crate::engine::ha::{HaMessage, HistoryId, MemberInfo};
use crate::engine::master::server::ha::copy::StandbyCopy;
use crate::engine::master::server::ha::disk::HaDisk;
use crate::engine::master::server::ha::driver::HaDriver;
use crate::engine::master::server::ha::stream::{FrameReader, StreamError, StreamMessage};
use crate::engine::master::server::log::MasterLog;

/// The leader sends pings much more often than this.
const LEADER_SILENCE_MAX: Duration = Duration::from_secs(3);

/// A connection to a leader that this standby follows.
pub(super) struct CopyStream<'a, E, B> {
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
        loop {
            tokio::select! {
                frame = deadline(&self.driver.env, LEADER_SILENCE_MAX, frames.next()) => {
                    let frame = frame.map_err(|_| StreamError::Silent(LEADER_SILENCE_MAX))??;
                    self.handle(&frame, &mut writer).await?;
                }
                message = messages.recv() => {
                    let mut next = Some(message.ok_or(StreamError::Closed)?);
                    while let Some(message) = next {
                        message.put(&mut out, 0, 0);
                        next = messages.try_recv().ok();
                    }
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

    async fn handle(&self, frame: &Frame, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), StreamError> {
        let (driver, now) = (self.driver, self.driver.env.now());
        match frame.kind {
            FrameKind::Control => {
                let message = HaMessage::decode(&frame.payload)?;
                if let HaMessage::Ping { last, .. } = message {
                    driver.state().leader_last = last;
                }
                driver.update(|core, now| core.receive(now, self.leader.id, message));
            }
            FrameKind::Changes => {
                let changes = Changes::decode(&frame.payload)?;
                match driver.hub.disk.as_ref().and_then(HaDisk::log) {
                    Some(log) => self.store(frame.sequence, changes, &log).await?,
                    None => self.keep(frame.sequence, changes, writer).await?,
                }
            }
            FrameKind::SnapshotChunk => driver.copy().load(now, &frame.payload)?,
            FrameKind::SnapshotEnd => self.load(frame.sequence, SnapshotEnd::decode(&frame.payload)?).await?,
            FrameKind::Clients => {
                let mut copy = driver.copy();
                for (client, age_ms) in ClientPings::decode(&frame.payload)?.0 {
                    copy.heard(client, now - Duration::from_millis(age_ms.into()));
                }
                copy.forget_old_calls(now);
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
        Ok(())
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
            if let Some(ack) = self.driver.state().core.acknowledge(last) {
                StreamMessage::Control(ack).put(&mut out, 0, 0);
            }
        }
        let mut writing = pin!(self.write(writer, &out));
        let written = writing.as_mut().now_or_never();
        let applied = self.apply(first, changes, None)?;
        self.driver.update(|core, now| core.applied(now, applied));
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
        if !log.store_copied(applied).await {
            return Err(StreamError::NotStored);
        }
        self.driver.update(|core, now| core.applied(now, applied));
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

    /// Replaces the copy by the leader's snapshot, which contains all changes up to `last`.
    async fn load(&self, last: u64, end: SnapshotEnd) -> Result<(), StreamError> {
        let (driver, SnapshotEnd { objects, digest }) = (self.driver, end);
        if !driver.copy().loaded(self.history, last, objects, digest) {
            return Err(StreamError::Damaged("the snapshot differs from the leader's state".to_owned()));
        }
        driver.hub.tail.restart(last + 1);
        tracing::info!(objects, change = last, "snapshot received from the leader");
        // Nothing is applied in the meantime.
        let member = driver.state().core.me().id;
        let discarded = driver.copies_discarded();
        let begun = driver.use_disk(move |disk, driver| {
            let (now, format) = (driver.env.now(), driver.settings.format);
            let note = {
                let mut copy = driver.copy();
                copy.following().map(|standby| standby.begin_snapshot(now, format));
                copy.note(member)
            };
            let slices = |slots| driver.copy().following()?.snapshot_slots(slots);
            disk.begin(&driver.env, slices, last, note, discarded)
        });
        begun.await.map_err(|_| StreamError::NotStored)?;
        driver.update(|core, now| core.applied(now, last));
        Ok(())
    }
}

fn check_order(copy: &StandbyCopy, first: u64) -> Result<(), StreamError> {
    if first > copy.applied + 1 { Err(StreamError::Order) } else { Ok(()) }
}
