//! A growable array that does not move its items once its first chunk is full: to grow, it
//! allocates one more chunk instead of copying all items.
//!
//! It stores the records of the master's objects, of which there may be millions. Doubling a `Vec`
//! would copy them all and keep the master's state locked for milliseconds. Here, no step takes
//! longer than filling one chunk.

use std::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

/// A growable array of `T`, indexed by `u32`.
#[derive(Debug)]
pub struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: u32,
}

impl<T> Default for Chunked<T> {
    fn default() -> Chunked<T> {
        Chunked { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunked<T> {
    /// Returns the number of items in the array.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the array has no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `value` and returns its index.
    ///
    /// # Panics
    /// If the array already contains 2^32 - 1 items. Callers keep the number of items well below
    /// this limit.
    pub fn push(&mut self, value: T) -> u32 {
        let at = self.len;
        self.len = at.checked_add(1).expect("fewer than 2^32 records");
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(value),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(value);
                self.chunks.push(chunk);
            }
            // The first chunk starts small and doubles, so that a short array does not occupy the
            // memory of a full chunk.
            None => self.chunks.push(vec![value]),
        }
        at
    }

    /// Returns the item at index `at`, if it exists.
    pub fn get(&self, at: u32) -> Option<&T> {
        self.chunks.get(at as usize >> CHUNK_BITS)?.get(at as usize & (CHUNK - 1))
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;
    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize >> CHUNK_BITS][at as usize & (CHUNK - 1)]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize >> CHUNK_BITS][at as usize & (CHUNK - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_index_across_chunks() {
        let mut all = Chunked::default();
        for i in 0..5_000u64 {
            assert_eq!(u64::from(all.push(i)), i);
        }
        all[4_097] = 7;
        assert_eq!((all[0], all[1_023], all[1_024], all[4_097], all.len()), (0, 1_023, 1_024, 7, 5_000));
        assert_eq!((all.get(4_999), all.get(5_000)), (Some(&4_999), None));
    }
}
