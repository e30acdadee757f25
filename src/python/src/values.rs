//! Objects as Python values: `bytes` and everything else that supports the buffer protocol.

use mcctl_base::ObjectKey;
use mcctl_store::{ObjectPart, READS_MAX, StoreClient, StoreError, WriteMethod};
use mcctl_sys::Slice;
use mcctl_sys::caller_memory::MemoryUse;
use mcctl_sys::env::RealEnv;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyTuple};

use crate::arguments::{Key, Value, keys};
use crate::interpreter::detached;
use crate::memory::unregistered;
use crate::objects::INVALID_PARAMS;
use crate::replicate_config::{NativeReplicateConfig, options};
use crate::store::{MooncakeDistributedStore, NOT_SET_UP};

type Config<'py> = Option<PyRef<'py, NativeReplicateConfig>>;

#[pymethods]
impl MooncakeDistributedStore {
    /// Stores a value. An existing object is left unchanged. Returns 0 or a negative code.
    #[pyo3(signature = (key, value, config = None))]
    fn put(&self, py: Python<'_>, key: Key, value: Value, config: Config<'_>) -> i32 {
        self.put_values(py, WriteMethod::Put, vec![(key.0, vec![value])], config)
    }

    /// Stores a value, and replaces an existing object. Returns 0 or a negative code.
    #[pyo3(signature = (key, value, config = None))]
    fn upsert(&self, py: Python<'_>, key: Key, value: Value, config: Config<'_>) -> i32 {
        self.put_values(py, WriteMethod::Upsert, vec![(key.0, vec![value])], config)
    }

    /// Stores several values as one object, one after another. An existing object is left
    /// unchanged. Returns 0 or a negative code.
    #[pyo3(signature = (key, *args, config = None))]
    fn put_parts(&self, py: Python<'_>, key: Key, args: &Bound<'_, PyTuple>, config: Config<'_>) -> PyResult<i32> {
        self.put_tuple(py, WriteMethod::Put, key, args, config)
    }

    /// Stores several values as one object, one after another, and replaces an existing object.
    /// Returns 0 or a negative code.
    #[pyo3(signature = (key, *args, config = None))]
    fn upsert_parts(&self, py: Python<'_>, key: Key, args: &Bound<'_, PyTuple>, config: Config<'_>) -> PyResult<i32> {
        self.put_tuple(py, WriteMethod::Upsert, key, args, config)
    }

    /// Stores one value per key. Existing objects are left unchanged. Returns 0, or the first
    /// negative code.
    #[pyo3(signature = (keys, values, config = None))]
    fn put_batch(&self, py: Python<'_>, keys: Vec<Key>, values: Vec<Value>, config: Config<'_>) -> i32 {
        self.put_lists(py, WriteMethod::Put, keys, values, config)
    }

    /// Stores one value per key, and replaces existing objects. Returns 0, or the first negative
    /// code.
    #[pyo3(signature = (keys, values, config = None))]
    fn upsert_batch(&self, py: Python<'_>, keys: Vec<Key>, values: Vec<Value>, config: Config<'_>) -> i32 {
        self.put_lists(py, WriteMethod::Upsert, keys, values, config)
    }

    /// Returns an object as `bytes`; empty if it does not exist or cannot be read.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Bound<'py, PyAny>> {
        let value = self.read_values(py, &[key.0], new_bytes)?.pop().flatten();
        Ok(value.unwrap_or_else(|| PyBytes::new(py, b"").into_any()))
    }

    /// Returns objects as `bytes`; empty for each that does not exist or cannot be read. One
    /// request to the master.
    fn get_batch<'py>(&self, py: Python<'py>, keys: Vec<Key>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let empty = || PyBytes::new(py, b"").into_any();
        if keys.is_empty() || self.session().is_none() {
            // As in the wheel.
            return Ok(vec![empty()]);
        }
        let values = self.read_values(py, &self::keys(keys), new_bytes)?;
        Ok(values.into_iter().map(|value| value.unwrap_or_else(empty)).collect())
    }

    /// Reads objects, each into the `bytearray` that `make` returns for the object's size. Returns
    /// them; None for each object that does not exist or cannot be read. One request to the master.
    /// The Python class implements `get_buffer` with it.
    fn _read_new<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Key>,
        make: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        self.read_values(py, &self::keys(keys), |_, size| {
            let value = make.call1((size,))?;
            let bytes = value.cast::<PyByteArray>()?;
            if bytes.len() != size {
                return Err(PyTypeError::new_err("the bytearray has another size"));
            }
            let address = bytes.data() as u64;
            Ok((value, address))
        })
    }
}

impl MooncakeDistributedStore {
    fn put_tuple(
        &self,
        py: Python<'_>,
        method: WriteMethod,
        key: Key,
        args: &Bound<'_, PyTuple>,
        config: Config<'_>,
    ) -> PyResult<i32> {
        let values = args.iter().map(|value| value.extract::<Value>()).collect::<PyResult<Vec<_>>>()?;
        if values.is_empty() {
            // The real client does nothing, either.
            return Ok(if self.session().is_some() { 0 } else { NOT_SET_UP });
        }
        Ok(self.put_values(py, method, vec![(key.0, values)], config))
    }

    fn put_lists(
        &self,
        py: Python<'_>,
        method: WriteMethod,
        keys: Vec<Key>,
        values: Vec<Value>,
        config: Config<'_>,
    ) -> i32 {
        if keys.len() != values.len() {
            return if self.session().is_some() { INVALID_PARAMS } else { NOT_SET_UP };
        }
        let objects = keys.into_iter().zip(values).map(|(key, value)| (key.0, vec![value]));
        self.put_values(py, method, objects.collect(), config)
    }

    /// Stores objects. Returns 0, or the first negative code. If an object is empty, nothing is
    /// stored.
    fn put_values(
        &self,
        py: Python<'_>,
        method: WriteMethod,
        objects: Vec<(ObjectKey, Vec<Value>)>,
        config: Config<'_>,
    ) -> i32 {
        let Some(session) = self.session() else { return NOT_SET_UP };
        let config = options(config);
        detached(py, || {
            let slices = |values: &[Value]| -> Option<Vec<Slice>> {
                let values = values.iter().filter(|value| value.len() > 0);
                let slices: Option<Vec<Slice>> =
                    values.map(|value| unregistered(value.address(), value.len(), MemoryUse::Later).ok()).collect();
                slices.filter(|slices| !slices.is_empty())
            };
            let with_slices = objects.iter().map(|(key, values)| (key.clone(), slices(values)));
            let with_slices: Vec<_> = with_slices.collect();
            if with_slices.iter().any(|(_, slices)| slices.is_none()) {
                return INVALID_PARAMS;
            }
            let codes = session.store(method, with_slices, &config);
            codes.into_iter().find(|code| *code != 0).unwrap_or(0)
        })
    }

    /// Reads objects, each into a new value from `make`, which is passed a size and also returns
    /// the address of the value's bytes.
    fn read_values<'py>(
        &self,
        py: Python<'py>,
        keys: &[ObjectKey],
        make: impl Fn(Python<'py>, usize) -> PyResult<(Bound<'py, PyAny>, u64)>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let mut values: Vec<Option<Bound<'py, PyAny>>> = keys.iter().map(|_| None).collect();
        let Some(session) = self.session() else { return Ok(values) };
        if keys.is_empty() {
            return Ok(values);
        }
        let Ok(worker) = detached(py, || session.worker()) else { return Ok(values) };
        let mut left: Vec<usize> = (0..keys.len()).collect();
        for _ in 0..READS_MAX {
            let keys: Vec<ObjectKey> = left.iter().map(|at| keys[*at].clone()).collect();
            let Ok(lookup) = detached(py, || worker.run(async |client| client.look_up(&keys).await)) else { break };
            let mut made = Vec::with_capacity(keys.len());
            let mut parts = Vec::with_capacity(keys.len());
            for (stat, key) in lookup.stats.iter().zip(&keys) {
                let Ok(stat) = stat else {
                    made.push(None);
                    parts.push(Err(StoreError::NoReplica { key: key.clone(), replicas: 0 }));
                    continue;
                };
                // Nothing else uses the value before it is returned.
                let size = usize::try_from(stat.size).unwrap_or(usize::MAX);
                let (value, address) = make(py, size)?;
                let local = unregistered(address, size, MemoryUse::Later);
                made.push(Some(value));
                parts.push(local.map(|local| vec![ObjectPart { offset: 0, local }]).map_err(|error| {
                    StoreError::NoMemory { key: key.clone(), size: stat.size, why: error.to_string() }
                }));
            }
            let read = async |client: &StoreClient<RealEnv>| client.read_parts(&keys, &lookup, parts).await;
            let results = detached(py, || worker.run(read));
            let mut lost = Vec::new();
            for ((at, value), result) in left.into_iter().zip(made).zip(results) {
                match result {
                    Ok(_) => values[at] = value,
                    Err(error) if error.is_lookup_lost() => lost.push(at),
                    Err(_) => {}
                }
            }
            left = lost;
            if left.is_empty() {
                break;
            }
        }
        Ok(values)
    }
}

/// Returns the address of a bytearray's bytes. It is valid until the bytearray is changed in size
/// or freed.
#[pyfunction]
pub(crate) fn address_of(bytes: &Bound<'_, PyByteArray>) -> u64 {
    bytes.data() as u64
}

/// Creates a `bytes` value.
fn new_bytes(py: Python<'_>, size: usize) -> PyResult<(Bound<'_, PyAny>, u64)> {
    let value = PyBytes::new_with(py, size, |_| Ok(()))?;
    let address = value.as_bytes().as_ptr() as u64;
    Ok((value.into_any(), address))
}
