//! A segment as we see it from here: its descriptor, the way to it, and whether its owner is alive.
//!
//! Everything here blocks; it runs on the thread that waits for a batch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::transfer::breaker::{Breaker, Verdict};
use crate::engine::transfer::counters::Meter;
use crate::engine::transfer::directory::Directory;
use crate::engine::transfer::local::LocalPeer;
use crate::engine::transfer::transport::{Calls, Deadline, Fault, Meaning, Op, OpKind, Peer, Transport};
use crate::engine::transfer::{Clock, PeerCounters, Step, TransferError};
use crate::engine::wire::json::SegmentDescriptor;

/// How long finding a segment may take.
const FIND_LIMIT: Duration = Duration::from_secs(6);
/// How long a probe of a dead peer may take. Nobody waits for it.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// How long a caller waits for a probe that is under way: long enough for a live peer nearby, short enough not to matter.
const PROBE_PATIENCE: Duration = Duration::from_millis(20);
/// A descriptor that is younger is not fetched again because of a refusal.
const REFRESH_AGE_MIN: Duration = Duration::from_secs(1);

/// What all remotes of an engine share.
pub(super) struct Context {
    pub(super) directory: Arc<dyn Directory>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Clock,
    pub(super) calls: Arc<dyn Calls>,
    pub(super) descriptor_age_max: Option<Duration>,
    pub(super) stopped: AtomicBool,
    pub(super) issued: Meter,
    pub(super) local: Meter,
}

/// A segment.
pub(super) struct Remote {
    name: String,
    context: Arc<Context>,
    own: Option<Arc<LocalPeer>>,
    state: Mutex<State>,
    /// A fetch or a probe is over.
    settled: Condvar,
    meter: Meter,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    breaker: Breaker,
    because: String,
    fetching: bool,
}

/// What we know of a segment.
#[derive(Clone)]
struct Known {
    descriptor: Arc<SegmentDescriptor>,
    peer: Arc<dyn Peer>,
    fetched: Mono,
}

impl Remote {
    /// `own` is given when the segment is this process's.
    pub(super) fn new(name: String, context: Arc<Context>, own: Option<Arc<LocalPeer>>) -> Arc<Remote> {
        Arc::new(Remote {
            name,
            context,
            own,
            state: Mutex::default(),
            settled: Condvar::new(),
            meter: Meter::default(),
        })
    }

    /// What was issued to it.
    pub(super) fn counters(&self) -> PeerCounters {
        let over = if self.own.is_some() { "memory" } else { self.context.transport.protocol() };
        PeerCounters { segment: self.name.clone(), over, flow: self.meter.flow(), down: self.state().breaker.is_open() }
    }

    /// The descriptor; fetched if it is not known.
    pub(super) fn describe(self: &Arc<Self>, deadline: Deadline) -> Result<Arc<SegmentDescriptor>, TransferError> {
        self.place(deadline).map(|(known, _)| known.descriptor)
    }

    /// Forget what is known, lanes included.
    pub(super) fn forget(&self) {
        if let Some(known) = self.state().known.take() {
            known.peer.forget();
        }
    }

    /// Carry out `ops`.
    pub(super) fn transfer(self: &Arc<Self>, ops: Vec<Op>, deadline: Deadline) -> Vec<Result<(), TransferError>> {
        if self.context.stopped.load(Ordering::Relaxed) {
            return vec![Err(TransferError::Stopped); ops.len()];
        }
        if let Some(own) = &self.own {
            let own: Arc<dyn Peer> = Arc::clone(own) as _;
            let (results, _) = self.round(&own, ops, deadline, &self.context.local);
            return results.into_iter().map(|r| r.map_err(|failed| failed.1.error)).collect();
        }
        let (known, fresh) = match self.place(deadline) {
            Ok(found) => found,
            Err(error) => return vec![Err(error); ops.len()],
        };
        let (mut results, faults) = self.round(&known.peer, ops, deadline, &self.context.issued);
        if faults > 0 {
            self.second_chance(&known, fresh, &mut results, deadline);
            self.judge(&known, &results);
        }
        results.into_iter().map(|r| r.map_err(|failed| failed.1.error)).collect()
    }

    /// One go at `ops`. Those that failed come back with their fault.
    fn round(&self, peer: &Arc<dyn Peer>, ops: Vec<Op>, deadline: Deadline, total: &Meter) -> (Vec<Attempt>, usize) {
        let done = Arc::clone(peer).submit(ops, deadline).wait();
        let (mut reads, mut read, mut writes, mut written, mut faults) = (0, 0, 0, 0, 0);
        let results = done.into_iter().map(|done| {
            let bytes = done.op.local.len() as u64;
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
        (results, faults)
    }

    /// Try once more what failed in a way that a newer descriptor or a new connection may mend: the peer may have restarted since
    /// we last looked.
    fn second_chance(self: &Arc<Self>, known: &Known, fresh: bool, results: &mut [Attempt], deadline: Deadline) {
        let now = (self.context.clock)();
        let stale = |fault: &Fault| fault.meaning == Meaning::Stale;
        let elsewhere = |fault: &Fault| match fault.meaning {
            Meaning::Gone => !fresh,
            Meaning::Refused => !fresh && now.since(known.fetched) >= REFRESH_AGE_MIN,
            _ => false,
        };
        let faults = || results.iter().filter_map(|r| r.as_ref().err().map(|failed| &failed.1));
        if !faults().any(|f| stale(f) || elsewhere(f)) || now >= deadline.until {
            return;
        }
        let Ok(newer) = self.refresh(deadline) else { return };
        let moved = !Arc::ptr_eq(&newer.peer, &known.peer);
        let mut again = Vec::new();
        for (index, result) in results.iter().enumerate() {
            if let Err(failed) = result
                && (stale(&failed.1) || (moved && elsewhere(&failed.1)))
            {
                again.push((index, failed.0.clone()));
            }
        }
        if again.is_empty() {
            return;
        }
        tracing::debug!(segment = %self.name, operations = again.len(), moved, "trying again with a new connection");
        let (indices, ops): (Vec<usize>, Vec<Op>) = again.into_iter().unzip();
        let (outcomes, _) = self.round(&newer.peer, ops, deadline, &self.context.issued);
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            let first = std::mem::replace(&mut results[index], outcome);
            if let (Err(failed), Err(first)) = (&mut results[index], first) {
                failed.1 = failed.1.clone().after(Some(first.1));
            }
        }
    }

    /// Count what failed, and open the breaker when the peer is to blame.
    fn judge(&self, known: &Known, results: &[Attempt]) {
        let faults: Vec<&Fault> = results.iter().filter_map(|r| r.as_ref().err().map(|failed| &failed.1)).collect();
        for meter in [&self.meter, &self.context.issued] {
            meter.failed(faults.len() as u64);
        }
        let blame = |f: &&&Fault| matches!(f.meaning, Meaning::Stale | Meaning::Gone | Meaning::Hung);
        if let Some(fault) = faults.iter().find(blame) {
            known.peer.forget();
            self.failed(&fault.error);
        }
    }

    fn failed(&self, error: &TransferError) {
        let mut state = self.state();
        if !state.breaker.is_open() {
            tracing::info!(segment = %self.name, error = %error.chain(), "peer failed; asking it again from time to time");
            state.because = error.chain().to_string();
        }
        state.breaker.failed((self.context.clock)());
    }

    /// What is known of the segment, fetched if need be; and whether it was fetched just now.
    fn place(self: &Arc<Self>, deadline: Deadline) -> Result<(Known, bool), TransferError> {
        let mut waited = Duration::ZERO;
        let mut state = self.state();
        loop {
            let now = (self.context.clock)();
            match state.breaker.verdict(now) {
                Verdict::Ask => {
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
                Verdict::Wait(again) => return Err(self.down(&state, again)),
                verdict @ (Verdict::Probe | Verdict::Probing) => {
                    if verdict == Verdict::Probe {
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

    /// Fetch the descriptor. When somebody else is at it, theirs will do.
    fn refresh(self: &Arc<Self>, deadline: Deadline) -> Result<Known, TransferError> {
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
        let found = self.context.calls.find(&self.name, limit);
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

    /// Take over a new descriptor. The way to the peer, with its lanes, stays if it leads to the same place.
    fn install(&self, state: &mut State, descriptor: SegmentDescriptor) -> Result<Known, TransferError> {
        let transport = &self.context.transport;
        if descriptor.protocol != transport.protocol() {
            let (segment, protocol) = (self.name.clone(), descriptor.protocol);
            return Err(TransferError::PeerProtocol { segment, protocol });
        }
        let peer = match &state.known {
            Some(known) if known.peer.reaches(&descriptor) => Arc::clone(&known.peer),
            _ => {
                tracing::debug!(segment = %self.name, over = transport.protocol(), "a new way to a peer");
                transport.peer(&descriptor, &self.context.calls)?
            }
        };
        let fetched = (self.context.clock)();
        let known = Known { descriptor: Arc::new(descriptor), peer, fetched };
        state.known = Some(known.clone());
        Ok(known)
    }

    /// See, on a thread of its own, whether the peer is back.
    fn send_probe(self: &Arc<Self>, state: &mut State) {
        let remote = Arc::clone(self);
        let probe = move || {
            let deadline = Deadline::after((remote.context.clock)(), PROBE_LIMIT);
            let outcome = remote.context.calls.find(&remote.name, PROBE_LIMIT).and_then(|descriptor| {
                let known = remote.install(&mut remote.state(), descriptor)?;
                known.peer.probe(&known.descriptor, deadline)
            });
            let mut state = remote.state();
            match outcome {
                Err(error) if error.is_outage() => {
                    state.because = error.chain().to_string();
                    state.breaker.failed((remote.context.clock)());
                }
                // Whatever else is wrong, callers had better hear it themselves.
                Err(_) => {
                    state.known = None;
                    state.breaker.succeeded();
                }
                Ok(()) => {
                    tracing::info!(segment = %remote.name, "peer answers again");
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

    fn down(&self, state: &State, again: Duration) -> TransferError {
        TransferError::Down { segment: self.name.clone(), again, because: state.because.clone() }
    }

    fn timeout(&self, limit: Duration) -> TransferError {
        TransferError::Timeout { peer: self.name.clone(), step: Step::Handshake, limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How one operation went; what failed comes back with its fault.
type Attempt = Result<(), Box<(Op, Fault)>>;

/// A batch under way. Nothing may happen before it is waited for: with TCP, who waits does the work.
#[must_use = "a batch that nobody waits for may never be carried out"]
pub struct Pending {
    pub(super) remote: Result<Arc<Remote>, TransferError>,
    pub(super) ops: Vec<Op>,
    pub(super) deadline: Deadline,
}

impl Pending {
    /// Block until every operation is over: how each went, in the order of submission. No byte of theirs moves after this. Not
    /// for async code: use [`finish`](Pending::finish) there.
    pub fn wait(self) -> Vec<Result<(), TransferError>> {
        match self.remote {
            Ok(remote) => remote.transfer(self.ops, self.deadline),
            Err(error) => vec![Err(error); self.ops.len()],
        }
    }

    /// The same for async code: the work is done by a thread for blocking work. Dropping the future does not stop it.
    pub async fn finish(self) -> Vec<Result<(), TransferError>> {
        let operations = self.ops.len();
        let done = tokio::task::spawn_blocking(move || self.wait()).await;
        done.unwrap_or_else(|_| vec![Err(TransferError::Stopped); operations])
    }
}
