//! When the conversations of text prompts were last used. Only their lengths are known, so a
//! conversation counts as a unit, and what a distance counts is approximate.

use std::collections::HashMap;

use crate::ceiling::allowed::{AllowedHits, PrefixWalk, UsedRun};
use crate::ceiling::order::UseOrder;
use crate::ceiling::reach::TierReach;

/// The last use of a conversation and the number of its tokens.
#[derive(Clone, Copy, Debug)]
struct TextUse {
    number: u32,
    tokens: u64,
}

/// The conversations with text prompts of one server.
#[derive(Clone, Debug, Default)]
pub struct TextUses {
    order: UseOrder,
    conversations: HashMap<u64, TextUse>,
    /// The first use after the last flush of L1 and L2.
    flushed: u32,
}

impl TextUses {
    /// Returns the hits that `reach` allows for a prompt that begins with `tokens` tokens of the
    /// conversation `owner`.
    pub fn allowed(&self, page: u32, reach: TierReach, owner: u64, tokens: u32) -> AllowedHits {
        let Some(last) = self.conversations.get(&owner) else { return AllowedHits::default() };
        let mut walk = PrefixWalk::new(page, reach);
        walk.add(UsedRun {
            tokens: u64::from(tokens),
            distance: self.order.after(last.number),
            in_memory: last.number >= self.flushed,
            stored: true,
        });
        walk.end()
    }

    /// Records that the conversation `name` was used and now has `tokens` tokens, of which `shared`
    /// were those of the conversation `owner`.
    pub fn record(&mut self, name: u64, tokens: u64, owner: u64, shared: u64) {
        if self.order.is_full() {
            let uses = self.conversations.values_mut().map(|last| (&mut last.number, last.tokens));
            self.order.renumber(uses.chain([(&mut self.flushed, 0)]).collect());
        }
        if owner != name
            && let Some(last) = self.conversations.get_mut(&owner)
        {
            let moved = shared.min(last.tokens);
            last.tokens -= moved;
            self.order.remove(last.number, moved);
        }
        let number = self.order.next_number();
        if let Some(before) = self.conversations.insert(name, TextUse { number, tokens }) {
            self.order.remove(before.number, before.tokens);
        }
        self.order.push(tokens);
    }

    /// Records `tokens` tokens of untracked requests.
    pub fn advance(&mut self, tokens: u64) {
        self.order.push_untracked(tokens);
    }

    /// Records a flush of L1 and L2. With `has_storage`, L3 keeps everything.
    pub fn flush(&mut self, has_storage: bool) {
        if !has_storage {
            *self = TextUses::default();
        }
        self.flushed = self.order.next_number();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::reach::StorageReach;

    #[test]
    fn conversations_used_in_between_count() {
        let reach = TierReach { device: 100, memory: 250, storage: StorageReach::Unknown };
        let mut uses = TextUses::default();
        uses.record(1, 80, 1, 0);
        uses.record(2, 60, 2, 0);
        assert_eq!(uses.allowed(4, reach, 1, 80), AllowedHits { device: 40, memory: 80, all: 80 });
        // The second conversation grows. Its earlier tokens do not count twice.
        uses.record(2, 90, 2, 60);
        assert_eq!(uses.allowed(4, reach, 1, 80).device, 8);
        // A third one with the prompt of the first one takes over its tokens.
        uses.record(3, 100, 1, 80);
        assert_eq!(uses.allowed(4, reach, 2, 88).memory, 88);
        assert_eq!(uses.order.after(1), 190);
        uses.flush(true);
        assert_eq!(uses.allowed(4, reach, 3, 88), AllowedHits { device: 0, memory: 0, all: 88 });
        uses.flush(false);
        assert_eq!(uses.allowed(4, reach, 3, 88), AllowedHits::default());
    }
}
