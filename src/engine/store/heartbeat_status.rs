//! Whether the master responds to a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the master responded to the last heartbeat.
#[derive(Clone, Debug)]
pub struct HeartbeatStatus(Arc<AtomicBool>);

impl HeartbeatStatus {
    /// Returns the status for a node to which the master has just responded.
    pub(crate) fn healthy() -> HeartbeatStatus {
        HeartbeatStatus(Arc::new(AtomicBool::new(true)))
    }

    /// Records the result of a heartbeat.
    pub(crate) fn set(&self, healthy: bool) {
        self.0.store(healthy, Ordering::Relaxed);
    }

    /// Returns true if the master responded to the last heartbeat and has mounted the node's
    /// segments.
    pub fn is_healthy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
