//! Write sessions: objects that are allocated, written in several calls, and then completed or
//! revoked.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all};
use mcctl_base::{ClientId, ObjectKey};
use mcctl_store::checksum::PartChecksums;
use mcctl_store::{
    Allocation, KeyHold, ObjectPart, PartialWrite, ReplicateConfig, StoreClient, StoreError, WriteEnd, WriteMethod,
    is_revocable,
};
use mcctl_sys::caller_memory::MemoryUse;
use mcctl_sys::env::RealEnv;
use pyo3::prelude::*;

use crate::arguments::{Key, Natural, code, each, error_code, keys};
use crate::interpreter::detached;
use crate::objects::INVALID_PARAMS;
use crate::replicate_config::{NativeReplicateConfig, options};
use crate::session::{Session, SessionError, Worker};
use crate::store::MooncakeDistributedStore;

/// Maximum time after the request for an allocation in which it is written to. The master assigns
/// its memory to other objects when its release timeout for unfinished puts has ended, which is
/// 600 s by default. A session that is not ended by then no longer blocks its key.
const SESSION_MAX: Duration = Duration::from_secs(300);

/// The open write sessions. They share one connection to the master, because an allocation is valid
/// only until that connection is lost.
///
/// The state is not locked during calls of the network, so that a node that does not respond delays
/// only the calls that use it.
#[derive(Default)]
pub(crate) struct PutSessions {
    state: Mutex<OpenPuts>,
    /// Signals that a call has ended its writes.
    written: Condvar,
}

#[derive(Default)]
struct OpenPuts {
    worker: Option<Arc<Worker>>,
    of: HashMap<ObjectKey, OpenPut>,
}

/// An object that is being written.
struct OpenPut {
    size: u64,
    /// The memory of this object alone.
    allocation: Allocation,
    /// The checksums of the parts that were written.
    checksums: PartChecksums,
    /// The first error. The object is then revoked instead of completed.
    error: Option<StoreError>,
    /// Held by each call that writes to the object.
    writes: Arc<()>,
}

impl OpenPut {
    /// Returns the end of the write of `key`, with the object's checksum if the parts that were
    /// written cover it once.
    fn end<'a>(&'a self, key: &'a ObjectKey, client: &StoreClient<RealEnv>) -> WriteEnd<'a> {
        let replicas = self.allocation.replicas[0].as_deref().unwrap_or(&[]);
        WriteEnd { key, replicas, checksum: client.checksum_of_session(&self.checksums, self.size) }
    }

    fn is_being_written(&self) -> bool {
        Arc::strong_count(&self.writes) > 1
    }
}

/// Groups the objects at `indices` by the ID of their write.
fn by_writer(indices: &[usize], puts: &[OpenPut]) -> Vec<(ClientId, Vec<usize>)> {
    let mut groups: BTreeMap<ClientId, Vec<usize>> = BTreeMap::new();
    indices.iter().for_each(|at| groups.entry(puts[*at].allocation.writer).or_default().push(*at));
    groups.into_iter().collect()
}

/// The objects to which a call is writing, until the value is dropped.
struct RunningWrites<'a> {
    sessions: &'a PutSessions,
    of: Vec<Arc<()>>,
}

impl Drop for RunningWrites<'_> {
    fn drop(&mut self) {
        // Under the lock, so that a call that waits for the end of the writes does not miss it.
        let state = self.sessions.state();
        self.of.clear();
        drop(state);
        self.sessions.written.notify_all();
    }
}

impl PutSessions {
    /// Drops all sessions. The master drops their objects later.
    pub(crate) fn clear(&self) {
        *self.state() = OpenPuts::default();
    }

    fn state(&self) -> MutexGuard<'_, OpenPuts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self, session: &Session) -> Result<Arc<Worker>, SessionError> {
        let found = self.state().worker.clone();
        let worker = match found {
            Some(worker) => worker,
            None => {
                let new = Arc::new(session.connect()?);
                Arc::clone(self.state().worker.get_or_insert(new))
            }
        };
        worker.check_connection();
        Ok(worker)
    }

    /// Drops sessions that were not ended in time. Their keys may belong to other writes.
    fn drop_old(&self, client: &StoreClient<RealEnv>) {
        let mut old = 0;
        self.state().of.retain(|_, put| {
            let is_old = client.time_left(&put.allocation, SESSION_MAX).is_zero() && !put.is_being_written();
            old += usize::from(is_old);
            !is_old
        });
        if old > 0 {
            let limit = SESSION_MAX.as_secs();
            tracing::warn!(
                sessions = old,
                "write sessions were not ended within {limit} s; their objects are not stored. Call batch_put_session_end or \
                 batch_put_session_revoke for each started session, also after an exception"
            );
        }
    }

    fn start(&self, session: &Session, keys: &[ObjectKey], sizes: Vec<u64>, config: &ReplicateConfig) -> Vec<i32> {
        let worker = match self.worker(session) {
            Ok(worker) => worker,
            Err(error) => {
                return each(keys.len(), Err::<Result<Vec<_>, _>, _>(error)).into_iter().map(code::<()>).collect();
            }
        };
        self.drop_old(worker.client());
        let hold = KeyHold::Session { limit: SESSION_MAX };
        let allocated =
            worker.run(async |client| client.allocate(WriteMethod::Put, keys, sizes.clone(), config, hold).await);
        if let Ok(allocation) = &allocated {
            // No other write of this client has the keys yet.
            let is_unusable = |replicas: &Result<_, StoreError>| replicas.as_ref().is_err_and(is_revocable);
            let unusable = keys.iter().zip(&allocation.replicas).filter(|(_, replicas)| is_unusable(replicas));
            let unusable: Vec<ObjectKey> = unusable.map(|(key, _)| key.clone()).collect();
            if !unusable.is_empty() {
                worker.run(async |client| client.revoke(WriteMethod::Put, allocation.writer, &unusable).await);
            }
        }
        let allocated = each(keys.len(), Ok(allocated.map(|allocation| allocation.into_single(keys))));
        let mut state = self.state();
        let started = keys.iter().zip(sizes).zip(allocated).map(|((key, size), result)| match result {
            Ok(allocation) => {
                let put = OpenPut {
                    size,
                    allocation,
                    checksums: PartChecksums::default(),
                    error: None,
                    writes: Arc::default(),
                };
                state.of.insert(key.clone(), put);
                0
            }
            Err(error) => error_code(&error),
        });
        started.collect()
    }

    /// Writes parts of objects. Returns the number of bytes or a negative code for each.
    fn write(&self, session: &Session, keys: &[ObjectKey], parts: Vec<Option<Vec<ObjectPart>>>) -> Vec<i64> {
        let mut results = vec![i64::from(INVALID_PARAMS); keys.len()];
        let Ok(worker) = self.worker(session) else { return results };
        // Before the check, after which the bytes are sent at once.
        let no_parts: &[ObjectPart] = &[];
        let mut checksums: Vec<PartChecksums> =
            parts.iter().map(|parts| worker.client().part_checksums(parts.as_deref().unwrap_or(no_parts))).collect();
        let mut wanted = Vec::new();
        let mut limit = SESSION_MAX;
        let mut running = RunningWrites { sessions: self, of: Vec::new() };
        {
            let mut state = self.state();
            for (index, (key, parts)) in keys.iter().zip(parts).enumerate() {
                let (Some(put), Some(parts)) = (state.of.get_mut(key), parts) else { continue };
                if !ObjectPart::all_within(&parts, put.size) {
                    continue;
                }
                let left = worker.client().check(std::slice::from_ref(key), &mut put.allocation, SESSION_MAX);
                match &put.allocation.replicas[0] {
                    Ok(replicas) => {
                        wanted.push((index, replicas.clone(), parts));
                        running.of.push(Arc::clone(&put.writes));
                        limit = limit.min(left);
                    }
                    Err(error) => {
                        results[index] = i64::from(error_code(error));
                        put.error = Some(error.clone());
                    }
                }
            }
        }
        let bytes: Vec<usize> = wanted.iter().map(|(_, _, parts)| ObjectPart::total(parts)).collect();
        let indices: Vec<usize> = wanted.iter().map(|(index, _, _)| *index).collect();
        let writes = wanted.iter_mut().map(|(index, replicas, parts)| PartialWrite {
            key: &keys[*index],
            replicas,
            parts: std::mem::take(parts),
        });
        let writes: Vec<_> = writes.collect();
        // The thread that writes also runs its runtime, which must not be the one of the other
        // sessions' calls to the master.
        let own = session.worker();
        let mover = own.as_deref().unwrap_or(&worker);
        let written = mover.run(async |client| {
            let limit = limit.min(client.transfer_deadline());
            client.write_parts(&writes, limit).await
        });
        let mut state = self.state();
        let ended = indices.into_iter().zip(bytes).zip(written).zip(&running.of);
        for (((index, bytes), result), of) in ended {
            let put = state.of.get_mut(&keys[index]).filter(|put| Arc::ptr_eq(&put.writes, of));
            results[index] = match result {
                Ok(()) => {
                    put.into_iter().for_each(|put| put.checksums.append(std::mem::take(&mut checksums[index])));
                    i64::try_from(bytes).unwrap_or(i64::MAX)
                }
                Err(error) => {
                    let code = error_code(&error);
                    // An error that forbids revoking the object is kept.
                    if let Some(put) = put
                        && put.error.as_ref().is_none_or(|first| !first.may_still_land())
                    {
                        put.error = Some(error);
                    }
                    i64::from(code)
                }
            };
        }
        drop(state);
        results
    }

    /// Completes objects, or revokes those with an error. Waits for the calls that write to them.
    fn end(&self, session: &Session, keys: &[ObjectKey], revoke: bool) -> Vec<i32> {
        let mut codes = vec![INVALID_PARAMS; keys.len()];
        let Ok(worker) = self.worker(session) else { return codes };
        let mut good = Vec::new();
        let mut bad = Vec::new();
        // The keys are held until the objects are complete or revoked.
        let mut ending: Vec<OpenPut> = Vec::with_capacity(keys.len());
        let mut indices = Vec::with_capacity(keys.len());
        {
            let is_written =
                |state: &mut OpenPuts| keys.iter().any(|key| state.of.get(key).is_some_and(OpenPut::is_being_written));
            let state = self.written.wait_while(self.state(), is_written);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            for (index, key) in keys.iter().enumerate() {
                let Some(mut put) = state.of.remove(key) else { continue };
                worker.client().check_last(std::slice::from_ref(key), &mut put.allocation, SESSION_MAX);
                match (&put.allocation.replicas[0], &put.error) {
                    // The memory may belong to another object by now. The master drops an
                    // unfinished put.
                    (Err(error), _) => codes[index] = error_code(error),
                    // The bytes of a write may still arrive, so the master must not assign the
                    // memory to another object yet.
                    (_, Some(error)) if error.may_still_land() => codes[index] = error_code(error),
                    (_, None) if !revoke => good.push(ending.len()),
                    _ => bad.push(ending.len()),
                }
                ending.push(put);
                indices.push(index);
            }
        }
        // Each start of sessions has its own ID, with which its objects are completed and revoked.
        let good = by_writer(&good, &ending);
        let bad = by_writer(&bad, &ending);
        let (completed, revoked) = worker.run(async |client| {
            let complete = good.iter().map(async |(writer, of)| {
                let ends: Vec<WriteEnd<'_>> =
                    of.iter().map(|at| ending[*at].end(&keys[indices[*at]], client)).collect();
                client.complete(WriteMethod::Put, *writer, &ends).await
            });
            let undo = bad.iter().map(async |(writer, of)| {
                let of: Vec<ObjectKey> = of.iter().map(|at| keys[indices[*at]].clone()).collect();
                client.revoke(WriteMethod::Put, *writer, &of).await
            });
            join(join_all(complete), join_all(undo)).await
        });
        let mut set = |groups: &[(ClientId, Vec<usize>)], results: Vec<Vec<Result<(), StoreError>>>| {
            for (at, result) in groups.iter().flat_map(|(_, of)| of).zip(results.into_iter().flatten()) {
                codes[indices[*at]] = code(result);
            }
        };
        set(&good, completed);
        if revoke {
            set(&bad, revoked);
        }
        drop(ending);
        codes
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    /// Begins write sessions: allocates memory for objects of these sizes in bytes. Returns 0 or a
    /// negative code for each.
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
        detached(py, || session.puts.start(&session, &keys, sizes, &config))
    }

    /// Writes parts of the objects of open write sessions. Returns the number of bytes or a
    /// negative code for each object.
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
            let parts = (0..keys.len()).map(|index| {
                let addresses = &all_buffer_ptrs[index];
                let sizes = &all_sizes[index];
                session.parts_at(addresses, sizes, &all_dst_offsets[index], MemoryUse::Read)
            });
            session.puts.write(&session, &keys, parts.collect())
        })
    }

    /// Ends write sessions and completes their objects. Returns 0 or a negative code for each.
    /// Whether all bytes were written is not checked.
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
        detached(py, || session.puts.end(&session, &keys, revoke))
    }
}
