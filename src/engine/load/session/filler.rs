//! Unmeasured requests that fill a server's caches.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::answer::Dialect;
use crate::measure::Tally;
use crate::session::LoadEndpoint;
use crate::target::LoadTarget;
use crate::workload::{LoadWorkload, Synthetic, SyntheticPrompt, TurnPrompt, TurnRequest};
use crate::{Distribution, Driver, LoadRun, ModelAnswer, Pace, Rules, RunLimits, Script, Seed, Turn};
use mcctl_sys::env::Env;

/// Seed for filler prompts. Filler prompts differ from step to step, and from the prompts of the
/// measured conversations.
#[derive(Clone, Copy, Debug)]
pub(super) struct FillerSource {
    pub(super) seed: Seed,
    /// Sequence number of the step.
    pub(super) step: u64,
}

/// Returns `requests` unique prompts, each of `tokens` tokens (or words, if the route takes text).
pub(super) fn unrelated_prompts(by: FillerSource, side: &LoadEndpoint, requests: u32, tokens: u32) -> Synthetic {
    // Use a different seed, because generators that share a seed differ only by purpose and index.
    let seed = Seed(by.seed.0 ^ 0x5be1_1a5e_ed00_0000 ^ (by.step << 8) ^ 0xa5);
    let constant = |value: u32| Distribution::Constant(f64::from(value));
    let mut made = Synthetic::new(requests, constant(1), constant(tokens), constant(1), seed);
    made.words = match side.target.dialect {
        Dialect::Generate => SyntheticPrompt::Ids { vocabulary: side.vocabulary },
        Dialect::Chat => SyntheticPrompt::Chat,
        Dialect::Completions | Dialect::TensorRt => SyntheticPrompt::Text,
    };
    made
}

/// A workload of single prompts. Each is a single-turn conversation with one output token.
pub(super) struct PromptList(pub(super) Vec<TurnPrompt>);

impl LoadWorkload for PromptList {
    fn scripts(&self) -> Vec<Script> {
        vec![Script { turns: 1, ..Script::default() }; self.0.len()]
    }
    fn request(&mut self, turn: Turn) -> TurnRequest {
        TurnRequest::new(self.0[turn.conversation as usize].clone(), 1)
    }
    fn on_response(&mut self, _: Turn, _: &ModelAnswer) {}
    fn on_conversation_end(&mut self, _: Turn) {}
}

/// The requests that rebuild the prefixes of conversations that had begun before the run.
pub(super) struct Warmups<'a>(pub(super) &'a mut (dyn LoadWorkload + Send));

impl LoadWorkload for Warmups<'_> {
    fn scripts(&self) -> Vec<Script> {
        vec![Script { turns: 1, ..Script::default() }; self.0.warmups() as usize]
    }
    fn request(&mut self, turn: Turn) -> TurnRequest {
        let empty = || TurnRequest::new(TurnPrompt::Ids(Vec::new()), 1);
        self.0.warmup(turn.conversation).unwrap_or_else(empty)
    }
    fn on_response(&mut self, _: Turn, _: &ModelAnswer) {}
    fn on_conversation_end(&mut self, _: Turn) {}
}

/// The result of unmeasured requests.
pub(super) struct FillerResult {
    pub(super) tally: Tally,
    pub(super) stopped: bool,
}

/// Sends the entire `workload` to `side`, with at most `at_once` requests in flight.
pub(super) async fn send<E: Env + Unpin>(
    env: &E,
    target: &LoadTarget,
    workload: &mut (dyn LoadWorkload + Send),
    at_once: usize,
    stop: &mut mpsc::Receiver<()>,
) -> FillerResult {
    let scripts = workload.scripts();
    let rules = Rules { in_flight: at_once, ..Rules::default() };
    let limits = RunLimits { duration: Duration::from_secs(3600), connections: at_once.min(scripts.len()) };
    let driver = Driver::new(scripts, Pace::Closed { conversations: at_once }, rules, Seed(0));
    let mut tally = Tally::default();
    let run = LoadRun { env: env.clone(), target: target.clone(), workload, driver, limits, live: Arc::default() };
    let ran = run.execute(stop, |record| tally.add(&record)).await;
    FillerResult { tally, stopped: ran.stopped }
}

/// Maximum number of unmeasured requests in flight.
pub(super) const AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filler_prompts_are_unique_across_requests_and_steps() {
        let side = crate::session::tests::side(30_000);
        let ids = |step, conversation| {
            let mut made = unrelated_prompts(FillerSource { seed: Seed(1), step }, &side, 2, 50);
            match made.request(Turn { conversation, index: 0 }).prompt {
                TurnPrompt::Ids(ids) => ids,
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
        .request(Turn { conversation: 0, index: 0 });
        assert_ne!(measured.prompt, TurnPrompt::Ids(all[0].clone()));
    }
}
