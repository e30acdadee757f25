//! Why moving bytes, or getting ready to, did not succeed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::metadata::MetadataError;
use crate::engine::sys::OutOfRange;
use crate::engine::transfer::rdma::{Blame, RdmaFault, RdmaStep};
use crate::engine::wire::json::{DocumentError, FrameError};

/// What was being done when a peer failed us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Looking up its name.
    Resolve,
    /// Connecting.
    Connect,
    /// Waiting for one of the connections to it to be free.
    Lane,
    /// Sending a request.
    Request,
    /// Waiting for the status or the first byte of an answer.
    Status,
    /// Moving the bytes.
    Body,
    /// Asking its handshake port.
    Handshake,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Resolve => "resolving its name",
            Step::Connect => "connecting",
            Step::Lane => "waiting for a free connection",
            Step::Request => "sending the request",
            Step::Status => "waiting for its answer",
            Step::Body => "moving the bytes",
            Step::Handshake => "asking its handshake port",
        })
    }
}

/// Why moving bytes, or getting ready to, did not succeed. Cheap to clone: one failure may end many operations.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransferError {
    /// The protocol is one that this build cannot speak.
    #[error("protocol '{protocol}' is not supported: bytes are moved over tcp or rdma")]
    Protocol {
        /// The word.
        protocol: String,
    },
    /// RDMA was asked for and cannot be had on this host.
    #[error("rdma cannot be used on this host: {why}")]
    NoRdma {
        /// What is missing, and of which device, as a text that may name what to do about it.
        why: String,
    },
    /// RDMA: a device, a peer or the way to it failed.
    #[error("{0}")]
    Rdma(Arc<RdmaFault>),
    /// The peer's descriptor asks for a protocol that we do not speak.
    #[error("segment {segment} is reached over '{protocol}', which this process does not speak")]
    PeerProtocol {
        /// The segment.
        segment: String,
        /// Its word.
        protocol: String,
    },
    /// The engine's own name cannot be used.
    #[error("local_server_name '{name}' cannot be used: {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// No address to announce to peers.
    #[error("no network interface is up, so there is no address to announce; set MC_TCP_BIND_ADDRESS")]
    NoAddress,
    /// No port in the range is free.
    #[error("no free port for the {what} in {first}..={last} after {tries} tries (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT)")]
    NoPort {
        /// Which service.
        what: &'static str,
        /// First port of the range.
        first: u16,
        /// Last port.
        last: u16,
        /// How many were tried.
        tries: u32,
        /// The last refusal.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another live process has this name.
    #[error("the name '{name}' is taken by a running engine at {owner}")]
    NameTaken {
        /// The name.
        name: String,
        /// Its handshake address.
        owner: String,
    },
    /// The metadata service did not do its part.
    #[error(transparent)]
    Metadata(Arc<MetadataError>),
    /// The segment is not known to the metadata service, or its owner has none.
    #[error("there is no segment '{segment}'")]
    UnknownSegment {
        /// The segment.
        segment: String,
    },
    /// A record or an answer cannot be read.
    #[error("{from} sent a document that cannot be used")]
    Document {
        /// Who.
        from: String,
        /// What is wrong with it.
        #[source]
        source: DocumentError,
    },
    /// A handshake frame cannot be used.
    #[error("{from} sent a frame that cannot be used")]
    Frame {
        /// Who.
        from: String,
        /// What is wrong with it.
        #[source]
        source: FrameError,
    },
    /// Memory of no bytes cannot be registered.
    #[error("a memory of 0 bytes cannot be registered")]
    EmptyMemory,
    /// A part of the memory is registered already.
    #[error("{length} bytes at {address:#x} overlap memory that is registered already")]
    Overlap {
        /// Where it begins.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// Too many registrations.
    #[error("{limit} stretches of memory are registered, which is the most")]
    TooManyRegions {
        /// The most.
        limit: usize,
    },
    /// Too many peers.
    #[error("{limit} peers are known, which is the most")]
    TooManyPeers {
        /// The most.
        limit: usize,
    },
    /// A range is outside its memory.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The range is not registered, or not for peers.
    #[error("segment {segment} refuses {length} bytes at {address:#x}: not in its registered memory (status {code})")]
    Rejected {
        /// The segment.
        segment: String,
        /// Where the range begins.
        address: u64,
        /// Bytes.
        length: u64,
        /// The status code; 0 where there was none.
        code: u32,
    },
    /// What came back is no status frame.
    #[error("{peer} answered {word:#018x}, which is no status of the transfer protocol")]
    BadStatus {
        /// The peer's address.
        peer: String,
        /// What came.
        word: u64,
    },
    /// The connection could not be made, or broke.
    #[error("lost {peer} while {step}")]
    Lost {
        /// The peer's address.
        peer: String,
        /// When.
        step: Step,
        /// What the system says.
        #[source]
        source: Arc<io::Error>,
    },
    /// A step took longer than it may.
    #[error("gave up on {peer} after {limit:?} of {step}")]
    Timeout {
        /// The peer's address.
        peer: String,
        /// What it was waited for.
        step: Step,
        /// The limit that was reached.
        limit: Duration,
    },
    /// Too many callers wait for the same peer.
    #[error("{waiting} batches are waiting for {peer} already (MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER)")]
    Busy {
        /// The peer's address.
        peer: String,
        /// How many wait.
        waiting: usize,
    },
    /// The peer failed a moment ago and has not answered since.
    #[error("segment {segment} has failed and not answered since; it is asked again every {again:?}: {because}")]
    Down {
        /// The segment.
        segment: String,
        /// How long until it is asked again.
        again: Duration,
        /// What went wrong first.
        because: String,
    },
    /// The engine is shut down.
    #[error("the transfer engine is shut down")]
    Stopped,
}

impl TransferError {
    /// The error with its causes, on one line.
    pub(in crate::engine::transfer) fn chain(&self) -> impl fmt::Display {
        Chain(self)
    }

    /// May bytes of a write that failed in this way still arrive at the peer? They do when a process that was stopped goes on and
    /// reads what is in its sockets. The place that they were meant for must not be given to anybody else meanwhile.
    pub fn may_still_land(&self) -> bool {
        match self {
            TransferError::Lost { step, .. } | TransferError::Timeout { step, .. } => {
                matches!(step, Step::Request | Step::Status | Step::Body)
            }
            TransferError::BadStatus { .. } => true,
            // The pairs are stopped by then, but what they had sent may be on its way.
            TransferError::Rdma(fault) => fault.step == RdmaStep::Move && fault.blame != Blame::Refusal,
            _ => false,
        }
    }

    /// Did something answer, and nothing that can be read?
    pub(in crate::engine::transfer) fn is_unreadable(&self) -> bool {
        matches!(self, TransferError::Document { .. } | TransferError::Frame { .. })
    }

    /// Could the same call succeed later, without a change of configuration?
    pub fn is_retryable(&self) -> bool {
        match self {
            TransferError::Metadata(error) => error.is_retryable(),
            TransferError::Lost { .. }
            | TransferError::Timeout { .. }
            | TransferError::Busy { .. }
            | TransferError::Down { .. } => true,
            TransferError::Rdma(fault) => fault.blame == Blame::Peer,
            _ => false,
        }
    }

    /// Does this say that the peer, or the way to it, is dead (and not merely that it refused)?
    pub(in crate::engine::transfer) fn is_outage(&self) -> bool {
        match self {
            TransferError::Metadata(error) => error.is_retryable(),
            TransferError::Lost { .. } | TransferError::Timeout { .. } => true,
            TransferError::Rdma(fault) => fault.blame == Blame::Peer,
            _ => false,
        }
    }
}

/// An error with its causes, on one line.
struct Chain<'a>(&'a TransferError);

impl fmt::Display for Chain<'_> {
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
