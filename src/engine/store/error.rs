//! Errors from operations on objects.

use std::time::Duration;

use mcctl_base::time::RoundedDuration;
use mcctl_base::{ByteSize, ErrorCode, ObjectKey};
use mcctl_net::rpc::CallError;
use mcctl_transfer::TransferError;

/// What a write that has not ended in time leaves behind.
const STILL_LANDING: &str =
    "; it is unknown how much arrived, so the master keeps the memory reserved for its release timeout";

/// Why an operation on an object failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Call(#[from] CallError),
    /// The master returned an error code.
    #[error("the master rejected {what}: {code}")]
    Refused { what: &'static str, code: ErrorCode },
    /// The peer is not a Mooncake store master that supports this client's protocol version.
    #[error("protocol version mismatch: the master uses '{found}'; this client requires '{expected}'")]
    Version {
        found: String,
        /// The version that this client requires.
        expected: &'static str,
    },
    /// Another process uses this node's name. Peers would look for this node's segments in that
    /// process.
    #[error(transparent)]
    Name(TransferError),
    #[error("object {key} is empty; the store requires at least 1 byte")]
    Empty { key: ObjectKey },
    /// The object has no memory replica that this client can reach.
    #[error("object {key} has no readable memory replica ({replicas} replicas listed)")]
    NoReplica {
        key: ObjectKey,
        /// Number of listed replicas.
        replicas: usize,
    },
    /// The caller's buffer is too small.
    #[error("object {key} has {size} bytes, but the buffer has only {buffer}")]
    TooSmall {
        key: ObjectKey,
        /// Size of the object in bytes.
        size: u64,
        /// Size of the buffer in bytes.
        buffer: usize,
    },
    #[error(
        "cannot {} object {key} {} {endpoint}: {source}{}",
        if *.writing { "write" } else { "read" },
        if *.writing { "to" } else { "from" },
        if *.writing && .source.may_still_land() { STILL_LANDING } else { "" }
    )]
    Transfer {
        key: ObjectKey,
        endpoint: String,
        /// True for a write, false for a read.
        writing: bool,
        source: TransferError,
    },
    /// The bytes were read too late: in the meantime, the master may have reused their memory for
    /// another object.
    #[error("reading object {key} took longer than its lease of {}", RoundedDuration(*lease))]
    LeaseExpired { key: ObjectKey, lease: Duration },
    /// The connection to the master was lost during a read, the node ended transfers, or the object
    /// was rewritten: in the meantime, a master may have assigned the memory to another object.
    #[error(
        "object {key} may have moved while it was being read: it was rewritten, the connection to the master was lost, or the node ended transfers"
    )]
    LookupLost { key: ObjectKey },
    /// Before a write began, the connection to the master was lost, or too much time had passed.
    /// Nothing was written.
    #[error(
        "the memory for object {key} may belong to another object: before the write, the connection to the master was lost, or the process was stopped"
    )]
    AllocationLost { key: ObjectKey },
    /// The response to the end of a write was lost. The object may be stored.
    #[error("it is unknown whether object {key} is stored: {source}")]
    OutcomeUnknown { key: ObjectKey, source: Box<StoreError> },
    /// A put found that another write of its key has begun. That write has not ended, and may never
    /// end.
    #[error("object {key} is not stored: another write of this key has begun and has not ended; retry later")]
    OtherWrite { key: ObjectKey },
    /// No replica that could be read has bytes with the checksum of the object. Each was read
    /// several times.
    #[error("the bytes of object {key} at {endpoint} do not have its checksum, and no other replica could be read")]
    Damaged { key: ObjectKey, endpoint: String },
    /// The bytes of the object are right in other memory of this process.
    #[error(
        "the bytes of object {key} are wrong only in the buffer that they were read into: another thread writes to it, or this host's memory is faulty"
    )]
    WrongBuffer { key: ObjectKey },
    /// The node cannot mount its memory again, because transfers of its peers have not ended.
    #[error("cannot mount the memory again: {0}")]
    StillInUse(TransferError),
    /// The number of results returned by the master differs from the number of keys.
    #[error("the master returned {found} results for a batch of {requested} keys")]
    BatchLength { requested: usize, found: usize },
    /// The object is too large for this machine's memory.
    #[error("cannot allocate {} for object {key}: {why}", ByteSize(*.size))]
    NoMemory {
        key: ObjectKey,
        /// Size of the object in bytes.
        size: u64,
        why: String,
    },
}

impl StoreError {
    /// Returns true for an error that may go away if the caller waits for the master.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            StoreError::Call(
                CallError::Connect { .. }
                    | CallError::ConnectTimeout { .. }
                    | CallError::NoLeader { .. }
                    | CallError::Timeout { .. }
                    | CallError::Closed { .. }
            )
        )
    }

    /// Returns the error code that upstream's client returns for this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            StoreError::Call(error) => error.code(),
            StoreError::Refused { code, .. } => *code,
            StoreError::Version { .. } => ErrorCode::INVALID_VERSION,
            StoreError::Empty { .. } | StoreError::TooSmall { .. } => ErrorCode::INVALID_PARAMS,
            StoreError::NoReplica { .. } => ErrorCode::INVALID_REPLICA,
            StoreError::Transfer { .. } => ErrorCode::TRANSFER_FAIL,
            StoreError::LeaseExpired { .. } | StoreError::LookupLost { .. } => ErrorCode::LEASE_EXPIRED,
            StoreError::OutcomeUnknown { source, .. } => source.code(),
            StoreError::OtherWrite { .. } => ErrorCode::REPLICA_IS_NOT_READY,
            StoreError::Damaged { .. } | StoreError::WrongBuffer { .. } => ErrorCode::CHECKSUM_MISMATCH,
            StoreError::BatchLength { .. } | StoreError::AllocationLost { .. } => ErrorCode::RPC_FAIL,
            StoreError::NoMemory { .. } | StoreError::Name(_) | StoreError::StillInUse(_) => ErrorCode::INTERNAL_ERROR,
        }
    }

    /// Returns the error with `KEY` instead of the key, for logs: keys may be confidential.
    #[must_use]
    pub fn without_key(&self) -> StoreError {
        let mut error = self.clone();
        match &mut error {
            StoreError::Empty { key }
            | StoreError::NoReplica { key, .. }
            | StoreError::TooSmall { key, .. }
            | StoreError::Transfer { key, .. }
            | StoreError::LeaseExpired { key, .. }
            | StoreError::LookupLost { key }
            | StoreError::AllocationLost { key }
            | StoreError::OutcomeUnknown { key, .. }
            | StoreError::OtherWrite { key }
            | StoreError::Damaged { key, .. }
            | StoreError::WrongBuffer { key }
            | StoreError::NoMemory { key, .. } => *key = ObjectKey::from("KEY"),
            StoreError::Call(_)
            | StoreError::Refused { .. }
            | StoreError::Version { .. }
            | StoreError::Name(_)
            | StoreError::StillInUse(_)
            | StoreError::BatchLength { .. } => {}
        }
        error
    }

    /// Returns true if a write failed but its bytes may still arrive. See
    /// [`TransferError::may_still_land`].
    pub fn may_still_land(&self) -> bool {
        matches!(self, StoreError::Transfer { writing: true, source, .. } if source.may_still_land())
    }

    /// Returns true if a read may succeed after another lookup.
    pub fn is_lookup_lost(&self) -> bool {
        matches!(self, StoreError::LookupLost { .. })
    }

    /// Returns true if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == ErrorCode::OBJECT_NOT_FOUND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_errors_contain_the_cause_and_no_key() {
        let key = ObjectKey::from("secret");
        let errors = [
            StoreError::NoReplica { key: key.clone(), replicas: 3 },
            StoreError::NoMemory { key: key.clone(), size: 7, why: "cause".to_owned() },
            StoreError::LookupLost { key },
        ];
        let texts = errors.map(|error| (error.to_string(), error.without_key().to_string()));
        for (with, without) in &texts {
            assert_eq!(&with.replace("secret", "KEY"), without);
            assert_ne!(with, without);
        }
        let refused = StoreError::Refused { what: "Ping", code: ErrorCode::INTERNAL_ERROR };
        assert_eq!(refused.to_string(), refused.without_key().to_string());
    }
}
