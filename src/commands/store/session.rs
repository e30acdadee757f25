//! A `store` command's connection to a store.

use std::pin::pin;

use tokio::sync::oneshot;

use crate::commands::cli::error::Failure;
use crate::commands::cli::origin::Origin;
use crate::commands::cli::runtime::{self, Signals, StopSignal};
use crate::commands::failure::store as store_failure;
use crate::commands::target::connect::{self, ClientArgs};
use crate::commands::target::master_target::MasterTarget;
use crate::engine::env::RealEnv;
use crate::engine::metadata::MetadataUri;
use crate::engine::store::{StoreClient, StoreClientBuilder, StoreError};

/// A client connected to a store.
pub(super) struct StoreSession {
    master: MasterTarget,
    metadata: Origin<MetadataUri>,
    client: StoreClient<RealEnv>,
    signals: Signals,
}

impl StoreSession {
    /// Connects to the store.
    ///
    /// # Errors
    /// The master or the metadata service is unreachable, this host has no route to the master, or
    /// a signal arrives.
    pub(super) async fn open(args: &ClientArgs) -> Result<StoreSession, Failure> {
        let mut signals = Signals::take()?;
        let (master, plan) = tokio::select! {
            planned = args.planned() => planned?,
            signal = signals.next() => return Err(stopped(signal, "connect")),
        };
        let (cancel, cancelled) = oneshot::channel::<()>();
        let cancelled = async move { cancelled.await.unwrap_or_default() };
        let client = StoreClientBuilder::from(plan.config.clone());
        let mut starting = pin!(client.start_unless(RealEnv::new(), cancelled));
        let started = tokio::select! {
            started = &mut starting => started,
            signal = signals.next() => {
                // The receiver no longer exists if startup has just completed.
                let _ = cancel.send(());
                let end = async {
                    if let Ok(client) = starting.await {
                        client.stop().await;
                    }
                };
                runtime::stop_in_time("the client", end).await;
                return Err(stopped(signal, "connect"));
            }
        };
        match started {
            Ok(client) => {
                plan.log_note();
                Ok(StoreSession { master, metadata: plan.metadata, client, signals })
            }
            Err(error) => Err(connect::unstarted(&master, &plan, error).await),
        }
    }

    /// Runs `work` unless a signal arrives first. `what` is a verb phrase for errors. The caller
    /// closes the session in either case.
    ///
    /// # Errors
    /// A signal arrives, or `work` fails.
    pub(super) async fn attempt<T, W>(&mut self, what: &str, work: W) -> Result<T, Failure>
    where
        W: AsyncFnOnce(&StoreClient<RealEnv>) -> Result<T, StoreError>,
    {
        tokio::select! {
            done = work(&self.client) => match done {
                Ok(done) => Ok(done),
                Err(error) => Err(store_failure::explained(&self.master, &self.metadata, what, &error).await),
            },
            signal = self.signals.next() => Err(stopped(signal, what)),
        }
    }

    /// Runs `work`, queries of the master, unless a signal arrives first. `what` is a verb phrase
    /// for errors.
    ///
    /// # Errors
    /// A signal arrives, or `work` fails.
    pub(super) async fn query<T, W>(&mut self, what: &str, work: W) -> Result<T, Failure>
    where
        W: AsyncFnOnce(&MasterTarget) -> Result<T, Failure>,
    {
        tokio::select! {
            done = work(&self.master) => done,
            signal = self.signals.next() => Err(stopped(signal, what)),
        }
    }

    /// Returns the failure for `error`, which occurred while trying to `what`.
    pub(super) async fn explained(&self, what: &str, error: &StoreError) -> Failure {
        store_failure::explained(&self.master, &self.metadata, what, error).await
    }

    /// Returns the master that this session is connected to.
    pub(super) fn master(&self) -> &MasterTarget {
        &self.master
    }

    /// Removes this client from the metadata service and stops it. The returned handlers remain
    /// installed.
    pub(super) async fn close(self) -> Signals {
        runtime::stop_in_time("the client", self.client.stop()).await;
        self.signals
    }
}

/// The failure for a command that a signal stopped while it was trying to `what`.
pub(super) fn stopped(signal: StopSignal, what: &str) -> Failure {
    Failure::interrupted(format!("{signal}: stopped while trying to {what}"))
}
