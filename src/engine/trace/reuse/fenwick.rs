//! A Fenwick tree: values per slot, with sums of all slots up to one in O(log n).

/// Values of consecutive slots.
#[derive(Clone, Debug, Default)]
pub struct Fenwick {
    /// Node `i + 1` has the sum of the slots in (i + 1 - lowbit(i + 1), i + 1].
    sums: Vec<u64>,
    total: u64,
}

impl Fenwick {
    pub(super) fn new(slots: usize) -> Fenwick {
        Fenwick { sums: vec![0; slots], total: 0 }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.sums.len()
    }

    /// Appends a slot with `value`.
    pub fn push(&mut self, value: u64) {
        let node = self.sums.len() + 1;
        let first = node - (node & node.wrapping_neg());
        let mut sum = value;
        let mut child = node - 1;
        while child > first {
            sum = sum.saturating_add(self.sums[child - 1]);
            child -= child & child.wrapping_neg();
        }
        self.sums.push(sum);
        self.total = self.total.saturating_add(value);
    }

    pub(super) fn add(&mut self, slot: usize, value: u64) {
        self.total = self.total.saturating_add(value);
        self.change(slot, |sum| sum.saturating_add(value));
    }

    /// Subtracts `value` from a slot.
    pub fn subtract(&mut self, slot: usize, value: u64) {
        self.total = self.total.saturating_sub(value);
        self.change(slot, |sum| sum.saturating_sub(value));
    }

    fn change(&mut self, slot: usize, change: impl Fn(u64) -> u64) {
        let mut node = slot + 1;
        while let Some(sum) = self.sums.get_mut(node - 1) {
            *sum = change(*sum);
            node += node & node.wrapping_neg();
        }
    }

    /// The sum of the slots after `slot`.
    pub fn after(&self, slot: usize) -> u64 {
        let mut node = (slot + 1).min(self.sums.len());
        let mut sum = 0;
        while node > 0 {
            sum += self.sums[node - 1];
            node -= node & node.wrapping_neg();
        }
        self.total.saturating_sub(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_those_of_the_slots(values in prop::collection::vec(0u64..100, 1..60), removed in 0usize..60) {
            let mut tree = Fenwick::new(values.len());
            let mut grown = Fenwick::default();
            for (slot, value) in values.iter().enumerate() {
                tree.add(slot, *value);
                grown.push(*value);
            }
            prop_assert_eq!((&tree.sums, tree.total), (&grown.sums, grown.total));
            let removed = removed % values.len();
            tree.subtract(removed, values[removed]);
            for slot in 0..values.len() {
                let expected: u64 = values.iter().enumerate().skip(slot + 1).filter(|(at, _)| *at != removed).map(|(_, v)| v).sum();
                prop_assert_eq!(tree.after(slot), expected);
            }
        }
    }
}
