//! The target's serving threads and the connections that they serve.

use std::collections::{BTreeSet, HashMap};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::tcp::displacement::ConnectionActivity;
use mcctl_sys::socket;

/// The kernel measures the age of a connection in ticks of up to this length.
const KERNEL_TICK: Duration = Duration::from_millis(10);

/// A connection of a peer.
pub(super) struct OpenConnection {
    pub(super) stream: TcpStream,
    pub(super) activity: ConnectionActivity,
}

/// The serving threads and their connections.
#[derive(Default)]
pub(super) struct AcceptorPool {
    pub(super) threads: usize,
    pub(super) accepting: usize,
    pub(super) stopping: bool,
    open: HashMap<u64, Arc<OpenConnection>>,
    /// Connections that this process has closed, but whose threads have not ended.
    closed: BTreeSet<u64>,
    /// Connections that were established before this time are not served.
    served_since: Option<Instant>,
}

impl AcceptorPool {
    /// Creates a pool with one thread, which waits for a connection.
    pub(super) fn with_one_thread() -> AcceptorPool {
        AcceptorPool { threads: 1, accepting: 1, ..AcceptorPool::default() }
    }

    /// Number of connections that are served.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Number of threads, without those whose connection is closed and which are about to end.
    pub(super) fn busy_threads(&self) -> usize {
        self.threads.saturating_sub(self.closed.len())
    }

    /// Adds a connection. Returns false if it must not be served.
    pub(super) fn enter(&mut self, id: u64, connection: &Arc<OpenConnection>) -> bool {
        let stream = &connection.stream;
        if self.stopping || self.served_since.is_some_and(|since| !is_established_since(stream, since)) {
            self.closed.insert(id);
            return false;
        }
        self.open.insert(id, Arc::clone(connection));
        true
    }

    /// Removes a connection whose thread has ended.
    pub(super) fn leave(&mut self, id: u64) {
        if self.open.remove(&id).is_none() {
            self.closed.remove(&id);
        }
    }

    /// Closes a connection. Its thread ends soon. Does nothing if the connection has ended.
    pub(super) fn close(&mut self, id: u64) {
        if let Some(connection) = self.open.remove(&id) {
            // Fails only if the connection is already closed.
            let _ = connection.stream.shutdown(Shutdown::Both);
            self.closed.insert(id);
        }
    }

    /// Closes all connections. Their threads serve what the kernel has received, and end. Returns
    /// the number of connections, and the id after the last one.
    pub(super) fn close_all(&mut self) -> (usize, u64) {
        let ids: Vec<u64> = self.open.keys().copied().collect();
        ids.iter().for_each(|id| self.close(*id));
        (ids.len(), self.closed.last().map_or(0, |last| last + 1))
    }

    /// Refuses connections that peers have established so far, but that no thread has accepted.
    #[expect(clippy::disallowed_methods, reason = "compared with the kernel's times")]
    pub(super) fn refuse_established(&mut self) {
        self.served_since = Some(Instant::now());
    }

    /// Number of closed connections with ids below `end` whose threads have not ended.
    pub(super) fn ending(&self, end: u64) -> usize {
        self.closed.range(..end).count()
    }

    /// The connections that are served.
    pub(super) fn connections(&self) -> Vec<(u64, Arc<OpenConnection>)> {
        self.open.iter().map(|(id, connection)| (*id, Arc::clone(connection))).collect()
    }
}

/// Returns true if a peer established the connection after `since`. If it was at about that time,
/// returns false.
#[expect(clippy::disallowed_methods, reason = "compared with the kernel's times")]
fn is_established_since(stream: &TcpStream, since: Instant) -> bool {
    let elapsed = Instant::now().duration_since(since);
    socket::established_for(stream).is_ok_and(|age| age + KERNEL_TICK < elapsed)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "data plane sockets and clocks do not use Env")]
mod tests {
    use super::*;
    use mcctl_base::Mono;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn connections_that_wait_to_be_accepted_are_refused_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accept = || {
            let (stream, from) = listener.accept().unwrap();
            Arc::new(OpenConnection { stream, activity: ConnectionActivity::new(from.ip(), Mono(1)) })
        };
        let mut pool = AcceptorPool::with_one_thread();
        let _peers = [connect(), connect()];
        assert!(pool.enter(5, &accept()));
        thread::sleep(Duration::from_millis(50));
        pool.refuse_established();
        assert_eq!((pool.close_all(), pool.open(), pool.ending(6)), ((1, 6), 0, 1));
        assert!(!pool.enter(6, &accept()), "established before");
        thread::sleep(Duration::from_millis(50));
        let _later = connect();
        assert!(pool.enter(7, &accept()));
        pool.leave(5);
        assert_eq!((pool.ending(6), pool.ending(7), pool.open()), (0, 1, 1));
        pool.leave(6);
        pool.leave(7);
        assert_eq!((pool.ending(u64::MAX), pool.open()), (0, 0));
    }
}
