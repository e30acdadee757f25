//! Engine steps: what they compute and how long they take.

use std::time::Duration;

use crate::counters::PromptTokens;
use crate::scheduler::request::{Admission, FetchState, FinishReason};
use crate::scheduler::{Scheduler, SchedulerEffect};
use mcctl_base::Mono;

/// A step in progress.
#[derive(Debug)]
pub(super) struct EngineStep {
    pub ends: Mono,
    /// Requests whose prompts the step computes; empty for a decode step.
    pub prompts: Vec<u64>,
}

impl Scheduler {
    /// Starts a step, unless one is in progress or there is nothing to do.
    pub(super) fn start_step(&mut self, now: Mono) {
        if self.step.is_some() {
            return;
        }
        let cost = self.config.cost;
        let (prompts, computed, loaded) = self.admit(now);
        let takes = if !prompts.is_empty() {
            let seconds = computed as f64 / cost.prefill_tokens_per_s + loaded as f64 / cost.load_back_tokens_per_s;
            cost.step.saturating_add(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
        } else if !self.running.is_empty() {
            cost.step + cost.step_per_request * u32::try_from(self.running.len()).unwrap_or(u32::MAX)
        } else {
            return;
        };
        // Time must advance even if a step costs nothing.
        self.step = Some(EngineStep { ends: now + takes.max(Duration::from_nanos(1)), prompts });
    }

    /// Starts waiting requests while there is space. Returns these requests, and the tokens to
    /// compute and to load for them.
    fn admit(&mut self, now: Mono) -> (Vec<u64>, u64, u64) {
        let mut started = Vec::new();
        let mut computed = 0;
        let mut loaded = 0;
        let mut at = 0;
        while at < self.waiting.len() && self.running.len() < self.config.running_max {
            let id = self.waiting[at];
            if self.requests[&id].waits_for_storage() {
                // Later requests may overtake this one.
                at += 1;
                continue;
            }
            let Some(tokens) = self.admit_one(now, id, computed) else { break };
            computed += tokens.0;
            loaded += tokens.1;
            self.waiting.remove(at);
            self.running.push(id);
            started.push(id);
        }
        (started, computed, loaded)
    }

    /// Starts one request. Returns the tokens to compute and to load, or `None` if there is no
    /// space.
    fn admit_one(&mut self, now: Mono, id: u64, computed: u64) -> Option<(u64, u64)> {
        let page = self.config.page_size;
        let promised: u64 = self.running.iter().map(|id| self.requests[id].pages_to_come(page)).sum();
        let request = self.requests.get_mut(&id).expect("a waiting request");
        let found = self.tree.find(request.asked());
        let new = request.tokens - (found.device + found.host) * page;
        if computed > 0 && computed + new > self.config.prefill_batch_tokens {
            return None;
        }
        self.tree.lock(found.device_node);
        let fits = request.pages_max(page) - found.device + promised <= self.tree.reachable();
        self.tree.unlock(found.device_node);
        if !fits {
            return None;
        }
        let before = self.tree.device_free;
        let is_loaded = found.host > 0 && self.tree.load_back(found.node);
        let loaded = if is_loaded { found.host } else { 0 };
        self.counters.evicted += (self.tree.device_free + loaded - before) * page;
        let prefix = found.device + loaded;
        request.last = if is_loaded { found.node } else { found.device_node };
        self.tree.lock(request.last);
        let tokens = request.tokens;
        let own_from = prefix;
        let needed = tokens.div_ceil(page) - own_from;
        self.make_room(needed);
        self.tree.device_free -= needed;
        let request = self.requests.get_mut(&id).expect("a waiting request");
        request.begin(page);
        request.own = prefix;
        request.done = tokens;
        request.started = now;
        let storage = match request.fetch {
            FetchState::Done { from, pages } => {
                let storage = prefix.min(from + pages).saturating_sub(from.max(found.device));
                let lost = pages.saturating_sub(storage) * page;
                if !is_loaded && found.host > 0 {
                    self.counters.unfulfilled.cache_admission_shortfall += lost;
                }
                storage
            }
            _ => 0,
        };
        request.tokens_by_tier = PromptTokens {
            device: found.device * page,
            host: (loaded - storage) * page,
            storage: storage * page,
            computed: tokens - prefix * page,
        };
        let by_tier = request.tokens_by_tier;
        self.counters.load_back += loaded * page;
        self.counters.prefill.device += by_tier.device;
        self.counters.prefill.host += by_tier.host;
        self.counters.prefill.storage += by_tier.storage;
        self.counters.prefill.computed += by_tier.computed;
        self.counters.queue.record(now.since(request.arrived).as_secs_f64());
        Some((by_tier.computed, loaded * page))
    }

    /// Applies the results of a finished step.
    pub(super) fn end_step(&mut self, step: EngineStep) {
        let at = step.ends;
        if step.prompts.is_empty() {
            for id in std::mem::take(&mut self.running) {
                if self.decoded(id, at) {
                    self.running.push(id);
                }
            }
            return;
        }
        for id in step.prompts {
            if !self.computed(id, at) {
                self.running.retain(|running| *running != id);
            }
        }
    }

    /// Handles a computed prompt and its first token. Returns whether the request continues.
    fn computed(&mut self, id: u64, at: Mono) -> bool {
        let request = self.requests.get_mut(&id).expect("a running request");
        if request.aborted {
            self.finish(id, at, FinishReason::Abort);
            return false;
        }
        request.generated = 1;
        request.first_token = at;
        request.last_token = at;
        let admission = Admission {
            answer: request.answer.clone(),
            arrived: request.arrived,
            started: request.started,
            computed: at,
            tokens: request.tokens_by_tier,
            storage_wait: request.storage_wait(),
        };
        self.effects.push(SchedulerEffect::First { id, at, admission });
        if request.output == 1 {
            self.finish(id, at, FinishReason::Length);
            return false;
        }
        let pages = request.prompt_pages;
        self.put(id, pages);
        true
    }

    /// Handles a further token. Returns whether the request continues.
    fn decoded(&mut self, id: u64, at: Mono) -> bool {
        let page = self.config.page_size;
        let request = self.requests.get_mut(&id).expect("a running request");
        if request.aborted {
            self.finish(id, at, FinishReason::Abort);
            return false;
        }
        let is_new_page = request.done.is_multiple_of(page);
        request.done += 1;
        request.generated += 1;
        let gap = at.since(request.last_token);
        request.last_token = at;
        let is_last = request.generated == request.output;
        self.counters.finished[usize::from(request.stream)].gaps.record(gap.as_secs_f64());
        if is_new_page {
            self.make_room(1);
            self.tree.device_free -= 1;
        }
        self.counters.decoded += 1;
        self.effects.push(SchedulerEffect::Token { id, at });
        if is_last {
            self.finish(id, at, FinishReason::Length);
        }
        !is_last
    }

    /// Inserts the request's first `pages` pages into the tree. Locks their path and unlocks the
    /// previous one.
    fn put(&mut self, id: u64, pages: usize) {
        let request = self.requests.get_mut(&id).expect("a running request");
        let mut written = Vec::new();
        let mut count = 0;
        let node = self.tree.insert(&request.pages[..pages], request.known, request.own, &mut |pages| {
            count += pages.len() as u64;
            written.extend_from_slice(pages);
        });
        self.tree.unlock(request.last);
        self.tree.lock(node);
        request.last = node;
        request.own = request.own.max(pages as u64);
        request.known = request.known.max(pages as u64);
        self.counters.host_backup += count * self.config.page_size;
        if self.config.storage && !written.is_empty() {
            self.effects.push(SchedulerEffect::Write { pages: written });
        }
    }

    /// Ends a request. Its computed pages stay cached.
    fn finish(&mut self, id: u64, at: Mono, end: FinishReason) {
        let page = self.config.page_size;
        let request = &self.requests[&id];
        let all = usize::try_from(request.done / page).unwrap_or(usize::MAX).min(request.pages.len());
        let prompt = request.prompt_pages.min(all);
        if all > 0 {
            self.put(id, all);
        }
        if prompt > 0 && all > prompt {
            // The prompt becomes a separate node, so that the response can be evicted without it.
            self.tree.insert(&self.requests[&id].pages[..prompt], prompt as u64, prompt as u64, &mut |_| {});
        }
        let request = self.requests.remove(&id).expect("a running request");
        self.tree.device_free += request.done.div_ceil(page) - request.own;
        self.tree.unlock(request.last);
        self.effects.push(SchedulerEffect::Finished { id, at, end });
        if end == FinishReason::Abort {
            self.counters.aborted += 1;
            return;
        }
        let cached = &mut self.counters.cached;
        let by_tier = request.tokens_by_tier;
        cached.device += by_tier.device;
        cached.host += by_tier.host;
        cached.storage += by_tier.storage;
        cached.computed += by_tier.computed;
        let finished = &mut self.counters.finished[usize::from(request.stream)];
        finished.requests += 1;
        finished.prompt += request.tokens;
        finished.generation += u64::from(request.generated);
        finished.first_token.record(request.first_token.since(request.arrived).as_secs_f64());
        finished.whole.record(at.since(request.arrived).as_secs_f64());
    }
}
