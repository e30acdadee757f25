//! The ceiling: what caches of unlimited size would hit in the prompts that were sent, what LRU
//! caches of the server's sizes would hit, and how that compares with the actual hits.
//!
//! - `order`: the order in which tokens were last used
//! - `reach`: the sizes of a server's caches, by tier
//! - `allowed`: the hits within these sizes
//! - `text`: text prompts, of which only the lengths are known
//! - `counts`: the sums over the requests of a pass

mod allowed;
mod counts;
mod order;
mod reach;
mod text;

pub use allowed::{AllowedHits, PrefixWalk, UsedRun};
pub use counts::{CeilingCounts, HitCeiling, HitShares, MeasuredHits, MissedHits, PossibleHits, RequestHits};
pub use order::UseOrder;
pub use reach::{StorageReach, TierReach};
pub use text::TextUses;
