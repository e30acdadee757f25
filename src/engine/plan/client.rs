//! What the store's client in each rank takes from the pool of huge pages: its buffer, its segment, and an arena, if there is one.
//!
//! Source: `mooncake/mooncake-store/src/real_client.cpp` (`setup_internal`), `mmap_arena.cpp`, `utils.cpp`; and the pages that the
//! wheel 0.3.13.post1 was seen to take, which the tests repeat. All of it holds with `MC_STORE_USE_HUGEPAGE` set.

use crate::engine::plan::PlanError;

/// The buffer that SGLang asks for in `setup`, whatever MOONCAKE_LOCAL_BUFFER_SIZE says.
pub const LOCAL_BUFFER_BYTES: u64 = 16 << 20;
/// The least of a segment without huge pages.
pub const PLAIN_SEGMENT_BYTES_MIN: u64 = 16 << 20;
/// A huge page of the usual size.
pub const MIB2: u64 = 2 << 20;
/// A large huge page.
pub const GIB1: u64 = 1 << 30;

/// Huge pages of both sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Of 2 MiB.
    pub mib2: u64,
    /// Of 1 GiB.
    pub gib1: u64,
}

impl Pages {
    /// `count` pages of `page` bytes ([`GIB1`], else 2 MiB).
    pub fn of(page: u64, count: u64) -> Pages {
        if page == GIB1 { Pages { mib2: 0, gib1: count } } else { Pages { mib2: count, gib1: 0 } }
    }

    /// Those of `page` bytes.
    pub fn count(&self, page: u64) -> u64 {
        if page == GIB1 { self.gib1 } else { self.mib2 }
    }

    /// Both, added.
    ///
    /// # Errors
    /// The sum is absurd.
    pub fn plus(self, other: Pages) -> Result<Pages, PlanError> {
        let add = |a: u64, b: u64| a.checked_add(b).ok_or(PlanError::TooLarge { what: "the huge pages" });
        Ok(Pages { mib2: add(self.mib2, other.mib2)?, gib1: add(self.gib1, other.gib1)? })
    }

    /// Their bytes.
    pub fn bytes(&self) -> u128 {
        u128::from(self.mib2) * u128::from(MIB2) + u128::from(self.gib1) * u128::from(GIB1)
    }
}

/// What the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientWish {
    /// Bytes of the rank's segment; 0 for none.
    pub segment: u64,
    /// Bytes of its buffer.
    pub local_buffer: u64,
    /// Bytes of the arena, whole 2 MiB; 0 for none.
    pub arena: u64,
    /// Bytes of a huge page of buffers and segments.
    pub page: u64,
    /// Bytes of a huge page where none is named: the system's default. The arena takes these.
    pub default_page: u64,
    /// NUMA nodes with NICs that an RDMA segment is spread over; 0 or 1: it is not.
    pub nic_nodes: u64,
}

/// What came of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arena {
    /// There is none.
    Off,
    /// Buffer and segment are in it.
    Fits {
        /// Bytes of it that nothing will ever use.
        unused: u64,
    },
    /// It holds the buffer, or nothing, and the rest is mapped beside it.
    TooSmall {
        /// Bytes with which it would hold both.
        needed: u64,
    },
    /// The segment is spread over NUMA nodes and never in the arena.
    Spread,
}

/// What a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Bytes that it offers to the store: whole huge pages.
    pub mounted: u64,
    /// Huge pages for all of it.
    pub pages: Pages,
    /// Of those, huge pages bound to each NIC node; 0 where the segment is not spread.
    pub pages_per_nic_node: u64,
    /// What came of the arena.
    pub arena: Arena,
}

/// What a client with `wish` takes.
///
/// # Errors
/// A size is absurd.
pub fn client(wish: &ClientWish) -> Result<Client, PlanError> {
    let too_large = PlanError::TooLarge { what: "the segment" };
    let page = wish.page;
    let nodes = wish.nic_nodes.max(1);
    let is_spread = nodes > 1 && wish.segment > 0;
    let unit = if is_spread { page.checked_mul(nodes).ok_or(too_large.clone())? } else { page };
    let mounted = wish.segment.checked_next_multiple_of(unit).ok_or(too_large.clone())?;
    let buffer = Pages::of(page, wish.local_buffer.div_ceil(page));
    let segment = Pages::of(page, mounted / page);
    let pages_per_nic_node = if is_spread { mounted / unit } else { 0 };
    if wish.arena == 0 {
        return Ok(Client { mounted, pages: buffer.plus(segment)?, pages_per_nic_node, arena: Arena::Off });
    }
    // The arena's cursor goes over the buffer first, then over the segment, which begins at a huge page.
    let arena_pages = Pages::of(wish.default_page, wish.arena.div_ceil(wish.default_page));
    let holds_buffer = wish.local_buffer <= wish.arena;
    let buffer_beside = if holds_buffer { Pages::default() } else { buffer };
    let pages = arena_pages.plus(buffer_beside)?;
    if is_spread {
        return Ok(Client { mounted, pages: pages.plus(segment)?, pages_per_nic_node, arena: Arena::Spread });
    }
    let start = wish.local_buffer.checked_next_multiple_of(if mounted > 0 { page } else { 1 });
    let needed = start.and_then(|start| start.checked_add(mounted)).ok_or(too_large)?;
    match wish.arena.checked_sub(needed) {
        Some(unused) => Ok(Client { mounted, pages, pages_per_nic_node, arena: Arena::Fits { unused } }),
        None => {
            Ok(Client { mounted, pages: pages.plus(segment)?, pages_per_nic_node, arena: Arena::TooSmall { needed } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn wish(arena: u64, segment: u64) -> ClientWish {
        let default = ClientWish {
            segment: 0,
            local_buffer: LOCAL_BUFFER_BYTES,
            arena: 0,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
        };
        ClientWish { arena, segment, ..default }
    }

    #[test]
    fn a_client_takes_the_pages_that_the_real_one_was_seen_to_take() {
        // Arena MiB, segment MiB; pages beside the 17 of the L2 buffer in that run.
        for (arena, segment, pages) in
            [(0, 33, 25), (64, 33, 32), (32, 33, 33), (34, 16, 17), (0, 0, 8), (0, 1, 9), (0, 16, 16)]
        {
            let client = client(&wish(arena * MIB, segment * MIB)).unwrap();
            assert_eq!(client.pages, Pages { mib2: pages, gib1: 0 }, "arena {arena}, segment {segment}");
        }
        assert_eq!(client(&wish(0, 33 * MIB)).unwrap().mounted, 34 * MIB);
    }

    #[test]
    fn a_segment_over_nic_nodes_is_rounded_for_each_and_never_in_the_arena() {
        let spread = ClientWish { nic_nodes: 2, ..wish(64 * MIB, 33 * MIB) };
        let client = client(&spread).unwrap();
        assert_eq!((client.mounted, client.pages_per_nic_node, client.arena), (36 * MIB, 9, Arena::Spread));
        assert_eq!(client.pages.mib2, 32 + 18);
    }

    #[test]
    fn a_page_of_1_gib_makes_the_small_buffer_large() {
        let huge = ClientWish { page: GIB1, ..wish(0, 2 * GIB1 + 1) };
        assert_eq!(client(&huge).unwrap().pages, Pages { mib2: 0, gib1: 4 });
        // The arena is of the system's default pages all the same.
        let arena = ClientWish { arena: 8 * GIB1, ..huge };
        let client = client(&arena).unwrap();
        assert_eq!((client.pages, client.arena), (Pages { mib2: 4096, gib1: 0 }, Arena::Fits { unused: 4 * GIB1 }));
    }

    proptest! {
        #[test]
        fn an_arena_never_takes_fewer_pages_than_none(arena in 1u64..512, segment in 0u64..1_000_000_000) {
            let none = client(&wish(0, segment)).unwrap();
            let some = client(&wish(arena * MIB2, segment)).unwrap();
            prop_assert!(some.pages.mib2 >= none.pages.mib2);
            prop_assert_eq!(some.mounted, none.mounted);
            prop_assert!(none.mounted >= segment && none.mounted < segment + MIB2);
            // An arena that fits exactly costs nothing more.
            if let Arena::Fits { unused } = some.arena {
                prop_assert_eq!(some.pages.mib2 * MIB2, none.pages.mib2 * MIB2 + unused);
            }
        }
    }
}
