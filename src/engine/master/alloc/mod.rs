//! Chooses a replica's segment and byte range. Works only with offsets and names, never with the
//! memory itself.
//!
//! Nothing in this directory accesses the allocated bytes, reads a clock or generates its own
//! seeds. Start with [`Allocator`], the interface of a single segment's allocator. [`offset`]
//! implements it, and [`placement`] chooses among segments. Upstream's counterparts are
//! `OffsetBufferAllocator` and `allocation_strategy.h`.
#![warn(clippy::cast_possible_truncation)]

pub mod chunked;
pub mod offset;
pub mod placement;

pub use chunked::Chunked;
pub use offset::{OffsetAllocator, RangeError, UsedRange};

/// An allocated range in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Offset from the start of the segment in bytes.
    pub offset: u64,
    /// Identifies the block when it is passed to [`Allocator::free`]. Unique among an allocator's
    /// live blocks; reused after `free`.
    pub ticket: u32,
}

/// Allocator for one segment. Blocks do not overlap, lie within the segment, and become available
/// again once freed.
pub trait Allocator {
    /// Allocates a block of at least `bytes` bytes. Returns `None` if no free run is long enough,
    /// or if `bytes` is 0.
    fn allocate(&mut self, bytes: u64) -> Option<Block>;
    /// Frees a block. `ticket` must come from [`Allocator::allocate`] and must not have been freed
    /// since.
    fn free(&mut self, ticket: u32);
    /// Total number of bytes.
    fn capacity(&self) -> u64;
    /// Number of allocated bytes, including rounding.
    fn used(&self) -> u64;
    /// Number of allocated blocks.
    fn live(&self) -> u32;
}
