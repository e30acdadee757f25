//! The TCP transport.
//!
//! Both ends deliberately block on plain sockets. A request takes so little work that system calls
//! and wake-ups dominate, and a design with one blocking thread per connection needs the fewest of
//! them. Each end makes two calls per request. The initiator sends the header, then receives the
//! status and bytes in place. The target receives the header, then sends the status, and the bytes
//! directly from registered memory. A readiness loop would add a wait and a hand-over to another
//! thread. So the initiator's work is done by the thread that waits for the result, and the target
//! has one thread with a small stack per connection. Connections are few (four per peer, kept open)
//! and bounded. A batch's small requests are sent in runs, so that two calls serve up to 32 of
//! them.
//!
//! Bytes move between the socket and registered memory without another copy (`sys::socket`). Unlike
//! the control plane, this module opens sockets and threads without `Env`. It still gets the time
//! from `Env`.

mod acceptors;
mod batch_requests;
mod codec;
mod connect;
mod connection;
mod displacement;
mod peer;
mod pool;
mod progress;
mod receive_buffer;
mod settings;
mod target;

use std::sync::Arc;
use std::time::Duration;

use crate::counters::TargetCounters;
use crate::transport::{ControlPlane, DataPeer, DataTransport, StartTransport, TransportStart};
use crate::types::Access;
use crate::types::RegionKeys;
use crate::variables::VariableReader;
use crate::{MonoClock, TransferError};
use mcctl_base::HostPort;
use mcctl_sys::Memory;
use mcctl_wire::json::SegmentDescriptor;

pub use codec::{
    DONE, FramingVersion, HEADER_BYTES, REFUSED, RequestFrame, STATUS_BYTES, decode_status, encode_status,
};
pub use peer::TcpPeer;
pub use settings::{Framing, TcpSettings};
use target::addresses_to_bind;
pub use target::{CONNECTIONS_MAX, TargetGate, TcpTarget};

/// The framing version announced by the target.
const PROTO_VERSION: u64 = 2;

/// One engine's TCP transport.
pub struct TcpTransport {
    target: TcpTarget,
    host: String,
    settings: Arc<TcpSettings>,
    /// Timeout for connecting to a peer.
    connect_limit: Duration,
    clock: MonoClock,
}

impl TcpTransport {
    /// Returns the port on which peers access our memory.
    pub fn port(&self) -> u16 {
        self.target.port()
    }
}

impl StartTransport for TcpTransport {
    const PROTOCOL: &'static str = "tcp";
    type Settings = TcpSettings;

    fn read_settings(read: &mut VariableReader<'_>) -> TcpSettings {
        TcpSettings::read(read)
    }

    /// Listens on a free port and serves the registered memory to peers. The handshake port's host
    /// is announced to them.
    ///
    /// # Errors
    /// Fails if no port is free or no thread can be started.
    fn start(start: &TransportStart<'_>, settings: &TcpSettings) -> Result<TcpTransport, TransferError> {
        let host = start.handshake.host.clone();
        let regions = Arc::clone(start.regions);
        let addresses = addresses_to_bind(start.listen_on, &host);
        let gate = TargetGate { filter: start.filter.clone(), clock: Arc::clone(start.clock) };
        let target = TcpTarget::start(&addresses, start.ports, &**start.random, regions, settings.progress, gate)?;
        let settings = Arc::new(settings.clone());
        let clock = Arc::clone(start.clock);
        Ok(TcpTransport { target, host, settings, connect_limit: start.connect_limit, clock })
    }
}

impl DataTransport for TcpTransport {
    fn protocol(&self) -> &'static str {
        TcpTransport::PROTOCOL
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
        let settings = Arc::clone(&self.settings);
        let clock = Arc::clone(&self.clock);
        Ok(TcpPeer::new(descriptor.name.clone(), at, version, settings, self.connect_limit, clock))
    }

    fn counters(&self) -> TargetCounters {
        self.target.counters()
    }

    fn end_inbound(&self, limit: Duration) -> Result<usize, TransferError> {
        self.target.end_inbound(limit)
    }

    fn shutdown(&self) {
        self.target.stop();
    }
}

/// Returns the data plane address in `descriptor`, and the framing version to use. The directory
/// has already filled in the host.
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
