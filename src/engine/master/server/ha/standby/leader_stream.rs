//! The leader that a standby follows, and the stream from it.

use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::AbortHandle;

use crate::digest::DIGEST_VERSION;
use crate::server::ha::handshake::Welcome;
use crate::server::ha::standby::deferred::DeferredFrames;
use crate::server::ha::stream::{FrameReader, StreamError, StreamMessage};
use mcctl_base::Mono;
use mcctl_election::ha::frame::Frame;
use mcctl_election::ha::{HaMessage, HistoryId, MemberInfo};

/// The leader sends pings much more often than this.
const LEADER_SILENCE_MAX: Duration = Duration::from_secs(3);

/// The leader that a standby follows.
pub(in crate::server::ha) struct FollowedLeader<S> {
    pub leader: MemberInfo,
    /// The last problem that was logged.
    last_problem: String,
    pub step: FollowStep<S>,
}

/// The stage of following a leader.
pub(in crate::server::ha) enum FollowStep<S> {
    /// The next attempt begins at this time.
    Waiting(Mono),
    /// A task connects, notes the history, or probes the leader's port. Results of other attempts
    /// have no effect.
    Busy {
        attempt: u64,
        task: AbortHandle,
    },
    Streaming(Box<LeaderStream<S>>),
}

impl<S> FollowedLeader<S> {
    /// A leader to which the first attempt to connect begins at `at`.
    pub(crate) fn new(leader: MemberInfo, at: Mono) -> FollowedLeader<S> {
        FollowedLeader { leader, last_problem: String::new(), step: FollowStep::Waiting(at) }
    }

    /// Logs why the standby is not connected, unless the last problem was the same.
    pub(crate) fn report(&mut self, problem: String) {
        if problem != self.last_problem {
            let leader = &self.leader.rpc;
            tracing::warn!("not connected to leader {leader}: {problem}; trying again");
            self.last_problem = problem;
        }
    }

    /// The stream from the leader, if there is one.
    pub(crate) fn stream(&mut self) -> Option<&mut LeaderStream<S>> {
        match &mut self.step {
            FollowStep::Streaming(stream) => Some(stream),
            FollowStep::Waiting(_) | FollowStep::Busy { .. } => None,
        }
    }
}

impl<S> Drop for FollowedLeader<S> {
    fn drop(&mut self) {
        if let FollowStep::Busy { task, .. } = &self.step {
            task.abort();
        }
    }
}

/// The next step of a stream.
pub(in crate::server::ha) enum StreamStep {
    Frame(Frame),
    /// Queued messages were sent, perhaps not all of them.
    Written,
    /// The changes that were applied last are stored (`true`), or cannot be.
    Stored(bool),
}

/// The changes up to `last` are applied, and wait for the data directory.
struct StoreWait {
    last: u64,
    stored: BoxFuture<'static, bool>,
}

/// A connection to a leader.
pub(in crate::server::ha) struct LeaderStream<S> {
    /// The number of the stream.
    pub number: u64,
    /// The leader's changes belong to this history.
    pub history: HistoryId,
    /// The leader computes digests like this release.
    pub has_same_digest: bool,
    frames: FrameReader<S>,
    /// Messages, of which the first `sent` bytes were sent. Nothing is received until all bytes
    /// were sent.
    out: Vec<u8>,
    sent: usize,
    /// A snapshot is complete, and is being checked and stored. The frames that follow must wait
    /// for it, but pings are answered.
    pub is_loading: bool,
    pub deferred: DeferredFrames,
    storing: Option<StoreWait>,
    /// Time for which nothing was received or accepted while this was expected.
    idle: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> LeaderStream<S> {
    /// A stream whose handshake has ended.
    pub(crate) fn new(number: u64, stream: S, welcome: &Welcome) -> LeaderStream<S> {
        LeaderStream {
            number,
            history: welcome.history,
            has_same_digest: welcome.digest == DIGEST_VERSION,
            frames: FrameReader::new(stream),
            out: Vec::new(),
            sent: 0,
            is_loading: false,
            deferred: DeferredFrames::default(),
            storing: None,
            idle: Duration::ZERO,
        }
    }

    /// Waits until something happens. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// The connection ended, or the bytes are not a frame.
    pub(crate) async fn next(&mut self) -> Result<StreamStep, StreamError> {
        if !self.out.is_empty() {
            let written = self.frames.stream().write(&self.out[self.sent..]).await?;
            self.note_written(written)?;
            return Ok(StreamStep::Written);
        }
        if let Some(wait) = &mut self.storing {
            let is_stored = wait.stored.as_mut().await;
            return Ok(StreamStep::Stored(is_stored));
        }
        let frame = self.frames.next().await?;
        self.idle = Duration::ZERO;
        Ok(StreamStep::Frame(frame))
    }

    /// Queues a message to the leader. It is sent before anything else is received.
    pub(crate) fn put(&mut self, message: HaMessage) {
        StreamMessage::Control(message).put(&mut self.out, 0, 0);
    }

    /// Sends as many bytes of the queued messages as the connection accepts at once.
    ///
    /// # Errors
    /// The connection ended.
    pub(crate) fn flush(&mut self) -> Result<(), StreamError> {
        while !self.out.is_empty() {
            let Some(written) = self.frames.stream().write(&self.out[self.sent..]).now_or_never() else { break };
            self.note_written(written?)?;
        }
        Ok(())
    }

    fn note_written(&mut self, bytes: usize) -> Result<(), StreamError> {
        if bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        self.idle = Duration::ZERO;
        Ok(())
    }

    /// Waits for `stored` before anything else is received. The changes up to `last` are then in
    /// the data directory.
    pub(crate) fn wait_stored(&mut self, last: u64, stored: BoxFuture<'static, bool>) {
        self.storing = Some(StoreWait { last, stored });
    }

    /// The last change that has been waited for, after [`StreamStep::Stored`].
    pub(crate) fn end_wait(&mut self) -> Option<u64> {
        self.idle = Duration::ZERO;
        self.storing.take().map(|wait| wait.last)
    }

    /// Whether frames that must keep their order wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_loading || self.storing.is_some()
    }

    /// The next deferred frame, if it need not wait.
    pub(crate) fn pop_deferred(&mut self) -> Option<Frame> {
        if self.is_waiting() { None } else { self.deferred.pop() }
    }

    /// Whether a deferred frame can be handled now.
    pub(crate) fn may_continue(&self) -> bool {
        !self.is_waiting() && !self.deferred.is_empty()
    }

    /// Adds `time` to the silence of the stream.
    ///
    /// # Errors
    /// The leader has been silent, or has accepted nothing, for too long.
    pub(crate) fn watch(&mut self, time: Duration) -> Result<(), StreamError> {
        if self.storing.is_some() {
            return Ok(());
        }
        self.idle += time;
        if self.idle < LEADER_SILENCE_MAX {
            Ok(())
        } else if self.out.is_empty() {
            Err(StreamError::Silent(LEADER_SILENCE_MAX))
        } else {
            Err(StreamError::NotAccepted(LEADER_SILENCE_MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;
    use crate::server::ha::handshake::StreamStart;
    use mcctl_election::ha::MemberId;
    use mcctl_election::ha::frame::{FrameKind, put_frame};

    fn welcome() -> Welcome {
        let leader = MemberId(1);
        let history = HistoryId(1);
        let start = StreamStart::Changes;
        Welcome { leader, history, view: 1, start, digest: DIGEST_VERSION, metadata: None }
    }

    #[tokio::test]
    async fn nothing_is_received_before_all_messages_are_sent() {
        let (leader, standby) = duplex(64);
        let mut stream = LeaderStream::new(1, standby, &welcome());
        for _ in 0..3 {
            stream.put(HaMessage::Ready);
        }
        stream.flush().unwrap();
        let (mut reader, mut writer) = tokio::io::split(leader);
        let mut frame = Vec::new();
        put_frame(&mut frame, FrameKind::Control, 1, 0, b"ping");
        writer.write_all(&frame).await.unwrap();
        assert!(stream.next().now_or_never().is_none(), "the leader has not accepted all");
        let mut sent = [0; 64];
        reader.read_exact(&mut sent).await.unwrap();
        assert!(matches!(stream.next().await, Ok(StreamStep::Written)));
        assert!(matches!(stream.next().await, Ok(StreamStep::Frame(_))));
    }

    #[tokio::test]
    async fn frames_wait_for_the_changes_that_are_being_stored() {
        let (mut leader, standby) = duplex(64);
        let mut stream = LeaderStream::new(1, standby, &welcome());
        let mut frame = Vec::new();
        put_frame(&mut frame, FrameKind::Changes, 1, 1, b"");
        leader.write_all(&frame).await.unwrap();
        stream.wait_stored(7, Box::pin(std::future::ready(true)));
        assert!(stream.is_waiting());
        assert!(matches!(stream.next().await, Ok(StreamStep::Stored(true))));
        assert_eq!(stream.end_wait(), Some(7));
        assert!(matches!(stream.next().await, Ok(StreamStep::Frame(_))));
    }

    #[test]
    fn a_silent_leader_is_noticed() {
        let mut stream = LeaderStream::new(1, duplex(64).0, &welcome());
        assert!(stream.watch(LEADER_SILENCE_MAX / 2).is_ok());
        assert!(matches!(stream.watch(LEADER_SILENCE_MAX / 2), Err(StreamError::Silent(_))));
        stream.put(HaMessage::Ready);
        assert!(matches!(stream.watch(Duration::ZERO), Err(StreamError::NotAccepted(_))));
    }
}
