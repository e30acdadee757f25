//! A part of an object, and the caller's memory for it.

use mcctl_sys::memory::Slice;

/// A part of an object, and the caller's memory for it.
#[derive(Clone, Debug)]
pub struct ObjectPart {
    /// Offset of the part in the object, in bytes.
    pub offset: u64,
    pub local: Slice,
}

impl ObjectPart {
    /// Returns the parts of an object whose bytes lie in `slices`, one after another.
    pub fn consecutive(slices: impl IntoIterator<Item = Slice>) -> Vec<ObjectPart> {
        let mut next = 0;
        let part = |local: Slice| {
            let offset = next;
            next += local.len() as u64;
            ObjectPart { offset, local }
        };
        slices.into_iter().map(part).collect()
    }

    /// Returns the number of bytes in all of `parts`.
    pub fn total(parts: &[ObjectPart]) -> usize {
        parts.iter().map(|part| part.local.len()).sum()
    }

    /// Whether all of `parts` lie within an object of `size` bytes.
    pub fn all_within(parts: &[ObjectPart], size: u64) -> bool {
        parts.iter().all(|part| part.offset.checked_add(part.local.len() as u64).is_some_and(|end| end <= size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_sys::Memory;
    use std::sync::Arc;

    #[test]
    fn consecutive_parts_have_no_gaps_and_end_with_the_object() {
        let memory = Arc::new(Memory::from_vec(vec![0; 10]));
        let parts = ObjectPart::consecutive([memory.slice(0, 3).unwrap(), memory.slice(5, 4).unwrap()]);
        assert_eq!(parts.iter().map(|part| part.offset).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(ObjectPart::total(&parts), 7);
        assert!(ObjectPart::all_within(&parts, 7) && !ObjectPart::all_within(&parts, 6));
        let past = [ObjectPart { offset: u64::MAX, local: memory.slice(0, 1).unwrap() }];
        assert!(!ObjectPart::all_within(&past, u64::MAX));
    }
}
