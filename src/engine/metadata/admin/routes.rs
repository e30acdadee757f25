//! The paths of the admin HTTP API. Those below `/api/v1/mcctl` are mcctl's own.

pub const INDEX: &str = "/";
pub const METRICS: &str = "/metrics";
pub const SUMMARY: &str = "/metrics/summary";
pub const HEALTH: &str = "/health";
/// Not served by `mooncake_master` up to 0.3.13.
pub const READY: &str = "/ready";
/// Masters older than 0.3.11 do not have this route.
pub const ROLE: &str = "/role";
/// The run state in one word, as `mooncake_master` names it; with `?format=json`, this master's
/// part in its cluster.
pub const HA_STATUS: &str = "/ha_status";
pub const LEADER: &str = "/leader";
/// Not served by `mooncake_master`.
pub const VERSION: &str = "/version";
pub const ALL_KEYS: &str = "/get_all_keys";
pub const ALL_SEGMENTS: &str = "/get_all_segments";
/// Masters older than 0.3.12 do not have this route.
pub const SEGMENTS_DETAIL: &str = "/get_segments_detail";
pub const QUERY_SEGMENT: &str = "/query_segment";
pub const QUERY_KEY: &str = "/query_key";
pub const BATCH_QUERY_KEYS: &str = "/batch_query_keys";
pub const SEGMENT_STATUS: &str = "/api/v1/segments/status";
/// Removes all objects (POST).
pub const REMOVE_ALL: &str = "/api/v1/remove_all";
pub const KV_EVENTS: &str = "/kv_events/status";
/// Returns the metadata mode of the nodes.
pub const DISCOVERY: &str = "/api/v1/mcctl/discovery";
/// Returns the last heartbeat of each client with a mounted segment.
pub const CLIENTS: &str = "/api/v1/mcctl/clients";

/// Makes the leader of a cluster hand over to a standby (POST).
pub const STEP_DOWN: &str = "/api/v1/mcctl/step_down";

/// All routes, for the request metrics and the list on `/`.
pub const ALL: &[&str] = &[
    INDEX,
    METRICS,
    SUMMARY,
    HEALTH,
    READY,
    ROLE,
    HA_STATUS,
    LEADER,
    VERSION,
    ALL_KEYS,
    ALL_SEGMENTS,
    SEGMENTS_DETAIL,
    QUERY_SEGMENT,
    QUERY_KEY,
    BATCH_QUERY_KEYS,
    SEGMENT_STATUS,
    REMOVE_ALL,
    KV_EVENTS,
    DISCOVERY,
    CLIENTS,
    STEP_DOWN,
];
