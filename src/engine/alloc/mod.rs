//! Which bytes of a segment a replica gets, and which segment: offsets and names only, never memory.
//!
//! Nothing here touches the bytes it hands out, reads a clock or draws its own random numbers. Start with [`Allocator`], the
//! contract of one segment's allocator; [`offset`] is the one we ship, [`placement`] chooses among segments. Upstream's
//! counterparts are `OffsetBufferAllocator` and `allocation_strategy.h`.

pub mod chunked;
pub mod offset;
pub mod placement;

pub use chunked::Chunked;
pub use offset::OffsetAllocator;

/// A handed-out stretch of a segment: where it begins, and the ticket with which it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes from the segment's beginning.
    pub offset: u64,
    /// What [`Allocator::free`] wants. Unique among the live blocks of one allocator; reused after `free`.
    pub ticket: u32,
}

/// The contract of one segment's allocator: blocks do not overlap, lie inside the capacity, and what is freed can be had again.
pub trait Allocator {
    /// A block of at least `bytes` bytes, or `None` when no free run is long enough (or `bytes` is 0).
    fn allocate(&mut self, bytes: u64) -> Option<Block>;
    /// Give a block back. `ticket` must come from [`Allocator::allocate`] and must not have been given back since.
    fn free(&mut self, ticket: u32);
    /// Bytes in all.
    fn capacity(&self) -> u64;
    /// Bytes in blocks that are handed out, their rounding included.
    fn used(&self) -> u64;
    /// Blocks that are handed out.
    fn live(&self) -> u32;
}
