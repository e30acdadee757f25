//! Results of an interrupted measurement that can be resumed. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::target::ExchangeOutcome;
use crate::{Script, TimedRequest};

/// A pass of the interrupted measurement.
#[derive(Clone, Debug, Default)]
pub struct PreviousPass {
    /// Whether all of its requests had finished.
    pub complete: bool,
    /// Requests by conversation, since the conversation was last started.
    pub conversations: BTreeMap<u32, Vec<TimedRequest>>,
}

/// The work that remains in a pass.
#[derive(Debug, Default)]
pub(super) struct RemainingWork {
    /// Conversations that have not ended, numbered relative to the start of the pass's range.
    pub conversations: Vec<u32>,
    /// Requests of conversations that have ended, sorted by end time.
    pub kept: Vec<TimedRequest>,
    /// End time of the last kept request. The clock resumes from there.
    pub clock: Duration,
}

impl PreviousPass {
    /// Adds a finished request. A repeated first turn restarts its conversation.
    pub fn add(&mut self, record: TimedRequest) {
        let conversation = self.conversations.entry(record.turn.conversation).or_default();
        if record.turn.index == 0 {
            conversation.clear();
        }
        conversation.push(record);
    }

    /// Returns the work that remains in a pass over `scripts`, whose conversations start at index
    /// `from`. A conversation ends with its last turn or with a failure. Conversations that have
    /// not ended are restarted from the beginning.
    pub(super) fn rest(self, scripts: &[Script], from: u32) -> RemainingWork {
        let mut ended = BTreeSet::new();
        let mut kept = Vec::new();
        for (conversation, records) in self.conversations {
            let Some(place) = conversation.checked_sub(from) else { continue };
            let Some(script) = scripts.get(place as usize) else { continue };
            let over = |record: &TimedRequest| {
                record.exchange.outcome != ExchangeOutcome::Ok || record.turn.index.saturating_add(1) >= script.turns
            };
            if self.complete || records.last().is_some_and(over) {
                ended.insert(place);
                kept.extend(records);
            }
        }
        kept.sort_by_key(|record| record.exchange.end);
        let conversations =
            (0..scripts.len() as u32).filter(|place| !self.complete && !ended.contains(place)).collect();
        RemainingWork { conversations, clock: kept.last().map_or(Duration::ZERO, |last| last.exchange.end), kept }
    }
}

/// Shifts `record`'s times by `by`, the time at which the run was resumed.
pub(super) fn shift(mut record: TimedRequest, by: Duration) -> TimedRequest {
    let exchange = &mut record.exchange;
    for at in
        [&mut record.planned, &mut record.eligible_at, &mut exchange.begun, &mut exchange.wrote, &mut exchange.end]
    {
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
    use crate::Turn;
    use crate::target::Exchange;

    fn record(conversation: u32, index: u32, outcome: ExchangeOutcome) -> TimedRequest {
        let end = Duration::from_secs(u64::from(10 * conversation + index));
        let exchange = Exchange { outcome, ..Exchange::without_connection(end, end, String::new()) };
        TimedRequest {
            turn: Turn { conversation, index },
            planned: end,
            eligible_at: end,
            max_tokens: 1,
            possible: None,
            own_tokens: None,
            exchange,
        }
    }

    fn scripts() -> Vec<Script> {
        vec![Script { turns: 2, ..Script::default() }; 4]
    }

    #[test]
    fn finished_conversations_are_kept_and_the_rest_restarts() {
        let mut before = PreviousPass::default();
        before.add(record(7, 0, ExchangeOutcome::Ok));
        before.add(record(7, 1, ExchangeOutcome::Ok));
        before.add(record(8, 0, ExchangeOutcome::Ok));
        before.add(record(9, 0, ExchangeOutcome::CutOff));
        // The conversation was started twice and made less progress the second time.
        before.add(record(10, 0, ExchangeOutcome::Ok));
        before.add(record(10, 1, ExchangeOutcome::Ok));
        before.add(record(10, 0, ExchangeOutcome::Ok));
        let rest = before.clone().rest(&scripts(), 7);
        assert_eq!((rest.conversations, rest.kept.len(), rest.clock), (vec![1, 3], 3, Duration::from_secs(90)));
        let rest = PreviousPass { complete: true, ..before }.rest(&scripts(), 7);
        assert_eq!((rest.conversations.len(), rest.kept.len()), (0, 5));
    }

    #[test]
    fn times_continue_after_a_resume() {
        let moved = shift(record(0, 1, ExchangeOutcome::Ok), Duration::from_secs(5));
        assert_eq!((moved.planned, moved.exchange.end), (Duration::from_secs(6), Duration::from_secs(6)));
    }
}
