//! The bodies of the admin HTTP API. The server writes every field, in this order. A client accepts
//! bodies with additional fields, and those of releases that lack a field.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The body of [`routes::HEALTH`](super::routes::HEALTH).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterHealth {
    /// `ok`, or `stuck` if RPC worker threads of an mcctl master are stuck.
    #[serde(default)]
    pub status: String,
    /// `leader` or `standby`; empty before 0.3.11.
    #[serde(default)]
    pub role: String,
    /// `serving`, `standby`, ...; empty before 0.3.11.
    #[serde(default)]
    pub ha_state: String,
    /// Whether the master serves clients. Before 0.3.11, every master that responds serves clients.
    pub service_ready: bool,
    /// `host:port` of the leader's RPC port, if HA is enabled.
    pub leader_address: Option<String>,
    /// The number of the election that the leader won, if HA is enabled.
    pub view_version: Option<i64>,
}

impl MasterHealth {
    /// Parses the body. Before 0.3.11, it is the text `OK`.
    ///
    /// # Errors
    /// `body` is neither that text nor a health document.
    pub fn parse(body: &str) -> Result<MasterHealth, serde_json::Error> {
        match body.trim().eq_ignore_ascii_case("ok") {
            true => Ok(MasterHealth { status: "ok".to_owned(), service_ready: true, ..MasterHealth::default() }),
            false => serde_json::from_str(body),
        }
    }
}

/// The body of [`routes::HA_STATUS`](super::routes::HA_STATUS) with `?format=json`: a master's part
/// in its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaStatusReport {
    /// Name and version of this format: [`HaStatusReport::SCHEMA`].
    pub schema: String,
    /// `leader`, `standby`, `candidate`, `handing_over` or `resetting`.
    pub role: String,
    /// Whether clients are served.
    pub serving: bool,
    /// The create revision of the leader's key in etcd; 0 if no master leads.
    pub view: u64,
    /// `host:port` of the leader's RPC port.
    pub leader: Option<String>,
    /// The name of this copy of the state. It changes when the copy is replaced.
    pub member: String,
    /// Whether this copy has every acknowledged change, according to the record in etcd.
    pub in_sync: bool,
    /// The last change that this standby, or the slowest standby of this leader, has.
    pub acked_sequence: u64,
    /// The leader's last change of which this master was informed.
    pub last_sequence: u64,
    pub lag_records: u64,
    /// Known only to the leader.
    pub lag_bytes: u64,
    /// Number of objects that a promotion of this standby would keep.
    pub objects: u64,
    /// Whether this standby can be promoted without loss.
    pub promotable: bool,
    /// The reason for which it cannot be promoted without loss.
    pub not_promotable: Option<String>,
    /// The leader's standbys that are connected or required.
    pub standbys: Vec<HaStandbyReport>,
    /// Number of digests of the leader's state that agreed with this standby's copy.
    pub digests_compared: u64,
    /// Set if this leader was promoted without having been in sync, so that keys may be lost:
    /// number of the former leader's announced changes that it does not have. Later ones may be
    /// missing, too.
    #[serde(default)]
    pub may_lack_records: Option<u64>,
    /// Number of objects that this process has dropped at promotions, because changes may have been
    /// missing.
    #[serde(default)]
    pub dropped_objects: u64,
    /// The last error of etcd, until it answers again.
    pub etcd_error: Option<String>,
    /// Set while etcd does not respond, if the time is limited: milliseconds for which this leader
    /// can still serve.
    #[serde(default)]
    pub etcd_outage_left_ms: Option<u64>,
    /// Free space on the file system of the data directory; `null` without one.
    #[serde(default)]
    pub data_dir_free_bytes: Option<u64>,
}

impl HaStatusReport {
    pub const SCHEMA: &str = "mcctl/ha-status/v1";
}

/// A standby, as its leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaStandbyReport {
    pub member: String,
    /// `host:port` of its RPC port, once it has connected.
    #[serde(default)]
    pub address: Option<String>,
    pub connected: bool,
    pub in_sync: bool,
    /// Whether responses to changes wait for it.
    pub required: bool,
    pub acked_sequence: u64,
}

/// The response to a request to step down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteppedDown {
    /// Whether a standby has taken over.
    pub success: bool,
    /// The reason for which no standby has taken over.
    pub error_message: Option<String>,
}

/// The body of [`routes::LEADER`](super::routes::LEADER).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterLeader {
    /// Whether a leader is known.
    #[serde(default)]
    pub present: bool,
    /// `host:port` of the leader's RPC port.
    pub leader_address: Option<String>,
    /// The number of the election that the leader won.
    pub view_version: Option<i64>,
}

/// The body of [`routes::VERSION`](super::routes::VERSION).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MasterVersion {
    /// The release of mcctl.
    pub version: String,
    /// The Mooncake release that the master is compatible with.
    pub mooncake: String,
}

/// The body of [`routes::SEGMENTS_DETAIL`](super::routes::SEGMENTS_DETAIL).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentsDetail {
    #[serde(default)]
    pub total_segments: usize,
    pub segments: Vec<SegmentDetail>,
}

/// A segment that a node has mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentDetail {
    pub segment_name: String,
    pub segment_id: String,
    /// The client that mounted the segment.
    pub client_id: String,
    /// First address, in the owner's address space, in hexadecimal.
    pub base_address: String,
    pub size_bytes: u64,
    /// The size in GiB with its unit.
    pub size_human: String,
    /// The node's address or name in the transfer engine.
    pub te_endpoint: String,
    /// `tcp` or `rdma`.
    pub protocol: String,
    /// The host that the node reports. Only mcctl's master has it; empty if the node reports none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// `OK`, `DRAINING`, ...
    pub status: String,
    /// Milliseconds for which the segment accepts no new objects, because transfers to its earlier
    /// objects may be in progress. Only mcctl's master has it; omitted if the segment accepts new
    /// objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// Set if the segment was restored and its client has not called since: milliseconds until it
    /// is dropped. Only mcctl's master has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed_ms: Option<u64>,
    /// With `unconfirmed_ms`: number of replicas that cannot be read until the client calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed_replicas: Option<u64>,
    /// Bytes in use in this segment. Only mcctl's master has it; omitted unless segments of several
    /// clients have this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Bytes in use in all segments with this name.
    pub allocator_used_bytes: u64,
    /// Total capacity of all segments with this name, in bytes.
    pub allocator_capacity_bytes: u64,
    /// The share in use of all segments with this name, in percent.
    pub allocator_usage_percent: f64,
}

/// The use of the segments with one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Allocated memory in bytes.
    pub used: u64,
    /// Total memory in bytes.
    pub capacity: u64,
}

/// The body of [`routes::SEGMENT_STATUS`](super::routes::SEGMENT_STATUS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedSegmentStatus {
    pub success: bool,
    pub segment: String,
    /// The name of a value of upstream's `SegmentStatus`.
    pub status: i32,
    pub status_name: &'static str,
    pub error_code: i32,
    pub error_message: &'static str,
}

/// The body of [`routes::CLIENTS`](super::routes::CLIENTS).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHeartbeats {
    /// Always [`ClientHeartbeats::SCHEMA`] in this version.
    #[serde(default)]
    pub schema: String,
    pub clients: Vec<ClientHeartbeat>,
    /// What the clients' calls have shown about their release, by host.
    #[serde(default)]
    pub hosts: Vec<HostReleases>,
    /// Requests that the master could not decode, by host and method.
    #[serde(default)]
    pub unknown_requests: Vec<UnknownRequestCount>,
}

/// The releases of the clients on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReleases {
    pub host: String,
    /// The releases that the clients' calls have shown, the latest last: `0.3.12.post1`, or
    /// `0.3.13.post1 to 0.3.14` if the calls are the same in several ones.
    pub releases: Vec<String>,
}

/// The number of requests of a host whose release the master does not support.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownRequestCount {
    pub host: String,
    /// Upstream's name of the RPC method.
    pub method: String,
    pub requests: u64,
    /// The releases that the host's other calls show; empty if they show none.
    pub release: String,
}

impl ClientHeartbeats {
    /// The value of `schema`.
    pub const SCHEMA: &str = "mcctl.clients/1";
}

/// The last heartbeat of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHeartbeat {
    pub client_id: String,
    /// Milliseconds since the client's last heartbeat or other call.
    pub last_heartbeat_ms: u64,
    /// Milliseconds until the client expires, unless it calls again. Earlier releases do not report
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// The response to a request that removed objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectsRemoved {
    pub success: bool,
    pub removed_count: u64,
}

/// The response to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminFailure<'a> {
    pub success: bool,
    pub error_code: i32,
    pub error_message: &'a str,
}

/// One complete memory replica of an object. The field names in JSON are those of upstream's C++
/// members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReplica {
    /// Size of the object in bytes.
    #[serde(rename = "size_")]
    pub bytes: u64,
    /// First address, in the owner's address space.
    #[serde(rename = "buffer_address_")]
    pub address: u64,
    /// `tcp` or `rdma`.
    #[serde(rename = "protocol_")]
    pub protocol: String,
    /// The node's address or name in the transfer engine.
    #[serde(rename = "transport_endpoint_")]
    pub endpoint: String,
}

/// The body of [`routes::QUERY_KEY`](super::routes::QUERY_KEY) for a complete object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyReplicas {
    pub success: bool,
    pub data: Vec<MemoryReplica>,
}

/// The body of [`routes::BATCH_QUERY_KEYS`](super::routes::BATCH_QUERY_KEYS).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeyBatch {
    #[serde(default)]
    pub success: bool,
    pub data: KeyEntries,
}

/// Keys with their entries, in the order of the request. A JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyEntries(pub Vec<(String, KeyEntry)>);

impl KeyEntries {
    /// The entries by key.
    pub fn by_key(self) -> BTreeMap<String, KeyEntry> {
        self.0.into_iter().collect()
    }
}

impl Serialize for KeyEntries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, entry)| (key, entry)))
    }
}

impl<'de> Deserialize<'de> for KeyEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeyEntries, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = KeyEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KeyEntries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(KeyEntries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// The entry of one key. mcctl stores replicas in memory only, so its last three fields are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeyEntry {
    /// Whether the object exists and is complete.
    pub ok: bool,
    /// The name of the error code, if `ok` is false.
    pub error: Option<String>,
    /// The complete memory replicas.
    pub values: Option<Vec<MemoryReplica>>,
    #[serde(default)]
    pub disk_values: Value,
    #[serde(default)]
    pub local_disk_values: Value,
    #[serde(default)]
    pub nof_values: Value,
}

/// The body of [`routes::DISCOVERY`](super::routes::DISCOVERY): an mcctl master's report about
/// itself and its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Always [`Announcement::SCHEMA`] in this version.
    pub schema: String,
    /// This master's RPC port. Clients use it to check that the admin port belongs to the master.
    pub rpc_port: u16,
    /// The nodes' metadata mode.
    pub metadata: AnnouncedMode,
}

impl Announcement {
    /// The value of `schema`.
    pub const SCHEMA: &str = "mcctl.discovery/1";
}

/// The metadata mode of a master's nodes, if the master has evidence of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum AnnouncedMode {
    /// The HTTP metadata service in the master's process.
    Http {
        /// URL of the service. An unspecified host (0.0.0.0, ::) stands for the host through which
        /// the client reached the admin port.
        url: String,
    },
    P2p,
    /// The master has no evidence. Also used for any mode that a later release announces.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_of_every_release_is_parsed() {
        // Recorded from a 0.3.13 master.
        let alone = r#"{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,"leader_address":null,"view_version":null}"#;
        let health = MasterHealth::parse(alone).expect("health");
        assert!(health.service_ready && health.role == "leader" && health.leader_address.is_none());
        assert_eq!(serde_json::to_string(&health).expect("JSON"), alone);
        let standby = r#"{"status":"ok","role":"standby","ha_state":"standby","service_ready":false,"leader_address":"10.77.0.1:50051","view_version":2}"#;
        let health = MasterHealth::parse(standby).expect("health");
        let leader = health.leader_address.as_deref();
        assert_eq!((health.service_ready, leader, health.view_version), (false, Some("10.77.0.1:50051"), Some(2)));
        assert!(MasterHealth::parse("OK").is_ok_and(|health| health.service_ready));
        assert!(MasterHealth::parse(r#"{"service_ready":true}"#).is_ok_and(|health| health.role.is_empty()));
        assert!(MasterHealth::parse("<html>hello</html>").is_err());
    }

    #[test]
    fn segments_of_other_releases_are_parsed() {
        let detail = r#"{"later":1,"segments":[{"segment_name":"localhost:12805","size_bytes":67108864,"later":[]}]}"#;
        let detail: SegmentsDetail = serde_json::from_str(detail).expect("segments");
        assert_eq!((&*detail.segments[0].segment_name, detail.segments[0].size_bytes), ("localhost:12805", 64 << 20));
        assert!(serde_json::from_str::<SegmentsDetail>("{}").is_err());
    }

    #[test]
    fn a_batch_keeps_the_order_of_its_keys_and_accepts_disk_replicas() {
        let text = concat!(
            r#"{"success":true,"data":{"b":{"ok":false,"error":"OBJECT_NOT_FOUND","values":null,"disk_values":null,"#,
            r#""local_disk_values":null,"nof_values":null},"a":{"ok":true,"error":null,"values":[{"size_":5,"#,
            r#""buffer_address_":7,"protocol_":"tcp","transport_endpoint_":"n:1"}],"disk_values":[{"x":1}],"#,
            r#""local_disk_values":null,"nof_values":null}}}"#
        );
        let batch: KeyBatch = serde_json::from_str(text).expect("a batch");
        assert_eq!(serde_json::to_string(&batch).expect("JSON"), text);
        let entry = batch.data.by_key().remove("a").expect("an entry");
        assert_eq!(entry.values.expect("replicas")[0].endpoint, "n:1");
    }
}
