//! Transfers the bytes of a batch of objects: one transfer per node.

use std::collections::BTreeMap;

use crate::ObjectPart;
use mcctl_transfer::{Op, OpKind, RemoteAddr};
use mcctl_wire::types::BufferDescriptor;

/// The transfers of a batch to or from one node.
pub(crate) struct NodeBatch<T> {
    /// What is transferred, and how many of `ops` belong to each.
    pub items: Vec<(T, usize)>,
    pub ops: Vec<Op>,
}

impl<T> NodeBatch<T> {
    fn new() -> NodeBatch<T> {
        NodeBatch { items: Vec::new(), ops: Vec::new() }
    }

    /// Adds transfers between the memory in `parts` and the replica at `buffer`, which must contain
    /// all of them. Returns their number.
    pub(crate) fn add(&mut self, kind: OpKind, parts: &[ObjectPart], buffer: &BufferDescriptor) -> usize {
        self.ops.extend(parts.iter().map(|part| Op {
            kind,
            local: part.local.clone(),
            remote: RemoteAddr(buffer.buffer_address.wrapping_add(part.offset)),
        }));
        parts.len()
    }
}

/// Groups transfers by node.
pub(crate) struct NodeBatches<T> {
    by_endpoint: BTreeMap<String, NodeBatch<T>>,
}

impl<T> NodeBatches<T> {
    /// Creates an empty grouping, to which transfers are added.
    pub(crate) fn new() -> NodeBatches<T> {
        NodeBatches { by_endpoint: BTreeMap::new() }
    }

    /// Returns the batch for the node that holds the replica at `buffer`.
    pub(crate) fn of(&mut self, buffer: &BufferDescriptor) -> &mut NodeBatch<T> {
        let endpoint = buffer.transport_endpoint.to_string_lossy();
        self.by_endpoint.entry(endpoint.into_owned()).or_insert_with(NodeBatch::new)
    }

    /// Returns the batches with the endpoints of their nodes.
    pub(crate) fn into_batches(self) -> Vec<(String, NodeBatch<T>)> {
        self.by_endpoint.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_sys::Memory;
    use std::sync::Arc;

    #[test]
    fn transfers_are_grouped_by_node_in_order() {
        let memory = Arc::new(Memory::from_vec(vec![0; 10]));
        let buffer = |endpoint: &str, address| BufferDescriptor {
            size: 10,
            buffer_address: address,
            protocol: "tcp".into(),
            transport_endpoint: endpoint.into(),
        };
        let parts = ObjectPart::consecutive([memory.slice(0, 3).unwrap(), memory.slice(3, 7).unwrap()]);
        let mut batches = NodeBatches::new();
        for (item, parts, at) in
            [(1, &parts[..], ("b", 100)), (2, &parts[..1], ("a", 200)), (3, &parts[1..], ("b", 300))]
        {
            let buffer = buffer(at.0, at.1);
            let batch = batches.of(&buffer);
            let ops = batch.add(OpKind::Read, parts, &buffer);
            batch.items.push((item, ops));
        }
        let batches = batches.into_batches();
        let shape: Vec<_> = batches.iter().map(|(endpoint, batch)| (endpoint.as_str(), &batch.items[..])).collect();
        assert_eq!(shape, [("a", &[(2, 1)][..]), ("b", &[(1, 2), (3, 1)])]);
        assert_eq!(batches[1].1.ops.iter().map(|op| op.remote.0).collect::<Vec<_>>(), [100, 103, 303]);
    }
}
