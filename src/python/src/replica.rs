//! The locations of an object's replicas.

use mcctl_store::StoreError;
use mcctl_wire::types::{BufferDescriptor, ReplicaDescriptor, ReplicaLocation};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{Key, each, keys};
use crate::interpreter::detached;
use crate::store::MooncakeDistributedStore;

/// A replica of an object, as the master describes it. The Python class `ReplicaDescriptor`
/// converts the status to an enumeration.
#[pyclass(module = "mcctl_mooncake._native", name = "ReplicaDescriptor", subclass, frozen)]
pub(crate) struct NativeReplicaDescriptor {
    replica: ReplicaDescriptor,
}

/// The memory that holds a replica.
#[pyclass(module = "mcctl_mooncake._native", name = "Descriptor", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct NativeBufferDescriptor {
    /// Size of the replica in bytes.
    size: u64,
    /// Address in the node's process.
    buffer_address: u64,
    /// Name of the segment: the node's `HOST:PORT`.
    transport_endpoint: String,
}

/// A replica in a node's memory.
#[pyclass(module = "mcctl_mooncake._native", frozen, get_all)]
pub(crate) struct MemoryDescriptor {
    buffer_descriptor: NativeBufferDescriptor,
}

/// A replica in a file.
#[pyclass(module = "mcctl_mooncake._native", frozen, get_all)]
pub(crate) struct DiskDescriptor {
    file_path: String,
    /// Size of the object in bytes.
    object_size: u64,
}

#[pymethods]
impl NativeReplicaDescriptor {
    /// The number of the replica's status.
    #[getter]
    fn status(&self) -> i32 {
        self.replica.status.0
    }

    /// Returns true if the replica is in a node's memory.
    fn is_memory_replica(&self) -> bool {
        matches!(self.replica.location, ReplicaLocation::Memory(_))
    }

    /// Returns true if the replica is in a file of a shared file system.
    fn is_disk_replica(&self) -> bool {
        matches!(self.replica.location, ReplicaLocation::Disk(_))
    }

    /// Returns true if the replica is on a node's disk.
    fn is_local_disk_replica(&self) -> bool {
        matches!(self.replica.location, ReplicaLocation::LocalDisk(_))
    }

    /// Returns the memory that holds the replica. Raises RuntimeError if it is not in memory.
    fn get_memory_descriptor(&self) -> PyResult<MemoryDescriptor> {
        match &self.replica.location {
            ReplicaLocation::Memory(buffer) => Ok(MemoryDescriptor { buffer_descriptor: buffer.into() }),
            _ => Err(PyRuntimeError::new_err("Expected MemoryDescriptor")),
        }
    }

    /// Returns the file that holds the replica. Raises RuntimeError if it is not in a file.
    fn get_disk_descriptor(&self) -> PyResult<DiskDescriptor> {
        match &self.replica.location {
            ReplicaLocation::Disk(file) => {
                Ok(DiskDescriptor { file_path: file.file_path.to_string(), object_size: file.object_size })
            }
            _ => Err(PyRuntimeError::new_err("Expected DiskDescriptor")),
        }
    }
}

impl From<&BufferDescriptor> for NativeBufferDescriptor {
    fn from(buffer: &BufferDescriptor) -> NativeBufferDescriptor {
        NativeBufferDescriptor {
            size: buffer.size,
            buffer_address: buffer.buffer_address,
            transport_endpoint: buffer.transport_endpoint.to_string(),
        }
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    /// Returns the object's replicas; an empty list if it does not exist.
    fn get_replica_desc(&self, py: Python<'_>, key: Key) -> Vec<NativeReplicaDescriptor> {
        self.replicas(py, vec![key]).pop().and_then(|(_, found)| found.ok()).unwrap_or_default()
    }

    /// Returns the replicas of each object that exists, by key.
    fn batch_get_replica_desc<'py>(&self, py: Python<'py>, keys: Vec<Key>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (key, found) in self.replicas(py, keys) {
            if let Ok(replicas) = found {
                let replicas: PyResult<Vec<_>> = replicas.into_iter().map(|replica| Py::new(py, replica)).collect();
                all.set_item(String::from_utf8_lossy(key.0.as_bytes()), replicas?)?;
            }
        }
        Ok(all)
    }

    /// Removes the replicas of objects on a segment, or all of them without `segment_name`. Returns
    /// the keys of the objects that lost replicas. Objects that are being read keep theirs.
    #[pyo3(signature = (keys, segment_name = ""))]
    fn batch_replica_clear(&self, py: Python<'_>, keys: Vec<Key>, segment_name: &str) -> Vec<String> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return Vec::new() };
        let segment = segment_name.to_owned();
        detached(py, || crate::objects::replica_clear(&session, &keys, &segment))
    }
}

type FoundReplicas = Result<Vec<NativeReplicaDescriptor>, StoreError>;

impl MooncakeDistributedStore {
    fn replicas(&self, py: Python<'_>, keys: Vec<Key>) -> Vec<(Key, FoundReplicas)> {
        let Some(session) = self.session() else { return Vec::new() };
        if keys.is_empty() {
            return Vec::new();
        }
        let objects: Vec<_> = keys.iter().map(|key| key.0.clone()).collect();
        let found = detached(py, || each(objects.len(), session.run(async |client| client.batch_stat(&objects).await)));
        let replicas = found.into_iter().map(|stat| {
            stat.map(|stat| {
                stat.found.replicas.into_iter().map(|replica| NativeReplicaDescriptor { replica }).collect()
            })
        });
        keys.into_iter().zip(replicas).collect()
    }
}
