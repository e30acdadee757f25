//! How a work request ended.

use std::fmt;

/// A work request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number it was posted with.
    pub id: u64,
    /// The local number of its pair.
    pub pair: u32,
    /// How it ended.
    pub status: Status,
    /// The device's own code for an error.
    pub vendor_error: u32,
}

impl Completion {
    /// Stands in an array that is to be filled.
    pub const EMPTY: Completion = Completion { id: 0, pair: 0, status: Status(Status::SUCCESS), vendor_error: 0 };
}

/// How a work request ended: the library's number, `IBV_WC_...`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

/// Number, the library's name, and what it mostly means.
const NAMES: &[(u32, &str, &str)] = &[
    (0, "SUCCESS", "done"),
    (1, "LOC_LEN_ERR", "longer than the port can send"),
    (2, "LOC_QP_OP_ERR", "the local queue pair is inconsistent"),
    (3, "LOC_EEC_OP_ERR", "the local end-to-end context is inconsistent"),
    (4, "LOC_PROT_ERR", "the local memory is not, or no longer, registered"),
    (5, "WR_FLUSH_ERR", "the connection had failed before it was its turn"),
    (6, "MW_BIND_ERR", "a memory window could not be bound"),
    (7, "BAD_RESP_ERR", "the peer answered something unexpected"),
    (8, "LOC_ACCESS_ERR", "the local memory may not be written"),
    (9, "REM_INV_REQ_ERR", "the peer's device took the request for invalid"),
    (10, "REM_ACCESS_ERR", "the peer has not registered that memory, or under another key"),
    (11, "REM_OP_ERR", "the peer's device could not do it"),
    (12, "RETRY_EXC_ERR", "the peer's device did not answer: it or its process is gone, or nothing leads there"),
    (13, "RNR_RETRY_EXC_ERR", "the peer was not ready to receive"),
    (14, "LOC_RDD_VIOL_ERR", "the local reliable datagram domain does not fit"),
    (15, "REM_INV_RD_REQ_ERR", "the peer's reliable datagram domain does not fit"),
    (16, "REM_ABORT_ERR", "the peer gave it up"),
    (17, "INV_EECN_ERR", "no such end-to-end context"),
    (18, "INV_EEC_STATE_ERR", "the end-to-end context is in a wrong state"),
    (19, "FATAL_ERR", "the device failed"),
    (20, "RESP_TIMEOUT_ERR", "no response in time"),
    (21, "GENERAL_ERR", "the device does not say more"),
    (22, "TM_ERR", "tag matching failed"),
    (23, "TM_RNDV_INCOMPLETE", "a rendezvous is to be completed by software"),
];

impl Status {
    const SUCCESS: u32 = 0;
    const FLUSHED: u32 = 5;

    /// Did it do what was asked?
    pub fn is_ok(self) -> bool {
        self.0 == Status::SUCCESS
    }

    /// Did it not have its turn, because the connection failed before? The first that failed says why.
    pub fn is_flush(self) -> bool {
        self.0 == Status::FLUSHED
    }

    /// Is the fault this side's: length, queue pair, protection, access, window?
    pub fn is_local(self) -> bool {
        matches!(self.0, 1 | 2 | 4 | 6 | 8)
    }

    /// Did the peer refuse the memory: not registered, another key, out of range?
    pub fn is_remote_access(self) -> bool {
        self.0 == 10
    }

    /// Did the peer's device not answer?
    pub fn is_unanswered(self) -> bool {
        matches!(self.0, 12 | 20)
    }

    /// The library's name for it, without `IBV_WC_`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|n| n.0 == self.0).map_or("unknown", |n| n.1)
    }

    /// What it mostly means.
    pub fn meaning(self) -> &'static str {
        NAMES.iter().find(|n| n.0 == self.0).map_or("a status of a newer libibverbs", |n| n.2)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name(), self.0, self.meaning())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_named_and_classified() {
        assert_eq!(
            format!("{}", Status(10)),
            "REM_ACCESS_ERR (10): the peer has not registered that memory, or under another key"
        );
        assert_eq!(format!("{:?}", Status(99)), "unknown (99)");
        assert!(Status(0).is_ok() && Status(5).is_flush() && Status(4).is_local() && !Status(12).is_local());
        let numbers: Vec<u32> = NAMES.iter().map(|n| n.0).collect();
        assert_eq!(numbers, (0..24).collect::<Vec<_>>());
    }
}
