//! The RDMA transport: what it decides, and (below that) how it is done with verbs.
//!
//! Pure, driven by `now` and by numbers that are drawn elsewhere: [`settings`] (what it is told), [`slices`] (an operation cut into
//! work requests), [`route`] (which device to which), [`gid`] (which row of a port's table), [`link`] (the life of an endpoint, and
//! what it says to its peer), [`health`] (ways and devices that are left alone for a while), [`fault`] (what failed, in words).
//!
//! With verbs: `open` (the devices), `nic` (one of them), `registry` (memory on all of them), `endpoint` and `connect` (a connection),
//! `peer` (a batch on its way), `batch` and `drive` (who waits, and who polls), `watch` (what devices tell unasked), `memlock` (was
//! RLIMIT_MEMLOCK too low).
//!
//! Beside them [`trial`]: every way to a peer tried, step by step, for `mcctl doctor`.
//!
//! There is no thread that moves bytes: the devices do, and who waits for a batch posts what has no room at first and fetches
//! completions. As target nothing happens here at all, but for answering connection requests.

mod batch;
mod connect;
mod drive;
mod endpoint;
pub mod fault;
pub mod gid;
pub mod health;
pub mod link;
mod memlock;
mod nic;
mod open;
mod peer;
mod registry;
pub mod route;
pub mod settings;
mod shared;
pub mod slices;
pub mod trial;
mod view;
mod watch;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::sys::Memory;
use crate::engine::sys::verbs::relaxed_ordering;
use crate::engine::transfer::counters::{RailFigures, TargetFigures};
use crate::engine::transfer::rdma::batch::Bell;
use crate::engine::transfer::rdma::drive::Drive;
use crate::engine::transfer::rdma::nic::Nic;
use crate::engine::transfer::rdma::peer::RdmaPeer;
use crate::engine::transfer::rdma::registry::Registry;
use crate::engine::transfer::rdma::route::{Rails, Router};
use crate::engine::transfer::rdma::shared::{Lots, Shared, Standing};
use crate::engine::transfer::rdma::slices::Rule;
use crate::engine::transfer::rdma::trial::Trials;
use crate::engine::transfer::rdma::view::View;
use crate::engine::transfer::rdma::watch::Watch;
use crate::engine::transfer::region::Access;
use crate::engine::transfer::transport::{Calls, Keys, Peer, PieceKeys, Transport};
use crate::engine::transfer::{Clock, TransferError};
use crate::engine::wire::json::{Connection, Device, SegmentDescriptor};

pub use fault::{Blame, RdmaFault, RdmaStep};
pub use settings::{RdmaSettings, RdmaWish};

/// The RDMA transport of one engine.
pub struct Rdma {
    shared: Arc<Shared>,
    watch: Watch,
}

impl Rdma {
    /// Open the devices. `server` is our name in the names of ends of connections.
    ///
    /// # Errors
    /// No device can be used, and why.
    pub fn start(
        server: String,
        wish: &RdmaWish,
        settings: &RdmaSettings,
        clock: Clock,
        lots: Lots,
    ) -> Result<Rdma, TransferError> {
        let host = open::host()?;
        let (nics, unused) = open::nics(&host, wish, settings)?;
        let names: Vec<String> = nics.iter().map(|nic| nic.name.clone()).collect();
        let matrix = open::matrix(&host, &names, settings)?;
        let longest = |nic: &Arc<Nic>| nic.device.port(nic.port).map_or(1 << 30, |port| port.max_msg_sz);
        let longest = nics.iter().map(longest).min().unwrap_or(1 << 30);
        let piece_max = nics.iter().map(|nic| nic.device.attributes().max_mr_size).min().unwrap_or(u64::MAX);
        let relaxed = settings.relaxed_ordering && relaxed_ordering();
        let piece_max = piece_max.min(settings.region_bytes_max);
        let registry = Registry::new(nics.clone(), piece_max, relaxed, settings);
        let no_thread = |error: std::io::Error| TransferError::NoRdma { why: error.to_string() };
        let memory = Arc::new(Memory::from_vec(vec![0; 64]));
        let registered = registry.register(&memory, false);
        registered.map_err(|(nic, error)| {
            let fault = nic.unregistered("", &error, locked(&memory, &nics));
            TransferError::NoRdma { why: fault.to_string() }
        })?;
        let bell = Arc::new(Bell::new().map_err(no_thread)?);
        let shared = Arc::new(Shared {
            server,
            drive: Drive::new(nics.clone(), Arc::clone(&bell), Arc::clone(&clock)),
            standing: Standing::new(nics.len(), settings),
            on_change: OnceLock::new(),
            clock,
            lots,
            router: Router::new(Rails::new(names, Some(&matrix.0)), settings),
            rule: Rule::new(settings.slice_bytes, settings.fragment_ratio, longest),
            settings: settings.clone(),
            nics,
            unused,
            matrix,
            registry,
            bell,
            scratch: memory.slice(0, 1).expect("it has a byte"),
        });
        let watch = Watch::start(&shared).map_err(no_thread)?;
        Ok(Rdma { shared, watch })
    }
}

/// What registering `memory` on all of `nics` locks, bytes: each counts it for itself.
fn locked(memory: &Memory, nics: &[Arc<Nic>]) -> u64 {
    memory.len() as u64 * nics.len() as u64
}

impl Transport for Rdma {
    fn protocol(&self) -> &'static str {
        "rdma"
    }

    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Keys, TransferError> {
        let pieces = self
            .shared
            .registry
            .register(memory, access == Access::Remote)
            .map_err(|(nic, error)| nic.unregistered("", &error, locked(memory, &self.shared.nics)))?;
        let mut keys = Keys { location: Some("*".to_owned()), pieces: Vec::with_capacity(pieces.len()) };
        for piece in &pieces {
            keys.location = Some(pieces[0].location().to_owned());
            let regions = piece.regions();
            keys.pieces.push(PieceKeys {
                offset: usize::try_from(piece.address() - memory.address()).expect("inside the memory"),
                len: piece.len(),
                remote: regions.iter().map(|region| region.rkey()).collect(),
                local: regions.iter().map(|region| region.lkey()).collect(),
            });
        }
        Ok(keys)
    }

    fn deregister(&self, memory: &Arc<Memory>) {
        self.shared.registry.deregister(memory);
    }

    fn describe(&self, document: &mut SegmentDescriptor) {
        let shared = &self.shared;
        let up: Vec<&Arc<Nic>> = shared.nics.iter().filter(|nic| !nic.is_out()).collect();
        document.tcp_proto_version = 1;
        if shared.server != document.name {
            document.rdma_server_name.clone_from(&shared.server);
        }
        document.devices = up
            .iter()
            .map(|nic| {
                let place = nic.place();
                Device { name: nic.name.clone(), lid: place.lid, gid: place.gid_text() }
            })
            .collect();
        let mut matrix = shared.matrix.0.clone();
        for list in matrix.values_mut().flatten() {
            list.retain(|name| up.iter().any(|nic| nic.name == *name));
        }
        document.priority_matrix = Some(matrix);
        if up.len() < shared.nics.len() {
            // Keys are by the device's place among those that are told.
            let told = |keys: &[u32]| up.iter().filter_map(|nic| keys.get(nic.index).copied()).collect();
            for buffer in &mut document.buffers {
                (buffer.rkey, buffer.lkey) = (told(&buffer.rkey), told(&buffer.lkey));
            }
        }
    }

    fn on_change(&self, tell: Box<dyn Fn() + Send + Sync>) {
        // Who comes second is not told.
        let _ = self.shared.on_change.set(tell);
    }

    fn peer(&self, descriptor: &SegmentDescriptor, calls: &Arc<dyn Calls>) -> Result<Arc<dyn Peer>, TransferError> {
        let view = View::of(descriptor, (self.shared.clock)())?;
        Ok(RdmaPeer::new(Arc::clone(&self.shared), Arc::clone(calls), view))
    }

    fn accept(&self, request: Connection, calls: &dyn Calls) -> Connection {
        self.shared.answer(&request, calls)
    }

    fn figures(&self) -> TargetFigures {
        TargetFigures::default()
    }

    fn rails(&self) -> Vec<RailFigures> {
        self.shared.nics.iter().map(|nic| nic.figures()).collect()
    }

    fn try_ways(
        &self,
        descriptor: &SegmentDescriptor,
        calls: &dyn Calls,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Trials, TransferError> {
        self.shared.try_ways(descriptor, calls, limit, stop)
    }

    fn shutdown(&self) {
        for nic in &self.shared.nics {
            nic.close();
        }
        // After that: a watcher that waits for an endpoint's peer has its answer.
        self.watch.stop();
        self.shared.registry.clear();
    }
}
