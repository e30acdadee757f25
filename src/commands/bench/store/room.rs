//! Whether the objects of a run fit into the store, from the master's metrics.

use crate::commands::target::master_target::MasterTarget;
use crate::engine::admin::types::MemoryUsage;
use crate::engine::base::ByteSize;

/// Share of the store's memory above which the master evicts objects by default, in percent.
const EVICTION_PERCENT: u64 = 95;

/// How the objects of a run fit into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreRoom {
    /// They fit into the free memory.
    Enough,
    /// They fit if other objects are evicted.
    Evicts,
    /// They do not fit, even into an empty store.
    TooSmall,
}

impl StoreRoom {
    /// Compares the `required` bytes with the memory of the store.
    pub(super) fn of(required: u64, usage: &MemoryUsage) -> StoreRoom {
        let usable = usage.capacity / 100 * EVICTION_PERCENT;
        match (required > usable, usage.used.saturating_add(required) > usable) {
            (true, _) => StoreRoom::TooSmall,
            (false, true) => StoreRoom::Evicts,
            (false, false) => StoreRoom::Enough,
        }
    }
}

/// Returns a warning if `required` bytes do not fit into the free memory of the store. `None` if
/// they fit, or if the master's admin HTTP endpoint does not report its memory.
pub(super) async fn warning(master: &MasterTarget, required: u64) -> Option<String> {
    let usage = usage(master).await?;
    let required_text = format!("the objects need {}", ByteSize(required));
    let free = ByteSize(usage.capacity.saturating_sub(usage.used));
    let state = format!("{free} of the store's {} are free", ByteSize(usage.capacity));
    match StoreRoom::of(required, &usage) {
        StoreRoom::Enough => None,
        StoreRoom::Evicts => Some(format!("{required_text}, and {state}: the master will evict other objects")),
        StoreRoom::TooSmall => Some(format!(
            "{required_text}, and {state}: objects of this run will be evicted or rejected. Lower --objects or --object-size, \
             or add nodes. With --overfill, missing objects are not failures"
        )),
    }
}

async fn usage(master: &MasterTarget) -> Option<MemoryUsage> {
    let metrics = master.admin().ok()?.metrics().await.ok()?;
    let bytes = |name: &str| metrics.sum(name).map(|value| value as u64);
    Some(MemoryUsage { used: bytes("master_allocated_bytes")?, capacity: bytes("master_total_capacity_bytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_fit_below_the_eviction_watermark() {
        let usage = MemoryUsage { used: 400, capacity: 1_000 };
        assert_eq!(
            [550, 551, 950, 951].map(|required| StoreRoom::of(required, &usage)),
            [StoreRoom::Enough, StoreRoom::Evicts, StoreRoom::Evicts, StoreRoom::TooSmall]
        );
    }
}
