//! What an interrupted measurement left of its passes, to go on from. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::load::target::Outcome;
use crate::engine::load::{Record, Script};

/// One pass of it.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Did it come to its end?
    pub complete: bool,
    /// Its requests by conversation, each conversation's from its last beginning on.
    pub conversations: BTreeMap<u32, Vec<Record>>,
}

/// What is left to do of a pass.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Conversations that have not ended, counted from the beginning of the pass's part.
    pub conversations: Vec<u32>,
    /// The requests of those that have, in the order of their ends.
    pub kept: Vec<Record>,
    /// When the last of them ended: the clock goes on from there.
    pub clock: Duration,
}

impl Before {
    /// A request of it ended. A conversation whose first turn comes again began anew.
    pub fn add(&mut self, record: Record) {
        let conversation = self.conversations.entry(record.turn.conversation).or_default();
        if record.turn.index == 0 {
            conversation.clear();
        }
        conversation.push(record);
    }

    /// What is left of a pass of `scripts`, whose conversations count from `from`. A conversation has ended with its last turn, or
    /// with a failure; one that has not is had again from its start.
    pub(super) fn rest(self, scripts: &[Script], from: u32) -> Rest {
        let mut ended = BTreeSet::new();
        let mut kept = Vec::new();
        for (conversation, records) in self.conversations {
            let Some(place) = conversation.checked_sub(from) else { continue };
            let Some(script) = scripts.get(place as usize) else { continue };
            let over = |record: &Record| {
                record.exchange.outcome != Outcome::Ok || record.turn.index.saturating_add(1) >= script.turns
            };
            if self.complete || records.last().is_some_and(over) {
                ended.insert(place);
                kept.extend(records);
            }
        }
        kept.sort_by_key(|record| record.exchange.end);
        let conversations =
            (0..scripts.len() as u32).filter(|place| !self.complete && !ended.contains(place)).collect();
        Rest { conversations, clock: kept.last().map_or(Duration::ZERO, |last| last.exchange.end), kept }
    }
}

/// `record`, by a clock that began `by` earlier.
pub(super) fn later(mut record: Record, by: Duration) -> Record {
    let exchange = &mut record.exchange;
    for at in [&mut record.planned, &mut record.free, &mut exchange.begun, &mut exchange.wrote, &mut exchange.end] {
        *at += by;
    }
    for at in [&mut exchange.first_token, &mut exchange.last_token].into_iter().flatten() {
        *at += by;
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Turn;
    use crate::engine::load::target::Exchange;

    fn record(conversation: u32, index: u32, outcome: Outcome) -> Record {
        let end = Duration::from_secs(u64::from(10 * conversation + index));
        let exchange = Exchange { outcome, ..Exchange::without_connection(end, end, String::new()) };
        Record { turn: Turn { conversation, index }, planned: end, free: end, max_tokens: 1, expected: None, exchange }
    }

    fn scripts() -> Vec<Script> {
        vec![Script { turns: 2, ..Script::default() }; 4]
    }

    #[test]
    fn what_ended_is_kept_and_the_rest_begins_anew() {
        let mut before = Before::default();
        before.add(record(7, 0, Outcome::Ok));
        before.add(record(7, 1, Outcome::Ok));
        before.add(record(8, 0, Outcome::Ok));
        before.add(record(9, 0, Outcome::CutOff));
        // It began twice, and the second time did not get as far.
        before.add(record(10, 0, Outcome::Ok));
        before.add(record(10, 1, Outcome::Ok));
        before.add(record(10, 0, Outcome::Ok));
        let rest = before.clone().rest(&scripts(), 7);
        assert_eq!((rest.conversations, rest.kept.len(), rest.clock), (vec![1, 3], 3, Duration::from_secs(90)));
        let rest = Before { complete: true, ..before }.rest(&scripts(), 7);
        assert_eq!((rest.conversations.len(), rest.kept.len()), (0, 5));
    }

    #[test]
    fn the_clock_goes_on() {
        let moved = later(record(0, 1, Outcome::Ok), Duration::from_secs(5));
        assert_eq!((moved.planned, moved.exchange.end), (Duration::from_secs(6), Duration::from_secs(6)));
    }
}
