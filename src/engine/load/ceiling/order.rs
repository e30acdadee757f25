//! The order in which tokens were last used, and how many other tokens were used after them.

use mcctl_trace::reuse::Fenwick;

/// Number of uses after which those without tokens are removed.
const USES_MAX: usize = 1 << 23;

/// The uses of tokens, in order. A token belongs to its last use only.
#[derive(Clone, Debug)]
pub struct UseOrder {
    tokens: Fenwick,
    /// Uses of tokens that nothing uses again: the number of each use and its tokens.
    untracked: Vec<(u32, u64)>,
    uses_max: usize,
}

impl Default for UseOrder {
    fn default() -> UseOrder {
        UseOrder { tokens: Fenwick::default(), untracked: Vec::new(), uses_max: USES_MAX }
    }
}

impl UseOrder {
    /// Returns the number of the next use.
    pub fn next_number(&self) -> u32 {
        u32::try_from(self.tokens.slots()).unwrap_or(u32::MAX)
    }

    /// Adds a use of `tokens` tokens.
    pub fn push(&mut self, tokens: u64) {
        self.tokens.push(tokens);
    }

    /// Adds a use of `tokens` tokens that nothing uses again.
    pub fn push_untracked(&mut self, tokens: u64) {
        self.untracked.push((self.next_number(), tokens));
        self.tokens.push(tokens);
    }

    /// Removes `tokens` tokens from a use: they were used again, or are no longer cached. A number
    /// that is not in use has no tokens.
    pub fn remove(&mut self, number: u32, tokens: u64) {
        if number < self.next_number() {
            self.tokens.subtract(number as usize, tokens);
        }
    }

    /// Returns the number of tokens whose last use is after `number`.
    pub fn after(&self, number: u32) -> u64 {
        self.tokens.after(number as usize)
    }

    /// Returns whether the uses must be renumbered before the next one.
    pub fn is_full(&self) -> bool {
        self.tokens.slots() >= self.uses_max
    }

    /// Renumbers after `uses_max` uses.
    #[cfg(test)]
    pub(crate) fn set_uses_max(&mut self, uses_max: usize) {
        self.uses_max = uses_max;
    }

    /// Removes the uses without tokens. `tracked` has the number of each use and its tokens, and
    /// gets the new numbers.
    pub fn renumber(&mut self, tracked: Vec<(&mut u32, u64)>) {
        let mut untracked = std::mem::take(&mut self.untracked);
        let mut uses: Vec<(&mut u32, u64)> = tracked;
        uses.extend(untracked.iter_mut().map(|(number, tokens)| (number, *tokens)));
        uses.sort_unstable_by_key(|(number, _)| **number);
        self.tokens = Fenwick::default();
        let mut last: Option<(u32, u64)> = None;
        for (number, tokens) in uses {
            last = match last {
                Some((old, sum)) if old == *number => Some((old, sum + tokens)),
                other => {
                    if let Some((_, sum)) = other {
                        self.tokens.push(sum);
                    }
                    Some((*number, tokens))
                }
            };
            *number = self.next_number();
        }
        if let Some((_, sum)) = last {
            self.tokens.push(sum);
        }
        self.untracked = untracked;
        // At least as many uses again before the next time.
        self.uses_max = self.uses_max.max(2 * self.tokens.slots());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renumbered_uses_keep_their_order_and_distances() {
        let mut order = UseOrder { uses_max: 4, ..UseOrder::default() };
        [10, 20, 30].iter().for_each(|tokens| order.push(*tokens));
        order.push_untracked(40);
        assert!(order.is_full());
        order.remove(1, 20);
        order.remove(2, 5);
        let mut numbers = [0, 2, 2];
        let tokens = [10, 20, 5];
        let before = numbers.map(|number| order.after(number));
        order.renumber(numbers.iter_mut().zip(tokens).collect());
        assert_eq!((numbers, order.next_number(), order.is_full()), ([0, 1, 1], 3, false));
        assert_eq!(numbers.map(|number| order.after(number)), before);
        assert_eq!(order.after(1), 40, "the use that nothing uses again");
    }
}
