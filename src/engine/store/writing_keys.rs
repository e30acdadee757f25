//! The keys that a client is writing. Only one of its writes at a time has a key.
//!
//! The master identifies an unfinished object by its key and its client. If two threads of a client wrote the same key, the second request for
//! memory could replace the first one's memory, and the end of the first write would then complete an object that is not written yet.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::engine::base::ObjectKey;

/// How long a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHold {
    /// During a call. Other writes of the key wait.
    Call,
    /// Over several calls. Other writes of the key fail.
    Session,
}

/// The keys that a client and its clones are writing.
#[derive(Debug, Default)]
pub(in crate::engine::store) struct WritingKeys {
    held: Mutex<HashMap<ObjectKey, KeyHold>>,
    released: Notify,
}

/// Keys that no other write of the client has until the value is dropped.
#[derive(Debug)]
pub(in crate::engine::store) struct HeldKeys {
    keys: Vec<ObjectKey>,
    of: Arc<WritingKeys>,
}

impl WritingKeys {
    /// Takes `keys`, once no call has them. Also returns the indices of those that a session has, and that are not taken. A key that is listed
    /// twice is taken once.
    pub async fn take(self: &Arc<Self>, keys: &[ObjectKey], hold: KeyHold) -> (HeldKeys, Vec<usize>) {
        loop {
            let mut released = pin!(self.released.notified());
            // Keys that are released from here on wake this call.
            released.as_mut().enable();
            if let Some(taken) = self.try_take(keys, hold) {
                return taken;
            }
            released.await;
        }
    }

    fn try_take(self: &Arc<Self>, keys: &[ObjectKey], hold: KeyHold) -> Option<(HeldKeys, Vec<usize>)> {
        let mut held = self.held();
        if keys.iter().any(|key| held.get(key) == Some(&KeyHold::Call)) {
            return None;
        }
        let in_sessions: Vec<usize> = (0..keys.len()).filter(|at| held.contains_key(&keys[*at])).collect();
        let mut taken = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            if in_sessions.binary_search(&at).is_err() && held.insert(key.clone(), hold).is_none() {
                taken.push(key.clone());
            }
        }
        Some((HeldKeys { keys: taken, of: Arc::clone(self) }, in_sessions))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<ObjectKey, KeyHold>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldKeys {
    /// Returns one value for each of `keys`. A key that is listed twice is held by the first value.
    pub fn into_single(mut self, keys: &[ObjectKey]) -> Vec<HeldKeys> {
        let mut left: Vec<ObjectKey> = std::mem::take(&mut self.keys);
        left.sort_unstable();
        let single = |key: &ObjectKey| {
            let found = left.binary_search(key).map(|at| left.remove(at));
            HeldKeys { keys: found.into_iter().collect(), of: Arc::clone(&self.of) }
        };
        keys.iter().map(single).collect()
    }
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        {
            let mut held = self.of.held();
            for key in &self.keys {
                held.remove(key);
            }
        }
        self.of.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn keys(names: &[&str]) -> Vec<ObjectKey> {
        names.iter().map(|name| ObjectKey(name.as_bytes().into())).collect()
    }

    #[test]
    fn a_call_waits_for_the_keys_of_another_call() {
        let writing = Arc::new(WritingKeys::default());
        let take = |names: &[&str]| {
            let (writing, keys) = (Arc::clone(&writing), keys(names));
            Box::pin(async move { writing.take(&keys, KeyHold::Call).await })
        };
        let (first, _) = take(&["a", "b", "a"]).now_or_never().expect("no key is held");
        let mut second = take(&["b", "c"]);
        assert!((&mut second).now_or_never().is_none());
        assert!(take(&["c"]).now_or_never().is_some(), "a waiting call has no keys");
        drop(first);
        assert!(second.now_or_never().is_some());
        assert!(writing.held().is_empty());
    }

    #[test]
    fn the_keys_of_a_session_are_not_taken() {
        let writing = Arc::new(WritingKeys::default());
        let names = keys(&["a", "b"]);
        let (session, busy) = writing.take(&names, KeyHold::Session).now_or_never().expect("no key is held");
        assert!(busy.is_empty());
        let more = keys(&["b", "c"]);
        let (call, busy) = writing.take(&more, KeyHold::Call).now_or_never().expect("a session is not waited for");
        assert_eq!(busy, [0]);
        let mut single = session.into_single(&names).into_iter();
        drop(single.next());
        assert!(!writing.held().contains_key(&names[0]) && writing.held().contains_key(&names[1]));
        drop((single, call));
        assert!(writing.held().is_empty());
    }
}
