//! Telling the master that the node is alive, and mounting its segments again when the master forgot them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::env::Env;
use crate::engine::rpc::CallError;
use crate::engine::store::StoreError;
use crate::engine::store::client::refused;
use crate::engine::store::lending::Lending;
use crate::engine::wire::types::ClientStatus;

/// Time between heartbeats, as upstream. The master's patience is 10 s by default.
pub const INTERVAL: Duration = Duration::from_millis(1000);

/// Whether the last heartbeat was answered.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<AtomicBool>);

impl Pulse {
    /// Of a node that the master has just answered.
    pub(in crate::engine::store) fn beating() -> Pulse {
        Pulse(Arc::new(AtomicBool::new(true)))
    }

    /// The last heartbeat was answered, or not.
    fn set(&self, healthy: bool) {
        self.0.store(healthy, Ordering::Relaxed);
    }

    /// Did the master answer the last heartbeat, and does it know our segments?
    pub fn is_healthy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Send heartbeats for ever. A new client is told to remount by its first heartbeat even right after it mounted; that is how the
/// master learns that it lives.
pub(in crate::engine::store) async fn run<E: Env>(lending: Arc<Lending<E>>) {
    let env = lending.client().inner.env.clone();
    let mut was_healthy = None;
    loop {
        let beat = beat(&lending).await;
        let healthy = beat.is_ok();
        lending.pulse().set(healthy);
        match &beat {
            // A client that has just mounted is told to remount by its first heartbeat: that is how it is made known.
            Ok(true) if was_healthy.is_none() => tracing::debug!("the master knows this node"),
            Ok(true) => {
                tracing::info!(bytes = lending.bytes(), "segments mounted again: the master did not know them")
            }
            Ok(false) if was_healthy == Some(false) => tracing::info!("the master answers again"),
            Err(error) if was_healthy != Some(false) => tracing::warn!(%error, "heartbeat failed; trying on"),
            _ => {}
        }
        was_healthy = Some(healthy);
        env.sleep(INTERVAL).await;
    }
}

/// One heartbeat; whether the segments had to be mounted again.
async fn beat<E: Env>(lending: &Lending<E>) -> Result<bool, StoreError> {
    let client = lending.client();
    let answer = refused("Ping", client.master().ping(client.id()).await?)?;
    if answer.client_status != ClientStatus::NEED_REMOUNT {
        return Ok(false);
    }
    lending.remount().await?;
    Ok(true)
}

/// Is it worth waiting for the master, or will it never answer otherwise?
pub fn is_worth_waiting(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Call(
            CallError::Connect { .. }
                | CallError::ConnectTimeout { .. }
                | CallError::Timeout { .. }
                | CallError::Closed { .. }
        )
    )
}
