//! The initiator: carries batches to one target over its lanes.
//!
//! The thread that waits for a batch moves its bytes. A batch of small operations goes out in runs, on several lanes at once, from
//! that one thread: while it receives the answers to one run the target prepares those to the others, and neither sleeps. A large
//! batch gets more threads where there are processors to run them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::engine::base::HostPort;
use crate::engine::sys::Memory;
use crate::engine::transfer::config::TransferSettings;
use crate::engine::transfer::tcp::codec::Version;
use crate::engine::transfer::tcp::connect;
use crate::engine::transfer::tcp::lane::{Failed, Lane, Limits, Names, RUN_MAX, Request};
use crate::engine::transfer::tcp::place;
use crate::engine::transfer::tcp::pool::{Held, NoLane, Pool};
use crate::engine::transfer::tcp::watch::Watch;
use crate::engine::transfer::tcp::work::Work;
use crate::engine::transfer::transport::{Deadline, Done, Fault, Meaning, Op, OpKind, Peer, Ticket};
use crate::engine::transfer::{Clock, Step, TransferError};
use crate::engine::wire::json::SegmentDescriptor;

/// Operations up to this size are worth spreading over lanes from one thread; above it one lane keeps the thread busy.
const SPREAD_BYTES_MAX: usize = 64 << 10;
/// What makes another thread worth its start.
const MOVER_BYTES_MIN: usize = 4 << 20;
/// The parts that several threads share a large operation in.
const CUT_BYTES: usize = 4 << 20;

/// A target, and the lanes to it.
pub struct TcpPeer {
    at: HostPort,
    version: Version,
    names: Arc<Names>,
    settings: Arc<TransferSettings>,
    clock: Clock,
    pool: Pool,
    addresses: Mutex<Option<Arc<[SocketAddr]>>>,
    hung: AtomicU64,
    /// Is the target on this host? Known once a lane was opened.
    nearby: AtomicBool,
}

impl TcpPeer {
    /// The target at `at`, which serves `segment`. Opens nothing yet.
    pub fn new(
        segment: String,
        at: HostPort,
        version: Version,
        settings: Arc<TransferSettings>,
        clock: Clock,
    ) -> Arc<TcpPeer> {
        let names = Arc::new(Names { segment, peer: at.to_string() });
        let pool = Pool::new(&settings);
        Arc::new(TcpPeer {
            at,
            version,
            names,
            settings,
            clock,
            pool,
            addresses: Mutex::new(None),
            hung: AtomicU64::new(0),
            nearby: AtomicBool::new(true),
        })
    }

    /// Carry out `ops`; a fault for each that failed.
    fn run(&self, ops: &[Op], deadline: Deadline) -> Vec<(usize, Fault)> {
        let bytes: usize = ops.iter().map(|op| op.local.len()).sum();
        let movers = self.settings.movers_per_batch.min(self.settings.lanes_per_peer).min(bytes / MOVER_BYTES_MIN);
        if movers < 2 {
            let lanes = self.spread(ops);
            let most = match self.version == Version::V2 && self.settings.keep_lanes {
                true => ops.len().div_ceil(lanes.max(1)).clamp(1, RUN_MAX),
                false => 1,
            };
            return self.carry(&Work::whole(ops), lanes, most, deadline);
        }
        let work = Work::cut(ops, CUT_BYTES);
        thread::scope(|scope| {
            let carry = || self.carry(&work, 1, 1, deadline);
            // A mover that cannot be started leaves its share to the others.
            let others: Vec<_> = (1..movers)
                .map_while(|_| thread::Builder::new().name("te-mover".into()).spawn_scoped(scope, carry).ok())
                .collect();
            let mut faults = carry();
            for other in others {
                faults.extend(other.join().expect("a mover does not panic"));
            }
            faults
        })
    }

    /// On how many lanes one thread should carry `ops`. Measured on two processors with 4 and 16 KiB: two lanes move 10 to 30 %
    /// more than one and cost less CPU time, four cost up to 40 % more than two when the target has to share the processors.
    fn spread(&self, ops: &[Op]) -> usize {
        if ops.iter().any(|op| op.local.len() > SPREAD_BYTES_MAX) {
            return 1;
        }
        let most = if self.nearby.load(Ordering::Relaxed) { self.settings.lanes_nearby } else { usize::MAX };
        ops.len().div_ceil(2).min(self.settings.lanes_per_peer).min(most)
    }

    /// Take parts of `work` until none is left, in runs of at most `most`, on up to `want` lanes at a time.
    fn carry(&self, work: &Work<'_>, mut want: usize, most: usize, deadline: Deadline) -> Vec<(usize, Fault)> {
        let mut watch = Watch::new(&self.clock, deadline, &self.hung);
        let mut left = Left { work, again: Vec::new(), faults: Vec::new() };
        let mut ready: Vec<Held<'_>> = Vec::new();
        let mut flying: VecDeque<(Held<'_>, Vec<Request>)> = VecDeque::new();
        loop {
            if ready.is_empty() && flying.is_empty() && left.has_more() {
                match self.lanes(want, deadline) {
                    Ok(lanes) => ready = lanes,
                    Err(fault) => {
                        left.fail_all(&fault);
                        break;
                    }
                }
                want = 1;
            }
            if let Some(limit) = watch.over().filter(|_| left.has_more()) {
                left.fail_all(&self.late(limit));
            }
            while let Some(mut held) = ready.pop() {
                let run = left.next_run(most);
                if run.is_empty() {
                    continue;
                }
                watch.begin();
                match self.start(&mut held, &run, deadline, &mut watch) {
                    Ok(()) => flying.push_back((held, run)),
                    Err(failed) => self.note(&mut left, run, failed),
                }
            }
            let Some((mut held, run)) = flying.pop_front() else { if left.has_more() { continue } else { break } };
            watch.begin();
            match self.finish(&mut held, &run, &mut watch) {
                Ok(()) => ready.push(held),
                Err(failed) => self.note(&mut left, run, failed),
            }
        }
        left.faults
    }

    /// Note that a run failed at the request `at`: which requests are to be asked for again, which have failed, and the rest of the
    /// work with them where it would only fail the same way.
    fn note(&self, left: &mut Left<'_>, mut run: Vec<Request>, (at, fault): Failed) {
        debug_assert!(at < run.len(), "one of the run");
        let alone = run.len() == 1;
        let unreached = matches!(&fault.error, TransferError::Lost { step: Step::Resolve | Step::Connect, .. });
        let undone = run.split_off(at);
        match fault.meaning {
            // What stands behind a refused request was not looked at.
            Meaning::Refused => {
                let mut undone = undone.into_iter();
                left.fail(undone.next(), &fault);
                let behind: Vec<Request> = undone.collect();
                if !behind.is_empty() {
                    left.again.push(behind);
                }
            }
            // A target that refuses a request closes, and resets the connection if more stand behind it: that may cost the refusal
            // and answers before it. Each by itself, they show which is at fault.
            Meaning::Gone if !alone && !unreached => {
                let one = |request: Request| vec![Request { before: Some(fault.clone()), ..request }];
                left.again.extend(undone.into_iter().map(one));
            }
            meaning => {
                if meaning == Meaning::Stale {
                    self.pool.forget();
                }
                left.fail(undone, &fault);
                if unreached || matches!(meaning, Meaning::Hung | Meaning::Late) {
                    left.fail_all(&fault);
                }
            }
        }
    }

    /// The batch's time was over before this was sent.
    fn late(&self, limit: Duration) -> Fault {
        let error = TransferError::Timeout { peer: self.names.peer.clone(), step: Step::Lane, limit };
        Fault { error, meaning: Meaning::Late }
    }

    /// The right to use up to `want` lanes; at least the first of them is open.
    fn lanes(&self, want: usize, deadline: Deadline) -> Result<Vec<Held<'_>>, Fault> {
        let mut held = self.pool.take(want, deadline, &self.clock).map_err(|e| self.no_lane(&e))?;
        if self.version == Version::V1 {
            // Each request opens its own.
            return Ok(held);
        }
        let mut open = 0;
        for one in &mut held {
            if one.lane.is_none() {
                match self.open(deadline) {
                    Ok(lane) => one.lane = Some(lane),
                    // One is enough to go on with.
                    Err(_) if open > 0 => break,
                    Err(fault) => return Err(fault),
                }
            }
            open += 1;
        }
        held.truncate(open);
        Ok(held)
    }

    fn start(
        &self,
        held: &mut Held<'_>,
        run: &[Request],
        deadline: Deadline,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failed> {
        let mut lane = match held.lane.take() {
            Some(lane) => lane,
            None => self.open(deadline).map_err(|fault| (0, fault))?,
        };
        match lane.start(run, watch) {
            Ok(()) => held.lane = Some(lane),
            Err(failed) => {
                lane.discard();
                return Err(failed);
            }
        }
        Ok(())
    }

    fn finish(&self, held: &mut Held<'_>, run: &[Request], watch: &mut Watch<'_>) -> Result<(), Failed> {
        let mut lane = held.lane.take().expect("a flying run has its lane");
        if let Err(failed) = lane.finish(run, watch) {
            lane.discard();
            return Err(failed);
        }
        if self.version == Version::V2 && self.settings.keep_lanes {
            held.lane = Some(lane);
        }
        Ok(())
    }

    /// Open a lane.
    fn open(&self, deadline: Deadline) -> Result<Lane, Fault> {
        let left = deadline.left((self.clock)()).min(self.settings.handshake_connect);
        let addresses = self.addresses(left)?;
        let stream = connect::connect(&addresses, left).map_err(|e| {
            // The name may lead elsewhere next time.
            *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.unreachable(Step::Connect, left, e)
        })?;
        let nearby = matches!((stream.local_addr(), stream.peer_addr()), (Ok(a), Ok(b)) if a.ip() == b.ip());
        self.nearby.store(nearby, Ordering::Relaxed);
        let limits = Limits { status: self.settings.status, progress: self.settings.progress };
        Ok(Lane::new(stream, self.version, limits, Arc::clone(&self.names)))
    }

    fn addresses(&self, limit: Duration) -> Result<Arc<[SocketAddr]>, Fault> {
        if let Some(known) = &*self.addresses.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(known));
        }
        let found: Arc<[SocketAddr]> =
            connect::resolve(&self.at, limit).map_err(|e| self.unreachable(Step::Resolve, limit, e))?.into();
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&found));
        Ok(found)
    }

    fn unreachable(&self, step: Step, limit: Duration, source: io::Error) -> Fault {
        let peer = self.names.peer.clone();
        if source.kind() == io::ErrorKind::TimedOut {
            return Fault { error: TransferError::Timeout { peer, step, limit }, meaning: Meaning::Hung };
        }
        Fault { error: TransferError::Lost { peer, step, source: Arc::new(source) }, meaning: Meaning::Gone }
    }

    fn no_lane(&self, why: &NoLane) -> Fault {
        let peer = self.names.peer.clone();
        let error = match why {
            NoLane::Busy(waiting) => TransferError::Busy { peer, waiting: *waiting },
            NoLane::Timeout(limit) => TransferError::Timeout { peer, step: Step::Lane, limit: *limit },
        };
        // Those who have the lanes will tell what the matter is.
        Fault { error, meaning: Meaning::Late }
    }
}

/// What one thread has still to carry, and what it could not.
struct Left<'a> {
    work: &'a Work<'a>,
    /// Runs to be asked for again, none of them empty.
    again: Vec<Vec<Request>>,
    faults: Vec<(usize, Fault)>,
}

impl Left<'_> {
    fn has_more(&self) -> bool {
        self.work.has_more() || !self.again.is_empty()
    }

    fn next_run(&mut self, most: usize) -> Vec<Request> {
        self.again.pop().unwrap_or_else(|| self.work.next_run(most))
    }

    fn fail(&mut self, requests: impl IntoIterator<Item = Request>, fault: &Fault) {
        self.faults.extend(requests.into_iter().map(|request| (request.op, fault.clone().after(request.before))));
    }

    fn fail_all(&mut self, fault: &Fault) {
        let again = std::mem::take(&mut self.again);
        self.fail(again.into_iter().flatten(), fault);
        let work = self.work;
        self.fail(std::iter::from_fn(|| work.next()), fault);
    }
}

impl Peer for TcpPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, deadline: Deadline) -> Box<dyn Ticket> {
        Box::new(TcpTicket { peer: self, ops, deadline })
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        place(descriptor, self.settings.framing).is_ok_and(|(at, version)| at == self.at && version == self.version)
    }

    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError> {
        let mut lane = self.open(deadline).map_err(|fault| fault.error)?;
        // A kernel accepts for a process that hangs, so that somebody took the connection says little.
        let remote = match (descriptor.buffers.first(), self.version) {
            (Some(buffer), _) => buffer.address,
            // Refused, which is an answer too.
            (None, Version::V2) => 0,
            // The oldest targets do not check addresses.
            (None, Version::V1) => return Ok(()),
        };
        let local = Arc::new(Memory::from_vec(vec![0])).whole();
        let request = [Request { op: 0, before: None, kind: OpKind::Read, local, remote }];
        let mut watch = Watch::new(&self.clock, deadline, &self.hung);
        match lane.start(&request, &mut watch).and_then(|()| lane.finish(&request, &mut watch)) {
            Ok(()) => Ok(()),
            // It is there, and that is all that was asked.
            Err((_, fault)) if fault.meaning == Meaning::Refused => Ok(()),
            Err((_, fault)) => Err(fault.error),
        }
    }

    fn forget(&self) {
        self.pool.forget();
    }
}

struct TcpTicket {
    peer: Arc<TcpPeer>,
    ops: Vec<Op>,
    deadline: Deadline,
}

impl Ticket for TcpTicket {
    fn wait(self: Box<Self>) -> Vec<Done> {
        let faults = self.peer.run(&self.ops, self.deadline);
        let mut done: Vec<Done> = self.ops.into_iter().map(|op| Done { op, result: Ok(()) }).collect();
        for (op, fault) in faults {
            // Several, where an operation was cut.
            let first = std::mem::replace(&mut done[op].result, Ok(())).err();
            done[op].result = Err(fault.after(first));
        }
        done
    }
}
