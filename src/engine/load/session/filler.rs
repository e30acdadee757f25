//! Requests that put something into a server's caches and are not measured.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::engine::env::Env;
use crate::engine::load::answer::Dialect;
use crate::engine::load::measure::Tally;
use crate::engine::load::session::Side;
use crate::engine::load::workload::{Ask, Prompt, Synthetic, Words, Workload};
use crate::engine::load::{Answer, Bounds, Distribution, Driver, Pace, Rules, Script, Seed, Turn, run};

/// What fillers come from: of each step others, and never those of the measured conversations.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    /// The session's seed.
    pub(super) seed: Seed,
    /// Which step it is.
    pub(super) step: u64,
}

/// `requests` prompts of `tokens` tokens (words, where the route takes text) of which nobody else sends any.
pub(super) fn strangers(by: By, side: &Side, requests: u32, tokens: u32) -> Synthetic {
    // Another seed altogether: the generators of one seed differ by their purpose and index only.
    let seed = Seed(by.seed.0 ^ 0x5be1_1a5e_ed00_0000 ^ (by.step << 8) ^ 0xa5);
    let constant = |value: u32| Distribution::Constant(f64::from(value));
    let mut made = Synthetic::new(requests, constant(1), constant(tokens), constant(1), seed);
    made.words = match side.target.dialect {
        Dialect::Generate => Words::Ids { vocabulary: side.vocabulary },
        Dialect::Chat => Words::Chat,
        Dialect::Completions | Dialect::TensorRt => Words::Text,
    };
    made
}

/// Prompts as a workload: each is a conversation of one turn, answered with one token.
pub(super) struct Listed(pub(super) Vec<Prompt>);

impl Workload for Listed {
    fn scripts(&self) -> Vec<Script> {
        vec![Script { turns: 1, ..Script::default() }; self.0.len()]
    }
    fn ask(&mut self, turn: Turn) -> Ask {
        Ask::new(self.0[turn.conversation as usize].clone(), 1)
    }
    fn heard(&mut self, _: Turn, _: &Answer) {}
    fn over(&mut self, _: Turn) {}
}

/// What requests that are not measured brought.
pub(super) struct Sent {
    pub(super) tally: Tally,
    pub(super) stopped: bool,
}

/// Send all of `workload` to `side`, `at_once` at a time.
pub(super) async fn send<E: Env + Unpin>(
    env: &E,
    side: &Side,
    workload: &mut (dyn Workload + Send),
    at_once: usize,
    stop: &mut mpsc::Receiver<()>,
) -> Sent {
    let scripts = workload.scripts();
    let rules = Rules { in_flight: at_once, ..Rules::default() };
    let bounds = Bounds { duration: Duration::from_secs(3600), connections: at_once.min(scripts.len()) };
    let driver = Driver::new(scripts, Pace::Closed { conversations: at_once }, rules, Seed(0));
    let mut tally = Tally::default();
    let told = |record| tally.add(&record);
    let ran = run(env.clone(), side.target.clone(), workload, driver, bounds, Arc::default(), stop, told).await;
    Sent { tally, stopped: ran.stopped }
}

/// Most requests at a time that are not measured.
pub(super) const AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_share_nothing_with_each_other_nor_with_another_step() {
        let side = crate::engine::load::session::tests::side(30_000);
        let ids = |step, conversation| {
            let mut made = strangers(By { seed: Seed(1), step }, &side, 2, 50);
            match made.ask(Turn { conversation, index: 0 }).prompt {
                Prompt::Ids(ids) => ids,
                other => panic!("{other:?}"),
            }
        };
        let all = [ids(1, 0), ids(1, 1), ids(2, 0)];
        assert!(all.iter().all(|ids| ids.len() == 50));
        assert!(all[0][..4] != all[1][..4] && all[0][..4] != all[2][..4]);
        let measured = Synthetic::new(
            1,
            Distribution::Constant(1.0),
            Distribution::Constant(50.0),
            Distribution::Constant(1.0),
            Seed(1),
        )
        .ask(Turn { conversation: 0, index: 0 });
        assert_ne!(measured.prompt, Prompt::Ids(all[0].clone()));
    }
}
