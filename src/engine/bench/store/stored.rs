//! Which objects have been put, while several clients put them: those up to the first one that is still on its way. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
#[derive(Debug)]
pub(super) struct Stored {
    first: u32,
    /// Ranges beyond it, by their starts; neighbours are one. There is less than one for each client.
    ahead: BTreeMap<u32, u32>,
}

impl Stored {
    /// The first `first` objects are there.
    pub fn new(first: u32) -> Stored {
        Stored { first, ahead: BTreeMap::new() }
    }

    /// So many of the first ones are there.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// These are there, too.
    pub fn add(&mut self, objects: Range<u32>) {
        let (mut from, mut to) = (objects.start, objects.end);
        if let Some((start, _)) = self.ahead.range(..=from).next_back().filter(|(_, end)| **end == from) {
            from = *start;
        }
        if let Some(end) = self.ahead.remove(&to) {
            to = end;
        }
        self.ahead.insert(from, to);
        while let Some(end) = self.ahead.remove(&self.first) {
            self.first = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_on_its_way_holds_back_what_came_after_it() {
        let mut stored = Stored::new(8);
        stored.add(12..16);
        stored.add(20..24);
        stored.add(16..20);
        assert_eq!((stored.first(), stored.ahead.len()), (8, 1), "8 to 11 are on their way");
        stored.add(8..12);
        assert_eq!((stored.first(), stored.ahead.len()), (24, 0));
        stored.add(24..25);
        assert_eq!(stored.first(), 25);
    }
}
