//! The RDMA transport: pure decision modules, and the modules that carry out the decisions with
//! verbs.
//!
//! Pure modules, to which `now` and random numbers are passed as arguments: [`settings`]
//! (configuration), [`slices`] (splitting operations into work requests), [`route`] (path
//! selection), [`gid`] (GID index selection), [`link`] (an endpoint's connection state machine),
//! [`health`] (devices and paths to avoid for a while).
//!
//! Modules that use verbs: `open` (opens devices), `nic` (one device), `registry` (memory
//! registered on all devices), `endpoint` and `connect` (connections), `peer` (submitted batches),
//! `batch` and `poller` (waiting and polling), `device_events` (asynchronous device events),
//! `memlock` (RLIMIT_MEMLOCK diagnosis).
//!
//! `path_probe` probes every path to a peer, step by step, for `mcctl doctor`.
//!
//! The devices, not threads, move the bytes. The thread that waits for a batch fetches completions,
//! and posts the work requests for which the queues had no room at first. The target side only
//! handles connection requests.

mod batch;
mod connect;
mod device_events;
mod endpoint;
pub mod gid;
pub mod health;
pub mod link;
mod memlock;
mod nic;
mod open;
mod path_probe;
mod peer;
mod peer_view;
mod poller;
mod registry;
pub mod route;
pub mod settings;
mod shared;
pub mod slices;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::counters::{RailCounters, TargetCounters};
use crate::options::TransportOptions;
use crate::path_probe::PathProbes;
use crate::rdma::batch::CqWaker;
use crate::rdma::device_events::DeviceWatcher;
use crate::rdma::nic::Nic;
use crate::rdma::peer::RdmaPeer;
use crate::rdma::peer_view::PeerView;
use crate::rdma::poller::CompletionPoller;
use crate::rdma::registry::Registry;
use crate::rdma::route::{Rails, RdmaRouter};
use crate::rdma::shared::{HealthState, RdmaShared};
use crate::rdma::slices::SliceRule;
use crate::transport::{ControlPlane, DataPeer, DataTransport, StartTransport, TransportDevices, TransportStart};
use crate::types::Access;
use crate::types::{PieceKeys, RegionKeys};
use crate::variables::VariableReader;
use crate::{MonoClock, RandomSource, TransferError};
use mcctl_base::HostPort;
use mcctl_sys::Memory;
use mcctl_sys::verbs::relaxed_ordering;
use mcctl_wire::json::{ConnectionMessage, DeviceDescriptor, SegmentDescriptor};

pub use settings::RdmaSettings;

/// Upstream's name for the protocol.
const PROTOCOL: &str = "rdma";

/// One engine's RDMA transport.
pub struct RdmaTransport {
    shared: Arc<RdmaShared>,
    watch: DeviceWatcher,
}

impl RdmaTransport {
    /// Opens the devices. `server` is our server name in endpoint paths.
    fn open(
        server: String,
        options: &TransportOptions,
        settings: &RdmaSettings,
        clock: MonoClock,
        random: RandomSource,
    ) -> Result<RdmaTransport, TransferError> {
        let host = open::host()?;
        let (nics, unused) = open::nics(&host, options, settings)?;
        let names: Vec<String> = nics.iter().map(|nic| nic.name.clone()).collect();
        let matrix = open::matrix(&host, &names, settings)?;
        let longest = |nic: &Arc<Nic>| nic.device.port(nic.port).map_or(1 << 30, |port| port.max_msg_sz);
        let longest = nics.iter().map(longest).min().unwrap_or(1 << 30);
        let piece_bytes_max = nics.iter().map(|nic| nic.device.attributes().max_mr_size).min().unwrap_or(u64::MAX);
        let relaxed = settings.relaxed_ordering && relaxed_ordering();
        let piece_bytes_max = piece_bytes_max.min(settings.region_bytes_max);
        let registry = Registry::new(nics.clone(), piece_bytes_max, relaxed, settings);
        let no_thread =
            |error: std::io::Error| TransferError::Unavailable { protocol: PROTOCOL, why: error.to_string() };
        let memory = Arc::new(Memory::from_vec(vec![0; 64]));
        let registered = registry.register(&memory, false);
        registered.map_err(|(nic, error)| {
            let fault = nic.registration_fault("", &error, locked(&memory, &nics));
            TransferError::Unavailable { protocol: PROTOCOL, why: fault.to_string() }
        })?;
        let waker = Arc::new(CqWaker::new().map_err(no_thread)?);
        let shared = Arc::new(RdmaShared {
            server,
            poller: CompletionPoller::new(nics.clone(), Arc::clone(&waker), Arc::clone(&clock)),
            health_state: HealthState::new(nics.len(), settings),
            on_change: OnceLock::new(),
            clock,
            random,
            router: RdmaRouter::new(Rails::new(names, Some(&matrix.0)), settings),
            slice_rule: SliceRule::new(settings.slice_bytes, settings.fragment_ratio, longest),
            settings: settings.clone(),
            nics,
            unused,
            matrix,
            registry,
            waker,
            scratch: memory.slice(0, 1).expect("the buffer is not empty"),
        });
        let watch = DeviceWatcher::start(&shared).map_err(no_thread)?;
        Ok(RdmaTransport { shared, watch })
    }
}

/// Number of bytes locked by registering `memory` on all of `nics`. Each device counts separately.
fn locked(memory: &Memory, nics: &[Arc<Nic>]) -> u64 {
    memory.len() as u64 * nics.len() as u64
}

impl StartTransport for RdmaTransport {
    const PROTOCOL: &'static str = PROTOCOL;
    type Settings = RdmaSettings;

    fn read_settings(read: &mut VariableReader<'_>) -> RdmaSettings {
        RdmaSettings::read(read)
    }

    /// Opens the devices.
    ///
    /// # Errors
    /// Fails if no device can be used.
    fn start(start: &TransportStart<'_>, settings: &RdmaSettings) -> Result<RdmaTransport, TransferError> {
        let server = match &settings.bind_address {
            Some(host) => HostPort::new(host.as_str(), start.handshake.port).to_string(),
            None => start.segment.to_owned(),
        };
        RdmaTransport::open(server, start.options, settings, Arc::clone(start.clock), Arc::clone(start.random))
    }
}

impl DataTransport for RdmaTransport {
    fn protocol(&self) -> &'static str {
        PROTOCOL
    }

    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<RegionKeys, TransferError> {
        let pieces = self
            .shared
            .registry
            .register(memory, access == Access::Remote)
            .map_err(|(nic, error)| nic.registration_fault("", &error, locked(memory, &self.shared.nics)))?;
        let mut keys = RegionKeys { location: Some("*".to_owned()), pieces: Vec::with_capacity(pieces.len()) };
        for piece in &pieces {
            keys.location = Some(pieces[0].location().to_owned());
            let regions = piece.regions();
            keys.pieces.push(PieceKeys {
                offset: usize::try_from(piece.address() - memory.address()).expect("offset within the memory"),
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
        let up: Vec<&Arc<Nic>> = shared.nics.iter().filter(|nic| !nic.is_disabled()).collect();
        document.tcp_proto_version = 1;
        if shared.server != document.name {
            document.rdma_server_name.clone_from(&shared.server);
        }
        document.devices = up
            .iter()
            .map(|nic| {
                let address = nic.address();
                DeviceDescriptor { name: nic.name.clone(), lid: address.lid, gid: address.gid_text() }
            })
            .collect();
        let mut matrix = shared.matrix.0.clone();
        for list in matrix.values_mut().flatten() {
            list.retain(|name| up.iter().any(|nic| nic.name == *name));
        }
        document.priority_matrix = Some(matrix);
        if up.len() < shared.nics.len() {
            // Keys are in the order of the announced devices.
            let usable = |keys: &[u32]| up.iter().filter_map(|nic| keys.get(nic.index).copied()).collect();
            for buffer in &mut document.buffers {
                (buffer.rkey, buffer.lkey) = (usable(&buffer.rkey), usable(&buffer.lkey));
            }
        }
    }

    fn on_change(&self, callback: Box<dyn Fn() + Send + Sync>) {
        // Only the first callback is kept.
        let _ = self.shared.on_change.set(callback);
    }

    fn peer(
        &self,
        descriptor: &SegmentDescriptor,
        control: &Arc<dyn ControlPlane>,
    ) -> Result<Arc<dyn DataPeer>, TransferError> {
        let view = PeerView::of(descriptor, (self.shared.clock)())?;
        Ok(RdmaPeer::new(Arc::clone(&self.shared), Arc::clone(control), view))
    }

    fn accept(&self, request: ConnectionMessage, control: &dyn ControlPlane) -> ConnectionMessage {
        self.shared.answer(&request, control)
    }

    fn counters(&self) -> TargetCounters {
        TargetCounters::default()
    }

    fn end_inbound(&self, limit: Duration) -> Result<usize, TransferError> {
        Ok(self.shared.end_endpoints(limit))
    }

    fn devices(&self) -> Option<&dyn TransportDevices> {
        Some(self)
    }

    fn shutdown(&self) {
        for nic in &self.shared.nics {
            nic.close();
        }
        // Stop the watchers after closing the endpoints, because a watcher may be waiting for an
        // endpoint's peer.
        self.watch.stop();
        self.shared.registry.clear();
    }
}

impl TransportDevices for RdmaTransport {
    fn rails(&self) -> Vec<RailCounters> {
        self.shared.nics.iter().map(|nic| nic.counters()).collect()
    }

    fn probe_paths(
        &self,
        descriptor: &SegmentDescriptor,
        control: &dyn ControlPlane,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<PathProbes, TransferError> {
        self.shared.probe_paths(descriptor, control, limit, stop)
    }
}
