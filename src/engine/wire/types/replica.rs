//! Replicas: where an object's bytes are stored.

use crate::pack::{
    DecodeError, DecodeFault, PayloadReader, PayloadWriter, TextBuf, TypeLiteral, Wire, get_present, if_present,
    named_number, wire_number, wire_struct,
};
use mcctl_base::ClientId;
use mcctl_base::upstream::Release;

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

named_number! {
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

/// Before 0.3.11, clients send `MEMORY` for all replicas.
impl<'a> Wire<'a> for ReplicaType {
    fn literal(out: &mut TypeLiteral) {
        i32::literal(out);
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        let is_unknown = *self == ReplicaType::ALL && !out.has(Release::V0_3_11);
        if is_unknown { ReplicaType::MEMORY.0.put(out) } else { self.0.put(out) }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<ReplicaType, DecodeError> {
        let found = ReplicaType(i32::get(from)?);
        let is_unknown = found == ReplicaType::ALL && !from.has(Release::V0_3_11);
        Ok(if is_unknown { ReplicaType::MEMORY } else { found })
    }
}

impl Default for ReplicaType {
    /// What calls apply to in releases in which they do not name it.
    fn default() -> ReplicaType {
        ReplicaType::MEMORY
    }
}

/// A contiguous range in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferDescriptor {
    /// Size in bytes, the same as the object's size.
    pub size: u64,
    /// Virtual address in the owner's process.
    pub buffer_address: u64,
    /// `tcp` or `rdma`; not in messages before 0.3.9.
    pub protocol: TextBuf,
    /// Endpoint to which the transfer engine connects. In 0.3.6, it is the segment's name, and
    /// comes first.
    pub transport_endpoint: TextBuf,
}

/// The status of a buffer in 0.3.6: whether the object is complete.
fn buffer_status(status: ReplicaStatus) -> i32 {
    i32::from(status == ReplicaStatus::COMPLETE)
}

impl BufferDescriptor {
    /// Appends the buffer of a replica with this status.
    fn put_in(&self, status: ReplicaStatus, out: &mut PayloadWriter<'_>) {
        if !out.has(Release::V0_3_7) {
            self.transport_endpoint.put(out);
        }
        self.size.put(out);
        self.buffer_address.put(out);
        if_present!(out, { self.protocol.put(out); } since V0_3_9);
        if out.has(Release::V0_3_7) { self.transport_endpoint.put(out) } else { buffer_status(status).put(out) }
    }
}

impl<'a> Wire<'a> for BufferDescriptor {
    fn literal(out: &mut TypeLiteral) {
        out.open_struct();
        if !out.has(Release::V0_3_7) {
            TextBuf::literal(out);
        }
        u64::literal(out);
        u64::literal(out);
        if_present!(out, { TextBuf::literal(out); } since V0_3_9);
        if out.has(Release::V0_3_7) {
            TextBuf::literal(out)
        } else {
            i32::literal(out)
        }
        out.close();
    }
    fn longest(&self) -> usize {
        self.protocol.longest().max(self.transport_endpoint.longest())
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.put_in(ReplicaStatus::COMPLETE, out);
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<BufferDescriptor, DecodeError> {
        let first: Option<TextBuf> =
            if from.has(Release::V0_3_7) { None } else { Some(get_present!(from, transport_endpoint)) };
        let size = get_present!(from, size);
        let buffer_address = get_present!(from, buffer_address);
        let protocol = get_present!(from, protocol since V0_3_9 else TextBuf::from("tcp"));
        let transport_endpoint = match first {
            None => get_present!(from, transport_endpoint),
            Some(name) => {
                let _status: i32 = get_present!(from, status);
                name
            }
        };
        Ok(BufferDescriptor { size, buffer_address, protocol, transport_endpoint })
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
    /// In several ranges, as clients before 0.3.8 write large objects. Only these releases have it,
    /// and mcctl's master never sends it.
    Parts(Vec<BufferDescriptor>),
}

/// The variants in upstream's order, and the release that added each one.
const VARIANTS: [(LocationKind, Release); 5] = [
    (LocationKind::Memory, Release::V0_3_6),
    (LocationKind::Nof, Release::V0_3_11),
    (LocationKind::Disk, Release::V0_3_6),
    (LocationKind::LocalDisk, Release::V0_3_8),
    (LocationKind::DistributedFs, Release::V0_3_13),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocationKind {
    Memory,
    Nof,
    Disk,
    LocalDisk,
    DistributedFs,
}

/// The variant's index in a message whose release `has` the variants before it; `None` if it does
/// not have this one.
fn variant_index(kind: LocationKind, has: impl Fn(Release) -> bool) -> Option<u8> {
    let mut index = 0;
    for (other, since) in VARIANTS {
        if other == kind {
            return has(since).then_some(index);
        }
        index += u8::from(has(since));
    }
    None
}

/// Memory and NVMe-oF descriptors are structs whose only member is the buffer, and before 0.3.8 a
/// list of buffers.
fn nested_literal(out: &mut TypeLiteral) {
    out.open_struct();
    if out.has(Release::V0_3_8) {
        BufferDescriptor::literal(out)
    } else {
        Vec::<BufferDescriptor>::literal(out)
    }
    out.close();
}

impl ReplicaLocation {
    fn kind(&self) -> Option<LocationKind> {
        Some(match self {
            ReplicaLocation::Memory(_) => LocationKind::Memory,
            ReplicaLocation::Nof(_) => LocationKind::Nof,
            ReplicaLocation::Disk(_) => LocationKind::Disk,
            ReplicaLocation::LocalDisk(_) => LocationKind::LocalDisk,
            ReplicaLocation::DistributedFs(_) => LocationKind::DistributedFs,
            ReplicaLocation::Parts(_) => return None,
        })
    }

    /// Appends the location of a replica with this status. A list of replicas leaves out a location
    /// that the release does not know, so it is not written here.
    fn put_in(&self, status: ReplicaStatus, out: &mut PayloadWriter<'_>) {
        let index = match self {
            ReplicaLocation::Memory(_) | ReplicaLocation::Parts(_) => Some(0),
            other => other.kind().and_then(|kind| variant_index(kind, |since| out.has(since))),
        };
        debug_assert!(index.is_some(), "an unknown kind of replica is left out");
        index.unwrap_or(0).put(out);
        match self {
            ReplicaLocation::Memory(buffer) | ReplicaLocation::Nof(buffer) => {
                if !out.has(Release::V0_3_8) {
                    out.length(1);
                }
                buffer.put_in(status, out);
            }
            ReplicaLocation::Disk(file) => file.put(out),
            ReplicaLocation::LocalDisk(object) => object.put(out),
            ReplicaLocation::DistributedFs(file) => file.put(out),
            ReplicaLocation::Parts(buffers) => buffers.put(out),
        }
    }
}

impl<'a> Wire<'a> for ReplicaLocation {
    fn literal(out: &mut TypeLiteral) {
        out.open_variant();
        for (kind, since) in VARIANTS {
            if !out.has(since) {
                continue;
            }
            match kind {
                LocationKind::Memory | LocationKind::Nof => nested_literal(out),
                LocationKind::Disk => DiskDescriptor::literal(out),
                LocationKind::LocalDisk => LocalDiskDescriptor::literal(out),
                LocationKind::DistributedFs => DistributedFsDescriptor::literal(out),
            }
        }
        out.close();
    }

    fn longest(&self) -> usize {
        match self {
            ReplicaLocation::Memory(buffer) | ReplicaLocation::Nof(buffer) => buffer.longest(),
            ReplicaLocation::Disk(file) => file.longest(),
            ReplicaLocation::LocalDisk(object) => object.longest(),
            ReplicaLocation::DistributedFs(file) => file.longest(),
            ReplicaLocation::Parts(buffers) => buffers.longest(),
        }
    }

    #[inline]
    fn is_known(&self, out: &PayloadWriter<'_>) -> bool {
        match self {
            // Almost all replicas are in memory, and every release has these.
            ReplicaLocation::Memory(_) => return true,
            ReplicaLocation::Parts(_) => return !out.has(Release::V0_3_8),
            _ => {}
        }
        self.kind().is_some_and(|kind| variant_index(kind, |since| out.has(since)).is_some())
    }

    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.put_in(ReplicaStatus::COMPLETE, out);
    }

    fn get(from: &mut PayloadReader<'a>) -> Result<ReplicaLocation, DecodeError> {
        let found = u8::get(from)?;
        let known = VARIANTS.iter().filter(|(_, since)| from.has(*since));
        let Some((kind, _)) = known.clone().nth(found.into()) else {
            let known = u8::try_from(known.count()).unwrap_or(u8::MAX);
            return Err(DecodeFault::Variant { found, known }.into());
        };
        Ok(match kind {
            LocationKind::Memory if !from.has(Release::V0_3_8) => {
                let mut buffers = Vec::<BufferDescriptor>::get(from)?;
                match buffers.pop() {
                    Some(only) if buffers.is_empty() => ReplicaLocation::Memory(only),
                    last => ReplicaLocation::Parts(buffers.into_iter().chain(last).collect()),
                }
            }
            LocationKind::Memory => ReplicaLocation::Memory(Wire::get(from)?),
            LocationKind::Nof => ReplicaLocation::Nof(Wire::get(from)?),
            LocationKind::Disk => ReplicaLocation::Disk(Wire::get(from)?),
            LocationKind::LocalDisk => ReplicaLocation::LocalDisk(Wire::get(from)?),
            LocationKind::DistributedFs => ReplicaLocation::DistributedFs(Wire::get(from)?),
        })
    }
}

/// One replica of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDescriptor {
    /// Unique within the master's lifetime; opaque to clients. 0 in messages before 0.3.9, which
    /// have none.
    pub id: u64,
    pub location: ReplicaLocation,
    pub status: ReplicaStatus,
}

impl<'a> Wire<'a> for ReplicaDescriptor {
    fn literal(out: &mut TypeLiteral) {
        out.open_struct();
        if_present!(out, { u64::literal(out); } since V0_3_9);
        ReplicaLocation::literal(out);
        ReplicaStatus::literal(out);
        out.close();
    }
    fn longest(&self) -> usize {
        self.location.longest()
    }
    #[inline]
    fn is_known(&self, out: &PayloadWriter<'_>) -> bool {
        self.location.is_known(out)
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        if_present!(out, { self.id.put(out); } since V0_3_9);
        self.location.put_in(self.status, out);
        self.status.put(out);
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<ReplicaDescriptor, DecodeError> {
        let id = get_present!(from, id since V0_3_9);
        Ok(ReplicaDescriptor { id, location: get_present!(from, location), status: get_present!(from, status) })
    }
}

/// Duration of a read lease in releases whose responses do not contain it, in ms.
const LEASE_TTL_MS: u64 = 5_000;

/// An object's replicas, and the lease for reading them. In 0.3.6, only the list of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReplicaListResponse {
    pub replicas: Vec<ReplicaDescriptor>,
    /// Lease duration in ms, counted from when the client sent the request.
    pub lease_ttl_ms: u64,
    /// The checksum that the writer sent.
    pub object_checksum: Option<u64>,
}

impl<'a> Wire<'a> for GetReplicaListResponse {
    fn literal(out: &mut TypeLiteral) {
        if !out.has(Release::V0_3_7) {
            return Vec::<ReplicaDescriptor>::literal(out);
        }
        out.open_struct();
        Vec::<ReplicaDescriptor>::literal(out);
        u64::literal(out);
        if_present!(out, { Option::<u64>::literal(out); } since V0_3_13);
        out.close();
    }
    fn longest(&self) -> usize {
        self.replicas.longest()
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.replicas.put(out);
        if_present!(out, { self.lease_ttl_ms.put(out); } since V0_3_7);
        if_present!(out, { self.object_checksum.put(out); } since V0_3_13);
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<GetReplicaListResponse, DecodeError> {
        Ok(GetReplicaListResponse {
            replicas: get_present!(from, replicas),
            lease_ttl_ms: get_present!(from, lease_ttl_ms since V0_3_7 else LEASE_TTL_MS),
            object_checksum: get_present!(from, object_checksum since V0_3_13),
        })
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
