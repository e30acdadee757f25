//! Which server receives a request first.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::etcd::options::EtcdEndpoint;

/// The servers, and a position in their list: the server that answered last.
pub(super) struct ServerRotation {
    servers: Vec<EtcdEndpoint>,
    /// Grows by one each time the next server becomes the first.
    position: AtomicUsize,
}

impl ServerRotation {
    /// `servers` has at least one.
    pub(super) fn new(servers: Vec<EtcdEndpoint>) -> ServerRotation {
        ServerRotation { servers, position: AtomicUsize::new(0) }
    }

    /// Number of servers, at least one.
    pub(super) fn len(&self) -> usize {
        self.servers.len()
    }

    /// The position at which a request begins.
    pub(super) fn position(&self) -> usize {
        self.position.load(Ordering::Relaxed)
    }

    /// All servers, from this position on.
    pub(super) fn servers_from(&self, position: usize) -> impl Iterator<Item = &EtcdEndpoint> {
        (0..self.len()).map(move |nth| &self.servers[position.wrapping_add(nth) % self.len()])
    }

    /// Moves on by `count` servers. Does nothing if another request that began at this position has
    /// moved it already: several requests that time out at one server must not skip the next one.
    pub(super) fn advance(&self, position: usize, count: usize) {
        let next = position.wrapping_add(count);
        let _ = self.position.compare_exchange(position, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_base::HostPort;

    #[test]
    fn only_the_first_of_concurrent_requests_moves_the_position() {
        let server = |port| EtcdEndpoint { at: HostPort::new("a", port), tls: false };
        let rotation = ServerRotation::new(vec![server(1), server(2), server(3)]);
        let ports = |position| rotation.servers_from(position).map(|server| server.at.port).collect::<Vec<u16>>();
        assert_eq!(ports(rotation.position()), [1, 2, 3]);
        rotation.advance(0, 1);
        rotation.advance(0, 1);
        rotation.advance(0, 2);
        assert_eq!(ports(rotation.position()), [2, 3, 1]);
        rotation.advance(1, 2);
        assert_eq!(ports(rotation.position()), [1, 2, 3]);
    }
}
