//! A segment that is reached over RDMA: operations cut into parts, each sent on a way of its own, and sent again on another where
//! the first was no good.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::transfer::rdma::batch::{Batch, Trouble, Work};
use crate::engine::transfer::rdma::endpoint::Endpoint;
use crate::engine::transfer::rdma::fault::{Blame, RdmaFault, RdmaStep};
use crate::engine::transfer::rdma::nic::Over;
use crate::engine::transfer::rdma::registry::{Known, Local};
use crate::engine::transfer::rdma::shared::{LINK_REMEDY, Shared};
use crate::engine::transfer::rdma::slices::{Cuts, Span, Uncovered};
use crate::engine::transfer::rdma::view::View;
use crate::engine::transfer::transport::{Calls, Deadline, Done, Fault, Meaning, Op, OpKind, Peer, RemoteAddr, Ticket};
use crate::engine::transfer::{Step, TransferError};
use crate::engine::wire::json::SegmentDescriptor;

/// How often a part is sent again because of what went wrong with others, or with their connection.
const DROPS_MAX: u32 = 64;
/// When nothing has moved for so long, the peer is asked whether it is there.
const STILL: Duration = Duration::from_secs(2);
/// When nothing has moved for so long, another way is tried, though the peer is there.
const STILL_MAX: Duration = Duration::from_secs(30);
/// The same for a connection that never carried anything: it may lead to queue pairs that are not there.
const STILL_NEW: Duration = Duration::from_secs(4);
/// How long its answer may take.
const ALIVE_LIMIT: Duration = Duration::from_secs(3);
/// How long reading the peer's descriptor again may take.
const FIND_LIMIT: Duration = Duration::from_secs(6);
/// A descriptor that is younger is not read again.
const VIEW_AGE_MIN: Duration = Duration::from_millis(20);

/// A segment.
pub(super) struct RdmaPeer {
    shared: Arc<Shared>,
    calls: Arc<dyn Calls>,
    view: Mutex<Arc<View>>,
}

impl RdmaPeer {
    pub(super) fn new(shared: Arc<Shared>, calls: Arc<dyn Calls>, view: View) -> Arc<RdmaPeer> {
        Arc::new(RdmaPeer { shared, calls, view: Mutex::new(Arc::new(view)) })
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Read the peer's descriptor again, unless somebody just did.
    fn look_again(&self, than: &Arc<View>, limit: Duration) -> Result<Arc<View>, TransferError> {
        let view = self.view();
        let now = (self.shared.clock)();
        if !Arc::ptr_eq(&view, than) || now.since(view.read) < VIEW_AGE_MIN {
            return Ok(view);
        }
        let descriptor = self.calls.find(&view.segment, limit.min(FIND_LIMIT))?;
        let newer = Arc::new(View::of(&descriptor, (self.shared.clock)())?);
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&newer);
        Ok(newer)
    }
}

impl Peer for RdmaPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, deadline: Deadline) -> Box<dyn Ticket> {
        let view = self.view();
        let deadline = match self.shared.settings.slice_limit {
            Some(limit) if limit < deadline.allowed => {
                let until = deadline.until.min((self.shared.clock)() + limit);
                Deadline { until, allowed: limit }
            }
            _ => deadline,
        };
        let batch = Batch::new(Arc::clone(&self.shared.bell));
        let outcomes = ops.iter().map(|_| None).collect();
        let mut under = Under { peer: self, view, deadline, batch, ops, outcomes, parts: Vec::new(), ends: Vec::new() };
        under.cut();
        let all: Vec<u32> = (0..under.parts.len() as u32).collect();
        under.send(&all);
        Box::new(under)
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        self.view().is(descriptor)
    }

    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError> {
        let view = View::of(descriptor, (self.shared.clock)())?;
        // Where nothing can be read, that its handshake port answered has to do.
        let Some(remote) = view.some_byte() else { return Ok(()) };
        let peer = RdmaPeer::new(Arc::clone(&self.shared), Arc::clone(&self.calls), view);
        let op = Op { kind: OpKind::Read, local: self.shared.scratch.clone(), remote: RemoteAddr(remote) };
        let done = peer.submit(vec![op], deadline).wait();
        done.into_iter().try_for_each(|done| done.result.map_err(|fault| fault.error))
    }

    fn forget(&self) {
        let view = self.view();
        for nic in &self.shared.nics {
            for path in &view.paths {
                if let Some(endpoint) = nic.known(path).filter(|endpoint| endpoint.idle_since().is_some()) {
                    endpoint.retire(nic, &Trouble::Dropped);
                }
            }
        }
    }
}

/// A part of an operation.
struct Part {
    op: u32,
    len: u32,
    /// Where it begins in the operation.
    offset: u64,
    local: Arc<Local>,
    /// How often it came to grief, and how often something else did.
    tries: u32,
    drops: u32,
    /// The way it was sent last: our device, and the peer's.
    way: (u16, u16),
    /// What went wrong the first time.
    before: Option<Box<Fault>>,
}

/// A ticket.
struct Under {
    peer: Arc<RdmaPeer>,
    view: Arc<View>,
    deadline: Deadline,
    batch: Arc<Batch>,
    ops: Vec<Op>,
    outcomes: Vec<Option<Fault>>,
    parts: Vec<Part>,
    /// The endpoints it was sent on, and through which of our devices.
    ends: Vec<End>,
}

struct End {
    nic: usize,
    device: usize,
    endpoint: Arc<Endpoint>,
}

impl Ticket for Under {
    fn wait(mut self: Box<Self>) -> Vec<Done> {
        let shared = Arc::clone(&self.peer.shared);
        let mut still = Duration::ZERO;
        loop {
            self.connect();
            let (open, now) = (self.batch.open(), (shared.clock)());
            if open == 0 && !self.batch.has_troubles() {
                break;
            }
            if now >= self.deadline.until {
                self.give_up();
                break;
            }
            let good = self.batch.good();
            shared.drive.wait(&self.batch, self.deadline.until.min(now + STILL));
            let troubles = self.batch.take_troubles();
            if self.batch.good() > good || !troubles.is_empty() {
                still = Duration::ZERO;
            } else if self.batch.open() > 0 {
                still += STILL;
                self.nothing_moves(still);
            }
            let again = self.judge(troubles);
            self.send(&again);
        }
        if self.batch.good() > 0 {
            self.ends.iter().filter(|end| end.endpoint.is_open()).for_each(|end| shared.succeeded(end.nic));
        }
        let Under { ops, outcomes, .. } = *self;
        let done = |(op, fault): (Op, Option<Fault>)| Done { op, result: fault.map_or(Ok(()), Err) };
        ops.into_iter().zip(outcomes).map(done).collect()
    }
}

impl Under {
    /// Cut the operations into parts.
    fn cut(&mut self) {
        let known = self.peer.shared.registry.known();
        for at in 0..self.ops.len() {
            let op = &self.ops[at];
            let lent: Known;
            let locals = if known.covers(&op.local) {
                &*known
            } else {
                lent = self.peer.shared.registry.lend(&op.local);
                &lent
            };
            let here = (&locals.spans, op.local.address());
            let there = (&self.view.spans, op.remote.0);
            let (first, len) = (self.parts.len(), op.local.len() as u64);
            for cut in Cuts::new(self.peer.shared.rule, here, there, len) {
                match cut {
                    Ok(cut) => self.parts.push(Part {
                        op: at as u32,
                        len: cut.len,
                        offset: cut.offset,
                        local: Arc::clone(&locals.locals[cut.local]),
                        tries: 0,
                        drops: 0,
                        way: (0, 0),
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

    fn uncovered(&self, op: &Op, uncovered: Uncovered) -> Fault {
        let address = match uncovered {
            // Cannot be: what is not registered is lent.
            Uncovered::Local(address) | Uncovered::Remote(address) => address,
        };
        tracing::debug!(segment = %self.view.segment, address, "not registered");
        self.refused(op)
    }

    fn refused(&self, op: &Op) -> Fault {
        let (segment, address, length) = (self.view.segment.clone(), op.remote.0, op.local.len() as u64);
        Fault { error: TransferError::Rejected { segment, address, length, code: 0 }, meaning: Meaning::Refused }
    }

    /// Send parts, each on the way that is its turn.
    fn send(&mut self, parts: &[u32]) {
        if parts.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.peer.shared);
        let now = (shared.clock)();
        let mut groups: Vec<((usize, usize), Vec<Work>)> = Vec::new();
        for &number in parts {
            match self.work(&shared, number, now) {
                Ok((way, work)) => match groups.iter_mut().find(|group| group.0 == way) {
                    Some((_, works)) => works.push(work),
                    None => groups.push((way, vec![work])),
                },
                Err(fault) => self.fail(number, fault),
            }
        }
        let mut over = Over::default();
        for ((nic, device), works) in groups {
            let nic = &shared.nics[nic];
            match shared.endpoint(nic, &self.view.paths[device], now) {
                Ok(endpoint) => {
                    self.batch.opened(works.len());
                    endpoint.push(nic, works, now, &mut over);
                    if !self.ends.iter().any(|end| Arc::ptr_eq(&end.endpoint, &endpoint)) {
                        self.ends.push(End { nic: nic.index, device, endpoint });
                    }
                }
                Err(error) => {
                    for work in works {
                        self.fail(work.part, Fault { error: error.clone(), meaning: Meaning::Refused });
                    }
                }
            }
        }
        over.deliver();
    }

    /// A part as a request, and the way it is to go.
    fn work(&mut self, shared: &Shared, number: u32, now: Mono) -> Result<((usize, usize), Work), Fault> {
        let part = &self.parts[number as usize];
        let op = &self.ops[part.op as usize];
        let remote = op.remote.0.wrapping_add(part.offset);
        // The peer's descriptor may be another than when the part was cut.
        let ends_inside = |span: &Span| remote - span.start + u64::from(part.len) <= span.len;
        let span = self.view.spans.find(remote).filter(ends_inside).ok_or_else(|| self.refused(op))?;
        let way = shared.route(&self.view, part.local.location(), (span.index, remote), part.tries, now);
        let (nic, device) = way.ok_or_else(|| self.no_way(part))?;
        let rkeys = &self.view.descriptor.buffers[span.index].rkey;
        let rkey = rkeys.get(device).copied().ok_or_else(|| self.refused(op))?;
        let (here, there) = (&shared.nics[nic], &self.view.paths[device]);
        let region = part.local.region(here).map_err(|error| Fault {
            error: here.unregistered(there, &error, part.local.len() as u64),
            meaning: Meaning::Refused,
        })?;
        let offset = op.local.address() + part.offset - part.local.address();
        let work = Work {
            batch: Arc::clone(&self.batch),
            part: number,
            kind: op.kind,
            region,
            offset: usize::try_from(offset).expect("inside the region"),
            len: part.len,
            remote,
            rkey,
        };
        self.parts[number as usize].way = (nic as u16, device as u16);
        Ok(((nic, device), work))
    }

    /// No device of ours can be used for `part`, now or any more.
    fn no_way(&self, part: &Part) -> Fault {
        // Of one that was sent before, bytes may be on their way: who gives the memory to others has to know.
        let step = if part.tries + part.drops > 0 { RdmaStep::Move } else { RdmaStep::Route };
        let error = self.peer.shared.no_way(&self.view.segment, step);
        Fault { error, meaning: Meaning::Refused }
    }

    /// The operation of `part` fails.
    fn fail(&mut self, part: u32, fault: Fault) {
        let part = &mut self.parts[part as usize];
        let fault = fault.after(part.before.take().map(|before| *before));
        let outcome = &mut self.outcomes[part.op as usize];
        if outcome.is_none() {
            *outcome = Some(fault);
        }
    }

    /// Have every endpoint that it was sent on connected, or see it fail.
    fn connect(&mut self) {
        let shared = Arc::clone(&self.peer.shared);
        for end in &self.ends {
            if !end.endpoint.is_open() {
                let nic = &shared.nics[end.nic];
                shared.connect(nic, &end.endpoint, (&self.view, end.device), &*self.peer.calls, self.deadline);
            }
        }
        self.ends.retain(|end| !end.endpoint.is_buried());
    }

    /// What becomes of parts that came back: those that are to be sent again.
    fn judge(&mut self, troubles: Vec<(u32, Trouble)>) -> Vec<u32> {
        if troubles.is_empty() {
            return Vec::new();
        }
        let now = (self.peer.shared.clock)();
        let mut again = Vec::with_capacity(troubles.len());
        // Of many parts that come back together, the first asks: is the peer's descriptor another by now?
        let mut newer: Option<Result<bool, TransferError>> = None;
        // All of them by the descriptor that they were sent with, before a newer one is read.
        let faults: Vec<(u32, bool, Fault)> = troubles
            .into_iter()
            .map(|(number, trouble)| (number, matches!(trouble, Trouble::Dropped), self.fault(number, trouble, now)))
            .collect();
        for (number, dropped, fault) in faults {
            let part = &mut self.parts[number as usize];
            if dropped {
                part.drops += 1;
            } else {
                part.tries += 1;
                part.before.get_or_insert_with(|| Box::new(fault.clone()));
            }
            let (tries, drops) = (part.tries, part.drops);
            if tries > self.peer.shared.settings.retries || drops > DROPS_MAX || now >= self.deadline.until {
                self.fail(number, fault);
                continue;
            }
            if !dropped {
                let changed = newer.get_or_insert_with(|| {
                    let view = self.peer.look_again(&self.view, self.deadline.left(now))?;
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

    /// What ends part `number`, which came to grief by `fault`, where `error` is all that comes of asking for the peer's descriptor.
    fn lost(&self, number: u32, fault: Fault, error: &TransferError) -> Fault {
        let meaning = if error.is_outage() { Meaning::Gone } else { Meaning::Refused };
        let TransferError::Rdma(first) = fault.error else { return Fault { error: error.clone(), meaning } };
        let mut first = RdmaFault::clone(&first);
        let words = error.chain().to_string();
        if !first.problem.contains(&words) {
            first.problem = format!("{}; asked for its descriptor: {words}", first.problem);
        }
        // What was posted before may be on its way.
        if self.parts[number as usize].drops > 0 {
            first.step = RdmaStep::Move;
        }
        first.blame = Blame::Peer;
        Fault { error: TransferError::Rdma(Arc::new(first)), meaning }
    }

    /// May another try of part `number` help, where the peer is as it was? Not on the only way while its link is down.
    fn may_help(&self, number: u32, fault: &Fault) -> bool {
        let shared = &self.peer.shared;
        let ways = shared.nics.len() * self.view.paths.len();
        let nic = &shared.nics[usize::from(self.parts[number as usize].way.0)];
        let passes = matches!(&fault.error, TransferError::Rdma(fault) if fault.may_pass(ways));
        passes && (ways > 1 || nic.port_trouble().is_none())
    }

    /// What `trouble` of a part is; and what it says about devices and ways is noted.
    fn fault(&self, number: u32, trouble: Trouble, now: Mono) -> Fault {
        let shared = &self.peer.shared;
        let (nic, device) = self.parts[number as usize].way;
        let (nic, path) = (&shared.nics[usize::from(nic)], &self.view.path(usize::from(device)));
        let another = shared.nics.len() * self.view.paths.len() > 1;
        let at = |step, problem: String, blame| nic.fault(path, step, problem, blame);
        match trouble {
            Trouble::Dropped => {
                let problem = "the connection broke again and again".to_owned();
                Fault { error: at(RdmaStep::Move, problem, Blame::Peer), meaning: Meaning::Gone }
            }
            Trouble::Status(status, vendor) => {
                let mut problem = format!("work completion {status}, vendor error {vendor:#x}");
                // What a device says whose link is down is only what follows from that.
                let down = nic.port_trouble();
                let blame = if down.is_some() { Blame::Device } else { Blame::of(status) };
                let remedy = down.as_ref().map(|_| LINK_REMEDY);
                if let Some(down) = &down {
                    problem = format!("{problem}; {down}");
                }
                match blame {
                    Blame::Device if down.is_none() => shared.device_failed(nic.index, &problem, now),
                    Blame::Refusal => {}
                    _ => shared.way_failed(nic.index, path, another, now),
                }
                let meaning = if blame == Blame::Peer { Meaning::Gone } else { Meaning::Refused };
                Fault { error: nic.fault_with(path, RdmaStep::Move, problem, blame, remedy), meaning }
            }
            Trouble::Silent(still) => {
                shared.way_failed(nic.index, path, another, now);
                let problem = format!("no work completion for {still:?}, though the peer's handshake port answers");
                let remedy = "see that the address of the peer's GID can be reached (ping -I) and that its device still works; its queue \
                              pairs may not be those that it told";
                let error = nic.fault_with(path, RdmaStep::Move, problem, Blame::Peer, Some(remedy));
                Fault { error, meaning: Meaning::Gone }
            }
            Trouble::Device(error) => {
                shared.device_failed(nic.index, &error.to_string(), now);
                Fault { error, meaning: Meaning::Refused }
            }
            Trouble::Link(error) => {
                shared.way_failed(nic.index, path, another, now);
                let meaning = if error.is_outage() { Meaning::Gone } else { Meaning::Refused };
                Fault { error, meaning }
            }
        }
    }

    /// Nothing of it has moved for `still`: see whether the peers' ends are still there, and retire our end where they are not.
    fn nothing_moves(&mut self, still: Duration) {
        let shared = Arc::clone(&self.peer.shared);
        for end in &self.ends {
            let nic = &shared.nics[end.nic];
            let left = self.deadline.left((shared.clock)()).min(ALIVE_LIMIT);
            if left.is_zero() || !end.endpoint.carries(&self.batch) {
                continue;
            }
            let path = end.endpoint.path();
            if end.endpoint.is_gone() {
                tracing::warn!(device = %nic.name, peer = path, "the device does not let go of requests; queue pairs are destroyed");
                end.endpoint.abandon(nic);
                continue;
            }
            let alive = shared.is_alive(nic, &end.endpoint, &self.view, &*self.peer.calls, left);
            match alive {
                Ok(()) if still < if end.endpoint.has_moved() { STILL_MAX } else { STILL_NEW } => {
                    tracing::info!(device = %nic.name, peer = path, ?still, "nothing moves, though the peer is there");
                }
                Ok(()) => {
                    tracing::warn!(device = %nic.name, peer = path, ?still, "nothing moves; endpoint is retired");
                    end.endpoint.retire(nic, &Trouble::Silent(still));
                }
                Err(error) => {
                    tracing::info!(device = %nic.name, peer = path, %error, "endpoint is retired");
                    end.endpoint.retire(nic, &Trouble::Dropped);
                }
            }
        }
    }

    /// The time is over: no byte may move after this.
    fn give_up(&mut self) {
        let shared = Arc::clone(&self.peer.shared);
        let moved = self.batch.good() > 0;
        let late = shared.call_back(&self.batch, self.ends.iter().map(|end| (&shared.nics[end.nic], &end.endpoint)));
        // In this order: what is not open any more has told its trouble.
        let in_hand = self.batch.open() > 0;
        let last = self.batch.take_troubles();
        // Parts that another thread has in hand have let go of their bytes, but how they ended nobody here knows yet.
        let unknown = if in_hand { 0..self.parts.len() as u32 } else { 0..0 };
        let (peer, step, limit) = (self.view.segment.clone(), Step::Body, self.deadline.allowed);
        let meaning = if moved { Meaning::Late } else { Meaning::Hung };
        for part in late.into_iter().chain(last).map(|(part, _)| part).chain(unknown) {
            let error = TransferError::Timeout { peer: peer.clone(), step, limit };
            self.fail(part, Fault { error, meaning });
        }
    }
}
