//! The open connections of a server, and which of them is closed when there are too many.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::{self, AbortHandle};

use mcctl_base::Mono;

/// State of an open connection, as seen by the accept loop.
pub(super) struct ConnectionSlot {
    /// Time of the last activity: the connection was accepted, a request was completed, or bytes of
    /// a response were sent. Received bytes do not count, so a client that sends headers byte by
    /// byte is considered idle.
    since: AtomicU64,
    /// A request is being processed.
    busy: AtomicBool,
}

impl ConnectionSlot {
    pub(super) fn new(now: Mono) -> ConnectionSlot {
        ConnectionSlot { since: AtomicU64::new(now.0), busy: AtomicBool::new(false) }
    }

    pub(super) fn touch(&self, now: Mono) {
        self.since.store(now.0, Ordering::Relaxed);
    }

    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct ConnectionSlots {
    pub(super) open: HashMap<task::Id, (AbortHandle, Arc<ConnectionSlot>)>,
    /// Number of connections closed to make room.
    closed: u64,
}

impl ConnectionSlots {
    fn idle_longest(&self) -> Option<task::Id> {
        let idle = self.open.iter().filter(|(_, (_, slot))| !slot.busy.load(Ordering::Relaxed));
        idle.min_by_key(|(_, (_, slot))| slot.since.load(Ordering::Relaxed)).map(|(id, _)| *id)
    }

    /// Closes the connection that has been idle longest, to make room for `peer`. Returns false if
    /// none is idle.
    pub(super) fn close_idle_longest(&mut self, port: u16, peer: &str, limit: usize) -> bool {
        let Some((task, _)) = self.idle_longest().and_then(|id| self.open.remove(&id)) else { return false };
        task.abort();
        self.closed += 1;
        if self.closed.is_power_of_two() {
            let closed = self.closed;
            tracing::warn!(port, limit, closed, %peer, "connection limit reached: closed the connection that was idle longest");
        }
        true
    }
}
