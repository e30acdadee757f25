//! Messages about a peer that repeats its attempts: each is logged once per minute.

use std::collections::HashMap;
use std::time::Duration;

use mcctl_base::Mono;

/// The same message about the same host is logged again after this time.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// Maximum number of messages in the table.
const MESSAGES_MAX: usize = 256;

/// The time at which each message was last logged.
#[derive(Debug, Default)]
pub(in crate::server::ha) struct RepeatedMessages {
    logged: HashMap<(String, String), Mono>,
}

impl RepeatedMessages {
    /// Whether `message` about `peer` is to be logged now. The port of `peer` differs in each
    /// attempt, and is ignored.
    pub(super) fn is_due(&mut self, now: Mono, peer: &str, message: &str) -> bool {
        let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
        let key = (host.to_owned(), message.to_owned());
        if self.logged.get(&key).is_some_and(|last| now.since(*last) < LOG_AGAIN) {
            return false;
        }
        if self.logged.len() >= MESSAGES_MAX {
            self.logged.retain(|_, last| now.since(*last) < LOG_AGAIN);
        }
        // Unauthenticated peers can cause many different messages.
        let has_room = self.logged.len() < MESSAGES_MAX;
        if has_room {
            self.logged.insert(key, now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_due_once_per_minute_and_host() {
        let mut messages = RepeatedMessages::default();
        let mut is_due = |s: u64, peer: &str, message: &str| messages.is_due(Mono::from_ms(s * 1000), peer, message);
        assert!(is_due(1, "a:1", "no") && !is_due(2, "a:2", "no"));
        assert!(is_due(2, "a:2", "never") && is_due(2, "b:2", "no"));
        assert!(!is_due(60, "a:3", "no") && is_due(61, "a:3", "no"));
    }

    #[test]
    fn many_different_messages_are_limited() {
        let mut messages = RepeatedMessages::default();
        let due = |n: &usize| messages.is_due(Mono::from_ms(1000), "a:1", &n.to_string());
        assert_eq!((0..2 * MESSAGES_MAX).filter(due).count(), MESSAGES_MAX);
    }
}
