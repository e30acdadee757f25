//! An RDMA device in use: its port and address, its completion queue, and its endpoints.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::TransferError;
use crate::counters::{RailCounters, RailFailures};
use crate::device_fault::{Blame, DeviceFault, DeviceStep};
use crate::rdma::PROTOCOL;
use crate::rdma::batch::{Batch, WorkError};
use crate::rdma::endpoint::Endpoint;
use crate::rdma::memlock;
use mcctl_base::Mono;
use mcctl_sys::verbs::{CompletionQueue, ProtectionDomain, RdmaDevice, VerbsError, WorkCompletion};
use mcctl_wire::json::gid_text;

/// Interval between checks for idle endpoints.
const CHECK_STEP: Duration = Duration::from_secs(5);
/// Maximum number of peers for which the GID index is overridden.
const DETOURS_MAX: usize = 4096;

/// A port's current address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortAddress {
    /// Index in the GID table.
    pub(super) gid_index: u32,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// Maximum path MTU, in bytes.
    pub(super) mtu: u32,
}

impl PortAddress {
    pub(super) fn gid_text(&self) -> String {
        gid_text(&self.gid)
    }
}

/// Resources for a connection on this device, within the device's limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct NicLimits {
    /// Queue pairs per endpoint.
    pub(super) qps: usize,
    /// Outstanding work requests per queue pair.
    pub(super) requests: usize,
    pub(super) inline: u32,
    pub(super) sge: u32,
    pub(super) endpoints: usize,
}

/// A device in use.
pub(super) struct Nic {
    /// Position among the engine's devices.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) limits: NicLimits,
    pub(super) device: RdmaDevice,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) queue: Arc<CompletionQueue>,
    address: RwLock<PortAddress>,
    /// For each peer that cannot be reached with the port's own GID, keyed by path: the address to
    /// use instead, and how many GIDs have been tried.
    overrides: Mutex<HashMap<String, (PortAddress, u32)>>,
    /// Free entries in the completion queue.
    free_cqes: AtomicUsize,
    /// Whether the device has failed or its port is down. If so, it accepts no new requests.
    out: AtomicBool,
    /// Whether the event channel is readable although it has no event, because the device is gone.
    channel_broken: AtomicBool,
    /// Why the device was last disabled.
    disabled_reason: Mutex<&'static str>,
    /// Keyed by the peer's path.
    endpoints: Mutex<HashMap<String, Arc<Endpoint>>>,
    /// Keyed by QP number, to find the endpoint for a completion. Includes retired endpoints.
    by_qp: RwLock<HashMap<u32, Arc<Endpoint>>>,
    /// Endpoints whose pending requests could not be posted because the completion queue was full.
    waiting_for_cqe: Mutex<VecDeque<Arc<Endpoint>>>,
    generations: AtomicU32,
    /// Time of the last check for idle endpoints, as the inner value of a `Mono`.
    checked: AtomicU64,
    pub(super) counters: NicCounters,
}

#[derive(Debug, Default)]
pub(super) struct NicCounters {
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) failures: NicFailures,
    pub(super) connected: AtomicU64,
    pub(super) retired: AtomicU64,
}

/// Failure counters; see [`RailFailures`].
#[derive(Debug, Default)]
pub(super) struct NicFailures {
    pub(super) connection: AtomicU64,
    device: AtomicU64,
    refused: AtomicU64,
    peer: AtomicU64,
}

impl NicFailures {
    /// Returns the counter for failed requests with this cause.
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
        device: RdmaDevice,
        port: u8,
        address: PortAddress,
        limits: NicLimits,
        entries: u32,
        vector: u32,
    ) -> Result<Nic, VerbsError> {
        let domain = ProtectionDomain::new(&device)?;
        let queue = CompletionQueue::new(&device, entries, vector)?;
        Ok(Nic {
            index,
            name: device.name().to_owned(),
            port,
            limits,
            device,
            domain,
            queue,
            address: RwLock::new(address),
            overrides: Mutex::default(),
            free_cqes: AtomicUsize::new(entries as usize),
            out: AtomicBool::new(false),
            channel_broken: AtomicBool::new(false),
            disabled_reason: Mutex::default(),
            endpoints: Mutex::default(),
            by_qp: RwLock::default(),
            waiting_for_cqe: Mutex::default(),
            generations: AtomicU32::new(0),
            checked: AtomicU64::new(0),
            counters: NicCounters::default(),
        })
    }

    /// Returns the port's current address, which a device event may change.
    pub(super) fn address(&self) -> PortAddress {
        self.address.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_address(&self, address: PortAddress) {
        *self.address.write().unwrap_or_else(PoisonError::into_inner) = address;
        self.overrides().clear();
    }

    /// Returns the address to use for `path`, and how many GIDs were tried before it.
    pub(super) fn address_to(&self, path: &str) -> (PortAddress, u32) {
        let override_address = self.overrides().get(path).cloned();
        override_address.unwrap_or_else(|| (self.address(), 0))
    }

    /// Overrides the address used for `path`. `None` removes the override.
    pub(super) fn override_address(&self, path: &str, address: Option<(PortAddress, u32)>) {
        let mut overrides = self.overrides();
        // Peers choose their own names, so the map's size must be bounded.
        if overrides.len() >= DETOURS_MAX {
            overrides.clear();
        }
        match address {
            Some(address) => drop(overrides.insert(path.to_owned(), address)),
            None => drop(overrides.remove(path)),
        }
    }

    fn overrides(&self) -> MutexGuard<'_, HashMap<String, (PortAddress, u32)>> {
        self.overrides.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }

    /// Disables the device. Returns whether it was enabled.
    pub(super) fn disable(&self, why: &'static str) -> bool {
        let mut last = self.disabled_reason.lock().unwrap_or_else(PoisonError::into_inner);
        let was_in = !self.out.swap(true, Ordering::SeqCst);
        if was_in {
            *last = why;
        }
        was_in
    }

    /// Enables the device. Returns whether it was disabled.
    pub(super) fn enable(&self) -> bool {
        self.out.swap(false, Ordering::SeqCst)
    }

    /// Returns why the device is disabled, if it is.
    pub(super) fn disabled_reason(&self) -> Option<&'static str> {
        let why = *self.disabled_reason.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_disabled().then_some(why)
    }

    /// Returns the endpoint for `path`. Creates it with `make` if missing.
    ///
    /// # Errors
    /// Fails if the endpoint limit has been reached, or if `make` fails.
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
                self.add_qp(number, endpoint);
            }
            endpoints.insert(path.to_owned(), Arc::clone(endpoint));
        }
        drop(endpoints);
        for endpoint in gone {
            tracing::debug!(device = %self.name, peer = %endpoint.path(), "idle endpoint evicted");
            endpoint.retire(self, &WorkError::Dropped);
        }
        made
    }

    /// Returns the endpoint for `path`, if one exists.
    pub(super) fn find_endpoint(&self, path: &str) -> Option<Arc<Endpoint>> {
        self.endpoints().get(path).cloned()
    }

    /// Returns all endpoints in use.
    pub(super) fn all_endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints().values().cloned().collect()
    }

    /// Returns a snapshot of the device's counters.
    pub(super) fn counters(&self) -> RailCounters {
        let address = self.address();
        let counters = &self.counters;
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        RailCounters {
            device: self.name.clone(),
            port: self.port,
            gid: format!("{} {}", address.gid_index, Ipv6Addr::from(address.gid)),
            up: !self.is_disabled(),
            endpoints: self.endpoints().len() as u64,
            connected: of(&counters.connected),
            retired: of(&counters.retired),
            requests: of(&counters.requests),
            failures: RailFailures {
                connection: of(&counters.failures.connection),
                device: of(&counters.failures.device),
                refused: of(&counters.failures.refused),
                peer: of(&counters.failures.peer),
            },
            read_bytes: of(&counters.read_bytes),
            written_bytes: of(&counters.written_bytes),
        }
    }

    /// Removes `endpoint` from the map if it is still the current endpoint for its peer.
    pub(super) fn drop_endpoint(&self, endpoint: &Endpoint) {
        let mut endpoints = self.endpoints();
        let is_it = |there: &Arc<Endpoint>| std::ptr::eq(Arc::as_ptr(there), endpoint);
        let gone =
            if endpoints.get(endpoint.path()).is_some_and(is_it) { endpoints.remove(endpoint.path()) } else { None };
        drop(endpoints);
        drop(gone);
    }

    /// Maps completions from queue pair `number` to `endpoint`.
    fn add_qp(&self, number: u32, endpoint: &Arc<Endpoint>) {
        self.by_qp.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(endpoint));
    }

    /// Removes queue pair `number`, which has been destroyed or is about to be.
    pub(super) fn remove_qp(&self, number: u32) {
        let gone = self.by_qp.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        drop(gone);
    }

    /// Returns a number that was never assigned to an earlier queue pair. (QP numbers cannot serve
    /// this purpose, because the kernel reuses them.)
    pub(super) fn generation(&self) -> u32 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the check for idle endpoints is due. If so, marks it as done.
    pub(super) fn is_idle_check_due(&self, now: Mono) -> bool {
        let due = now.since(Mono(self.checked.load(Ordering::Relaxed))) >= CHECK_STEP;
        if due {
            self.checked.store(now.0, Ordering::Relaxed);
        }
        due
    }

    /// Reserves up to `wanted` completion queue entries. (Every request may generate a completion,
    /// signaled or not.)
    pub(super) fn reserve_cqe(&self, wanted: usize) -> usize {
        let take = |free_cqes: usize| Some(free_cqes - free_cqes.min(wanted));
        let before = self.free_cqes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).unwrap_or(0);
        before.min(wanted)
    }

    pub(super) fn release_cqe(&self, requests: usize) {
        self.free_cqes.fetch_add(requests, Ordering::SeqCst);
    }

    /// Queues `endpoint` until the completion queue has room.
    pub(super) fn wait_for_cqe(&self, endpoint: &Arc<Endpoint>) {
        let mut waiting_for_cqe = self.waiting_for_cqe.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting_for_cqe.iter().any(|other| Arc::ptr_eq(other, endpoint)) {
            waiting_for_cqe.push_back(Arc::clone(endpoint));
        }
    }

    /// Returns the port's current problem, if any. (Its asynchronous event may not have arrived
    /// yet.)
    pub(super) fn port_problem(&self) -> Option<String> {
        match self.device.port(self.port) {
            Ok(port) if port.state.is_active() => None,
            Ok(port) => Some(format!("port state is {}, not ACTIVE", port.state)),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Fetches completions and returns their number.
    pub(super) fn poll(&self, into: &mut [WorkCompletion]) -> usize {
        match self.queue.poll(into) {
            Ok(fetched) => fetched,
            Err(error) => {
                if self.disable("completion queue cannot be polled") {
                    tracing::error!(device = %self.name, %error, "cannot poll the completion queue; device disabled");
                }
                0
            }
        }
    }

    /// Requests an event for the next completion.
    pub(super) fn arm(&self) {
        if let Err(error) = self.queue.arm() {
            tracing::debug!(device = %self.name, %error, "cannot arm the completion queue");
        }
    }

    /// Returns a file descriptor that becomes readable when an event arrives.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    pub(super) fn clear_events(&self) {
        // The channel was readable although it had no event, so it is broken: a thread could not
        // sleep on it.
        if self.queue.clear() == 0 {
            self.channel_broken.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the event channel is broken.
    pub(super) fn is_channel_broken(&self) -> bool {
        self.channel_broken.load(Ordering::Relaxed)
    }

    /// Creates a fault for this device.
    pub(super) fn fault(&self, peer: &str, step: DeviceStep, problem: String, blame: Blame) -> TransferError {
        self.fault_with(peer, step, problem, blame, None)
    }

    /// Creates a fault for this device with advice on how to fix it.
    pub(super) fn fault_with(
        &self,
        peer: &str,
        step: DeviceStep,
        problem: String,
        blame: Blame,
        remedy: Option<&'static str>,
    ) -> TransferError {
        let address = self.address();
        TransferError::Device(Arc::new(DeviceFault {
            protocol: PROTOCOL,
            device: self.name.clone(),
            port: self.port,
            gid: format!("{} {}", address.gid_index, Ipv6Addr::from(address.gid)),
            peer: peer.to_owned(),
            step,
            problem,
            blame,
            remedy,
        }))
    }

    /// Creates the fault for a failed registration of `wanted` bytes.
    pub(super) fn registration_fault(&self, peer: &str, error: &VerbsError, wanted: u64) -> TransferError {
        let (problem, remedy) = match error.is_out_of_memory().then(|| memlock::short(wanted)) {
            Some(Some(short)) => (format!("{error}; {short}"), error.remedy()),
            // The host or the device is out of memory. The memlock limit is not the cause.
            Some(None) => (error.to_string(), None),
            None => (error.to_string(), error.remedy()),
        };
        self.fault_with(peer, DeviceStep::Register, problem, Blame::Device, remedy)
    }

    /// Handles an event reporting that queue pair `number` is in the error state.
    pub(super) fn qp_failed(&self, number: u32) {
        let endpoint = self.by_qp.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        if let Some(endpoint) = endpoint {
            endpoint.retire(self, &WorkError::Dropped);
        }
    }

    /// Handles `completions` from this device.
    pub(super) fn completed(&self, completions: &[WorkCompletion]) {
        if completions.is_empty() {
            return;
        }
        let mut over = FinishedWork::default();
        for run in completions.chunk_by(|a, b| a.qp == b.qp) {
            let endpoint = self.by_qp.read().unwrap_or_else(PoisonError::into_inner).get(&run[0].qp).cloned();
            match endpoint {
                Some(endpoint) => endpoint.completed(self, run, &mut over),
                None => {
                    tracing::debug!(device = %self.name, qp = run[0].qp, "completion of a destroyed queue pair")
                }
            }
        }
        self.post_waiting(&mut over);
        over.deliver();
    }

    /// Posts the pending requests of endpoints that were waiting for room in the completion queue.
    pub(super) fn post_waiting(&self, over: &mut FinishedWork) {
        let waiting_for_cqe = {
            let mut waiting_for_cqe = self.waiting_for_cqe.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting_for_cqe.is_empty() {
                return;
            }
            std::mem::take(&mut *waiting_for_cqe)
        };
        for endpoint in waiting_for_cqe {
            endpoint.post_pending(self, over);
        }
    }

    /// Retires all endpoints. Their requests fail with [`TransferError::Stopped`].
    pub(super) fn close(&self) {
        for endpoint in self.all_endpoints() {
            endpoint.retire(self, &WorkError::Link(TransferError::Stopped));
        }
    }

    fn endpoints(&self) -> MutexGuard<'_, HashMap<String, Arc<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the least recently used idle endpoints: one sixteenth of all endpoints, but at least
/// one.
fn make_room(endpoints: &mut HashMap<String, Arc<Endpoint>>) -> Vec<Arc<Endpoint>> {
    let mut idle: Vec<(Mono, &String)> =
        endpoints.iter().filter_map(|(path, endpoint)| Some((endpoint.idle_since()?, path))).collect();
    idle.sort_unstable();
    let paths: Vec<String> =
        idle.into_iter().take((endpoints.len() / 16).max(1)).map(|(_, path)| path.clone()).collect();
    paths.iter().filter_map(|path| endpoints.remove(path)).collect()
}

/// Finished requests, collected under a lock and reported to their batches after the lock is
/// released.
#[derive(Default)]
pub(super) struct FinishedWork {
    good: Vec<(Arc<Batch>, usize)>,
    bad: Vec<(Arc<Batch>, u32, WorkError)>,
}

impl FinishedWork {
    pub(super) fn good(&mut self, batch: Arc<Batch>) {
        match self.good.last_mut() {
            Some((last, parts)) if Arc::ptr_eq(last, &batch) => *parts += 1,
            _ => self.good.push((batch, 1)),
        }
    }

    pub(super) fn bad(&mut self, batch: Arc<Batch>, part: u32, error: WorkError) {
        self.bad.push((batch, part, error));
    }

    /// Reports the finished requests to their batches.
    pub(super) fn deliver(self) {
        for (batch, parts) in self.good {
            batch.done(parts);
        }
        for (batch, part, error) in self.bad {
            batch.failed(part, error);
        }
    }
}
