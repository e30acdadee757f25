//! Runs against a model of a server with three tiers, with and without faults.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Seed;
use crate::server::ServerCallError;
use crate::verify::run::VerifyRequestError;
use crate::verify::{
    AnswerVerdict, CachedByTier, CachedPrompt, NextToken, RestartError, TierResult, TokenName, UnusableAnswer,
    VerifyAnswer, VerifyObserver, VerifyPass, VerifyPlan, VerifyRequest, VerifyResult, VerifyRun, VerifyServer,
    VerifyStepError,
};
use AnswerVerdict::{Different, Same, Void};

const PAGE: usize = 16;

/// What is wrong with a server.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// Shift of the logits of a prompt with this index whose pages come from L3.
    wrong_pages: BTreeMap<u32, f64>,
    /// The same for prompts whose pages come from L3 after the restart.
    wrong_after_restart: BTreeMap<u32, f64>,
    /// The same for all prompts from L3.
    slight: f64,
    /// Amplitude of random changes of all logits.
    noise: f64,
    /// L3 returns no hits.
    no_hits: bool,
    /// The server ignores `extra_key`, and serves cached tokens to all requests.
    ignores_salt: bool,
    /// L3 ignores `extra_key`.
    shares_salts: bool,
    /// Decode rate after a hit in L3, where 1 is that of others.
    slow: Option<f64>,
    /// Log-probabilities after a hit in L3 are NaN.
    not_a_number: bool,
    /// All log-probabilities are NaN.
    no_numbers: bool,
    /// L3 holds wrong pages of all prompts before the run.
    old_pages: bool,
    /// Requests are refused after this number of answers.
    refuses_after: Option<u64>,
    refuses_flush: bool,
}

/// The caches: chains of pages, by salt and the hash of all tokens up to the page's end.
#[derive(Default)]
struct Caches {
    device: BTreeSet<u64>,
    host: BTreeSet<u64>,
    storage: BTreeSet<u64>,
    unrelated: u64,
    requests: u64,
    restarted: bool,
}

struct FakeServer {
    plan: VerifyPlan,
    faults: Faults,
    caches: RefCell<Caches>,
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// A number from 0 to 1.
fn share(of: impl Hash) -> f64 {
    (hash(of) >> 11) as f64 / (1_u64 << 53) as f64
}

impl FakeServer {
    fn serve(&self, request: &VerifyRequest) -> VerifyAnswer {
        let mut caches = self.caches.borrow_mut();
        caches.requests += 1;
        let salt = request.salt.clone().filter(|_| !self.faults.ignores_salt);
        let length = request.ids.len() - request.appended as usize;
        let most = length - request.forced.max(1) as usize;
        let pages: Vec<u64> = (1..=most / PAGE).map(|page| hash((&salt, &request.ids[..page * PAGE]))).collect();
        let in_storage = |salt: &Option<String>, page: usize| {
            let salt = salt.as_ref().filter(|_| !self.faults.shares_salts);
            hash((salt, &request.ids[..(page + 1) * PAGE]))
        };
        let is_computed = request.computed && !self.faults.ignores_salt;
        let mut cached = CachedByTier::default();
        for (at, page) in pages.iter().enumerate().take_while(|_| !is_computed) {
            let tier = if caches.device.contains(page) && cached.host + cached.storage == 0 {
                &mut cached.device
            } else if caches.host.contains(page) && cached.storage == 0 {
                &mut cached.host
            } else if caches.storage.contains(&in_storage(&salt, at)) && !self.faults.no_hits {
                &mut cached.storage
            } else {
                break;
            };
            *tier += PAGE as u32;
        }
        for (at, page) in pages.into_iter().enumerate() {
            caches.device.insert(page);
            caches.host.insert(page);
            caches.storage.insert(in_storage(&salt, at));
        }
        if salt.is_some_and(|salt| salt.contains("unrelated")) {
            caches.unrelated += request.ids.len() as u64;
            if caches.unrelated >= self.plan.device_tokens.unwrap_or(0) {
                caches.device.clear();
            }
        } else {
            caches.unrelated = 0;
        }
        let from_storage = cached.storage > 0;
        let is_old = self.faults.old_pages && request.salt.is_none() && cached != CachedByTier::default();
        let prompt = (0..self.plan.prompts).find(|prompt| self.plan.ids(*prompt)[..8] == request.ids[..8]);
        let wrong = if caches.restarted { &self.faults.wrong_after_restart } else { &self.faults.wrong_pages };
        let shift = prompt.and_then(|prompt| wrong.get(&prompt)).copied().unwrap_or(0.0) + self.faults.slight;
        let shift = if is_old {
            2.0
        } else if from_storage {
            shift
        } else {
            0.0
        };
        let number = caches.requests;
        let ids = hash(&request.ids[..length]);
        let position = |at: u32| {
            let logit = |token: u32| {
                let change = self.faults.noise * (share((number, at, token)) - 0.5);
                4.0 * share((ids, at, token)) + change + shift * share((at, token, "wrong"))
            };
            let logits: Vec<f64> = (0..6).map(logit).collect();
            let sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
            let mut top: Vec<_> = (0..6).map(|id| (TokenName::Id(id), logits[id as usize] - sum)).collect();
            top.sort_by(|a, b| b.1.total_cmp(&a.1));
            let (token, logprob) = top[0].clone();
            let is_broken = self.faults.no_numbers || from_storage && self.faults.not_a_number;
            let logprob = if is_broken { f64::NAN } else { logprob };
            NextToken { token, logprob, top: top[..4].to_vec() }
        };
        let forced = request.forced.saturating_sub(1);
        VerifyAnswer {
            positions: (0..forced + if request.appended > 0 { 0 } else { request.generated }).map(position).collect(),
            forced: forced as usize,
            cached: CachedPrompt { tokens: cached.device + cached.host + cached.storage, by_tier: Some(cached) },
            decode_rate: Some(50.0 * self.faults.slow.filter(|_| from_storage).unwrap_or(1.0)),
            accept_length: None,
        }
    }
}

impl VerifyServer for FakeServer {
    async fn ask(&self, request: &VerifyRequest) -> Result<VerifyAnswer, VerifyRequestError> {
        let answers = self.caches.borrow().requests;
        match self.faults.refuses_after {
            Some(most) if answers >= most => Err(UnusableAnswer::NoLogprobs.into()),
            _ => Ok(self.serve(request)),
        }
    }
    async fn send(&self, request: &VerifyRequest) -> Result<(), VerifyRequestError> {
        self.ask(request).await?;
        Ok(())
    }
    async fn flush(&self) -> Result<(), ServerCallError> {
        if self.faults.refuses_flush {
            return Err(ServerCallError::Refused { url: "u".to_owned(), response: "404".to_owned() });
        }
        let mut caches = self.caches.borrow_mut();
        caches.device.clear();
        caches.host.clear();
        Ok(())
    }
    async fn settle(&self) {}
    async fn restart(&self) -> Result<(), RestartError> {
        self.caches.borrow_mut().restarted = true;
        Ok(())
    }
}

/// Counts the answers of all passes.
#[derive(Default)]
struct Count(u32);

impl VerifyObserver for Count {
    fn answered(&mut self) {
        self.0 += 1;
    }
    fn restarting(&mut self) {}
}

fn plan(prompts: u32, seed: u64) -> VerifyPlan {
    VerifyPlan {
        prompts,
        given: Vec::new(),
        length: 160,
        forced: 32,
        uncached: 32,
        has_tiers: true,
        generated: 8,
        vocabulary: 1000,
        seed: Seed(seed),
        run: 7,
        page: PAGE as u32,
        device_tokens: Some(2048),
        tiers: VerifyPass::TIERS.to_vec(),
    }
}

async fn run_of(plan: &VerifyPlan, faults: Faults) -> (VerifyResult, Result<(), VerifyStepError>, u32) {
    let server = FakeServer { plan: plan.clone(), faults, caches: RefCell::default() };
    if server.faults.old_pages {
        (0..plan.prompts).for_each(|prompt| drop(server.serve(&plan.request(VerifyPass::Fill, prompt))));
        server.flush().await.expect("a flush");
    }
    let mut run = VerifyRun::new(plan);
    let mut count = Count::default();
    let ended = run.run(&server, &mut count).await;
    let kept = if plan.has(VerifyPass::Restarted) { plan.prompts as usize } else { 0 };
    assert!(ended.is_err() || run.answers.len() <= kept, "{} answers kept", run.answers.len());
    (run.result(), ended, count.0)
}

async fn result_of(prompts: u32, faults: Faults) -> VerifyResult {
    let (result, ended, _) = run_of(&plan(prompts, 1), faults).await;
    assert_eq!(ended, Ok(()));
    result
}

fn verdicts(result: &VerifyResult) -> Vec<AnswerVerdict> {
    result.tiers.iter().map(|tier| tier.verdict).collect()
}

fn tier(result: &VerifyResult, tier: VerifyPass) -> &TierResult {
    result.tiers.iter().find(|found| found.tier == tier).expect("a checked tier")
}

#[tokio::test]
async fn a_server_without_faults_is_clean_in_every_tier() {
    let (result, ended, answered) = run_of(&plan(11, 1), Faults::default()).await;
    assert_eq!((ended, verdicts(&result)), (Ok(()), vec![Same; 5]));
    assert!(result.is_clean() && result.tiers.iter().all(|tier| tier.verified == 11 && tier.limit == Some(0.0)));
    assert_eq!((answered, result.noise.cold.identical, result.noise.device.identical), (11 * 10, 11, 11));
}

#[tokio::test]
async fn noise_alone_is_never_a_difference() {
    let mut pairs = 0;
    for seed in 0..20 {
        let faults = Faults { noise: 0.02, ..Faults::default() };
        let (result, _, _) = run_of(&plan(40, seed), faults).await;
        assert!(result.is_clean(), "seed {seed}: {:?}", verdicts(&result));
        assert!(result.noise.cold.kl_max.is_some_and(|kl| kl > 0.0));
        pairs += result.tiers.iter().map(|tier| tier.verified).sum::<u32>();
    }
    assert_eq!(pairs, 20 * 40 * 5);
}

#[tokio::test]
async fn one_wrong_page_is_found_and_its_prompt_is_named() {
    for noise in [0.0, 0.02] {
        let faults = Faults { wrong_pages: BTreeMap::from([(7, 2.0)]), noise, ..Faults::default() };
        let result = result_of(20, faults).await;
        assert_eq!(verdicts(&result), [Same, Same, Different, Different, Same], "{noise}");
        let storage = tier(&result, VerifyPass::Storage);
        let first = storage.first.as_ref().expect("a difference");
        assert_eq!((storage.differing, first.prompt, storage.compared_with), (1, 7, Some(VerifyPass::Device)));
        assert!(!result.is_clean() && storage.wrong_share_max.is_none());
    }
}

#[tokio::test]
async fn a_fault_after_the_restart_shows_only_there() {
    let faults = Faults { wrong_after_restart: BTreeMap::from([(0, 2.0), (3, 2.0)]), ..Faults::default() };
    let result = result_of(11, faults).await;
    assert_eq!(verdicts(&result), [Same, Same, Same, Same, Different]);
    assert_eq!(tier(&result, VerifyPass::Restarted).differing, 2);
}

#[tokio::test]
async fn a_slight_shift_of_all_prompts_is_found() {
    // Each one is within the limit.
    let faults = Faults { slight: 0.05, noise: 0.05, ..Faults::default() };
    let result = result_of(60, faults).await;
    let storage = tier(&result, VerifyPass::Storage);
    assert_eq!((storage.verdict, storage.differing, storage.shifted), (Different, 0, true), "{storage:?}");
    assert_eq!(tier(&result, VerifyPass::Host).verdict, Same);
}

#[tokio::test]
async fn a_tier_that_is_not_reached_is_void() {
    let result = result_of(11, Faults { no_hits: true, ..Faults::default() }).await;
    assert_eq!(verdicts(&result), [Same, Same, Void, Void, Void]);
    let storage = tier(&result, VerifyPass::Storage);
    assert_eq!((storage.verified, storage.not_reached, storage.wrong_share_max), (0, 11, None));
    assert_eq!(storage.first_not_reached.expect("one").cached_tokens, 0);
    assert!(!result.is_clean());
}

#[tokio::test]
async fn a_server_that_ignores_the_salt_has_no_computed_answers() {
    let result = result_of(11, Faults { ignores_salt: true, ..Faults::default() }).await;
    // In two passes each.
    assert_eq!(result.cold_not_reached, 11);
    assert_eq!(verdicts(&result)[0], Void);
}

#[tokio::test]
async fn a_store_that_ignores_the_salt_still_has_computed_answers() {
    let faults = Faults { shares_salts: true, noise: 0.02, ..Faults::default() };
    let result = result_of(11, faults).await;
    assert_eq!((result.cold_not_reached, verdicts(&result)), (0, vec![Same; 5]));
}

#[tokio::test]
async fn slow_decoding_after_a_hit_is_reported() {
    let result = result_of(30, Faults { slow: Some(0.6), ..Faults::default() }).await;
    let slower: Vec<bool> = result.tiers.iter().map(|tier| tier.slower).collect();
    assert_eq!(slower, [false, false, true, true, true]);
    assert!(verdicts(&result).iter().all(|verdict| *verdict == Same) && !result.is_clean());
}

#[tokio::test]
async fn logprobs_that_are_not_numbers_differ() {
    let result = result_of(11, Faults { not_a_number: true, ..Faults::default() }).await;
    let storage = tier(&result, VerifyPass::Storage);
    assert_eq!((storage.verdict, storage.differences.infinite), (Different, 11));
    assert!(serde_json::to_value(&result).is_ok());
}

#[tokio::test]
async fn a_server_whose_logprobs_are_no_numbers_is_never_clean() {
    let result = result_of(11, Faults { no_numbers: true, ..Faults::default() }).await;
    assert!(verdicts(&result).iter().all(|verdict| *verdict != Same), "{:?}", verdicts(&result));
}

#[tokio::test]
async fn old_pages_in_the_store_are_not_their_own_reference() {
    for tiers in [VerifyPass::TIERS.to_vec(), vec![VerifyPass::Device, VerifyPass::Storage]] {
        let plan = VerifyPlan { tiers, ..plan(11, 1) };
        let (result, _, _) = run_of(&plan, Faults { old_pages: true, ..Faults::default() }).await;
        assert!(verdicts(&result).iter().all(|verdict| *verdict == Different), "{:?}", verdicts(&result));
        assert_eq!(tier(&result, VerifyPass::Storage).compared_with, Some(VerifyPass::Cold));
    }
}

#[tokio::test]
async fn failed_requests_and_flushes_end_the_run() {
    let (result, ended, _) = run_of(&plan(11, 1), Faults { refuses_after: Some(0), ..Faults::default() }).await;
    assert!(matches!(ended, Err(VerifyStepError::FirstRequest(_))) && result.failed.is_empty());
    let (result, ended, _) = run_of(&plan(11, 1), Faults { refuses_after: Some(100), ..Faults::default() }).await;
    assert!(matches!(ended, Err(VerifyStepError::Requests(_))));
    assert!((1..=5).contains(&result.failed.len()), "{:?}", result.failed);
    assert!(verdicts(&result).contains(&Void));
    let (_, ended, _) = run_of(&plan(11, 1), Faults { refuses_flush: true, ..Faults::default() }).await;
    assert!(matches!(ended, Err(VerifyStepError::Flush(_))));
}

#[tokio::test]
async fn the_planned_number_of_prompts_finds_a_fault_of_the_planned_share() {
    let size = crate::verify::SampleSize { affected: 0.2, power: 0.99 };
    let mut found = 0;
    for seed in 0..50 {
        // Each prompt is affected with the planned probability.
        let prompts = size.prompts();
        let wrong = (0..prompts).filter(|prompt| share((seed, prompt)) < size.affected).map(|prompt| (prompt, 2.0));
        let faults = Faults { wrong_pages: wrong.collect(), noise: 0.02, ..Faults::default() };
        let plan = VerifyPlan { tiers: vec![VerifyPass::Storage], ..plan(prompts, seed) };
        found += u32::from(verdicts(&run_of(&plan, faults).await.0) == [Different]);
    }
    assert!(found >= 48, "{found} of 50");
}
