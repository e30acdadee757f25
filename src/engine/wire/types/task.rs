//! Tasks that the master assigns to clients.

use crate::pack::{
    DecodeError, Map, PayloadReader, PayloadWriter, TextBuf, TypeLiteral, Wire, wire_number, wire_struct,
};
use crate::types::Tenant;
use mcctl_base::upstream::Release;
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
        pub max_retry_attempts: u32 [since V0_3_10],
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

/// An object to write to disk, or to load back from disk; upstream's `OffloadTaskItem` and
/// `PromotionTaskItem`. Before 0.3.12, a request contains only its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierTaskItem {
    pub tenant_id: TextBuf,
    pub key: TextBuf,
    pub size: i64,
}

impl<'a> Wire<'a> for TierTaskItem {
    fn literal(out: &mut TypeLiteral) {
        if !out.has(Release::V0_3_12) {
            return TextBuf::literal(out);
        }
        out.open_struct();
        TextBuf::literal(out);
        TextBuf::literal(out);
        i64::literal(out);
        out.close();
    }
    fn longest(&self) -> usize {
        self.tenant_id.longest().max(self.key.longest())
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        if !out.has(Release::V0_3_12) {
            return self.key.put(out);
        }
        self.tenant_id.put(out);
        self.key.put(out);
        self.size.put(out);
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<TierTaskItem, DecodeError> {
        if !from.has(Release::V0_3_12) {
            return Ok(TierTaskItem { tenant_id: Tenant::DEFAULT.0.to_buf(), key: Wire::get(from)?, size: 0 });
        }
        Ok(TierTaskItem { tenant_id: Wire::get(from)?, key: Wire::get(from)?, size: Wire::get(from)? })
    }
}

/// Objects to write to disk, or to load back from disk. Before 0.3.12, the message is a map from
/// key to size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierTasks(pub Vec<TierTaskItem>);

impl<'a> Wire<'a> for TierTasks {
    fn literal(out: &mut TypeLiteral) {
        if out.has(Release::V0_3_12) {
            Vec::<TierTaskItem>::literal(out);
        } else {
            Map::<TextBuf, i64>::literal(out);
        }
    }
    fn longest(&self) -> usize {
        self.0.longest()
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        if out.has(Release::V0_3_12) {
            return self.0.put(out);
        }
        out.length(self.0.len());
        for item in &self.0 {
            item.key.put(out);
            item.size.put(out);
        }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<TierTasks, DecodeError> {
        if from.has(Release::V0_3_12) {
            return Vec::get(from).map(TierTasks);
        }
        let Map(pairs) = Map::<TextBuf, i64>::get(from)?;
        let item = |(key, size)| TierTaskItem { tenant_id: Tenant::DEFAULT.0.to_buf(), key, size };
        Ok(TierTasks(pairs.into_iter().map(item).collect()))
    }
}
