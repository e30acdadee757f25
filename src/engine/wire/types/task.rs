//! Tasks that the master assigns to clients.

use crate::pack::{TextBuf, wire_number, wire_struct};
use mcctl_base::{ClientId, TaskId};

wire_number! {
    /// Type of a task.
    pub struct TaskType(i32) {
        REPLICA_COPY = 0,
        REPLICA_MOVE = 1,
    }
}

wire_number! {
    /// Lifecycle state of a task.
    pub struct TaskStatus(i32) {
        PENDING = 0,
        PROCESSING = 1,
        FAILED = 2,
        SUCCESS = 3,
    }
}

wire_struct! {
    /// The state of a task.
    pub struct QueryTaskResponse {
        pub id: TaskId,
        pub task_type: TaskType,
        pub status: TaskStatus,
        /// Unix time in ms.
        pub created_at_ms_epoch: i64,
        /// Unix time in ms.
        pub last_updated_at_ms_epoch: i64,
        /// The client that executes the task.
        pub assigned_client: ClientId,
        pub message: TextBuf,
    }
}

wire_struct! {
    /// A task for a client.
    pub struct TaskAssignment {
        pub id: TaskId,
        pub task_type: TaskType,
        pub payload: TextBuf,
        /// Unix time in ms.
        pub created_at_ms_epoch: i64,
        /// Maximum number of attempts.
        pub max_retry_attempts: u32,
    }
}

wire_struct! {
    /// The result of a task.
    pub struct TaskCompleteRequest {
        pub id: TaskId,
        pub status: TaskStatus,
        pub message: TextBuf,
    }
}

wire_struct! {
    /// Location of an object on a node's disk.
    pub struct StorageObjectMetadata {
        pub bucket_id: i64,
        /// Offset of the first byte in the bucket.
        pub offset: i64,
        /// Length of the key in bytes.
        pub key_size: i64,
        /// Length of the value in bytes.
        pub data_size: i64,
        /// Endpoint that serves the object.
        pub transport_endpoint: TextBuf,
    }
}

wire_struct! {
    /// An object to write to disk, or to load back from disk; upstream's `OffloadTaskItem` and
    /// `PromotionTaskItem`.
    pub struct TierTaskItem {
        pub tenant_id: TextBuf,
        pub key: TextBuf,
        pub size: i64,
    }
}
