//! Work that the master hands to clients.

use crate::engine::base::{ClientId, TaskId};
use crate::engine::wire::pack::{TextBuf, wire_number, wire_struct};

wire_number! {
    /// What a task does.
    pub struct TaskType(i32) {
        REPLICA_COPY = 0,
        REPLICA_MOVE = 1,
    }
}

wire_number! {
    /// Where a task is in its life.
    pub struct TaskStatus(i32) {
        /// Not fetched yet.
        PENDING = 0,
        PROCESSING = 1,
        FAILED = 2,
        SUCCESS = 3,
    }
}

wire_struct! {
    /// What is known of a task.
    pub struct QueryTaskResponse {
        pub id: TaskId,
        pub task_type: TaskType,
        pub status: TaskStatus,
        /// Unix ms.
        pub created_at_ms_epoch: i64,
        /// Unix ms.
        pub last_updated_at_ms_epoch: i64,
        /// Who works on it.
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
        /// Unix ms.
        pub created_at_ms_epoch: i64,
        /// How often it may be tried.
        pub max_retry_attempts: u32,
    }
}

wire_struct! {
    /// What became of a task.
    pub struct TaskCompleteRequest {
        pub id: TaskId,
        pub status: TaskStatus,
        pub message: TextBuf,
    }
}

wire_struct! {
    /// Where a node put an object on its disk.
    pub struct StorageObjectMetadata {
        pub bucket_id: i64,
        /// First byte in it.
        pub offset: i64,
        /// Key length, bytes.
        pub key_size: i64,
        /// Value length, bytes.
        pub data_size: i64,
        /// Where to ask for it.
        pub transport_endpoint: TextBuf,
    }
}

wire_struct! {
    /// An object to write to disk, or to bring back from it; upstream's `OffloadTaskItem` and `PromotionTaskItem`.
    pub struct TierTaskItem {
        pub tenant_id: TextBuf,
        pub key: TextBuf,
        /// Length, bytes.
        pub size: i64,
    }
}
