//! The table of registered memory regions: which ranges peers may access, and which the segment
//! document announces. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::TransferError;
use crate::types::{Access, RegionKeys};
use mcctl_sys::{Memory, Slice};

/// Maximum number of registered regions.
pub const REGIONS_MAX: usize = 65_536;

/// A registered memory region.
#[derive(Clone, Debug)]
pub struct Region {
    pub memory: Arc<Memory>,
    pub access: Access,
    pub keys: RegionKeys,
    order: u64,
}

/// Registered regions by address. No two regions overlap.
#[derive(Debug, Default)]
pub struct Regions {
    by_address: BTreeMap<u64, Region>,
    registered: u64,
}

impl Regions {
    /// Checks that `memory` may be added.
    ///
    /// # Errors
    /// Fails if it is empty, overlaps a region, or exceeds [`REGIONS_MAX`].
    pub fn check(&self, memory: &Memory) -> Result<(), TransferError> {
        let address = memory.address();
        let length = memory.len() as u64;
        if length == 0 {
            return Err(TransferError::EmptyMemory);
        }
        if self.by_address.len() >= REGIONS_MAX {
            return Err(TransferError::TooManyRegions { limit: REGIONS_MAX });
        }
        let below = self.by_address.range(..address + length).next_back();
        if below.is_some_and(|(start, region)| start + region.memory.len() as u64 > address) {
            return Err(TransferError::Overlap { address, length });
        }
        Ok(())
    }

    /// Adds `memory`.
    ///
    /// # Errors
    /// Same as [`check`](Regions::check).
    pub fn insert(&mut self, memory: Arc<Memory>, access: Access, keys: RegionKeys) -> Result<(), TransferError> {
        self.check(&memory)?;
        self.registered += 1;
        self.by_address.insert(memory.address(), Region { memory, access, keys, order: self.registered });
        Ok(())
    }

    /// Removes the region that begins at `address`.
    pub fn remove(&mut self, address: u64) -> Option<Region> {
        self.by_address.remove(&address)
    }

    /// Returns the bytes `[address, address + length)` if they lie within a single region that
    /// peers may access. Returns `None` for an empty range and for one that spans two regions.
    pub fn reach(&self, address: u64, length: u64) -> Option<Slice> {
        self.find(address, length, |region| region.access == Access::Remote)
    }

    /// Same as [`reach`](Regions::reach), but for this process itself, which may access every
    /// region.
    pub fn reach_locally(&self, address: u64, length: u64) -> Option<Slice> {
        self.find(address, length, |_| true)
    }

    fn find(&self, address: u64, length: u64, may: impl Fn(&Region) -> bool) -> Option<Slice> {
        let (start, region) = self.by_address.range(..=address).next_back()?;
        if length == 0 || !may(region) {
            return None;
        }
        let offset = usize::try_from(address - start).ok()?;
        region.memory.slice(offset, usize::try_from(length).ok()?).ok()
    }

    /// The regions listed in the segment document (all regions that peers may access), in
    /// registration order.
    pub fn published(&self) -> Vec<&Region> {
        let mut regions: Vec<_> = self.by_address.values().filter(|r| r.access == Access::Remote).collect();
        regions.sort_by_key(|r| r.order);
        regions
    }

    /// All regions, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.by_address.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(len: usize) -> Arc<Memory> {
        Arc::new(Memory::from_vec(vec![0; len]))
    }

    /// Registers `memory` and returns its address.
    fn add(regions: &mut Regions, memory: &Arc<Memory>, access: Access) -> u64 {
        regions.insert(Arc::clone(memory), access, RegionKeys::default()).unwrap();
        memory.address()
    }

    #[test]
    fn only_ranges_inside_one_remote_region_are_accessible() {
        let mut regions = Regions::default();
        let at = add(&mut regions, &memory(100), Access::Remote);
        assert_eq!(regions.reach(at, 100).unwrap().len(), 100);
        assert_eq!(regions.reach(at + 99, 1).unwrap().address(), at + 99);
        for (address, length) in [(at, 101), (at - 1, 1), (at + 100, 1), (at + 1, u64::MAX), (u64::MAX, 2), (0, 1)] {
            assert!(regions.reach(address, length).is_none(), "{address:#x} {length}");
        }
        assert!(regions.reach(at, 0).is_none());
    }

    #[test]
    fn local_regions_are_neither_accessible_nor_published() {
        let mut regions = Regions::default();
        let at = add(&mut regions, &memory(100), Access::Local);
        assert!(regions.reach(at, 1).is_none());
        assert!(regions.reach_locally(at, 1).is_some());
        assert!(regions.published().is_empty());
    }

    #[test]
    fn overlapping_and_empty_regions_are_refused() {
        let mut regions = Regions::default();
        let one = memory(100);
        let at = add(&mut regions, &one, Access::Remote);
        let again = regions.insert(Arc::clone(&one), Access::Remote, RegionKeys::default());
        assert!(matches!(again, Err(TransferError::Overlap { .. })));
        let empty = regions.insert(memory(0), Access::Remote, RegionKeys::default());
        assert!(matches!(empty, Err(TransferError::EmptyMemory)));
        assert!(regions.remove(at).is_some() && regions.remove(at).is_none());
        assert!(regions.reach(at, 1).is_none());
        add(&mut regions, &one, Access::Remote);
    }

    #[test]
    fn the_document_lists_regions_in_the_order_of_registration() {
        let mut regions = Regions::default();
        let memories: Vec<_> = (0..20).map(|_| memory(100_000)).collect();
        let added: Vec<u64> = memories.iter().rev().map(|m| add(&mut regions, m, Access::Remote)).collect();
        assert_eq!(regions.published().iter().map(|r| r.memory.address()).collect::<Vec<_>>(), added);
    }

    proptest! {
        #[test]
        fn reach_agrees_with_a_search_of_all_regions(
            sizes in proptest::collection::vec(1usize..5000, 1..8), pick in 0usize..8, before in 0u64..6000, length in 0u64..6000,
        ) {
            let mut regions = Regions::default();
            let memories: Vec<_> = sizes.iter().map(|n| memory(*n)).collect();
            for m in &memories {
                add(&mut regions, m, Access::Remote);
            }
            let address = (memories[pick % memories.len()].address() + 3000).saturating_sub(before);
            let inside = length > 0 && memories.iter().any(|m| {
                address >= m.address() && address + length <= m.address() + m.len() as u64
            });
            prop_assert_eq!(regions.reach(address, length).is_some(), inside);
        }
    }
}
