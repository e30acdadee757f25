//! Options of a put.

use mcctl_store::ReplicateConfig;
use mcctl_wire::types::{ObjectDataType, SoftPinAction};
use pyo3::prelude::*;

/// Options of a put: the number of replicas, where they are placed, and how long they are kept. The
/// Python class `ReplicateConfig` converts two of its fields to enumerations.
#[pyclass(module = "mcctl_mooncake._native", name = "ReplicateConfig", subclass, get_all, set_all)]
#[derive(Clone, Debug)]
pub(crate) struct NativeReplicateConfig {
    replica_num: u64,
    nof_replica_num: u64,
    dfs_replica_num: u64,
    soft_pin_action: u8,
    soft_pin_ttl_ms: Option<u64>,
    with_hard_pin: bool,
    preferred_segments: Vec<String>,
    preferred_segment: String,
    preferred_nof_segments: Vec<String>,
    prefer_alloc_in_same_node: bool,
    data_type: u8,
    group_ids: Option<Vec<String>>,
}

#[pymethods]
impl NativeReplicateConfig {
    #[new]
    fn new() -> NativeReplicateConfig {
        NativeReplicateConfig {
            replica_num: 1,
            nof_replica_num: 0,
            dfs_replica_num: 0,
            soft_pin_action: SoftPinAction::PRESERVE.0,
            soft_pin_ttl_ms: None,
            with_hard_pin: false,
            preferred_segments: Vec::new(),
            preferred_segment: String::new(),
            preferred_nof_segments: Vec::new(),
            prefer_alloc_in_same_node: false,
            data_type: ObjectDataType::UNKNOWN.0,
            group_ids: None,
        }
    }
}

/// Returns the options in the form of the wire format; the defaults without `config`.
pub(crate) fn options(config: Option<PyRef<'_, NativeReplicateConfig>>) -> ReplicateConfig {
    let Some(config) = config else { return ReplicateConfig::default() };
    let texts = |texts: &[String]| texts.iter().map(|text| text.as_str().into()).collect();
    ReplicateConfig {
        replica_num: config.replica_num,
        nof_replica_num: config.nof_replica_num,
        dfs_replica_num: config.dfs_replica_num,
        soft_pin_action: SoftPinAction(config.soft_pin_action),
        soft_pin_ttl_ms: config.soft_pin_ttl_ms,
        with_hard_pin: config.with_hard_pin,
        preferred_segments: texts(&config.preferred_segments),
        preferred_segment: config.preferred_segment.as_str().into(),
        preferred_nof_segments: texts(&config.preferred_nof_segments),
        prefer_alloc_in_same_node: config.prefer_alloc_in_same_node,
        data_type: ObjectDataType(config.data_type),
        host_id: "".into(),
        group_ids: config.group_ids.as_deref().map(texts),
    }
}
