//! The masters of a cluster, by name and address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use mcctl_base::HostPort;

/// Names one copy of the state. A master takes a new random ID when it discards its copy, and when
/// it starts, unless its data directory contains everything that it has acknowledged. So an ID in
/// the sync record never refers to a copy with other contents: that copy still exists, or no copy
/// has the ID.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<MemberId> for String {
    fn from(id: MemberId) -> String {
        id.to_string()
    }
}

/// The text is not a member's ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid member ID: expected 16 hexadecimal digits")]
pub struct ParseMemberIdError;

impl FromStr for MemberId {
    type Err = ParseMemberIdError;

    fn from_str(text: &str) -> Result<MemberId, ParseMemberIdError> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseMemberIdError);
        }
        u64::from_str_radix(text, 16).map(MemberId).map_err(|_| ParseMemberIdError)
    }
}

impl TryFrom<String> for MemberId {
    type Error = ParseMemberIdError;

    fn try_from(text: String) -> Result<MemberId, ParseMemberIdError> {
        text.parse()
    }
}

/// Names the changes that one leader makes from its election on. The changes before them belong to
/// another history. It is random, and a master that is elected again gets a new one: after a
/// restart, its changes may differ from those that standbys received from it before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryId(pub u64);

/// The ID of a master's copy, and the addresses at which others reach the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    pub id: MemberId,
    /// Address of the RPC port, as in the leader's key.
    pub rpc: HostPort,
    /// Address of the port for replication.
    pub replication: HostPort,
}
