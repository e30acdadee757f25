//! Zero-copy reads and writes: objects in the caller's memory.

use std::sync::PoisonError;

use mcctl_base::ObjectKey;
use mcctl_store::{ObjectPart, ReplicateConfig, StoreError, WriteMethod};
use mcctl_sys::Slice;
use mcctl_sys::caller_memory::MemoryUse;
use pyo3::prelude::*;

use crate::arguments::{Key, Natural, bytes_or_code, code, each, error_code, flat, keys};
use crate::interpreter::detached;
use crate::replicate_config::{NativeReplicateConfig, options};
use crate::session::Session;
use crate::store::{MooncakeDistributedStore, NOT_SET_UP};

/// The code of arguments that do not fit together, or of memory that does not exist.
pub(crate) const INVALID_PARAMS: i32 = mcctl_base::ErrorCode::INVALID_PARAMS.0;

type Config<'py> = Option<PyRef<'py, NativeReplicateConfig>>;

#[pymethods]
impl MooncakeDistributedStore {
    /// Stores the `size` bytes at `buffer_ptr`. An existing object is left unchanged. Returns 0 or
    /// a negative code.
    #[pyo3(signature = (key, buffer_ptr, size, config = None))]
    fn put_from(&self, py: Python<'_>, key: Key, buffer_ptr: Natural, size: Natural, config: Config<'_>) -> i32 {
        self.put_buffers(py, WriteMethod::Put, vec![key], vec![vec![buffer_ptr]], vec![vec![size]], config)[0]
    }

    /// Stores the `size` bytes at `buffer_ptr`, and replaces an existing object. Returns 0 or a
    /// negative code.
    #[pyo3(signature = (key, buffer_ptr, size, config = None))]
    fn upsert_from(&self, py: Python<'_>, key: Key, buffer_ptr: Natural, size: Natural, config: Config<'_>) -> i32 {
        self.put_buffers(py, WriteMethod::Upsert, vec![key], vec![vec![buffer_ptr]], vec![vec![size]], config)[0]
    }

    /// Stores one object per buffer. Existing objects are left unchanged. Returns 0 or a negative
    /// code for each.
    #[pyo3(signature = (keys, buffer_ptrs, sizes, config = None))]
    fn batch_put_from(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        buffer_ptrs: Vec<Natural>,
        sizes: Vec<Natural>,
        config: Config<'_>,
    ) -> Vec<i32> {
        self.put_buffers(py, WriteMethod::Put, keys, single(buffer_ptrs), single(sizes), config)
    }

    /// Stores one object per buffer, and replaces existing ones. Returns 0 or a negative code for
    /// each.
    #[pyo3(signature = (keys, buffer_ptrs, sizes, config = None))]
    fn batch_upsert_from(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        buffer_ptrs: Vec<Natural>,
        sizes: Vec<Natural>,
        config: Config<'_>,
    ) -> Vec<i32> {
        self.put_buffers(py, WriteMethod::Upsert, keys, single(buffer_ptrs), single(sizes), config)
    }

    /// Stores objects whose bytes lie in several buffers each, one after another. Existing objects
    /// are left unchanged. Returns 0 or a negative code for each.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, config = None))]
    fn batch_put_from_multi_buffers(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        all_buffer_ptrs: Vec<Vec<Natural>>,
        all_sizes: Vec<Vec<Natural>>,
        config: Config<'_>,
    ) -> Vec<i32> {
        if self.session().is_none() {
            // As in the wheel.
            return Vec::new();
        }
        self.put_buffers(py, WriteMethod::Put, keys, all_buffer_ptrs, all_sizes, config)
    }

    /// Stores `metadata_size` bytes of metadata followed by `size` bytes of data. Returns 0 or a
    /// negative code.
    #[pyo3(signature = (key, buffer_ptr, metadata_buffer_ptr, size, metadata_size, config = None))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of the upstream method")]
    fn put_from_with_metadata(
        &self,
        py: Python<'_>,
        key: Key,
        buffer_ptr: Natural,
        metadata_buffer_ptr: Natural,
        size: Natural,
        metadata_size: Natural,
        config: Config<'_>,
    ) -> i32 {
        let addresses = vec![metadata_buffer_ptr, buffer_ptr];
        let sizes = vec![metadata_size, size];
        self.put_buffers(py, WriteMethod::Put, vec![key], vec![addresses], vec![sizes], config)[0]
    }

    /// Reads an object into the `size` bytes at `buffer_ptr`. Returns the object's size, or a
    /// negative code.
    #[pyo3(signature = (key, buffer_ptr, size))]
    fn get_into(&self, py: Python<'_>, key: Key, buffer_ptr: Natural, size: Natural) -> i64 {
        self.get_buffers(py, vec![key], vec![buffer_ptr], vec![size])[0]
    }

    /// Reads one object into each buffer. Returns the object's size or a negative code for each.
    #[pyo3(signature = (keys, buffer_ptrs, sizes))]
    fn batch_get_into(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        buffer_ptrs: Vec<Natural>,
        sizes: Vec<Natural>,
    ) -> Vec<i64> {
        self.get_buffers(py, keys, buffer_ptrs, sizes)
    }

    /// Registers the `size` bytes at `buffer_ptr` with the transport's devices, for faster
    /// transfers. The memory must remain valid until it is unregistered. Returns 0, or a negative
    /// code if the memory overlaps a registered buffer or a device refuses it.
    #[pyo3(signature = (buffer_ptr, size))]
    fn register_buffer(&self, py: Python<'_>, buffer_ptr: Natural, size: Natural) -> i32 {
        let Some(session) = self.session() else { return NOT_SET_UP };
        detached(py, || session.register(buffer_ptr.0, size.size()))
    }

    /// Unregisters a buffer. Returns 0, or a negative code if it is not registered.
    #[pyo3(signature = (buffer_ptr))]
    fn unregister_buffer(&self, py: Python<'_>, buffer_ptr: Natural) -> i32 {
        let Some(session) = self.session() else { return NOT_SET_UP };
        detached(py, || session.unregister(buffer_ptr.0))
    }
}

impl MooncakeDistributedStore {
    fn put_buffers(
        &self,
        py: Python<'_>,
        method: WriteMethod,
        keys: Vec<Key>,
        addresses: Vec<Vec<Natural>>,
        sizes: Vec<Vec<Natural>>,
        config: Config<'_>,
    ) -> Vec<i32> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return vec![NOT_SET_UP; keys.len()] };
        let config = options(config);
        detached(py, || {
            if addresses.len() != keys.len() || sizes.len() != keys.len() {
                return vec![INVALID_PARAMS; keys.len()];
            }
            let parts = addresses.iter().zip(&sizes);
            let parts = parts.map(|(addresses, sizes)| session.slices(addresses, sizes, MemoryUse::Read));
            let objects = keys.into_iter().zip(parts.collect::<Vec<_>>());
            session.store(method, objects.collect(), &config)
        })
    }

    fn get_buffers(&self, py: Python<'_>, keys: Vec<Key>, addresses: Vec<Natural>, sizes: Vec<Natural>) -> Vec<i64> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return vec![i64::from(NOT_SET_UP); keys.len()] };
        detached(py, || {
            if addresses.len() != keys.len() || sizes.len() != keys.len() {
                return vec![i64::from(INVALID_PARAMS); keys.len()];
            }
            let slices = addresses.into_iter().zip(sizes);
            let slices = slices.map(|(address, size)| session.slice(address, size, MemoryUse::Write));
            let mut results = vec![i64::from(INVALID_PARAMS); keys.len()];
            let mut objects = Vec::new();
            let mut indices = Vec::with_capacity(keys.len());
            for (index, (key, slice)) in keys.into_iter().zip(slices.collect::<Vec<_>>()).enumerate() {
                if let Some(slice) = slice {
                    objects.push((key, slice));
                    indices.push(index);
                }
            }
            if objects.is_empty() {
                return results;
            }
            let read = each(objects.len(), session.run(async |client| client.batch_get_into(&objects).await));
            for (index, result) in indices.into_iter().zip(read) {
                results[index] = bytes_or_code(result);
            }
            results
        })
    }
}

impl Session {
    /// Stores objects. Returns 0 or a negative code for each. An object without parts has arguments
    /// that are not valid.
    pub(crate) fn store(
        &self,
        method: WriteMethod,
        objects: Vec<(ObjectKey, Option<Vec<Slice>>)>,
        config: &ReplicateConfig,
    ) -> Vec<i32> {
        let mut codes = vec![INVALID_PARAMS; objects.len()];
        let mut indices = Vec::new();
        let mut valid = Vec::new();
        for (index, (key, slices)) in objects.into_iter().enumerate() {
            // The real master rejects empty keys, and the real client sends them.
            if let Some(slices) = slices
                && slices.iter().any(|slice| !slice.is_empty())
            {
                let slices = slices.into_iter().filter(|slice| !slice.is_empty());
                valid.push((key, ObjectPart::consecutive(slices)));
                indices.push(index);
            }
        }
        if valid.is_empty() {
            return codes;
        }
        let config = selected(config, &indices, codes.len());
        let stored = each(valid.len(), self.run(async |client| client.store(method, &valid, &config).await));
        for (index, result) in indices.into_iter().zip(stored) {
            codes[index] = code(result);
        }
        codes
    }

    /// Returns the caller's memory; `None` if it does not exist.
    pub(crate) fn slice(&self, address: Natural, size: Natural, usage: MemoryUse) -> Option<Slice> {
        let buffers = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        buffers.slice(address.0, size.size(), usage).inspect_err(|error| tracing::warn!("{error}")).ok()
    }

    /// Returns the caller's memory in several pieces; `None` if a piece does not exist.
    pub(crate) fn slices(&self, addresses: &[Natural], sizes: &[Natural], usage: MemoryUse) -> Option<Vec<Slice>> {
        if addresses.len() != sizes.len() {
            return None;
        }
        // An address without bytes may be null.
        let pieces = addresses.iter().zip(sizes).filter(|(_, size)| size.0 > 0);
        pieces.map(|(address, size)| self.slice(*address, *size, usage)).collect()
    }
}

/// Returns the options for the objects at `indices` of a batch of `count`: each object has its own
/// group.
fn selected(config: &ReplicateConfig, indices: &[usize], count: usize) -> ReplicateConfig {
    let mut config = config.clone();
    if let Some(groups) = config.group_ids.as_mut()
        && groups.len() == count
    {
        *groups = indices.iter().map(|index| groups[*index].clone()).collect();
    }
    config
}

/// Makes a list of one from each value.
fn single<T>(values: Vec<T>) -> Vec<Vec<T>> {
    values.into_iter().map(|value| vec![value]).collect()
}

/// Removes the replicas of objects on `segment`. Returns the keys of the objects that lost
/// replicas.
pub(crate) fn replica_clear(session: &Session, keys: &[ObjectKey], segment: &str) -> Vec<String> {
    let cleared = flat(session.run(async |client| {
        let texts = keys.iter().map(|key| key.as_bytes().into()).collect();
        let cleared = client.master().batch_replica_clear(texts, client.id(), segment.into(), client.tenant()).await?;
        cleared.map_err(|code| StoreError::Refused { what: "BatchReplicaClear", code })
    }));
    match cleared {
        Ok(cleared) => cleared.into_iter().map(|key| key.to_string()).collect(),
        Err(error) => {
            error_code(&error);
            Vec::new()
        }
    }
}
