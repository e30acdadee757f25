//! Write sessions: objects that are allocated, written in several calls, and then completed or revoked.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use mcctl_store::engine::base::ObjectKey;
use mcctl_store::engine::store::{
    Allocation, KeyHold, ObjectPart, PartialWrite, ReplicateConfig, StoreError, WriteMethod, is_revocable,
};
use mcctl_store::engine::sys::caller_memory::MemoryUse;
use pyo3::prelude::*;

use crate::arguments::{Key, Natural, code, each, error_code, keys};
use crate::interpreter::detached;
use crate::objects::INVALID_PARAMS;
use crate::replicate_config::{NativeReplicateConfig, options};
use crate::session::{Session, SessionError, Worker};
use crate::store::MooncakeDistributedStore;

/// An allocation is written to for at most this long after the request for it. The master assigns its memory to other objects when its
/// release timeout for unfinished puts has ended, which is 600 s by default.
const SESSION_MAX: Duration = Duration::from_secs(300);

/// The open write sessions. They share one connection to the master, because an allocation holds only until that is lost.
#[derive(Default)]
pub struct PutSessions {
    worker: Option<Worker>,
    open: HashMap<ObjectKey, OpenPut>,
}

/// An object that is being written.
struct OpenPut {
    size: u64,
    /// The memory of this object alone.
    allocation: Allocation,
    /// The first error. The object is then revoked instead of completed.
    error: Option<StoreError>,
}

impl PutSessions {
    /// Drops all sessions. The master drops their objects later.
    pub fn clear(&mut self) {
        self.open.clear();
        self.worker = None;
    }

    fn worker<'a>(worker: &'a mut Option<Worker>, session: &Session) -> Result<&'a Worker, SessionError> {
        match worker {
            Some(worker) => {
                worker.check_connection();
                Ok(worker)
            }
            None => Ok(worker.insert(session.connect()?)),
        }
    }

    fn start(&mut self, session: &Session, keys: &[ObjectKey], sizes: Vec<u64>, config: &ReplicateConfig) -> Vec<i32> {
        let worker = match PutSessions::worker(&mut self.worker, session) {
            Ok(worker) => worker,
            Err(error) => {
                return each(keys.len(), Err::<Result<Vec<_>, _>, _>(error)).into_iter().map(code::<()>).collect();
            }
        };
        let allocated = worker
            .run(async |client| client.allocate(WriteMethod::Put, keys, sizes.clone(), config, KeyHold::Session).await);
        let allocated = each(keys.len(), Ok(allocated.map(|allocation| allocation.into_single(keys))));
        let (mut codes, mut unusable) = (Vec::with_capacity(keys.len()), Vec::new());
        for ((key, size), result) in keys.iter().zip(sizes).zip(allocated) {
            codes.push(match result {
                Ok(allocation) => {
                    self.open.insert(key.clone(), OpenPut { size, allocation, error: None });
                    0
                }
                Err(error) => {
                    if is_revocable(&error) {
                        unusable.push(key.clone());
                    }
                    error_code(&error)
                }
            });
        }
        if !unusable.is_empty() {
            worker.run(async |client| client.revoke(WriteMethod::Put, &unusable).await);
        }
        codes
    }

    /// Writes parts of objects. Returns the number of bytes or a negative code for each.
    fn write(&mut self, session: &Session, keys: &[ObjectKey], parts: Vec<Option<Vec<ObjectPart>>>) -> Vec<i64> {
        let PutSessions { worker, open } = self;
        let mut results = vec![i64::from(INVALID_PARAMS); keys.len()];
        let Ok(worker) = PutSessions::worker(worker, session) else { return results };
        let (mut wanted, mut limit) = (Vec::new(), SESSION_MAX);
        for (index, (key, parts)) in keys.iter().zip(parts).enumerate() {
            let (Some(put), Some(parts)) = (open.get_mut(key), parts) else { continue };
            if !ObjectPart::all_within(&parts, put.size) {
                continue;
            }
            let left =
                worker.run(async |client| client.check(std::slice::from_ref(key), &mut put.allocation, SESSION_MAX));
            if let Err(error) = &put.allocation.replicas[0] {
                results[index] = i64::from(error_code(error));
                put.error = Some(error.clone());
                continue;
            }
            limit = limit.min(left);
            wanted.push((index, key, parts));
        }
        let writes: Vec<_> = wanted
            .into_iter()
            .filter_map(|(index, key, parts)| {
                let replicas = open.get(key)?.allocation.replicas[0].as_ref().ok()?;
                Some((index, PartialWrite { key, replicas, parts }))
            })
            .collect();
        let (indices, writes): (Vec<_>, Vec<_>) = writes.into_iter().unzip();
        let written = worker.run(async |client| {
            let limit = limit.min(client.transfer_deadline());
            client.write_parts(&writes, limit).await
        });
        let bytes: Vec<usize> = writes.iter().map(|write| ObjectPart::total(&write.parts)).collect();
        drop(writes);
        for ((index, bytes), result) in indices.into_iter().zip(bytes).zip(written) {
            results[index] = match result {
                Ok(()) => i64::try_from(bytes).unwrap_or(i64::MAX),
                Err(error) => {
                    let code = error_code(&error);
                    // An error that forbids revoking the object is kept.
                    if let Some(put) = open.get_mut(&keys[index])
                        && put.error.as_ref().is_none_or(|first| !first.may_still_land())
                    {
                        put.error = Some(error);
                    }
                    i64::from(code)
                }
            };
        }
        results
    }

    /// Completes objects, or revokes those with an error.
    fn end(&mut self, session: &Session, keys: &[ObjectKey], revoke: bool) -> Vec<i32> {
        let mut codes = vec![INVALID_PARAMS; keys.len()];
        let Ok(worker) = PutSessions::worker(&mut self.worker, session) else { return codes };
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for (index, key) in keys.iter().enumerate() {
            let Some(mut put) = self.open.remove(key) else { continue };
            worker.run(async |client| client.check(std::slice::from_ref(key), &mut put.allocation, SESSION_MAX));
            if let Err(error) = &put.allocation.replicas[0] {
                // The key may belong to another put by now, so it is neither completed nor revoked. The master drops an unfinished put.
                codes[index] = error_code(error);
                continue;
            }
            match put.error {
                // The bytes of a write may still arrive, so the master must not assign the memory to another object yet.
                Some(error) if error.may_still_land() => codes[index] = error_code(&error),
                None if !revoke => good.push(index),
                _ => bad.push(index),
            }
        }
        let at = |indices: &[usize]| -> Vec<ObjectKey> { indices.iter().map(|index| keys[*index].clone()).collect() };
        if !good.is_empty() {
            let completed = worker.run(async |client| client.complete(WriteMethod::Put, &at(&good)).await);
            good.iter().zip(completed).for_each(|(index, result)| codes[*index] = code(result));
        }
        if !bad.is_empty() {
            let revoked = worker.run(async |client| client.revoke(WriteMethod::Put, &at(&bad)).await);
            if revoke {
                bad.iter().zip(revoked).for_each(|(index, result)| codes[*index] = code(result));
            }
        }
        codes
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    /// Begins write sessions: allocates memory for objects of these sizes in bytes. Returns 0 or a negative code for each.
    #[pyo3(signature = (keys, sizes, config = None))]
    fn batch_put_session_start(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        sizes: Vec<Natural>,
        config: Option<PyRef<'_, NativeReplicateConfig>>,
    ) -> Vec<i32> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return Vec::new() };
        if sizes.len() != keys.len() {
            return vec![INVALID_PARAMS; keys.len()];
        }
        if keys.is_empty() {
            return Vec::new();
        }
        let config = options(config);
        let sizes = sizes.into_iter().map(|size| size.0).collect();
        detached(py, || {
            let mut puts = session.puts.lock().unwrap_or_else(PoisonError::into_inner);
            puts.start(&session, &keys, sizes, &config)
        })
    }

    /// Writes parts of the objects of open write sessions. Returns the number of bytes or a negative code for each object.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, all_dst_offsets))]
    fn batch_put_from_multi_buffer_ranges(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        all_buffer_ptrs: Vec<Vec<Natural>>,
        all_sizes: Vec<Vec<Natural>>,
        all_dst_offsets: Vec<Vec<Natural>>,
    ) -> Vec<i64> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return Vec::new() };
        if [all_buffer_ptrs.len(), all_sizes.len(), all_dst_offsets.len()].iter().any(|len| *len != keys.len()) {
            return vec![i64::from(INVALID_PARAMS); keys.len()];
        }
        detached(py, || {
            let mut puts = session.puts.lock().unwrap_or_else(PoisonError::into_inner);
            let parts = (0..keys.len()).map(|index| {
                let (addresses, sizes) = (&all_buffer_ptrs[index], &all_sizes[index]);
                session.parts_at(addresses, sizes, &all_dst_offsets[index], MemoryUse::Read)
            });
            puts.write(&session, &keys, parts.collect())
        })
    }

    /// Ends write sessions and completes their objects. Returns 0 or a negative code for each. Whether all bytes were written is not checked.
    fn batch_put_session_end(&self, py: Python<'_>, keys: Vec<Key>) -> Vec<i32> {
        self.end_puts(py, keys, false)
    }

    /// Ends write sessions and drops their objects. Returns 0 or a negative code for each.
    fn batch_put_session_revoke(&self, py: Python<'_>, keys: Vec<Key>) -> Vec<i32> {
        self.end_puts(py, keys, true)
    }
}

impl MooncakeDistributedStore {
    fn end_puts(&self, py: Python<'_>, keys: Vec<Key>, revoke: bool) -> Vec<i32> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return Vec::new() };
        detached(py, || session.puts.lock().unwrap_or_else(PoisonError::into_inner).end(&session, &keys, revoke))
    }
}
