//! The local end of a connection between one of our devices and one of a peer's: its queue pairs,
//! its posted work requests, and its pending ones.
//!
//! In a chain of work requests, only the last one, every sixteenth one, and the last one of each
//! batch are signaled. A queue pair executes requests in order, so one completion also confirms all
//! requests before it. A failed request always generates a completion.
//!
//! An endpoint is used until one of its requests fails. Then it is retired: its queue pairs enter
//! the error state, posted requests are flushed, and the next request to the same peer creates a
//! new endpoint. A retired endpoint exists until the device has returned every request.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::device_fault::{Blame, DeviceStep};
use crate::rdma::batch::{Batch, WorkError, WorkRequest};
use crate::rdma::link::{self, EndpointLink};
use crate::rdma::nic::{FinishedWork, Nic, PortAddress};
use crate::types::OpKind;
use mcctl_base::Mono;
use mcctl_sys::verbs::{self, Direction, QueuePair, WorkCompletion, WorkRequestList};
use mcctl_wire::json::{ConnectionMessage, gid_text};

/// At least one in this many work requests is signaled.
const SIGNAL_EVERY: usize = 16;

/// The local end of a connection.
pub(super) struct Endpoint {
    path: String,
    /// Our address, as sent to the peer.
    address: PortAddress,
    state: Mutex<EndpointState>,
    /// Signals a change of the link's state.
    settled: Condvar,
}

pub(super) struct EndpointState {
    pub(super) link: EndpointLink,
    pub(super) qps: Vec<EndpointQp>,
    /// Whether requests may be posted.
    pub(super) open: bool,
    /// Why the endpoint is retired, if it is.
    pub(super) retired: Option<WorkError>,
    /// Whether a request has ever succeeded.
    moved: bool,
    pending: VecDeque<WorkRequest>,
    used: Mono,
    /// Index of the queue pair that the next post uses first.
    turn: usize,
    /// Reusable buffer for the next chain of work requests.
    chain: WorkRequestList<'static>,
}

/// A queue pair and the work requests posted on it.
pub(super) struct EndpointQp {
    pub(super) qp: QueuePair,
    /// Distinguishes this queue pair's completions from completions of an earlier queue pair with
    /// the same number.
    generation: u32,
    /// Sequence number of the request at the front of `posted`.
    first: u32,
    posted: VecDeque<WorkRequest>,
}

impl EndpointQp {
    pub(super) fn new(qp: QueuePair, generation: u32) -> EndpointQp {
        EndpointQp { qp, generation, first: 0, posted: VecDeque::new() }
    }

    fn id(&self, request: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(request)
    }

    /// Returns the number of requests that the completion with this `id` confirms.
    fn over(&self, id: u64) -> Option<usize> {
        let request = id as u32;
        let count = request.wrapping_sub(self.first) as usize + 1;
        (id == self.id(request) && count <= self.posted.len()).then_some(count)
    }
}

impl Endpoint {
    pub(super) fn new(
        path: String,
        address: PortAddress,
        link: EndpointLink,
        qps: Vec<EndpointQp>,
        now: Mono,
    ) -> Endpoint {
        let state = EndpointState {
            link,
            qps,
            open: false,
            retired: None,
            moved: false,
            pending: VecDeque::new(),
            used: now,
            turn: 0,
            chain: WorkRequestList::new(),
        };
        Endpoint { path, address, state: Mutex::new(state), settled: Condvar::new() }
    }

    /// Returns the path of the peer's endpoint, `server@device`.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns our address, as sent to the peer.
    pub(super) fn address(&self) -> &PortAddress {
        &self.address
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state().retired.is_some()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, EndpointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes threads that are waiting for the link.
    pub(super) fn notify_waiters(&self) {
        self.settled.notify_all();
    }

    /// Unlocks `state` until the link's state changes or `limit` has passed.
    pub(super) fn await_change<'a>(
        &self,
        state: MutexGuard<'a, EndpointState>,
        limit: Duration,
    ) -> MutexGuard<'a, EndpointState> {
        self.settled.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the time of the last use if no request is posted or pending. `None` if the endpoint
    /// is busy or locked.
    pub(super) fn idle_since(&self) -> Option<Mono> {
        let state = self.state.try_lock().ok()?;
        state.is_idle().then_some(state.used)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().open
    }

    /// Returns the ready ACK for this endpoint's connection, and whether the peer supports ACKs.
    /// `None` if the endpoint is not connected.
    pub(super) fn ack(&self) -> Option<(ConnectionMessage, bool)> {
        let state = self.state();
        let local_end = state.link.local_end();
        let remote_end = state.link.remote_end()?;
        let ack = ConnectionMessage {
            local_nic_path: local_end.path.clone(),
            peer_nic_path: local_end.peer.clone(),
            qp_num: local_end.numbers.clone(),
            local_gid: gid_text(&local_end.gid),
            local_lid: local_end.lid,
            ready_ack: Some(true),
            ..ConnectionMessage::default()
        };
        Some((ack, remote_end.acks))
    }

    /// Whether any request on this endpoint has succeeded.
    pub(super) fn has_moved(&self) -> bool {
        self.state().moved
    }

    /// Whether a request from `batch` is posted on this endpoint.
    pub(super) fn carries(&self, batch: &Arc<Batch>) -> bool {
        let ours = |work: &WorkRequest| Arc::ptr_eq(&work.batch, batch);
        self.state().qps.iter().any(|qp| qp.posted.iter().any(ours))
    }

    /// Whether the endpoint is retired and all of its queue pairs are destroyed.
    pub(super) fn is_destroyed(&self) -> bool {
        let state = self.state();
        state.retired.is_some() && state.qps.is_empty()
    }

    /// Waits until all queue pairs of the retired endpoint are destroyed, or no time is `left`.
    pub(super) fn await_destruction(&self, left: impl Fn() -> Duration) {
        let mut state = self.state();
        while !state.qps.is_empty() {
            let left = left();
            if left.is_zero() {
                return;
            }
            state = self.await_change(state, left);
        }
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.state().qps.iter().map(|qp| qp.qp.number()).collect()
    }

    /// Accepts `works`. They are posted immediately if possible, otherwise once the endpoint is
    /// connected and the queues have room.
    pub(super) fn push(self: &Arc<Self>, nic: &Nic, works: Vec<WorkRequest>, now: Mono, over: &mut FinishedWork) {
        let mut state = self.state();
        state.used = now;
        if let Some(retired) = state.retired.clone() {
            for work in works {
                over.bad(work.batch, work.part, retired.clone());
            }
            return;
        }
        state.pending.extend(works);
        self.post(nic, &mut state, over);
    }

    /// Posts as many pending requests as the queues have room for.
    pub(super) fn post_pending(self: &Arc<Self>, nic: &Nic, over: &mut FinishedWork) {
        self.post(nic, &mut self.state(), over);
    }

    /// Handles completions from one of this endpoint's queue pairs.
    pub(super) fn completed(self: &Arc<Self>, nic: &Nic, completions: &[WorkCompletion], over: &mut FinishedWork) {
        let mut state = self.state();
        let EndpointState { qps, retired, moved, .. } = &mut *state;
        let Some(qp) = qps.iter_mut().find(|qp| qp.qp.number() == completions[0].qp) else { return };
        let mut freed = 0;
        let mut broken = None;
        for completion in completions {
            let Some(count) = qp.over(completion.id) else {
                tracing::debug!(device = %nic.name, id = completion.id, "completion of an earlier queue pair");
                continue;
            };
            freed += count;
            qp.first = qp.first.wrapping_add(count as u32);
            let ok = completion.status.is_ok();
            let flushed = completion.status.is_flush();
            *moved |= ok;
            if !ok {
                broken.get_or_insert((completion.status, completion.vendor_error));
            }
            for (at, work) in qp.posted.drain(..count).enumerate() {
                // An unsignaled request that succeeded before the queue pair failed cannot be
                // distinguished from a flushed one.
                if flushed {
                    over.bad(work.batch, work.part, retired.clone().unwrap_or(WorkError::Dropped));
                } else if !ok && at + 1 == count {
                    nic.counters.failures.of(Blame::of(completion.status)).fetch_add(1, Ordering::Relaxed);
                    over.bad(work.batch, work.part, WorkError::Status(completion.status, completion.vendor_error));
                } else {
                    nic.moved(&work);
                    over.good(work.batch);
                }
            }
        }
        nic.release_cqe(freed);
        if let (Some((status, vendor)), None) = (broken, &state.retired) {
            tracing::debug!(device = %nic.name, peer = %self.path, %status, vendor, "work request failed; endpoint retired");
            self.retire_locked(nic, &mut state, &WorkError::Dropped, over);
        }
        if state.retired.is_some() { self.destroy_idle_qps(nic, &mut state) } else { self.post(nic, &mut state, over) }
    }

    /// Retires the endpoint. Pending requests fail immediately with `why`. Posted ones fail when
    /// the device returns them.
    pub(super) fn retire(&self, nic: &Nic, why: &WorkError) {
        let mut over = FinishedWork::default();
        let mut state = self.state();
        self.retire_with(nic, &mut state, why, &mut over);
        drop(state);
        over.deliver();
    }

    /// Retires the endpoint. The caller has already locked its state.
    pub(super) fn retire_with(&self, nic: &Nic, state: &mut EndpointState, why: &WorkError, over: &mut FinishedWork) {
        if state.retired.is_none() {
            self.retire_locked(nic, state, why, over);
            self.destroy_idle_qps(nic, state);
        }
    }

    fn retire_locked(&self, nic: &Nic, state: &mut EndpointState, why: &WorkError, over: &mut FinishedWork) {
        state.retired = Some(why.clone());
        state.open = false;
        state.link.close(link::CloseReason::Retired("the endpoint was retired".to_owned()));
        nic.drop_endpoint(self);
        nic.counters.retired.fetch_add(1, Ordering::Relaxed);
        match why {
            WorkError::Link(_) => nic.counters.failures.connection.fetch_add(1, Ordering::Relaxed),
            WorkError::Silent(_) => nic.counters.failures.of(Blame::Peer).fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        for qp in &state.qps {
            if !qp.posted.is_empty()
                && let Err(error) = qp.qp.fail()
            {
                tracing::debug!(device = %nic.name, %error, "cannot move queue pair to the error state");
            }
        }
        for work in state.pending.drain(..) {
            over.bad(work.batch, work.part, why.clone());
        }
        self.notify_waiters();
    }

    /// Destroys the queue pairs of a retired endpoint on which nothing is posted.
    fn destroy_idle_qps(&self, nic: &Nic, state: &mut EndpointState) {
        state.qps.retain(|qp| {
            let busy = !qp.posted.is_empty();
            if !busy {
                nic.remove_qp(qp.qp.number());
            }
            busy
        });
        self.notify_waiters();
    }

    /// Withdraws `batch` after its deadline has passed: takes back its pending requests, and
    /// retires the endpoint if any of its requests is posted. (A single posted request cannot be
    /// canceled.)
    pub(super) fn withdraw(&self, nic: &Nic, batch: &Arc<Batch>) {
        let mut over = FinishedWork::default();
        let mut state = self.state();
        let (ours, others): (VecDeque<WorkRequest>, VecDeque<WorkRequest>) =
            std::mem::take(&mut state.pending).into_iter().partition(|work| Arc::ptr_eq(&work.batch, batch));
        state.pending = others;
        for work in ours {
            over.bad(work.batch, work.part, WorkError::Dropped);
        }
        let is_posted = |qp: &EndpointQp| qp.posted.iter().any(|work| Arc::ptr_eq(&work.batch, batch));
        if state.retired.is_none() && state.qps.iter().any(is_posted) {
            tracing::debug!(device = %nic.name, peer = %self.path, "batch deadline passed; endpoint retired");
            self.retire_with(nic, &mut state, &WorkError::Dropped, &mut over);
        }
        drop(state);
        over.deliver();
    }

    /// Destroys a retired endpoint's queue pairs even though the device has not returned all
    /// requests. A destroyed queue pair no longer accesses memory.
    pub(super) fn abandon(&self, nic: &Nic) {
        let mut over = FinishedWork::default();
        let mut state = self.state();
        if state.retired.is_none() {
            return;
        }
        for mut qp in std::mem::take(&mut state.qps) {
            nic.remove_qp(qp.qp.number());
            let posted = std::mem::take(&mut qp.posted);
            drop(qp);
            nic.release_cqe(posted.len());
            for work in posted {
                over.bad(work.batch, work.part, WorkError::Dropped);
            }
        }
        drop(state);
        nic.post_waiting(&mut over);
        over.deliver();
    }

    /// Posts as many pending requests as there is room for, in contiguous runs on each queue pair.
    pub(super) fn post(self: &Arc<Self>, nic: &Nic, state: &mut EndpointState, over: &mut FinishedWork) {
        if !state.open || state.pending.is_empty() {
            return;
        }
        let count = state.qps.len();
        let free: usize = state.qps.iter().map(|qp| nic.limits.requests - qp.posted.len()).sum();
        let wanted = free.min(state.pending.len());
        let mut credits = nic.reserve_cqe(wanted);
        if credits < wanted {
            nic.wait_for_cqe(self);
            // Completion queue entries released before the endpoint was queued did not trigger a
            // post, so try again.
            credits += nic.reserve_cqe(wanted - credits);
        }
        let first = state.turn;
        for at in 0..count {
            if credits == 0 {
                break;
            }
            let index = (first + at) % count;
            let free = nic.limits.requests - state.qps[index].posted.len();
            // This queue pair takes at least the requests that do not fit on the queue pairs after
            // it.
            let others: usize = (at + 1..count)
                .map(|later| nic.limits.requests - state.qps[(first + later) % count].posted.len())
                .sum();
            let share = credits.div_ceil(count - at).max(credits.saturating_sub(others)).min(free);
            credits -= share;
            if share > 0 && !self.post_run(nic, state, index, share, over) {
                nic.release_cqe(credits);
                return;
            }
            state.turn = (index + 1) % count;
        }
        nic.release_cqe(credits);
    }

    /// Posts the next `count` requests on a queue pair. Returns whether the device accepted all of
    /// them.
    fn post_run(
        &self,
        nic: &Nic,
        state: &mut EndpointState,
        index: usize,
        count: usize,
        over: &mut FinishedWork,
    ) -> bool {
        let EndpointState { qps, pending, chain, .. } = &mut *state;
        let qp = &mut qps[index];
        let next = qp.first.wrapping_add(qp.posted.len() as u32);
        let mut requests = std::mem::take(chain).recycle();
        for at in 0..count {
            let work = &pending[at];
            let last_of_batch = pending.get(at + 1).is_none_or(|next| !Arc::ptr_eq(&next.batch, &work.batch));
            let request = verbs::RdmaRequest {
                direction: match work.kind {
                    OpKind::Read => Direction::Read,
                    OpKind::Write => Direction::Write,
                },
                offset: work.offset,
                len: work.len,
                remote_address: work.remote,
                rkey: work.rkey,
                id: qp.id(next.wrapping_add(at as u32)),
                signaled: at + 1 == count || last_of_batch || (at + 1) % SIGNAL_EVERY == 0,
            };
            requests.push(&work.region, request).expect("fragments lie within their regions");
        }
        let posted = qp.qp.post(&mut requests);
        *chain = requests.recycle();
        nic.counters.requests.fetch_add(count as u64, Ordering::Relaxed);
        let taken = posted.as_ref().map_or_else(|refused| refused.posted, |()| count);
        qp.posted.extend(pending.drain(..taken));
        let Err(refused) = posted else { return true };
        nic.release_cqe(count - taken);
        nic.counters.failures.of(Blame::Device).fetch_add(1, Ordering::Relaxed);
        let error = nic.fault(&self.path, DeviceStep::Post, refused.to_string(), Blame::Device);
        tracing::warn!(%error, "device rejected work requests; endpoint retired");
        for (at, work) in pending.drain(..count - taken).enumerate() {
            let error = if at == 0 { WorkError::Device(error.clone()) } else { WorkError::Dropped };
            over.bad(work.batch, work.part, error);
        }
        self.retire_with(nic, state, &WorkError::Dropped, over);
        false
    }
}

impl EndpointState {
    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.qps.iter().all(|qp| qp.posted.is_empty())
    }

    pub(super) fn touch(&mut self, now: Mono) {
        self.used = now;
    }
}

impl Nic {
    /// Counts the bytes of a successful request.
    fn moved(&self, work: &WorkRequest) {
        let bytes = match work.kind {
            OpKind::Read => &self.counters.read_bytes,
            OpKind::Write => &self.counters.written_bytes,
        };
        bytes.fetch_add(u64::from(work.len), Ordering::Relaxed);
    }
}
