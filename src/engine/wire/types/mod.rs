//! Mooncake's own types, with upstream's field names (trailing underscores
//! dropped), in wire order. Fields that older releases lack are marked with `since`.
//!
//! Upstream: `mooncake-store/include/{types,replica,rpc_types,allocator,segment,task_manager}.h`.

mod config;
mod replica;
mod segment;
mod task;

pub use config::{
    GetStorageConfigResponse, GrantLeasePolicy, LeaseMode, ObjectDataType, ObjectMeta, PingResponse, ReplicateConfig,
    ServiceVersion, SliceLength, SoftPinAction, Tenant,
};
pub use replica::{
    BufferDescriptor, CopyStartResponse, DiskDescriptor, DistributedFsDescriptor, GetReplicaListResponse,
    LocalDiskDescriptor, MoveStartResponse, PromotionAllocStartResponse, ReplicaDescriptor, ReplicaLocation,
    ReplicaStatus, ReplicaType,
};
pub use segment::{ClientStatus, NofSegment, NofSegmentOwner, Segment, SegmentStatus};
pub use task::{
    QueryTaskResponse, StorageObjectMetadata, TaskAssignment, TaskCompleteRequest, TaskStatus, TaskType, TierTaskItem,
    TierTasks,
};
