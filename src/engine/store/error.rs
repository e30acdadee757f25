//! Why an object could not be stored, found or moved.

use std::time::Duration;

use crate::engine::base::{ErrorCode, ObjectKey};
use crate::engine::rpc::CallError;
use crate::engine::transfer::TransferError;

/// Why an operation on an object failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The master did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The master said no.
    #[error("the master refuses {what}: {code}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Upstream's number.
        code: ErrorCode,
    },
    /// The master is not a Mooncake store of the version that this client speaks.
    #[error("the master speaks protocol version '{found}', this client speaks '{expected}'")]
    Version {
        /// What it said.
        found: String,
        /// What it should say.
        expected: &'static str,
    },
    /// Another process has this node's name; what the node would mount would be looked for there.
    #[error(transparent)]
    Name(TransferError),
    /// An object without bytes cannot be stored.
    #[error("object {key} is empty; the store keeps objects of one byte and more")]
    Empty {
        /// Which.
        key: ObjectKey,
    },
    /// No replica of the object is in a memory that this client can reach.
    #[error("object {key} has no readable replica in memory ({replicas} replicas are listed)")]
    NoReplica {
        /// Which.
        key: ObjectKey,
        /// How many were listed.
        replicas: usize,
    },
    /// The caller's room is too small.
    #[error("object {key} has {size} bytes, there is room for {room}")]
    TooSmall {
        /// Which.
        key: ObjectKey,
        /// The object's size, bytes.
        size: u64,
        /// The room, bytes.
        room: usize,
    },
    /// The bytes could not be moved.
    #[error("object {key} could not be moved {} {endpoint}: {source}", if *.writing { "to" } else { "from" })]
    Transfer {
        /// Which.
        key: ObjectKey,
        /// The replica's node.
        endpoint: String,
        /// To it, or from it.
        writing: bool,
        /// Why.
        source: TransferError,
    },
    /// The bytes were read, but too late: the master may have given their place to another object meanwhile.
    #[error("object {key} took longer to read than its lease of {lease:?}")]
    LeaseExpired {
        /// Which.
        key: ObjectKey,
        /// The lease.
        lease: Duration,
    },
    /// The master's answer to a batch has another length than the batch.
    #[error("the master answered {found} of {asked} keys of a batch")]
    BatchLength {
        /// Keys asked.
        asked: usize,
        /// Answers.
        found: usize,
    },
    /// An object does not fit this machine's memory.
    #[error("object {key} has {size} bytes, more than can be held here: {why}")]
    NoMemory {
        /// Which.
        key: ObjectKey,
        /// Its size, bytes.
        size: u64,
        /// What was tried.
        why: String,
    },
}

impl StoreError {
    /// The number that upstream's client gives for such a failure.
    pub fn code(&self) -> ErrorCode {
        match self {
            StoreError::Call(error) => error.code(),
            StoreError::Refused { code, .. } => *code,
            StoreError::Version { .. } => ErrorCode::INVALID_VERSION,
            StoreError::Empty { .. } | StoreError::TooSmall { .. } => ErrorCode::INVALID_PARAMS,
            StoreError::NoReplica { .. } => ErrorCode::INVALID_REPLICA,
            StoreError::Transfer { .. } => ErrorCode::TRANSFER_FAIL,
            StoreError::LeaseExpired { .. } => ErrorCode::LEASE_EXPIRED,
            StoreError::BatchLength { .. } => ErrorCode::RPC_FAIL,
            StoreError::NoMemory { .. } | StoreError::Name(_) => ErrorCode::INTERNAL_ERROR,
        }
    }

    /// Did a write fail in such a way that its bytes may still arrive? See [`TransferError::may_still_land`].
    pub fn may_still_land(&self) -> bool {
        matches!(self, StoreError::Transfer { writing: true, source, .. } if source.may_still_land())
    }

    /// Is the object simply not there?
    pub fn is_not_found(&self) -> bool {
        self.code() == ErrorCode::OBJECT_NOT_FOUND
    }
}
