//! Work completions.

use std::fmt;

/// The result of one work request, polled from a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The id of the work request.
    pub id: u64,
    /// The local number of the request's queue pair.
    pub qp: u32,
    pub status: CompletionStatus,
    /// The device's own error code.
    pub vendor_error: u32,
}

impl WorkCompletion {
    /// Placeholder for arrays that are filled later.
    pub const EMPTY: WorkCompletion =
        WorkCompletion { id: 0, qp: 0, status: CompletionStatus(CompletionStatus::SUCCESS), vendor_error: 0 };
}

/// The status of a work completion: the library's number, `IBV_WC_...`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompletionStatus(pub u32);

/// Number, library name, and usual meaning.
const NAMES: &[(u32, &str, &str)] = &[
    (0, "SUCCESS", "success"),
    (1, "LOC_LEN_ERR", "longer than the port's maximum message size"),
    (2, "LOC_QP_OP_ERR", "the local queue pair is inconsistent"),
    (3, "LOC_EEC_OP_ERR", "the local end-to-end context is inconsistent"),
    (4, "LOC_PROT_ERR", "the local memory is not registered or no longer registered"),
    (5, "WR_FLUSH_ERR", "flushed: an earlier request on the queue pair failed"),
    (6, "MW_BIND_ERR", "a memory window could not be bound"),
    (7, "BAD_RESP_ERR", "unexpected response from the peer"),
    (8, "LOC_ACCESS_ERR", "the local memory is not writable"),
    (9, "REM_INV_REQ_ERR", "the peer's device rejected the request as invalid"),
    (10, "REM_ACCESS_ERR", "the peer has not registered that memory, or has registered it with a different key"),
    (11, "REM_OP_ERR", "the peer's device could not execute the request"),
    (12, "RETRY_EXC_ERR", "the peer's device did not respond: the device or its process is gone or unreachable"),
    (13, "RNR_RETRY_EXC_ERR", "the peer was not ready to receive"),
    (14, "LOC_RDD_VIOL_ERR", "local reliable datagram domain mismatch"),
    (15, "REM_INV_RD_REQ_ERR", "remote reliable datagram domain mismatch"),
    (16, "REM_ABORT_ERR", "the peer aborted the request"),
    (17, "INV_EECN_ERR", "invalid end-to-end context"),
    (18, "INV_EEC_STATE_ERR", "invalid end-to-end context state"),
    (19, "FATAL_ERR", "the device failed"),
    (20, "RESP_TIMEOUT_ERR", "no response in time"),
    (21, "GENERAL_ERR", "unspecified device error"),
    (22, "TM_ERR", "tag matching failed"),
    (23, "TM_RNDV_INCOMPLETE", "software must complete the rendezvous"),
];

impl CompletionStatus {
    const SUCCESS: u32 = 0;
    const FLUSHED: u32 = 5;

    /// Whether the request succeeded.
    pub fn is_ok(self) -> bool {
        self.0 == CompletionStatus::SUCCESS
    }

    /// Whether the request was flushed because an earlier one failed. The first failed completion
    /// reports the cause.
    pub fn is_flush(self) -> bool {
        self.0 == CompletionStatus::FLUSHED
    }

    /// Whether the cause is local: length, queue pair, protection, access, memory window.
    pub fn is_local(self) -> bool {
        matches!(self.0, 1 | 2 | 4 | 6 | 8)
    }

    /// Whether the peer denied access to the memory: not registered, wrong key, or out of range.
    pub fn is_remote_access(self) -> bool {
        self.0 == 10
    }

    /// Whether the peer's device did not respond.
    pub fn is_unanswered(self) -> bool {
        matches!(self.0, 12 | 20)
    }

    /// The library's name for the status, without `IBV_WC_`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|n| n.0 == self.0).map_or("unknown", |n| n.1)
    }

    /// The usual cause of this status.
    pub fn meaning(self) -> &'static str {
        NAMES.iter().find(|n| n.0 == self.0).map_or("unknown status from a newer libibverbs", |n| n.2)
    }
}

impl fmt::Debug for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name(), self.0, self.meaning())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_named_and_classified() {
        assert!(format!("{}", CompletionStatus(10)).starts_with("REM_ACCESS_ERR (10): "));
        assert_eq!(format!("{:?}", CompletionStatus(99)), "unknown (99)");
        assert!(
            CompletionStatus(0).is_ok()
                && CompletionStatus(5).is_flush()
                && CompletionStatus(4).is_local()
                && !CompletionStatus(12).is_local()
        );
        let numbers: Vec<u32> = NAMES.iter().map(|n| n.0).collect();
        assert_eq!(numbers, (0..24).collect::<Vec<_>>());
    }
}
