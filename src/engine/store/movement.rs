//! Transfers the bytes for a batch of objects: one transfer per node, all of them concurrently.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use crate::engine::sys::memory::Slice;
use crate::engine::transfer::{Op, OpKind, RemoteAddr, TransferEngine, TransferError, WriteRetry};
use crate::engine::wire::types::BufferDescriptor;

/// A transfer between local memory and one replica.
pub struct Movement {
    /// Endpoint of the node that holds the replica.
    pub endpoint: String,
    pub op: Op,
}

impl Movement {
    /// Creates a transfer between `local` and the replica at `buffer`, which must have the same size.
    pub fn new(kind: OpKind, local: Slice, buffer: &BufferDescriptor) -> Movement {
        let endpoint = buffer.transport_endpoint.to_string_lossy().into_owned();
        Movement { endpoint, op: Op { kind, local, remote: RemoteAddr(buffer.buffer_address) } }
    }
}

/// Runs all transfers within `limit`. Returns their results in order. A write is not repeated after its connection was lost: a node closes its
/// connections before it mounts its memory again, and the memory of the object is then assigned to others.
pub async fn run_transfers(
    engine: &TransferEngine,
    movements: Vec<Movement>,
    limit: Duration,
) -> Vec<Result<(), TransferError>> {
    let mut results: Vec<Result<(), TransferError>> = Vec::with_capacity(movements.len());
    let mut by_endpoint: BTreeMap<String, (Vec<usize>, Vec<Op>)> = BTreeMap::new();
    for (index, movement) in movements.into_iter().enumerate() {
        results.push(Ok(()));
        let (indices, ops) = by_endpoint.entry(movement.endpoint).or_default();
        indices.push(index);
        ops.push(movement.op);
    }
    let batches = by_endpoint.into_iter().map(|(endpoint, (indices, ops))| async move {
        (indices, engine.submit(&endpoint, ops, limit).write_retry(WriteRetry::Forbidden).finish().await)
    });
    for (indices, moved) in join_all(batches).await {
        for (index, moved) in indices.into_iter().zip(moved) {
            results[index] = moved;
        }
    }
    results
}
