//! Which connection of the target is closed to admit another one, when their number is at its
//! limit.
//!
//! What counts is complete requests, because a peer that sends a byte now and then could otherwise
//! hold a connection for ever. In this order, a connection is closed
//!
//! 1. that has not completed a request within [`UNFINISHED_MIN`] of its accept, or whose current
//!    request has taken as long and moves fewer than [`RATE_MIN`] bytes per second;
//! 2. whose last request was complete [`IDLE_MIN`] ago;
//! 3. of an address with more than half of the connections, that has not sent a request yet;
//! 4. of such an address, that is between two requests, if the new one comes from an address with
//!    few connections.
//!
//! Otherwise, the new connection is refused. In each step, the address with the most connections
//! comes first, so that one address does not displace the others. A transfer that makes progress is
//! never ended.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcctl_base::Mono;

/// An honest peer sends its first request at once, and a request moves bytes all the time.
pub(super) const UNFINISHED_MIN: Duration = Duration::from_secs(5);
/// Minimum average rate of a request in bytes per second. 4,096 connections that share a link of
/// 10 Gbit/s have more.
pub(super) const RATE_MIN: u64 = 64 << 10;
/// A connection without a request for this long may be closed. A 0.3.13 initiator then fails its
/// next request.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(60);
/// A new connection has precedence over those of an address with most of the table if its own
/// address has less than this part of it.
const FEW: usize = 8;

/// An address, or the network of an IPv6 host: a host may use all addresses of its /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerAddress(IpAddr);

impl PeerAddress {
    pub(super) fn of(address: IpAddr) -> PeerAddress {
        PeerAddress(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// What a connection has done. Only the thread that serves it changes it. Times are in nanoseconds,
/// and 0 for none.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    peer: PeerAddress,
    accepted: Mono,
    /// The end of the last complete request.
    completed: AtomicU64,
    /// When the current request began.
    busy_since: AtomicU64,
    /// Number of bytes of complete requests and their responses.
    done_bytes: AtomicU64,
}

impl ConnectionActivity {
    pub(super) fn new(peer: IpAddr, now: Mono) -> ConnectionActivity {
        let (completed, busy_since, done_bytes) = Default::default();
        ConnectionActivity { peer: PeerAddress::of(peer), accepted: now, completed, busy_since, done_bytes }
    }

    /// The header of a request has arrived.
    pub(super) fn begins(&self, now: Mono) {
        self.busy_since.store(now.0, Ordering::Relaxed);
    }

    /// These bytes belong to requests that are complete, or to their headers.
    pub(super) fn moved(&self, bytes: u64) {
        self.done_bytes.store(self.done_bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Requests are complete. Others may follow in the same batch.
    pub(super) fn completes(&self, now: Mono) {
        self.completed.store(now.0, Ordering::Relaxed);
        self.busy_since.store(now.0, Ordering::Relaxed);
    }

    /// No request is left.
    pub(super) fn rests(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// Whether the last request is complete.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.busy_since.load(Ordering::Relaxed) == 0 && self.completed.load(Ordering::Relaxed) != 0
    }

    /// Returns the use of connection `id` at `now`. `total` returns the number of bytes that the
    /// kernel has moved in both directions.
    pub(super) fn usage(&self, id: u64, now: Mono, total: impl FnOnce() -> u64) -> ConnectionUse {
        let time = |at: &AtomicU64| Some(Mono(at.load(Ordering::Relaxed))).filter(|at| *at != Mono::ZERO);
        let phase = match (time(&self.busy_since), time(&self.completed)) {
            (Some(since), _) => {
                let took = now.since(since);
                // A request may have ended between the two loads; the difference is then too small,
                // and so is the time.
                let bytes = total().saturating_sub(self.done_bytes.load(Ordering::Relaxed));
                let expected = u128::from(RATE_MIN) * took.as_millis() / 1000;
                match took < UNFINISHED_MIN || u128::from(bytes) >= expected {
                    true => Phase::Active,
                    false => Phase::Slow { since },
                }
            }
            (None, Some(since)) => Phase::Idle { since },
            (None, None) => Phase::New { since: self.accepted },
        };
        ConnectionUse { id, peer: self.peer, phase }
    }
}

/// How a connection is used at some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionUse {
    pub(super) id: u64,
    peer: PeerAddress,
    phase: Phase,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has sent no complete header since its accept.
    New { since: Mono },
    /// Its request makes progress.
    Active,
    /// Its request has taken long and makes hardly any progress.
    Slow { since: Mono },
    /// It is between two requests. The last one was complete then.
    Idle { since: Mono },
}

/// Returns the connection to close for a new one from `newcomer`, and since when it has completed
/// no request. `max` is the number of connections at which the table is full.
pub(super) fn to_displace(
    connections: &[ConnectionUse],
    newcomer: IpAddr,
    max: usize,
    now: Mono,
) -> Option<(u64, Mono)> {
    let mut counts: HashMap<PeerAddress, usize> = HashMap::new();
    for connection in connections {
        *counts.entry(connection.peer).or_default() += 1;
    }
    let count = |peer: &PeerAddress| counts.get(peer).copied().unwrap_or(0);
    let has_most = |connection: &ConnectionUse| count(&connection.peer) > max / 2;
    let is_rare = count(&PeerAddress::of(newcomer)) < max / FEW;
    // The step in which a connection may be closed, and since when it has completed no request.
    let step = |connection: &ConnectionUse| match connection.phase {
        Phase::New { since } | Phase::Slow { since } if now.since(since) >= UNFINISHED_MIN => Some((1, since)),
        Phase::Idle { since } if now.since(since) >= IDLE_MIN => Some((2, since)),
        Phase::New { since } if has_most(connection) => Some((3, since)),
        Phase::Idle { since } if is_rare && has_most(connection) => Some((4, since)),
        _ => None,
    };
    let found = connections.iter().filter_map(|connection| Some((connection, step(connection)?)));
    let first = found.min_by_key(|(connection, (step, since))| (*step, Reverse(count(&connection.peer)), *since));
    first.map(|(connection, (_, since))| (connection.id, since))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 16;
    const NOW: Mono = Mono::from_ms(1_000_000);
    const ONE: [u8; 4] = [10, 0, 0, 1];
    const OTHER: [u8; 4] = [10, 0, 0, 2];

    fn ago(seconds: u64) -> Mono {
        NOW - Duration::from_secs(seconds)
    }

    fn activity(peer: [u8; 4], accepted: u64) -> ConnectionActivity {
        ConnectionActivity::new(IpAddr::from(peer), ago(accepted))
    }

    /// A connection that has completed a request some seconds ago.
    fn idle(peer: [u8; 4], completed: u64) -> ConnectionActivity {
        let activity = activity(peer, 1000);
        activity.completes(ago(completed));
        activity.rests();
        activity
    }

    /// A connection whose request began some seconds ago.
    fn busy(peer: [u8; 4], since: u64) -> ConnectionActivity {
        let activity = activity(peer, 1000);
        activity.begins(ago(since));
        activity
    }

    /// The index of the connection that is closed for one from `newcomer`. Each connection has
    /// moved `bytes` of its request.
    fn closed(connections: &[ConnectionActivity], bytes: u64, newcomer: [u8; 4]) -> Option<u64> {
        let uses: Vec<_> = (0..).zip(connections).map(|(id, activity)| activity.usage(id, NOW, || bytes)).collect();
        to_displace(&uses, IpAddr::from(newcomer), MAX, NOW).map(|(id, _)| id)
    }

    #[test]
    fn a_connection_that_never_completed_a_request_is_closed_before_idle_ones() {
        assert_eq!(closed(&[idle(ONE, 600), activity(ONE, 6), activity(ONE, 7), busy(ONE, 1)], 0, ONE), Some(2));
        assert_eq!(closed(&[idle(ONE, 61), idle(ONE, 62), activity(ONE, 4)], 0, ONE), Some(1));
        assert_eq!(closed(&[idle(ONE, 59), activity(ONE, 4), busy(ONE, 4)], 0, ONE), None);
    }

    #[test]
    fn a_slow_transfer_that_makes_progress_is_not_closed() {
        let connections = || [busy(ONE, 100), idle(ONE, 59)];
        assert_eq!(closed(&connections(), 100 * RATE_MIN, ONE), None);
        assert_eq!(closed(&connections(), 99 * RATE_MIN, ONE), Some(0), "a byte now and then is not progress");
        let later = busy(ONE, 100);
        later.moved(1 << 30);
        assert_eq!(closed(&[later], (1 << 30) + 99 * RATE_MIN, ONE), Some(0), "earlier requests do not count");
    }

    #[test]
    fn the_address_with_most_connections_loses_one_first() {
        let mut connections = vec![activity(OTHER, 900), idle(OTHER, 900)];
        connections.extend((0..3).map(|at| activity(ONE, 10 + at)));
        assert_eq!(closed(&connections, 0, OTHER), Some(4));
    }

    #[test]
    fn an_address_with_most_of_the_table_cannot_lock_out_others() {
        let table = |of_one: fn(usize) -> ConnectionActivity| -> Vec<_> {
            (0..MAX).map(|at| if at < 12 { of_one(at) } else { busy([10, 0, 1, at as u8], 1) }).collect()
        };
        let recent = table(|at| idle(ONE, 10 + at as u64));
        assert_eq!(closed(&recent, 0, OTHER), Some(11), "idle longest");
        assert_eq!(closed(&recent, 0, ONE), None, "its own connections do not displace each other");
        assert_eq!(closed(&table(|_| busy(ONE, 1)), 0, OTHER), None, "requests are not ended");
        let new = table(|at| if at % 2 == 0 { activity(ONE, at as u64 / 3) } else { idle(ONE, 50) });
        assert_eq!(closed(&new, 0, ONE), Some(10), "without a request for longest");
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let of = |text: &str| PeerAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
