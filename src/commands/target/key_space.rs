//! The metadata service's record keys for the cluster that the environment selects.

use crate::engine::metadata::KeySpace;

/// The record key names for the cluster that the environment selects.
pub fn key_space() -> KeySpace {
    KeySpace::new(std::env::var("MC_METADATA_CLUSTER_ID").ok().as_deref())
}
