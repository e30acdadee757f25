//! The TCP transport.
//!
//! Both ends deliberately block on plain sockets. A request takes so little work that system calls and wake-ups
//! dominate, and a design with one blocking thread per connection needs the fewest of them. Each end makes two calls
//! per request. The initiator sends the header, then receives the status and bytes in place. The target receives the
//! header, then sends the status, and the bytes directly from registered memory. A readiness loop would add a wait and
//! a hand-over to another thread. So the initiator's work is done by the thread that waits for the result, and the
//! target has one thread with a small stack per connection. Connections are few (four per peer, kept open) and bounded.
//! A batch's small requests are sent in runs, so that two calls serve up to 32 of them.
//!
//! Bytes move between the socket and registered memory without another copy (`sys::socket`). Unlike the control plane,
//! this module opens sockets and threads without `Env`. It still gets the time from `Env`.

mod batch_requests;
mod codec;
mod connect;
mod connection;
mod peer;
mod pool;
mod progress;
mod receive_buffer;
mod target;

use std::sync::{Arc, RwLock};

use crate::engine::base::HostPort;
use crate::engine::sys::Memory;
use crate::engine::transfer::config::{Framing, TransferSettings};
use crate::engine::transfer::counters::TargetCounters;
use crate::engine::transfer::region::{Access, Regions};
use crate::engine::transfer::transport::{ControlPlane, DataPeer, DataTransport, RegionKeys};
use crate::engine::transfer::{MonoClock, TransferError};
use crate::engine::wire::json::SegmentDescriptor;

pub use codec::{
    DONE, FramingVersion, HEADER_BYTES, REFUSED, RequestFrame, STATUS_BYTES, decode_status, encode_status,
};
pub use peer::TcpPeer;
pub(in crate::engine::transfer) use target::draw;
pub use target::{CONNECTIONS_MAX, TcpTarget};

/// The framing version announced by the target.
const PROTO_VERSION: u64 = 2;

/// One engine's TCP transport.
pub struct TcpTransport {
    target: TcpTarget,
    host: String,
    settings: Arc<TransferSettings>,
    clock: MonoClock,
}

impl TcpTransport {
    /// Listens on a free port in `settings.ports` and serves memory in `regions` to peers. `host` is announced to them.
    ///
    /// # Errors
    /// Fails if no port is free or no thread can be started.
    pub fn start(
        host: String,
        regions: Arc<RwLock<Regions>>,
        settings: Arc<TransferSettings>,
        clock: MonoClock,
        rng: &dyn Fn() -> u64,
    ) -> Result<TcpTransport, TransferError> {
        let target = TcpTarget::start(&host, &settings.ports, rng, regions, settings.progress)?;
        Ok(TcpTransport { target, host, settings, clock })
    }

    /// Returns the port on which peers access our memory.
    pub fn port(&self) -> u16 {
        self.target.port()
    }
}

impl DataTransport for TcpTransport {
    fn protocol(&self) -> &'static str {
        "tcp"
    }

    fn register(&self, _: &Arc<Memory>, _: Access) -> Result<RegionKeys, TransferError> {
        Ok(RegionKeys::default())
    }

    fn deregister(&self, _: &Arc<Memory>) {}

    fn describe(&self, document: &mut SegmentDescriptor) {
        document.tcp_data_host.clone_from(&self.host);
        document.tcp_data_port = u64::from(self.port());
        document.tcp_proto_version = PROTO_VERSION;
    }

    fn peer(
        &self,
        descriptor: &SegmentDescriptor,
        _: &Arc<dyn ControlPlane>,
    ) -> Result<Arc<dyn DataPeer>, TransferError> {
        let (at, version) = data_endpoint(descriptor, self.settings.framing)?;
        Ok(TcpPeer::new(descriptor.name.clone(), at, version, Arc::clone(&self.settings), Arc::clone(&self.clock)))
    }

    fn counters(&self) -> TargetCounters {
        self.target.counters()
    }

    fn shutdown(&self) {
        self.target.stop();
    }
}

/// Returns the data plane address in `descriptor`, and the framing version to use. The directory has already filled in
/// the host.
fn data_endpoint(
    descriptor: &SegmentDescriptor,
    framing: Framing,
) -> Result<(HostPort, FramingVersion), TransferError> {
    let port = u16::try_from(descriptor.tcp_data_port).ok().filter(|p| *p != 0);
    let (Some(port), false) = (port, descriptor.tcp_data_host.is_empty()) else {
        return Err(TransferError::UnknownSegment { segment: descriptor.name.clone() });
    };
    let version = match framing {
        Framing::Newest if descriptor.tcp_proto_version >= 2 => FramingVersion::V2,
        _ => FramingVersion::V1,
    };
    Ok((HostPort::new(descriptor.tcp_data_host.as_str(), port), version))
}
