//! Options for a put, and small response types.

use std::fmt;

use crate::pack::{
    DecodeError, PayloadReader, PayloadWriter, Text, TextBuf, TypeLiteral, Wire, named_number, wire_number, wire_struct,
};
use mcctl_base::upstream::Release;

named_number! {
    /// A put's effect on the object's soft pin. Before 0.3.13 a boolean: `PRESERVE` is false,
    /// `ENABLE` true.
    pub struct SoftPinAction(u8) {
        /// Leave the pin unchanged.
        PRESERVE = 0,
        ENABLE = 1,
        DISABLE = 2,
    }
}

impl<'a> Wire<'a> for SoftPinAction {
    fn literal(out: &mut TypeLiteral) {
        if out.has(Release::V0_3_13) { u8::literal(out) } else { bool::literal(out) }
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        let number = if out.has(Release::V0_3_13) { self.0 } else { u8::from(*self == SoftPinAction::ENABLE) };
        number.put(out);
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<SoftPinAction, DecodeError> {
        let number = u8::get(from)?;
        Ok(SoftPinAction(if from.has(Release::V0_3_13) { number } else { number.min(1) }))
    }
}

wire_number! {
    /// An object's type, as reported by its writer. Informational only.
    pub struct ObjectDataType(u8) {
        UNKNOWN = 0,
        /// A KV cache page.
        KVCACHE = 1,
        TENSOR = 2,
        WEIGHT = 3,
        SAMPLE = 4,
        ACTIVATION = 5,
        GRADIENT = 6,
        OPTIMIZER_STATE = 7,
        METADATA = 8,
        GENERAL = 9,
    }
}

wire_struct! {
    /// Options for a put.
    pub struct ReplicateConfig {
        /// Number of memory replicas, each on a segment with a different name.
        pub replica_num: u64,
        pub nof_replica_num: u64 [since V0_3_11],
        /// Number of replicas on a distributed file system.
        pub dfs_replica_num: u64 [since V0_3_13],
        pub soft_pin_action: SoftPinAction,
        /// Lifetime of the soft pin in ms; only with `ENABLE`.
        pub soft_pin_ttl_ms: Option<u64> [since V0_3_13],
        pub with_hard_pin: bool [since V0_3_10_2],
        /// Segment names to try first, in order.
        pub preferred_segments: Vec<TextBuf> [since V0_3_8],
        /// Segment name to try before `preferred_segments`.
        pub preferred_segment: TextBuf,
        /// NVMe-oF segment names to try first.
        pub preferred_nof_segments: Vec<TextBuf> [since V0_3_11],
        /// Place all objects in a batch on one node if possible.
        pub prefer_alloc_in_same_node: bool [since V0_3_7],
        pub data_type: ObjectDataType [since V0_3_11 else ObjectDataType::UNKNOWN],
        pub host_id: TextBuf [since V0_3_12],
        /// One group per key. Objects in a group are evicted together.
        pub group_ids: Option<Vec<TextBuf>> [since V0_3_12],
    }
}

impl Default for ReplicateConfig {
    /// Upstream's defaults: one memory replica, no pins, no preferences.
    fn default() -> ReplicateConfig {
        ReplicateConfig {
            replica_num: 1,
            nof_replica_num: 0,
            dfs_replica_num: 0,
            soft_pin_action: SoftPinAction::PRESERVE,
            soft_pin_ttl_ms: None,
            with_hard_pin: false,
            preferred_segments: Vec::new(),
            preferred_segment: TextBuf::default(),
            preferred_nof_segments: Vec::new(),
            prefer_alloc_in_same_node: false,
            data_type: ObjectDataType::UNKNOWN,
            host_id: TextBuf::default(),
            group_ids: None,
        }
    }
}

/// A writer's report on a completed object. Before 0.3.13 only the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta<'a> {
    pub key: Text<'a>,
    /// The object's checksum. Clients choose the algorithm; the master only stores the value.
    pub object_checksum: Option<u64>,
}

impl<'a> Wire<'a> for ObjectMeta<'a> {
    fn literal(out: &mut TypeLiteral) {
        if !out.has(Release::V0_3_13) {
            return Text::literal(out);
        }
        out.open_struct();
        Text::literal(out);
        Option::<u64>::literal(out);
        out.close();
    }
    fn longest(&self) -> usize {
        self.key.longest()
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.key.put(out);
        if out.has(Release::V0_3_13) {
            self.object_checksum.put(out);
        }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<ObjectMeta<'a>, DecodeError> {
        let key = Text::get(from).map_err(|error| error.within("key"))?;
        let has_checksum = from.has(Release::V0_3_13);
        let checksum = if has_checksum { Wire::get(from) } else { Ok(None) };
        Ok(ObjectMeta { key, object_checksum: checksum.map_err(|error| error.within("object_checksum"))? })
    }
}

/// The size of a new object in bytes. Before 0.3.8, clients send the sizes of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceLength(pub u64);

impl From<u64> for SliceLength {
    fn from(bytes: u64) -> SliceLength {
        SliceLength(bytes)
    }
}

impl<'a> Wire<'a> for SliceLength {
    fn literal(out: &mut TypeLiteral) {
        if out.has(Release::V0_3_8) { u64::literal(out) } else { Vec::<u64>::literal(out) }
    }
    fn longest(&self) -> usize {
        1
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        if !out.has(Release::V0_3_8) {
            out.length(1);
        }
        self.0.put(out);
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<SliceLength, DecodeError> {
        if from.has(Release::V0_3_8) {
            return u64::get(from).map(SliceLength);
        }
        let parts = Vec::<u64>::get(from)?;
        Ok(SliceLength(parts.iter().fold(0, |all, part| all.saturating_add(*part))))
    }
}

named_number! {
    /// Which objects get a read lease when a client looks for several keys.
    pub struct LeaseMode(u8) {
        NONE = 0,
        /// The last existing object of each group of candidates.
        LAST_HIT_ONLY = 1,
    }
}

/// Read leases for a lookup of several keys; since 0.3.14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantLeasePolicy {
    pub lease_mode: LeaseMode,
    /// Number of keys per group.
    pub candidate_size: u64,
}

/// Bytes between the members, as in memory.
const LEASE_POLICY_PADDING: [u8; 7] = [0; 7];

impl<'a> Wire<'a> for GrantLeasePolicy {
    /// The type is trivially serializable, so the literal also contains its packing and alignment,
    /// and the message its padding.
    fn literal(out: &mut TypeLiteral) {
        out.open_struct();
        u8::literal(out);
        u64::literal(out);
        out.size(8);
        out.size(8);
        out.close();
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.lease_mode.0.put(out);
        out.bytes(&LEASE_POLICY_PADDING);
        self.candidate_size.put(out);
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<GrantLeasePolicy, DecodeError> {
        let lease_mode = LeaseMode(u8::get(from)?);
        from.take(LEASE_POLICY_PADDING.len())?;
        Ok(GrantLeasePolicy { lease_mode, candidate_size: u64::get(from)? })
    }
}

/// The tenant of an object's key. Before 0.3.12, all keys are those of the default tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant<'a>(pub Text<'a>);

impl Tenant<'_> {
    /// The tenant of clients that do not set one.
    pub const DEFAULT: Tenant<'static> = Tenant(Text(b"default"));
}

impl<'a> From<&'a str> for Tenant<'a> {
    fn from(name: &'a str) -> Tenant<'a> {
        Tenant(name.into())
    }
}

impl Default for Tenant<'_> {
    fn default() -> Self {
        Tenant::DEFAULT
    }
}

impl<'a> Wire<'a> for Tenant<'a> {
    fn literal(out: &mut TypeLiteral) {
        Text::literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.0.longest()
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.0.put(out);
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<Tenant<'a>, DecodeError> {
        Text::get(from).map(Tenant)
    }
}

/// The version of the handshake. In 0.3.7, the response contains nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceVersion(pub TextBuf);

impl fmt::Display for ServiceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a> Wire<'a> for ServiceVersion {
    fn literal(out: &mut TypeLiteral) {
        if out.has(Release::V0_3_8) { TextBuf::literal(out) } else { <()>::literal(out) }
    }
    fn longest(&self) -> usize {
        self.0.longest()
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        if out.has(Release::V0_3_8) {
            self.0.put(out);
        }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<ServiceVersion, DecodeError> {
        if from.has(Release::V0_3_8) { TextBuf::get(from).map(ServiceVersion) } else { Ok(ServiceVersion::default()) }
    }
}

wire_struct! {
    /// Response to a heartbeat.
    pub struct PingResponse {
        /// The leader's term; 0 without HA.
        pub view_version_id: i64,
        /// Whether the client must remount its segments.
        pub client_status: crate::types::ClientStatus,
    }
}

wire_struct! {
    /// Location of the legacy file tier. An empty `fsdir` means that the tier is not used.
    pub struct GetStorageConfigResponse {
        pub fsdir: TextBuf,
        /// Whether files are evicted.
        pub enable_disk_eviction: bool,
        /// Maximum size in bytes; 0 = unlimited.
        pub quota_bytes: u64,
    }
}
