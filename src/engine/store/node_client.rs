//! A client for the HTTP port of a node.

use std::time::Duration;

use crate::transport_stats::{SCHEMA, TransportStats};
use mcctl_base::HostPort;
use mcctl_net::http::{FetchError, Fetcher, HttpCredentials};

/// Maximum response size, in bytes: enough for all peers that a node tracks.
const RESPONSE_BYTES_MAX: usize = 32 << 20;

/// Reads from the HTTP ports of nodes. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct NodeClient {
    fetcher: Fetcher,
    scheme: &'static str,
}

/// Why a node's transport statistics are unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportStatsError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The node requires a token or a certificate; contains the status.
    #[error("the node refused the request (HTTP {0}): pass --token-file, or --client-cert and --client-key")]
    Refused(u16),
    /// The port belongs to another program; contains the status and the start of its response.
    #[error("not an mcctl node: {0}")]
    NotMcctl(String),
}

impl NodeClient {
    /// A client whose responses must be complete within `limit`. It does not connect yet.
    ///
    /// # Errors
    /// [`FetchError::Unusable`] if the HTTP client cannot be set up on this host.
    pub fn new(limit: Duration, credentials: &HttpCredentials) -> Result<NodeClient, FetchError> {
        let fetcher = Fetcher::with_credentials(credentials, limit, RESPONSE_BYTES_MAX)?;
        Ok(NodeClient { fetcher, scheme: credentials.scheme() })
    }

    /// The transport statistics of the node with the HTTP port `at`.
    ///
    /// # Errors
    /// No response, or not from an mcctl node.
    pub async fn transport(&self, at: &HostPort) -> Result<TransportStats, TransportStatsError> {
        let response = self.fetcher.get(&format!("{}://{at}/transport", self.scheme)).await?;
        if let 401 | 403 = response.status {
            return Err(TransportStatsError::Refused(response.status));
        }
        let stats = serde_json::from_str::<TransportStats>(&response.body).ok();
        let stats = stats.filter(|stats| response.is_ok() && stats.schema == SCHEMA);
        stats.ok_or_else(|| TransportStatsError::NotMcctl(response.shown()))
    }
}
