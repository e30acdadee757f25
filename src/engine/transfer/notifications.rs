//! Handles requests to our handshake port, and queues messages from peers until the owner fetches
//! them. The queue is bounded: when it is full, the oldest messages are dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::directory::OwnSegment;
use crate::handshake::HandshakeHandler;
use crate::transport::ControlPlane;
use mcctl_wire::json::{ConnectionMessage, NotifyMessage};

/// Maximum number of queued messages. Beyond this, the oldest are dropped.
const NOTICES_MAX: usize = 1024;
/// Maximum total size of the queued messages, in bytes. A single message that exceeds it is
/// rejected.
const NOTICES_BYTES_MAX: usize = 1 << 20;

/// The handler for our handshake port: serves our segment document and queues messages.
pub(super) struct Notifications {
    own: Arc<OwnSegment>,
    control: Arc<dyn ControlPlane>,
    queue: Mutex<NotificationQueue>,
}

impl Notifications {
    /// Creates an empty queue. The transport uses `control` to handle connection requests.
    pub(super) fn new(own: Arc<OwnSegment>, control: Arc<dyn ControlPlane>) -> Notifications {
        Notifications { own, control, queue: Mutex::default() }
    }

    /// Returns the messages received since the last call.
    pub(super) fn take(&self) -> Vec<NotifyMessage> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.bytes = 0;
        std::mem::take(&mut queue.messages).into()
    }

    /// Returns the number of messages dropped because they were not fetched in time.
    pub(super) fn dropped(&self) -> u64 {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).dropped
    }
}

impl HandshakeHandler for Notifications {
    fn segment(&self) -> Option<String> {
        Some(self.own.document())
    }

    fn on_connection(&self, request: ConnectionMessage) -> ConnectionMessage {
        self.own.transport.accept(request, &*self.control)
    }

    fn on_message(&self, message: NotifyMessage) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.dropped;
        let taken = queue.push(message);
        let first = before == 0 && queue.dropped > 0;
        drop(queue);
        if first {
            // Logged once, so that a peer that sends thousands of messages cannot fill the log.
            tracing::warn!(
                messages_max = NOTICES_MAX,
                bytes_max = NOTICES_BYTES_MAX,
                "queue of messages from peers is full; dropping the oldest"
            );
        }
        taken
    }
}

#[derive(Default)]
struct NotificationQueue {
    messages: VecDeque<NotifyMessage>,
    bytes: usize,
    dropped: u64,
}

impl NotificationQueue {
    /// Adds `message`, unless it alone exceeds the size limit.
    fn push(&mut self, message: NotifyMessage) -> bool {
        let more = bytes(&message);
        if more > NOTICES_BYTES_MAX {
            return false;
        }
        while self.messages.len() >= NOTICES_MAX || self.bytes + more > NOTICES_BYTES_MAX {
            let Some(oldest) = self.messages.pop_front() else { break };
            self.bytes -= bytes(&oldest);
            self.dropped += 1;
        }
        self.bytes += more;
        self.messages.push_back(message);
        true
    }
}

fn bytes(message: &NotifyMessage) -> usize {
    message.name.len() + message.message.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: &str, len: usize) -> NotifyMessage {
        NotifyMessage { name: name.to_owned(), message: "m".repeat(len) }
    }

    #[test]
    fn a_full_queue_drops_the_oldest_message() {
        let mut queue = NotificationQueue::default();
        for i in 0..NOTICES_MAX + 3 {
            assert!(queue.push(message(&i.to_string(), 1)));
        }
        assert_eq!((queue.messages.len(), queue.messages[0].name.as_str(), queue.dropped), (NOTICES_MAX, "3", 3));
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_and_refuses_oversized_messages() {
        let mut queue = NotificationQueue::default();
        assert!(!queue.push(message("n", NOTICES_BYTES_MAX)));
        for name in ["a", "b", "c"] {
            assert!(queue.push(message(name, NOTICES_BYTES_MAX / 4)));
        }
        assert!(queue.push(message("large", NOTICES_BYTES_MAX / 2)));
        let names: Vec<_> = queue.messages.iter().map(|m| m.name.as_str()).collect();
        assert_eq!((names, queue.dropped), (vec!["c", "large"], 2));
        assert_eq!(queue.bytes, queue.messages.iter().map(bytes).sum::<usize>());
        assert!(queue.push(message("l", NOTICES_BYTES_MAX - 1)));
        assert_eq!((queue.messages.len(), queue.bytes), (1, NOTICES_BYTES_MAX));
    }
}
