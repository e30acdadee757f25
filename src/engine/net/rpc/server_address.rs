//! Where a client's server is: at a fixed address, or at the address of the leader among several
//! servers.

use std::fmt;

use tokio::sync::watch;

use mcctl_base::HostPort;

/// The address of a server.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    Fixed(HostPort),
    /// The address of the server that leads; `None` while no server leads.
    Leader(watch::Receiver<Option<HostPort>>),
}

impl ServerAddress {
    /// Whether the address may change.
    pub fn changes(&self) -> bool {
        matches!(self, ServerAddress::Leader(_))
    }

    /// The present address; `None` if no server leads.
    pub fn now(&self) -> Option<HostPort> {
        match self {
            ServerAddress::Fixed(at) => Some(at.clone()),
            ServerAddress::Leader(leader) => leader.borrow().clone(),
        }
    }

    /// Whether no other server leads than the one at `at`.
    pub(super) fn is_still(&self, at: &HostPort) -> bool {
        match self {
            ServerAddress::Fixed(_) => true,
            ServerAddress::Leader(leader) => leader.borrow().as_ref().is_none_or(|now| now == at),
        }
    }

    /// Waits until a server leads. Returns its address.
    pub async fn leading(&self) -> HostPort {
        match self {
            ServerAddress::Fixed(at) => at.clone(),
            ServerAddress::Leader(leader) => awaited(leader, |_| true).await,
        }
    }

    /// Waits until another server leads than the one at `at`. Never returns for a fixed address.
    pub async fn changed(&self, at: &HostPort) {
        match self {
            ServerAddress::Fixed(_) => std::future::pending().await,
            ServerAddress::Leader(leader) => drop(awaited(leader, |now| now != at).await),
        }
    }
}

/// Waits for an address that meets `condition`. If the leader is no longer followed, waits forever.
async fn awaited(leader: &watch::Receiver<Option<HostPort>>, condition: impl Fn(&HostPort) -> bool) -> HostPort {
    let mut leader = leader.clone();
    let found = leader.wait_for(|now| now.as_ref().is_some_and(&condition)).await.ok().and_then(|now| now.clone());
    match found {
        Some(at) => at,
        None => std::future::pending().await,
    }
}

impl From<HostPort> for ServerAddress {
    fn from(at: HostPort) -> ServerAddress {
        ServerAddress::Fixed(at)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.now() {
            Some(at) => at.fmt(f),
            None => f.write_str("the leader"),
        }
    }
}
