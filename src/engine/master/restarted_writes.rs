//! Writes that their own client has started again before it had ended them. An end that arrives
//! then may be a late one, of the earlier start. Clients that use one id for all their writes
//! cannot show which start they end, so such ends are counted and not refused.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::FixedState;

use mcctl_base::{ClientId, Mono};

/// The connection over which a call came. A client may send its calls over several connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The connection of the caller with this address and port. `None`: a call from this process.
    pub fn of(peer: Option<&str>) -> ConnectionId {
        ConnectionId(peer.map_or(0, |peer| FixedState::default().hash_one(peer)))
    }
}

/// The client that a call names, and the connection over which the call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub client: ClientId,
    pub connection: ConnectionId,
}

/// Maximum number of writes that are watched. The oldest ones are dropped first.
const WRITES_MAX: usize = 256;
/// Shortest time between two reports.
const REPORT_PAUSE: Duration = Duration::from_secs(1);

/// The writes in progress that were started again, and what was found so far.
#[derive(Debug, Default)]
pub(super) struct RestartedWrites {
    /// The connection of the last start, by the id of the write's first replica. Ids increase.
    starts: BTreeMap<u64, ConnectionId>,
    /// The client of the last suspicious end, if it was not reported.
    unreported: Option<ClientId>,
    reported_at: Option<Mono>,
}

impl RestartedWrites {
    /// Adds a write whose client has started it again. `replica` is the id of its first replica.
    pub(crate) fn add(&mut self, replica: u64, connection: ConnectionId) {
        self.starts.insert(replica, connection);
        if self.starts.len() > WRITES_MAX {
            self.starts.pop_first();
        }
    }

    /// Removes a write that ends. Returns whether it had been started again over another connection
    /// than that of the end.
    #[inline]
    pub(crate) fn end(&mut self, replica: u64, by: Caller) -> bool {
        if self.starts.is_empty() {
            return false;
        }
        let is_suspicious = self.starts.remove(&replica).is_some_and(|start| start != by.connection);
        if is_suspicious {
            self.unreported = Some(by.client);
        }
        is_suspicious
    }

    /// The client of the last suspicious end, if it is time to report it.
    pub(crate) fn take_report(&mut self, now: Mono) -> Option<ClientId> {
        if self.unreported.is_none() || self.reported_at.is_some_and(|at| now < at + REPORT_PAUSE) {
            return None;
        }
        self.reported_at = Some(now);
        self.unreported.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(peer: &str) -> Caller {
        Caller { client: ClientId(1, 1), connection: ConnectionId::of(Some(peer)) }
    }

    #[test]
    fn an_end_is_suspicious_once_and_only_over_another_connection() {
        let mut writes = RestartedWrites::default();
        let own = caller("10.0.0.1:5");
        let other = caller("10.0.0.1:6");
        assert!(!writes.end(1, other));
        writes.add(1, own.connection);
        writes.add(2, own.connection);
        assert!(!writes.end(1, own) && !writes.end(1, other));
        assert!(writes.end(2, other) && !writes.end(2, other));
    }

    #[test]
    fn reports_have_a_pause_and_the_oldest_writes_are_dropped() {
        let mut writes = RestartedWrites::default();
        (0..2 * WRITES_MAX as u64).for_each(|replica| writes.add(replica, ConnectionId(1)));
        assert_eq!(writes.starts.len(), WRITES_MAX);
        let now = Mono::from_ms(5_000);
        let other = caller("b:1");
        assert_eq!(writes.take_report(now), None);
        for nth in 0..3 {
            assert!(writes.end(2 * WRITES_MAX as u64 - 1 - nth, other));
            let report = writes.take_report(now + Duration::from_millis(600 * nth));
            assert_eq!(report.is_some(), nth != 1);
        }
    }
}
