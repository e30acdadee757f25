//! The gate of a master in a cluster: which requests are processed, and when their responses may be
//! sent.
//!
//! The driver ([`HaDriver`](crate::server::ha::driver::HaDriver)) moves the gate; the threads that
//! serve connections read it. A response may be sent while the fence has not passed, if the
//! required standbys have the changes in its receipt.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use std::future::poll_fn;
use std::task::Poll;

use tokio::sync::watch;

use crate::server::ha::leader::waiters::{AwaitedLimit, CommitWaiters, QueuedWaiter};
use crate::server::reads::is_read;
use mcctl_base::{HostPort, Mono};
use mcctl_election::ha::ResponseLimits;
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_net::rpc::{AdmissionWait, Admitted, CommitWait, Receipt};
use mcctl_sys::env::Env;
use mcctl_wire::Method;

/// The term of a state that does not serve. Responses from it are not sent.
pub(in crate::server) const NOT_SERVING: u64 = u64::MAX - 1;

/// Which requests are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::server::ha) enum GatePhase {
    /// No requests are processed, and connections are closed.
    Closed = 0,
    /// All requests are processed.
    Open = 1,
    /// Requests that change nothing are processed. The others wait.
    ChangesHeld = 2,
    /// No requests are processed. They wait until the successor leads.
    Released = 3,
    /// No requests are processed. Connections are forwarded to the successor.
    Forwarding = 4,
    /// No requests are processed. They wait for the result of this master's election: clients may
    /// see its key in etcd before it does.
    Electing = 5,
}

impl GatePhase {
    fn from_number(number: u8) -> GatePhase {
        use GatePhase::{ChangesHeld, Closed, Electing, Forwarding, Open, Released};
        [Open, ChangesHeld, Released, Forwarding, Electing].into_iter().find(|it| *it as u8 == number).unwrap_or(Closed)
    }
}

/// The gate of a master: written by the driver, and read by all threads that serve connections.
#[derive(Debug)]
pub(in crate::server) struct HaGate {
    phase: AtomicU8,
    /// Incremented whenever this master begins or stops serving. Odd while it serves.
    term: AtomicU64,
    /// No response is sent from this time on, on the clock that counts suspended time, in
    /// nanoseconds.
    fence: AtomicU64,
    /// Responses to changes up to this one may be sent.
    acked: AtomicU64,
    /// The same for responses to changes that hand out or free memory.
    replicated: AtomicU64,
    /// The same for responses that wait for the removal of the barrier.
    barrier: AtomicU64,
    /// Counts the changes of the phase and of the term, for requests that wait.
    moved: watch::Sender<u64>,
    /// The responses that wait.
    waiters: CommitWaiters,
    /// The master to which connections are forwarded, and the end of the time in which new ones
    /// are.
    forward: Mutex<Option<(HostPort, Mono)>>,
}

impl HaGate {
    pub(in crate::server::ha) fn new() -> HaGate {
        HaGate {
            phase: AtomicU8::new(GatePhase::Closed as u8),
            term: AtomicU64::new(0),
            fence: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            replicated: AtomicU64::new(0),
            barrier: AtomicU64::new(u64::MAX),
            moved: watch::Sender::new(0),
            waiters: CommitWaiters::default(),
            forward: Mutex::new(None),
        }
    }

    /// Which requests are processed.
    pub(in crate::server::ha) fn phase(&self) -> GatePhase {
        GatePhase::from_number(self.phase.load(Ordering::Acquire))
    }

    /// Whether all requests are processed.
    pub(crate) fn is_open(&self) -> bool {
        self.phase() == GatePhase::Open
    }

    /// Whether responses may be sent at `now`, on the clock that counts suspended time.
    pub(crate) fn is_serving(&self, now: Mono) -> bool {
        self.is_open() && now.0 < self.fence.load(Ordering::Acquire)
    }

    /// Whether a read could be processed and answered at `now`. A master that has handed over may
    /// still send responses that were processed before.
    #[cfg(test)]
    pub(in crate::server::ha) fn could_answer(&self, now: Mono) -> bool {
        self.term() % 2 == 1
            && matches!(self.phase(), GatePhase::Open | GatePhase::ChangesHeld)
            && now.0 < self.fence.load(Ordering::Acquire)
    }

    /// Whether this master leads, but cannot prove it at `now`, so that its responses wait.
    pub(crate) fn is_fenced(&self, now: Mono) -> bool {
        self.is_open() && !self.is_serving(now)
    }

    /// The number of the current term. It is even while this master does not serve.
    pub(in crate::server) fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// Begins the next term. Responses of earlier terms are no longer sent.
    pub(in crate::server::ha) fn next_term(&self) -> u64 {
        let term = self.term.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake();
        term
    }

    /// Changes which requests are processed.
    pub(in crate::server::ha) fn set_phase(&self, phase: GatePhase) {
        self.phase.store(phase as u8, Ordering::Release);
        self.wake();
    }

    /// Changes which requests are processed, if that is still `from`.
    pub(in crate::server::ha) fn leave_phase(&self, from: GatePhase, to: GatePhase) {
        let from = from as u8;
        let to = to as u8;
        if self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.wake();
        }
    }

    /// Forwards connections to this master; new ones until this time.
    pub(in crate::server::ha) fn forward_to(&self, address: HostPort, until: Mono) {
        *self.forward.lock().unwrap_or_else(PoisonError::into_inner) = Some((address, until));
        self.set_phase(GatePhase::Forwarding);
    }

    /// Publishes the decisions of the core.
    pub(in crate::server::ha) fn publish(&self, env: &impl Env, limits: ResponseLimits) {
        let moves = |last: &AtomicU64, to: Option<u64>| {
            let to = to.unwrap_or(u64::MAX);
            last.swap(to, Ordering::AcqRel) != to
        };
        let has_moved = moves(&self.acked, limits.acked) | moves(&self.replicated, limits.replicated);
        // It moves when the last standby leaves, and when the barrier is removed.
        let mut has_fence_moved = moves(&self.barrier, limits.barrier);
        if let Some(fence) = limits.fence {
            let before = self.fence.swap(fence.0, Ordering::AcqRel);
            // A response may have begun to wait until the fence was moved.
            has_fence_moved |= before != fence.0 && before <= env.boottime().0;
        }
        if has_fence_moved {
            self.waiters.wake_all();
        } else if has_moved {
            self.waiters.wake_up_to(self.acked.load(Ordering::Acquire), self.replicated.load(Ordering::Acquire));
        }
    }

    fn wake(&self) {
        self.moved.send_modify(|moves| *moves += 1);
        self.waiters.wake_all();
    }

    /// Waits until the responses of `receipt` may be sent. See
    /// [`RpcService::commit`](mcctl_net::rpc::RpcService::commit).
    pub(crate) fn commit<'a, E: Env>(&'a self, receipt: Receipt, env: &'a E) -> Option<CommitWait<'a>> {
        match self.may_send(receipt, env) {
            Some(true) => None,
            Some(false) => Some(Box::pin(std::future::ready(false))),
            None => Some(Box::pin(self.wait(receipt, env))),
        }
    }

    /// Like [`commit`](Self::commit), once `stored` has returned whether the log has the changes.
    pub(crate) fn commit_behind<'a, E: Env>(
        &'a self,
        receipt: Receipt,
        env: &'a E,
        stored: impl Future<Output = bool> + Send + 'a,
    ) -> CommitWait<'a> {
        // The fence may pass while the log waits for the disk, so it is checked after that.
        Box::pin(async move { stored.await && self.wait(receipt, env).await })
    }

    async fn wait<E: Env>(&self, receipt: Receipt, env: &E) -> bool {
        let mut queued: Option<QueuedWaiter<'_>> = None;
        poll_fn(move |context| {
            loop {
                drop(queued.take());
                if let Some(may_send) = self.may_send(receipt, env) {
                    return Poll::Ready(may_send);
                }
                let limit = self.awaited(receipt);
                queued = Some(self.waiters.add(limit, context.waker()));
                // The limit may have moved before the task was in the queue.
                if self.may_send(receipt, env).is_none() && self.awaited(receipt) == limit {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// The limit that the responses of `receipt` wait for.
    fn awaited(&self, receipt: Receipt) -> AwaitedLimit {
        if receipt.last > self.acked.load(Ordering::Acquire) {
            AwaitedLimit::Acked(receipt.last)
        } else if receipt.needs_standby > self.replicated.load(Ordering::Acquire) {
            AwaitedLimit::Replicated(receipt.needs_standby)
        } else {
            AwaitedLimit::Other
        }
    }

    /// Whether responses may be sent (`true`), can never be sent (`false`), or must wait (`None`).
    #[inline]
    fn may_send(&self, receipt: Receipt, env: &impl Env) -> Option<bool> {
        if receipt.term == 0 {
            return Some(true);
        }
        let has_all = |last: u64, limit: &AtomicU64| last <= limit.load(Ordering::Acquire);
        let is_acked = has_all(receipt.last, &self.acked)
            && has_all(receipt.needs_standby, &self.replicated)
            && has_all(receipt.needs_barrier, &self.barrier)
            || is_planted(HaMistake::AcknowledgementNotAwaited);
        let is_before_fence =
            || env.boottime().0 < self.fence.load(Ordering::Acquire) || is_planted(HaMistake::FenceNotChecked);
        let may_send = is_acked && is_before_fence();
        // Read last, so that the limits that were read before belong to this term.
        if receipt.term != self.term() {
            return Some(false);
        }
        may_send.then_some(true)
    }

    /// Whether a request is processed now.
    #[inline]
    pub(crate) fn admits(&self, method: Method) -> bool {
        match self.phase() {
            GatePhase::Open => true,
            GatePhase::ChangesHeld => is_read(method),
            GatePhase::Closed | GatePhase::Released | GatePhase::Forwarding | GatePhase::Electing => false,
        }
    }

    /// Waits until a request can be processed, or its connection must be forwarded or closed.
    pub(crate) fn admission<'a, E: Env>(&'a self, env: &'a E, method: Method) -> AdmissionWait<'a> {
        Box::pin(async move {
            let mut moved = self.moved.subscribe();
            loop {
                match self.phase() {
                    _ if self.admits(method) => return Admitted::Proceed,
                    GatePhase::Closed | GatePhase::Open => return Admitted::Close,
                    GatePhase::Forwarding => return self.forwarding(env.boottime()),
                    GatePhase::ChangesHeld | GatePhase::Released | GatePhase::Electing => {}
                }
                if moved.changed().await.is_err() {
                    return Admitted::Close;
                }
            }
        })
    }

    fn forwarding(&self, now: Mono) -> Admitted {
        let forward = self.forward.lock().unwrap_or_else(PoisonError::into_inner);
        match &*forward {
            Some((address, until)) if now < *until => Admitted::Forward(address.clone()),
            _ => Admitted::Close,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use mcctl_sys::env::RealEnv;

    const SOON: Mono = Mono(u64::MAX);

    #[test]
    fn responses_from_a_state_that_does_not_serve_are_never_sent() {
        let (gate, term) = serving();
        assert_eq!(commit(&gate, receipt(NOT_SERVING, 0)), Some(false));
        assert!(gate.commit(receipt(term, 0), &RealEnv::new()).is_none());
    }

    fn serving() -> (HaGate, u64) {
        let gate = HaGate::new();
        let term = gate.next_term();
        publish(&gate, Some(SOON), 0);
        gate.set_phase(GatePhase::Open);
        (gate, term)
    }

    fn publish(gate: &HaGate, fence: Option<Mono>, acked: u64) {
        let limits = ResponseLimits { fence, acked: Some(acked), replicated: Some(acked), barrier: None };
        gate.publish(&RealEnv::new(), limits);
    }

    fn receipt(term: u64, last: u64) -> Receipt {
        Receipt { term, last, ..Receipt::default() }
    }

    /// The result of `commit` without a wait: `None` if it waits.
    fn commit(gate: &HaGate, receipt: Receipt) -> Option<bool> {
        use futures_util::FutureExt;
        gate.commit(receipt, &RealEnv::new()).map_or(Some(true), FutureExt::now_or_never)
    }

    #[test]
    fn a_response_waits_for_its_change_and_not_for_others() {
        let (gate, term) = serving();
        assert_eq!(commit(&gate, receipt(term, 0)), Some(true), "a read");
        let mut changed = receipt(term, 7);
        changed.merge(receipt(term, 0));
        assert_eq!(commit(&gate, changed), None);
        publish(&gate, None, 7);
        assert_eq!(commit(&gate, changed), Some(true));
        assert_eq!(commit(&gate, Receipt::default()), Some(true), "nothing was processed");
    }

    #[test]
    fn a_change_of_memory_waits_for_standbys_and_barrier_although_others_do_not() {
        let (gate, term) = serving();
        gate.publish(&RealEnv::new(), ResponseLimits { fence: None, acked: None, replicated: Some(6), barrier: None });
        let end = receipt(term, 7);
        let start = Receipt { needs_standby: 7, ..end };
        assert_eq!((commit(&gate, end), commit(&gate, start)), (Some(true), None));
        gate.publish(&RealEnv::new(), ResponseLimits { fence: None, acked: None, replicated: None, barrier: Some(6) });
        assert_eq!(commit(&gate, start), Some(true), "no standby is required");
        let unmount = Receipt { needs_barrier: 7, ..start };
        assert_eq!(commit(&gate, unmount), None, "the sync record has a barrier before it");
        gate.publish(&RealEnv::new(), ResponseLimits { fence: None, acked: None, replicated: None, barrier: None });
        assert_eq!(commit(&gate, unmount), Some(true));
    }

    #[test]
    fn no_response_is_sent_after_the_fence_or_in_another_term() {
        let (gate, term) = serving();
        publish(&gate, Some(Mono(1)), 0);
        assert_eq!(commit(&gate, receipt(term, 0)), None, "the fence may still move");
        publish(&gate, Some(SOON), 0);
        gate.next_term();
        assert_eq!(commit(&gate, receipt(term, 0)), Some(false));
        let later = gate.next_term();
        assert_eq!(commit(&gate, receipt(later, 0)), Some(true));
        let mut mixed = receipt(term, 0);
        mixed.merge(receipt(later, 0));
        assert_eq!(commit(&gate, mixed), Some(false), "a part of the responses is of an earlier term");
    }

    #[tokio::test]
    async fn requests_wait_during_a_hand_over_and_are_then_forwarded() {
        let (gate, _) = serving();
        let env = RealEnv::new();
        gate.set_phase(GatePhase::ChangesHeld);
        assert!(gate.admits(Method::GetReplicaList) && !gate.admits(Method::PutStart));
        let successor = HostPort::new("b", 1);
        let forwarded = async {
            gate.set_phase(GatePhase::Released);
            tokio::task::yield_now().await;
            gate.forward_to(successor.clone(), SOON);
        };
        let (admitted, ()) = tokio::join!(gate.admission(&env, Method::PutStart), forwarded);
        assert_eq!(admitted, Admitted::Forward(successor));
        gate.forward_to(HostPort::new("b", 1), Mono::ZERO);
        assert_eq!(gate.admission(&env, Method::PutStart).await, Admitted::Close);
    }

    #[tokio::test]
    async fn requests_wait_for_the_result_of_an_election() {
        let gate = Arc::new(HaGate::new());
        let env = RealEnv::new();
        for (result, admitted) in [(GatePhase::Open, Admitted::Proceed), (GatePhase::Closed, Admitted::Close)] {
            gate.set_phase(GatePhase::Electing);
            assert!(!gate.admits(Method::ExistKey));
            let waiting = gate.clone();
            let moving = gate.clone();
            let clock = env.clone();
            let request = tokio::spawn(async move { waiting.admission(&clock, Method::ExistKey).await });
            env.sleep(Duration::from_millis(20)).await;
            assert!(!request.is_finished());
            moving.leave_phase(GatePhase::Electing, result);
            assert_eq!(request.await.unwrap(), admitted);
        }
        gate.set_phase(GatePhase::Open);
        gate.leave_phase(GatePhase::Electing, GatePhase::Closed);
        assert!(gate.is_open());
    }
}
