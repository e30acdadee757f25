//! What a run sends: the prompts, their groups and the order of the passes.

use std::ops::Range;

use rand::Rng;

use crate::Seed;
use crate::server::ServerInfo;
use crate::verify::{ExpectedHit, VerifyPass, VerifyRequest};

/// Share of L1 that a group of prompts may use. The answers and computed copies need space, too.
const GROUP_SHARE: f64 = 0.4;

/// The prompts and passes of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyPlan {
    /// Number of prompts, given or random.
    pub prompts: u32,
    /// Token IDs of the prompts; empty if they are random.
    pub given: Vec<Vec<u32>>,
    /// Length of a random prompt in tokens, the forced continuation included.
    pub length: u32,
    /// Length of the forced continuation in tokens.
    pub forced: u32,
    /// Number of tokens at the end of a prompt that no cache serves: the continuation, or the last
    /// token if the API cannot force a continuation.
    pub uncached: u32,
    /// Whether the server reports the tiers of cached tokens.
    pub has_tiers: bool,
    /// Number of tokens to generate.
    pub generated: u32,
    /// Upper bound (exclusive) for token IDs.
    pub vocabulary: u32,
    /// Seed of the prompts.
    pub seed: Seed,
    /// Number of this run, for computed answers that no cache may serve.
    pub run: u64,
    /// Number of tokens per page of the caches.
    pub page: u32,
    /// Size of L1 in tokens, if known.
    pub device_tokens: Option<u64>,
    /// The tiers to check, in the order of [`VerifyPass::TIERS`].
    pub tiers: Vec<VerifyPass>,
}

/// Why a plan does not work on a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// `least`: as in [`PlanError::PromptTooShort`].
    #[error(
        "prompt {prompt} of {length} tokens is too long: L1 holds {device} tokens, so a prompt may have at most {most}"
    )]
    PromptTooLong { prompt: u32, length: u32, device: u64, most: u64, least: u64 },
    #[error("prompt {prompt} of {length} tokens is too short: it needs at least {least} tokens")]
    PromptTooShort { prompt: u32, length: u32, least: u64 },
    #[error(
        "prompts {first} and {second} begin with the same page: the first one would bring it into L1 for the other"
    )]
    SharedPage { first: u32, second: u32 },
}

impl VerifyPlan {
    /// The tiers that a server has. With `has_restart`, the one after the user's command too.
    pub fn tiers_of(info: &ServerInfo, has_restart: bool) -> Vec<VerifyPass> {
        let has_storage = info.storage.is_some();
        let has = |tier: &VerifyPass| match tier {
            VerifyPass::Host => info.has_host,
            VerifyPass::Storage | VerifyPass::Mixed => has_storage,
            VerifyPass::Restarted => has_storage && has_restart,
            _ => true,
        };
        VerifyPass::TIERS.into_iter().filter(has).collect()
    }

    /// Checks that the prompts fit the server's L1, and that they have enough pages for a lookup in
    /// L3, which skips prompts with fewer than `info.prefetch_threshold` missing tokens.
    ///
    /// # Errors
    /// The prompts are too long or too short.
    pub fn check(&self, info: &ServerInfo) -> Result<(), PlanError> {
        let page = u64::from(self.page);
        let lookup = if info.storage.is_some() { u64::from(info.prefetch_threshold).max(page) } else { page };
        // A mixed hit needs two such parts.
        let parts = if self.tiers.contains(&VerifyPass::Mixed) { 2 } else { 1 };
        let least = u64::from(self.forced) + parts * lookup.next_multiple_of(page);
        let lengths = || (0..self.prompts).map(|prompt| (prompt, self.length_of(prompt)));
        if let Some((prompt, length)) = lengths().find(|(_, length)| u64::from(*length) < least) {
            return Err(PlanError::PromptTooShort { prompt, length, least });
        }
        let device = self.device_tokens.unwrap_or(u64::MAX);
        let most = ((device as f64 * GROUP_SHARE) as u64).saturating_sub(u64::from(self.generated));
        if let Some((prompt, length)) = lengths().find(|(_, length)| u64::from(*length) > most) {
            return Err(PlanError::PromptTooLong { prompt, length, device, most, least });
        }
        let mut pages = std::collections::HashMap::new();
        for (second, ids) in (0..).zip(&self.given) {
            let first = ids.get(..self.page as usize).and_then(|page| pages.insert(page, second));
            if let Some(first) = first {
                return Err(PlanError::SharedPage { first, second });
            }
        }
        Ok(())
    }

    /// Length of the prompt with this index, in tokens.
    pub fn length_of(&self, prompt: u32) -> u32 {
        self.given.get(prompt as usize).map_or(self.length, |ids| u32::try_from(ids.len()).unwrap_or(u32::MAX))
    }

    /// Token IDs of the prompt with this index.
    pub fn ids(&self, prompt: u32) -> Vec<u32> {
        if let Some(ids) = self.given.get(prompt as usize) {
            return ids.clone();
        }
        let mut generator = self.seed.generator("verify", u64::from(prompt));
        (0..self.length).map(|_| generator.random_range(0..self.vocabulary.max(1))).collect()
    }

    /// Number of tokens that a cache can serve: the whole pages before the continuation.
    pub fn cached_tokens(&self, prompt: u32) -> u32 {
        self.length_of(prompt).saturating_sub(self.uncached) / self.page * self.page
    }

    /// What a cache can serve of a prompt.
    pub fn expected_hit(&self, prompt: u32) -> ExpectedHit {
        ExpectedHit { tokens: self.cached_tokens(prompt), half: self.half(prompt), has_tiers: self.has_tiers }
    }

    /// Number of tokens that L1 serves in the mixed pass: half of the pages.
    pub fn half(&self, prompt: u32) -> u32 {
        self.cached_tokens(prompt) / self.page / 2 * self.page
    }

    /// Returns the request for a prompt in `pass`.
    pub fn request(&self, pass: VerifyPass, prompt: u32) -> VerifyRequest {
        // Its own for each prompt, because prompts may begin with the same tokens.
        let salt = || format!("mcctl-verify-{:016x}-{}-{prompt}", self.run, pass.name());
        let mut ids = self.ids(prompt);
        let mut appended = 0;
        // The completions API returns nothing about the tokens of the prompt.
        if pass == VerifyPass::ColdPaired && self.uncached == self.forced {
            let mut generator = self.seed.generator("verify-appended", u64::from(prompt));
            appended = (self.length_of(prompt) / 4).max(self.page);
            ids.extend((0..appended).map(|_| generator.random_range(0..self.vocabulary.max(1))));
        }
        VerifyRequest {
            ids,
            forced: self.forced,
            generated: self.generated,
            salt: pass.is_cold().then(salt),
            appended,
            computed: false,
        }
    }

    /// Returns two requests for the same unrelated prompt in different caches.
    pub fn same_prompt_twice(&self) -> [VerifyRequest; 2] {
        let ids: Vec<u32> = self.unrelated(u64::from(u32::MAX), 1).flat_map(|request| request.ids).collect();
        [0, 1].map(|number| {
            let salt = Some(format!("mcctl-verify-{:016x}-probe-{number}", self.run));
            VerifyRequest { ids: ids.clone(), forced: self.forced, generated: 1, salt, appended: 0, computed: false }
        })
    }

    /// Returns the request that brings the first half of a prompt into L1.
    pub fn first_half(&self, prompt: u32) -> VerifyRequest {
        let mut ids = self.ids(prompt);
        // The last token is always computed. One more lets all pages of the half be served.
        ids.truncate(self.half(prompt) as usize + 1);
        VerifyRequest { ids, forced: 0, generated: 1, salt: None, appended: 0, computed: false }
    }

    /// Returns unrelated requests with at least `tokens` tokens in total. `step`: different for
    /// each call.
    pub fn unrelated(&self, step: u64, tokens: u64) -> impl Iterator<Item = VerifyRequest> + use<> {
        let (seed, run, length, vocabulary) = (self.seed, self.run, self.length, self.vocabulary.max(1));
        (0..tokens.div_ceil(u64::from(length.max(1)))).map(move |index| {
            let mut generator = seed.generator("verify-unrelated", step << 32 | index);
            let ids = (0..length).map(|_| generator.random_range(0..vocabulary)).collect();
            let salt = Some(format!("mcctl-verify-{run:016x}-unrelated-{step}"));
            VerifyRequest { ids, forced: 0, generated: 1, salt, appended: 0, computed: false }
        })
    }

    /// Returns the prompts in groups that fit into L1.
    pub fn groups(&self) -> Vec<Range<u32>> {
        let space = (self.device_tokens.unwrap_or(u64::MAX) as f64 * GROUP_SHARE) as u64;
        let mut groups: Vec<Range<u32>> = Vec::new();
        let mut used = 0;
        for prompt in 0..self.prompts {
            let tokens = u64::from(self.length_of(prompt)) + u64::from(self.generated);
            let tokens = tokens.next_multiple_of(u64::from(self.page));
            match groups.last_mut() {
                Some(group) if used + tokens <= space => {
                    group.end = prompt + 1;
                    used += tokens;
                }
                _ => {
                    groups.push(prompt..prompt + 1);
                    used = tokens;
                }
            }
        }
        groups
    }

    /// Whether this tier is checked.
    pub fn has(&self, tier: VerifyPass) -> bool {
        self.tiers.contains(&tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(in crate::verify) fn plan(prompts: u32) -> VerifyPlan {
        VerifyPlan {
            prompts,
            given: Vec::new(),
            length: 640,
            forced: 32,
            uncached: 32,
            has_tiers: true,
            generated: 8,
            vocabulary: 1000,
            seed: Seed(1),
            run: 7,
            page: 16,
            device_tokens: Some(8192),
            tiers: VerifyPass::TIERS.to_vec(),
        }
    }

    fn info(storage: bool) -> ServerInfo {
        let storage = storage.then(|| "mooncake".to_owned());
        ServerInfo { has_host: true, storage, prefetch_threshold: 256, ..ServerInfo::default() }
    }

    #[test]
    fn prompts_must_fit_l1_and_reach_l3() {
        assert_eq!(plan(9).check(&info(true)), Ok(()));
        let short = VerifyPlan { length: 500, ..plan(9) };
        assert_eq!(short.check(&info(true)), Err(PlanError::PromptTooShort { prompt: 0, length: 500, least: 544 }));
        assert_eq!(short.check(&info(false)), Ok(()));
        let long = VerifyPlan { length: 4000, ..plan(9) };
        let error = Err(PlanError::PromptTooLong { prompt: 0, length: 4000, device: 8192, most: 3268, least: 544 });
        assert_eq!(long.check(&info(true)), error);
    }

    #[test]
    fn groups_cover_each_prompt_once_and_fit() {
        let groups = plan(11).groups();
        assert_eq!(groups, [0..4, 4..8, 8..11]);
        assert_eq!(VerifyPlan { device_tokens: None, ..plan(3) }.groups(), [0..3; 1]);
    }

    #[test]
    fn given_prompts_have_their_own_lengths() {
        let given = vec![vec![7; 640], vec![8; 2000], vec![9; 600]];
        let plan = VerifyPlan { given, ..plan(3) };
        assert_eq!((plan.check(&info(true)), plan.groups()), (Ok(()), vec![0..2, 2..3]));
        assert_eq!((plan.cached_tokens(1), plan.ids(2)), (1968, vec![9; 600]));
        let short = VerifyPlan { given: vec![vec![7; 640], vec![8; 10]], ..plan };
        let short = VerifyPlan { prompts: 2, ..short };
        let alike = VerifyPlan { given: vec![vec![7; 640], vec![8; 640], vec![7; 700]], ..short.clone() };
        assert_eq!(alike.check(&info(true)), Err(PlanError::SharedPage { first: 0, second: 2 }));
        let huge = ServerInfo { prefetch_threshold: u32::MAX, ..info(true) };
        assert!(matches!(alike.check(&huge), Err(PlanError::PromptTooShort { .. })));
        assert_eq!(short.check(&info(true)), Err(PlanError::PromptTooShort { prompt: 1, length: 10, least: 544 }));
    }

    #[test]
    fn computed_answers_have_their_own_cache_and_others_share_one() {
        let plan = plan(2);
        let paired = plan.request(VerifyPass::ColdPaired, 1);
        assert_eq!((paired.appended, paired.ids.len()), (160, 800));
        let salts = [VerifyPass::Cold, VerifyPass::ColdAgain, VerifyPass::Device, VerifyPass::Storage]
            .map(|pass| plan.request(pass, 1).salt);
        assert!(salts[0].is_some() && salts[0] != salts[1] && salts[2].is_none() && salts[3].is_none());
        assert_ne!(plan.ids(0), plan.ids(1));
        assert_eq!((plan.cached_tokens(1), plan.half(1), plan.first_half(1).ids.len()), (608, 304, 305));
        let unrelated: Vec<_> = plan.unrelated(1, 1281).collect();
        assert_eq!(unrelated.len(), 3);
        assert_ne!(unrelated[0].ids, unrelated[1].ids);
    }

    #[test]
    fn tiers_are_those_that_the_server_has() {
        use VerifyPass::{Device, Host, Mixed, Restarted, Storage};
        assert_eq!(VerifyPlan::tiers_of(&ServerInfo::default(), true), [Device]);
        assert_eq!(VerifyPlan::tiers_of(&info(false), true), [Device, Host]);
        assert_eq!(VerifyPlan::tiers_of(&info(true), false), [Device, Host, Storage, Mixed]);
        assert_eq!(VerifyPlan::tiers_of(&info(true), true), [Device, Host, Storage, Mixed, Restarted]);
    }
}
