//! The keys that a client is writing. Only one of its writes at a time has a key.
//!
//! If two threads of a client upserted the same key, the second request for memory would displace
//! the first write, whose memory the master keeps until its release timeout.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use mcctl_base::{Mono, ObjectKey};

/// How long a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHold {
    /// During a call. Other writes of the key wait.
    Call,
    /// Over several calls. Other writes of the key fail until the hold is released, or `limit` has
    /// passed since it began. A caller that does not end its write must not block the key for ever.
    Session { limit: Duration },
}

/// The keys that a client and its clones are writing.
#[derive(Debug, Default)]
pub(crate) struct WritingKeys {
    state: Mutex<Holders>,
    released: Notify,
}

#[derive(Debug, Default)]
struct Holders {
    of: HashMap<ObjectKey, Holder>,
    /// The number of the next [`HeldKeys`].
    next: u64,
}

/// The write that has a key: a call, or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    /// The number of the [`HeldKeys`]. After the end of a session, its key may belong to another
    /// write.
    number: u64,
    /// The end of a session. `None` for a call.
    until: Option<Mono>,
}

/// Keys that no other write of the client has until the value is dropped, or the session has ended.
#[derive(Debug)]
pub(crate) struct HeldKeys {
    number: u64,
    keys: Vec<ObjectKey>,
    of: Arc<WritingKeys>,
}

impl WritingKeys {
    /// Takes `keys`, once no call has them. Also returns the indices of those that a session has,
    /// and that are not taken. A key that is listed twice is taken once. `now` returns the time on
    /// the clock of the ends of sessions.
    pub(crate) async fn take(
        self: &Arc<Self>,
        keys: &[ObjectKey],
        hold: KeyHold,
        now: impl Fn() -> Mono,
    ) -> (HeldKeys, Vec<usize>) {
        loop {
            let mut released = pin!(self.released.notified());
            // Keys that are released from here on wake this call.
            released.as_mut().enable();
            if let Some(taken) = self.try_take(keys, hold, now()) {
                return taken;
            }
            released.await;
        }
    }

    fn try_take(self: &Arc<Self>, keys: &[ObjectKey], hold: KeyHold, now: Mono) -> Option<(HeldKeys, Vec<usize>)> {
        let until = match hold {
            KeyHold::Call => None,
            KeyHold::Session { limit } => Some(now + limit),
        };
        let mut state = self.state();
        if keys.iter().any(|key| state.of.get(key).is_some_and(|holder| holder.until.is_none())) {
            return None;
        }
        let mut expired = 0;
        let mut in_sessions = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            match state.of.get(key).and_then(|holder| holder.until) {
                Some(until) if now < until => in_sessions.push(at),
                Some(_) => {
                    state.of.remove(key);
                    expired += 1;
                }
                None => {}
            }
        }
        let number = state.next;
        state.next += 1;
        let mut taken = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            if in_sessions.binary_search(&at).is_err()
                && state.of.insert(key.clone(), Holder { number, until }).is_none()
            {
                taken.push(key.clone());
            }
        }
        drop(state);
        if expired > 0 {
            tracing::warn!(keys = expired, "write sessions were not ended in time; another write has taken their keys");
        }
        Some((HeldKeys { number, keys: taken, of: Arc::clone(self) }, in_sessions))
    }

    fn state(&self) -> MutexGuard<'_, Holders> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldKeys {
    /// Returns one value for each of `keys`. A key that is listed twice is held by the first value.
    pub(crate) fn into_single(mut self, keys: &[ObjectKey]) -> Vec<HeldKeys> {
        let mut left: Vec<ObjectKey> = std::mem::take(&mut self.keys);
        left.sort_unstable();
        let single = |key: &ObjectKey| {
            let found = left.binary_search(key).map(|at| left.remove(at));
            HeldKeys { number: self.number, keys: found.into_iter().collect(), of: Arc::clone(&self.of) }
        };
        keys.iter().map(single).collect()
    }

    /// Turns the hold into that of a call: it lasts until the value is dropped. Returns false if
    /// another write has a key in the meantime. Keys that this value does not hold, because they
    /// were listed twice, do not count.
    pub(crate) fn keep(&self) -> bool {
        let mut state = self.of.state();
        let mut kept = true;
        for key in &self.keys {
            match state.of.get_mut(key).filter(|holder| holder.number == self.number) {
                Some(holder) => holder.until = None,
                None => kept = false,
            }
        }
        kept
    }
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        {
            let mut state = self.of.state();
            for key in &self.keys {
                if state.of.get(key).is_some_and(|holder| holder.number == self.number) {
                    state.of.remove(key);
                }
            }
        }
        self.of.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const SESSION: KeyHold = KeyHold::Session { limit: Duration::from_secs(300) };

    fn keys(names: &[&str]) -> Vec<ObjectKey> {
        names.iter().map(|name| ObjectKey(name.as_bytes().into())).collect()
    }

    /// Takes keys at a time in seconds, which no call has.
    fn take_at(writing: &Arc<WritingKeys>, names: &[&str], hold: KeyHold, seconds: u64) -> (HeldKeys, Vec<usize>) {
        let now = || Mono::from_ms(1000 * seconds);
        writing.take(&keys(names), hold, now).now_or_never().expect("no call has the keys")
    }

    #[test]
    fn a_call_waits_for_the_keys_of_another_call() {
        let writing = Arc::new(WritingKeys::default());
        let take = |names: &[&str]| {
            let writing = Arc::clone(&writing);
            let keys = keys(names);
            Box::pin(async move { writing.take(&keys, KeyHold::Call, || Mono::ZERO).await })
        };
        let (first, _) = take(&["a", "b", "a"]).now_or_never().expect("no key is held");
        let mut second = take(&["b", "c"]);
        assert!((&mut second).now_or_never().is_none());
        assert!(take(&["c"]).now_or_never().is_some(), "a waiting call has no keys");
        drop(first);
        assert!(second.now_or_never().is_some());
        assert!(writing.state().of.is_empty());
    }

    #[test]
    fn the_keys_of_a_session_are_not_taken() {
        let writing = Arc::new(WritingKeys::default());
        let (session, busy) = take_at(&writing, &["a", "b"], SESSION, 0);
        assert!(busy.is_empty());
        let (call, busy) = take_at(&writing, &["b", "c"], KeyHold::Call, 299);
        assert_eq!(busy, [0]);
        let names = keys(&["a", "b"]);
        let mut single = session.into_single(&names).into_iter();
        drop(single.next());
        assert!(!writing.state().of.contains_key(&names[0]) && writing.state().of.contains_key(&names[1]));
        drop((single, call));
        assert!(writing.state().of.is_empty());
    }

    #[test]
    fn the_keys_of_a_session_are_taken_after_its_end() {
        let writing = Arc::new(WritingKeys::default());
        let (old, _) = take_at(&writing, &["a", "b"], SESSION, 0);
        let (call, busy) = take_at(&writing, &["a", "a"], KeyHold::Call, 300);
        assert!(busy.is_empty());
        assert!(!old.keep(), "another write has one of the keys");
        drop(old);
        assert!(writing.state().of.contains_key(&keys(&["a"])[0]), "the end of the session does not release it");
        drop(call);
        assert!(writing.state().of.is_empty());
    }

    #[test]
    fn a_session_that_ends_keeps_its_key_until_it_is_dropped() {
        let writing = Arc::new(WritingKeys::default());
        let (session, _) = take_at(&writing, &["a"], SESSION, 0);
        assert!(session.keep());
        let later = keys(&["a"]);
        let mut call = Box::pin(writing.take(&later, KeyHold::Call, || Mono::from_ms(400_000)));
        assert!((&mut call).now_or_never().is_none(), "the object is being completed");
        drop(session);
        assert!(call.now_or_never().is_some_and(|(_, busy)| busy.is_empty()));
    }
}
