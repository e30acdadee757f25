//! Work that the master hands to clients.

use crate::engine::base::{ClientId, TaskId};
use crate::engine::wire::pack::{TextBuf, wire_number, wire_struct};

wire_number! {
    /// What a task does.
    pub struct TaskType(i32) {
        /// Copy a replica.
        REPLICA_COPY = 0,
        /// Move a replica.
        REPLICA_MOVE = 1,
    }
}

wire_number! {
    /// Where a task is in its life.
    pub struct TaskStatus(i32) {
        /// Not fetched yet.
        PENDING = 0,
        /// Being worked on.
        PROCESSING = 1,
        /// Failed.
        FAILED = 2,
        /// Done.
        SUCCESS = 3,
    }
}

wire_struct! {
    /// What is known of a task.
    pub struct QueryTaskResponse {
        /// Its id.
        pub id: TaskId,
        /// What it does.
        pub task_type: TaskType,
        /// Where it is.
        pub status: TaskStatus,
        /// Unix ms.
        pub created_at_ms_epoch: i64,
        /// Unix ms.
        pub last_updated_at_ms_epoch: i64,
        /// Who works on it.
        pub assigned_client: ClientId,
        /// What went wrong.
        pub message: TextBuf,
    }
}

wire_struct! {
    /// A task for a client.
    pub struct TaskAssignment {
        /// Its id.
        pub id: TaskId,
        /// What it does.
        pub task_type: TaskType,
        /// To what: JSON.
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
        /// Its id.
        pub id: TaskId,
        /// How it ended.
        pub status: TaskStatus,
        /// What went wrong.
        pub message: TextBuf,
    }
}

wire_struct! {
    /// Where a node put an object on its disk.
    pub struct StorageObjectMetadata {
        /// Bucket.
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
        /// Tenant.
        pub tenant_id: TextBuf,
        /// Key.
        pub key: TextBuf,
        /// Length, bytes.
        pub size: i64,
    }
}
