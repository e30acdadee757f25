//! Replicas: where an object's bytes are stored.

use crate::pack::{
    DecodeError, DecodeFault, PayloadReader, PayloadWriter, TextBuf, TypeLiteral, Wire, wire_number, wire_struct,
};
use mcctl_base::ClientId;

wire_number! {
    /// Lifecycle state of a replica.
    pub struct ReplicaStatus(i32) {
        UNDEFINED = 0,
        INITIALIZED = 1,
        PROCESSING = 2,
        COMPLETE = 3,
        REMOVED = 4,
        FAILED = 5,
    }
}

wire_number! {
    /// The replicas that a call applies to.
    pub struct ReplicaType(i32) {
        MEMORY = 0,
        /// In the legacy file tier.
        DISK = 1,
        /// On a node's own disk.
        LOCAL_DISK = 2,
        NOF_SSD = 3,
        /// All replicas; sent by clients since 0.3.11.
        ALL = 4,
        /// On a distributed file system.
        DFS = 100,
    }
}

wire_struct! {
    /// A contiguous range in a segment.
    pub struct BufferDescriptor {
        /// Size in bytes, the same as the object's size.
        pub size: u64,
        /// Virtual address in the owner's process.
        pub buffer_address: u64,
        /// `tcp` or `rdma`.
        pub protocol: TextBuf,
        /// Endpoint to which the transfer engine connects.
        pub transport_endpoint: TextBuf,
    }
}

wire_struct! {
    /// A file in the legacy tier.
    pub struct DiskDescriptor {
        pub file_path: TextBuf,
        /// Size of the object in bytes.
        pub object_size: u64,
    }
}

wire_struct! {
    /// An object on a node's own disk.
    pub struct LocalDiskDescriptor {
        pub client_id: ClientId,
        /// Size of the object in bytes.
        pub object_size: u64,
        /// Endpoint that serves the object.
        pub transport_endpoint: TextBuf,
    }
}

wire_struct! {
    /// A range in a file on a distributed file system.
    pub struct DistributedFsDescriptor {
        pub file_path: TextBuf,
        /// Offset of the first byte in the file.
        pub offset: u64,
        /// Size of the object in bytes.
        pub object_size: u64,
        pub aligned_size: u64,
        pub shard_idx: i32,
    }
}

/// Tier and location of a replica; upstream's `descriptor_variant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaLocation {
    /// In a mounted segment.
    Memory(BufferDescriptor),
    Nof(BufferDescriptor),
    /// In the legacy file tier.
    Disk(DiskDescriptor),
    /// On a node's own disk.
    LocalDisk(LocalDiskDescriptor),
    /// On a distributed file system.
    DistributedFs(DistributedFsDescriptor),
}

/// Memory and NVMe-oF descriptors are structs whose only member is the buffer.
fn nested_literal(out: &mut TypeLiteral) {
    out.open_struct();
    BufferDescriptor::literal(out);
    out.close();
}

impl<'a> Wire<'a> for ReplicaLocation {
    fn literal(out: &mut TypeLiteral) {
        out.open_variant();
        nested_literal(out);
        nested_literal(out);
        DiskDescriptor::literal(out);
        LocalDiskDescriptor::literal(out);
        DistributedFsDescriptor::literal(out);
        out.close();
    }

    fn longest(&self) -> usize {
        match self {
            ReplicaLocation::Memory(buffer) | ReplicaLocation::Nof(buffer) => buffer.longest(),
            ReplicaLocation::Disk(file) => file.longest(),
            ReplicaLocation::LocalDisk(object) => object.longest(),
            ReplicaLocation::DistributedFs(file) => file.longest(),
        }
    }

    fn put(&self, out: &mut PayloadWriter<'_>) {
        match self {
            ReplicaLocation::Memory(buffer) => {
                0u8.put(out);
                buffer.put(out);
            }
            ReplicaLocation::Nof(buffer) => {
                1u8.put(out);
                buffer.put(out);
            }
            ReplicaLocation::Disk(file) => {
                2u8.put(out);
                file.put(out);
            }
            ReplicaLocation::LocalDisk(object) => {
                3u8.put(out);
                object.put(out);
            }
            ReplicaLocation::DistributedFs(file) => {
                4u8.put(out);
                file.put(out);
            }
        }
    }

    fn get(from: &mut PayloadReader<'a>) -> Result<ReplicaLocation, DecodeError> {
        Ok(match u8::get(from)? {
            0 => ReplicaLocation::Memory(Wire::get(from)?),
            1 => ReplicaLocation::Nof(Wire::get(from)?),
            2 => ReplicaLocation::Disk(Wire::get(from)?),
            3 => ReplicaLocation::LocalDisk(Wire::get(from)?),
            4 => ReplicaLocation::DistributedFs(Wire::get(from)?),
            found => return Err(DecodeFault::Variant { found, known: 5 }.into()),
        })
    }
}

wire_struct! {
    /// One replica of an object.
    pub struct ReplicaDescriptor {
        /// Unique within the master's lifetime; opaque to clients.
        pub id: u64,
        pub location: ReplicaLocation,
        pub status: ReplicaStatus,
    }
}

wire_struct! {
    /// An object's replicas, and the lease for reading them.
    pub struct GetReplicaListResponse {
        pub replicas: Vec<ReplicaDescriptor>,
        /// Lease duration in ms, counted from when the client sent the request.
        pub lease_ttl_ms: u64,
        /// The checksum that the writer sent.
        pub object_checksum: Option<u64>,
    }
}

wire_struct! {
    /// Source and targets of a copy.
    pub struct CopyStartResponse {
        pub source: ReplicaDescriptor,
        pub targets: Vec<ReplicaDescriptor>,
    }
}

wire_struct! {
    /// Source and target of a move. Without a target, there is nothing to move.
    pub struct MoveStartResponse {
        pub source: ReplicaDescriptor,
        pub target: Option<ReplicaDescriptor>,
    }
}

wire_struct! {
    /// The memory allocated for an object being promoted from disk.
    pub struct PromotionAllocStartResponse {
        pub memory_descriptor: ReplicaDescriptor,
    }
}
