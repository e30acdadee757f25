//! Segments that are mounted and unmounted at run time.

use std::time::Duration;

use mcctl_base::SegmentId;
use mcctl_store::object_store::ObjectStore;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::Natural;
use crate::interpreter::detached;
use crate::store::MooncakeDistributedStore;

/// The code of a failed operation on segments or sessions.
pub(crate) const FAILED: i32 = -1;

#[pymethods]
impl MooncakeDistributedStore {
    /// Allocates `size` bytes, rounded up to 16 MiB, and contributes them to the store. Returns a
    /// dictionary with `ret` (0 or a negative code), `segment_ids` and `allocated_size`. `protocol`
    /// and `location` have no effect: the transport of `setup` is used.
    #[pyo3(signature = (size, protocol = "tcp", location = ""))]
    fn allocate_and_mount_segment<'py>(
        &self,
        py: Python<'py>,
        size: Natural,
        protocol: &str,
        location: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let _ = (protocol, location);
        let mounted =
            self.session().map(|session| detached(py, || session.run_in_background(session.node.mount(size.0))));
        let result = PyDict::new(py);
        match mounted {
            Some(Ok((id, bytes))) => {
                result.set_item("ret", 0)?;
                result.set_item("segment_ids", [id.to_string()])?;
                result.set_item("allocated_size", bytes)?;
            }
            failed => {
                if let Some(Err(refusal)) = failed {
                    tracing::error!(size = size.0, reason = refusal.reason, "cannot mount a segment");
                }
                result.set_item("ret", FAILED)?;
                result.set_item("segment_ids", [""; 0])?;
                result.set_item("allocated_size", 0)?;
            }
        }
        Ok(result)
    }

    /// Segments in files are not supported: returns a dictionary with `ret` -1.
    #[pyo3(signature = (path, size, offset = Natural(0), protocol = "tcp", location = ""))]
    fn mount_segment<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        size: Natural,
        offset: Natural,
        protocol: &str,
        location: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let _ = (size, offset, protocol, location);
        tracing::error!(path, "segments in files are not supported: use allocate_and_mount_segment()");
        let result = PyDict::new(py);
        result.set_item("ret", FAILED)?;
        result.set_item("segment_ids", [""; 0])?;
        Ok(result)
    }

    /// Unmounts segments and frees their memory after `grace_period_seconds`. Their objects are
    /// lost. Returns 0 or -1.
    #[pyo3(signature = (segment_ids, grace_period_seconds = Natural(0)))]
    fn unmount_and_free_segment(&self, py: Python<'_>, segment_ids: Vec<String>, grace_period_seconds: Natural) -> i32 {
        self.unmount(py, segment_ids, grace_period_seconds.0)
    }

    /// Unmounts segments. Their objects are lost. Returns 0 or -1.
    #[pyo3(signature = (segment_ids, grace_period_seconds = Natural(0)))]
    fn unmount_segment(&self, py: Python<'_>, segment_ids: Vec<String>, grace_period_seconds: Natural) -> i32 {
        self.unmount(py, segment_ids, grace_period_seconds.0)
    }

    /// Returns 0: this client has no segment on a disk.
    #[pyo3(signature = (grace_period_seconds = Natural(0)))]
    fn unmount_local_disk_segment(&self, grace_period_seconds: Natural) -> i32 {
        let _ = grace_period_seconds;
        if self.session().is_some() { 0 } else { FAILED }
    }

    /// Returns 0: only clients of a stand-alone process have a memory pool.
    #[pyo3(signature = (size, /))]
    fn alloc_from_mem_pool(&self, size: Natural) -> u64 {
        let _ = size;
        0
    }

    /// Returns 0: this client does not read from the disks of other nodes.
    fn get_offload_rpc_read_count(&self) -> u64 {
        0
    }
}

impl MooncakeDistributedStore {
    fn unmount(&self, py: Python<'_>, segments: Vec<String>, grace_seconds: u64) -> i32 {
        let Some(session) = self.session() else { return FAILED };
        let grace = Duration::from_secs(grace_seconds);
        detached(py, || {
            let mut code = 0;
            for text in segments {
                let Ok(id) = text.parse::<SegmentId>() else {
                    tracing::error!(segment = text, "not the ID of a segment");
                    code = FAILED;
                    continue;
                };
                if let Err(refusal) = session.run_in_background(session.node.unmount(id, grace)) {
                    tracing::error!(segment = text, reason = refusal.reason, "cannot unmount the segment");
                    code = FAILED;
                }
            }
            code
        })
    }
}
