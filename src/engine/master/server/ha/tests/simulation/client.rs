//! A simulated client: its process has a segment, and writes, reads and removes keys, one call at a
//! time.

use std::sync::Arc;

use super::event::Event;
use super::memory::{StoredValue, segment_of};
use super::model::KeyState;
use super::operation::{Operation, Reply, Request, WriteEnd, WriteStart};
use super::report::Violation;
use super::world::{World, message_delay};
use crate::unit_tests::NOT_FOUND;
use mcctl_base::rng::Rng;

/// A simulated client of the cluster.
pub(super) struct Client {
    /// The master that the leader's key names, as last read.
    pub leader: Option<usize>,
    /// The master that it is connected to.
    pub target: Option<usize>,
    /// The number of the last call, which may be in progress.
    pub call: u64,
    pub sent: Option<SentRequest>,
    /// The numbers of its process and its segment. No number is used twice.
    pub process: u64,
    pub segment: u64,
    pub is_mounted: bool,
    pub must_register: bool,
    pub last_ping: u64,
    /// Send time of the last mount, registration or ping with a response.
    last_answered: u64,
    /// Its process does not run before this time.
    pub stopped_until: u64,
    /// A write in progress.
    pub write: Option<Write>,
    /// A write whose addresses were lost with the response to its start. It is revoked.
    pub lost_start: Option<WriteEnd>,
    /// Delays of its messages.
    rng: Rng,
}

/// A call in progress.
pub(super) struct SentRequest {
    pub operation: Operation,
    pub at: u64,
    /// If it may change a key: the state of that key before.
    pub before: Option<KeyState>,
}

/// A write that has its memory.
pub(super) struct Write {
    pub end: WriteEnd,
    number: u32,
    /// The addresses of its replicas, and those in memory that is not lost.
    pub at: Vec<u64>,
    pub kept: Vec<u64>,
    /// The client does not send the end after this time.
    until: u64,
    /// Some of its memory could not be written.
    is_failed: bool,
    /// Its bytes have arrived, or could not be written.
    is_written: bool,
    /// The end of the write was sent. Its outcome is not known yet.
    pub is_end_sent: bool,
    /// Number of lost responses to the end.
    pub ends_lost: u32,
}

/// A client that sends no pings for longer may expire.
pub(super) const CLIENT_SILENCE: u64 = 5_000_000;
/// Time for which a client waits for a response, in microseconds.
const CALL_TIMEOUT: u64 = 2_000_000;
const PING_EVERY: u64 = 1_000_000;
/// A reader uses an address for less time than its lease.
const READ_LIMIT: u64 = 4_000_000;
/// A writer writes to its memory, and ends the write, for less time than the memory is kept for it.
const WRITE_LIMIT: u64 = 4_000_000;
const END_LIMIT: u64 = 8_000_000;
/// A message in the network, or in the buffers of a host that was stopped, arrives this much later
/// at most.
const LATE: usize = 20_000_000;
/// Maximum number of times for which a client sends the end of a write whose response is lost.
const ENDS_SENT_MAX: u32 = 2;

impl Client {
    /// The `nth` client, before its first call.
    pub(super) fn new(nth: u64, rng: Rng) -> Client {
        Client {
            leader: None,
            target: None,
            call: 0,
            sent: None,
            process: nth,
            segment: nth,
            is_mounted: false,
            must_register: false,
            last_ping: 0,
            last_answered: 0,
            stopped_until: 0,
            write: None,
            lost_start: None,
            rng,
        }
    }

    /// The delay of a message: usually short.
    pub(super) fn delay(&mut self) -> u64 {
        message_delay(&mut self.rng)
    }
}

impl World {
    /// Begins the next call of a client.
    pub(super) fn step_client(&mut self, nth: usize) {
        let client = &self.clients[nth];
        if client.sent.is_some() || client.write.as_ref().is_some_and(|write| !write.is_written) {
            return;
        }
        if client.stopped_until > self.now {
            return self.after(client.stopped_until - self.now, Event::Client(nth));
        }
        if client.target.is_none() {
            return self.resolve(nth);
        }
        match self.next_operation(nth) {
            Some(operation) => self.send(nth, operation),
            None => self.after(10_000, Event::Client(nth)),
        }
    }

    fn next_operation(&mut self, nth: usize) -> Option<Operation> {
        let now = self.now;
        let client = &mut self.clients[nth];
        if client.must_register {
            return Some(Operation::Register);
        }
        if !client.is_mounted {
            return Some(Operation::Mount);
        }
        if now >= client.last_ping + PING_EVERY {
            client.last_ping = now;
            return Some(Operation::Ping);
        }
        if let Some(write) = &client.write {
            let end = write.end.clone();
            if now <= write.until && !write.is_failed && write.ends_lost < ENDS_SENT_MAX {
                return Some(Operation::End(end));
            }
            let is_end_unknown = write.is_end_sent;
            client.write = None;
            if is_end_unknown {
                self.model.end_change(&end.key, KeyState::Unknown);
                return None;
            }
            return Some(Operation::Revoke(end));
        }
        if let Some(lost) = client.lost_start.take() {
            return Some(Operation::Revoke(lost));
        }
        Some(match self.rng.below(400) {
            0 => Operation::Unmount,
            1..180 => {
                let (key, is_pinned) = self.model.key_to_write(nth, &mut self.rng);
                let is_upsert = self.rng.below(4) == 0;
                let replicas = if self.rng.below(5) == 0 { 2 } else { 1 };
                self.last_number += 1;
                Operation::Start(WriteStart { key, is_upsert, is_pinned, replicas, writer: self.last_number })
            }
            180..290 => Operation::Read(self.model.some_key(&mut self.rng)),
            290..330 => Operation::Exist(self.model.some_key(&mut self.rng)),
            _ => Operation::Remove(self.model.some_key(&mut self.rng)),
        })
    }

    fn send(&mut self, nth: usize, operation: Operation) {
        let token = Arc::new(());
        let before = match &operation {
            Operation::End(end) => {
                let write = self.clients[nth].write.as_mut();
                // A write whose end is sent again is on its way already.
                let is_first = write.is_some_and(|write| !std::mem::replace(&mut write.is_end_sent, true));
                is_first.then(|| self.model.begin_change(&end.key))
            }
            Operation::Remove(key) | Operation::Start(WriteStart { key, is_upsert: true, .. }) => {
                let before = self.model.begin_change(key);
                self.model.add_hiding(key, Arc::downgrade(&token));
                Some(before)
            }
            _ => None,
        };
        if operation == Operation::Unmount {
            let segment = self.clients[nth].segment;
            self.lose_segment(segment);
        }
        let client = &mut self.clients[nth];
        let request = Request {
            client: client.process,
            segment: client.segment,
            segment_bytes: self.plan.segment_bytes,
            operation: operation.clone(),
            token,
        };
        client.call += 1;
        let call = client.call;
        let node = client.target.unwrap_or(0);
        let incarnation = self.nodes[node].incarnation;
        client.sent = Some(SentRequest { operation, at: self.now, before });
        let is_sent_twice = request.operation.may_arrive_twice() && self.rng.below(100) == 0;
        if is_sent_twice {
            self.totals.duplicates += 1;
            let delay = self.delay() + self.rng.below(LATE) as u64;
            self.after(delay, Event::Request { client: nth, call, node, incarnation, request: request.clone() });
        }
        let is_late = self.rng.below(200) == 0;
        self.totals.late += u64::from(is_late);
        let delay = self.delay() + if is_late { self.rng.below(LATE) as u64 } else { 0 };
        self.after(delay, Event::Request { client: nth, call, node, incarnation, request });
        self.after(CALL_TIMEOUT, Event::Timeout { client: nth, call });
    }

    /// Connects to the leader that the watch has reported last.
    fn resolve(&mut self, nth: usize) {
        let delay = self.delay();
        // While etcd is down, the watch reports nothing, so the client uses the former leader.
        let node = self.clients[nth].leader;
        self.clients[nth].target = node;
        // A client that finds no leader may expire at a leader that is cut off from etcd, while
        // other clients are still connected to it.
        let client = &self.clients[nth];
        if node.is_none()
            && client.last_answered + CLIENT_SILENCE < self.now
            && !self.unsafe_segments.contains(&client.segment)
        {
            self.lose_segment(client.segment);
        }
        let pause = if node.is_some() { delay } else { 100_000 };
        self.after(pause, Event::Client(nth));
    }

    /// The objects in a segment may be lost from now on.
    pub(super) fn lose_segment(&mut self, segment: u64) {
        self.unsafe_segments.insert(segment);
        let unsafe_segments = &self.unsafe_segments;
        let is_lost = |at: u64| unsafe_segments.contains(&segment_of(at));
        self.model.lose_memory(is_lost);
        for write in self.clients.iter_mut().filter_map(|client| client.write.as_mut()) {
            write.kept.retain(|at| !is_lost(*at));
        }
    }

    /// Handles the response to a client's call.
    pub(super) fn reply(&mut self, nth: usize, call: u64, reply: Reply) -> Result<(), Violation> {
        let client = &mut self.clients[nth];
        if client.call != call {
            return Ok(());
        }
        if client.sent.is_some() && client.stopped_until > self.now {
            let wait = client.stopped_until - self.now;
            self.after(wait, Event::Reply { client: nth, call, reply });
            return Ok(());
        }
        let Some(sent) = self.clients[nth].sent.take() else { return Ok(()) };
        self.trace(|| format!("client {nth} {:?} -> {reply:?}", sent.operation));
        if reply == Reply::Refused {
            self.clients[nth].target = None;
            self.note_refusal(nth, sent);
            self.after(20_000, Event::Client(nth));
            return Ok(());
        }
        let concluded = self.conclude(nth, sent, reply);
        match concluded {
            Ok(None) => {}
            Ok(Some(pause)) => self.after(pause, Event::Client(nth)),
            // Outside the assumptions, the run continues.
            Err(_) => self.after(50_000, Event::Client(nth)),
        }
        concluded.map(|_| ())
    }

    /// Interprets the response to a request. Returns the pause until the next call; `None` if the
    /// client waits for something else.
    fn conclude(&mut self, nth: usize, sent: SentRequest, reply: Reply) -> Result<Option<u64>, Violation> {
        let SentRequest { operation, at: sent, before } = sent;
        let is_after_stop = sent >= self.clients[nth].stopped_until;
        let pause = Some(1_000 + self.rng.below(100_000) as u64);
        let client = &mut self.clients[nth];
        match (operation, reply) {
            (Operation::Mount | Operation::Register, Reply::Done) if is_after_stop => {
                client.last_answered = sent;
                client.is_mounted = true;
                client.must_register = false;
                self.unsafe_segments.remove(&client.segment);
            }
            (Operation::Ping, Reply::Done) if is_after_stop => {
                client.last_answered = sent;
                self.unsafe_segments.remove(&client.segment);
            }
            (Operation::Ping, Reply::Remount) => client.must_register = true,
            (Operation::Unmount, _) => self.mount_another(nth),
            (Operation::Start(start), Reply::At(at)) => {
                if start.is_upsert {
                    self.model.end_change(&start.key, KeyState::Unknown);
                } else {
                    self.model.check_missing(&start.key, sent)?;
                }
                self.begin_write(nth, start, at);
                return Ok(None);
            }
            (Operation::Start(start), _) => {
                if start.is_upsert {
                    self.model.end_change(&start.key, KeyState::Unknown);
                }
                return Ok(Some(50_000));
            }
            (Operation::End(WriteEnd { key, .. }), reply) => {
                if let Some(write) = client.write.take() {
                    let is_stored = reply == Reply::Done && !write.kept.is_empty();
                    let stored = KeyState::Stored { write: write.number, since: self.now, at: write.kept };
                    self.model.end_change(&key, if is_stored { stored } else { KeyState::Unknown });
                }
                if reply == Reply::Done {
                    self.totals.puts += 1;
                    self.last_put = self.now;
                }
            }
            (Operation::Remove(key), Reply::Done) => {
                self.totals.removals += 1;
                self.model.end_change(&key, KeyState::Removed { since: self.now });
            }
            (Operation::Remove(key), Reply::Failed(code)) if code == NOT_FOUND.0 => {
                self.model.end_change(&key, before.unwrap_or_default());
                self.model.check_missing(&key, sent)?;
            }
            (Operation::Remove(key), _) => self.model.end_change(&key, before.unwrap_or_default()),
            (Operation::Exist(key) | Operation::Read(key), Reply::Missing) => self.model.check_missing(&key, sent)?,
            (Operation::Exist(key), Reply::Exists) => {
                self.model.check_found(&key, sent)?;
            }
            (Operation::Read(key), Reply::At(at)) => {
                let oldest = self.model.check_found(&key, sent)?;
                let wait = self.rng.below(20_000) as u64;
                let at = at[self.rng.below(at.len())];
                let oldest = oldest.max(self.model.oldest_at(&key, at, sent));
                self.after(wait, Event::Copy { key, at, oldest, until: sent + READ_LIMIT });
            }
            _ => {}
        }
        Ok(pause)
    }

    /// A write has its memory. Its bytes arrive there a little later.
    fn begin_write(&mut self, nth: usize, start: WriteStart, at: Vec<u64>) {
        let number = self.model.begin_write(&start.key, at.clone(), self.now);
        let kept = at.iter().copied().filter(|at| !self.unsafe_segments.contains(&segment_of(*at))).collect();
        let write = Write {
            end: WriteEnd { key: start.key, is_upsert: start.is_upsert, writer: start.writer },
            number,
            at,
            until: self.now + END_LIMIT,
            kept,
            is_failed: self.rng.below(20) == 0,
            is_written: false,
            is_end_sent: false,
            ends_lost: 0,
        };
        let client = &mut self.clients[nth];
        client.write = Some(write);
        let call = client.call;
        let slow = if self.rng.below(4) == 0 { 3_000_000 } else { 30_000 };
        let wait = self.rng.below(slow) as u64;
        let until = self.now + WRITE_LIMIT;
        self.after(wait, Event::Write { client: nth, call, until });
    }

    /// A writer's bytes arrive, unless its process was stopped for too long, or the memory is lost.
    pub(super) fn write(&mut self, nth: usize, call: u64, until: u64) {
        let client = &mut self.clients[nth];
        if client.stopped_until > self.now {
            let wait = client.stopped_until - self.now;
            return self.after(wait, Event::Write { client: nth, call, until });
        }
        if client.call == call
            && let Some(write) = &mut client.write
        {
            write.is_written = true;
            let is_gone = write.at.iter().any(|at| self.ended_segments.contains(&segment_of(*at)));
            write.is_failed |= is_gone || self.now > until;
            if !write.is_failed {
                let value = StoredValue { key: write.end.key.clone(), write: write.number };
                write.at.iter().for_each(|at| self.memory.write(*at, value.clone()));
            }
        }
        self.step_client(nth);
    }
}
