//! A simulated client: it registers a segment, and puts, reads and removes keys, one call at a time.

use super::event::Event;
use super::report::Violation;
use super::request::{Reply, Request};
use super::world::{AckedPut, World};
use crate::engine::base::rng::Rng;
use crate::engine::master::tests::NOT_FOUND;

/// A simulated client of the cluster.
pub struct Client {
    /// The master that the leader's key names, as last read.
    pub target: Option<usize>,
    /// The call in progress, and its request.
    pub call: u64,
    pub request: Option<Request>,
    pub is_registered: bool,
    pub must_register: bool,
    pub last_ping: u64,
    next_key: u64,
    /// A put in progress.
    put: Option<Put>,
    /// When the request in progress was sent.
    sent: u64,
    /// Delays of its messages.
    rng: Rng,
}

impl Client {
    /// A client without a call in progress.
    pub(super) fn new(rng: Rng) -> Client {
        Client {
            target: None,
            call: 0,
            request: None,
            is_registered: false,
            must_register: false,
            last_ping: 0,
            next_key: 0,
            put: None,
            sent: 0,
            rng,
        }
    }

    /// The delay of a message: usually short.
    pub(super) fn delay(&mut self) -> u64 {
        match self.rng.below(50) {
            0 => self.rng.below(100_000) as u64,
            _ => 50 + self.rng.below(1_500) as u64,
        }
    }
}

#[derive(Clone, Debug)]
struct Put {
    key: String,
    at: u64,
    /// When the client gives up ending it.
    until: u64,
}

/// How long a client waits for a response, in microseconds.
const CALL_TIMEOUT: u64 = 2_000_000;
/// Keys above this number are not written. All of them fit into the segments.
const KEYS_MAX: usize = 40;
const PING_EVERY: u64 = 1_000_000;
/// A reader uses an address for less time than its lease.
const READ_LIMIT: u64 = 4_000_000;

impl World {
    /// Begins the next call of a client.
    pub(super) fn step_client(&mut self, nth: usize) {
        if self.clients[nth].request.is_some() {
            return;
        }
        let Some(target) = self.clients[nth].target else { return self.resolve(nth) };
        let number = nth as u64 + 1;
        let is_ping_due = self.now >= self.clients[nth].last_ping + PING_EVERY;
        let client = &self.clients[nth];
        let request = if client.must_register || !client.is_registered {
            Request::Register(number)
        } else if is_ping_due {
            Request::Ping(number)
        } else if let Some(put) = client.put.clone() {
            if self.now > put.until {
                self.clients[nth].put = None;
                self.junk.push(put.key);
                return self.after(1000, Event::Client(nth));
            }
            Request::End(number, put.key)
        } else {
            // A key that still has a lease cannot be removed yet.
            let junk = if self.rng.below(3) == 0 { self.junk.pop() } else { None };
            match self.rng.below(100) {
                _ if junk.is_some() => Request::Remove(junk.unwrap_or_default()),
                0..55 if self.acked.len() < KEYS_MAX => {
                    self.clients[nth].next_key += 1;
                    Request::Start(number, format!("{number}-{}", self.clients[nth].next_key))
                }
                0..80 => match self.some_key() {
                    Some(key) => Request::Read(key),
                    None => return self.after(10_000, Event::Client(nth)),
                },
                _ => match self.some_key() {
                    Some(key) => {
                        // Its outcome may stay unknown.
                        self.acked.remove(&key);
                        Request::Remove(key)
                    }
                    None => return self.after(10_000, Event::Client(nth)),
                },
            }
        };
        let client = &mut self.clients[nth];
        client.call += 1;
        client.sent = self.now;
        client.request = Some(request.clone());
        if is_ping_due {
            client.last_ping = self.now;
        }
        let call = client.call;
        let delay = self.delay();
        self.after(delay, Event::Request { client: nth, call, node: target, request });
        self.after(CALL_TIMEOUT, Event::Timeout { client: nth, call });
    }

    fn some_key(&mut self) -> Option<String> {
        if !self.dropped.is_empty() && self.rng.below(4) == 0 {
            let nth = self.rng.below(self.dropped.len());
            return self.dropped.get(nth).cloned();
        }
        let count = self.acked.len();
        if count == 0 {
            return None;
        }
        let nth = self.rng.below(count);
        self.acked.keys().nth(nth).cloned()
    }

    /// Reads the leader's key.
    fn resolve(&mut self, nth: usize) {
        let delay = self.delay();
        let key = self.etcd.observation().leader.filter(|_| self.is_etcd_up);
        let node = key.and_then(|key| (0..self.nodes.len()).find(|it| key.address == format!("node-{it}:50051")));
        self.clients[nth].target = node;
        let pause = if node.is_some() { delay } else { 100_000 };
        self.after(pause, Event::Client(nth));
    }

    /// The call ended without a response.
    pub(super) fn fail_call(&mut self, nth: usize, call: u64) {
        let client = &mut self.clients[nth];
        if client.call == call
            && let Some(request) = client.request.take()
        {
            client.target = None;
            if let Request::Start(_, key) | Request::Remove(key) = request {
                // The outcome is unknown.
                self.junk.push(key);
            }
            self.after(20_000, Event::Client(nth));
        }
    }

    /// Handles the response to a client's call.
    pub(super) fn reply(&mut self, nth: usize, call: u64, reply: Reply) -> Result<(), Violation> {
        let client = &mut self.clients[nth];
        if client.call != call {
            return Ok(());
        }
        let Some(request) = client.request.take() else { return Ok(()) };
        if let Request::Read(key) | Request::Remove(key) | Request::End(_, key) = &request {
            self.trace(|| format!("client {nth} {key}: {request:?} -> {reply:?}"));
        }
        let client = &mut self.clients[nth];
        let mut pause = 1_000 + self.rng.below(100_000) as u64;
        match (request, reply) {
            (request, Reply::Refused) => {
                client.target = None;
                if let Request::Remove(key) = request {
                    self.junk.push(key);
                }
                pause = 20_000;
            }
            (Request::Register(_), Reply::Done) => (client.is_registered, client.must_register) = (true, false),
            (Request::Ping(_), Reply::Remount) => client.must_register = true,
            (Request::Start(_, key), Reply::At(at)) => {
                // The value arrives later, before the end of the write.
                client.put = Some(Put { key: key.clone(), at, until: self.now + 8_000_000 });
                let slow = if self.rng.below(4) == 0 { 3_000_000 } else { 30_000 };
                let wait = self.rng.below(slow) as u64;
                self.after(wait, Event::Write { client: nth, key, at });
                return Ok(());
            }
            (Request::End(_, key), Reply::Done) => {
                if let Some(put) = client.put.take() {
                    self.totals.puts += 1;
                    self.last_put = self.now;
                    let sent = client.sent;
                    self.trace(|| format!("acknowledged {key}"));
                    if sent <= self.lost_before {
                        self.junk.push(key);
                    } else {
                        self.acked.insert(key, AckedPut { at: put.at, since: self.now });
                    }
                }
            }
            (Request::End(_, key), Reply::Failed(_)) => {
                client.put = None;
                self.junk.push(key);
            }
            (Request::Remove(key), Reply::Failed(code)) if code != NOT_FOUND.0 => self.junk.push(key),
            (Request::Read(key), Reply::Missing)
                if self.acked.get(&key).is_some_and(|put| put.since <= client.sent) =>
            {
                return Err(Violation::Lost { key });
            }
            (Request::Read(key), Reply::At(at)) => {
                let sent = client.sent;
                let wait = self.rng.below(20_000) as u64;
                self.after(wait, Event::Copy { key, at, until: sent + READ_LIMIT });
            }
            (Request::Start(..), Reply::Failed(_)) => pause = 50_000,
            _ => {}
        }
        self.after(pause, Event::Client(nth));
        Ok(())
    }

    /// A writer's bytes arrive at an address.
    pub(super) fn write(&mut self, key: &str, at: u64) {
        use super::request::VALUE;
        let overlapping: Vec<u64> =
            self.memory.range(at.saturating_sub(VALUE - 1)..at + VALUE).map(|(start, _)| *start).collect();
        for start in overlapping {
            self.memory.remove(&start);
        }
        self.memory.insert(at, key.to_owned());
    }
}
