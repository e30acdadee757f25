//! The engine: which requests run, what each step takes, and what is cached where. A state machine over `now`.
//!
//! One step follows the other. While requests wait and there is room, a step computes their prompts, and those that decode stand
//! still meanwhile; else every running request gets a token. What a request may come to need is kept free for it, so that none is
//! ever put back, as SGLang does when it has promised too much.

mod fetch;
mod request;
mod step;

use std::collections::{HashMap, VecDeque};

use crate::engine::base::Mono;
use crate::engine::plan::hicache::tree::Tree;
use crate::engine::sim::config::{Config, Refused};
use crate::engine::sim::counters::Counters;

pub use request::{Admission, Ask, End, Prepared};

use request::Request;
use step::Step;

/// What the shell has to do or to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The request's first token is there.
    First {
        /// The request.
        id: u64,
        /// Since when.
        at: Mono,
        /// How it came to be.
        admission: Admission,
    },
    /// Another token is.
    Token {
        /// The request.
        id: u64,
        /// Since when.
        at: Mono,
    },
    /// It is over.
    Ended {
        /// The request.
        id: u64,
        /// Since when.
        at: Mono,
        /// How.
        end: End,
    },
    /// How many of these pages, from the first on, does storage have? [`Scheduler::looked`] is to be told.
    Look {
        /// For this request.
        id: u64,
        /// The pages.
        pages: Vec<u64>,
    },
    /// Read these pages. [`Scheduler::read`] is to be told.
    Read {
        /// For this request.
        id: u64,
        /// The pages.
        pages: Vec<u64>,
    },
    /// Write these pages. [`Scheduler::written`] is to be told.
    Write {
        /// The pages.
        pages: Vec<u64>,
    },
}

/// What is going on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub queued: u64,
    /// Tokens of the device that running requests use.
    pub used: u64,
    /// Tokens of the device that nobody uses.
    pub available: u64,
    /// Tokens of the device that are cached only.
    pub evictable: u64,
    /// Tokens on the host.
    pub host_used: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    tree: Tree,
    requests: HashMap<u64, Request>,
    waiting: VecDeque<u64>,
    running: Vec<u64>,
    step: Option<Step>,
    effects: Vec<Effect>,
    next: u64,
    counters: Counters,
}

impl Scheduler {
    /// Nothing runs, nothing is cached.
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
            counters: Counters::default(),
        }
    }

    /// What it simulates.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is going on.
    pub fn gauges(&self) -> Gauges {
        let page = self.config.page_size;
        let (all, reachable) = (self.config.device_tokens / page, self.tree.reachable());
        Gauges {
            running: self.running.len() as u64,
            queued: self.waiting.len() as u64,
            used: (all - reachable) * page,
            available: self.tree.device_free * page,
            evictable: (reachable - self.tree.device_free) * page,
            host_used: (self.config.host_tokens / page - self.tree.host_free) * page,
        }
    }

    /// What is to be done, in order; told once.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// When something happens next, if nobody calls before.
    pub fn wake(&self) -> Option<Mono> {
        self.step.as_ref().map(|step| step.ends)
    }

    /// Let happen what has happened by `now`.
    pub fn advance(&mut self, now: Mono) {
        while let Some(step) = self.step.take_if(|step| step.ends <= now) {
            let ended = step.ends;
            self.end_step(step);
            self.start_step(ended);
        }
        self.start_step(now);
    }

    /// A request came. Its number, by which the effects speak of it.
    ///
    /// # Errors
    /// It is not taken.
    pub fn arrive(&mut self, now: Mono, Prepared(mut request): Prepared) -> Result<u64, Refused> {
        self.advance(now);
        if self.waiting.len() >= self.config.queue_max {
            return Err(Refused::QueueFull);
        }
        let id = self.next;
        self.next += 1;
        (request.arrived, request.fetched_at) = (now, now);
        self.requests.insert(id, request);
        self.waiting.push_back(id);
        self.look(id);
        self.start_step(now);
        Ok(id)
    }

    /// Nobody wants the answer any more.
    pub fn abort(&mut self, now: Mono, id: u64) {
        self.advance(now);
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.aborted = true;
        if let Some(at) = self.waiting.iter().position(|waiting| *waiting == id) {
            self.waiting.remove(at);
            self.effects.push(Effect::Ended { id, at: now, end: End::Abort });
            self.counters.aborted += 1;
            // Whoever reads for it gives its room back first.
            if !self.requests[&id].waits_for_storage() {
                self.requests.remove(&id);
            }
        }
    }

    /// The requests that are there.
    pub fn ids(&self) -> Vec<u64> {
        self.waiting.iter().chain(&self.running).copied().collect()
    }

    /// Forget what device and host hold. Not while there are requests: did it?
    pub fn flush(&mut self, now: Mono) -> bool {
        self.advance(now);
        let idle = self.requests.is_empty();
        if idle {
            self.tree = empty(&self.config);
        }
        idle
    }

    /// Evict from the device until `pages` are free.
    fn make_room(&mut self, pages: u64) {
        let before = self.tree.device_free;
        self.tree.make_room(pages);
        self.counters.evicted += (self.tree.device_free - before) * self.config.page_size;
    }
}

fn empty(config: &Config) -> Tree {
    Tree::new(config.device_tokens / config.page_size, config.host_tokens / config.page_size)
}

#[cfg(test)]
mod tests;
