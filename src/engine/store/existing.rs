//! Puts of keys that exist: the object of another write, which may not have ended.

use std::collections::HashSet;
use std::time::Duration;

use crate::{ObjectPart, PutOutcome, ReplicateConfig, StoreClient, StoreError, WriteMethod};
use mcctl_base::{ErrorCode, ObjectKey};
use mcctl_sys::env::Env;

/// How long to wait before each lookup of an object that another write of its key has begun, in ms.
/// Most writes end within a millisecond.
const OTHER_WRITE_PAUSES_MS: [u64; 9] = [0, 2, 10, 40, 100, 200, 400, 600, 650];

impl<E: Env> StoreClient<E> {
    /// The same as [`write`](StoreClient::write), for a caller that reports success for an object
    /// that exists: such an object is looked up. If another write of its key has begun, which may
    /// never end, the error is [`StoreError::OtherWrite`].
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: this object was not stored.
    pub async fn store(
        &self,
        method: WriteMethod,
        objects: &[(ObjectKey, Vec<ObjectPart>)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<PutOutcome, StoreError>>, StoreError> {
        let mut outcomes = self.write(method, objects, config).await?;
        self.confirm_existing(objects, &mut outcomes).await;
        Ok(outcomes)
    }

    /// Looks up the objects whose put was refused because they exist, and replaces the outcome of
    /// those that stay unreadable: another write of the key has begun, and may never end.
    async fn confirm_existing(
        &self,
        objects: &[(ObjectKey, Vec<ObjectPart>)],
        outcomes: &mut [Result<PutOutcome, StoreError>],
    ) {
        let mut stored = HashSet::new();
        stored
            .extend(objects.iter().zip(&*outcomes).filter(|(_, outcome)| is_stored(outcome)).map(|((key, _), _)| key));
        let exists =
            |at: &usize| matches!(outcomes[*at], Ok(PutOutcome::AlreadyExists)) && !stored.contains(&objects[*at].0);
        let mut unconfirmed: Vec<usize> = (0..objects.len()).filter(exists).collect();
        for pause in OTHER_WRITE_PAUSES_MS.map(Duration::from_millis) {
            if unconfirmed.is_empty() {
                return;
            }
            self.inner.env.sleep(pause).await;
            let looked_up: Vec<ObjectKey> = unconfirmed.iter().map(|at| objects[*at].0.clone()).collect();
            let found = match self.batch_stat(&looked_up).await {
                Ok(found) => found,
                Err(error) => vec![Err(error); looked_up.len()],
            };
            for (at, found) in std::mem::take(&mut unconfirmed).into_iter().zip(found) {
                match found {
                    Ok(_) => {}
                    Err(StoreError::Refused { code: ErrorCode::REPLICA_IS_NOT_READY, .. }) => unconfirmed.push(at),
                    // The object may have been removed in the meantime.
                    Err(error) => outcomes[at] = Err(error),
                }
            }
        }
        for at in unconfirmed {
            outcomes[at] = Err(StoreError::OtherWrite { key: objects[at].0.clone() });
        }
    }
}

fn is_stored(outcome: &Result<PutOutcome, StoreError>) -> bool {
    matches!(outcome, Ok(PutOutcome::Stored { .. }))
}
