//! The simulated engine: running requests, step durations and cache contents. A state machine
//! driven by `now`.
//!
//! Steps run one after another. If requests are waiting and there is space, a step computes their
//! prompts while decoding pauses. Otherwise, every running request receives a token. Space for the
//! whole response is reserved, so requests are never retracted (unlike in SGLang, which may
//! overcommit).

mod fetch;
mod request;
mod step;

use std::collections::{HashMap, VecDeque};

use crate::config::{AdmissionError, Config};
use crate::counters::SimCounters;
use mcctl_base::Mono;
use mcctl_deploy::plan::hicache::tree::CacheTree;

pub use request::{Admission, FinishReason, HashedRequest, SimRequest};

use request::ScheduledRequest;
use step::EngineStep;

/// An action for the caller to perform.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulerEffect {
    /// The first token of a request.
    First {
        id: u64,
        /// Time of the token.
        at: Mono,
        admission: Admission,
    },
    Token {
        id: u64,
        /// Time of the token.
        at: Mono,
    },
    Finished {
        id: u64,
        /// Time of the end.
        at: Mono,
        end: FinishReason,
    },
    /// Look up how many of these pages storage holds, counted from the first. Report the result
    /// with [`Scheduler::lookup_done`].
    Lookup { id: u64, pages: Vec<u64> },
    /// Read these pages. Report the result with [`Scheduler::read`].
    Read { id: u64, pages: Vec<u64> },
    /// Write these pages. Report the result with [`Scheduler::written`].
    Write { pages: Vec<u64> },
}

/// Current load and cache usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimGauges {
    pub running: u64,
    pub queued: u64,
    /// Device tokens used by running requests.
    pub used: u64,
    pub available: u64,
    /// Device tokens that are only cached.
    pub evictable: u64,
    pub host_used: u64,
}

/// The simulated engine: scheduler and cache tree.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    tree: CacheTree,
    requests: HashMap<u64, ScheduledRequest>,
    waiting: VecDeque<u64>,
    running: Vec<u64>,
    step: Option<EngineStep>,
    effects: Vec<SchedulerEffect>,
    next: u64,
    counters: SimCounters,
}

impl Scheduler {
    /// Creates an idle engine with empty caches.
    pub fn new(config: Config) -> Scheduler {
        let tree = empty(&config);
        Scheduler {
            config,
            tree,
            requests: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: None,
            effects: Vec::new(),
            next: 0,
            counters: SimCounters::default(),
        }
    }

    /// Returns the endpoint's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &SimCounters {
        &self.counters
    }

    /// Returns the current load and cache usage.
    pub fn gauges(&self) -> SimGauges {
        let page = self.config.page_size;
        let all = self.config.device_tokens / page;
        let reachable = self.tree.reachable();
        SimGauges {
            running: self.running.len() as u64,
            queued: self.waiting.len() as u64,
            used: (all - reachable) * page,
            available: self.tree.device_free * page,
            evictable: (reachable - self.tree.device_free) * page,
            host_used: (self.config.host_tokens / page - self.tree.host_free) * page,
        }
    }

    /// Takes the pending effects, in order.
    pub fn effects(&mut self) -> Vec<SchedulerEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the time of the next event, assuming that nothing else happens first.
    pub fn wake(&self) -> Option<Mono> {
        self.step.as_ref().map(|step| step.ends)
    }

    /// Processes all events up to `now`.
    pub fn advance(&mut self, now: Mono) {
        while let Some(step) = self.step.take_if(|step| step.ends <= now) {
            let ended = step.ends;
            self.end_step(step);
            self.start_step(ended);
        }
        self.start_step(now);
    }

    /// Adds a request. Returns its ID, which effects refer to.
    ///
    /// # Errors
    /// The queue is full.
    pub fn arrive(&mut self, now: Mono, HashedRequest(mut request): HashedRequest) -> Result<u64, AdmissionError> {
        self.advance(now);
        if self.waiting.len() >= self.config.queue_max {
            return Err(AdmissionError::QueueFull);
        }
        let id = self.next;
        self.next += 1;
        request.arrived = now;
        request.fetched_at = now;
        self.requests.insert(id, request);
        self.waiting.push_back(id);
        self.lookup(id);
        self.start_step(now);
        Ok(id)
    }

    /// Aborts a request whose client has disconnected.
    pub fn abort(&mut self, now: Mono, id: u64) {
        self.advance(now);
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.aborted = true;
        if let Some(at) = self.waiting.iter().position(|waiting| *waiting == id) {
            self.waiting.remove(at);
            self.effects.push(SchedulerEffect::Finished { id, at: now, end: FinishReason::Abort });
            self.counters.aborted += 1;
            // A pending storage operation must first release its host pages.
            if !self.requests[&id].waits_for_storage() {
                self.requests.remove(&id);
            }
        }
    }

    /// Returns the IDs of all requests.
    pub fn ids(&self) -> Vec<u64> {
        self.waiting.iter().chain(&self.running).copied().collect()
    }

    /// Clears device and host. If there are any requests, does nothing and returns false.
    pub fn flush(&mut self, now: Mono) -> bool {
        self.advance(now);
        let idle = self.requests.is_empty();
        if idle {
            self.tree = empty(&self.config);
        }
        idle
    }

    /// Evicts from the device until `pages` pages are free.
    fn make_room(&mut self, pages: u64) {
        let before = self.tree.device_free;
        self.tree.make_room(pages);
        self.counters.evicted += (self.tree.device_free - before) * self.config.page_size;
    }
}

fn empty(config: &Config) -> CacheTree {
    CacheTree::new(config.device_tokens / config.page_size, config.host_tokens / config.page_size)
}

#[cfg(test)]
mod tests;
