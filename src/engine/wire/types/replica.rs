//! Where an object's bytes are.

use crate::engine::base::ClientId;
use crate::engine::wire::pack::{DecodeError, Fault, Literal, Packer, Reader, TextBuf, Wire, wire_number, wire_struct};

wire_number! {
    /// Where a replica is in its life.
    pub struct ReplicaStatus(i32) {
        /// Not said.
        UNDEFINED = 0,
        /// Allocated.
        INITIALIZED = 1,
        /// Being written.
        PROCESSING = 2,
        /// Readable.
        COMPLETE = 3,
        /// Gone.
        REMOVED = 4,
        /// Its write failed.
        FAILED = 5,
    }
}

wire_number! {
    /// Which replicas a call is about.
    pub struct ReplicaType(i32) {
        /// In memory.
        MEMORY = 0,
        /// In the legacy file tier.
        DISK = 1,
        /// On a node's own disk.
        LOCAL_DISK = 2,
        /// On NVMe-oF.
        NOF_SSD = 3,
        /// All of them; what clients since 0.3.11 send.
        ALL = 4,
        /// On a distributed file system.
        DFS = 100,
    }
}

wire_struct! {
    /// A contiguous stretch of a segment.
    pub struct BufferDescriptor {
        /// Its length, bytes: exactly the object's.
        pub size: u64,
        /// Virtual address in the owner's process.
        pub buffer_address: u64,
        /// `tcp` or `rdma`.
        pub protocol: TextBuf,
        /// What to open with the transfer engine.
        pub transport_endpoint: TextBuf,
    }
}

wire_struct! {
    /// A file of the legacy tier.
    pub struct DiskDescriptor {
        /// Its path.
        pub file_path: TextBuf,
        /// The object's length, bytes.
        pub object_size: u64,
    }
}

wire_struct! {
    /// An object on a node's own disk.
    pub struct LocalDiskDescriptor {
        /// The node.
        pub client_id: ClientId,
        /// The object's length, bytes.
        pub object_size: u64,
        /// Where to ask for it.
        pub transport_endpoint: TextBuf,
    }
}

wire_struct! {
    /// A stretch of a file on a distributed file system.
    pub struct DistributedFsDescriptor {
        /// Its path.
        pub file_path: TextBuf,
        /// First byte.
        pub offset: u64,
        /// The object's length, bytes.
        pub object_size: u64,
        /// That, rounded up.
        pub aligned_size: u64,
        /// Which shard.
        pub shard_idx: i32,
    }
}

/// The tier and place of a replica; upstream's `descriptor_variant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a mounted segment.
    Memory(BufferDescriptor),
    /// On NVMe-oF.
    Nof(BufferDescriptor),
    /// In the legacy file tier.
    Disk(DiskDescriptor),
    /// On a node's own disk.
    LocalDisk(LocalDiskDescriptor),
    /// On a distributed file system.
    DistributedFs(DistributedFsDescriptor),
}

/// Memory and NVMe-oF descriptors are structs whose only member is the buffer.
fn nested_literal(out: &mut Literal) {
    out.open_struct();
    BufferDescriptor::literal(out);
    out.close();
}

impl<'a> Wire<'a> for Place {
    fn literal(out: &mut Literal) {
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
            Place::Memory(buffer) | Place::Nof(buffer) => buffer.longest(),
            Place::Disk(file) => file.longest(),
            Place::LocalDisk(object) => object.longest(),
            Place::DistributedFs(file) => file.longest(),
        }
    }

    fn put(&self, out: &mut Packer<'_>) {
        match self {
            Place::Memory(buffer) => {
                0u8.put(out);
                buffer.put(out);
            }
            Place::Nof(buffer) => {
                1u8.put(out);
                buffer.put(out);
            }
            Place::Disk(file) => {
                2u8.put(out);
                file.put(out);
            }
            Place::LocalDisk(object) => {
                3u8.put(out);
                object.put(out);
            }
            Place::DistributedFs(file) => {
                4u8.put(out);
                file.put(out);
            }
        }
    }

    fn get(from: &mut Reader<'a>) -> Result<Place, DecodeError> {
        Ok(match u8::get(from)? {
            0 => Place::Memory(Wire::get(from)?),
            1 => Place::Nof(Wire::get(from)?),
            2 => Place::Disk(Wire::get(from)?),
            3 => Place::LocalDisk(Wire::get(from)?),
            4 => Place::DistributedFs(Wire::get(from)?),
            found => return Err(Fault::Variant { found, known: 5 }.into()),
        })
    }
}

wire_struct! {
    /// One replica of an object.
    pub struct ReplicaDescriptor {
        /// Unique in the master's life; opaque to clients.
        pub id: u64,
        /// Where it is.
        pub place: Place,
        /// Whether it can be read.
        pub status: ReplicaStatus,
    }
}

wire_struct! {
    /// Where an object can be read, and for how long that holds.
    pub struct GetReplicaListResponse {
        /// The replicas.
        pub replicas: Vec<ReplicaDescriptor>,
        /// From when the question was asked, ms.
        pub lease_ttl_ms: u64,
        /// As the writer gave it.
        pub object_checksum: Option<u64>,
    }
}

wire_struct! {
    /// Where to copy from and to.
    pub struct CopyStartResponse {
        /// From.
        pub source: ReplicaDescriptor,
        /// To.
        pub targets: Vec<ReplicaDescriptor>,
    }
}

wire_struct! {
    /// Where to move from and to; no target means that nothing is to be moved.
    pub struct MoveStartResponse {
        /// From.
        pub source: ReplicaDescriptor,
        /// To.
        pub target: Option<ReplicaDescriptor>,
    }
}

wire_struct! {
    /// Where to put an object that is promoted from disk to memory.
    pub struct PromotionAllocStartResponse {
        /// The memory.
        pub memory_descriptor: ReplicaDescriptor,
    }
}
