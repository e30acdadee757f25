//! The streams to the standbys of a leader: a queue of messages for each, and its acknowledgements.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::AbortHandle;

use crate::server::ha::stream::{FrameReader, StreamError, StreamMessage};
use mcctl_election::ha::MemberId;
use mcctl_election::ha::frame::Frame;

/// Maximum number of messages that wait for a stream. A leader sends fewer than 10 per second. A
/// slower stream is closed.
pub(in crate::server::ha) const QUEUE_MAX: usize = 1024;
/// A standby answers pings much more often than this.
pub(in crate::server::ha) const STANDBY_SILENCE_MAX: Duration = Duration::from_secs(10);

/// The streams to standbys. A task sends to each, and ends with its stream.
pub(in crate::server::ha) struct StandbyStreams<R> {
    streams: Vec<StandbyStream<R>>,
    /// The stream that is read first. It changes, so that no stream always precedes the others.
    turn: usize,
    opened: u64,
}

/// A stream to a standby.
pub(in crate::server::ha) struct StandbyStream<R> {
    /// The number of the stream.
    pub number: u64,
    pub standby: MemberId,
    messages: mpsc::Sender<StreamMessage>,
    frames: FrameReader<R>,
    /// The standby computes digests like this release.
    has_same_digest: bool,
    /// The task that sends to it.
    task: Option<AbortHandle>,
    /// Time since something was last received.
    idle: Duration,
}

impl<R> StandbyStream<R> {
    /// Queues a message. Returns true if too many wait. If the task has ended, it reports that with
    /// its error.
    fn is_full_for(&self, message: StreamMessage) -> bool {
        matches!(self.messages.try_send(message), Err(TrySendError::Full(_)))
    }
}

impl<R> Drop for StandbyStream<R> {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

impl<R> Default for StandbyStreams<R> {
    fn default() -> StandbyStreams<R> {
        StandbyStreams { streams: Vec::new(), turn: 0, opened: 0 }
    }
}

impl<R> StandbyStreams<R> {
    /// Opens a stream to this standby. An earlier stream to it ends. `has_same_digest`: it computes
    /// digests like this release. Returns the number of the stream, and the messages to send.
    pub(crate) fn open(
        &mut self,
        standby: MemberId,
        reader: R,
        has_same_digest: bool,
    ) -> (u64, mpsc::Receiver<StreamMessage>)
    where
        R: AsyncRead + Unpin,
    {
        self.streams.retain(|stream| stream.standby != standby);
        self.opened += 1;
        let (messages, to_send) = mpsc::channel(QUEUE_MAX);
        let frames = FrameReader::new(reader);
        let number = self.opened;
        let task = None;
        let idle = Duration::ZERO;
        self.streams.push(StandbyStream { number, standby, messages, frames, has_same_digest, task, idle });
        (number, to_send)
    }

    /// Whether all standbys compute digests like this release. All standbys receive the same
    /// digests.
    pub(crate) fn compare_digests(&self) -> bool {
        self.streams.iter().all(|stream| stream.has_same_digest)
    }

    /// This task sends to the stream.
    pub(crate) fn set_task(&mut self, number: u64, task: AbortHandle) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.number == number) {
            stream.task = Some(task);
        }
    }

    /// Queues a message for this standby, if there is a stream to it. Returns the number of a
    /// stream that must be closed, because too many messages wait for it.
    pub(crate) fn send(&mut self, to: MemberId, message: StreamMessage) -> Option<u64> {
        self.get(to).filter(|stream| stream.is_full_for(message)).map(|stream| stream.number)
    }

    /// Queues a message for all standbys. Returns the numbers of the streams that must be closed.
    pub(crate) fn send_all(&mut self, message: &StreamMessage) -> Vec<u64> {
        self.streams.iter().filter(|stream| stream.is_full_for(message.clone())).map(|stream| stream.number).collect()
    }

    /// The standby that this stream is connected to.
    pub(crate) fn member(&self, number: u64) -> Option<MemberId> {
        self.streams.iter().find(|stream| stream.number == number).map(|stream| stream.standby)
    }

    /// The stream to this standby.
    pub(crate) fn get(&self, standby: MemberId) -> Option<&StandbyStream<R>> {
        self.streams.iter().find(|stream| stream.standby == standby)
    }

    /// Ends a stream. Returns `None` if it has ended before.
    pub(crate) fn close(&mut self, number: u64) -> Option<StandbyStream<R>> {
        let at = self.streams.iter().position(|stream| stream.number == number)?;
        Some(self.streams.remove(at))
    }

    /// Ends all streams, and drops the messages that wait.
    pub(crate) fn clear(&mut self) {
        self.streams.clear();
    }

    /// Whether there are no streams.
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Adds `time` to the silence of all streams. Returns one that was silent for too long.
    pub(crate) fn watch(&mut self, time: Duration) -> Option<u64> {
        self.streams.iter_mut().for_each(|stream| stream.idle += time);
        self.streams.iter().find(|stream| stream.idle >= STANDBY_SILENCE_MAX).map(|stream| stream.number)
    }
}

impl<R: AsyncRead + Unpin> StandbyStreams<R> {
    /// Waits for the next frame of a standby. Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> (u64, Result<Frame, StreamError>) {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<(u64, Result<Frame, StreamError>)> {
        let count = self.streams.len();
        for nth in 0..count {
            let at = (self.turn + nth) % count;
            let stream = &mut self.streams[at];
            if let Poll::Ready(frame) = pin!(stream.frames.next()).poll(context) {
                stream.idle = Duration::ZERO;
                self.turn = at + 1;
                return Poll::Ready((stream.number, frame));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;
    use mcctl_election::ha::HaMessage;

    const MEMBER: MemberId = MemberId(1);

    fn message() -> StreamMessage {
        StreamMessage::Control(HaMessage::Ready)
    }

    fn open(streams: &mut StandbyStreams<tokio::io::Empty>) -> (u64, mpsc::Receiver<StreamMessage>) {
        streams.open(MEMBER, tokio::io::empty(), true)
    }

    #[test]
    fn a_stream_that_is_too_slow_ends() {
        let mut streams = StandbyStreams::default();
        let (number, mut messages) = open(&mut streams);
        for _ in 0..QUEUE_MAX {
            assert_eq!(streams.send(MEMBER, message()), None);
        }
        assert_eq!(streams.send(MEMBER, message()), Some(number));
        assert_eq!(streams.send_all(&message()), [number]);
        assert!(streams.close(number).is_some() && streams.is_empty());
        while messages.try_recv().is_ok() {}
        assert_eq!(messages.try_recv().unwrap_err(), TryRecvError::Disconnected);
        assert!(streams.close(number).is_none());
    }

    #[test]
    fn a_stream_ends_when_it_is_replaced_or_removed() {
        let mut streams = StandbyStreams::default();
        let (first, mut first_messages) = open(&mut streams);
        let (second, mut second_messages) = open(&mut streams);
        assert_eq!(first_messages.try_recv().unwrap_err(), TryRecvError::Disconnected);
        assert!(streams.close(first).is_none());
        assert_eq!(streams.get(MEMBER).map(|stream| stream.number), Some(second));
        assert!(streams.send_all(&message()).is_empty());
        assert!(second_messages.try_recv().is_ok());
        streams.clear();
        assert_eq!(second_messages.try_recv().unwrap_err(), TryRecvError::Disconnected);
    }

    #[tokio::test]
    async fn all_streams_are_read_in_turn() {
        let mut streams = StandbyStreams::default();
        for standby in 1..=3 {
            streams.open(MemberId(standby), tokio::io::empty(), standby != 2);
        }
        let mut numbers = Vec::new();
        for _ in 0..6 {
            numbers.push(streams.next().await.0);
        }
        assert_eq!(numbers, [1, 2, 3, 1, 2, 3], "each has ended");
        assert!(!streams.compare_digests() && streams.close(2).is_some() && streams.compare_digests());
    }

    #[test]
    fn a_silent_stream_is_found() {
        let mut streams = StandbyStreams::default();
        let (number, _messages) = open(&mut streams);
        assert_eq!(streams.watch(STANDBY_SILENCE_MAX / 2), None);
        assert_eq!(streams.watch(STANDBY_SILENCE_MAX / 2), Some(number));
    }
}
