//! Fetches pages from storage to the host before a request starts.
//!
//! Follows the same steps as SGLang: look up missing pages, query storage if enough are missing,
//! allocate host pages for the pages that storage holds, and read them. The tree may change during
//! the read, so missing pages are looked up again after the read.

use std::time::Duration;

use crate::counters::gb_per_s;
use crate::scheduler::request::FetchState;
use crate::scheduler::{Scheduler, SchedulerEffect};
use mcctl_base::Mono;

impl Scheduler {
    /// Queries storage for the pages that are missing for the request.
    pub(super) fn lookup(&mut self, id: u64) {
        if !self.config.storage {
            return;
        }
        let request = self.requests.get_mut(&id).expect("the request was just added");
        let found = self.tree.find(request.asked());
        let from = (found.device + found.host) as usize;
        let missing = &request.asked()[from..];
        if !self.tree.anchors_fetch(found.node) || (missing.len() as u64) < least(&self.config) {
            return;
        }
        self.effects.push(SchedulerEffect::Lookup { id, pages: missing.to_vec() });
        request.fetch = FetchState::LookingUp { from: from as u64 };
    }

    /// Handles the result of a lookup: storage holds the first `hit` of the requested pages.
    pub fn lookup_done(&mut self, now: Mono, id: u64, hit: usize) {
        self.advance(now);
        let Some(request) = self.requests.get_mut(&id) else { return };
        let FetchState::LookingUp { from: looked_from } = request.fetch else { return };
        request.fetched_at = now;
        request.fetch = FetchState::None;
        if request.aborted {
            self.requests.remove(&id);
            return;
        }
        let page = self.config.page_size;
        let least = least(&self.config);
        let found = self.tree.find(request.asked());
        let from = found.device + found.host;
        let end = looked_from + (hit as u64).min(request.asked as u64 - looked_from);
        self.counters.storage_hit += (end - looked_from) * page;
        // Other requests may have loaded or evicted pages in the meantime.
        let hit = end.saturating_sub(from);
        if from < looked_from || !self.tree.anchors_fetch(found.node) {
            self.counters.unfulfilled.anchor_lost += (end - looked_from) * page;
        } else if hit < least {
            self.counters.unfulfilled.below_threshold += hit * page;
        } else {
            self.tree.lock_host(found.node, true);
            if self.tree.host_free < hit {
                self.tree.evict_host(hit);
            }
            self.tree.lock_host(found.node, false);
            let reserved = hit.min(self.tree.host_free);
            let reserved = if reserved == hit || reserved >= least { reserved } else { 0 };
            self.counters.unfulfilled.host_capacity += (hit - reserved) * page;
            if reserved > 0 {
                self.tree.host_free -= reserved;
                request.fetch = FetchState::Reading { from, reserved };
                let pages = request.asked()[from as usize..(from + reserved) as usize].to_vec();
                self.effects.push(SchedulerEffect::Read { id, pages });
            }
        }
        self.start_step(now);
    }

    /// Handles the result of a read: the first `came` pages were read in the time `took`.
    pub fn read(&mut self, now: Mono, id: u64, came: usize, took: Duration) {
        self.advance(now);
        let Some(request) = self.requests.get_mut(&id) else { return };
        let FetchState::Reading { from, reserved } = request.fetch else { return };
        let page = self.config.page_size;
        let came = (came as u64).min(reserved);
        request.fetched_at = now;
        request.fetch = FetchState::None;
        self.tree.host_free += reserved - came;
        self.counters.unfulfilled.storage_transfer += (reserved - came) * page;
        let found = self.tree.find(request.asked());
        let have = found.device + found.host;
        if request.aborted {
            self.tree.host_free += came;
            self.requests.remove(&id);
        } else if have >= from + came {
            self.tree.host_free += came;
            self.counters.unfulfilled.device_overlap += came * page;
        } else if have < from || !self.tree.anchors_fetch(found.node) {
            self.tree.host_free += came;
            self.counters.unfulfilled.anchor_lost += came * page;
        } else {
            self.tree.host_free += have - from;
            self.counters.unfulfilled.device_overlap += (have - from) * page;
            let pages = request.asked()[have as usize..(from + came) as usize].to_vec();
            self.tree.insert_fetched(found.node, &pages);
            let pages = pages.len() as u64;
            request.fetch = FetchState::Done { from: have, pages };
            self.counters.prefetched += pages * page;
            self.counters.prefetch_pages.record(pages as f64);
            let bytes = pages * page * self.config.bytes_per_token;
            self.counters.prefetch_bandwidth.record(gb_per_s(bytes, took));
        }
        self.start_step(now);
    }

    /// Handles the result of a write: `pages` pages were written in the time `took`, and `dropped`
    /// pages were not written.
    pub fn written(&mut self, pages: u64, dropped: u64, took: Duration) {
        let page = self.config.page_size;
        self.counters.storage_backup += pages * page;
        self.counters.storage_backup_dropped += dropped * page;
        if pages > 0 {
            self.counters.backup_pages.record(pages as f64);
            let bytes = pages * page * self.config.bytes_per_token;
            self.counters.backup_bandwidth.record(gb_per_s(bytes, took));
        }
    }
}

/// Returns the minimum number of pages per fetch.
fn least(config: &crate::Config) -> u64 {
    config.prefetch_threshold.max(config.page_size).div_ceil(config.page_size)
}
