//! One end of a connection between a device of ours and one of a peer: its queue pairs, what is posted on them, and what waits for
//! room.
//!
//! Of a chain of requests only the last asks for a completion (and every sixteenth, and the last of each batch): a queue pair carries
//! requests out in order, so that one completion tells of all before it. A request that fails always makes one.
//!
//! An endpoint is used until something on it fails. Then it is retired: its queue pairs go into the error state, what was posted comes
//! back, and the next request to the same peer makes a new endpoint. A retired one lasts until the device has let go of every request.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::verbs::{self, Chain, Completion, Direction, Pair};
use crate::engine::transfer::rdma::batch::{Batch, Trouble, Work};
use crate::engine::transfer::rdma::fault::{Blame, RdmaStep};
use crate::engine::transfer::rdma::link::{self, Link};
use crate::engine::transfer::rdma::nic::{Nic, Over, Place};
use crate::engine::transfer::transport::OpKind;
use crate::engine::wire::json::{Connection, gid_text};

/// At least every so many requests one asks for a completion.
const SIGNAL_EVERY: usize = 16;

/// One end of a connection.
pub(super) struct Endpoint {
    path: String,
    /// Our address, as the peer is told.
    place: Place,
    state: Mutex<State>,
    /// The link's state changed.
    settled: Condvar,
}

pub(super) struct State {
    pub(super) link: Link,
    pub(super) lines: Vec<Line>,
    /// May requests be posted?
    pub(super) open: bool,
    /// Why it is retired, if it is.
    pub(super) gone: Option<Trouble>,
    /// Did a request ever end well?
    moved: bool,
    pending: VecDeque<Work>,
    used: Mono,
    /// Which queue pair is first when next something is posted.
    turn: usize,
    /// Room for the next chain.
    chain: Chain<'static>,
}

/// A queue pair, and what is posted on it.
pub(super) struct Line {
    pub(super) pair: Pair,
    /// Tells its completions from those of an earlier queue pair of the same number.
    stamp: u32,
    /// The request at the front of `posted`.
    first: u32,
    posted: VecDeque<Work>,
}

impl Line {
    pub(super) fn new(pair: Pair, stamp: u32) -> Line {
        Line { pair, stamp, first: 0, posted: VecDeque::new() }
    }

    fn id(&self, request: u32) -> u64 {
        u64::from(self.stamp) << 32 | u64::from(request)
    }

    /// How many requests are over when the one of this `id` is.
    fn over(&self, id: u64) -> Option<usize> {
        let request = id as u32;
        let count = request.wrapping_sub(self.first) as usize + 1;
        (id == self.id(request) && count <= self.posted.len()).then_some(count)
    }
}

impl Endpoint {
    pub(super) fn new(path: String, place: Place, link: Link, lines: Vec<Line>, now: Mono) -> Endpoint {
        let state = State {
            link,
            lines,
            open: false,
            gone: None,
            moved: false,
            pending: VecDeque::new(),
            used: now,
            turn: 0,
            chain: Chain::new(),
        };
        Endpoint { path, place, state: Mutex::new(state), settled: Condvar::new() }
    }

    /// The peer's end, as it names it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Our address, as the peer is told.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Is it retired?
    pub(super) fn is_gone(&self) -> bool {
        self.state().gone.is_some()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tell those who wait for the link.
    pub(super) fn settle(&self) {
        self.settled.notify_all();
    }

    /// Let go of `state` until the link's state changes or `limit` is over.
    pub(super) fn await_change<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.settled.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Since when there was nothing to do for it; `None` when there is, or somebody is looking at it.
    pub(super) fn idle_since(&self) -> Option<Mono> {
        let state = self.state.try_lock().ok()?;
        state.is_idle().then_some(state.used)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().open
    }

    /// The ready ACK of its connection, and whether the peer knows such; `None` while there is no connection.
    pub(super) fn ack(&self) -> Option<(Connection, bool)> {
        let state = self.state();
        let (near, far) = (state.link.near(), state.link.far()?);
        let ack = Connection {
            local_nic_path: near.path.clone(),
            peer_nic_path: near.peer.clone(),
            qp_num: near.numbers.clone(),
            local_gid: gid_text(&near.gid),
            local_lid: near.lid,
            ready_ack: Some(true),
            ..Connection::default()
        };
        Some((ack, far.acks))
    }

    /// Did anything that was posted on it ever end well?
    pub(super) fn has_moved(&self) -> bool {
        self.state().moved
    }

    /// Is anything of `batch` posted on it?
    pub(super) fn carries(&self, batch: &Arc<Batch>) -> bool {
        let ours = |work: &Work| Arc::ptr_eq(&work.batch, batch);
        self.state().lines.iter().any(|line| line.posted.iter().any(ours))
    }

    /// Is it retired, and nothing left of it?
    pub(super) fn is_buried(&self) -> bool {
        let state = self.state();
        state.gone.is_some() && state.lines.is_empty()
    }

    /// The numbers of its queue pairs.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.state().lines.iter().map(|line| line.pair.number()).collect()
    }

    /// Take `works` over: post them now, or when there is room and a connection.
    pub(super) fn push(self: &Arc<Self>, nic: &Nic, works: Vec<Work>, now: Mono, over: &mut Over) {
        let mut state = self.state();
        state.used = now;
        if let Some(gone) = state.gone.clone() {
            for work in works {
                over.bad(work.batch, work.part, gone.clone());
            }
            return;
        }
        state.pending.extend(works);
        self.post(nic, &mut state, over);
    }

    /// Post what waits for room.
    pub(super) fn pump(self: &Arc<Self>, nic: &Nic, over: &mut Over) {
        self.post(nic, &mut self.state(), over);
    }

    /// See to completions of one of its queue pairs.
    pub(super) fn completed(self: &Arc<Self>, nic: &Nic, completions: &[Completion], over: &mut Over) {
        let mut state = self.state();
        let State { lines, gone, moved, .. } = &mut *state;
        let Some(line) = lines.iter_mut().find(|line| line.pair.number() == completions[0].pair) else { return };
        let (mut freed, mut broken) = (0, None);
        for completion in completions {
            let Some(count) = line.over(completion.id) else {
                tracing::debug!(device = %nic.name, id = completion.id, "completion of an earlier queue pair");
                continue;
            };
            freed += count;
            line.first = line.first.wrapping_add(count as u32);
            let (ok, flushed) = (completion.status.is_ok(), completion.status.is_flush());
            *moved |= ok;
            if !ok {
                broken.get_or_insert((completion.status, completion.vendor_error));
            }
            for (at, work) in line.posted.drain(..count).enumerate() {
                // What was carried out before the queue pair broke and asked for no completion looks like what was dropped.
                if flushed {
                    over.bad(work.batch, work.part, gone.clone().unwrap_or(Trouble::Dropped));
                } else if !ok && at + 1 == count {
                    nic.figures.failures.of(Blame::of(completion.status)).fetch_add(1, Ordering::Relaxed);
                    over.bad(work.batch, work.part, Trouble::Status(completion.status, completion.vendor_error));
                } else {
                    nic.moved(&work);
                    over.good(work.batch);
                }
            }
        }
        nic.give_room(freed);
        if let (Some((status, vendor)), None) = (broken, &state.gone) {
            tracing::debug!(device = %nic.name, peer = %self.path, %status, vendor, "request failed; endpoint is retired");
            self.retire_locked(nic, &mut state, &Trouble::Dropped, over);
        }
        if state.gone.is_some() { self.bury(nic, &mut state) } else { self.post(nic, &mut state, over) }
    }

    /// Use it no more. What is posted comes back as the device lets go of it, what waits does at once with `why`.
    pub(super) fn retire(&self, nic: &Nic, why: &Trouble) {
        let mut over = Over::default();
        let mut state = self.state();
        self.retire_with(nic, &mut state, why, &mut over);
        drop(state);
        over.deliver();
    }

    /// The same where its state is locked already.
    pub(super) fn retire_with(&self, nic: &Nic, state: &mut State, why: &Trouble, over: &mut Over) {
        if state.gone.is_none() {
            self.retire_locked(nic, state, why, over);
            self.bury(nic, state);
        }
    }

    fn retire_locked(&self, nic: &Nic, state: &mut State, why: &Trouble, over: &mut Over) {
        state.gone = Some(why.clone());
        state.open = false;
        state.link.end(link::Over::Retired("it is retired".to_owned()));
        nic.drop_endpoint(self);
        nic.figures.retired.fetch_add(1, Ordering::Relaxed);
        match why {
            Trouble::Link(_) => nic.figures.failures.connection.fetch_add(1, Ordering::Relaxed),
            Trouble::Silent(_) => nic.figures.failures.of(Blame::Peer).fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        for line in &state.lines {
            if !line.posted.is_empty()
                && let Err(error) = line.pair.fail()
            {
                tracing::debug!(device = %nic.name, %error, "queue pair does not go into the error state");
            }
        }
        for work in state.pending.drain(..) {
            over.bad(work.batch, work.part, why.clone());
        }
        self.settle();
    }

    /// Destroy the queue pairs of a retired endpoint that the device has let go of.
    fn bury(&self, nic: &Nic, state: &mut State) {
        state.lines.retain(|line| {
            let busy = !line.posted.is_empty();
            if !busy {
                nic.drop_pair(line.pair.number());
            }
            busy
        });
    }

    /// The batch's time is over: take back what waits, and, where something of it is posted, retire the endpoint. (A single request
    /// cannot be called back.)
    pub(super) fn withdraw(&self, nic: &Nic, batch: &Arc<Batch>) {
        let mut over = Over::default();
        let mut state = self.state();
        let (ours, others): (VecDeque<Work>, VecDeque<Work>) =
            std::mem::take(&mut state.pending).into_iter().partition(|work| Arc::ptr_eq(&work.batch, batch));
        state.pending = others;
        for work in ours {
            over.bad(work.batch, work.part, Trouble::Dropped);
        }
        let is_posted = |line: &Line| line.posted.iter().any(|work| Arc::ptr_eq(&work.batch, batch));
        if state.gone.is_none() && state.lines.iter().any(is_posted) {
            tracing::debug!(device = %nic.name, peer = %self.path, "a batch's time is over; endpoint is retired");
            self.retire_with(nic, &mut state, &Trouble::Dropped, &mut over);
        }
        drop(state);
        over.deliver();
    }

    /// Destroy the queue pairs of a retired endpoint though the device has not told of all requests: once they are destroyed it has
    /// let go.
    pub(super) fn abandon(&self, nic: &Nic) {
        let mut over = Over::default();
        let mut state = self.state();
        if state.gone.is_none() {
            return;
        }
        for mut line in std::mem::take(&mut state.lines) {
            nic.drop_pair(line.pair.number());
            let posted = std::mem::take(&mut line.posted);
            drop(line);
            nic.give_room(posted.len());
            for work in posted {
                over.bad(work.batch, work.part, Trouble::Dropped);
            }
        }
        drop(state);
        nic.feed(&mut over);
        over.deliver();
    }

    /// Post what there is room for. Contiguous runs on each queue pair.
    pub(super) fn post(self: &Arc<Self>, nic: &Nic, state: &mut State, over: &mut Over) {
        if !state.open || state.pending.is_empty() {
            return;
        }
        let count = state.lines.len();
        let free: usize = state.lines.iter().map(|line| nic.limits.requests - line.posted.len()).sum();
        let wanted = free.min(state.pending.len());
        let mut room = nic.take_room(wanted);
        if room < wanted {
            nic.starves(self);
            // Room that came back before that was known has told nobody.
            room += nic.take_room(wanted - room);
        }
        let first = state.turn;
        for at in 0..count {
            if room == 0 {
                break;
            }
            let index = (first + at) % count;
            let free = nic.limits.requests - state.lines[index].posted.len();
            // What the queue pairs to come can take leaves this one at least the rest.
            let others: usize = (at + 1..count)
                .map(|later| nic.limits.requests - state.lines[(first + later) % count].posted.len())
                .sum();
            let share = room.div_ceil(count - at).max(room.saturating_sub(others)).min(free);
            room -= share;
            if share > 0 && !self.post_run(nic, state, index, share, over) {
                nic.give_room(room);
                return;
            }
            state.turn = (index + 1) % count;
        }
        nic.give_room(room);
    }

    /// Post the next `count` on a queue pair. Did it take them?
    fn post_run(&self, nic: &Nic, state: &mut State, index: usize, count: usize, over: &mut Over) -> bool {
        let State { lines, pending, chain, .. } = &mut *state;
        let line = &mut lines[index];
        let next = line.first.wrapping_add(line.posted.len() as u32);
        let mut requests = std::mem::take(chain).recycle();
        for at in 0..count {
            let work = &pending[at];
            let last_of_batch = pending.get(at + 1).is_none_or(|next| !Arc::ptr_eq(&next.batch, &work.batch));
            let request = verbs::Work {
                direction: match work.kind {
                    OpKind::Read => Direction::Read,
                    OpKind::Write => Direction::Write,
                },
                offset: work.offset,
                len: work.len,
                remote_address: work.remote,
                rkey: work.rkey,
                id: line.id(next.wrapping_add(at as u32)),
                signaled: at + 1 == count || last_of_batch || (at + 1) % SIGNAL_EVERY == 0,
            };
            requests.push(&work.region, request).expect("parts are cut inside their regions");
        }
        let posted = line.pair.post(&mut requests);
        *chain = requests.recycle();
        nic.figures.requests.fetch_add(count as u64, Ordering::Relaxed);
        let taken = posted.as_ref().map_or_else(|refused| refused.posted, |()| count);
        line.posted.extend(pending.drain(..taken));
        let Err(refused) = posted else { return true };
        nic.give_room(count - taken);
        nic.figures.failures.of(Blame::Device).fetch_add(1, Ordering::Relaxed);
        let error = nic.fault(&self.path, RdmaStep::Post, refused.to_string(), Blame::Device);
        tracing::warn!(%error, "requests were not taken; endpoint is retired");
        for (at, work) in pending.drain(..count - taken).enumerate() {
            let trouble = if at == 0 { Trouble::Device(error.clone()) } else { Trouble::Dropped };
            over.bad(work.batch, work.part, trouble);
        }
        self.retire_with(nic, state, &Trouble::Dropped, over);
        false
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.lines.iter().all(|line| line.posted.is_empty())
    }

    pub(super) fn touch(&mut self, now: Mono) {
        self.used = now;
    }
}

impl Nic {
    /// Count a request that is done.
    fn moved(&self, work: &Work) {
        let bytes = match work.kind {
            OpKind::Read => &self.figures.read_bytes,
            OpKind::Write => &self.figures.written_bytes,
        };
        bytes.fetch_add(u64::from(work.len), Ordering::Relaxed);
    }
}
