//! How objects are read: looks up the replicas, reads one, tries the next one after a failure, and
//! checks that the lookup was still valid: its lease had not ended, and the connection to the
//! master had not been lost. Bytes that do not have the object's checksum are examined by
//! [`mismatch`](crate::mismatch).
//!
//! Each node's objects are one transfer. An object whose node failed is read from its next replica
//! at once, while the transfers from other nodes go on.

use std::time::Duration;

use futures_util::future::join_all;

use crate::client::ObjectStat;
use crate::fence::MasterFence;
use crate::movement::{NodeBatch, NodeBatches};
use crate::replica::reading_order;
use crate::{ObjectPart, StoreClient, StoreError};
use mcctl_base::{Mono, ObjectKey};
use mcctl_sys::env::Env;
use mcctl_transfer::OpKind;
use mcctl_wire::types::BufferDescriptor;

/// Minimum time limit for reading from a node.
const READ_LIMIT_MIN: Duration = Duration::from_millis(100);
/// It is confirmed for this long which replicas of a batch are damaged. Later mismatches are not
/// confirmed: the objects are read from another replica, or fail, and are not reported as damaged.
const EXAMINING_MAX: Duration = Duration::from_secs(2);
/// A lease ends earlier for the client than for the master: by a fraction, because the two clocks
/// may run at different rates, and by some milliseconds, because each is read some time before or
/// after it is used. Clocks that NTP adjusts differ by at most 0.1 % (500 ppm each); a hundredth is
/// ten times as much.
const LEASE_DRIFT: u32 = 100;
const LEASE_MARGIN: Duration = Duration::from_millis(10);

/// What the master has reported about objects, to read them.
#[derive(Clone, Debug)]
pub struct ObjectLookup {
    /// When the request was sent, on the clock that counts while the host is suspended. The leases
    /// begin then at the earliest.
    started: Mono,
    pub(crate) fence: MasterFence,
    /// What was found, one entry per key.
    pub stats: Vec<Result<ObjectStat, StoreError>>,
}

impl ObjectLookup {
    /// Returns the age of the lookup at `now`, a time on the clock [`boottime`](Env::boottime).
    pub fn age(&self, now: Mono) -> Duration {
        now.since(self.started)
    }

    /// Splits the lookup into lookups of one object each.
    pub(crate) fn split(self) -> impl Iterator<Item = ObjectLookup> {
        let ObjectLookup { started, fence, stats } = self;
        stats.into_iter().map(move |stat| ObjectLookup { started, fence, stats: vec![stat] })
    }

    /// Returns when bytes of an object with this lease may no longer be used.
    pub(crate) fn end_of(&self, lease: Duration) -> Mono {
        self.started + lease.saturating_sub(lease / LEASE_DRIFT + LEASE_MARGIN)
    }
}

/// A read in progress.
#[derive(Debug)]
pub(crate) struct PendingRead {
    /// Index of the object in the batch.
    pub index: usize,
    pub parts: Vec<ObjectPart>,
    /// Replicas that have not been tried, best last.
    pub left: Vec<BufferDescriptor>,
}

/// How the read of an object has ended. The index is that of the object in the batch.
pub(crate) enum EndedRead {
    Done,
    Failed(usize, StoreError),
    /// The bytes that were read from this replica do not have the object's checksum.
    Different(PendingRead, BufferDescriptor),
}

/// A batch of reads, and what the master has reported about its objects.
#[derive(Clone, Copy)]
pub(crate) struct ReadBatch<'a> {
    pub keys: &'a [ObjectKey],
    pub stats: &'a [Result<ObjectStat, StoreError>],
    /// When the first lease ends, as a boot time.
    pub until: Mono,
    /// Whether the bytes are compared with the checksums.
    pub compares: bool,
}

impl<E: Env> StoreClient<E> {
    /// Looks up objects, to read them with [`read_parts`](StoreClient::read_parts). Grants read
    /// leases.
    ///
    /// # Errors
    /// The master did not respond.
    pub async fn look_up(&self, keys: &[ObjectKey]) -> Result<ObjectLookup, StoreError> {
        let started = self.inner.env.boottime();
        let fence = self.fence();
        Ok(ObjectLookup { started, fence, stats: self.batch_stat(keys).await? })
    }

    /// Reads parts of the objects with these `keys`, which `lookup` has found, directly into the
    /// caller's memory. Returns the number of bytes read from each object. An entry of `parts` that
    /// is an error is returned as it is.
    ///
    /// If the result is [`StoreError::LookupLost`] or [`StoreError::LeaseExpired`], the read may
    /// succeed after another lookup. After an error, the content of the memory is unspecified.
    pub async fn read_parts(
        &self,
        keys: &[ObjectKey],
        lookup: &ObjectLookup,
        parts: Vec<Result<Vec<ObjectPart>, StoreError>>,
    ) -> Vec<Result<usize, StoreError>> {
        let ObjectLookup { fence, stats, .. } = lookup;
        let inner = &*self.inner;
        let mut results: Vec<Result<usize, StoreError>> = Vec::with_capacity(keys.len());
        let mut reads = Vec::with_capacity(keys.len());
        let own: Vec<&str> = inner.own_endpoints.iter().map(String::as_str).collect();
        for (index, ((stat, parts), key)) in stats.iter().zip(parts).zip(keys).enumerate() {
            let found = match (stat, parts) {
                (Err(error), _) => Err(error.clone()),
                (_, Err(error)) => Err(error),
                (Ok(stat), Ok(parts)) => readable(key, stat, &parts, &own, inner.env.rng()).map(|left| {
                    let bytes = ObjectPart::total(&parts);
                    reads.push(PendingRead { index, parts, left });
                    bytes
                }),
            };
            results.push(found);
        }
        let began = inner.env.now();
        let objects = keys.len();
        // Bytes that arrive after the lease are of no use.
        let leases =
            reads.iter().filter_map(|read| stats[read.index].as_ref().ok()).map(|stat| stat.found.lease_ttl_ms);
        let until = lookup.end_of(Duration::from_millis(leases.min().unwrap_or(0)));
        let batch = ReadBatch { keys, stats, until, compares: inner.config.checksums };
        let mut different = Vec::new();
        for ended in self.read_from_nodes(batch, reads, true).await {
            match ended {
                EndedRead::Done => {}
                EndedRead::Failed(index, error) => results[index] = Err(error),
                EndedRead::Different(read, buffer) => different.push((read, buffer)),
            }
        }
        self.check_connection();
        let now = inner.env.now();
        let boottime = inner.env.boottime();
        let is_lost = self.fence() != *fence;
        if let Some(metrics) = &inner.config.metrics {
            let bytes: usize = results.iter().flatten().sum();
            if bytes > 0 {
                metrics.transfer(OpKind::Read, objects, bytes as u64, now.since(began));
            }
        }
        for ((key, stat), result) in keys.iter().zip(stats).zip(&mut results) {
            let Ok(stat) = stat else { continue };
            if is_lost {
                // A node that mounts its memory again also ends the transfers in progress, so a
                // failed read counts as lost, too.
                *result = Err(StoreError::LookupLost { key: key.clone() });
            } else if result.is_ok() {
                let lease = Duration::from_millis(stat.found.lease_ttl_ms);
                if boottime >= lookup.end_of(lease) {
                    *result = Err(StoreError::LeaseExpired { key: key.clone(), lease });
                }
            }
        }
        let examined_from = inner.env.now();
        for (read, buffer) in different {
            let index = read.index;
            let key = &keys[read.index];
            // Without a valid lookup, wrong bytes mean nothing.
            let (true, Ok(stat)) = (results[index].is_ok(), &stats[index]) else { continue };
            let confirms = inner.env.now().since(examined_from) < EXAMINING_MAX;
            results[index] = self.examine_mismatch(key, stat, read.parts, buffer, confirms).await;
        }
        if let Some(metrics) = &inner.config.metrics {
            metrics.object_reads(&results);
        }
        results
    }

    /// Reads each object from its next replica, and from the others after a failure. `is_alone`: no
    /// other transfer of the same batch is waiting.
    pub(crate) async fn read_from_nodes(
        &self,
        batch: ReadBatch<'_>,
        reads: Vec<PendingRead>,
        is_alone: bool,
    ) -> Vec<EndedRead> {
        let mut batches = NodeBatches::new();
        for mut read in reads {
            let Some(buffer) = read.left.pop() else { continue };
            let transfers = batches.of(&buffer);
            let ops = transfers.add(OpKind::Read, &read.parts, &buffer);
            transfers.items.push(((read, buffer), ops));
        }
        let batches = batches.into_batches();
        let is_alone = is_alone && batches.len() == 1;
        let each =
            batches.into_iter().map(|(endpoint, transfers)| self.read_from_node(batch, endpoint, transfers, is_alone));
        join_all(each).await.into_iter().flatten().collect()
    }

    async fn read_from_node(
        &self,
        batch: ReadBatch<'_>,
        endpoint: String,
        transfers: NodeBatch<(PendingRead, BufferDescriptor)>,
        is_alone: bool,
    ) -> Vec<EndedRead> {
        let mut limit = batch.until.since(self.inner.env.boottime()).max(READ_LIMIT_MIN);
        if transfers.items.iter().all(|((read, _), _)| !read.left.is_empty()) {
            // The other half is for the next replica.
            limit /= 2;
        }
        let limit = limit.min(self.inner.config.transfer_deadline);
        let mut moved = self.transfer(&endpoint, transfers.ops, limit, is_alone).await.into_iter();
        let mut ended = Vec::with_capacity(transfers.items.len());
        let mut again = Vec::new();
        for ((read, buffer), ops) in transfers.items {
            let index = read.index;
            match moved.by_ref().take(ops).fold(Ok(()), Result::and) {
                Ok(()) if self.is_different(&batch.stats[index], &read.parts, batch.compares) => {
                    ended.push(EndedRead::Different(read, buffer));
                }
                Ok(()) => ended.push(EndedRead::Done),
                // The node has ended transfers, so what the lookup found may have moved. This
                // includes other replicas on the node.
                Err(source) if source.is_ended() => {
                    ended.push(EndedRead::Failed(index, StoreError::LookupLost { key: batch.keys[index].clone() }));
                }
                Err(_) if !read.left.is_empty() => again.push(read),
                Err(source) => {
                    let key = batch.keys[index].clone();
                    let endpoint = endpoint.clone();
                    ended
                        .push(EndedRead::Failed(index, StoreError::Transfer { key, endpoint, writing: false, source }));
                }
            }
        }
        if !again.is_empty() {
            ended.extend(Box::pin(self.read_from_nodes(batch, again, is_alone)).await);
        }
        ended
    }
}

/// Returns the replicas from which `parts` can be read, best last.
fn readable(
    key: &ObjectKey,
    stat: &ObjectStat,
    parts: &[ObjectPart],
    own_endpoints: &[&str],
    salt: u64,
) -> Result<Vec<BufferDescriptor>, StoreError> {
    let replicas = &stat.found.replicas;
    let order = reading_order(replicas, own_endpoints, salt);
    let left: Vec<_> =
        order.into_iter().rev().filter(|buffer| ObjectPart::all_within(parts, buffer.size)).cloned().collect();
    match left.is_empty() {
        true => Err(StoreError::NoReplica { key: key.clone(), replicas: replicas.len() }),
        false => Ok(left),
    }
}
