//! Sets up and starts a client.

use std::time::Duration;

use crate::client_start::{PreparedClient, StoreStartError};
use crate::{ClientConfig, StoreClient};
use mcctl_base::{ByteSize, HostPort};
use mcctl_metadata::MetadataUri;
use mcctl_net::rpc::{ServerAddress, Timeouts};
use mcctl_sys::env::{Env, RealEnv};
use mcctl_sys::pages::MemorySource;
use mcctl_transfer::{TransferProtocol, TransferSettings, TransportOptions};

/// The settings of a client that has not been started. See [`StoreClient::builder`].
#[derive(Clone, Debug)]
pub struct StoreClientBuilder {
    config: ClientConfig,
}

impl StoreClient<RealEnv> {
    /// Returns the settings of a client for the master at `master`, to be changed and started.
    pub fn builder(master: HostPort) -> StoreClientBuilder {
        StoreClientBuilder::new(master)
    }
}

impl StoreClientBuilder {
    /// Returns the default settings for the master at `master`.
    pub fn new(master: HostPort) -> StoreClientBuilder {
        ClientConfig::new(master).into()
    }

    /// Follows the leader of several masters.
    #[must_use]
    pub fn leader(mut self, leader: Option<ServerAddress>) -> Self {
        self.config.leader = leader;
        self
    }

    /// Sets the service in which nodes look up segments; the default is P2PHANDSHAKE.
    #[must_use]
    pub fn metadata(mut self, metadata: MetadataUri) -> Self {
        self.config.engine.metadata = metadata;
        self
    }

    /// Sets the host on which peers reach this process, with or without a port; the default is
    /// `localhost`.
    #[must_use]
    pub fn local_hostname(mut self, host: impl Into<String>) -> Self {
        self.config.local_hostname = host.into();
        self
    }

    /// Sets the size of the registered buffer for callers without registered memory of their own.
    /// By default, there is none.
    #[must_use]
    pub fn local_buffer(mut self, size: ByteSize) -> Self {
        self.config.local_buffer_bytes = size;
        self
    }

    /// Sets the transport and its options, such as the RDMA devices; the default is TCP.
    #[must_use]
    pub fn transport(mut self, protocol: TransferProtocol, options: TransportOptions) -> Self {
        self.config.engine.protocol = protocol;
        self.config.engine.transport = options;
        self
    }

    /// Sets the transfer engine's settings; the default is upstream's defaults.
    #[must_use]
    pub fn transfer_settings(mut self, settings: TransferSettings) -> Self {
        self.config.engine.settings = settings;
        self
    }

    /// Sets the timeouts for calls to the master.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.config.timeouts = timeouts;
        self
    }

    /// Sets the time limit for the transfers of one batch; the default is 30 s.
    #[must_use]
    pub fn transfer_deadline(mut self, limit: Duration) -> Self {
        self.config.transfer_deadline = limit;
        self
    }

    /// Sets how long to wait for the metadata service, and then for the master; by default, the
    /// client does not wait.
    #[must_use]
    pub fn max_wait(mut self, limit: Duration) -> Self {
        self.config.max_wait = limit;
        self
    }

    /// Returns the configuration, for a node.
    pub fn config(self) -> ClientConfig {
        self.config
    }

    /// Starts the client.
    ///
    /// # Errors
    /// If this function fails, nothing is left running. However, if the caller drops this future,
    /// the client's records remain in the metadata service: see
    /// [`start_unless`](StoreClientBuilder::start_unless).
    pub async fn start<E: Env>(self, env: E) -> Result<StoreClient<E>, StoreStartError> {
        self.start_unless(env, std::future::pending()).await
    }

    /// Like [`start`](StoreClientBuilder::start), but waiting for the metadata service or the
    /// master ends with [`StoreStartError::Stopped`] when `stop` completes. Once waiting is over,
    /// the client starts even if `stop` completes, and the caller must then stop it.
    ///
    /// # Errors
    /// Same as [`start`](StoreClientBuilder::start).
    pub async fn start_unless<E: Env>(
        self,
        env: E,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<StoreClient<E>, StoreStartError> {
        let source = MemorySource::new(self.config.memory_policy());
        PreparedClient::new(self.config, env, &source)?.start(stop).await
    }
}

impl From<ClientConfig> for StoreClientBuilder {
    fn from(config: ClientConfig) -> StoreClientBuilder {
        StoreClientBuilder { config }
    }
}
