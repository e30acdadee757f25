//! Sends the prompts of a plan in each state of the caches, and compares the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use futures_util::future::join;

use crate::server::ServerCallError;
use crate::verify::{
    CachedPrompt, Divergence, NextToken, UnusableAnswer, VerifyAnswer, VerifyPass, VerifyPlan, VerifyRequest,
    VerifyResult,
};

/// After this many failed requests in a row, the run ends.
const FAILURES_MAX: u32 = 5;

/// A request without a usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyRequestError {
    #[error(transparent)]
    Call(#[from] ServerCallError),
    #[error(transparent)]
    Unusable(#[from] UnusableAnswer),
}

/// The user's command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    #[error("cannot start the command: {0}")]
    NotStarted(String),
    #[error("the command ended with {0}")]
    Failed(String),
}

/// A step between the passes failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyStepError {
    #[error("cannot flush L1 and L2: {0}")]
    Flush(ServerCallError),
    #[error("the first request failed: {0}")]
    FirstRequest(VerifyRequestError),
    #[error("{FAILURES_MAX} requests in a row failed, the last one with: {0}")]
    Requests(VerifyRequestError),
    #[error(transparent)]
    Restart(#[from] RestartError),
}

/// The server whose answers are checked.
pub trait VerifyServer {
    /// Sends a request and returns the answer with its log-probabilities.
    fn ask(&self, request: &VerifyRequest) -> impl Future<Output = Result<VerifyAnswer, VerifyRequestError>>;
    /// Sends a request whose answer does not matter.
    fn send(&self, request: &VerifyRequest) -> impl Future<Output = Result<(), VerifyRequestError>>;
    /// Empties L1 and L2.
    fn flush(&self) -> impl Future<Output = Result<(), ServerCallError>>;
    /// Waits until L2 and L3 hold what they should.
    fn settle(&self) -> impl Future<Output = ()>;
    /// Runs the user's command.
    fn restart(&self) -> impl Future<Output = Result<(), RestartError>>;
}

/// Callbacks during a run.
pub trait VerifyObserver {
    /// A prompt of the pass was answered, or failed.
    fn answered(&mut self);
    /// The user's command starts.
    fn restarting(&mut self);
}

/// What was found for a prompt in a pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PromptRecord {
    pub pass: VerifyPass,
    pub prompt: u32,
    pub outcome: PromptOutcome,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum PromptOutcome {
    Failed(String),
    /// The prompt did not come from the tier of the pass.
    NotReached(CachedPrompt),
    Reached {
        /// The pass it was compared with, and the difference.
        compared: Option<(VerifyPass, Divergence)>,
        /// The difference from computing, for tiers. `None` if the computed answer was dropped.
        from_cold: Option<Divergence>,
        decode_rate: Option<f64>,
        accept_length: Option<f64>,
    },
}

/// A run. It can be dropped between two polls; [`VerifyRun::result`] then covers what was measured.
pub struct VerifyRun<'a> {
    plan: &'a VerifyPlan,
    /// Positions of the answers that later passes are compared with.
    pub(super) answers: BTreeMap<(VerifyPass, u32), Vec<NextToken>>,
    records: Vec<PromptRecord>,
    /// Prompts whose pages in L1 are not computed, but those that L3 held before the run.
    filled_from_cache: BTreeSet<u32>,
    /// Number of failed requests since the last successful one.
    failures: u32,
    /// Number of steps that sent unrelated requests.
    fillers: u64,
    /// Whether L3 serves pages to requests with another salt.
    shares_salts: bool,
}

impl<'a> VerifyRun<'a> {
    /// A run that has not started.
    pub fn new(plan: &'a VerifyPlan) -> VerifyRun<'a> {
        VerifyRun {
            plan,
            answers: BTreeMap::new(),
            records: Vec::new(),
            filled_from_cache: BTreeSet::new(),
            failures: 0,
            fillers: 0,
            shares_salts: false,
        }
    }

    /// Evaluates what was measured so far.
    pub fn result(&self) -> VerifyResult {
        VerifyResult::of(self.plan, &self.records)
    }

    /// Whether any prompt was answered.
    pub fn has_answers(&self) -> bool {
        self.records.iter().any(|record| !matches!(record.outcome, PromptOutcome::Failed(_)))
    }

    /// Runs all passes of the plan, in order.
    ///
    /// # Errors
    /// A flush or the user's command failed, or several requests in a row.
    pub async fn run<S: VerifyServer>(
        &mut self,
        server: &S,
        observer: &mut dyn VerifyObserver,
    ) -> Result<(), VerifyStepError> {
        let plan = self.plan;
        self.send_unrelated(server, u64::from(plan.length) * 2).await?;
        self.probe_salts(server).await?;
        for group in plan.groups() {
            self.group(server, group.clone(), observer).await?;
            self.drop_answers(group);
        }
        if plan.has(VerifyPass::Restarted) {
            empty(server).await?;
            observer.restarting();
            server.restart().await?;
            self.pass(server, VerifyPass::Restarted, 0..plan.prompts, observer).await?;
        }
        Ok(())
    }

    /// Drops the answers of a group, except those that the pass after the user's command is
    /// compared with: one for each prompt.
    fn drop_answers(&mut self, group: Range<u32>) {
        if !self.plan.has(VerifyPass::Restarted) {
            self.answers.clear();
            return;
        }
        for prompt in group {
            let mut references = VerifyPass::Restarted.reference().iter();
            references.find(|pass| self.answers.contains_key(&(**pass, prompt)));
            for pass in references {
                self.answers.remove(&(*pass, prompt));
            }
        }
    }

    /// Finds out whether L3 serves the pages of a request to one with another salt, as SGLang did
    /// up to 0.5.18. Then computed answers must be forced in another way.
    async fn probe_salts<S: VerifyServer>(&mut self, server: &S) -> Result<(), VerifyStepError> {
        let [first, second] = self.plan.same_prompt_twice();
        server.ask(&first).await.map_err(VerifyStepError::FirstRequest)?;
        empty(server).await?;
        let answer = server.ask(&second).await.map_err(VerifyStepError::FirstRequest)?;
        self.shares_salts = answer.cached.tokens > 0;
        Ok(())
    }

    /// The request for a prompt.
    fn request(&self, pass: VerifyPass, prompt: u32) -> VerifyRequest {
        VerifyRequest { computed: pass.is_cold() && self.shares_salts, ..self.plan.request(pass, prompt) }
    }

    /// Runs the passes over a group of prompts that fits into L1.
    async fn group<S: VerifyServer>(
        &mut self,
        server: &S,
        group: Range<u32>,
        observer: &mut dyn VerifyObserver,
    ) -> Result<(), VerifyStepError> {
        let plan = self.plan;
        empty(server).await?;
        for pass in [VerifyPass::Cold, VerifyPass::ColdAgain, VerifyPass::ColdPaired] {
            self.pass(server, pass, group.clone(), observer).await?;
        }
        empty(server).await?;
        for pass in [VerifyPass::Fill, VerifyPass::Device, VerifyPass::DeviceAgain] {
            self.pass(server, pass, group.clone(), observer).await?;
        }
        if let (true, Some(device)) = (plan.has(VerifyPass::Host), plan.device_tokens) {
            server.settle().await;
            self.send_unrelated(server, device + u64::from(plan.length)).await?;
            self.pass(server, VerifyPass::Host, group.clone(), observer).await?;
        }
        for pass in [VerifyPass::Storage, VerifyPass::Mixed] {
            if plan.has(pass) {
                empty(server).await?;
                self.pass(server, pass, group.clone(), observer).await?;
            }
        }
        Ok(())
    }

    async fn send_unrelated<S: VerifyServer>(&mut self, server: &S, tokens: u64) -> Result<(), VerifyStepError> {
        self.fillers += 1;
        for request in self.plan.unrelated(self.fillers, tokens) {
            let sent = server.send(&request).await;
            self.count(sent.as_ref().err())?;
        }
        Ok(())
    }

    /// Sends each prompt once, one at a time unless the pass is for pairs.
    async fn pass<S: VerifyServer>(
        &mut self,
        server: &S,
        pass: VerifyPass,
        prompts: Range<u32>,
        observer: &mut dyn VerifyObserver,
    ) -> Result<(), VerifyStepError> {
        let mut prompt = prompts.start;
        while prompt < prompts.end {
            if pass == VerifyPass::Mixed {
                let sent = server.send(&self.plan.first_half(prompt)).await;
                self.count(sent.as_ref().err())?;
            }
            let request = self.request(pass, prompt);
            if pass == VerifyPass::ColdPaired && prompt + 1 < prompts.end {
                let other = self.request(pass, prompt + 1);
                let (first, second) = join(server.ask(&request), server.ask(&other)).await;
                self.record(pass, prompt, first)?;
                observer.answered();
                prompt += 1;
                self.record(pass, prompt, second)?;
            } else {
                let answer = server.ask(&request).await;
                self.record(pass, prompt, answer)?;
            }
            observer.answered();
            prompt += 1;
        }
        Ok(())
    }

    /// Counts failed requests in a row.
    fn count(&mut self, error: Option<&VerifyRequestError>) -> Result<(), VerifyStepError> {
        let Some(error) = error else {
            self.failures = 0;
            return Ok(());
        };
        self.failures += 1;
        if self.failures >= FAILURES_MAX { Err(VerifyStepError::Requests(error.clone())) } else { Ok(()) }
    }

    /// Compares an answer with its references.
    fn record(
        &mut self,
        pass: VerifyPass,
        prompt: u32,
        answer: Result<VerifyAnswer, VerifyRequestError>,
    ) -> Result<(), VerifyStepError> {
        let counted = self.count(answer.as_ref().err());
        let outcome = match answer {
            Err(error) => PromptOutcome::Failed(error.to_string()),
            Ok(answer) if !pass.is_reached(answer.cached, self.plan.expected_hit(prompt)) => {
                PromptOutcome::NotReached(answer.cached)
            }
            Ok(answer) => {
                let from = |reference: VerifyPass| {
                    let expected = self.answers.get(&(reference, prompt))?;
                    // Of a prompt with more tokens after it, only the forced positions are an
                    // answer.
                    let most = if pass == VerifyPass::ColdPaired { answer.positions.len() } else { usize::MAX };
                    let expected = &expected[..expected.len().min(most)];
                    Some(Divergence::between(expected, &answer.positions, answer.forced))
                };
                let compared =
                    pass.reference().iter().find_map(|reference| from(*reference).map(|found| (*reference, found)));
                let from_cold = VerifyPass::TIERS.contains(&pass).then(|| from(VerifyPass::Cold)).flatten();
                let VerifyAnswer { decode_rate, accept_length, .. } = answer;
                match pass {
                    VerifyPass::Fill if answer.cached.tokens > 0 => {
                        self.filled_from_cache.insert(prompt);
                    }
                    VerifyPass::Device if self.filled_from_cache.contains(&prompt) => {}
                    VerifyPass::Cold | VerifyPass::Device => {
                        // Unlike the parsed vectors, clones have no unused capacity.
                        self.answers.insert((pass, prompt), answer.positions.clone());
                    }
                    _ => {}
                }
                PromptOutcome::Reached { compared, from_cold, decode_rate, accept_length }
            }
        };
        self.records.push(PromptRecord { pass, prompt, outcome });
        counted
    }
}

/// Waits for write-back, then empties L1 and L2.
async fn empty<S: VerifyServer>(server: &S) -> Result<(), VerifyStepError> {
    server.settle().await;
    server.flush().await.map_err(VerifyStepError::Flush)
}
