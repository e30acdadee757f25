//! State shared by the RDMA transport's modules: devices, registered memory, poller, and path
//! health.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::device_fault::{Blame, DeviceFault, DeviceStep};
use crate::path_probe::UnusedDevice;
use crate::rdma::PROTOCOL;
use crate::rdma::batch::{Batch, CqWaker, WorkError, WorkRequest};
use crate::rdma::endpoint::Endpoint;
use crate::rdma::health::RailHealth;
use crate::rdma::nic::{FinishedWork, Nic, PortAddress};
use crate::rdma::open::{self, DeviceOpenError};
use crate::rdma::peer_view::PeerView;
use crate::rdma::poller::CompletionPoller;
use crate::rdma::registry::Registry;
use crate::rdma::route::{PathTable, RdmaRoute, RdmaRouter, RouteQuery, location};
use crate::rdma::settings::RdmaSettings;
use crate::rdma::slices::SliceRule;
use crate::topology::{HostTopology, Matrix};
use crate::types::OpKind;
use crate::{MonoClock, RandomSource, TransferError};
use mcctl_base::Mono;
use mcctl_sys::Slice;

/// Idle time after which an endpoint's peer is checked, and the interval between checks.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// Timeout for a response from the peer's device.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// Timeout for a device to flush the requests on a queue pair in the error state.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Advice for a device that is not in use.
pub(super) const LINK_REMEDY: &str =
    "run mcctl devices to check that the port is ACTIVE, and check the kernel log (dmesg)";

/// State shared by the RDMA transport's modules.
pub(super) struct RdmaShared {
    /// The server part of our endpoint paths.
    pub(super) server: String,
    pub(super) settings: RdmaSettings,
    pub(super) clock: MonoClock,
    pub(super) random: RandomSource,
    pub(super) nics: Vec<Arc<Nic>>,
    /// Devices that are not used, each with the reason.
    pub(super) unused: Vec<UnusedDevice>,
    pub(super) matrix: Matrix,
    pub(super) router: RdmaRouter,
    pub(super) slice_rule: SliceRule,
    pub(super) registry: Registry,
    pub(super) poller: CompletionPoller,
    pub(super) waker: Arc<CqWaker>,
    /// A byte registered on every device, used to test connections.
    pub(super) scratch: Slice,
    pub(super) health_state: HealthState,
    /// Called when our segment descriptor has changed.
    pub(super) on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Recent faults and the round-robin counter.
pub(super) struct HealthState {
    health: Mutex<RailHealth>,
    /// Whether `health` contains anything. Avoids the lock on the fast path.
    has_faults: AtomicBool,
    turns: AtomicU32,
}

impl HealthState {
    /// Creates a state without faults for `devices` devices.
    pub(super) fn new(devices: usize, settings: &RdmaSettings) -> HealthState {
        let health = RailHealth::new(devices, settings.rail_pause, settings.dial_pause);
        HealthState { health: Mutex::new(health), has_faults: AtomicBool::new(false), turns: AtomicU32::new(0) }
    }
}

/// The devices and paths that are usable at one point in time.
struct PathSnapshot<'a> {
    shared: &'a RdmaShared,
    view: &'a PeerView,
    health: Option<MutexGuard<'a, RailHealth>>,
    now: Mono,
}

impl PathTable for PathSnapshot<'_> {
    fn is_up(&self, local: usize) -> bool {
        let off = self.health.as_ref().is_some_and(|health| health.pause(local, self.now).is_some());
        !off && self.shared.nics.get(local).is_some_and(|nic| !nic.is_disabled())
    }

    fn is_open(&self, route: RdmaRoute) -> bool {
        let path = || &self.view.paths[route.remote];
        self.view.has_device(route.remote)
            && self.health.as_ref().is_none_or(|health| health.is_open(route.local, path(), self.now))
    }
}

impl RdmaShared {
    /// Selects the path for a transfer between local memory at location `here` and the address
    /// `remote` in `view`'s buffer `buffer`. Returns our device and the peer's.
    pub(super) fn route(
        &self,
        view: &PeerView,
        here: &str,
        (buffer, remote): (usize, u64),
        attempt: u32,
        now: Mono,
    ) -> Option<(usize, usize)> {
        let health = self.health_state.has_faults.load(Ordering::Relaxed).then(|| self.health());
        let path_table = PathSnapshot { shared: self, view, health, now };
        let only = RdmaRoute { local: 0, remote: 0 };
        if self.nics.len() == 1 && view.paths.len() == 1 {
            return (path_table.is_up(0) && view.has_device(0)).then_some((only.local, only.remote));
        }
        let buffer = &view.descriptor.buffers[buffer];
        let there = location(&buffer.name, remote - buffer.address, buffer.length);
        let draws = if self.settings.round_robin {
            let turn = self.health_state.turns.fetch_add(1, Ordering::Relaxed);
            (turn, turn)
        } else {
            let random = (self.random)();
            (random as u32, (random >> 32) as u32)
        };
        let route = self.router.route(&view.rails, RouteQuery { here, there: &there, attempt, draws }, &path_table)?;
        Some((route.local, route.remote))
    }

    /// Returns the error for `segment` if none of our devices can be used, detected at `step`.
    pub(super) fn no_path_error(&self, segment: &str, step: DeviceStep) -> TransferError {
        let now = (self.clock)();
        let health = self.health();
        let why = |nic: &Arc<Nic>| match (nic.disabled_reason(), health.pause(nic.index, now)) {
            (Some(why), _) => why.to_owned(),
            (None, Some(off)) => off.why.clone(),
            (None, None) => "no path to the peer".to_owned(),
        };
        let reasons: Vec<(&Arc<Nic>, String)> = self.nics.iter().map(|nic| (nic, why(nic))).collect();
        let remedy = Some(LINK_REMEDY);
        if let [(nic, why)] = &reasons[..] {
            return nic.fault_with(segment, step, format!("the device is not in use: {why}"), Blame::Device, remedy);
        }
        let names: Vec<&str> = self.nics.iter().map(|nic| nic.name.as_str()).collect();
        let reasons: Vec<String> =
            reasons.iter().map(|(nic, why)| format!("{} port {}: {why}", nic.name, nic.port)).collect();
        TransferError::Device(Arc::new(DeviceFault {
            protocol: PROTOCOL,
            device: names.join(", "),
            port: 0,
            gid: String::new(),
            peer: segment.to_owned(),
            step,
            problem: format!("no device in use ({})", reasons.join("; ")),
            blame: Blame::Device,
            remedy,
        }))
    }

    /// Records a local fault on device `nic`.
    pub(super) fn device_failed(&self, nic: usize, why: &str, now: Mono) {
        if self.update_health(|health| health.device_failed(nic, why, now)) {
            tracing::warn!(device = %self.nics[nic].name, why, "device failed repeatedly; disabled temporarily");
        }
    }

    /// Records a success on device `nic`.
    pub(super) fn succeeded(&self, nic: usize) {
        if self.health_state.has_faults.load(Ordering::Relaxed) {
            self.update_health(|health| health.succeeded(nic));
        }
    }

    /// Records a fault on the path from device `nic` to `path`. `another` is set if another path
    /// exists.
    pub(super) fn path_failed(&self, nic: usize, path: &str, another: bool, now: Mono) {
        if self.update_health(|health| health.path_failed(nic, path, another, now)) {
            tracing::info!(device = %self.nics[nic].name, peer = path, "path failed; paused temporarily");
        }
    }

    /// Records that connecting to the peer failed.
    pub(super) fn dial_failed(&self, nic: usize, path: &str, now: Mono) {
        self.update_health(|health| health.dial_failed(nic, path, now));
    }

    /// Whether the peer may be dialed now.
    pub(super) fn may_dial(&self, nic: usize, path: &str, now: Mono) -> bool {
        !self.health_state.has_faults.load(Ordering::Relaxed) || self.health().may_dial(nic, path, now).is_ok()
    }

    /// Records that a connection to the peer was established.
    pub(super) fn connected(&self, nic: usize, path: &str) {
        if self.health_state.has_faults.load(Ordering::Relaxed) {
            self.update_health(|health| health.connected(nic, path));
        }
    }

    /// Drops expired health entries.
    pub(super) fn sweep(&self, now: Mono) {
        if self.health_state.has_faults.load(Ordering::Relaxed) {
            self.update_health(|health| health.sweep(now));
        }
    }

    fn update_health<T>(&self, update_health: impl FnOnce(&mut RailHealth) -> T) -> T {
        let mut health = self.health();
        let result = update_health(&mut health);
        self.health_state.has_faults.store(!health.is_clear(), Ordering::Relaxed);
        result
    }

    fn health(&self) -> MutexGuard<'_, RailHealth> {
        self.health_state.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that our segment descriptor has changed.
    pub(super) fn changed(&self) {
        if let Some(callback) = self.on_change.get() {
            callback();
        }
    }

    /// Reads the current address of `nic`'s port.
    ///
    /// # Errors
    /// Fails if the host's devices cannot be read, the port is not active, or it has no usable
    /// address.
    pub(super) fn address(&self, nic: &Nic) -> Result<PortAddress, DeviceOpenError> {
        let host = open::host()?;
        open::address(&host, &nic.device, nic.port, &self.settings)
    }

    /// Selects the next GID index for connections from `nic` to `path`, after queue pairs with the
    /// address `gid` could not be connected. The next one may match the peer's GID type and
    /// network. Returns false if none is left (`MC_AUTO_GID_MAX_RETRIES`) or the GID index is
    /// configured. In both cases, the peer's override is removed.
    pub(super) fn next_gid(&self, nic: &Nic, path: &str, gid: &[u8; 16]) -> bool {
        let (now, tried) = nic.address_to(path);
        if now.gid != *gid {
            // Another thread has already switched.
            return true;
        }
        let addresses = |host: HostTopology| open::addresses(&host, &nic.device, nic.port, &self.settings);
        let addresses = open::host().map_err(DeviceOpenError::from).and_then(addresses);
        let Ok(addresses) = addresses else { return false };
        let next = addresses.iter().skip_while(|address| address.gid_index != now.gid_index).nth(1);
        let next = next.filter(|_| tried < self.settings.gid_retries);
        if let Some(address) = next {
            let gid = address.gid_text();
            let row = address.gid_index;
            tracing::info!(device = %nic.name, peer = path, %gid, row, "using another GID index for the peer");
        }
        nic.override_address(path, next.map(|address| (address.clone(), tried + 1)));
        next.is_some()
    }

    /// Checks the peers of `nic`'s idle endpoints and retires the endpoints whose peers do not
    /// respond.
    pub(super) fn check_idle_endpoints(&self, nic: &Arc<Nic>) {
        let now = (self.clock)();
        self.sweep(now);
        if !nic.is_idle_check_due(now) {
            return;
        }
        let batch = Batch::new(Arc::clone(&self.waker));
        let Ok(region) = self.registry.scratch(&self.scratch, nic) else { return };
        let mut attempts = Vec::new();
        let mut over = FinishedWork::default();
        for endpoint in nic.all_endpoints() {
            if endpoint.idle_since().is_none_or(|since| now.since(since) < CHECK_EVERY) {
                continue;
            }
            if !endpoint.is_open() {
                endpoint.retire(nic, &WorkError::Dropped);
                continue;
            }
            let batch = Arc::clone(&batch);
            let region = Arc::clone(&region);
            let nothing =
                WorkRequest { batch, part: 0, kind: OpKind::Write, region, offset: 0, len: 0, remote: 0, rkey: 0 };
            nothing.batch.add_pending(1);
            endpoint.push(nic, vec![nothing], now, &mut over);
            attempts.push(endpoint);
        }
        over.deliver();
        let until = now + CHECK_LIMIT;
        while batch.open() > 0 && (self.clock)() < until {
            self.poller.wait(&batch, until);
            batch.take_failures();
        }
        if batch.open() > 0 {
            tracing::info!(device = %nic.name, endpoints = batch.open(), "peers do not respond; retiring their endpoints");
            self.withdraw_batch(&batch, attempts.iter().map(|endpoint| (nic, endpoint)));
        }
    }

    /// Retires the endpoints of all devices. Peers can use the queue pairs of each, whichever side
    /// has connected it. Our own requests on them are posted again on new endpoints. Queue pairs
    /// that the device has not drained within `limit` are destroyed. Returns the number of
    /// endpoints.
    pub(super) fn end_endpoints(&self, limit: Duration) -> usize {
        let mut ended: Vec<(&Nic, Arc<Endpoint>)> = Vec::new();
        for nic in &self.nics {
            for endpoint in nic.all_endpoints() {
                endpoint.retire(nic, &WorkError::Dropped);
                ended.push((nic, endpoint));
            }
        }
        let until = (self.clock)() + limit;
        for (nic, endpoint) in &ended {
            // A queue pair with posted requests is in the error state, in which it ignores its
            // peer. The threads that wait for the requests fetch their completions and destroy it.
            endpoint.await_destruction(|| until.since((self.clock)()));
            endpoint.abandon(nic);
        }
        ended.len()
    }

    /// Withdraws `batch`'s pending requests from `ends`, and retires the endpoints on which its
    /// requests are posted. Returns the failed fragments. None of their bytes move after that.
    pub(super) fn withdraw_batch<'a>(
        &self,
        batch: &Arc<Batch>,
        ends: impl Iterator<Item = (&'a Arc<Nic>, &'a Arc<Endpoint>)> + Clone,
    ) -> Vec<(u32, WorkError)> {
        for (nic, endpoint) in ends.clone() {
            endpoint.withdraw(nic, batch);
        }
        let mut failures = batch.take_failures();
        let until = (self.clock)() + FLUSH_LIMIT;
        while batch.open() > 0 && (self.clock)() < until {
            self.poller.wait(batch, until);
            failures.extend(batch.take_failures());
        }
        if batch.open() > 0 {
            for (nic, endpoint) in ends {
                endpoint.abandon(nic);
            }
            failures.extend(batch.take_failures());
        }
        failures
    }
}
