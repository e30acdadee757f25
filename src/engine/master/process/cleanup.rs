//! Removal of expired clients' records from the metadata service.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::process::MasterProcessError;
use crate::{MasterHandle, StateEffect, UnmountReason};
use mcctl_metadata::{CallLimits, KeySpace, MetadataClient, MetadataService};
use mcctl_net::http::HttpCredentials;
use mcctl_sys::env::RealEnv;

/// What happens to an expired client's records in the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataCleanup {
    /// Keep the records in the embedded service, but allow the next process to take over their
    /// name.
    Release,
    /// Remove the records from the embedded service.
    Remove,
    /// Remove the records from the service at this URL.
    Elsewhere(String),
}

pub(super) enum MetadataCleaner {
    None,
    Here { service: MetadataService<RealEnv>, remove: bool },
    Elsewhere { client: MetadataClient, keys: KeySpace },
}

impl MetadataCleaner {
    pub(super) fn elsewhere(
        url: &str,
        credentials: &HttpCredentials,
        keys: KeySpace,
    ) -> Result<MetadataCleaner, MasterProcessError> {
        let client = MetadataClient::with_credentials(url, CallLimits::default(), credentials)
            .map_err(|source| MasterProcessError::CleanupUrl { url: url.to_owned(), source })?;
        Ok(MetadataCleaner::Elsewhere { client, keys })
    }
}

/// Cleans up the metadata service for each expired segment.
pub(super) async fn clean(
    master: &MasterHandle<RealEnv>,
    departures: &mut Receiver<StateEffect>,
    cleaner: &MetadataCleaner,
) {
    loop {
        let name = match departures.recv().await {
            Ok(StateEffect::Unmounted {
                name,
                reason: UnmountReason::ClientExpired | UnmountReason::Unconfirmed,
                last_of_name: true,
                ..
            }) => name,
            Ok(_) => continue,
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(
                    "missed {missed} events for unmounted segments; the segments' metadata records may remain"
                );
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let name = String::from_utf8_lossy(&name.0);
        // The owner process may have restarted and mounted the segment again.
        if master.has_segment_named(&name) {
            continue;
        }
        match cleaner {
            MetadataCleaner::None => {}
            MetadataCleaner::Here { service, remove: false } => service.mark_owner_expired(&name),
            MetadataCleaner::Here { service, remove: true } => {
                let gone = service.remove_segment(&name).await;
                tracing::info!(
                    "Cleaned up HTTP metadata for segment: {name}, ram_key_removed={}, rpc_key_removed={}",
                    gone.ram,
                    gone.rpc_meta
                );
            }
            MetadataCleaner::Elsewhere { client, keys } => {
                for key in [keys.ram_key(&name), keys.rpc_meta_key(&name)] {
                    match client.remove(&key).await {
                        Ok(removed) => tracing::info!("Cleaned up HTTP metadata: {key}, removed={removed}"),
                        Err(error) => tracing::warn!("cannot clean up HTTP metadata: {error}"),
                    }
                }
            }
        }
    }
}
