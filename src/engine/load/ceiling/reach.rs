//! The sizes of a server's tiers. A tier of N tokens holds what was used within the last N distinct
//! tokens.

use serde::Serialize;

use crate::compare::CacheSizes;

/// The reach of L3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "tokens", rename_all = "snake_case")]
pub enum StorageReach {
    /// The server has no L3.
    Absent,
    /// The size of L3 is unknown, so it counts as unlimited.
    Unknown,
    Tokens(u64),
}

/// The number of tokens that an LRU cache with the sizes of a server holds, cumulative by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierReach {
    /// L1.
    pub device: u64,
    /// L1 and L2.
    pub memory: u64,
    /// All tiers.
    pub storage: StorageReach,
}

impl TierReach {
    /// Returns the reach of a server with these sizes. With write-through, a lower tier also holds
    /// what the tiers above it hold; with `write_back`, L1 adds to both. What
    /// `write_through_selective` does not write is not modeled, so its hits are an upper bound.
    /// `storage_tokens`: the size of L3, if known.
    pub fn of(sizes: &CacheSizes, write_policy: Option<&str>, storage_tokens: Option<u64>) -> TierReach {
        let device = sizes.device_tokens;
        let with_device = |tokens: u64| match write_policy {
            Some("write_back") => device.saturating_add(tokens),
            _ => device.max(tokens),
        };
        let memory = with_device(sizes.host_tokens);
        let storage = match storage_tokens.filter(|tokens| *tokens > 0) {
            _ if !sizes.has_storage => StorageReach::Absent,
            None => StorageReach::Unknown,
            Some(tokens) => StorageReach::Tokens(with_device(tokens).max(memory)),
        };
        TierReach { device, memory, storage }
    }

    /// Returns the number of tokens that L3 reaches back; 0 without L3.
    pub(super) fn storage_tokens(&self) -> u64 {
        match self.storage {
            StorageReach::Absent => 0,
            StorageReach::Unknown => u64::MAX,
            StorageReach::Tokens(tokens) => tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_tiers_repeat_the_upper_ones_unless_written_back() {
        let sizes = CacheSizes { device_tokens: 100, host_tokens: 300, has_storage: true };
        let reach = |policy, storage| TierReach::of(&sizes, policy, storage);
        assert_eq!(
            reach(Some("write_through"), Some(900)),
            TierReach { device: 100, memory: 300, storage: StorageReach::Tokens(900) }
        );
        assert_eq!(
            reach(Some("write_back"), Some(900)),
            TierReach { device: 100, memory: 400, storage: StorageReach::Tokens(1_000) }
        );
        assert_eq!(reach(None, None).storage, StorageReach::Unknown);
        assert_eq!(reach(None, Some(5)).storage, StorageReach::Tokens(300), "L3 is smaller than L2");
        let small = CacheSizes { host_tokens: 50, has_storage: false, ..sizes };
        assert_eq!(
            TierReach::of(&small, None, Some(9)),
            TierReach { device: 100, memory: 100, storage: StorageReach::Absent }
        );
    }
}
