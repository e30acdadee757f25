//! Bytes that do not have the object's checksum. A mismatch is examined before it is reported: an
//! upsert may have rewritten the object in place while it was being read.
//!
//! 1. The object is looked up again. If anything has changed, it is read again under the new
//!    lookup, by the caller.
//! 2. The object's other replicas are read once each. If the bytes of one are right, the read
//!    succeeds.
//! 3. The same replica is read again, into other memory. If its bytes are now right, they were
//!    changed between the node and the caller's memory, or two upserts came in between. This also
//!    determines which replicas are damaged if another one was right.
//! 4. Otherwise, both are repeated. A writer that rewrites the object with two values in turn can
//!    hide a change from one lookup, and from a second one with a smaller probability. After
//!    [`ROUNDS`] rounds, the replica is damaged, and the node is counted. Without a right replica,
//!    the read fails with CHECKSUM_MISMATCH (-801). A replica that was found damaged before is read
//!    again once.

use std::sync::Arc;
use std::time::Duration;

use crate::checksum::{self, ChecksumResult, Unchecked};
use crate::checksum_metrics::ChecksumMetrics;
use crate::client_config::OnCorruption;
use crate::get::{whole, zeroed};
use crate::read::{EndedRead, PendingRead, ReadBatch};
use crate::replica::reading_order;
use crate::{ObjectLookup, ObjectPart, ObjectStat, StoreClient, StoreError};
use mcctl_base::ObjectKey;
use mcctl_sys::env::Env;
use mcctl_sys::memory::Memory;
use mcctl_wire::types::BufferDescriptor;
use mcctl_wire::withdrawal::ReplicaWithdrawal;

/// Number of further reads with wrong bytes after which a replica counts as damaged, if all of them
/// have the same checksum, and otherwise.
const ROUNDS: u32 = 7;
const ROUNDS_UNSTABLE: u32 = 15;
/// The same for a replica that was found damaged before. Otherwise, each read of a batch with many
/// damaged objects takes seconds again.
const ROUNDS_KNOWN: u32 = 1;
/// Longest time between two rounds, in microseconds.
const PAUSE_MAX_US: u64 = 2000;

/// What further reads of a replica have shown.
pub(crate) enum ReplicaBytes {
    /// The bytes are right, and in the caller's memory.
    Right,
    /// The bytes are wrong.
    Damaged,
    /// The bytes are right in other memory of this process, and wrong in the caller's: another
    /// thread writes there, or the memory is faulty.
    WrongHere,
}

impl<E: Env> StoreClient<E> {
    /// Whether the bytes in `parts` are not those of the object. Counts what cannot be compared. If
    /// not `compares`, checksums are off.
    pub(crate) fn is_different(
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

    /// Reads `key` again, whose bytes in `parts` do not have its checksum and were read from
    /// `buffer`. Returns the object's size once its bytes are in `parts`. If not `confirms`, damage
    /// of the object's replicas is neither confirmed nor reported.
    pub(crate) async fn examine_mismatch(
        &self,
        key: &ObjectKey,
        stat: &ObjectStat,
        parts: Vec<ObjectPart>,
        buffer: BufferDescriptor,
        confirms: bool,
    ) -> Result<usize, StoreError> {
        let others = reading_order(&stat.found.replicas, &[], self.inner.env.rng());
        let others = others.into_iter().filter(|other| **other != buffer && ObjectPart::all_within(&parts, other.size));
        let mut suspects = vec![(buffer.clone(), checksum::of_parts(&parts))];
        // Another replica is read before it is confirmed that the first one is damaged, which takes
        // several reads.
        for replica in others {
            let lookup = self.look_up_unchanged(key, stat).await?;
            match self.read_replica(key, &lookup, &parts, replica).await {
                Ok(true) => {
                    if confirms {
                        self.blame(key, stat, &suspects).await;
                    }
                    return Ok(ObjectPart::total(&parts));
                }
                Ok(false) => suspects.push((replica.clone(), checksum::of_parts(&parts))),
                Err(error @ (StoreError::LookupLost { .. } | StoreError::Call(_))) => return Err(error),
                // The node does not respond. Another replica may be readable.
                Err(_) => {}
            }
        }
        for (replica, bytes) in suspects.iter().filter(|_| confirms) {
            match self.confirm_damage(key, stat, &parts, *bytes, replica).await {
                Ok((ReplicaBytes::Right, _)) => return Ok(ObjectPart::total(&parts)),
                Ok((ReplicaBytes::Damaged, _)) => self.report_damage(key, stat, replica).await,
                Ok((ReplicaBytes::WrongHere, _)) => return Err(StoreError::WrongBuffer { key: key.clone() }),
                Err(error @ (StoreError::LookupLost { .. } | StoreError::Call(_))) => return Err(error),
                Err(_) => {}
            }
        }
        Err(StoreError::Damaged { key: key.clone(), endpoint: buffer.transport_endpoint.to_string() })
    }

    /// Reports which of these replicas are damaged. The object was read from another one, so errors
    /// have no effect.
    async fn blame(&self, key: &ObjectKey, stat: &ObjectStat, suspects: &[(BufferDescriptor, u64)]) {
        for (replica, bytes) in suspects {
            if self.is_known_damaged(key, stat, replica) {
                continue;
            }
            if let Ok((ReplicaBytes::Damaged, _)) = self.confirm_damage(key, stat, &[], *bytes, replica).await {
                self.report_damage(key, stat, replica).await;
            }
        }
    }

    fn is_known_damaged(&self, key: &ObjectKey, stat: &ObjectStat, replica: &BufferDescriptor) -> bool {
        let node = replica.transport_endpoint.to_string_lossy();
        self.inner.shared.damage.is_known(&node, key, stat.found.object_checksum)
    }

    /// Reads the replica at `buffer` again, whose bytes had the checksum `first` instead of the
    /// object's, until it has right bytes or counts as damaged. It is read into other memory,
    /// because the fault may be in that of the caller; right bytes are copied to `parts`. Also
    /// returns the number of reads.
    ///
    /// # Errors
    /// The master or the node did not respond, or the object has changed since `stat`
    /// ([`StoreError::LookupLost`]).
    pub(crate) async fn confirm_damage(
        &self,
        key: &ObjectKey,
        stat: &ObjectStat,
        parts: &[ObjectPart],
        first: u64,
        buffer: &BufferDescriptor,
    ) -> Result<(ReplicaBytes, u32), StoreError> {
        let other = Arc::new(Memory::from_vec(zeroed(key, stat.size)?)).whole();
        let again = whole(other.clone());
        let mut is_stable = true;
        let mut rounds = 0;
        let is_known = self.is_known_damaged(key, stat, buffer);
        let rounds_max = |is_stable| match (is_known, is_stable) {
            (true, _) => ROUNDS_KNOWN,
            (false, true) => ROUNDS,
            (false, false) => ROUNDS_UNSTABLE,
        };
        while rounds < rounds_max(is_stable) {
            let lookup = self.look_up_unchanged(key, stat).await?;
            rounds += 1;
            if self.read_replica(key, &lookup, &again, buffer).await? {
                self.count_reread(buffer);
                for part in parts {
                    let at = usize::try_from(part.offset).unwrap_or(usize::MAX);
                    let copied = other.part(at, part.local.len()).and_then(|from| part.local.copy_from(&from));
                    copied.map_err(|_| StoreError::WrongBuffer { key: key.clone() })?;
                }
                let is_right = Some(checksum::of_parts(parts)) == stat.found.object_checksum;
                return Ok((if is_right { ReplicaBytes::Right } else { ReplicaBytes::WrongHere }, rounds));
            }
            is_stable &= checksum::of_parts(&again) == first;
            if rounds == rounds_max(is_stable) {
                break;
            }
            // A random time, so that the rounds do not keep in step with a writer.
            self.inner.env.sleep(Duration::from_micros(self.inner.env.rng() % PAUSE_MAX_US)).await;
        }
        self.look_up_unchanged(key, stat).await?;
        Ok((ReplicaBytes::Damaged, rounds))
    }

    /// Looks up the object again.
    ///
    /// # Errors
    /// [`StoreError::LookupLost`] if the object has changed since `before`: the caller reads it
    /// again.
    pub(crate) async fn look_up_unchanged(
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
    pub(crate) async fn read_replica(
        &self,
        key: &ObjectKey,
        lookup: &ObjectLookup,
        parts: &[ObjectPart],
        buffer: &BufferDescriptor,
    ) -> Result<bool, StoreError> {
        let stat = lookup.stats[0].as_ref().map_err(Clone::clone)?;
        let lease = Duration::from_millis(stat.found.lease_ttl_ms);
        let keys = std::slice::from_ref(key);
        let until = lookup.end_of(lease);
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
    pub(crate) fn count_checksums(&self, change: impl FnOnce(&mut ChecksumMetrics)) {
        if let Some(metrics) = &self.inner.config.metrics {
            metrics.checksums(change);
        }
    }

    fn count_reread(&self, buffer: &BufferDescriptor) {
        let node = buffer.transport_endpoint.to_string_lossy();
        tracing::debug!(%node, "bytes did not have their object's checksum, and had it when they were read again");
        self.count_checksums(|counts| counts.reread(&node));
    }

    /// Counts and logs a damaged replica, and removes it if the client is to withdraw such
    /// replicas.
    pub(crate) async fn report_damage(&self, key: &ObjectKey, stat: &ObjectStat, buffer: &BufferDescriptor) {
        let inner = &*self.inner;
        let segment = buffer.transport_endpoint.to_string_lossy().into_owned();
        let report = inner.shared.damage.add(inner.env.now(), &segment, key, stat.found.object_checksum);
        if report.is_new {
            self.count_checksums(|counts| counts.mismatch(&segment));
            let address = format_args!("{:#x}", buffer.buffer_address);
            let bytes = buffer.size;
            tracing::error!(
                segment, address = %address, bytes,
                "the bytes of an object in this segment do not have its checksum; reads of it fail or use another replica"
            );
        }
        if let Some(host) = report.suspect {
            tracing::error!("ten damaged replicas within a minute: suspect memory of host {host}");
        }
        if inner.config.on_corruption == OnCorruption::Withdraw {
            self.withdraw(key, stat, &segment).await;
        }
    }

    /// Removes the object if this replica is its only one. mcctl's master does so only if the
    /// object still has the same replica and checksum, and does not reuse the memory while a reader
    /// has a lease. Mooncake's own master refuses.
    async fn withdraw(&self, key: &ObjectKey, stat: &ObjectStat, segment: &str) {
        let ([replica], Some(checksum)) = (&stat.found.replicas[..], stat.found.object_checksum) else { return };
        if !self.inner.shared.damage.may_withdraw(self.inner.env.now()) {
            return;
        }
        let damaged = ReplicaWithdrawal { replica_id: replica.id, checksum }.to_string();
        let cleared = self
            .master()
            .batch_replica_clear(vec![key.as_bytes().into()], self.id(), damaged.as_str().into(), self.tenant())
            .await;
        if cleared.is_ok_and(|cleared| cleared.is_ok_and(|cleared| !cleared.is_empty())) {
            tracing::warn!(segment, "removed an object whose only replica is damaged");
            self.count_checksums(ChecksumMetrics::withdrawn);
        }
    }
}
