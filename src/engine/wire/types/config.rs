//! Options for a put, and small response types.

use crate::pack::{Text, TextBuf, wire_number, wire_struct};

wire_number! {
    /// A put's effect on the object's soft pin.
    pub struct SoftPinAction(u8) {
        /// Leave the pin unchanged.
        PRESERVE = 0,
        ENABLE = 1,
        DISABLE = 2,
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
        pub nof_replica_num: u64,
        /// Number of replicas on a distributed file system.
        pub dfs_replica_num: u64,
        pub soft_pin_action: SoftPinAction,
        /// Lifetime of the soft pin in ms; only with `ENABLE`.
        pub soft_pin_ttl_ms: Option<u64>,
        pub with_hard_pin: bool,
        /// Segment names to try first, in order.
        pub preferred_segments: Vec<TextBuf>,
        /// Segment name to try before `preferred_segments`.
        pub preferred_segment: TextBuf,
        /// NVMe-oF segment names to try first.
        pub preferred_nof_segments: Vec<TextBuf>,
        /// Place all objects in a batch on one node if possible.
        pub prefer_alloc_in_same_node: bool,
        pub data_type: ObjectDataType,
        pub host_id: TextBuf,
        /// One group per key. Objects in a group are evicted together.
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
    /// A writer's report on a completed object.
    pub struct ObjectMeta<'a> {
        pub key: Text<'a>,
        /// The object's checksum. Clients choose the algorithm; the master only stores the value.
        pub object_checksum: Option<u64>,
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
