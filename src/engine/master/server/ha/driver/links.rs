//! The streams to other masters: a queue of messages for each.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use crate::engine::ha::MemberId;
use crate::engine::master::server::ha::stream::StreamMessage;

/// Maximum number of messages that wait for a stream. A leader sends fewer than 10 per second. A slower stream is closed.
const QUEUE_MAX: usize = 1024;

/// The streams of this master. A stream ends when its sender is dropped.
#[derive(Debug, Default)]
pub(in crate::engine::master::server::ha) struct StreamLinks(BTreeMap<MemberId, mpsc::Sender<StreamMessage>>);

/// Identifies a stream, and does not keep it open.
#[derive(Debug)]
pub(in crate::engine::master::server::ha) struct StreamLink(mpsc::WeakSender<StreamMessage>);

impl StreamLinks {
    /// Opens a stream to this member. An earlier stream to it ends.
    pub fn open(&mut self, member: MemberId) -> (StreamLink, mpsc::Receiver<StreamMessage>) {
        let (sender, messages) = mpsc::channel(QUEUE_MAX);
        let link = StreamLink(sender.downgrade());
        self.0.insert(member, sender);
        (link, messages)
    }

    /// Queues a message for this member, if there is a stream to it. Ends the stream if too many messages wait for it.
    pub fn send(&mut self, to: MemberId, message: StreamMessage) {
        if self.0.get(&to).is_some_and(|sender| sender.try_send(message).is_err()) {
            self.0.remove(&to);
        }
    }

    /// Queues a message for all members.
    pub fn send_all(&mut self, message: &StreamMessage) {
        self.0.retain(|_, sender| sender.try_send(message.clone()).is_ok());
    }

    /// The stream has ended. Returns true unless another stream to this member has replaced it.
    pub fn close(&mut self, member: MemberId, link: &StreamLink) -> bool {
        let own = link.0.upgrade();
        let is_own = |current: &mpsc::Sender<_>| own.as_ref().is_some_and(|own| own.same_channel(current));
        let is_current = self.0.get(&member).is_none_or(is_own);
        if is_current {
            self.0.remove(&member);
        }
        is_current
    }

    /// Ends all streams, and drops the messages that wait.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;
    use crate::engine::ha::HaMessage;

    const MEMBER: MemberId = MemberId(1);

    fn message() -> StreamMessage {
        StreamMessage::Control(HaMessage::Ready)
    }

    #[test]
    fn a_stream_that_is_too_slow_ends() {
        let mut links = StreamLinks::default();
        let (link, mut messages) = links.open(MEMBER);
        for _ in 0..QUEUE_MAX {
            links.send(MEMBER, message());
        }
        assert!(!links.is_empty());
        links.send(MEMBER, message());
        assert!(links.is_empty());
        while messages.try_recv().is_ok() {}
        assert_eq!(messages.try_recv().unwrap_err(), TryRecvError::Disconnected);
        assert!(links.close(MEMBER, &link));
    }

    #[test]
    fn a_stream_ends_when_it_is_replaced_or_removed() {
        let mut links = StreamLinks::default();
        let (first, mut first_messages) = links.open(MEMBER);
        let (second, mut second_messages) = links.open(MEMBER);
        assert_eq!(first_messages.try_recv().unwrap_err(), TryRecvError::Disconnected);
        assert!(!links.close(MEMBER, &first));
        links.send_all(&message());
        assert!(second_messages.try_recv().is_ok());
        links.clear();
        assert_eq!(second_messages.try_recv().unwrap_err(), TryRecvError::Disconnected);
        assert!(links.close(MEMBER, &second));
    }
}
