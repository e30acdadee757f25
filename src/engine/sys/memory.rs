//! Memory that other processes may read and write at any time.
//!
//! Peers write to registered memory without notice (one-sided operations), so nothing here returns
//! a `&[u8]` or `&mut [u8]` that points to it. Bytes are copied in and out through the range checks
//! in this file. Reading bytes while a peer is writing them yields unspecified values, but has no
//! other effect. The store protocol defines which process may write when.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::pages::HugePageArena;

/// Owned memory at a fixed address. Share it in an `Arc`; the last owner frees it.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    backing: MemoryBacking,
}

/// The allocation that holds the bytes. Determines how they are freed.
pub(crate) enum MemoryBacking {
    /// A mapping of this size (at least `len`).
    Mapping { bytes: usize },
    /// A mapping of this size (at least `len`) of the beginning of a memfd.
    Shared { bytes: usize, file: OwnedFd },
    /// A former `Vec<u8>` with this capacity.
    Vec { capacity: usize },
    /// Part of an arena, which stays mapped until its last user is dropped.
    Arena { _keeps: Arc<HugePageArena> },
    /// Memory of this process's user, who frees it.
    Caller,
}

// SAFETY: `base` is owned by this value alone and is not tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: all access through `&Memory` is by raw copies (see the module documentation). No
// reference to the bytes is ever created.
unsafe impl Sync for Memory {}

/// The range exceeds the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not fit into {size} bytes")]
pub struct OutOfRange {
    pub offset: usize,
    pub len: usize,
    /// Size of the memory, in bytes.
    pub size: usize,
}

impl Memory {
    /// Takes ownership of `vec`'s bytes without copying them. [`Memory::into_vec`] returns them.
    pub fn from_vec(vec: Vec<u8>) -> Memory {
        let mut vec = ManuallyDrop::new(vec);
        let len = vec.len();
        let capacity = vec.capacity();
        let base = NonNull::new(vec.as_mut_ptr()).expect("a Vec's pointer is not null");
        Memory { base, len, backing: MemoryBacking::Vec { capacity } }
    }

    /// # Safety
    /// `base` points to `len` readable and writable bytes that `backing` keeps alive. Nothing else
    /// frees or references them.
    pub(crate) unsafe fn from_parts(base: NonNull<u8>, len: usize, backing: MemoryBacking) -> Memory {
        Memory { base, len, backing }
    }

    /// Returns the bytes as a `Vec`: the original `Vec` without copying, or a copy if the memory is
    /// a mapping.
    pub fn into_vec(self) -> Vec<u8> {
        match self.backing {
            MemoryBacking::Vec { capacity } => {
                let this = ManuallyDrop::new(self);
                // SAFETY: the three parts come from the Vec that `from_vec` took apart, and `len`
                // of its bytes are initialized. `this` is neither used nor dropped afterward, so
                // the Vec is the only owner.
                unsafe { Vec::from_raw_parts(this.base.as_ptr(), this.len, capacity) }
            }
            MemoryBacking::Mapping { .. }
            | MemoryBacking::Shared { .. }
            | MemoryBacking::Arena { .. }
            | MemoryBacking::Caller => {
                let mut bytes = vec![0; self.len];
                self.read_at(0, &mut bytes).expect("the buffer has the memory's length");
                bytes
            }
        }
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The virtual address in this process, which peers use to address the bytes.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The memfd that contains the bytes, in order. Other processes can map it for reading. `None`
    /// for other memory.
    pub fn shared_file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            MemoryBacking::Shared { file, .. } => Some(file.as_fd()),
            _ => None,
        }
    }

    /// Copies `into.len()` bytes out.
    ///
    /// # Errors
    /// Fails if the range exceeds the memory.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.range(offset, into.len())?;
        // SAFETY: `from` is valid for `into.len()` bytes (just checked). `into` is an exclusive
        // borrow, so they do not overlap. libc performs the copy instead of the compiler, because a
        // peer may be writing these bytes.
        unsafe { libc::memcpy(into.as_mut_ptr().cast(), from.as_ptr().cast(), into.len()) };
        Ok(())
    }

    /// Copies `from` in.
    ///
    /// # Errors
    /// Fails if the range exceeds the memory.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let into = self.range(offset, from.len())?;
        // SAFETY: as in `read_at`, in the other direction. `from` is a shared borrow of other
        // memory, since ours is never borrowed.
        unsafe { libc::memcpy(into.as_ptr().cast(), from.as_ptr().cast(), from.len()) };
        Ok(())
    }

    /// Sets `len` bytes to `byte`.
    ///
    /// # Errors
    /// Fails if the range exceeds the memory.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), OutOfRange> {
        let into = self.range(offset, len)?;
        // SAFETY: `into` is valid for `len` bytes (just checked).
        unsafe { libc::memset(into.as_ptr().cast(), i32::from(byte), len) };
        Ok(())
    }

    /// Returns a slice of the `len` bytes at `offset`.
    ///
    /// # Errors
    /// Fails if the range exceeds the memory.
    pub fn slice(self: &Arc<Self>, offset: usize, len: usize) -> Result<Slice, OutOfRange> {
        self.range(offset, len)?;
        Ok(Slice { memory: Arc::clone(self), offset, len })
    }

    /// Returns a slice of the whole memory.
    pub fn whole(self: &Arc<Self>) -> Slice {
        Slice { memory: Arc::clone(self), offset: 0, len: self.len }
    }

    fn range(&self, offset: usize, len: usize) -> Result<NonNull<u8>, OutOfRange> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfRange { offset, len, size: self.len });
        }
        // SAFETY: `offset` is at most the length of the allocation, so the result is inside it or
        // one past its end.
        Ok(unsafe { self.base.add(offset) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.backing {
            MemoryBacking::Mapping { bytes } | MemoryBacking::Shared { bytes, .. } => {
                // SAFETY: `base` and `bytes` describe a mapping that only this value owns. Nothing
                // uses the mapping afterward.
                let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
                debug_assert_eq!(rc, 0, "the mapping is owned and complete");
            }
            MemoryBacking::Vec { capacity } => {
                // SAFETY: as in `into_vec`. This value is not used after it is dropped.
                drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) });
            }
            MemoryBacking::Arena { .. } | MemoryBacking::Caller => {}
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.address(), self.len)
    }
}

/// A range of a [`Memory`], checked when the slice was created. Keeps the memory alive. Cheap to
/// clone.
#[derive(Clone)]
pub struct Slice {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
}

impl Slice {
    /// The memory that contains the slice.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Offset in the memory, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The virtual address in this process.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Returns a slice of the `len` bytes at `offset` in this slice.
    ///
    /// # Errors
    /// Fails if the range exceeds the slice.
    pub fn part(&self, offset: usize, len: usize) -> Result<Slice, OutOfRange> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfRange { offset, len, size: self.len });
        }
        Ok(Slice { memory: Arc::clone(&self.memory), offset: self.offset + offset, len })
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.memory.read_at(self.offset, &mut bytes).expect("range checked when the slice was created");
        bytes
    }

    /// Copies the bytes from `from`, which must have the same length. The slices may overlap.
    ///
    /// # Errors
    /// Fails if the lengths differ.
    pub fn copy_from(&self, from: &Slice) -> Result<(), OutOfRange> {
        if from.len != self.len {
            return Err(OutOfRange { offset: 0, len: from.len, size: self.len });
        }
        // SAFETY: both ranges were checked when the slices were created, and are valid as long as
        // the slices. memmove allows overlap.
        unsafe { libc::memmove(self.pointer(0).as_ptr().cast(), from.pointer(0).as_ptr().cast(), self.len) };
        Ok(())
    }

    /// Copies `bytes`, or as much of it as fits, to the beginning of the slice. Returns the number
    /// of bytes copied.
    pub fn copy_from_bytes(&self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.len);
        self.memory.write_at(self.offset, &bytes[..count]).expect("range checked when the slice was created");
        count
    }

    /// The NUMA node of the slice's first page. `None` if the page was never touched, or if the
    /// kernel does not report the node.
    pub fn numa_node(&self) -> Option<u32> {
        let page = self.pointer(0).as_ptr().cast::<libc::c_void>();
        let mut node: libc::c_int = -1;
        // SAFETY: without a list of nodes the call only queries and moves nothing. It reads one
        // address, which it does not dereference as a pointer of this process, and writes one
        // status.
        let rc = unsafe {
            let (pages, nodes) = (&raw const page, std::ptr::null::<libc::c_int>());
            libc::syscall(libc::SYS_move_pages, 0, 1usize, pages, nodes, &raw mut node, 0)
        };
        if rc == 0 { u32::try_from(node).ok() } else { None }
    }

    /// A pointer to the byte at `at`, or to the end if `at` is past the end. Valid up to the
    /// slice's end, as long as `self` exists.
    pub(crate) fn pointer(&self, at: usize) -> NonNull<u8> {
        // SAFETY: `offset + at` is inside the allocation or one past its end. The range was checked
        // when the slice was created.
        unsafe { self.memory.base.add(self.offset + at.min(self.len)) }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:#x}, {} bytes)", self.address(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: usize) -> Arc<Memory> {
        Arc::new(Memory::from_vec((0..len).map(|i| u8::try_from(i % 251).unwrap()).collect()))
    }

    #[test]
    fn bytes_are_copied_at_an_offset() {
        let memory = memory(100);
        memory.write_at(97, b"abc").unwrap();
        let mut out = [0; 4];
        memory.read_at(96, &mut out).unwrap();
        assert_eq!(&out, b"\x60abc");
        memory.fill(0, 2, 9).unwrap();
        assert_eq!(memory.slice(0, 3).unwrap().to_vec(), [9, 9, 2]);
    }

    #[test]
    fn an_out_of_range_access_is_refused() {
        let memory = memory(10);
        let wrong = OutOfRange { offset: 8, len: 3, size: 10 };
        assert_eq!(memory.read_at(8, &mut [0; 3]), Err(wrong));
        assert_eq!(memory.write_at(8, &[0; 3]), Err(wrong));
        assert_eq!(memory.fill(8, 3, 0), Err(wrong));
        assert_eq!(memory.slice(8, 3).unwrap_err(), wrong);
        assert!(memory.slice(usize::MAX, 2).is_err());
        assert!(memory.slice(10, 0).is_ok());
        assert!(memory.slice(2, 4).unwrap().part(3, 2).is_err());
        assert_eq!(memory.slice(2, 4).unwrap().part(3, 1).unwrap().to_vec(), [5]);
    }

    #[test]
    fn a_vec_comes_back_without_a_copy() {
        let mut vec = Vec::with_capacity(64);
        vec.extend_from_slice(b"hello");
        let at = vec.as_ptr();
        let memory = Memory::from_vec(vec);
        assert_eq!(memory.address(), at as u64);
        let vec = memory.into_vec();
        assert_eq!((vec.as_ptr(), vec.as_slice(), vec.capacity()), (at, &b"hello"[..], 64));
        assert_eq!(Memory::from_vec(Vec::new()).into_vec(), Vec::<u8>::new());
    }

    #[test]
    fn slices_copy_even_where_they_overlap() {
        let memory = memory(10);
        memory.slice(2, 5).unwrap().copy_from(&memory.slice(0, 5).unwrap()).unwrap();
        assert_eq!(memory.whole().to_vec(), [0, 1, 0, 1, 2, 3, 4, 7, 8, 9]);
        assert!(memory.slice(0, 5).unwrap().copy_from(&memory.slice(0, 4).unwrap()).is_err());
    }
}
