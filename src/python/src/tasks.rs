//! Copies and moves of objects between nodes, which the master assigns to nodes as tasks.

use mcctl_base::{ErrorCode, TaskId};
use mcctl_store::StoreError;
use mcctl_wire::types::QueryTaskResponse;
use pyo3::prelude::*;

use crate::arguments::{Key, Natural, error_code, flat};
use crate::interpreter::detached;
use crate::store::{MooncakeDistributedStore, NOT_SET_UP};

/// The state of a task. The Python class `QueryTaskResponse` converts two of its fields to
/// enumerations.
#[pyclass(module = "mcctl_mooncake._native", name = "QueryTaskResponse", subclass, frozen, get_all)]
pub(crate) struct NativeQueryTaskResponse {
    id: (u64, u64),
    r#type: i32,
    status: i32,
    created_at_ms_epoch: i64,
    last_updated_at_ms_epoch: i64,
    assigned_client: (u64, u64),
    message: String,
}

/// A task's ID and a code.
type CreatedTask = ((u64, u64), i32);

#[pymethods]
impl MooncakeDistributedStore {
    /// Creates a task that copies an object to the segments `targets`. Returns the task's ID and
    /// 0, or (0, 0) and a negative code.
    #[pyo3(signature = (key, targets))]
    fn create_copy_task(&self, py: Python<'_>, key: Key, targets: Vec<String>) -> CreatedTask {
        let Some(session) = self.session() else { return ((0, 0), NOT_SET_UP) };
        created(detached(py, || {
            flat(session.run(async |client| {
                let targets = targets.iter().map(|target| target.as_str().into()).collect();
                let tenant = client.tenant();
                let answer = client.master().create_copy_task(key.0.as_bytes().into(), tenant, targets).await?;
                answer.map_err(|code| StoreError::Refused { what: "CreateCopyTask", code })
            }))
        }))
    }

    /// Creates a task that moves an object from the segment `source` to `target`. Returns the
    /// task's ID and 0, or (0, 0) and a negative code.
    #[pyo3(signature = (key, source, target))]
    fn create_move_task(&self, py: Python<'_>, key: Key, source: String, target: String) -> CreatedTask {
        let Some(session) = self.session() else { return ((0, 0), NOT_SET_UP) };
        created(detached(py, || {
            flat(session.run(async |client| {
                let key = key.0.as_bytes().into();
                let tenant = client.tenant();
                let answer =
                    client.master().create_move_task(key, tenant, (&*source).into(), (&*target).into()).await?;
                answer.map_err(|code| StoreError::Refused { what: "CreateMoveTask", code })
            }))
        }))
    }

    /// Returns the state of a task and 0, or None and a negative code.
    #[pyo3(signature = (task_id))]
    fn query_task(&self, py: Python<'_>, task_id: (u64, u64)) -> (Option<NativeQueryTaskResponse>, i32) {
        let Some(session) = self.session() else { return (None, NOT_SET_UP) };
        let found = detached(py, || {
            flat(session.run(async |client| {
                let answer = client.master().query_task(TaskId(task_id.0, task_id.1)).await?;
                answer.map_err(|code| StoreError::Refused { what: "QueryTask", code })
            }))
        });
        match found {
            Ok(task) => (Some(task.into()), 0),
            Err(error) => (None, error_code(&error)),
        }
    }

    /// Dummy clients of a stand-alone process are not supported: returns -1.
    #[pyo3(signature = (mem_pool_size, local_buffer_size, server_address))]
    fn setup_dummy(&self, mem_pool_size: Natural, local_buffer_size: Natural, server_address: &str) -> i32 {
        let _ = (mem_pool_size, local_buffer_size);
        tracing::error!(server_address, "clients of a stand-alone process are not supported: use setup()");
        ErrorCode::INTERNAL_ERROR.0
    }
}

fn created(result: Result<TaskId, StoreError>) -> CreatedTask {
    match result {
        Ok(id) => ((id.0, id.1), 0),
        Err(error) => ((0, 0), error_code(&error)),
    }
}

impl From<QueryTaskResponse> for NativeQueryTaskResponse {
    fn from(task: QueryTaskResponse) -> NativeQueryTaskResponse {
        NativeQueryTaskResponse {
            id: (task.id.0, task.id.1),
            r#type: task.task_type.0,
            status: task.status.0,
            created_at_ms_epoch: task.created_at_ms_epoch,
            last_updated_at_ms_epoch: task.last_updated_at_ms_epoch,
            assigned_client: (task.assigned_client.0, task.assigned_client.1),
            message: task.message.to_string(),
        }
    }
}
