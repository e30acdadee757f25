//! A device that carries bytes: its port and address, its completion queue, and the connections that go through it.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::verbs::{Completion, Device, Domain, Queue, VerbsError};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::counters::{RailFailures, RailFigures};
use crate::engine::transfer::rdma::batch::{Batch, Trouble};
use crate::engine::transfer::rdma::endpoint::Endpoint;
use crate::engine::transfer::rdma::fault::{Blame, RdmaFault, RdmaStep};
use crate::engine::transfer::rdma::memlock;
use crate::engine::wire::json::gid_text;

/// Idle endpoints are looked for so often.
const CHECK_STEP: Duration = Duration::from_secs(5);
/// Peers for whom another row of the GID table is remembered.
const DETOURS_MAX: usize = 4096;

/// The address of a port, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The row of the GID table.
    pub(super) gid_index: u32,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// Bytes in a packet.
    pub(super) mtu: u32,
}

impl Place {
    pub(super) fn gid_text(&self) -> String {
        gid_text(&self.gid)
    }
}

/// What a connection of this device may ask for, within the device's limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Queue pairs of an endpoint.
    pub(super) pairs: usize,
    /// Requests under way on a queue pair.
    pub(super) requests: usize,
    pub(super) inline: u32,
    pub(super) sge: u32,
    /// Endpoints.
    pub(super) endpoints: usize,
}

/// A device in use.
pub(super) struct Nic {
    /// Its place among the engine's devices.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) limits: Limits,
    pub(super) device: Device,
    pub(super) domain: Arc<Domain>,
    pub(super) queue: Arc<Queue>,
    place: RwLock<Place>,
    /// Peers to which the port's own row of the GID table does not lead, by path: the row for each, and how many were tried.
    detours: Mutex<HashMap<String, (Place, u32)>>,
    /// Requests that the completion queue still has room for.
    room: AtomicUsize,
    /// The device has failed, or its port is down: nothing new goes through it.
    out: AtomicBool,
    /// Its channel tells of events that are not there: the device is gone.
    deaf: AtomicBool,
    /// Why it was taken out of use last.
    why_out: Mutex<&'static str>,
    /// By the peer's path.
    endpoints: Mutex<HashMap<String, Arc<Endpoint>>>,
    /// By the number of each of their queue pairs: whose completion is it? Also endpoints that are no longer in use.
    by_pair: RwLock<HashMap<u32, Arc<Endpoint>>>,
    /// Endpoints that had something to post when the completion queue had no room.
    starved: Mutex<VecDeque<Arc<Endpoint>>>,
    stamps: AtomicU32,
    /// When idle endpoints were looked at last: `Mono`.
    checked: AtomicU64,
    pub(super) figures: Figures,
}

/// What went through a device.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) failures: Failures,
    pub(super) connected: AtomicU64,
    pub(super) retired: AtomicU64,
}

/// See [`RailFailures`].
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) connection: AtomicU64,
    device: AtomicU64,
    refused: AtomicU64,
    peer: AtomicU64,
}

impl Failures {
    /// Of a request.
    pub(super) fn of(&self, blame: Blame) -> &AtomicU64 {
        match blame {
            Blame::Device => &self.device,
            Blame::Peer => &self.peer,
            Blame::Refusal => &self.refused,
        }
    }
}

impl Nic {
    pub(super) fn new(
        index: usize,
        device: Device,
        port: u8,
        place: Place,
        limits: Limits,
        entries: u32,
        vector: u32,
    ) -> Result<Nic, VerbsError> {
        let domain = Domain::new(&device)?;
        let queue = Queue::new(&device, entries, vector)?;
        Ok(Nic {
            index,
            name: device.name().to_owned(),
            port,
            limits,
            device,
            domain,
            queue,
            place: RwLock::new(place),
            detours: Mutex::default(),
            room: AtomicUsize::new(entries as usize),
            out: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            why_out: Mutex::default(),
            endpoints: Mutex::default(),
            by_pair: RwLock::default(),
            starved: Mutex::default(),
            stamps: AtomicU32::new(0),
            checked: AtomicU64::new(0),
            figures: Figures::default(),
        })
    }

    /// The port's address.
    pub(super) fn place(&self) -> Place {
        self.place.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn moved_to(&self, place: Place) {
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = place;
        self.detours().clear();
    }

    /// Our address towards `path`, and how many rows were tried before it.
    pub(super) fn place_to(&self, path: &str) -> (Place, u32) {
        let detour = self.detours().get(path).cloned();
        detour.unwrap_or_else(|| (self.place(), 0))
    }

    /// From now on this place towards `path`; `None`: the port's own again.
    pub(super) fn detour(&self, path: &str, place: Option<(Place, u32)>) {
        let mut detours = self.detours();
        // Peers' names are theirs to choose.
        if detours.len() >= DETOURS_MAX {
            detours.clear();
        }
        match place {
            Some(place) => drop(detours.insert(path.to_owned(), place)),
            None => drop(detours.remove(path)),
        }
    }

    fn detours(&self) -> MutexGuard<'_, HashMap<String, (Place, u32)>> {
        self.detours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }

    /// Take it out of use; was it in use?
    pub(super) fn take_out(&self, why: &'static str) -> bool {
        let mut last = self.why_out.lock().unwrap_or_else(PoisonError::into_inner);
        let was_in = !self.out.swap(true, Ordering::SeqCst);
        if was_in {
            *last = why;
        }
        was_in
    }

    /// Take it back into use; was it out?
    pub(super) fn take_back(&self) -> bool {
        self.out.swap(false, Ordering::SeqCst)
    }

    /// Why it is out of use, if it is.
    pub(super) fn why_out(&self) -> Option<&'static str> {
        let why = *self.why_out.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_out().then_some(why)
    }

    /// The endpoint to `path`; made if there is none.
    ///
    /// # Errors
    /// There are too many, or `make`'s.
    pub(super) fn endpoint(
        &self,
        path: &str,
        make: impl FnOnce() -> Result<Endpoint, TransferError>,
    ) -> Result<Arc<Endpoint>, TransferError> {
        let mut gone = Vec::new();
        let mut endpoints = self.endpoints();
        if let Some(endpoint) = endpoints.get(path) {
            return Ok(Arc::clone(endpoint));
        }
        if endpoints.len() >= self.limits.endpoints {
            gone = make_room(&mut endpoints);
        }
        let made = if endpoints.len() >= self.limits.endpoints {
            Err(TransferError::TooManyPeers { limit: self.limits.endpoints })
        } else {
            make().map(Arc::new)
        };
        if let Ok(endpoint) = &made {
            for number in endpoint.numbers() {
                self.add_pair(number, endpoint);
            }
            endpoints.insert(path.to_owned(), Arc::clone(endpoint));
        }
        drop(endpoints);
        for endpoint in gone {
            tracing::debug!(device = %self.name, peer = %endpoint.path(), "endpoint gives way to another");
            endpoint.retire(self, &Trouble::Dropped);
        }
        made
    }

    /// The endpoint to `path`, if there is one.
    pub(super) fn known(&self, path: &str) -> Option<Arc<Endpoint>> {
        self.endpoints().get(path).cloned()
    }

    /// All endpoints in use.
    pub(super) fn all(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints().values().cloned().collect()
    }

    /// What went through it so far.
    pub(super) fn figures(&self) -> RailFigures {
        let (place, figures) = (self.place(), &self.figures);
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        RailFigures {
            device: self.name.clone(),
            port: self.port,
            gid: format!("{} {}", place.gid_index, Ipv6Addr::from(place.gid)),
            up: !self.is_out(),
            endpoints: self.endpoints().len() as u64,
            connected: of(&figures.connected),
            retired: of(&figures.retired),
            requests: of(&figures.requests),
            failures: RailFailures {
                connection: of(&figures.failures.connection),
                device: of(&figures.failures.device),
                refused: of(&figures.failures.refused),
                peer: of(&figures.failures.peer),
            },
            read_bytes: of(&figures.read_bytes),
            written_bytes: of(&figures.written_bytes),
        }
    }

    /// `endpoint` is not the one to its peer any more.
    pub(super) fn drop_endpoint(&self, endpoint: &Endpoint) {
        let mut endpoints = self.endpoints();
        let is_it = |there: &Arc<Endpoint>| std::ptr::eq(Arc::as_ptr(there), endpoint);
        let gone =
            if endpoints.get(endpoint.path()).is_some_and(is_it) { endpoints.remove(endpoint.path()) } else { None };
        drop(endpoints);
        drop(gone);
    }

    /// Completions of queue pair `number` are `endpoint`'s.
    fn add_pair(&self, number: u32, endpoint: &Arc<Endpoint>) {
        self.by_pair.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(endpoint));
    }

    /// Queue pair `number` is gone, or about to go.
    pub(super) fn drop_pair(&self, number: u32) {
        let gone = self.by_pair.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        drop(gone);
    }

    /// A number for a queue pair that none had before: the kernel gives the numbers of queue pairs out again.
    pub(super) fn stamp(&self) -> u32 {
        self.stamps.fetch_add(1, Ordering::Relaxed)
    }

    /// Is it time to look at idle endpoints? Then it is done.
    pub(super) fn is_check_due(&self, now: Mono) -> bool {
        let due = now.since(Mono(self.checked.load(Ordering::Relaxed))) >= CHECK_STEP;
        if due {
            self.checked.store(now.0, Ordering::Relaxed);
        }
        due
    }

    /// Room for up to `wanted` requests in the completion queue. (Every request may end as a completion, asked for or not.)
    pub(super) fn take_room(&self, wanted: usize) -> usize {
        let take = |room: usize| Some(room - room.min(wanted));
        let before = self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).unwrap_or(0);
        before.min(wanted)
    }

    pub(super) fn give_room(&self, requests: usize) {
        self.room.fetch_add(requests, Ordering::SeqCst);
    }

    /// `endpoint` found no room.
    pub(super) fn starves(&self, endpoint: &Arc<Endpoint>) {
        let mut starved = self.starved.lock().unwrap_or_else(PoisonError::into_inner);
        if !starved.iter().any(|other| Arc::ptr_eq(other, endpoint)) {
            starved.push_back(Arc::clone(endpoint));
        }
    }

    /// What is wrong with the port right now, if anything is. (The event that tells of it may still be on its way.)
    pub(super) fn port_trouble(&self) -> Option<String> {
        match self.device.port(self.port) {
            Ok(port) if port.state.is_active() => None,
            Ok(port) => Some(format!("its port is {}, not ACTIVE", port.state)),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Fetch completions. How many.
    pub(super) fn poll(&self, into: &mut [Completion]) -> usize {
        match self.queue.poll(into) {
            Ok(fetched) => fetched,
            Err(error) => {
                if self.take_out("its completion queue cannot be read") {
                    tracing::error!(device = %self.name, %error, "completion queue cannot be read; the device is not used any more");
                }
                0
            }
        }
    }

    /// Have the next completion make an event.
    pub(super) fn arm(&self) {
        if let Err(error) = self.queue.arm() {
            tracing::debug!(device = %self.name, %error, "completion queue cannot be armed");
        }
    }

    /// Readable when there is an event.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    pub(super) fn clear_events(&self) {
        // Readable, and nothing to read: the channel is broken, and would let nobody sleep.
        if self.queue.clear() == 0 {
            self.deaf.store(true, Ordering::Relaxed);
        }
    }

    /// Is its channel broken?
    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// What failed here.
    pub(super) fn fault(&self, peer: &str, step: RdmaStep, problem: String, blame: Blame) -> TransferError {
        self.fault_with(peer, step, problem, blame, None)
    }

    /// The same, with what to do about it.
    pub(super) fn fault_with(
        &self,
        peer: &str,
        step: RdmaStep,
        problem: String,
        blame: Blame,
        remedy: Option<&'static str>,
    ) -> TransferError {
        let place = self.place();
        TransferError::Rdma(Arc::new(RdmaFault {
            device: self.name.clone(),
            port: self.port,
            gid: format!("{} {}", place.gid_index, Ipv6Addr::from(place.gid)),
            peer: peer.to_owned(),
            step,
            problem,
            blame,
            remedy,
        }))
    }

    /// `wanted` bytes could not be registered.
    pub(super) fn unregistered(&self, peer: &str, error: &VerbsError, wanted: u64) -> TransferError {
        let (problem, remedy) = match error.is_out_of_memory().then(|| memlock::short(wanted)) {
            Some(Some(short)) => (format!("{error}; {short}"), error.remedy()),
            // The host has no more, or the device: the limit is not to blame.
            Some(None) => (error.to_string(), None),
            None => (error.to_string(), error.remedy()),
        };
        self.fault_with(peer, RdmaStep::Register, problem, Blame::Device, remedy)
    }

    /// The device says that queue pair `number` is in error.
    pub(super) fn pair_failed(&self, number: u32) {
        let whose = self.by_pair.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        if let Some(endpoint) = whose {
            endpoint.retire(self, &Trouble::Dropped);
        }
    }

    /// See to `completions`, which came from this device.
    pub(super) fn completed(&self, completions: &[Completion]) {
        if completions.is_empty() {
            return;
        }
        let mut over = Over::default();
        for run in completions.chunk_by(|a, b| a.pair == b.pair) {
            let whose = self.by_pair.read().unwrap_or_else(PoisonError::into_inner).get(&run[0].pair).cloned();
            match whose {
                Some(endpoint) => endpoint.completed(self, run, &mut over),
                None => {
                    tracing::debug!(device = %self.name, pair = run[0].pair, "completion of a queue pair that is gone")
                }
            }
        }
        self.feed(&mut over);
        over.deliver();
    }

    /// There is room again, perhaps.
    pub(super) fn feed(&self, over: &mut Over) {
        let starved = {
            let mut starved = self.starved.lock().unwrap_or_else(PoisonError::into_inner);
            if starved.is_empty() {
                return;
            }
            std::mem::take(&mut *starved)
        };
        for endpoint in starved {
            endpoint.pump(self, over);
        }
    }

    /// Retire all endpoints.
    pub(super) fn close(&self) {
        for endpoint in self.all() {
            endpoint.retire(self, &Trouble::Link(TransferError::Stopped));
        }
    }

    fn endpoints(&self) -> MutexGuard<'_, HashMap<String, Arc<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Take out the endpoints that were not used for longest, of those with nothing under way: a sixteenth, at least one.
fn make_room(endpoints: &mut HashMap<String, Arc<Endpoint>>) -> Vec<Arc<Endpoint>> {
    let mut idle: Vec<(Mono, &String)> =
        endpoints.iter().filter_map(|(path, endpoint)| Some((endpoint.idle_since()?, path))).collect();
    idle.sort_unstable();
    let paths: Vec<String> =
        idle.into_iter().take((endpoints.len() / 16).max(1)).map(|(_, path)| path.clone()).collect();
    paths.iter().filter_map(|path| endpoints.remove(path)).collect()
}

/// Parts that are over, collected under a lock and told without it.
#[derive(Default)]
pub(super) struct Over {
    good: Vec<(Arc<Batch>, usize)>,
    bad: Vec<(Arc<Batch>, u32, Trouble)>,
}

impl Over {
    pub(super) fn good(&mut self, batch: Arc<Batch>) {
        match self.good.last_mut() {
            Some((last, parts)) if Arc::ptr_eq(last, &batch) => *parts += 1,
            _ => self.good.push((batch, 1)),
        }
    }

    pub(super) fn bad(&mut self, batch: Arc<Batch>, part: u32, trouble: Trouble) {
        self.bad.push((batch, part, trouble));
    }

    /// Tell the batches.
    pub(super) fn deliver(self) {
        for (batch, parts) in self.good {
            batch.done(parts);
        }
        for (batch, part, trouble) in self.bad {
            batch.troubled(part, trouble);
        }
    }
}
