//! Sends a probe object through each node: put with a preferred segment, get, compare, remove. Each
//! step is timed.
//!
//! Keys begin with `mcctl-doctor-` and a random number. Each object is force-removed, even after a
//! failure. Keys that could not be removed are reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::chain;
use crate::cluster::facts::{
    ListedSegment, ObjectProbe, ObjectProbeFailure, ParallelRead, ProbeCounts, ProbeFailureKind, ProbeResults,
    ProbeTiming,
};
use crate::cluster::headroom::Headroom;
use mcctl_base::{ErrorCode, Mono, ObjectKey};
use mcctl_net::rpc::CallError;
use mcctl_store::{PutOutcome, StoreClient, StoreError, payload};
use mcctl_sys::env::Env;
use mcctl_sys::memory::{Memory, Slice};
use mcctl_wire::types::{ReplicaLocation, ReplicateConfig};

/// Maximum number of segments that are probed.
const PROBES_MAX: usize = 64;
/// Time budget for all probes. A step in progress is not interrupted.
const BUDGET: Duration = Duration::from_secs(30);
/// Number of objects for the comparison of sequential and parallel reads.
const PARALLEL_READS: u32 = 4;

/// Probes each segment of `segments`, or one that the master chooses if the list is empty. Objects
/// that do not fit into `headroom` are not put. Once `stop` is set, the probe in progress is the
/// last.
pub(super) async fn probes<E: Env>(
    env: &E,
    client: &StoreClient<E>,
    segments: &[&ListedSegment],
    bytes: usize,
    headroom: &Headroom,
    stop: &AtomicBool,
) -> ProbeResults {
    let anywhere = ListedSegment::default();
    let targets: Vec<&ListedSegment> = if segments.is_empty() { vec![&anywhere] } else { segments.to_vec() };
    let began = env.now();
    let prefix = format!("mcctl-doctor-{:016x}-", env.rng());
    let mut prober = Prober {
        env,
        client,
        prefix,
        next: 0,
        value: Arc::new(Memory::from_vec(payload(env.rng(), bytes))).whole(),
        headroom: Arc::new(Memory::from_vec(vec![0; bytes])).whole(),
        done: ProbeCounts::default(),
        left: Vec::new(),
    };
    let mut made = Vec::new();
    let mut skipped = Vec::new();
    let size = bytes as u64;
    let mut first = None;
    for (index, segment) in targets.into_iter().enumerate() {
        let refused = headroom.refuses(segment, size);
        let why = match refused {
            Some(why) => why,
            None if stop.load(Ordering::Relaxed) => "stopped by a signal".to_owned(),
            None if index >= PROBES_MAX => format!("only {PROBES_MAX} nodes are probed"),
            None if env.now().since(began) > BUDGET => format!("the time budget of {BUDGET:?} is exhausted"),
            None => {
                let end = prober.probe_judge(&segment.name).await;
                let is_release = matches!(&end, Err(failure) if failure.kind == ProbeFailureKind::Release || failure.kind == ProbeFailureKind::Master);
                first = first.or_else(|| end.is_ok().then_some(segment));
                made.push(ObjectProbe { segment: segment.name.clone(), endpoint: segment.endpoint.clone(), end });
                if is_release {
                    // The fault is the master's, so probing the other nodes would fail as well.
                    break;
                }
                continue;
            }
        };
        skipped.push((segment.name.clone(), why));
    }
    let four = size.saturating_mul(u64::from(PARALLEL_READS));
    let parallel_read = match first.filter(|segment| headroom.refuses(segment, four).is_none()) {
        Some(segment) if !stop.load(Ordering::Relaxed) => prober.parallel_read(&segment.name).await,
        _ => None,
    };
    let Prober { done, left, prefix, .. } = prober;
    let left = if left.is_empty() { left } else { retry_removal(client, &prefix, left).await };
    let took = env.now().since(began);
    ProbeResults { none: None, bytes: bytes as u64, made, skipped, left, done, took, parallel_read }
}

struct Prober<'a, E: Env> {
    env: &'a E,
    client: &'a StoreClient<E>,
    prefix: String,
    next: u32,
    value: Slice,
    headroom: Slice,
    done: ProbeCounts,
    left: Vec<String>,
}

impl<E: Env> Prober<'_, E> {
    fn key(&mut self) -> ObjectKey {
        self.next += 1;
        ObjectKey::from(format!("{}{}", self.prefix, self.next).as_str())
    }

    async fn probe_judge(&mut self, segment: &str) -> Result<ProbeTiming, ObjectProbeFailure> {
        let key = self.key();
        let moved = self.round_trip_object(&key, segment).await;
        self.remove(&key, moved.is_ok()).await;
        moved
    }

    async fn round_trip_object(&mut self, key: &ObjectKey, segment: &str) -> Result<ProbeTiming, ObjectProbeFailure> {
        let env = self.env.clone();
        let failed = |step: &'static str, began: Mono| {
            let env = env.clone();
            move |error: StoreError| ObjectProbeFailure {
                step,
                kind: kind(&error),
                message: chain(&error),
                after: env.now().since(began),
            }
        };
        let began = self.env.now();
        let put = self.client.put(key, self.value.clone(), &towards(segment)).await.map_err(failed("put", began))?;
        let time = self.env.now().since(began);
        if put == PutOutcome::AlreadyExists {
            let message = format!("the random key {key} already exists");
            return Err(ObjectProbeFailure { step: "put", kind: ProbeFailureKind::Other, message, after: time });
        }
        self.done.puts += 1;
        let asked = self.env.now();
        let stat = self.client.stat(key).await.map_err(failed("get", asked))?;
        self.done.lookups += 1;
        let stored_at = stat.found.replicas.iter().find_map(|replica| match &replica.location {
            ReplicaLocation::Memory(buffer) => Some(buffer.transport_endpoint.to_string()),
            _ => None,
        });
        let began = self.env.now();
        let read = self.client.get_into(key, self.headroom.clone()).await.map_err(failed("get", began))?;
        let get = self.env.now().since(began);
        self.done.lookups += 1;
        if read != self.value.len() || self.headroom.to_vec() != self.value.to_vec() {
            let message = format!("read {read} of {} bytes, and the data differs", self.value.len());
            return Err(ObjectProbeFailure { step: "get", kind: ProbeFailureKind::Bytes, message, after: get });
        }
        Ok(ProbeTiming { put: time, get, stored_at: stored_at.unwrap_or_default() })
    }

    /// Removes by force, because the object has a read lease.
    async fn remove(&mut self, key: &ObjectKey, is_there: bool) {
        match self.client.remove(key, true).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() && !is_there => {}
            Err(error) => self.left.push(format!("{key} ({})", chain(&error))),
        }
    }

    /// Times reading the same objects sequentially and in parallel.
    async fn parallel_read(&mut self, segment: &str) -> Option<ParallelRead> {
        let mut keys = Vec::new();
        for _ in 0..PARALLEL_READS {
            let key = self.key();
            let put = self.client.put(&key, self.value.clone(), &towards(segment)).await;
            self.done.puts += u64::from(put.is_ok());
            keys.push(key);
            if put.is_err() {
                break;
            }
        }
        let measured = if keys.len() == PARALLEL_READS as usize { self.read_twice(&keys).await } else { None };
        for key in keys {
            self.remove(&key, measured.is_some()).await;
        }
        measured
    }

    async fn read_twice(&mut self, keys: &[ObjectKey]) -> Option<ParallelRead> {
        let objects: Vec<(ObjectKey, Slice)> = keys
            .iter()
            .map(|key| (key.clone(), Arc::new(Memory::from_vec(vec![0; self.value.len()])).whole()))
            .collect();
        let began = self.env.now();
        for (key, headroom) in &objects {
            self.client.get_into(key, headroom.clone()).await.ok()?;
            self.done.lookups += 1;
        }
        let single = self.env.now().since(began);
        let began = self.env.now();
        let all = self.client.batch_get_into(&objects).await.ok()?;
        let together = self.env.now().since(began);
        self.done.lookups += all.len() as u64;
        let is_whole = all.iter().all(Result::is_ok);
        is_whole.then_some(ParallelRead { objects: PARALLEL_READS, bytes: self.value.len() as u64, single, together })
    }
}

fn towards(segment: &str) -> ReplicateConfig {
    ReplicateConfig { preferred_segment: segment.into(), ..ReplicateConfig::default() }
}

/// Retries removing all keys of this run in a single request. Returns the remaining keys if this
/// request fails as well.
async fn retry_removal<E: Env>(client: &StoreClient<E>, prefix: &str, left: Vec<String>) -> Vec<String> {
    match client.remove_by_regex(&format!("^{prefix}"), true).await {
        // An unfinished put cannot be removed by regular expression. The master discards it after a
        // timeout.
        Ok(removed) if usize::try_from(removed).is_ok_and(|removed| removed >= left.len()) => Vec::new(),
        _ => left,
    }
}

fn kind(error: &StoreError) -> ProbeFailureKind {
    match error {
        StoreError::Call(CallError::Remote { .. } | CallError::Decode(_)) | StoreError::Version { .. } => {
            ProbeFailureKind::Release
        }
        StoreError::Call(_) => ProbeFailureKind::Master,
        StoreError::Refused { code: ErrorCode::NO_AVAILABLE_HANDLE, .. } => ProbeFailureKind::NoRoom,
        StoreError::Transfer { .. } => ProbeFailureKind::Transfer,
        StoreError::Damaged { .. } | StoreError::WrongBuffer { .. } => ProbeFailureKind::Bytes,
        _ => ProbeFailureKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_base::HostPort;
    use mcctl_wire::Method;
    use mcctl_wire::frame::RpcErrc;

    #[test]
    fn rejected_arguments_mean_another_release_but_a_timeout_does_not() {
        let address = HostPort::new("m", 1);
        let refused = CallError::Remote {
            server: address.to_string(),
            method: Method::BatchPutStart,
            error: RpcErrc::INVALID_RPC_ARGUMENTS,
            message: String::new(),
        };
        assert_eq!(kind(&refused.into()), ProbeFailureKind::Release);
        let away = CallError::ConnectTimeout { address, limit: Duration::from_secs(1) };
        assert_eq!(kind(&away.into()), ProbeFailureKind::Master);
        let full = StoreError::Refused { what: "BatchPutStart", code: ErrorCode::NO_AVAILABLE_HANDLE };
        assert_eq!(kind(&full), ProbeFailureKind::NoRoom);
    }
}
