//! What a writer asks for, and small answers.

use crate::engine::wire::pack::{Text, TextBuf, wire_number, wire_struct};

wire_number! {
    /// What a put does to the object's soft pin.
    pub struct SoftPinAction(u8) {
        /// Leave it as it is.
        PRESERVE = 0,
        /// Set it.
        ENABLE = 1,
        /// Clear it.
        DISABLE = 2,
    }
}

wire_number! {
    /// What an object is, as its writer says; nothing depends on it.
    pub struct ObjectDataType(u8) {
        /// Not said.
        UNKNOWN = 0,
        /// A page of a KV cache.
        KVCACHE = 1,
        /// A tensor.
        TENSOR = 2,
        /// Model weights.
        WEIGHT = 3,
        /// A training sample.
        SAMPLE = 4,
        /// An activation.
        ACTIVATION = 5,
        /// A gradient.
        GRADIENT = 6,
        /// Optimiser state.
        OPTIMIZER_STATE = 7,
        /// Metadata.
        METADATA = 8,
        /// Anything.
        GENERAL = 9,
    }
}

wire_struct! {
    /// How an object is to be kept.
    pub struct ReplicateConfig {
        /// Memory replicas, each on a segment of another name.
        pub replica_num: u64,
        /// Replicas on NVMe-oF.
        pub nof_replica_num: u64,
        /// Replicas on a distributed file system.
        pub dfs_replica_num: u64,
        /// What happens to the soft pin.
        pub soft_pin_action: SoftPinAction,
        /// Life of the soft pin, ms; only with `ENABLE`.
        pub soft_pin_ttl_ms: Option<u64>,
        /// Never evict.
        pub with_hard_pin: bool,
        /// Segment names to try first, in order.
        pub preferred_segments: Vec<TextBuf>,
        /// Segment name to try before those.
        pub preferred_segment: TextBuf,
        /// NVMe-oF segment names to try first.
        pub preferred_nof_segments: Vec<TextBuf>,
        /// Put all keys of a batch on one node if possible.
        pub prefer_alloc_in_same_node: bool,
        /// What the object is.
        pub data_type: ObjectDataType,
        /// Host of the writer.
        pub host_id: TextBuf,
        /// One group per key: objects of a group are evicted together.
        pub group_ids: Option<Vec<TextBuf>>,
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

wire_struct! {
    /// What a writer says of a finished object.
    pub struct ObjectMeta<'a> {
        /// Which.
        pub key: Text<'a>,
        /// A checksum of its bytes, algorithm up to the clients; the master only keeps it.
        pub object_checksum: Option<u64>,
    }
}

wire_struct! {
    /// Answer to a heartbeat.
    pub struct PingResponse {
        /// The leader's term; 0 without HA.
        pub view_version_id: i64,
        /// Whether the client must remount its segments.
        pub client_status: crate::engine::wire::types::ClientStatus,
    }
}

wire_struct! {
    /// Where the legacy file tier lives; an empty `fsdir` means there is none.
    pub struct GetStorageConfigResponse {
        /// Directory.
        pub fsdir: TextBuf,
        /// Whether files are evicted.
        pub enable_disk_eviction: bool,
        /// Bytes it may take; 0 = no limit.
        pub quota_bytes: u64,
    }
}
