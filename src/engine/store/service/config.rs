//! A store service's configuration, and why it did not start.

use crate::service::MemoryShortage;
use crate::{NodeConfig, StoreStartError};
use mcctl_base::HostPort;
use mcctl_net::http::{BindError, HttpAccess};

/// Configuration of a store service.
#[derive(Clone, Debug)]
pub struct StoreServiceConfig {
    pub node: NodeConfig,
    /// Address of the REST port. Port 0 selects a free port.
    pub rest: HostPort,
    /// Address of the client HTTP server, if it is enabled. Port 0 selects a free port.
    pub client_http: Option<HostPort>,
    /// Who may send which request to the two HTTP ports. A Unix socket is that of the REST port.
    pub access: HttpAccess,
}

/// Why a store service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StoreServiceError {
    #[error(transparent)]
    Memory(#[from] MemoryShortage),
    /// The REST port could not be bound.
    #[error(transparent)]
    Rest(BindError),
    /// The client HTTP server's port could not be bound.
    #[error(transparent)]
    ClientHttp(BindError),
    #[error(transparent)]
    Start(#[from] StoreStartError),
}
