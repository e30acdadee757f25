//! State kept for a remote segment: its descriptor, the connections to it, and whether its owner is
//! up.
//!
//! Everything here blocks, and runs on the thread that waits for a batch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::breaker::{Breaker, BreakerDecision};
use crate::counters::FlowMeter;
use crate::directory::SegmentDirectory;
use crate::local::{LocalPeer, TransferEra};
use crate::shared_memory::{SharedMemoryPeer, SharedMemorySettings};
use crate::transport::{ControlPlane, DataPeer, DataTransport, FaultClass, TransferFault};
use crate::types::{BatchRules, Deadline, Op, OpKind, WriteRetry};
use crate::{MonoClock, PeerCounters, TransferError, TransferSettings, TransferStep};
use mcctl_base::Mono;
use mcctl_wire::json::SegmentDescriptor;

/// Timeout for finding a segment.
const FIND_LIMIT: Duration = Duration::from_secs(6);
/// Timeout for probing a peer that is down. No caller waits that long.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// How long a caller waits for a probe in flight: long enough for a nearby live peer, short enough
/// to be negligible.
const PROBE_PATIENCE: Duration = Duration::from_millis(20);
/// A descriptor younger than this is not fetched again after a rejected request.
const REFRESH_AGE_MIN: Duration = Duration::from_secs(1);

/// State shared by all of an engine's remote segments.
pub(super) struct RemoteContext {
    pub(super) directory: Arc<dyn SegmentDirectory>,
    pub(super) transport: Arc<dyn DataTransport>,
    pub(super) clock: MonoClock,
    pub(super) control: Arc<dyn ControlPlane>,
    pub(super) descriptor_age_max: Option<Duration>,
    pub(super) stopped: AtomicBool,
    pub(super) issued: FlowMeter,
    pub(super) local: FlowMeter,
    pub(super) eras: Arc<TransferEra>,
    pub(super) shared_memory: SharedMemorySettings,
}

impl RemoteContext {
    pub(super) fn new(
        directory: Arc<dyn SegmentDirectory>,
        transport: Arc<dyn DataTransport>,
        clock: MonoClock,
        control: Arc<dyn ControlPlane>,
        settings: &TransferSettings,
        eras: Arc<TransferEra>,
    ) -> RemoteContext {
        RemoteContext {
            directory,
            transport,
            clock,
            control,
            descriptor_age_max: settings.descriptor_age_max,
            stopped: AtomicBool::new(false),
            issued: FlowMeter::default(),
            local: FlowMeter::default(),
            eras,
            shared_memory: settings.shared_memory.clone(),
        }
    }
}

/// A peer's segment or this process's own, with its state and connections.
pub(super) struct RemoteSegment {
    name: String,
    context: Arc<RemoteContext>,
    own: Option<LocalPeer>,
    state: Mutex<RemoteState>,
    /// Signals that a fetch or a probe has ended.
    settled: Condvar,
    meter: FlowMeter,
    /// The part of `meter` that moved through shared memory.
    shared: FlowMeter,
}

#[derive(Default)]
struct RemoteState {
    known: Option<ResolvedPeer>,
    breaker: Breaker,
    first_error: String,
    fetching: bool,
}

/// A segment's descriptor and the peer that it describes.
#[derive(Clone)]
struct ResolvedPeer {
    descriptor: Arc<SegmentDescriptor>,
    peer: Arc<dyn DataPeer>,
    fetched: Mono,
}

impl RemoteSegment {
    /// `own` is set if the segment belongs to this process.
    pub(super) fn new(name: String, context: Arc<RemoteContext>, own: Option<LocalPeer>) -> Arc<RemoteSegment> {
        Arc::new(RemoteSegment {
            name,
            context,
            own,
            state: Mutex::default(),
            settled: Condvar::new(),
            meter: FlowMeter::default(),
            shared: FlowMeter::default(),
        })
    }

    /// Returns the counters for requests issued to the segment.
    pub(super) fn counters(&self) -> PeerCounters {
        let state = self.state();
        PeerCounters {
            segment: self.name.clone(),
            transport: self.transport_of(&state),
            flow: self.meter.flow(),
            shared: self.shared.flow(),
            down: state.breaker.is_open(),
        }
    }

    /// Returns the transport over which the segment is reached.
    pub(super) fn transport(&self) -> &'static str {
        self.transport_of(&self.state())
    }

    fn transport_of(&self, state: &RemoteState) -> &'static str {
        let of_peer = || state.known.as_ref().and_then(|known| known.peer.transport());
        match &self.own {
            Some(_) => "memory",
            None => of_peer().unwrap_or_else(|| self.context.transport.protocol()),
        }
    }

    /// Returns the descriptor. Fetches it if it is not cached.
    pub(super) fn describe(self: &Arc<Self>, deadline: Deadline) -> Result<Arc<SegmentDescriptor>, TransferError> {
        self.resolve(deadline).map(|(known, _)| known.descriptor)
    }

    /// Drops the cached state, including idle connections.
    pub(super) fn forget(&self) {
        if let Some(known) = self.state().known.take() {
            known.peer.forget();
        }
    }

    /// Returns the state to which operations that are submitted now are bound.
    pub(super) fn submission(&self) -> Submission {
        let known = || self.state().known.as_ref().map(|known| Arc::clone(&known.peer));
        let peer = if self.own.is_some() { None } else { known() };
        Submission { era: self.context.eras.current(), bound: peer.and_then(DataPeer::bound) }
    }

    /// Runs `ops` until they complete or their deadline passes. Returns their results in the order
    /// of `ops`.
    pub(super) fn transfer(
        self: &Arc<Self>,
        ops: Vec<Op>,
        rules: BatchRules,
        submission: &Submission,
    ) -> Vec<Result<(), TransferError>> {
        if self.context.stopped.load(Ordering::Relaxed) {
            return vec![Err(TransferError::Stopped); ops.len()];
        }
        if let Some(own) = &self.own {
            let own: Arc<dyn DataPeer> = own.in_era(submission.era);
            let (results, _) = self.run_once(&own, ops, rules, &self.context.local);
            return results.into_iter().map(|r| r.map_err(|failed| failed.1.error)).collect();
        }
        let (known, fresh) = match self.resolve(rules.deadline) {
            Ok(found) => found,
            Err(error) => return vec![Err(error); ops.len()],
        };
        let peer = submission.bound.as_ref().unwrap_or(&known.peer);
        let (mut results, faults) = self.run_once(peer, ops, rules, &self.context.issued);
        if faults > 0 {
            if !submission.has_ended() {
                self.retry_failed(&known, fresh, &mut results, rules, submission);
            }
            if submission.has_ended() {
                end_failed(&self.name, &mut results);
            }
            self.record_failures(&known, &results);
        }
        results.into_iter().map(|r| r.map_err(|failed| failed.1.error)).collect()
    }

    /// Runs `ops` once. Failed operations are returned with their fault.
    fn run_once(
        &self,
        peer: &Arc<dyn DataPeer>,
        ops: Vec<Op>,
        rules: BatchRules,
        total: &FlowMeter,
    ) -> (Vec<OpAttempt>, usize) {
        let done = Arc::clone(peer).submit(ops, rules).wait();
        let mut reads = 0;
        let mut read = 0;
        let mut writes = 0;
        let mut written = 0;
        let mut faults = 0;
        let mut shared_reads = 0;
        let mut shared_read = 0;
        let mut shared_writes = 0;
        let mut shared_written = 0;
        let results = done.into_iter().map(|done| {
            let bytes = done.op.local.len() as u64;
            if done.shared && done.result.is_ok() {
                match done.op.kind {
                    OpKind::Read => (shared_reads, shared_read) = (shared_reads + 1, shared_read + bytes),
                    OpKind::Write => (shared_writes, shared_written) = (shared_writes + 1, shared_written + bytes),
                }
            }
            match (done.result, done.op.kind) {
                (Ok(()), OpKind::Read) => {
                    reads += 1;
                    read += bytes;
                    Ok(())
                }
                (Ok(()), OpKind::Write) => {
                    writes += 1;
                    written += bytes;
                    Ok(())
                }
                (Err(fault), _) => {
                    faults += 1;
                    Err(Box::new((done.op, fault)))
                }
            }
        });
        let results = results.collect();
        for meter in [&self.meter, total] {
            meter.read(reads, read);
            meter.wrote(writes, written);
        }
        self.shared.read(shared_reads, shared_read);
        self.shared.wrote(shared_writes, shared_written);
        (results, faults)
    }

    /// Retries failed operations that may succeed with a newer descriptor or a new connection: the
    /// peer may have restarted since the descriptor was fetched.
    fn retry_failed(
        self: &Arc<Self>,
        known: &ResolvedPeer,
        fresh: bool,
        results: &mut [OpAttempt],
        rules: BatchRules,
        submission: &Submission,
    ) {
        let deadline = rules.deadline;
        let now = (self.context.clock)();
        let stale = |fault: &TransferFault| fault.class == FaultClass::Stale;
        let elsewhere = |fault: &TransferFault| match fault.class {
            FaultClass::Gone => !fresh,
            FaultClass::Refused => !fresh && now.since(known.fetched) >= REFRESH_AGE_MIN,
            _ => false,
        };
        let faults = || results.iter().filter_map(|r| r.as_ref().err().map(|failed| &failed.1));
        if !faults().any(|f| stale(f) || elsewhere(f)) || now >= deadline.until {
            return;
        }
        let Ok(newer) = self.refresh(deadline) else { return };
        // A retry through the bound peer checks this again.
        if submission.has_ended() {
            return;
        }
        let moved = !Arc::ptr_eq(&newer.peer, &known.peer);
        let peer = submission.bound.as_ref().filter(|_| !moved).unwrap_or(&newer.peer);
        let mut again = Vec::new();
        for (index, result) in results.iter().enumerate() {
            if let Err(failed) = result
                && (stale(&failed.1) || (moved && elsewhere(&failed.1)))
                && (rules.may_send_again(failed.0.kind) || !failed.1.error.may_still_land())
            {
                again.push((index, failed.0.clone()));
            }
        }
        if again.is_empty() {
            return;
        }
        tracing::debug!(segment = %self.name, operations = again.len(), moved, "retrying with a new connection");
        let (indices, ops): (Vec<usize>, Vec<Op>) = again.into_iter().unzip();
        let (outcomes, _) = self.run_once(peer, ops, rules, &self.context.issued);
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            let first = std::mem::replace(&mut results[index], outcome);
            if let (Err(failed), Err(first)) = (&mut results[index], first) {
                failed.1 = failed.1.clone().after(Some(first.1));
            }
        }
    }

    /// Counts failures, and opens the breaker if the peer caused them.
    fn record_failures(&self, known: &ResolvedPeer, results: &[OpAttempt]) {
        let faults: Vec<&TransferFault> =
            results.iter().filter_map(|r| r.as_ref().err().map(|failed| &failed.1)).collect();
        for meter in [&self.meter, &self.context.issued] {
            meter.failed(faults.len() as u64);
        }
        let blame = |f: &&&TransferFault| matches!(f.class, FaultClass::Stale | FaultClass::Gone | FaultClass::Hung);
        if let Some(fault) = faults.iter().find(blame) {
            known.peer.forget();
            self.failed(&fault.error);
        }
    }

    fn failed(&self, error: &TransferError) {
        let mut state = self.state();
        if !state.breaker.is_open() {
            tracing::info!(segment = %self.name, error = %error.chain(), "peer failed; probing it periodically");
            state.first_error = error.chain().to_string();
        }
        state.breaker.failed((self.context.clock)());
    }

    /// Returns the segment's descriptor and peer, and whether this call fetched them. Fetches them
    /// if they are not cached.
    fn resolve(self: &Arc<Self>, deadline: Deadline) -> Result<(ResolvedPeer, bool), TransferError> {
        let mut waited = Duration::ZERO;
        let mut state = self.state();
        loop {
            let now = (self.context.clock)();
            match state.breaker.verdict(now) {
                BreakerDecision::Ask => {
                    if let Some(known) = &state.known
                        && self.context.descriptor_age_max.is_none_or(|max| now.since(known.fetched) < max)
                    {
                        return Ok((known.clone(), false));
                    }
                    if !state.fetching {
                        drop(state);
                        return self.refresh(deadline).map(|known| (known, true));
                    }
                    if now >= deadline.until {
                        return Err(self.timeout(deadline.allowed));
                    }
                    let limit = deadline.left(now).min(PROBE_PATIENCE);
                    state = self.settled.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
                }
                BreakerDecision::Wait(again) => return Err(self.down(&state, again)),
                verdict @ (BreakerDecision::Probe | BreakerDecision::Probing) => {
                    if verdict == BreakerDecision::Probe {
                        self.send_probe(&mut state);
                    }
                    if waited >= PROBE_PATIENCE {
                        return Err(self.down(&state, state.breaker.pause()));
                    }
                    let step = PROBE_PATIENCE;
                    state = self.settled.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner).0;
                    waited += step;
                }
            }
        }
    }

    /// Fetches the descriptor. If another thread is already fetching it, waits for that thread's
    /// result.
    fn refresh(self: &Arc<Self>, deadline: Deadline) -> Result<ResolvedPeer, TransferError> {
        let mut state = self.state();
        let asked = (self.context.clock)();
        while state.fetching {
            let now = (self.context.clock)();
            if now >= deadline.until {
                return Err(self.timeout(deadline.allowed));
            }
            state = self.settled.wait_timeout(state, PROBE_PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(known) = state.known.as_ref().filter(|k| k.fetched >= asked) {
            return Ok(known.clone());
        }
        state.fetching = true;
        drop(state);
        let limit = deadline.left((self.context.clock)()).min(FIND_LIMIT);
        let found = self.context.control.find(&self.name, limit);
        let mut state = self.state();
        state.fetching = false;
        let known = found.and_then(|descriptor| self.install(&mut state, descriptor));
        drop(state);
        self.settled.notify_all();
        if let Err(error) = &known
            && error.is_outage()
        {
            self.failed(error);
        }
        known
    }

    /// Installs a new descriptor. The peer and its connections are kept if they still match it.
    fn install(&self, state: &mut RemoteState, descriptor: SegmentDescriptor) -> Result<ResolvedPeer, TransferError> {
        let transport = &self.context.transport;
        if descriptor.protocol != transport.protocol() {
            let segment = self.name.clone();
            let protocol = descriptor.protocol;
            return Err(TransferError::PeerProtocol { segment, protocol });
        }
        // A peer that was created before its node shared memory, or without it, does not notice the
        // announcement.
        let announces_same = |known: &ResolvedPeer| {
            !self.context.shared_memory.enabled || known.descriptor.shared_memory == descriptor.shared_memory
        };
        let peer = match &state.known {
            Some(known) if announces_same(known) && known.peer.reaches(&descriptor) => Arc::clone(&known.peer),
            _ => {
                tracing::debug!(segment = %self.name, transport = transport.protocol(), "peer (re)created from its descriptor");
                self.share_memory(&descriptor, transport.peer(&descriptor, &self.context.control)?)
            }
        };
        let fetched = (self.context.clock)();
        let known = ResolvedPeer { descriptor: Arc::new(descriptor), peer, fetched };
        state.known = Some(known.clone());
        Ok(known)
    }

    /// Returns `peer`, with shared memory in addition if its descriptor announces it and the
    /// configuration allows it.
    fn share_memory(&self, descriptor: &SegmentDescriptor, peer: Arc<dyn DataPeer>) -> Arc<dyn DataPeer> {
        let RemoteContext { shared_memory, clock, .. } = &*self.context;
        match &descriptor.shared_memory {
            Some(shared) if shared_memory.enabled => {
                let segment = descriptor.name.clone();
                Arc::new(SharedMemoryPeer::new(peer, shared.clone(), segment, shared_memory, Arc::clone(clock)))
            }
            _ => peer,
        }
    }

    /// Probes the peer on a separate thread.
    fn send_probe(self: &Arc<Self>, state: &mut RemoteState) {
        let remote = Arc::clone(self);
        let probe = move || {
            let deadline = Deadline::after((remote.context.clock)(), PROBE_LIMIT);
            let outcome = remote.context.control.find(&remote.name, PROBE_LIMIT).and_then(|descriptor| {
                let known = remote.install(&mut remote.state(), descriptor)?;
                known.peer.probe(&known.descriptor, deadline)
            });
            let mut state = remote.state();
            match outcome {
                Err(error) if error.is_outage() => {
                    state.first_error = error.chain().to_string();
                    state.breaker.failed((remote.context.clock)());
                }
                // Callers receive any other error from their own requests.
                Err(_) => {
                    state.known = None;
                    state.breaker.succeeded();
                }
                Ok(()) => {
                    tracing::info!(segment = %remote.name, "peer responds again");
                    state.breaker.succeeded();
                }
            }
            drop(state);
            remote.settled.notify_all();
        };
        if thread::Builder::new().name("te-probe".into()).spawn(probe).is_err() {
            state.breaker.failed((self.context.clock)());
        }
    }

    fn down(&self, state: &RemoteState, again: Duration) -> TransferError {
        TransferError::Down { segment: self.name.clone(), again, first_error: state.first_error.clone() }
    }

    fn timeout(&self, limit: Duration) -> TransferError {
        TransferError::Timeout { peer: self.name.clone(), step: TransferStep::Handshake, limit }
    }

    fn state(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Call if the peer has ended its transfers. It may have closed connections to do so, which does
/// not mean that it is down.
fn end_failed(segment: &str, results: &mut [OpAttempt]) {
    for failed in results.iter_mut().filter_map(|result| result.as_mut().err()) {
        let (op, fault) = &mut **failed;
        if matches!(fault.class, FaultClass::Stale | FaultClass::Gone) {
            fault.class = FaultClass::Ended;
            if op.kind == OpKind::Read || !fault.error.may_still_land() {
                fault.error = TransferError::Ended { segment: segment.to_owned() };
            }
        }
    }
}

/// The state of both sides when operations were submitted. They may run later, and must not be
/// carried into another state.
pub(super) struct Submission {
    /// This process's era, for operations on its own segment.
    era: u64,
    /// The peer, if the end of its transfers can be observed.
    bound: Option<Arc<dyn DataPeer>>,
}

impl Submission {
    fn has_ended(&self) -> bool {
        self.bound.as_ref().is_some_and(|peer| peer.has_ended())
    }
}

/// The result of one operation. A failed operation is returned with its fault.
type OpAttempt = Result<(), Box<(Op, TransferFault)>>;

/// A submitted batch. With TCP, nothing happens until a thread waits for the batch, because that
/// thread does the work.
#[must_use = "a batch may never run unless it is waited for"]
pub struct PendingTransfer {
    remote: Result<(Arc<RemoteSegment>, Submission), TransferError>,
    ops: Vec<Op>,
    rules: BatchRules,
}

impl PendingTransfer {
    /// Binds `ops` to the current state of `remote`.
    pub(super) fn new(
        remote: Result<Arc<RemoteSegment>, TransferError>,
        ops: Vec<Op>,
        rules: BatchRules,
    ) -> PendingTransfer {
        let remote = remote.map(|remote| {
            let submission = remote.submission();
            (remote, submission)
        });
        PendingTransfer { remote, ops, rules }
    }

    /// Sets whether writes may be sent again.
    pub fn write_retry(mut self, write_retry: WriteRetry) -> PendingTransfer {
        self.rules.write_retry = write_retry;
        self
    }

    /// Sets whether the thread that waits polls for a response before it sleeps.
    pub fn busy_wait(mut self, busy_wait: bool) -> PendingTransfer {
        self.rules.busy_wait = busy_wait;
        self
    }

    /// Blocks until every operation has ended, then returns the results in submission order. No
    /// byte moves after that. In async code, use [`finish`](PendingTransfer::finish).
    pub fn wait(self) -> Vec<Result<(), TransferError>> {
        match self.remote {
            Ok((remote, submission)) => remote.transfer(self.ops, self.rules, &submission),
            Err(error) => vec![Err(error); self.ops.len()],
        }
    }

    /// Waits on a blocking thread. Dropping the future does not stop the batch.
    pub async fn finish(self) -> Vec<Result<(), TransferError>> {
        let operations = self.ops.len();
        let done = tokio::task::spawn_blocking(move || self.wait()).await;
        done.unwrap_or_else(|_| vec![Err(TransferError::Stopped); operations])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RemoteAddr;
    use mcctl_sys::Memory;

    #[test]
    fn connections_closed_by_the_end_of_transfers_are_not_an_outage() {
        let failed = |kind, step, class| {
            let op = Op { kind, local: Arc::new(Memory::from_vec(vec![0])).whole(), remote: RemoteAddr(1) };
            let source = Arc::new(std::io::ErrorKind::ConnectionReset.into());
            Err(Box::new((
                op,
                TransferFault { error: TransferError::Lost { peer: "a:1".into(), step, source }, class },
            )))
        };
        let mut results: Vec<OpAttempt> = vec![
            Ok(()),
            failed(OpKind::Read, TransferStep::Status, FaultClass::Stale),
            failed(OpKind::Write, TransferStep::Connect, FaultClass::Gone),
            failed(OpKind::Write, TransferStep::Status, FaultClass::Stale),
            failed(OpKind::Read, TransferStep::Body, FaultClass::Late),
        ];
        end_failed("node", &mut results);
        let found: Vec<_> =
            results.iter().flat_map(|r| r.as_ref().err()).map(|f| (f.1.class, f.1.error.is_ended())).collect();
        let ended = FaultClass::Ended;
        // The third one may still arrive, so its error must say so.
        assert_eq!(found, [(ended, true), (ended, true), (ended, false), (FaultClass::Late, false)]);
    }
}
