//! Memory used by each rank's store client: for its buffer, its segment, and the optional arena.
//!
//! Source: `mooncake/mooncake-store/src/real_client.cpp` (`setup_internal`), `mmap_arena.cpp`,
//! `utils.cpp`, and page counts measured with wheel 0.3.13.post1, which the tests assert. The
//! client uses huge pages only if `MC_STORE_USE_HUGEPAGE` is set. Without it, there is no arena,
//! and a segment has exactly the configured size, except if it is spread across NUMA nodes.

use crate::plan::SizingError;
use crate::plan::sizing_input::REGULAR_PAGE_BYTES;

/// Size of the local buffer that SGLang requests in `setup`, in bytes, regardless of
/// MOONCAKE_LOCAL_BUFFER_SIZE.
pub const LOCAL_BUFFER_BYTES: u64 = 16 << 20;
/// Minimum size of a segment without huge pages, in bytes.
pub const PLAIN_SEGMENT_BYTES_MIN: u64 = 16 << 20;
/// The common huge page size, in bytes.
pub const MIB2: u64 = 2 << 20;
/// The larger huge page size, in bytes.
pub const GIB1: u64 = 1 << 30;

/// Number of huge pages, by page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePageCount {
    pub mib2: u64,
    pub gib1: u64,
}

impl HugePageCount {
    /// Returns `count` pages of size `page` ([`GIB1`]; any other value is treated as 2 MiB).
    pub fn of(page: u64, count: u64) -> HugePageCount {
        if page == GIB1 { HugePageCount { mib2: 0, gib1: count } } else { HugePageCount { mib2: count, gib1: 0 } }
    }

    /// Returns the number of pages of size `page`.
    pub fn count(&self, page: u64) -> u64 {
        if page == GIB1 { self.gib1 } else { self.mib2 }
    }

    /// Adds the page counts of `self` and `other`.
    ///
    /// # Errors
    /// The sum overflows.
    pub fn plus(self, other: HugePageCount) -> Result<HugePageCount, SizingError> {
        let add = |a: u64, b: u64| a.checked_add(b).ok_or(SizingError::TooLarge { what: "the number of huge pages" });
        Ok(HugePageCount { mib2: add(self.mib2, other.mib2)?, gib1: add(self.gib1, other.gib1)? })
    }

    /// Total size in bytes.
    pub fn bytes(&self) -> u128 {
        u128::from(self.mib2) * u128::from(MIB2) + u128::from(self.gib1) * u128::from(GIB1)
    }
}

/// A client's configured sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSizes {
    /// Size of the rank's segment, in bytes; 0 disables the segment.
    pub segment: u64,
    /// Local buffer size, in bytes.
    pub local_buffer: u64,
    /// Arena size, in bytes; a multiple of 2 MiB. 0 disables the arena.
    pub arena: u64,
    /// Page size of buffers and segments, in bytes; [`REGULAR_PAGE_BYTES`] without huge pages.
    pub page: u64,
    /// The system's default huge page size, in bytes. The arena uses it.
    pub default_page: u64,
    /// Number of NUMA nodes with NICs across which an RDMA segment is spread; 0 or 1 means that the
    /// segment is not spread.
    pub nic_nodes: u64,
}

/// How the arena is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenaUse {
    Off,
    /// The arena holds both the buffer and the segment.
    Fits {
        /// Arena bytes that are never used.
        unused: u64,
    },
    /// The arena holds only the buffer, or nothing; the rest is mapped separately.
    TooSmall {
        /// Size of an arena that would hold both the buffer and the segment, in bytes.
        needed: u64,
    },
    /// The segment is spread across NUMA nodes, so it is never in the arena.
    Spread,
}

/// Memory used by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMemory {
    /// Bytes contributed to the store: with huge pages, in whole pages.
    pub mounted: u64,
    /// All huge pages that the client uses.
    pub pages: HugePageCount,
    /// Regular memory of the buffer and the segment, in bytes; 0 with huge pages.
    pub regular_bytes: u64,
    /// Regular memory of the segment that is bound to each NIC node, in bytes; 0 with huge pages.
    pub regular_per_nic_node: u64,
    /// Segment huge pages bound to each NIC node; 0 if the segment is not spread.
    pub pages_per_nic_node: u64,
    /// How the arena is used.
    pub arena: ArenaUse,
}

/// Computes the memory that a client with these sizes uses.
///
/// # Errors
/// A size overflows.
pub fn client(sizes: &ClientSizes) -> Result<ClientMemory, SizingError> {
    let too_large = SizingError::TooLarge { what: "the segment size" };
    let page = sizes.page;
    let nodes = sizes.nic_nodes.max(1);
    let is_spread = nodes > 1 && sizes.segment > 0;
    let unit = if is_spread { page.checked_mul(nodes).ok_or(too_large.clone())? } else { page };
    let mounted = sizes.segment.checked_next_multiple_of(unit).ok_or(too_large.clone())?;
    if page == REGULAR_PAGE_BYTES {
        let buffer = sizes.local_buffer.checked_next_multiple_of(page).ok_or(too_large.clone())?;
        return Ok(ClientMemory {
            mounted: if is_spread { mounted } else { sizes.segment },
            pages: HugePageCount::default(),
            regular_bytes: mounted.checked_add(buffer).ok_or(too_large)?,
            regular_per_nic_node: if is_spread { mounted / nodes } else { 0 },
            pages_per_nic_node: 0,
            arena: ArenaUse::Off,
        });
    }
    let huge = |pages, pages_per_nic_node, arena| ClientMemory {
        mounted,
        pages,
        regular_bytes: 0,
        regular_per_nic_node: 0,
        pages_per_nic_node,
        arena,
    };
    let buffer = HugePageCount::of(page, sizes.local_buffer.div_ceil(page));
    let segment = HugePageCount::of(page, mounted / page);
    let pages_per_nic_node = if is_spread { mounted / unit } else { 0 };
    if sizes.arena == 0 {
        return Ok(huge(buffer.plus(segment)?, pages_per_nic_node, ArenaUse::Off));
    }
    // The arena allocates the buffer first, then the segment, which is aligned to a huge page.
    let arena_pages = HugePageCount::of(sizes.default_page, sizes.arena.div_ceil(sizes.default_page));
    let holds_buffer = sizes.local_buffer <= sizes.arena;
    let buffer_beside = if holds_buffer { HugePageCount::default() } else { buffer };
    let pages = arena_pages.plus(buffer_beside)?;
    if is_spread {
        return Ok(huge(pages.plus(segment)?, pages_per_nic_node, ArenaUse::Spread));
    }
    let start = sizes.local_buffer.checked_next_multiple_of(if mounted > 0 { page } else { 1 });
    let needed = start.and_then(|start| start.checked_add(mounted)).ok_or(too_large)?;
    match sizes.arena.checked_sub(needed) {
        Some(unused) => Ok(huge(pages, pages_per_nic_node, ArenaUse::Fits { unused })),
        None => Ok(huge(pages.plus(segment)?, pages_per_nic_node, ArenaUse::TooSmall { needed })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn sizes(arena: u64, segment: u64) -> ClientSizes {
        let default = ClientSizes {
            segment: 0,
            local_buffer: LOCAL_BUFFER_BYTES,
            arena: 0,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
        };
        ClientSizes { arena, segment, ..default }
    }

    #[test]
    fn page_counts_match_the_real_client() {
        // Arena and segment sizes in MiB, and the measured page count without the L2 buffer's
        // 17 pages.
        for (arena, segment, pages) in
            [(0, 33, 25), (64, 33, 32), (32, 33, 33), (34, 16, 17), (0, 0, 8), (0, 1, 9), (0, 16, 16)]
        {
            let client = client(&sizes(arena * MIB, segment * MIB)).unwrap();
            assert_eq!(client.pages, HugePageCount { mib2: pages, gib1: 0 }, "arena {arena}, segment {segment}");
        }
        assert_eq!(client(&sizes(0, 33 * MIB)).unwrap().mounted, 34 * MIB);
    }

    #[test]
    fn a_spread_segment_is_rounded_per_node_and_outside_the_arena() {
        let spread = ClientSizes { nic_nodes: 2, ..sizes(64 * MIB, 33 * MIB) };
        let client = client(&spread).unwrap();
        assert_eq!((client.mounted, client.pages_per_nic_node, client.arena), (36 * MIB, 9, ArenaUse::Spread));
        assert_eq!(client.pages.mib2, 32 + 18);
    }

    #[test]
    fn a_page_of_1_gib_makes_the_small_buffer_large() {
        let huge = ClientSizes { page: GIB1, ..sizes(0, 2 * GIB1 + 1) };
        assert_eq!(client(&huge).unwrap().pages, HugePageCount { mib2: 0, gib1: 4 });
        // The arena still uses the system's default pages.
        let arena = ClientSizes { arena: 8 * GIB1, ..huge };
        let client = client(&arena).unwrap();
        assert_eq!(
            (client.pages, client.arena),
            (HugePageCount { mib2: 4096, gib1: 0 }, ArenaUse::Fits { unused: 4 * GIB1 })
        );
    }

    #[test]
    fn regular_memory_has_no_arena_and_no_rounding() {
        let regular = ClientSizes { page: REGULAR_PAGE_BYTES, ..sizes(64 * MIB, 33 * MIB + 1) };
        let one = client(&regular).unwrap();
        assert_eq!((one.mounted, one.pages, one.arena), (33 * MIB + 1, HugePageCount::default(), ArenaUse::Off));
        assert_eq!((one.regular_bytes, one.regular_per_nic_node), (33 * MIB + 4_096 + LOCAL_BUFFER_BYTES, 0));
        // Spread across NUMA nodes: the same number of 4 KiB pages on each.
        let two = client(&ClientSizes { nic_nodes: 2, ..regular }).unwrap();
        assert_eq!((two.mounted, two.regular_per_nic_node), (33 * MIB + 8_192, (33 * MIB + 8_192) / 2));
        assert_eq!((two.regular_bytes, two.pages_per_nic_node), (33 * MIB + 8_192 + LOCAL_BUFFER_BYTES, 0));
    }

    proptest! {
        #[test]
        fn an_arena_never_needs_fewer_pages_than_none(arena in 1u64..512, segment in 0u64..1_000_000_000) {
            let none = client(&sizes(0, segment)).unwrap();
            let some = client(&sizes(arena * MIB2, segment)).unwrap();
            prop_assert!(some.pages.mib2 >= none.pages.mib2);
            prop_assert_eq!(some.mounted, none.mounted);
            prop_assert!(none.mounted >= segment && none.mounted < segment + MIB2);
            // An arena that fits exactly needs no additional pages.
            if let ArenaUse::Fits { unused } = some.arena {
                prop_assert_eq!(some.pages.mib2 * MIB2, none.pages.mib2 * MIB2 + unused);
            }
        }
    }
}
