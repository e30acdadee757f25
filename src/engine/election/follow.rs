//! Follows the leader of a cluster in etcd, for clients.

use std::time::Duration;

use tokio::sync::watch;

use crate::backend::{ElectionBackend, ElectionError};
use crate::etcd::EtcdElection;
use crate::ha::LeaderKey;
use mcctl_base::time::RoundedDuration;
use mcctl_base::{HostPort, Mono};
use mcctl_net::etcd::{EtcdError, EtcdEvent};
use mcctl_sys::env::{Env, deadline};

/// Pause before the key is read again after a watch has failed.
const READ_PAUSE: Duration = Duration::from_secs(1);
/// The key is read again after this time without a change, because a connection may end without
/// notice.
const WATCH_MAX: Duration = Duration::from_secs(10);

/// The leader when a client begins to follow it, and from then on.
#[derive(Debug)]
pub struct LeaderSubscription {
    /// The key's value. It is not an address while a master gets ready.
    pub first: Option<String>,
    /// The leader's RPC address, as it changes; `None` while no master leads. The key is followed
    /// as long as a receiver exists.
    pub leader: watch::Receiver<Option<HostPort>>,
}

/// Reads the leader's key once, and then follows it: a watch reports each change. While etcd does
/// not answer or no master leads, the key is read at most once per second.
///
/// # Errors
/// The key cannot be read.
pub async fn follow<E: Env>(env: E, election: EtcdElection) -> Result<LeaderSubscription, ElectionError> {
    let seen = election.observe().await?;
    let first = seen.leader.map(|key| key.address);
    let (sender, leader) = watch::channel(first.as_deref().and_then(address));
    tokio::spawn(async move {
        let follower = LeaderFollower { env, election, sender };
        tokio::select! {
            () = follower.run(seen.revision) => {}
            () = follower.sender.closed() => {}
        }
    });
    Ok(LeaderSubscription { first, leader })
}

struct LeaderFollower<E: Env> {
    env: E,
    election: EtcdElection,
    sender: watch::Sender<Option<HostPort>>,
}

impl<E: Env> LeaderFollower<E> {
    /// Follows the key from the revision after `revision` on.
    async fn run(&self, mut revision: u64) {
        let mut outage = EtcdOutage::default();
        loop {
            if let Err(error) = self.watch(revision + 1).await {
                tracing::debug!(%error, "the watch of the leader's key ended");
                self.env.sleep(READ_PAUSE).await;
            }
            match self.election.observe().await {
                Ok(seen) => {
                    if let Some(silent) = outage.end(self.env.now()) {
                        tracing::info!("etcd responds again after {}", RoundedDuration(silent));
                    }
                    revision = seen.revision;
                    self.set(seen.leader.as_ref().and_then(|key| address(&key.address)));
                }
                Err(error) if outage.begin(self.env.now()) => {
                    let kept = self.sender.borrow().as_ref().map(ToString::to_string);
                    tracing::warn!(%error, "{}", outage_text(kept.as_deref()));
                }
                Err(error) => tracing::debug!(%error, "cannot read the leader's key"),
            }
        }
    }

    /// Reports the changes from revision `from` on, until the key does not change for
    /// [`WATCH_MAX`].
    async fn watch(&self, from: u64) -> Result<(), EtcdError> {
        let mut watch = self.election.watch_leader(from).await?;
        while let Ok(events) = deadline(&self.env, WATCH_MAX, watch.next()).await {
            for event in events? {
                match event {
                    EtcdEvent::Put(pair) if pair.key == self.election.leader_key().as_bytes() => {
                        self.set(std::str::from_utf8(&pair.value).ok().and_then(address));
                    }
                    EtcdEvent::Delete(pair) if pair.key == self.election.leader_key().as_bytes() => self.set(None),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn set(&self, leader: Option<HostPort>) {
        let changed = self.sender.send_if_modified(|now| {
            let differs = *now != leader;
            now.clone_from(&leader);
            differs
        });
        match leader {
            Some(at) if changed => tracing::info!("master {at} leads"),
            None if changed => tracing::info!(
                "no master leads at the moment: its key in etcd was removed, because the master stopped, failed or did not reach etcd in time, or \
                 because etcd did not respond. Calls wait until a master leads"
            ),
            _ => {}
        }
    }
}

/// A time without a response from etcd.
#[derive(Debug, Default)]
struct EtcdOutage {
    since: Option<Mono>,
}

impl EtcdOutage {
    /// Keeps that a request failed. Returns true for the first one.
    fn begin(&mut self, now: Mono) -> bool {
        let is_first = self.since.is_none();
        self.since.get_or_insert(now);
        is_first
    }

    /// Keeps that a request succeeded. Returns how long the outage lasted, if there was one.
    fn end(&mut self, now: Mono) -> Option<Duration> {
        self.since.take().map(|since| now.since(since))
    }
}

/// What an outage of etcd means for a client. `kept` is the last leader.
fn outage_text(kept: Option<&str>) -> String {
    match kept {
        Some(kept) => format!(
            "etcd does not respond: calls go on to the last known master, {kept}. If another master is elected, this process uses it only when \
             etcd responds"
        ),
        None => "etcd does not respond, and no master is known: calls wait until etcd responds".to_owned(),
    }
}

/// The address in the key. `None` if the key contains what a master writes before it is ready.
fn address(value: &str) -> Option<HostPort> {
    if value.starts_with(LeaderKey::WARMING) { None } else { value.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_etcd_is_reported_once_with_its_length() {
        let mut outage = EtcdOutage::default();
        assert_eq!(outage.end(Mono::from_ms(1)), None);
        assert!(outage.begin(Mono::from_ms(1_000)) && !outage.begin(Mono::from_ms(3_000)));
        assert_eq!(outage.end(Mono::from_ms(8_000)), Some(Duration::from_secs(7)));
        assert!(outage.begin(Mono::from_ms(9_000)));
        assert!(outage_text(Some("m:1")).contains("m:1") && outage_text(None).contains("no master is known"));
    }
}
