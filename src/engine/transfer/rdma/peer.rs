//! A peer reached over RDMA. Operations are split into fragments. A path is selected for each
//! fragment, and if that path fails, the fragment is retried on another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::device_fault::{Blame, DeviceFault, DeviceStep};
use crate::rdma::batch::{Batch, WorkError, WorkRequest};
use crate::rdma::endpoint::Endpoint;
use crate::rdma::nic::FinishedWork;
use crate::rdma::peer_view::PeerView;
use crate::rdma::registry::{RegisteredMemory, RegisteredPiece};
use crate::rdma::shared::{LINK_REMEDY, RdmaShared};
use crate::rdma::slices::{SliceCuts, Span, UnregisteredAddress};
use crate::transport::{ControlPlane, DataPeer, FaultClass, OpCompletion, PendingOps, TransferFault};
use crate::types::{BatchRules, Deadline, Op, OpKind, RemoteAddr};
use crate::{TransferError, TransferStep};
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;
use mcctl_wire::json::SegmentDescriptor;

/// Maximum number of times a fragment is posted again after it was flushed.
const DROPS_MAX: u32 = 64;
/// Time without progress after which the peer is checked.
const STILL: Duration = Duration::from_secs(2);
/// Time without progress after which another path is tried even if the peer responds.
const STILL_MAX: Duration = Duration::from_secs(30);
/// Same as [`STILL_MAX`], but for a connection that has never transferred anything: its queue pairs
/// may not exist at the peer.
const STILL_NEW: Duration = Duration::from_secs(4);
/// Timeout for checking the peer.
const ALIVE_LIMIT: Duration = Duration::from_secs(3);
/// Timeout for fetching the peer's descriptor again.
const FIND_LIMIT: Duration = Duration::from_secs(6);
/// A descriptor younger than this is not fetched again.
const VIEW_AGE_MIN: Duration = Duration::from_millis(20);

/// A segment reached over RDMA.
pub(super) struct RdmaPeer {
    shared: Arc<RdmaShared>,
    control: Arc<dyn ControlPlane>,
    view: Mutex<Arc<PeerView>>,
}

impl RdmaPeer {
    pub(super) fn new(shared: Arc<RdmaShared>, control: Arc<dyn ControlPlane>, view: PeerView) -> Arc<RdmaPeer> {
        Arc::new(RdmaPeer { shared, control, view: Mutex::new(Arc::new(view)) })
    }

    fn view(&self) -> Arc<PeerView> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fetches the peer's descriptor again, unless another thread has just fetched it.
    fn refresh_view(&self, than: &Arc<PeerView>, limit: Duration) -> Result<Arc<PeerView>, TransferError> {
        let view = self.view();
        let now = (self.shared.clock)();
        if !Arc::ptr_eq(&view, than) || now.since(view.read) < VIEW_AGE_MIN {
            return Ok(view);
        }
        let descriptor = self.control.find(&view.segment, limit.min(FIND_LIMIT))?;
        let newer = Arc::new(PeerView::of(&descriptor, (self.shared.clock)())?);
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&newer);
        Ok(newer)
    }
}

impl DataPeer for RdmaPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, rules: BatchRules) -> Box<dyn PendingOps> {
        let view = self.view();
        let deadline = rules.deadline;
        let deadline = match self.shared.settings.slice_limit {
            Some(limit) if limit < deadline.allowed => {
                let until = deadline.until.min((self.shared.clock)() + limit);
                Deadline { until, allowed: limit }
            }
            _ => deadline,
        };
        let batch = Batch::new(Arc::clone(&self.shared.waker));
        let outcomes = ops.iter().map(|_| None).collect();
        let mut under =
            RdmaBatch { peer: self, view, deadline, batch, ops, outcomes, parts: Vec::new(), ends: Vec::new() };
        under.cut();
        let all: Vec<u32> = (0..under.parts.len() as u32).collect();
        under.send(&all);
        Box::new(under)
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        self.view().is(descriptor)
    }

    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError> {
        let view = PeerView::of(descriptor, (self.shared.clock)())?;
        // If no byte can be read, the response from the peer's handshake port must suffice.
        let Some(remote) = view.readable_address() else { return Ok(()) };
        let peer = RdmaPeer::new(Arc::clone(&self.shared), Arc::clone(&self.control), view);
        let op = Op { kind: OpKind::Read, local: self.shared.scratch.clone(), remote: RemoteAddr(remote) };
        let done = peer.submit(vec![op], BatchRules::until(deadline)).wait();
        done.into_iter().try_for_each(|done| done.result.map_err(|fault| fault.error))
    }

    fn forget(&self) {
        let view = self.view();
        for nic in &self.shared.nics {
            for path in &view.paths {
                if let Some(endpoint) = nic.find_endpoint(path).filter(|endpoint| endpoint.idle_since().is_some()) {
                    endpoint.retire(nic, &WorkError::Dropped);
                }
            }
        }
    }
}

/// One fragment of an operation, with its retry state.
struct Fragment {
    op: u32,
    len: u32,
    /// Offset in the operation.
    offset: u64,
    local: Arc<RegisteredPiece>,
    /// How many times the fragment itself failed. `drops` is how many times it was flushed.
    tries: u32,
    drops: u32,
    /// The last path used: the indices of our device and the peer's.
    route: (u16, u16),
    /// The fault of the first failed attempt.
    before: Option<Box<TransferFault>>,
}

/// A batch of operations submitted to a peer.
struct RdmaBatch {
    peer: Arc<RdmaPeer>,
    view: Arc<PeerView>,
    deadline: Deadline,
    batch: Arc<Batch>,
    ops: Vec<Op>,
    outcomes: Vec<Option<TransferFault>>,
    parts: Vec<Fragment>,
    /// The endpoints used, each with our device and the peer's.
    ends: Vec<UsedEndpoint>,
}

struct UsedEndpoint {
    nic: usize,
    device: usize,
    endpoint: Arc<Endpoint>,
}

impl PendingOps for RdmaBatch {
    fn wait(mut self: Box<Self>) -> Vec<OpCompletion> {
        let shared = Arc::clone(&self.peer.shared);
        let mut still = Duration::ZERO;
        loop {
            self.connect();
            let open = self.batch.open();
            let now = (shared.clock)();
            if open == 0 && !self.batch.has_failures() {
                break;
            }
            if now >= self.deadline.until {
                self.give_up();
                break;
            }
            let succeeded = self.batch.succeeded();
            shared.poller.wait(&self.batch, self.deadline.until.min(now + STILL));
            let failures = self.batch.take_failures();
            if self.batch.succeeded() > succeeded || !failures.is_empty() {
                still = Duration::ZERO;
            } else if self.batch.open() > 0 {
                still += STILL;
                self.on_stall(still);
            }
            let again = self.judge(failures);
            self.send(&again);
        }
        if self.batch.succeeded() > 0 {
            self.ends.iter().filter(|end| end.endpoint.is_open()).for_each(|end| shared.succeeded(end.nic));
        }
        let RdmaBatch { ops, outcomes, .. } = *self;
        let done = |(op, fault): (Op, Option<TransferFault>)| OpCompletion {
            op,
            shared: false,
            result: fault.map_or(Ok(()), Err),
        };
        ops.into_iter().zip(outcomes).map(done).collect()
    }
}

impl RdmaBatch {
    /// Splits the operations into fragments.
    fn cut(&mut self) {
        let registered = self.peer.shared.registry.snapshot();
        for at in 0..self.ops.len() {
            let op = &self.ops[at];
            let temporary: RegisteredMemory;
            let locals = if registered.covers(&op.local) {
                &*registered
            } else {
                temporary = self.peer.shared.registry.register_temporarily(&op.local);
                &temporary
            };
            let here = (&locals.spans, op.local.address());
            let there = (&self.view.spans, op.remote.0);
            let first = self.parts.len();
            let len = op.local.len() as u64;
            for cut in SliceCuts::new(self.peer.shared.slice_rule, here, there, len) {
                match cut {
                    Ok(cut) => self.parts.push(Fragment {
                        op: at as u32,
                        len: cut.len,
                        offset: cut.offset,
                        local: Arc::clone(&locals.locals[cut.local]),
                        tries: 0,
                        drops: 0,
                        route: (0, 0),
                        before: None,
                    }),
                    Err(uncovered) => {
                        self.parts.truncate(first);
                        let fault = self.uncovered(op, uncovered);
                        self.outcomes[at] = Some(fault);
                        break;
                    }
                }
            }
        }
    }

    fn uncovered(&self, op: &Op, uncovered: UnregisteredAddress) -> TransferFault {
        let address = match uncovered {
            // The local case cannot occur, because unregistered local memory is registered for the
            // batch.
            UnregisteredAddress::Local(address) | UnregisteredAddress::Remote(address) => address,
        };
        tracing::debug!(segment = %self.view.segment, address, "address is not registered");
        self.refused(op)
    }

    fn refused(&self, op: &Op) -> TransferFault {
        let segment = self.view.segment.clone();
        let address = op.remote.0;
        let length = op.local.len() as u64;
        TransferFault {
            error: TransferError::Rejected { segment, address, length, code: 0 },
            class: FaultClass::Refused,
        }
    }

    /// Posts fragments, each on its next path.
    fn send(&mut self, parts: &[u32]) {
        if parts.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.peer.shared);
        let now = (shared.clock)();
        let mut groups: Vec<((usize, usize), Vec<WorkRequest>)> = Vec::new();
        for &number in parts {
            match self.work(&shared, number, now) {
                Ok((route, work)) => match groups.iter_mut().find(|group| group.0 == route) {
                    Some((_, works)) => works.push(work),
                    None => groups.push((route, vec![work])),
                },
                Err(fault) => self.fail(number, fault),
            }
        }
        let mut over = FinishedWork::default();
        for ((nic, device), works) in groups {
            let nic = &shared.nics[nic];
            match shared.endpoint(nic, &self.view.paths[device], now) {
                Ok(endpoint) => {
                    self.batch.add_pending(works.len());
                    endpoint.push(nic, works, now, &mut over);
                    if !self.ends.iter().any(|end| Arc::ptr_eq(&end.endpoint, &endpoint)) {
                        self.ends.push(UsedEndpoint { nic: nic.index, device, endpoint });
                    }
                }
                Err(error) => {
                    for work in works {
                        self.fail(work.part, TransferFault { error: error.clone(), class: FaultClass::Refused });
                    }
                }
            }
        }
        over.deliver();
    }

    /// Chooses a path for a fragment and builds its work request.
    fn work(
        &mut self,
        shared: &RdmaShared,
        number: u32,
        now: Mono,
    ) -> Result<((usize, usize), WorkRequest), TransferFault> {
        let part = &self.parts[number as usize];
        let op = &self.ops[part.op as usize];
        let remote = op.remote.0.wrapping_add(part.offset);
        // The peer's descriptor may have changed since the fragment was created.
        let ends_inside = |span: &Span| remote - span.start + u64::from(part.len) <= span.len;
        let span = self.view.spans.find(remote).filter(ends_inside).ok_or_else(|| self.refused(op))?;
        let route = shared.route(&self.view, part.local.location(), (span.index, remote), part.tries, now);
        let (nic, device) = route.ok_or_else(|| self.no_path_error(part))?;
        let rkeys = &self.view.descriptor.buffers[span.index].rkey;
        let rkey = rkeys.get(device).copied().ok_or_else(|| self.refused(op))?;
        let here = &shared.nics[nic];
        let there = &self.view.paths[device];
        let region = part.local.region(here).map_err(|error| TransferFault {
            error: here.registration_fault(there, &error, part.local.len() as u64),
            class: FaultClass::Refused,
        })?;
        let offset = op.local.address() + part.offset - part.local.address();
        let work = WorkRequest {
            batch: Arc::clone(&self.batch),
            part: number,
            kind: op.kind,
            region,
            offset: usize::try_from(offset).expect("offset within the region"),
            len: part.len,
            remote,
            rkey,
        };
        self.parts[number as usize].route = (nic as u16, device as u16);
        Ok(((nic, device), work))
    }

    /// Returns the fault for `part` if none of our devices can be used.
    fn no_path_error(&self, part: &Fragment) -> TransferFault {
        // If the fragment was posted before, its bytes may still be on the wire. The step in the
        // error must indicate this to callers that reuse the memory.
        let step = if part.tries + part.drops > 0 { DeviceStep::Move } else { DeviceStep::Route };
        let error = self.peer.shared.no_path_error(&self.view.segment, step);
        TransferFault { error, class: FaultClass::Refused }
    }

    /// Marks the operation to which `part` belongs as failed.
    fn fail(&mut self, part: u32, fault: TransferFault) {
        let part = &mut self.parts[part as usize];
        let fault = fault.after(part.before.take().map(|before| *before));
        let outcome = &mut self.outcomes[part.op as usize];
        if outcome.is_none() {
            *outcome = Some(fault);
        }
    }

    /// Connects every endpoint in use that is not open yet.
    fn connect(&mut self) {
        let shared = Arc::clone(&self.peer.shared);
        for end in &self.ends {
            if !end.endpoint.is_open() {
                let nic = &shared.nics[end.nic];
                shared.connect(nic, &end.endpoint, (&self.view, end.device), &*self.peer.control, self.deadline);
            }
        }
        self.ends.retain(|end| !end.endpoint.is_destroyed());
    }

    /// Handles failed fragments and returns those to post again.
    fn judge(&mut self, failures: Vec<(u32, WorkError)>) -> Vec<u32> {
        if failures.is_empty() {
            return Vec::new();
        }
        let now = (self.peer.shared.clock)();
        let mut again = Vec::with_capacity(failures.len());
        // If many fragments fail together, only the first one triggers a check for a newer
        // descriptor.
        let mut newer: Option<Result<bool, TransferError>> = None;
        // Classify all failures with the descriptor used for posting, before a newer one is
        // fetched.
        let faults: Vec<(u32, bool, TransferFault)> = failures
            .into_iter()
            .map(|(number, error)| (number, matches!(error, WorkError::Dropped), self.fault(number, error, now)))
            .collect();
        for (number, dropped, fault) in faults {
            let part = &mut self.parts[number as usize];
            if dropped {
                part.drops += 1;
            } else {
                part.tries += 1;
                part.before.get_or_insert_with(|| Box::new(fault.clone()));
            }
            let tries = part.tries;
            let drops = part.drops;
            if tries > self.peer.shared.settings.retries || drops > DROPS_MAX || now >= self.deadline.until {
                self.fail(number, fault);
                continue;
            }
            if !dropped {
                let changed = newer.get_or_insert_with(|| {
                    let view = self.peer.refresh_view(&self.view, self.deadline.left(now))?;
                    let changed = !view.is(&self.view.descriptor);
                    self.view = view;
                    Ok(changed)
                });
                match changed {
                    Ok(changed) if *changed || self.may_help(number, &fault) => {}
                    Ok(_) => {
                        self.fail(number, fault);
                        continue;
                    }
                    Err(error) => {
                        let fault = self.lost(number, fault, error);
                        self.fail(number, fault);
                        continue;
                    }
                }
            }
            again.push(number);
        }
        again
    }

    /// Returns the fault that ends fragment `number` after `fault`, if fetching the peer's
    /// descriptor failed with `error`.
    fn lost(&self, number: u32, fault: TransferFault, error: &TransferError) -> TransferFault {
        let class = if error.is_outage() { FaultClass::Gone } else { FaultClass::Refused };
        let TransferError::Device(first) = fault.error else { return TransferFault { error: error.clone(), class } };
        let mut first = DeviceFault::clone(&first);
        let words = error.chain().to_string();
        if !first.problem.contains(&words) {
            first.problem = format!("{}; cannot fetch the peer's descriptor: {words}", first.problem);
        }
        // A request that was posted before may still be on the wire.
        if self.parts[number as usize].drops > 0 {
            first.step = DeviceStep::Move;
        }
        first.blame = Blame::Peer;
        TransferFault { error: TransferError::Device(Arc::new(first)), class }
    }

    /// Whether a retry of fragment `number` may succeed if the peer has not changed. A retry on the
    /// only path is useless while our port is down.
    fn may_help(&self, number: u32, fault: &TransferFault) -> bool {
        let shared = &self.peer.shared;
        let paths = shared.nics.len() * self.view.paths.len();
        let nic = &shared.nics[usize::from(self.parts[number as usize].route.0)];
        let passes = matches!(&fault.error, TransferError::Device(fault) if fault.may_pass(paths));
        passes && (paths > 1 || nic.port_problem().is_none())
    }

    /// Converts `error` into a fault and records it in the health of devices and paths.
    fn fault(&self, number: u32, error: WorkError, now: Mono) -> TransferFault {
        let shared = &self.peer.shared;
        let (nic, device) = self.parts[number as usize].route;
        let nic = &shared.nics[usize::from(nic)];
        let path = &self.view.path(usize::from(device));
        let another = shared.nics.len() * self.view.paths.len() > 1;
        let at = |step, problem: String, blame| nic.fault(path, step, problem, blame);
        match error {
            WorkError::Dropped => {
                let problem = "the connection failed repeatedly".to_owned();
                TransferFault { error: at(DeviceStep::Move, problem, Blame::Peer), class: FaultClass::Gone }
            }
            WorkError::Status(status, vendor) => {
                let mut problem = format!("work completion {status}, vendor error {vendor:#x}");
                // If the port is down, the completion status is only a consequence.
                let down = nic.port_problem();
                let blame = if down.is_some() { Blame::Device } else { Blame::of(status) };
                let remedy = down.as_ref().map(|_| LINK_REMEDY);
                if let Some(down) = &down {
                    problem = format!("{problem}; {down}");
                }
                match blame {
                    Blame::Device if down.is_none() => shared.device_failed(nic.index, &problem, now),
                    Blame::Refusal => {}
                    _ => shared.path_failed(nic.index, path, another, now),
                }
                let class = if blame == Blame::Peer { FaultClass::Gone } else { FaultClass::Refused };
                TransferFault { error: nic.fault_with(path, DeviceStep::Move, problem, blame, remedy), class }
            }
            WorkError::Silent(still) => {
                shared.path_failed(nic.index, path, another, now);
                let problem = format!("no work completion for {still:?}, but the peer's handshake port responds");
                let remedy = "check that the peer's GID address is reachable (ping -I) and that its device works; \
                              its queue pairs may differ from the announced ones";
                let error = nic.fault_with(path, DeviceStep::Move, problem, Blame::Peer, Some(remedy));
                TransferFault { error, class: FaultClass::Gone }
            }
            WorkError::Device(error) => {
                shared.device_failed(nic.index, &error.to_string(), now);
                TransferFault { error, class: FaultClass::Refused }
            }
            WorkError::Link(error) => {
                shared.path_failed(nic.index, path, another, now);
                let class = if error.is_outage() { FaultClass::Gone } else { FaultClass::Refused };
                TransferFault { error, class }
            }
        }
    }

    /// Handles a stall of duration `still`: checks that the peer's ends of the connections still
    /// exist, and retires our ends if they do not.
    fn on_stall(&mut self, still: Duration) {
        let shared = Arc::clone(&self.peer.shared);
        for end in &self.ends {
            let nic = &shared.nics[end.nic];
            let left = self.deadline.left((shared.clock)()).min(ALIVE_LIMIT);
            if left.is_zero() || !end.endpoint.carries(&self.batch) {
                continue;
            }
            let path = end.endpoint.path();
            if end.endpoint.is_retired() {
                tracing::warn!(device = %nic.name, peer = path, "device has not returned flushed requests; destroying queue pairs");
                end.endpoint.abandon(nic);
                continue;
            }
            let alive = shared.is_alive(nic, &end.endpoint, &self.view, &*self.peer.control, left);
            match alive {
                Ok(()) if still < if end.endpoint.has_moved() { STILL_MAX } else { STILL_NEW } => {
                    tracing::info!(device = %nic.name, peer = path, still = %RoundedDuration(still), "no progress, but the peer responds");
                }
                Ok(()) => {
                    tracing::warn!(device = %nic.name, peer = path, still = %RoundedDuration(still), "no progress; endpoint retired");
                    end.endpoint.retire(nic, &WorkError::Silent(still));
                }
                Err(error) => {
                    tracing::info!(device = %nic.name, peer = path, %error, "peer's end of the connection is gone; endpoint retired");
                    end.endpoint.retire(nic, &WorkError::Dropped);
                }
            }
        }
    }

    /// Ends the batch after its deadline has passed. No byte may move after this.
    fn give_up(&mut self) {
        let shared = Arc::clone(&self.peer.shared);
        let moved = self.batch.succeeded() > 0;
        let late =
            shared.withdraw_batch(&self.batch, self.ends.iter().map(|end| (&shared.nics[end.nic], &end.endpoint)));
        // The order matters: a fragment that is no longer pending has already reported its error.
        let in_progress = self.batch.open() > 0;
        let last = self.batch.take_failures();
        // Another thread is handling completions of these fragments. The device no longer uses
        // their bytes, but their results are unknown here.
        let unknown = if in_progress { 0..self.parts.len() as u32 } else { 0..0 };
        let peer = self.view.segment.clone();
        let step = TransferStep::Body;
        let limit = self.deadline.allowed;
        let class = if moved { FaultClass::Late } else { FaultClass::Hung };
        for part in late.into_iter().chain(last).map(|(part, _)| part).chain(unknown) {
            let error = TransferError::Timeout { peer: peer.clone(), step, limit };
            self.fail(part, TransferFault { error, class });
        }
    }
}
