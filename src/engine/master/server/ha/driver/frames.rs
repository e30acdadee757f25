//! The frames from the leader: changes are acknowledged and applied, and pings are answered.

use std::time::Duration;

use crate::server::ha::disk::HaDisk;
use crate::server::ha::driver::{HaDriver, StreamOf};
use crate::server::ha::standby::deferred::DeferredFrames;
use crate::server::ha::standby::leader_stream::{FollowedLeader, LeaderStream, StreamStep};
use crate::server::ha::stream::StreamError;
use crate::server::log::MasterLog;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::frame::{Frame, FrameKind};
use mcctl_election::ha::message::{Changes, ClientPings, SnapshotEnd, StateDigest};
use mcctl_election::ha::{HaEvent, HaMessage};
use mcctl_sys::env::Env;

/// Number of deferred frames that are handled before others are received.
const DEFERRED_PER_TURN: usize = 4;

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// The stream from the leader, if there is one.
    pub(super) fn stream(&mut self) -> Option<&mut LeaderStream<StreamOf<E>>> {
        self.followed.as_mut().and_then(FollowedLeader::stream)
    }

    /// Handles the next step of the stream from the leader.
    pub(super) fn handle_step(&mut self, step: Result<StreamStep, StreamError>) {
        let handled = match step {
            Ok(StreamStep::Written) => Ok(()),
            Ok(StreamStep::Stored(is_stored)) => self.end_wait(is_stored),
            Ok(StreamStep::Frame(frame)) => self.receive(frame),
            Err(error) => Err(error),
        };
        if let Err(error) = handled.and_then(|()| self.flush()) {
            self.end_stream(&error);
        }
    }

    /// Sends the messages that wait for the stream from the leader, if the connection accepts them
    /// at once.
    fn flush(&mut self) -> Result<(), StreamError> {
        self.stream().map_or(Ok(()), LeaderStream::flush)
    }

    fn receive(&mut self, frame: Frame) -> Result<(), StreamError> {
        // As many bytes as a leader of the same size keeps for a slow standby.
        let bytes_max = self.context.hub.tail.bytes_max();
        let Some(stream) = self.stream() else { return Ok(()) };
        if DeferredFrames::is_ordered(&frame) && (stream.is_waiting() || !stream.deferred.is_empty()) {
            return stream.deferred.push(frame, bytes_max);
        }
        self.handle_frame(&frame)
    }

    /// Whether deferred frames can be handled now.
    pub(super) fn has_deferred(&mut self) -> bool {
        self.stream().is_some_and(|stream| stream.may_continue())
    }

    /// Handles more than one deferred frame, so that their number decreases although others arrive.
    pub(super) fn handle_deferred(&mut self) {
        for _ in 0..DEFERRED_PER_TURN {
            let Some(frame) = self.stream().and_then(LeaderStream::pop_deferred) else { return };
            if let Err(error) = self.handle_frame(&frame) {
                return self.end_stream(&error);
            }
        }
    }

    fn handle_frame(&mut self, frame: &Frame) -> Result<(), StreamError> {
        let now = self.context.env.now();
        match frame.kind {
            FrameKind::Control => {
                let message = HaMessage::decode(&frame.payload)?;
                let Some(followed) = &self.followed else { return Ok(()) };
                let from = followed.leader.id;
                if let HaMessage::Ping { last, .. } = message {
                    self.leader_last = last;
                }
                self.update(HaEvent::Received { from, message });
            }
            FrameKind::Changes => self.take_changes(frame.sequence, Changes::decode(&frame.payload)?)?,
            FrameKind::SnapshotChunk => self.copy.load(now, &frame.payload)?,
            FrameKind::SnapshotEnd => self.check_snapshot(frame.sequence, SnapshotEnd::decode(&frame.payload)?),
            FrameKind::Clients => {
                for (client, age_ms) in ClientPings::decode(&frame.payload)?.0 {
                    self.copy.record_call(client, now - Duration::from_millis(age_ms.into()));
                }
                self.copy.drop_old_calls(now);
            }
            FrameKind::Digest => self.compare_digest(frame.sequence, &frame.payload)?,
        }
        Ok(())
    }

    fn compare_digest(&mut self, sequence: u64, payload: &[u8]) -> Result<(), StreamError> {
        // Digests of other versions have other lengths.
        if !self.stream().is_some_and(|stream| stream.has_same_digest) {
            return Ok(());
        }
        let digest = StateDigest::decode(payload)?;
        if !self.copy.agrees(sequence, &digest) {
            let what = format!(
                "the copy differs from the leader's state after change {sequence}, in the object slots from {} on, \
                 in the segments or in the clients",
                digest.part.objects.from
            );
            return Err(StreamError::Damaged(what));
        }
        self.digests += 1;
        Ok(())
    }

    /// Handles changes, of which the first is number `first`.
    fn take_changes(&mut self, first: u64, changes: Changes<'_>) -> Result<(), StreamError> {
        if !self.copy.is_following() {
            return Ok(());
        }
        if first > self.copy.applied + 1 {
            return Err(StreamError::Order);
        }
        match self.context.hub.disk.as_ref().and_then(HaDisk::log) {
            Some(log) => {
                let last = self.apply(first, changes, Some(&log))?;
                self.store_changes(last, log);
                Ok(())
            }
            None => self.keep_changes(first, changes),
        }
    }

    /// Acknowledges changes, and applies them while the acknowledgement is being sent. This thread
    /// handles nothing else between the two. If they do not fit the copy, it is discarded, and its
    /// ID with it.
    fn keep_changes(&mut self, first: u64, changes: Changes<'_>) -> Result<(), StreamError> {
        let last = (first + changes.iter().count() as u64).saturating_sub(1).max(self.copy.applied);
        self.update(HaEvent::ChangesReceived { last });
        let flushed = self.flush();
        let last = self.apply(first, changes, None)?;
        self.update(HaEvent::Applied { last });
        flushed
    }

    /// Applies changes, and passes them to the log. Returns the last change that the copy contains.
    fn apply(&mut self, first: u64, changes: Changes<'_>, log: Option<&MasterLog>) -> Result<u64, StreamError> {
        let env = &self.context.env;
        let now = env.now();
        for (sequence, change) in (first..).zip(changes.iter()) {
            if self.copy.apply(now, sequence, change)? {
                self.context.hub.tail.append(sequence, change);
                if let Some(log) = log {
                    log.append(sequence, change, env.unix());
                }
            }
        }
        Ok(self.copy.applied)
    }
}
