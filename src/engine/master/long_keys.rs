//! Storage for keys that are too long for their records. Slots of the same size are grouped in
//! large chunks, with one chunk list per size class.
//!
//! One allocation per key would cost an allocator header, a wide pointer in the record and an
//! allocator call per put. A slot costs only the key length, rounded up to a multiple of 8 bytes,
//! and a `u32`.

/// The bytes of all long keys.
#[derive(Debug, Default)]
pub(super) struct LongKeys {
    classes: Vec<SizeClass>,
    /// Keys that are too long for any size class, by slot.
    large: Vec<Box<[u8]>>,
    large_spare: Vec<u32>,
}

/// The slots of one size.
#[derive(Debug, Default)]
struct SizeClass {
    chunks: Vec<Box<[u8]>>,
    /// Number of slots ever allocated. Each slot below this is live or in `spare`.
    used: u32,
    spare: Vec<u32>,
}

const STEP: usize = 8;
/// Maximum length of a key in a size class, in bytes. Longer keys get a separate allocation.
const CLASSED_MAX: usize = 1024;
/// Slots per chunk as a power of two, so that a slot is found with a shift.
const CHUNK_BITS: u32 = 8;
const CHUNK: usize = 1 << CHUNK_BITS;

fn class_of(len: usize) -> usize {
    len.div_ceil(STEP)
}

fn slot_bytes(class: usize) -> usize {
    class.max(1) * STEP
}

impl LongKeys {
    /// Stores a copy of `key` and returns its slot.
    pub(crate) fn insert(&mut self, key: &[u8]) -> u32 {
        if key.len() > CLASSED_MAX {
            return match self.large_spare.pop() {
                Some(slot) => {
                    self.large[slot as usize] = key.into();
                    slot
                }
                None => {
                    self.large.push(key.into());
                    index(self.large.len() - 1)
                }
            };
        }
        let nth = class_of(key.len());
        if nth >= self.classes.len() {
            self.classes.resize_with(nth + 1, SizeClass::default);
        }
        let class = &mut self.classes[nth];
        let slot = class.spare.pop().unwrap_or_else(|| {
            if class.used as usize == class.chunks.len() * CHUNK {
                class.chunks.push(vec![0; CHUNK * slot_bytes(nth)].into());
            }
            class.used += 1;
            class.used - 1
        });
        let (chunk, from) = chunk_position(nth, slot);
        class.chunks[chunk][from..from + key.len()].copy_from_slice(key);
        slot
    }

    /// Returns the key in `slot`, which is `len` bytes long.
    pub(crate) fn get(&self, slot: u32, len: u32) -> &[u8] {
        let len = len as usize;
        if len > CLASSED_MAX {
            return &self.large[slot as usize];
        }
        let nth = class_of(len);
        let (chunk, from) = chunk_position(nth, slot);
        &self.classes[nth].chunks[chunk][from..from + len]
    }

    /// Removes the key in `slot`, which is `len` bytes long.
    pub(crate) fn remove(&mut self, slot: u32, len: u32) {
        let len = len as usize;
        if len > CLASSED_MAX {
            self.large[slot as usize] = Box::default();
            self.large_spare.push(slot);
        } else {
            self.classes[class_of(len)].spare.push(slot);
        }
    }
}

/// Chunk and byte offset of a slot.
fn chunk_position(class: usize, slot: u32) -> (usize, usize) {
    (slot as usize >> CHUNK_BITS, (slot as usize & (CHUNK - 1)) * slot_bytes(class))
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2^32 keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_are_found_again() {
        let mut keys = LongKeys::default();
        let made: Vec<Vec<u8>> = (0..3_000usize).map(|i| vec![(i % 251) as u8; i % 1_200]).collect();
        let slots: Vec<u32> = made.iter().map(|key| keys.insert(key)).collect();
        for (key, slot) in made.iter().zip(&slots) {
            assert_eq!(keys.get(*slot, key.len() as u32), key);
        }
    }

    #[test]
    fn a_removed_keys_slot_is_reused() {
        let mut keys = LongKeys::default();
        for key in [&[1u8; 68][..], &[1; 5_000]] {
            let first = keys.insert(key);
            keys.remove(first, key.len() as u32);
            assert_eq!(keys.insert(key), first);
        }
    }
}
