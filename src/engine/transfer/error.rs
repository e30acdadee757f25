//! Transfer engine errors.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::device_fault::{Blame, DeviceFault, DeviceStep};
use mcctl_base::time::RoundedDuration;
use mcctl_metadata::MetadataError;
use mcctl_sys::OutOfRange;
use mcctl_wire::json::{DocumentError, HandshakeFrameError};

/// The step at which communication with a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// Resolving the peer's host name.
    Resolve,
    Connect,
    /// Waiting for a free connection to the peer.
    Lane,
    Request,
    /// Waiting for a response's status or first byte.
    Status,
    /// Receiving or sending the bytes of a request.
    Body,
    /// Exchanging messages with the peer's handshake port.
    Handshake,
}

impl fmt::Display for TransferStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransferStep::Resolve => "resolving the host name",
            TransferStep::Connect => "connecting",
            TransferStep::Lane => "waiting for a free connection",
            TransferStep::Request => "sending the request",
            TransferStep::Status => "waiting for the response",
            TransferStep::Body => "transferring the bytes",
            TransferStep::Handshake => "waiting for the handshake port",
        })
    }
}

/// A transfer engine error. Cheap to clone, because one failure may end many operations.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransferError {
    #[error("protocol '{protocol}' is not supported; use {known}")]
    Protocol {
        protocol: String,
        /// The names of the supported protocols.
        known: String,
    },
    /// The requested transport cannot be used on this host.
    #[error("{protocol} is not available on this host: {why}")]
    Unavailable {
        protocol: &'static str,
        /// What is missing, on which device, and the fix if known.
        why: String,
    },
    /// A device, a peer, or the path between them failed.
    #[error("{0}")]
    Device(Arc<DeviceFault>),
    /// The peer's descriptor specifies a different protocol.
    #[error("segment {segment} uses protocol '{protocol}', but this process uses a different one")]
    PeerProtocol { segment: String, protocol: String },
    /// The engine's own name is invalid.
    #[error("invalid local_server_name '{}': {problem}", mcctl_base::text::masked_address(name))]
    Name { name: String, problem: String },
    /// No address can be announced to peers.
    #[error("no address to announce to peers: no network interface is up (set MC_TCP_BIND_ADDRESS)")]
    NoAddress,
    /// No port in the range is free.
    #[error(
        "no free port for the {what} in {first}..={last} after {tries} attempts (see MC_MIN_RPC_PORT, MC_MAX_RPC_PORT)"
    )]
    NoPort {
        what: &'static str,
        /// First port of the range.
        first: u16,
        last: u16,
        /// Number of ports tried.
        tries: u32,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("segment name '{name}' is in use by a running engine at {owner}")]
    NameTaken { name: String, owner: String },
    /// The metadata service rejected a request or did not respond.
    #[error(transparent)]
    Metadata(Arc<MetadataError>),
    /// The segment is not registered with the metadata service, or its owner has no document.
    #[error("segment '{segment}' not found")]
    UnknownSegment { segment: String },
    /// A record or a response cannot be parsed.
    #[error("invalid document from {from}")]
    Document {
        from: String,
        #[source]
        source: DocumentError,
    },
    /// A handshake frame is invalid.
    #[error("invalid handshake frame from {from}")]
    Frame {
        from: String,
        #[source]
        source: HandshakeFrameError,
    },
    #[error("cannot register 0 bytes of memory")]
    EmptyMemory,
    #[error("{length} bytes at {address:#x} overlap a region that is already registered")]
    Overlap {
        address: u64,
        /// Length of the range, in bytes.
        length: u64,
    },
    #[error("the limit of {limit} registered memory regions has been reached")]
    TooManyRegions { limit: usize },
    #[error("the limit of {limit} peers has been reached")]
    TooManyPeers { limit: usize },
    /// A range lies outside its memory.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The range is not registered, or not registered for remote access.
    #[error("segment {segment} rejected {length} bytes at {address:#x}: not in its registered memory (status {code})")]
    Rejected {
        segment: String,
        /// First address of the range.
        address: u64,
        /// Length of the range, in bytes.
        length: u64,
        /// The status code, or 0 if no status was received.
        code: u32,
    },
    /// The received 64-bit word is not a status frame.
    #[error("{peer} returned {word:#018x}, which is not a valid status in the transfer protocol")]
    BadStatus { peer: String, word: u64 },
    /// The connection could not be established, or it was lost.
    #[error("connection to {peer} failed while {step}")]
    Lost {
        peer: String,
        step: TransferStep,
        #[source]
        source: Arc<io::Error>,
    },
    /// The peer's memory may contain something else since. Nothing was read, and no byte of a write
    /// was sent.
    #[error("segment {segment} ended the transfers that were submitted before")]
    Ended { segment: String },
    /// A step exceeded its limit.
    #[error("timed out after {} while {step}: {peer}", RoundedDuration(*limit))]
    Timeout {
        peer: String,
        /// The step that timed out.
        step: TransferStep,
        limit: Duration,
    },
    /// Too many batches are waiting for the same peer.
    #[error("{waiting} batches are already waiting for {peer} (limit: MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER)")]
    Busy { peer: String, waiting: usize },
    /// The peer failed recently and has not responded since.
    #[error("segment {segment} is down; next probe in {}; first error: {first_error}", RoundedDuration(*again))]
    Down {
        segment: String,
        /// Time until the next probe.
        again: Duration,
        /// The error that marked the peer as down.
        first_error: String,
    },
    /// Requests of peers have not ended although their connections are closed.
    #[error("{connections} closed data connections still access this process's memory after {}", RoundedDuration(*limit))]
    StillInUse { connections: usize, limit: Duration },
    #[error("the transfer engine has been shut down")]
    Stopped,
}

impl TransferError {
    /// Formats the error and its causes on one line.
    pub fn chain(&self) -> impl fmt::Display {
        ErrorChain(self)
    }

    /// Whether bytes of a write that failed with this error may still reach the peer's memory. This
    /// can happen if a stopped process resumes and reads its sockets. As long as it can happen, the
    /// target range must not be assigned to another object.
    pub fn may_still_land(&self) -> bool {
        match self {
            TransferError::Lost { step, .. } | TransferError::Timeout { step, .. } => {
                matches!(step, TransferStep::Request | TransferStep::Status | TransferStep::Body)
            }
            TransferError::BadStatus { .. } => true,
            // The queue pairs are already in the error state, but packets may still be on the wire.
            TransferError::Device(fault) => fault.step == DeviceStep::Move && fault.blame != Blame::Refusal,
            _ => false,
        }
    }

    /// Whether the peer ended its transfers after the operation was submitted. The addresses of the
    /// operation are outdated, so it must not be sent again.
    pub fn is_ended(&self) -> bool {
        matches!(self, TransferError::Ended { .. })
    }

    /// Whether a response arrived but could not be parsed.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, TransferError::Document { .. } | TransferError::Frame { .. })
    }

    /// Whether the same call could succeed later without a configuration change.
    pub fn is_retryable(&self) -> bool {
        match self {
            TransferError::Metadata(error) => error.is_retryable(),
            TransferError::Lost { .. }
            | TransferError::Ended { .. }
            | TransferError::Timeout { .. }
            | TransferError::Busy { .. }
            | TransferError::Down { .. } => true,
            TransferError::Device(fault) => fault.blame == Blame::Peer,
            _ => false,
        }
    }

    /// Whether the error indicates that the peer, or the path to it, is down. A rejected request
    /// does not.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            TransferError::Metadata(error) => error.is_retryable(),
            TransferError::Lost { .. } | TransferError::Timeout { .. } => true,
            TransferError::Device(fault) => fault.blame == Blame::Peer,
            _ => false,
        }
    }
}

/// Formats an error and its causes on one line.
struct ErrorChain<'a>(&'a TransferError);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl From<MetadataError> for TransferError {
    fn from(error: MetadataError) -> TransferError {
        TransferError::Metadata(Arc::new(error))
    }
}
