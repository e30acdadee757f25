//! The TCP transport.
//!
//! Both ends block on plain sockets, on purpose. A request is so little work that what it costs is system calls and wake-ups, and
//! a blocking thread per connection needs the fewest: two calls at each end per request (send the header, receive status and bytes
//! into place; receive the header, send status and bytes from place), where a readiness loop adds a wait, and hands results to
//! another thread. So the initiator's work is done by the thread that waits for it, and the target has a thread with a small stack
//! for each connection; connections are few (four per peer, kept open) and bounded. Small requests of a batch go in runs, so that two
//! calls serve up to 32 of them.
//!
//! The bytes go between the socket and registered memory without another copy (`sys::socket`). This is the one place in the
//! engine that opens sockets and threads past `Env`; time still comes from it.

mod codec;
mod connect;
mod inbox;
mod lane;
mod peer;
mod pool;
mod target;
mod watch;
mod work;

use std::sync::{Arc, RwLock};

use crate::engine::base::HostPort;
use crate::engine::sys::Memory;
use crate::engine::transfer::config::{Framing, TransferSettings};
use crate::engine::transfer::counters::TargetFigures;
use crate::engine::transfer::region::{Access, Regions};
use crate::engine::transfer::transport::{Calls, Keys, Peer, Transport};
use crate::engine::transfer::{Clock, TransferError};
use crate::engine::wire::json::SegmentDescriptor;

pub use codec::{DONE, HEADER_BYTES, Header, REFUSED, STATUS_BYTES, Version, decode_status, encode_status};
pub use peer::TcpPeer;
pub(in crate::engine::transfer) use target::draw;
pub use target::{CONNECTIONS_MAX, Target};

/// The framing that we offer as target.
const PROTO_VERSION: u64 = 2;

/// The TCP transport of one engine.
pub struct Tcp {
    target: Target,
    host: String,
    settings: Arc<TransferSettings>,
    clock: Clock,
}

impl Tcp {
    /// Listen on a free port of `settings.ports` for peers that read and write what `regions` lets them; `host` is what they are
    /// told to connect to.
    ///
    /// # Errors
    /// No port, or no thread.
    pub fn start(
        host: String,
        regions: Arc<RwLock<Regions>>,
        settings: Arc<TransferSettings>,
        clock: Clock,
        rng: &dyn Fn() -> u64,
    ) -> Result<Tcp, TransferError> {
        let target = Target::start(&host, &settings.ports, rng, regions, settings.progress)?;
        Ok(Tcp { target, host, settings, clock })
    }

    /// The data port.
    pub fn port(&self) -> u16 {
        self.target.port()
    }
}

impl Transport for Tcp {
    fn protocol(&self) -> &'static str {
        "tcp"
    }

    fn register(&self, _: &Arc<Memory>, _: Access) -> Result<Keys, TransferError> {
        Ok(Keys::default())
    }

    fn deregister(&self, _: &Arc<Memory>) {}

    fn describe(&self, document: &mut SegmentDescriptor) {
        document.tcp_data_host.clone_from(&self.host);
        document.tcp_data_port = u64::from(self.port());
        document.tcp_proto_version = PROTO_VERSION;
    }

    fn peer(&self, descriptor: &SegmentDescriptor, _: &Arc<dyn Calls>) -> Result<Arc<dyn Peer>, TransferError> {
        let (at, version) = place(descriptor, self.settings.framing)?;
        Ok(TcpPeer::new(descriptor.name.clone(), at, version, Arc::clone(&self.settings), Arc::clone(&self.clock)))
    }

    fn figures(&self) -> TargetFigures {
        self.target.figures()
    }

    fn shutdown(&self) {
        self.target.stop();
    }
}

/// Where a descriptor's data plane is, and which framing to speak there. Whoever fetched the descriptor filled in the host.
fn place(descriptor: &SegmentDescriptor, framing: Framing) -> Result<(HostPort, Version), TransferError> {
    let port = u16::try_from(descriptor.tcp_data_port).ok().filter(|p| *p != 0);
    let (Some(port), false) = (port, descriptor.tcp_data_host.is_empty()) else {
        return Err(TransferError::UnknownSegment { segment: descriptor.name.clone() });
    };
    let version = match framing {
        Framing::Newest if descriptor.tcp_proto_version >= 2 => Version::V2,
        _ => Version::V1,
    };
    Ok((HostPort::new(descriptor.tcp_data_host.as_str(), port), version))
}
