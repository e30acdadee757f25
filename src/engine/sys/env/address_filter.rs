//! Closes connections from addresses that are not allowed, before a byte is read from them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcctl_base::{CidrList, Mono};

/// Number of connections that this process closed because their address is not allowed.
static CLOSED: AtomicU64 = AtomicU64::new(0);
/// Minimum time between two log lines of one filter.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Decides which peers may connect. The default allows all. Cheap to clone; clones share the time
/// of the last log line.
#[derive(Clone, Debug, Default)]
pub struct AddressFilter(Option<Arc<FilterShared>>);

#[derive(Debug)]
struct FilterShared {
    allowed: CidrList,
    /// When a closed connection was last logged, in nanoseconds; 0 if never.
    logged: AtomicU64,
}

impl AddressFilter {
    /// Allows only peers whose address is in `allowed`. Loopback addresses are not an exception.
    pub fn only(allowed: CidrList) -> AddressFilter {
        AddressFilter(Some(Arc::new(FilterShared { allowed, logged: AtomicU64::new(0) })))
    }

    /// Whether all addresses are allowed.
    pub fn allows_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether `peer`, which has just connected to `port`, may stay connected. If not, counts the
    /// connection, and logs it at most once per minute; the caller closes it.
    pub fn admits(&self, peer: SocketAddr, port: u16, now: Mono) -> bool {
        let Some(shared) = &self.0 else { return true };
        if shared.allowed.contains(peer.ip()) {
            return true;
        }
        let closed = CLOSED.fetch_add(1, Ordering::Relaxed) + 1;
        if shared.may_log(now) {
            tracing::warn!(port, peer = %peer.ip().to_canonical(), closed, "connection closed: the address is not in --allow-cidr");
        }
        false
    }
}

impl FilterShared {
    fn may_log(&self, now: Mono) -> bool {
        let last = self.logged.load(Ordering::Relaxed);
        let is_due = last == 0 || now.since(Mono(last)) >= LOG_EVERY;
        is_due && self.logged.compare_exchange(last, now.0.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl PartialEq for AddressFilter {
    fn eq(&self, other: &AddressFilter) -> bool {
        self.0.as_ref().map(|shared| &shared.allowed) == other.0.as_ref().map(|shared| &shared.allowed)
    }
}

impl Eq for AddressFilter {}

/// The number of closed connections, in Prometheus's text format.
pub fn exposition() -> String {
    let name = "mcctl_connections_not_allowed_total";
    let closed = CLOSED.load(Ordering::Relaxed);
    format!(
        "# HELP {name} Connections closed at accept because their address is not in --allow-cidr\n# TYPE {name} counter\n{name} {closed}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_admits_only_its_networks() {
        let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
        let filter = AddressFilter::only("10.0.0.0/8".parse().unwrap());
        assert!(AddressFilter::default().admits(peer("1.2.3.4:5"), 1, Mono(1)));
        assert!(
            filter.admits(peer("10.2.3.4:5"), 1, Mono(1)) && filter.admits(peer("[::ffff:10.2.3.4]:5"), 1, Mono(1))
        );
        assert!(!filter.admits(peer("127.0.0.1:5"), 1, Mono(1)) && !filter.admits(peer("[::1]:5"), 1, Mono(1)));
    }

    #[test]
    fn closed_connections_are_logged_once_a_minute() {
        let shared = FilterShared { allowed: "::1".parse().unwrap(), logged: AtomicU64::new(0) };
        let logged = |seconds: u64| shared.may_log(Mono(1) + Duration::from_secs(seconds));
        assert_eq!([0, 1, 59, 60, 61, 119, 121].map(logged), [true, false, false, true, false, false, true]);
    }
}
