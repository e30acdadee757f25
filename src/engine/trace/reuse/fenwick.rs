//! A Fenwick tree: values per slot, with sums of all slots up to one in O(log n).

/// Values of a fixed number of slots, all 0 at first.
#[derive(Clone, Debug)]
pub(super) struct Fenwick {
    /// Node `i + 1` has the sum of the slots in (i + 1 - lowbit(i + 1), i + 1].
    sums: Vec<u64>,
    total: u64,
}

impl Fenwick {
    pub(super) fn new(slots: usize) -> Fenwick {
        Fenwick { sums: vec![0; slots], total: 0 }
    }

    pub(super) fn add(&mut self, slot: usize, value: u64) {
        self.total = self.total.saturating_add(value);
        self.change(slot, |sum| sum.saturating_add(value));
    }

    pub(super) fn subtract(&mut self, slot: usize, value: u64) {
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
    pub(super) fn after(&self, slot: usize) -> u64 {
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
            for (slot, value) in values.iter().enumerate() {
                tree.add(slot, *value);
            }
            let removed = removed % values.len();
            tree.subtract(removed, values[removed]);
            for slot in 0..values.len() {
                let expected: u64 = values.iter().enumerate().skip(slot + 1).filter(|(at, _)| *at != removed).map(|(_, v)| v).sum();
                prop_assert_eq!(tree.after(slot), expected);
            }
        }
    }
}
