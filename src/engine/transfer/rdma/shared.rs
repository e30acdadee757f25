//! What all of the transport shares: the devices, what is registered on them, who polls, and which ways are good.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::Slice;
use crate::engine::topology::Matrix;
use crate::engine::transfer::rdma::batch::{Batch, Bell, Trouble, Work};
use crate::engine::transfer::rdma::drive::Drive;
use crate::engine::transfer::rdma::endpoint::Endpoint;
use crate::engine::transfer::rdma::fault::{Blame, RdmaFault, RdmaStep};
use crate::engine::transfer::rdma::health::Health;
use crate::engine::transfer::rdma::nic::{Nic, Over, Place};
use crate::engine::transfer::rdma::open;
use crate::engine::transfer::rdma::registry::Registry;
use crate::engine::transfer::rdma::route::{Ask, Route, Router, Ways, location};
use crate::engine::transfer::rdma::settings::RdmaSettings;
use crate::engine::transfer::rdma::slices::Rule;
use crate::engine::transfer::rdma::trial::Unused;
use crate::engine::transfer::rdma::view::View;
use crate::engine::transfer::transport::OpKind;
use crate::engine::transfer::{Clock, TransferError};

/// An endpoint that nobody used for so long is looked at, so often.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// How long its peer's device may take to answer.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// How long a device may take to let go of requests once their queue pair is in the error state.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// What to do about a device that is not in use.
pub(super) const LINK_REMEDY: &str =
    "see with mcctl devices whether the port is ACTIVE; the kernel's log (dmesg) may say more";

/// Draws lots.
pub(super) type Lots = Box<dyn Fn() -> u64 + Send + Sync>;

/// What all of the transport shares.
pub(super) struct Shared {
    /// Our name in the names of ends of connections.
    pub(super) server: String,
    pub(super) settings: RdmaSettings,
    pub(super) clock: Clock,
    pub(super) lots: Lots,
    pub(super) nics: Vec<Arc<Nic>>,
    /// Devices that are not used.
    pub(super) unused: Vec<Unused>,
    pub(super) matrix: Matrix,
    pub(super) router: Router,
    pub(super) rule: Rule,
    pub(super) registry: Registry,
    pub(super) drive: Drive,
    pub(super) bell: Arc<Bell>,
    /// A byte that is registered with every device, for trying ways out.
    pub(super) scratch: Slice,
    pub(super) standing: Standing,
    /// Called when what we say about ourselves has changed.
    pub(super) on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What went wrong lately, and whose turn it is.
pub(super) struct Standing {
    health: Mutex<Health>,
    /// There is something in `health`.
    troubled: AtomicBool,
    turns: AtomicU32,
}

impl Standing {
    /// Nothing went wrong with any of `devices` devices.
    pub(super) fn new(devices: usize, settings: &RdmaSettings) -> Standing {
        let health = Health::new(devices, settings.rail_pause, settings.dial_pause);
        Standing { health: Mutex::new(health), troubled: AtomicBool::new(false), turns: AtomicU32::new(0) }
    }
}

/// Which of our devices and ways may be taken now.
struct Now<'a> {
    shared: &'a Shared,
    view: &'a View,
    health: Option<MutexGuard<'a, Health>>,
    now: Mono,
}

impl Ways for Now<'_> {
    fn is_up(&self, local: usize) -> bool {
        let off = self.health.as_ref().is_some_and(|health| health.off(local, self.now).is_some());
        !off && self.shared.nics.get(local).is_some_and(|nic| !nic.is_out())
    }

    fn is_open(&self, route: Route) -> bool {
        let path = || &self.view.paths[route.remote];
        self.view.has_device(route.remote)
            && self.health.as_ref().is_none_or(|health| health.is_open(route.local, path(), self.now))
    }
}

impl Shared {
    /// The way for a part of `view`'s buffer `buffer` that begins at `remote`, from memory at `here`: our device and the peer's.
    pub(super) fn route(
        &self,
        view: &View,
        here: &str,
        (buffer, remote): (usize, u64),
        attempt: u32,
        now: Mono,
    ) -> Option<(usize, usize)> {
        let health = self.standing.troubled.load(Ordering::Relaxed).then(|| self.health());
        let ways = Now { shared: self, view, health, now };
        let only = Route { local: 0, remote: 0 };
        if self.nics.len() == 1 && view.paths.len() == 1 {
            return (ways.is_up(0) && view.has_device(0)).then_some((only.local, only.remote));
        }
        let buffer = &view.descriptor.buffers[buffer];
        let there = location(&buffer.name, remote - buffer.address, buffer.length);
        let draws = if self.settings.round_robin {
            let turn = self.standing.turns.fetch_add(1, Ordering::Relaxed);
            (turn, turn)
        } else {
            let lot = (self.lots)();
            (lot as u32, (lot >> 32) as u32)
        };
        let route = self.router.route(&view.rails, Ask { here, there: &there, attempt, draws }, &ways)?;
        Some((route.local, route.remote))
    }

    /// Why none of our devices can be used for `segment`, found at `step`.
    pub(super) fn no_way(&self, segment: &str, step: RdmaStep) -> TransferError {
        let now = (self.clock)();
        let health = self.health();
        let why = |nic: &Arc<Nic>| match (nic.why_out(), health.off(nic.index, now)) {
            (Some(why), _) => why.to_owned(),
            (None, Some(off)) => off.why.clone(),
            (None, None) => "it has no way there".to_owned(),
        };
        let whys: Vec<(&Arc<Nic>, String)> = self.nics.iter().map(|nic| (nic, why(nic))).collect();
        let remedy = Some(LINK_REMEDY);
        if let [(nic, why)] = &whys[..] {
            return nic.fault_with(segment, step, format!("it is not in use: {why}"), Blame::Device, remedy);
        }
        let names: Vec<&str> = self.nics.iter().map(|nic| nic.name.as_str()).collect();
        let whys: Vec<String> =
            whys.iter().map(|(nic, why)| format!("{} port {}: {why}", nic.name, nic.port)).collect();
        TransferError::Rdma(Arc::new(RdmaFault {
            device: names.join(", "),
            port: 0,
            gid: String::new(),
            peer: segment.to_owned(),
            step,
            problem: format!("none is in use ({})", whys.join("; ")),
            blame: Blame::Device,
            remedy,
        }))
    }

    /// Something of ours went wrong on device `nic`.
    pub(super) fn device_failed(&self, nic: usize, why: &str, now: Mono) {
        if self.note(|health| health.device_failed(nic, why, now)) {
            tracing::warn!(device = %self.nics[nic].name, why, "device failed too often; it is left alone for a while");
        }
    }

    /// Something went well on device `nic`.
    pub(super) fn succeeded(&self, nic: usize) {
        if self.standing.troubled.load(Ordering::Relaxed) {
            self.note(|health| health.succeeded(nic));
        }
    }

    /// Something went wrong on the way from device `nic` to `path`; `another`: there is another way.
    pub(super) fn way_failed(&self, nic: usize, path: &str, another: bool, now: Mono) {
        if self.note(|health| health.way_failed(nic, path, another, now)) {
            tracing::info!(device = %self.nics[nic].name, peer = path, "way failed; it is left alone for a while");
        }
    }

    /// The peer could not be connected.
    pub(super) fn dial_failed(&self, nic: usize, path: &str, now: Mono) {
        self.note(|health| health.dial_failed(nic, path, now));
    }

    /// May the peer be dialled?
    pub(super) fn may_dial(&self, nic: usize, path: &str, now: Mono) -> bool {
        !self.standing.troubled.load(Ordering::Relaxed) || self.health().may_dial(nic, path, now).is_ok()
    }

    /// The peer was connected.
    pub(super) fn connected(&self, nic: usize, path: &str) {
        if self.standing.troubled.load(Ordering::Relaxed) {
            self.note(|health| health.connected(nic, path));
        }
    }

    /// Forget what is over, if there is anything.
    pub(super) fn sweep(&self, now: Mono) {
        if self.standing.troubled.load(Ordering::Relaxed) {
            self.note(|health| health.sweep(now));
        }
    }

    fn note<T>(&self, note: impl FnOnce(&mut Health) -> T) -> T {
        let mut health = self.health();
        let told = note(&mut health);
        self.standing.troubled.store(!health.is_untroubled(), Ordering::Relaxed);
        told
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.standing.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What we say about ourselves has changed.
    pub(super) fn changed(&self) {
        if let Some(tell) = self.on_change.get() {
            tell();
        }
    }

    /// The address of `nic`'s port now.
    pub(super) fn place(&self, nic: &Nic) -> Result<Place, String> {
        let host = open::host().map_err(|error| error.to_string())?;
        open::place(&host, &nic.device, nic.port, &self.settings)
    }

    /// Queue pairs with the address `gid` of `nic` could not be connected with those of `path`: take the next row of the table towards it,
    /// which may be of its kind and network. Is there another to try (`MC_AUTO_GID_MAX_RETRIES`)? Where the row was asked for there is
    /// none. After the last it is the port's own again.
    pub(super) fn next_gid(&self, nic: &Nic, path: &str, gid: &[u8; 16]) -> bool {
        let (now, tried) = nic.place_to(path);
        if now.gid != *gid {
            // Somebody did it meanwhile.
            return true;
        }
        let places = open::host().map_err(|error| error.to_string());
        let places = places.and_then(|host| open::places(&host, &nic.device, nic.port, &self.settings));
        let Ok(places) = places else { return false };
        let next = places.iter().skip_while(|place| place.gid_index != now.gid_index).nth(1);
        let next = next.filter(|_| tried < self.settings.gid_retries);
        if let Some(place) = next {
            let (gid, row) = (place.gid_text(), place.gid_index);
            tracing::info!(device = %nic.name, peer = path, %gid, row, "another row of the GID table is used towards the peer");
        }
        nic.detour(path, next.map(|place| (place.clone(), tried + 1)));
        next.is_some()
    }

    /// See whether the peers of endpoints of `nic` that nobody used for a while still live, and drop those of peers that do not.
    pub(super) fn keep_up(&self, nic: &Arc<Nic>) {
        let now = (self.clock)();
        self.sweep(now);
        if !nic.is_check_due(now) {
            return;
        }
        let batch = Batch::new(Arc::clone(&self.bell));
        let Ok(region) = self.registry.scratch(&self.scratch, nic) else { return };
        let (mut asked, mut over) = (Vec::new(), Over::default());
        for endpoint in nic.all() {
            if endpoint.idle_since().is_none_or(|since| now.since(since) < CHECK_EVERY) {
                continue;
            }
            if !endpoint.is_open() {
                endpoint.retire(nic, &Trouble::Dropped);
                continue;
            }
            let (batch, region) = (Arc::clone(&batch), Arc::clone(&region));
            let nothing = Work { batch, part: 0, kind: OpKind::Write, region, offset: 0, len: 0, remote: 0, rkey: 0 };
            nothing.batch.opened(1);
            endpoint.push(nic, vec![nothing], now, &mut over);
            asked.push(endpoint);
        }
        over.deliver();
        let until = now + CHECK_LIMIT;
        while batch.open() > 0 && (self.clock)() < until {
            self.drive.wait(&batch, until);
            batch.take_troubles();
        }
        if batch.open() > 0 {
            tracing::info!(device = %nic.name, endpoints = batch.open(), "peers do not answer; their endpoints are retired");
            self.call_back(&batch, asked.iter().map(|endpoint| (nic, endpoint)));
        }
    }

    /// Take back what is under way of `batch` on `ends`: they are retired where something of it is posted. The parts come back; no byte
    /// of theirs moves after this.
    pub(super) fn call_back<'a>(
        &self,
        batch: &Arc<Batch>,
        ends: impl Iterator<Item = (&'a Arc<Nic>, &'a Arc<Endpoint>)> + Clone,
    ) -> Vec<(u32, Trouble)> {
        for (nic, endpoint) in ends.clone() {
            endpoint.withdraw(nic, batch);
        }
        let mut troubles = batch.take_troubles();
        let until = (self.clock)() + FLUSH_LIMIT;
        while batch.open() > 0 && (self.clock)() < until {
            self.drive.wait(batch, until);
            troubles.extend(batch.take_troubles());
        }
        if batch.open() > 0 {
            for (nic, endpoint) in ends {
                endpoint.abandon(nic);
            }
            troubles.extend(batch.take_troubles());
        }
        troubles
    }
}
