//! The order in which two endpoints take turns.

use std::collections::VecDeque;
use std::ops::Range;

use crate::session::SessionStep;

/// Maximum number of blocks.
pub const BLOCKS_MAX: u32 = 1_000;

/// Splits `conversations` into about `wanted` blocks of nearly equal size. Several blocks are an
/// even number, so that each endpoint goes first equally often. No block is empty.
pub fn blocks(conversations: u32, wanted: u32) -> Vec<Range<u32>> {
    let number = wanted.clamp(1, BLOCKS_MAX).min(conversations);
    let number = if number > 1 { number - number % 2 } else { number };
    let at = |block: u32| (u64::from(conversations) * u64::from(block) / u64::from(number.max(1))) as u32;
    (0..number).map(|block| at(block)..at(block + 1)).collect()
}

/// Runs every block at both endpoints, one right after the other: A B, B A, A B and so on. Each
/// endpoint goes first equally often, so drift affects both alike. `steps` returns the steps for a
/// block, which are the same for both endpoints.
pub fn in_turn(
    sides: [usize; 2],
    blocks: &[Range<u32>],
    mut steps: impl FnMut(u32, &Range<u32>) -> Vec<SessionStep>,
) -> VecDeque<(usize, SessionStep)> {
    let mut schedule = VecDeque::new();
    for (number, part) in (0_u32..).zip(blocks) {
        let order = if number % 2 == 0 { sides } else { [sides[1], sides[0]] };
        let steps = steps(number, part);
        for side in order {
            schedule.extend(steps.iter().map(|step| (side, step.clone())));
        }
    }
    schedule
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Control;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_cover_every_conversation_once(conversations in 0_u32..5_000, wanted in 0_u32..2_000) {
            let blocks = blocks(conversations, wanted);
            let all: Vec<u32> = blocks.iter().cloned().flatten().collect();
            prop_assert_eq!(all, (0..conversations).collect::<Vec<_>>());
            prop_assert!(blocks.len().is_multiple_of(2) || blocks.len() == 1);
            let sizes = blocks.iter().map(|block| block.len());
            prop_assert!(sizes.clone().max().unwrap_or(0) <= sizes.min().unwrap_or(0) + 1 && !blocks.iter().any(Range::is_empty));
        }
    }

    #[test]
    fn endpoints_alternate_in_going_first() {
        let schedule = in_turn([0, 2], &blocks(6, 4), |_, _| vec![SessionStep::Control(Control::Flush)]);
        let sides: Vec<usize> = schedule.iter().map(|(side, _)| *side).collect();
        assert_eq!(sides, [0, 2, 2, 0, 0, 2, 2, 0]);
    }
}
