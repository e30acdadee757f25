//! An object through each node: put with a preferred segment, read back, compared, removed, each step timed.
//!
//! Keys begin with `mcctl-doctor-` and a number that nobody else draws; each is removed by force, also after a failure, and what
//! could not be removed is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::base::{ErrorCode, Mono, ObjectKey};
use crate::engine::doctor::chain;
use crate::engine::doctor::cluster::facts::{Done, Fall, FallKind, Journey, Journeys, Lanes, Moved, Segment};
use crate::engine::doctor::cluster::room::Room;
use crate::engine::env::Env;
use crate::engine::rpc::CallError;
use crate::engine::store::{PutOutcome, StoreClient, StoreError, payload};
use crate::engine::sys::memory::{Memory, Slice};
use crate::engine::wire::types::{ReplicaLocation, ReplicateConfig};

/// Segments that get an object.
const JOURNEYS_MAX: usize = 64;
/// What all journeys may take together; a step that has begun is not cut short by it.
const BUDGET: Duration = Duration::from_secs(30);
/// Objects that are read one by one and all at once.
const LANES: u32 = 4;

/// One journey per segment of `segments`, or a single one to wherever the master likes when the list is empty.
/// What does not fit into `room` is not put. `stop` ends them after the one that is on its way.
pub async fn journeys<E: Env>(
    env: &E,
    client: &StoreClient<E>,
    segments: &[&Segment],
    bytes: usize,
    room: &Room,
    stop: &AtomicBool,
) -> Journeys {
    let anywhere = Segment::default();
    let targets: Vec<&Segment> = if segments.is_empty() { vec![&anywhere] } else { segments.to_vec() };
    let began = env.now();
    let prefix = format!("mcctl-doctor-{:016x}-", env.rng());
    let mut traveller = Traveller {
        env,
        client,
        prefix,
        next: 0,
        value: Arc::new(Memory::from_vec(payload(env.rng(), bytes))).whole(),
        room: Arc::new(Memory::from_vec(vec![0; bytes])).whole(),
        done: Done::default(),
        left: Vec::new(),
    };
    let (mut made, mut skipped) = (Vec::new(), Vec::new());
    let size = bytes as u64;
    let mut first = None;
    for (index, segment) in targets.into_iter().enumerate() {
        let refused = room.refuses(segment, size);
        let why = match refused {
            Some(why) => why,
            None if stop.load(Ordering::Relaxed) => "it was stopped".to_owned(),
            None if index >= JOURNEYS_MAX => format!("{JOURNEYS_MAX} nodes got one"),
            None if env.now().since(began) > BUDGET => format!("the {BUDGET:?} for all of them were over"),
            None => {
                let end = traveller.travel(&segment.name).await;
                let is_release =
                    matches!(&end, Err(fall) if fall.kind == FallKind::Release || fall.kind == FallKind::Master);
                first = first.or_else(|| end.is_ok().then_some(segment));
                made.push(Journey { segment: segment.name.clone(), endpoint: segment.endpoint.clone(), end });
                if is_release {
                    // The master is at fault, and would be for every other node.
                    break;
                }
                continue;
            }
        };
        skipped.push((segment.name.clone(), why));
    }
    let four = size.saturating_mul(u64::from(LANES));
    let lanes = match first.filter(|segment| room.refuses(segment, four).is_none()) {
        Some(segment) if !stop.load(Ordering::Relaxed) => traveller.lanes(&segment.name).await,
        _ => None,
    };
    let Traveller { done, left, prefix, .. } = traveller;
    let left = if left.is_empty() { left } else { swept(client, &prefix, left).await };
    let took = env.now().since(began);
    Journeys { none: None, bytes: bytes as u64, made, skipped, left, done, took, lanes }
}

struct Traveller<'a, E: Env> {
    env: &'a E,
    client: &'a StoreClient<E>,
    prefix: String,
    next: u32,
    value: Slice,
    room: Slice,
    done: Done,
    left: Vec<String>,
}

impl<E: Env> Traveller<'_, E> {
    fn key(&mut self) -> ObjectKey {
        self.next += 1;
        ObjectKey::from(format!("{}{}", self.prefix, self.next).as_str())
    }

    async fn travel(&mut self, segment: &str) -> Result<Moved, Fall> {
        let key = self.key();
        let moved = self.there_and_back(&key, segment).await;
        self.remove(&key, moved.is_ok()).await;
        moved
    }

    async fn there_and_back(&mut self, key: &ObjectKey, segment: &str) -> Result<Moved, Fall> {
        let env = self.env.clone();
        let fell = |step: &'static str, began: Mono| {
            let env = env.clone();
            move |error: StoreError| Fall {
                step,
                kind: kind(&error),
                words: chain(&error),
                after: env.now().since(began),
            }
        };
        let began = self.env.now();
        let put = self.client.put(key, self.value.clone(), &towards(segment)).await.map_err(fell("put", began))?;
        let time = self.env.now().since(began);
        if put == PutOutcome::AlreadyExists {
            let words = format!("the key {key} is taken, which nobody else can have drawn");
            return Err(Fall { step: "put", kind: FallKind::Other, words, after: time });
        }
        self.done.puts += 1;
        let asked = self.env.now();
        let stat = self.client.stat(key).await.map_err(fell("get", asked))?;
        self.done.lookups += 1;
        let landed = stat.found.replicas.iter().find_map(|replica| match &replica.location {
            ReplicaLocation::Memory(buffer) => Some(buffer.transport_endpoint.to_string()),
            _ => None,
        });
        let began = self.env.now();
        let read = self.client.get_into(key, self.room.clone()).await.map_err(fell("get", began))?;
        let get = self.env.now().since(began);
        self.done.lookups += 1;
        if read != self.value.len() || self.room.to_vec() != self.value.to_vec() {
            let words = format!("{read} of {} bytes came back, and not the same ones", self.value.len());
            return Err(Fall { step: "get", kind: FallKind::Bytes, words, after: get });
        }
        Ok(Moved { put: time, get, landed: landed.unwrap_or_default() })
    }

    /// By force: what was read is under a lease.
    async fn remove(&mut self, key: &ObjectKey, is_there: bool) {
        match self.client.remove(key, true).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() && !is_there => {}
            Err(error) => self.left.push(format!("{key} ({})", chain(&error))),
        }
    }

    /// The same objects read one by one, and all at once.
    async fn lanes(&mut self, segment: &str) -> Option<Lanes> {
        let mut keys = Vec::new();
        for _ in 0..LANES {
            let key = self.key();
            let put = self.client.put(&key, self.value.clone(), &towards(segment)).await;
            self.done.puts += u64::from(put.is_ok());
            keys.push(key);
            if put.is_err() {
                break;
            }
        }
        let measured = if keys.len() == LANES as usize { self.read_twice(&keys).await } else { None };
        for key in keys {
            self.remove(&key, measured.is_some()).await;
        }
        measured
    }

    async fn read_twice(&mut self, keys: &[ObjectKey]) -> Option<Lanes> {
        let objects: Vec<(ObjectKey, Slice)> = keys
            .iter()
            .map(|key| (key.clone(), Arc::new(Memory::from_vec(vec![0; self.value.len()])).whole()))
            .collect();
        let began = self.env.now();
        for (key, room) in &objects {
            self.client.get_into(key, room.clone()).await.ok()?;
            self.done.lookups += 1;
        }
        let single = self.env.now().since(began);
        let began = self.env.now();
        let all = self.client.batch_get_into(&objects).await.ok()?;
        let together = self.env.now().since(began);
        self.done.lookups += all.len() as u64;
        let is_whole = all.iter().all(Result::is_ok);
        is_whole.then_some(Lanes { objects: LANES, bytes: self.value.len() as u64, single, together })
    }
}

fn towards(segment: &str) -> ReplicateConfig {
    ReplicateConfig { preferred_segment: segment.into(), ..ReplicateConfig::default() }
}

/// One more try, for all keys of this run at once; those that were left if that fails, too.
async fn swept<E: Env>(client: &StoreClient<E>, prefix: &str, left: Vec<String>) -> Vec<String> {
    match client.remove_by_regex(&format!("^{prefix}"), true).await {
        // An unfinished put is not found by any expression; the master forgets it.
        Ok(removed) if usize::try_from(removed).is_ok_and(|removed| removed >= left.len()) => Vec::new(),
        _ => left,
    }
}

fn kind(error: &StoreError) -> FallKind {
    match error {
        StoreError::Call(CallError::Remote { .. } | CallError::Decode(_)) | StoreError::Version { .. } => {
            FallKind::Release
        }
        StoreError::Call(_) => FallKind::Master,
        StoreError::Refused { code: ErrorCode::NO_AVAILABLE_HANDLE, .. } => FallKind::NoRoom,
        StoreError::Transfer { .. } => FallKind::Transfer,
        _ => FallKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::HostPort;
    use crate::engine::wire::Method;
    use crate::engine::wire::frame::RpcErrc;

    #[test]
    fn a_master_that_does_not_take_the_arguments_is_another_release_and_one_that_is_away_is_not() {
        let address = HostPort::new("m", 1);
        let refused = CallError::Remote {
            address: address.clone(),
            method: Method::BatchPutStart,
            error: RpcErrc::INVALID_RPC_ARGUMENTS,
            message: String::new(),
        };
        assert_eq!(kind(&refused.into()), FallKind::Release);
        let away = CallError::ConnectTimeout { address, limit: Duration::from_secs(1) };
        assert_eq!(kind(&away.into()), FallKind::Master);
        let full = StoreError::Refused { what: "BatchPutStart", code: ErrorCode::NO_AVAILABLE_HANDLE };
        assert_eq!(kind(&full), FallKind::NoRoom);
    }
}
