//! What our handshake port answers with; and messages of peers that wait to be fetched. Bounded: the oldest give way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::transfer::directory::OwnSegment;
use crate::engine::transfer::handshake::Answers;
use crate::engine::transfer::transport::Calls;
use crate::engine::wire::json::{Connection, NotifyMessage};

/// Messages that nobody has fetched; the oldest give way to more.
const NOTICES_MAX: usize = 1024;
/// What their texts may hold, bytes. A message that is larger by itself is refused.
const NOTICES_BYTES_MAX: usize = 1 << 20;

/// What the handshake port answers with: our segment's document, and room for messages.
pub(super) struct Notices {
    own: Arc<OwnSegment>,
    calls: Arc<dyn Calls>,
    queue: Mutex<Queue>,
}

impl Notices {
    /// None yet. `calls` is what the transport may need to answer connection requests.
    pub(super) fn new(own: Arc<OwnSegment>, calls: Arc<dyn Calls>) -> Notices {
        Notices { own, calls, queue: Mutex::default() }
    }

    /// Those that came since the last call.
    pub(super) fn take(&self) -> Vec<NotifyMessage> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.bytes = 0;
        std::mem::take(&mut queue.messages).into()
    }

    /// How many were dropped because nobody fetched them.
    pub(super) fn dropped(&self) -> u64 {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).dropped
    }
}

impl Answers for Notices {
    fn segment(&self) -> Option<String> {
        Some(self.own.document())
    }

    fn connected(&self, request: Connection) -> Connection {
        self.own.transport.accept(request, &*self.calls)
    }

    fn notified(&self, message: NotifyMessage) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.dropped;
        let taken = queue.push(message);
        let first = before == 0 && queue.dropped > 0;
        drop(queue);
        if first {
            // Once: who sends a thousand of them is not to fill the log as well.
            tracing::warn!(
                messages_max = NOTICES_MAX,
                bytes_max = NOTICES_BYTES_MAX,
                "messages of peers wait and nobody fetches them; dropping the oldest"
            );
        }
        taken
    }
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<NotifyMessage>,
    bytes: usize,
    dropped: u64,
}

impl Queue {
    /// Take `message`, unless there would be no room for it even without the others.
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
    fn of_too_many_messages_the_oldest_give_way() {
        let mut queue = Queue::default();
        for i in 0..NOTICES_MAX + 3 {
            assert!(queue.push(message(&i.to_string(), 1)));
        }
        assert_eq!((queue.messages.len(), queue.messages[0].name.as_str(), queue.dropped), (NOTICES_MAX, "3", 3));
    }

    #[test]
    fn messages_hold_no_more_than_their_bytes_and_one_too_large_by_itself_is_refused() {
        let mut queue = Queue::default();
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
