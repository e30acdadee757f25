//! Implements the RPC methods: calls [`MasterState`] with the arguments, updates the counters and
//! returns the results.
//!
//! A call locks the state once. A batch locks it once per [`KEYS_PER_LOCK`] keys, and a scan of all
//! objects once per slice, so that other callers can proceed in between.
//!
//! `api` has one function per method, `write` the common parts of puts and upserts, and [`access`]
//! the state that the methods use. The names of objects are those of [`tenant`](crate::tenant).

use crate::effect::Effects;
use crate::metrics::{BatchCount, CallCount, MasterCounters};
use crate::pattern::{self, KeyPattern};
use crate::refusal::MasterRefusal;
use crate::state::MasterState;
use crate::tenant::TenantKeys;
use crate::unsupported::UnsupportedResult;
use mcctl_base::{ClientId, ErrorCode, Mono};
use mcctl_wire::types::{ObjectMeta, Tenant};
use mcctl_wire::{Expected, Method, Text};

pub mod access;

mod api;
mod write;

use access::StateAccess;

/// Number of keys in a batch that are processed per lock acquisition.
const KEYS_PER_LOCK: usize = 64;

/// Size of a change at which a batch ends it, so that a log file has room for the records of one
/// lock acquisition.
const CHANGE_BYTES_MAX: usize = 1 << 20;

/// Number of lock acquisitions after which a batch lets other callers proceed.
const LOCKS_BEFORE_YIELD: usize = 16;

/// Implements the RPC methods on a state.
#[derive(Debug)]
pub struct MasterCall<A>(pub A);

/// Selects the counter of a batch method.
type BatchCounter = fn(&mut MasterCounters) -> &mut BatchCount;

/// A batch item that may refer to an object.
trait Keyed {
    /// The key of the object, if the item has one.
    fn key(&self) -> Option<&[u8]>;
}

impl Keyed for Text<'_> {
    fn key(&self) -> Option<&[u8]> {
        Some(self.0)
    }
}

impl Keyed for ObjectMeta<'_> {
    fn key(&self) -> Option<&[u8]> {
        Some(self.key.0)
    }
}

impl Keyed for ClientId {
    fn key(&self) -> Option<&[u8]> {
        None
    }
}

impl<A: StateAccess> MasterCall<A> {
    /// Runs one call and counts it.
    fn counted<R>(
        &mut self,
        counter: impl FnOnce(&mut MasterCounters) -> &mut CallCount,
        work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> Result<R, MasterRefusal>,
    ) -> Expected<R> {
        self.0.with_state(|state, now, effects| {
            let answer = work(state, now, effects);
            counter(&mut state.counters).add(answer.is_ok());
            answer.map_err(MasterRefusal::code)
        })
    }

    /// Processes a batch item by item and locks the state once per [`KEYS_PER_LOCK`] items.
    fn batch<T: Keyed, R>(
        &mut self,
        items: &[T],
        counter: Option<BatchCounter>,
        mut each: impl FnMut(&mut MasterState, Mono, &T, usize) -> Result<R, MasterRefusal>,
    ) -> Vec<Expected<R>> {
        let mut answers = Vec::with_capacity(items.len());
        let mut failed = 0;
        let mut locks = 0;
        loop {
            let begin = answers.len();
            let end = items.len().min(begin + KEYS_PER_LOCK);
            let end = self.0.with_state(|state, now, _| {
                state.warm(items[begin..end].iter().filter_map(Keyed::key));
                for (nth, item) in items.iter().enumerate().take(end).skip(begin) {
                    let answer = each(state, now, item, nth);
                    failed += usize::from(answer.is_err());
                    answers.push(answer.map_err(MasterRefusal::code));
                    if state.change_bytes() >= CHANGE_BYTES_MAX {
                        break;
                    }
                }
                let end = answers.len();
                if end == items.len()
                    && let Some(counter) = counter
                {
                    counter(&mut state.counters).add(items.len(), failed);
                }
                end
            });
            if end == items.len() {
                return answers;
            }
            // Two or three lock acquisitions in a row delay other callers only briefly. Sleeping
            // would delay the other connections on this thread.
            locks += 1;
            if locks % LOCKS_BEFORE_YIELD == 0 {
                self.0.yield_to_waiters();
            }
        }
    }

    /// Calls `each`, with the state locked, for all names of objects of the tenant whose keys match
    /// the expression.
    ///
    /// # Errors
    /// `BadRegex` if the search exceeds its step limit or time budget. Earlier calls to `each` are
    /// not undone.
    fn matching(
        &mut self,
        tenant: TenantKeys<'_>,
        pattern: &KeyPattern,
        mut each: impl FnMut(&mut MasterState, Mono, &[u8]),
    ) -> Result<(), MasterRefusal> {
        let (mut walk, end) = self.0.with_state(|state, now, _| {
            let walk = state.walk();
            (walk, now + pattern::budget(walk.slots()))
        });
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        while !walk.is_done() {
            bytes.clear();
            ends.clear();
            let now = self.0.with_state(|state, now, _| {
                state.key_slice(&mut walk, &mut |key| {
                    bytes.extend_from_slice(key);
                    ends.push(bytes.len());
                });
                now
            });
            if now > end {
                return Err(MasterRefusal::BadRegex);
            }
            let mut from = 0;
            let mut found = Vec::new();
            for &end in &ends {
                let name = &bytes[from..end];
                from = end;
                if tenant.key(name).is_some_and(|key| pattern.matches(key)) {
                    found.push(name);
                }
                if pattern.exceeds_hard_keys() {
                    return Err(MasterRefusal::BadRegex);
                }
            }
            for chunk in found.chunks(KEYS_PER_LOCK) {
                self.0.with_state(|state, now, _| chunk.iter().for_each(|name| each(state, now, name)));
            }
            self.0.yield_to_waiters();
        }
        Ok(())
    }

    /// Processes a batch of a tenant's keys, as [`batch`](Self::batch) does.
    fn batch_of<R>(
        &mut self,
        tenant: Tenant<'_>,
        keys: &[Text<'_>],
        counter: Option<BatchCounter>,
        each: impl FnMut(&mut MasterState, Mono, &Text<'_>, usize) -> Result<R, MasterRefusal>,
    ) -> Vec<Expected<R>> {
        match TenantKeys::of(tenant) {
            Ok(tenant) => tenant.with_names(keys, |names| self.batch(names, counter, each)),
            Err(_) => self.batch(keys, counter, |_, _, _, _| Err(MasterRefusal::BadArguments)),
        }
    }

    /// Returns the table entry for an unsupported method, and whether the tenant has the key.
    fn unsupported(&mut self, method: Method, key: Option<(Tenant<'_>, Text<'_>)>) -> (UnsupportedResult, bool) {
        let unsupported = UnsupportedResult::of(method);
        let exists = match key {
            Some((tenant, key)) if unsupported.depends_on_key() => TenantKeys::of(tenant)
                .is_ok_and(|tenant| self.0.with_state(|state, _, _| state.contains_key(&tenant.name(key)))),
            _ => true,
        };
        (unsupported, exists)
    }

    fn unsupported_result<T: Default>(&mut self, method: Method, key: Option<(Tenant<'_>, Text<'_>)>) -> Expected<T> {
        let (unsupported, exists) = self.unsupported(method, key);
        unsupported.result(exists)
    }

    fn unsupported_error<T>(&mut self, method: Method, key: Option<(Tenant<'_>, Text<'_>)>) -> Expected<T> {
        let (unsupported, exists) = self.unsupported(method, key);
        Err(unsupported.error(exists).unwrap_or(ErrorCode::NOT_SUPPORTED))
    }

    fn count(&mut self, add: impl FnOnce(&mut MasterCounters)) {
        self.0.with_state(|state, _, _| add(&mut state.counters));
    }
}
