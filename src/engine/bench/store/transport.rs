//! Which transport moved the bytes of a pass, by node. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use mcctl_transfer::{Flow, PeerCounters};

/// The name of shared memory as a transport, as in [`PeerCounters`].
pub const SHARED_MEMORY: &str = "shared-memory";

/// Bytes by transport (`shared-memory`, `tcp` or `rdma`) and node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportUse(BTreeMap<String, BTreeMap<String, u64>>);

/// The nodes and bytes that a transport served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransportShare {
    pub transport: String,
    /// Number of nodes to or from which this transport moved bytes.
    pub nodes: usize,
    pub bytes: u64,
}

impl TransportUse {
    /// Counts `bytes` to or from `node`.
    pub fn count(&mut self, transport: &str, node: &str, bytes: u64) {
        if bytes > 0 {
            *self.0.entry(transport.to_owned()).or_default().entry(node.to_owned()).or_default() += bytes;
        }
    }

    /// Adds the bytes of another pass or process.
    pub fn add(&mut self, other: &TransportUse) {
        for (transport, nodes) in &other.0 {
            nodes.iter().for_each(|(node, bytes)| self.count(transport, node, *bytes));
        }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.0.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>().len()
    }

    /// Returns each transport's share, the largest first.
    pub fn shares(&self) -> Vec<TransportShare> {
        let share = |(transport, nodes): (&String, &BTreeMap<String, u64>)| TransportShare {
            transport: transport.clone(),
            nodes: nodes.len(),
            bytes: nodes.values().sum(),
        };
        let mut shares: Vec<TransportShare> = self.0.iter().map(share).collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }

    /// Returns what an engine whose transport is `protocol` has written and read between two
    /// samples of its counters.
    pub(super) fn between(
        protocol: &str,
        before: &[PeerCounters],
        after: &[PeerCounters],
    ) -> (TransportUse, TransportUse) {
        let mut written = TransportUse::default();
        let mut read = TransportUse::default();
        for peer in after {
            let earlier = before.iter().find(|earlier| earlier.segment == peer.segment);
            // The engine drops the counters of a segment that it has not used for some time.
            let earlier = earlier.filter(|earlier| earlier.flow.read_bytes <= peer.flow.read_bytes);
            let earlier = earlier.filter(|earlier| earlier.flow.written_bytes <= peer.flow.written_bytes);
            let (all, shared) = earlier.map_or_else(Default::default, |earlier| (earlier.flow, earlier.shared));
            let protocol = if peer.transport == "memory" { peer.transport } else { protocol };
            let count = |to: &mut TransportUse, bytes: fn(&Flow) -> u64| {
                let of_all = bytes(&peer.flow) - bytes(&all);
                let of_shared = bytes(&peer.shared).saturating_sub(bytes(&shared));
                to.count(SHARED_MEMORY, &peer.segment, of_shared);
                to.count(protocol, &peer.segment, of_all.saturating_sub(of_shared));
            };
            count(&mut written, |flow| flow.written_bytes);
            count(&mut read, |flow| flow.read_bytes);
        }
        (written, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(
        segment: &str,
        transport: &'static str,
        [written, read, shared_written, shared_read]: [u64; 4],
    ) -> PeerCounters {
        let flow = |written_bytes, read_bytes| Flow { written_bytes, read_bytes, ..Flow::default() };
        let (flow, shared) = (flow(written, read), flow(shared_written, shared_read));
        PeerCounters { segment: segment.to_owned(), transport, flow, shared, down: false }
    }

    fn share(transport: &str, nodes: usize, bytes: u64) -> TransportShare {
        TransportShare { transport: transport.to_owned(), nodes, bytes }
    }

    #[test]
    fn bytes_are_counted_by_transport_and_node() {
        let before = [peer("a", "shared-memory", [10, 10, 10, 10]), peer("b", "tcp", [5, 0, 0, 0])];
        let after = [
            peer("a", "shared-memory", [110, 60, 90, 60]),
            peer("b", "tcp", [45, 0, 0, 0]),
            peer("c", "shared-memory", [7, 8, 7, 8]),
            peer("unused", "tcp", [0, 0, 0, 0]),
        ];
        let (written, read) = TransportUse::between("tcp", &before, &after);
        assert_eq!(written.shares(), [share("shared-memory", 2, 87), share("tcp", 2, 60)]);
        assert_eq!(written.nodes(), 3);
        assert_eq!((read.shares(), read.nodes()), (vec![share("shared-memory", 2, 58)], 2));
        let mut sum = written.clone();
        sum.add(&read);
        assert_eq!((sum.shares()[0].bytes, sum.nodes()), (145, 3));
    }

    #[test]
    fn counters_that_began_again_count_in_full() {
        let before = [peer("a", "rdma", [1000, 1000, 0, 0])];
        let (written, read) = TransportUse::between("rdma", &before, &[peer("a", "rdma", [10, 2000, 0, 0])]);
        assert_eq!((written.shares(), read.shares()), (vec![share("rdma", 1, 10)], vec![share("rdma", 1, 2000)]));
    }
}
