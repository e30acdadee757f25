//! A request of mcctl's client to its master: remove an object because its only replica is damaged.
//!
//! It is sent as `BatchReplicaClear` with a segment name that no segment has, so Mooncake's own
//! master clears nothing. The replica's ID and the checksum identify the object: if it was
//! rewritten in the meantime, it stays.

use std::fmt;

const PREFIX: &str = "mcctl:withdraw:";

/// The damaged replica, as the segment name of a `BatchReplicaClear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaWithdrawal {
    /// ID of the object's only replica.
    pub replica_id: u64,
    /// Checksum of the object, which the replica's bytes do not have.
    pub checksum: u64,
}

impl fmt::Display for ReplicaWithdrawal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:x}:{:x}", self.replica_id, self.checksum)
    }
}

impl ReplicaWithdrawal {
    /// Parses a segment name; `None` if it is not a withdrawal.
    pub fn parse(segment_name: &[u8]) -> Option<ReplicaWithdrawal> {
        let text = std::str::from_utf8(segment_name).ok()?.strip_prefix(PREFIX)?;
        let (replica_id, checksum) = text.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(ReplicaWithdrawal { replica_id: number(replica_id)?, checksum: number(checksum)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawal_round_trips_and_other_names_are_none() {
        let withdrawal = ReplicaWithdrawal { replica_id: 7, checksum: u64::MAX };
        assert_eq!(ReplicaWithdrawal::parse(withdrawal.to_string().as_bytes()), Some(withdrawal));
        for name in ["", "node:1", "mcctl:withdraw:", "mcctl:withdraw:1", "mcctl:withdraw:x:1", "mcctl:withdraw:1:2:3"]
        {
            assert_eq!(ReplicaWithdrawal::parse(name.as_bytes()), None, "{name}");
        }
        assert_eq!(ReplicaWithdrawal::parse(b"mcctl:withdraw:\xff"), None);
    }
}
