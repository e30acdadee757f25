//! Bytes that do not have the object's checksum. A mismatch is examined before it is reported: an upsert may have rewritten the object in place
//! while it was being read.
//!
//! 1. The object is looked up again. If anything has changed, it is read again under the new lookup, by the caller.
//! 2. The same replica is read again. If its bytes are now right, something on the way has changed them, or two upserts came in between.
//! 3. Otherwise, both are repeated. A writer that rewrites the object with two values in turn can hide a change from one lookup, and from a
//!    second one with a smaller probability. After [`ROUNDS`] rounds, the replica is damaged. The node is counted, and another replica is
//!    read. Without one, the read fails with CHECKSUM_MISMATCH (-801).

use std::time::Duration;

use crate::engine::base::ObjectKey;
use crate::engine::env::Env;
use crate::engine::store::checksum::{self, ChecksumResult, Unchecked};
use crate::engine::store::checksum_metrics::ChecksumMetrics;
use crate::engine::store::client_config::OnCorruption;
use crate::engine::store::read::{EndedRead, PendingRead, ReadBatch};
use crate::engine::store::replica::reading_order;
use crate::engine::store::{ObjectLookup, ObjectPart, ObjectStat, StoreClient, StoreError};
use crate::engine::wire::types::BufferDescriptor;

/// Number of further reads with wrong bytes after which a replica counts as damaged, if all of them have the same checksum, and otherwise.
const ROUNDS: u32 = 7;
const ROUNDS_UNSTABLE: u32 = 15;
/// Longest time between two rounds, in microseconds.
const PAUSE_MAX_US: u64 = 2000;

/// Whether a replica is damaged.
pub(in crate::engine::store) struct DamageConfirmation {
    /// The last lookup, which has found the object unchanged, if the replica is damaged. Otherwise, its bytes were right in the end.
    pub lookup: Option<ObjectLookup>,
    /// Number of further reads.
    pub rounds: u32,
}

impl<E: Env> StoreClient<E> {
    /// Whether the bytes in `parts` are not those of the object. Counts what cannot be compared. If not `compares`, checksums are off.
    pub(in crate::engine::store) fn is_different(
        &self,
        stat: &Result<ObjectStat, StoreError>,
        parts: &[ObjectPart],
        compares: bool,
    ) -> bool {
        let Ok(stat) = stat else { return false };
        let result = match compares {
            true => checksum::compare(stat.found.object_checksum, stat.size, parts),
            false => ChecksumResult::Unchecked(Unchecked::Off),
        };
        let unchecked = match result {
            ChecksumResult::Unchecked(reason) => Some(reason),
            ChecksumResult::Equal => None,
            ChecksumResult::Different => return true,
        };
        self.count_checksums(|counts| counts.read(unchecked));
        false
    }

    /// Finds out why the bytes of `key` in `parts`, which were read from `buffer`, do not have the object's checksum. Returns the object's
    /// size once its bytes are in `parts`.
    pub(in crate::engine::store) async fn examine_mismatch(
        &self,
        key: &ObjectKey,
        stat: &ObjectStat,
        parts: Vec<ObjectPart>,
        buffer: BufferDescriptor,
    ) -> Result<usize, StoreError> {
        let bytes = ObjectPart::total(&parts);
        let Some(lookup) = self.confirm_damage(key, stat, &parts, &buffer).await?.lookup else { return Ok(bytes) };
        self.report_corruption(key, stat, &buffer).await;
        let others = reading_order(&stat.found.replicas, &[], self.inner.env.rng());
        for other in others.into_iter().filter(|other| **other != buffer && ObjectPart::all_within(&parts, other.size))
        {
            match self.read_replica(key, &lookup, &parts, other).await {
                Ok(true) => return Ok(bytes),
                Ok(false) => self.report_corruption(key, stat, other).await,
                Err(error @ (StoreError::LookupLost { .. } | StoreError::LeaseExpired { .. })) => return Err(error),
                Err(_) => {}
            }
        }
        Err(StoreError::Corrupt { key: key.clone(), endpoint: buffer.transport_endpoint.to_string() })
    }

    /// Reads the replica at `buffer` into `parts` again, whose bytes do not have the object's checksum, until they have it or the replica
    /// counts as damaged.
    ///
    /// # Errors
    /// The master or the node did not respond, or the object has changed since `stat` ([`StoreError::LookupLost`]).
    pub(in crate::engine::store) async fn confirm_damage(
        &self,
        key: &ObjectKey,
        stat: &ObjectStat,
        parts: &[ObjectPart],
        buffer: &BufferDescriptor,
    ) -> Result<DamageConfirmation, StoreError> {
        let (first, mut is_stable, mut rounds) = (checksum::of_parts(parts), true, 0);
        while rounds < if is_stable { ROUNDS } else { ROUNDS_UNSTABLE } {
            let lookup = self.look_up_unchanged(key, stat).await?;
            rounds += 1;
            if self.read_replica(key, &lookup, parts, buffer).await? {
                self.count_reread(buffer);
                return Ok(DamageConfirmation { lookup: None, rounds });
            }
            is_stable &= checksum::of_parts(parts) == first;
            // A random time, so that the rounds do not keep in step with a writer.
            self.inner.env.sleep(Duration::from_micros(self.inner.env.rng() % PAUSE_MAX_US)).await;
        }
        Ok(DamageConfirmation { lookup: Some(self.look_up_unchanged(key, stat).await?), rounds })
    }

    /// Looks up the object again.
    ///
    /// # Errors
    /// [`StoreError::LookupLost`] if the object has changed since `before`: the caller reads it again.
    pub(in crate::engine::store) async fn look_up_unchanged(
        &self,
        key: &ObjectKey,
        before: &ObjectStat,
    ) -> Result<ObjectLookup, StoreError> {
        let lookup = self.look_up(std::slice::from_ref(key)).await?;
        if lookup.stats[0].as_ref().is_ok_and(|now| now == before) {
            return Ok(lookup);
        }
        self.count_checksums(ChecksumMetrics::retry);
        Err(StoreError::LookupLost { key: key.clone() })
    }

    /// Reads the object from this replica. Returns whether the bytes have its checksum.
    ///
    /// # Errors
    /// The node did not respond, or the lookup did not hold until the end.
    pub(in crate::engine::store) async fn read_replica(
        &self,
        key: &ObjectKey,
        lookup: &ObjectLookup,
        parts: &[ObjectPart],
        buffer: &BufferDescriptor,
    ) -> Result<bool, StoreError> {
        let stat = lookup.stats[0].as_ref().map_err(Clone::clone)?;
        let lease = Duration::from_millis(stat.found.lease_ttl_ms);
        let (keys, until) = (std::slice::from_ref(key), lookup.end_of(lease));
        let batch = ReadBatch { keys, stats: &lookup.stats, until, compares: true };
        let read = PendingRead { index: 0, parts: parts.to_vec(), left: vec![buffer.clone()] };
        let ended = self.read_from_nodes(batch, vec![read], true).await;
        self.check_connection();
        if self.fence() != lookup.fence {
            return Err(StoreError::LookupLost { key: key.clone() });
        }
        if self.inner.env.boottime() >= lookup.end_of(lease) {
            return Err(StoreError::LeaseExpired { key: key.clone(), lease });
        }
        match ended.into_iter().next() {
            Some(EndedRead::Done) => Ok(true),
            Some(EndedRead::Different(..)) => Ok(false),
            Some(EndedRead::Failed(_, error)) => Err(error),
            None => Err(StoreError::NoReplica { key: key.clone(), replicas: 1 }),
        }
    }

    /// Changes the counts of checksums, if this client has metrics.
    pub(in crate::engine::store) fn count_checksums(&self, change: impl FnOnce(&mut ChecksumMetrics)) {
        if let Some(metrics) = &self.inner.config.metrics {
            metrics.checksums(change);
        }
    }

    fn count_reread(&self, buffer: &BufferDescriptor) {
        let node = buffer.transport_endpoint.to_string_lossy();
        tracing::debug!(%node, "bytes did not have their object's checksum, and had it when they were read again");
        self.count_checksums(|counts| counts.reread(&node));
    }

    /// Counts and logs a damaged replica, and removes it if the client is to withdraw such replicas.
    pub(in crate::engine::store) async fn report_corruption(
        &self,
        key: &ObjectKey,
        stat: &ObjectStat,
        buffer: &BufferDescriptor,
    ) {
        let inner = &*self.inner;
        let node = buffer.transport_endpoint.to_string_lossy().into_owned();
        let report = inner.shared.corruptions.add(inner.env.now(), &node, key);
        self.count_checksums(|counts| counts.mismatch(&node));
        if report.is_new {
            let (address, bytes) = (format_args!("{:#x}", buffer.buffer_address), buffer.size);
            tracing::error!(
                segment = node, address = %address, bytes,
                "the bytes of an object in this segment do not have its checksum; reads of it fail or use another replica"
            );
        }
        if let Some(host) = report.suspect {
            tracing::error!("ten checksum mismatches within a minute: suspect memory of host {host}");
        }
        if inner.config.on_corruption == OnCorruption::Withdraw && report.may_withdraw {
            self.withdraw(key, stat, &node).await;
        }
    }

    /// Removes the damaged replica. An object with one replica is removed. Of several, the one in the segment with the node's name is cleared,
    /// which the master refuses while a reader has a lease.
    async fn withdraw(&self, key: &ObjectKey, stat: &ObjectStat, segment: &str) {
        let withdrawn = match stat.found.replicas.len() {
            1 => self.remove(key, true).await.is_ok(),
            _ => {
                let cleared = self.master().batch_replica_clear(vec![key.as_bytes().into()], self.id(), segment.into());
                cleared.await.is_ok_and(|cleared| cleared.is_ok_and(|cleared| !cleared.is_empty()))
            }
        };
        if withdrawn {
            tracing::warn!(segment, "withdrew a damaged replica");
            self.count_checksums(ChecksumMetrics::withdrawn);
        }
    }
}
