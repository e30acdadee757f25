//! Ends writes at the master: completes or revokes them, and looks up objects whose end got no
//! response.
//!
//! Each write has an id of its own ([`Allocation::writer`](crate::Allocation)). So an end or a
//! revocation may arrive late or twice: it changes nothing but its own write.

use crate::checksum::{self, PartChecksums, Unchecked};
use crate::client::{ObjectStat, each, key_texts};
use crate::{ObjectPart, StoreClient, StoreError, WriteMethod};
use mcctl_base::{ClientId, ErrorCode, ObjectKey};
use mcctl_sys::env::Env;
use mcctl_wire::Text;
use mcctl_wire::types::{BufferDescriptor, ObjectMeta, ReplicaDescriptor, ReplicaLocation, ReplicaType};

/// The end of an object's write, whose bytes are in place.
#[derive(Clone, Copy, Debug)]
pub struct WriteEnd<'a> {
    pub key: &'a ObjectKey,
    /// The replicas that were written.
    pub replicas: &'a [BufferDescriptor],
    /// The checksum of the object's bytes, if it was computed.
    pub checksum: Option<u64>,
}

impl<E: Env> StoreClient<E> {
    /// Completes objects at the master, which were written with the id `writer`. If the response is
    /// lost, the call is repeated once: the id is that of this write alone, so a second end changes
    /// nothing. If the master then refuses it, it may have completed the object before; the object
    /// is looked up.
    pub async fn complete(
        &self,
        method: WriteMethod,
        writer: ClientId,
        ends: &[WriteEnd<'_>],
    ) -> Vec<Result<(), StoreError>> {
        let mut results = self.send_ends(method, writer, ends).await;
        let is_repeated = results.as_ref().is_err_and(StoreError::is_transient);
        if is_repeated {
            results = self.send_ends(method, writer, ends).await;
        }
        let unknown = |end: &WriteEnd<'_>, source: &StoreError| StoreError::OutcomeUnknown {
            key: end.key.clone(),
            source: Box::new(source.clone()),
        };
        let mut results = match results {
            Ok(results) => results,
            Err(error) => return ends.iter().map(|end| Err(unknown(end, &error))).collect(),
        };
        let is_unwritten = |result: &Result<(), StoreError>| {
            matches!(result, Err(StoreError::Refused { code: ErrorCode::ILLEGAL_CLIENT, .. }))
        };
        let refused: Vec<usize> = (0..ends.len()).filter(|at| is_unwritten(&results[*at])).collect();
        if refused.is_empty() {
            return results;
        }
        let keys: Vec<ObjectKey> = refused.iter().map(|at| ends[*at].key.clone()).collect();
        let found = match self.batch_stat(&keys).await {
            Ok(found) => found,
            Err(error) => vec![Err(error); keys.len()],
        };
        for (at, found) in refused.into_iter().zip(found) {
            match found {
                Ok(found) if is_end_of(&ends[at], &found) => results[at] = Ok(()),
                // The first end may have completed the object, which another write has replaced
                // since.
                _ if is_repeated => {
                    if let Err(error) = &mut results[at] {
                        *error = unknown(&ends[at], error);
                    }
                }
                _ => {}
            }
        }
        results
    }

    /// Returns the checksum of an object whose bytes are `parts`, in order; nothing if checksums
    /// are off.
    pub(crate) fn checksum_of(&self, parts: &[ObjectPart]) -> Option<u64> {
        if self.inner.config.checksums {
            return Some(checksum::of_parts(parts));
        }
        self.count_checksums(|counts| counts.unchecked_write(Unchecked::Off));
        None
    }

    /// Returns the checksums of parts that are written to an object of several calls; nothing if
    /// checksums are off.
    pub fn part_checksums(&self, parts: &[ObjectPart]) -> PartChecksums {
        if self.inner.config.checksums { PartChecksums::of(parts) } else { PartChecksums::default() }
    }

    /// Returns the checksum of an object of `size` bytes that was written in several calls, if it
    /// is known. Otherwise, counts the object.
    pub fn checksum_of_session(&self, parts: &PartChecksums, size: u64) -> Option<u64> {
        let checksum = parts.of_object(size);
        if checksum.is_none() {
            let reason = if self.inner.config.checksums { Unchecked::Part } else { Unchecked::Off };
            self.count_checksums(|counts| counts.unchecked_write(reason));
        }
        checksum
    }

    async fn send_ends(
        &self,
        method: WriteMethod,
        writer: ClientId,
        ends: &[WriteEnd<'_>],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let metas = ends.iter().map(|end| ObjectMeta { key: Text(end.key.as_bytes()), object_checksum: end.checksum });
        let metas = metas.collect();
        let master = self.master();
        let tenant = self.tenant();
        let (what, answers) = match method {
            WriteMethod::Put => ("BatchPutEnd", master.batch_put_end(writer, metas, ReplicaType::ALL, tenant).await?),
            WriteMethod::Upsert => ("BatchUpsertEnd", master.batch_upsert_end(writer, metas, tenant).await?),
        };
        Ok(each(what, ends.len(), answers)?.collect())
    }

    /// Revokes objects at the master that were allocated for `writer` and are not complete. If the
    /// master does not respond, it drops them by itself later.
    pub async fn revoke(
        &self,
        method: WriteMethod,
        writer: ClientId,
        keys: &[ObjectKey],
    ) -> Vec<Result<(), StoreError>> {
        let master = self.master();
        let count = keys.len();
        let keys = key_texts(keys);
        let tenant = self.tenant();
        let (what, answers) = match method {
            WriteMethod::Put => {
                ("BatchPutRevoke", master.batch_put_revoke(writer, keys, ReplicaType::ALL, tenant).await)
            }
            WriteMethod::Upsert => ("BatchUpsertRevoke", master.batch_upsert_revoke(writer, keys, tenant).await),
        };
        match answers.map_err(StoreError::from).and_then(|answers| each(what, count, answers)) {
            Ok(revoked) => revoked.collect(),
            Err(error) => {
                tracing::debug!(%error, "cannot revoke an unfinished put; the master will drop it");
                vec![Err(error); count]
            }
        }
    }
}

/// Whether a lookup has found the object that this write completed: it has the same memory and the
/// same checksum.
fn is_end_of(end: &WriteEnd<'_>, found: &ObjectStat) -> bool {
    let is_own = |replica: &ReplicaDescriptor| match &replica.location {
        ReplicaLocation::Memory(buffer) => end.replicas.contains(buffer),
        _ => false,
    };
    end.checksum.is_some() && found.found.object_checksum == end.checksum && found.found.replicas.iter().any(is_own)
}
