//! Mooncake's own types, with upstream's field names (its trailing underscores dropped) and in wire order. Release 0.3.13.
//!
//! Upstream: `mooncake-store/include/{types,replica,rpc_types,allocator,segment,task_manager}.h`.

mod config;
mod replica;
mod segment;
mod task;

pub use config::{GetStorageConfigResponse, ObjectDataType, ObjectMeta, PingResponse, ReplicateConfig, SoftPinAction};
pub use replica::{
    BufferDescriptor, CopyStartResponse, DiskDescriptor, DistributedFsDescriptor, GetReplicaListResponse,
    LocalDiskDescriptor, MoveStartResponse, PromotionAllocStartResponse, ReplicaDescriptor, ReplicaLocation,
    ReplicaStatus, ReplicaType,
};
pub use segment::{ClientStatus, NofSegment, NofSegmentOwner, Segment, SegmentStatus};
pub use task::{
    QueryTaskResponse, StorageObjectMetadata, TaskAssignment, TaskCompleteRequest, TaskStatus, TaskType, TierTaskItem,
};
