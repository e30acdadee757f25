//! One try of one way: what is made for it is gone when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::Memory;
use crate::engine::sys::readiness::wait_readable;
use crate::engine::sys::verbs::{
    Caps, Chain, Completion, Direction, Pair, Queue, Region, Rights, Status, VerbsError, Work,
};
use crate::engine::topology::gid::Gid;
use crate::engine::transfer::TransferError;
use crate::engine::transfer::rdma::fault::RdmaStep;
use crate::engine::transfer::rdma::link::{self, DIAL_LIMIT, Far, Link, Near, Next, Over, Unconnected, Want};
use crate::engine::transfer::rdma::nic::{Nic, Place};
use crate::engine::transfer::rdma::shared::Shared;
use crate::engine::transfer::rdma::trial::{Cause, Failure, Figures, Read};
use crate::engine::transfer::rdma::view::{View, nic_path};
use crate::engine::transfer::transport::Calls;

/// Bytes of the read: several packets at any MTU.
const READ_BYTES: u32 = 16 << 10;
/// Writes of no bytes that are timed.
const ROUNDS: usize = 9;
/// Entries of the completion queue: one request is under way at a time, and those of a pair that broke.
const ENTRIES: u32 = 64;
/// Requests that a pair holds.
const REQUESTS: u32 = 4;
/// Polling before sleeping, so that a short way is timed and not a wake-up.
const SPIN: Duration = Duration::from_micros(200);
/// Longest sleep: a lost event must not stop everything.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// What the tries of one of our devices share.
pub(super) struct Bench<'a> {
    shared: &'a Shared,
    nic: &'a Nic,
    queue: Arc<Queue>,
    region: Region,
    ids: AtomicU64,
}

/// A request.
#[derive(Clone, Copy)]
struct Request {
    direction: Direction,
    len: u32,
    remote: u64,
    rkey: u32,
}

const NOTHING: Request = Request { direction: Direction::Write, len: 0, remote: 0, rkey: 0 };

impl<'a> Bench<'a> {
    pub(super) fn new(shared: &'a Shared, nic: &'a Nic) -> Result<Bench<'a>, Failure> {
        let failed = |error| Failure::verb(RdmaStep::Register, &error);
        let memory = Arc::new(Memory::from_vec(vec![0; READ_BYTES as usize]));
        let slice = memory.slice(0, memory.len()).expect("all of it");
        let region = Region::register(&nic.domain, &slice, Rights::default()).map_err(failed)?;
        let queue = Queue::new(&nic.device, ENTRIES, 0).map_err(failed)?;
        Ok(Bench { shared, nic, queue, region, ids: AtomicU64::new(1) })
    }

    /// Try the way to device `device` of `view`, with the row `gid` as our address: `limit` for each answer of the handshake port,
    /// `move_limit` for each request.
    pub(super) fn attempt(
        &self,
        gid: &Gid,
        (view, device): (&View, usize),
        calls: &dyn Calls,
        limit: Duration,
        move_limit: Duration,
    ) -> Result<Figures, Failure> {
        let place = Place { gid_index: gid.index, gid: gid.gid.octets(), ..self.nic.place() };
        let pairs: Vec<Pair> = (0..self.nic.limits.pairs).map(|_| self.pair()).collect::<Result<_, _>>()?;
        self.connect(&place, &pairs, (view, device), calls, limit.min(DIAL_LIMIT))?;
        for pair in &pairs {
            self.go(pair, NOTHING, move_limit)?;
        }
        let rounds = (0..ROUNDS).map(|_| self.go(&pairs[0], NOTHING, move_limit));
        let mut writes = rounds.collect::<Result<Vec<Duration>, Failure>>()?;
        writes.sort_unstable();
        let read = readable(view, device)
            .map(|request| Read { bytes: request.len, result: self.go(&pairs[0], request, move_limit) });
        Ok(Figures { writes, read })
    }

    fn pair(&self) -> Result<Pair, Failure> {
        let failed = |error: VerbsError| Failure::verb(RdmaStep::Init, &error);
        let (limits, settings) = (self.nic.limits, &self.shared.settings);
        let wr = REQUESTS.min(limits.requests as u32);
        let caps = Caps { wr, sge: limits.sge, inline: limits.inline };
        let pair = Pair::new(&self.nic.domain, &self.queue, caps).map_err(failed)?;
        pair.init(self.nic.port, settings.pkey_index).map_err(failed)?;
        Ok(pair)
    }

    /// Ask the peer for its queue pairs, and connect ours with them.
    fn connect(
        &self,
        place: &Place,
        pairs: &[Pair],
        (view, device): (&View, usize),
        calls: &dyn Calls,
        limit: Duration,
    ) -> Result<(), Failure> {
        let now = (self.shared.clock)();
        let mut link = Link::new(Near {
            path: nic_path(&self.shared.server, &self.nic.name),
            peer: view.path(device).to_owned(),
            numbers: pairs.iter().map(Pair::number).collect(),
            gid: place.gid,
            lid: place.lid,
        });
        let Want::Dial(request) = link.want(now) else { unreachable!("a new link dials") };
        let reply = calls.connect(&view.segment, &request, limit);
        let reply = reply.map_err(|error| Failure::unreachable(RdmaStep::Dial, &error))?;
        let mut broken = None;
        let far = link::far(&reply, Some(&view.descriptor), pairs.len());
        let next = link.answered(&reply, far, now, |far| {
            self.bring_up(place, pairs, far).map_err(|failure| {
                let (step, words) = (failure.step, failure.words.clone());
                broken = Some(failure);
                Unconnected { step, words, invalid: false, remedy: None }
            })
        });
        if let Some(failure) = broken {
            return Err(failure);
        }
        let mut step = RdmaStep::Dial;
        if let Next::Ack(ack) = next {
            step = RdmaStep::Ready;
            match calls.connect(&view.segment, &ack, limit) {
                Ok(answer) => link.ack_answered(&answer),
                Err(error) => return Err(Failure::unreachable(step, &error)),
            }
        }
        match link.over() {
            None => Ok(()),
            Some(over) => Err(Failure::over(step, over)),
        }
    }

    fn bring_up(&self, place: &Place, pairs: &[Pair], far: &Far) -> Result<(), Failure> {
        pairs.iter().zip(&far.numbers).try_for_each(|(pair, number)| {
            let way = self.shared.way(self.nic, place, far, *number);
            pair.connect(&way).map_err(|error| {
                let step = if error.what.ends_with("RTS") { RdmaStep::Rts } else { RdmaStep::Rtr };
                Failure::verb(step, &error)
            })
        })
    }

    /// Have `request` carried out: how long that took.
    fn go(&self, pair: &Pair, request: Request, limit: Duration) -> Result<Duration, Failure> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut chain = Chain::new();
        let Request { direction, len, remote, rkey } = request;
        let work = Work { direction, offset: 0, len, remote_address: remote, rkey, id, signaled: true };
        chain.push(&self.region, work).expect("no more than the region has");
        let start = (self.shared.clock)();
        pair.post(&mut chain).map_err(|refused| Failure {
            step: RdmaStep::Post,
            cause: Cause::Verb { call: "ibv_post_send", errno: refused.source.raw_os_error().unwrap_or(0) },
            words: refused.to_string(),
        })?;
        let completion = self.completion(id, start, limit)?;
        if completion.status.is_ok() {
            return Ok((self.shared.clock)().since(start));
        }
        Err(Failure::completion(completion.status, completion.vendor_error))
    }

    /// The completion of request `id`, which was posted at `start`.
    fn completion(&self, id: u64, start: Mono, limit: Duration) -> Result<Completion, Failure> {
        let broken = |error: VerbsError| Failure::verb(RdmaStep::Move, &error);
        let mut list = [Completion::EMPTY; 8];
        let mut armed = false;
        loop {
            let fetched = self.queue.poll(&mut list).map_err(broken)?;
            // Others are of tries that are over.
            if let Some(found) = list[..fetched].iter().find(|completion| completion.id == id) {
                return Ok(*found);
            }
            let waited = (self.shared.clock)().since(start);
            if waited >= limit {
                let words = format!("no completion within {limit:?}");
                return Err(Failure { step: RdmaStep::Move, cause: Cause::Silence(limit), words });
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else if !armed {
                // What came before it was armed makes no event: poll once more.
                self.queue.arm().map_err(broken)?;
                armed = true;
            } else {
                let _ = wait_readable(&[self.queue.fd()], limit.saturating_sub(waited).min(SLEEP_MAX));
                self.queue.clear();
                armed = false;
            }
        }
    }
}

/// A read of memory that device `device` of the peer offers, if there is any.
fn readable(view: &View, device: usize) -> Option<Request> {
    let buffers = view.descriptor.buffers.iter().filter(|buffer| buffer.length > 0);
    let keyed = buffers.filter_map(|buffer| Some((buffer.length, buffer.address, *buffer.rkey.get(device)?)));
    let (length, remote, rkey) = keyed.max_by_key(|(length, ..)| *length)?;
    let len = u32::try_from(length).unwrap_or(u32::MAX).min(READ_BYTES);
    Some(Request { direction: Direction::Read, len, remote, rkey })
}

impl Failure {
    fn verb(step: RdmaStep, error: &VerbsError) -> Failure {
        Failure { step, cause: Cause::Verb { call: error.what, errno: error.errno() }, words: error.to_string() }
    }

    fn unreachable(step: RdmaStep, error: &TransferError) -> Failure {
        Failure { step, cause: Cause::Unreachable, words: error.chain().to_string() }
    }

    fn completion(status: Status, vendor: u32) -> Failure {
        let words = format!("work completion {status}, vendor error {vendor:#x}");
        Failure { step: RdmaStep::Move, cause: Cause::Completion(status), words }
    }

    /// Why there is no connection.
    fn over(step: RdmaStep, over: &Over) -> Failure {
        let cause = match over {
            Over::Refused(_) => Cause::Refused,
            Over::NoRdma => Cause::NoRdma,
            _ => Cause::Answer,
        };
        Failure { step, cause, words: over.to_string() }
    }
}
