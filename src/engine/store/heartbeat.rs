//! Sends heartbeats to the master, and remounts the node's segments if the master has no record of
//! them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::StoreError;
use crate::client::refused;
use crate::segment_manager::SegmentManager;
use mcctl_base::ByteSize;
use mcctl_base::time::RoundedDuration;
use mcctl_sys::env::Env;
use mcctl_wire::types::ClientStatus;

/// Interval between heartbeats, the same as upstream. The master's client TTL is 10 s by default.
pub const INTERVAL: Duration = Duration::from_millis(1000);

/// A heartbeat that is late by this much is reported.
const SUSPENDED_MIN: Duration = Duration::from_secs(2);

/// Starts the task that sends heartbeats.
pub(crate) fn start<E: Env>(segments: Arc<SegmentManager<E>>) -> JoinHandle<()> {
    tokio::spawn(run(segments))
}

/// Sends heartbeats forever. The response to a new client's first heartbeat is always "remount",
/// even right after a mount. The remount is what registers the client with the master.
async fn run<E: Env>(segments: Arc<SegmentManager<E>>) {
    let env = segments.client().inner.env.clone();
    let mut was_healthy = None;
    let mut answered_at = env.now();
    let mut suspended = None;
    loop {
        let beat = beat(&segments).await;
        let healthy = beat.is_ok();
        segments.heartbeat_status().set(healthy);
        match &beat {
            // The response to a new client's first heartbeat is always "remount".
            Ok(true) if was_healthy.is_none() => tracing::debug!("the master has registered this node"),
            Ok(true) => {
                let size = ByteSize(segments.bytes());
                let silent = RoundedDuration(env.now().since(answered_at));
                let cause = match suspended {
                    Some(time) => format!("this process did not run for {}", RoundedDuration(time)),
                    None => "it has restarted without its state, or has removed the node".to_owned(),
                };
                tracing::warn!(
                    "the master did not have this node: {cause}. All objects of this node are lost, and its segments ({size}) are mounted \
                     again. The last heartbeat was {silent} ago"
                );
            }
            Ok(false) if was_healthy == Some(false) => tracing::info!("the master is responding again"),
            Err(error) if was_healthy != Some(false) => tracing::warn!(
                %error,
                "heartbeat failed; trying again every second. A master that runs removes this node and its objects after --client-ttl, 10 s by \
                 default; one that waits for etcd does not"
            ),
            _ => {}
        }
        if healthy {
            answered_at = env.now();
        }
        was_healthy = Some(healthy);
        let before = env.now();
        env.sleep(INTERVAL).await;
        let late = env.now().since(before).saturating_sub(INTERVAL);
        suspended = (late >= SUSPENDED_MIN).then_some(late);
        if let Some(time) = suspended {
            tracing::warn!(
                "this process did not run for {} (suspended, or short of processor time): after --client-ttl, the master removes it with its \
                 objects",
                RoundedDuration(time)
            );
        }
    }
}

/// Sends one heartbeat. Returns true if the segments were remounted.
async fn beat<E: Env>(segments: &SegmentManager<E>) -> Result<bool, StoreError> {
    let client = segments.client();
    let answer = refused("Ping", client.master().ping(client.id()).await?)?;
    if answer.client_status != ClientStatus::NEED_REMOUNT {
        return Ok(false);
    }
    segments.remount().await?;
    Ok(true)
}
