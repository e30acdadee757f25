//! Log lines about redundancy: which standbys are in sync, and what a failover would lose.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::server::ha::driver::HaDriver;
use crate::server::ha::driver::etcd_errors::EtcdEvent;
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::{AckMode, HaConfig, MemberId, NotInSyncPolicy, OutageLimit, Replica};
use mcctl_sys::env::Env;

/// A standby whose stream this leader has opened.
#[derive(Clone, Debug)]
pub(super) struct KnownStandby {
    /// The address of its RPC port. Earlier releases do not send it.
    pub rpc: Option<String>,
    /// The outgoing address of its last stream.
    pub peer: String,
    /// The address of its metadata service, if it has one.
    pub metadata: Option<String>,
}

/// The standbys in the sync record before it was written again.
pub(super) struct ListedStandbys(Vec<(MemberId, Option<Replica>)>);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// The address of a standby, for messages.
    pub(super) fn standby_address(&self, id: MemberId) -> String {
        match self.known.get(&id) {
            Some(KnownStandby { rpc: Some(rpc), .. }) => rpc.clone(),
            Some(KnownStandby { peer, .. }) => format!("at {peer}"),
            None => format!("with ID {id}"),
        }
    }

    /// The standbys in the sync record, and what is known about each.
    pub(super) fn listed_standbys(&self) -> ListedStandbys {
        let replica = |id| self.core.standbys().find(|(member, _)| *member == id).map(|(_, replica)| *replica);
        ListedStandbys(self.core.listed_standbys().iter().map(|id| (*id, replica(*id))).collect())
    }

    /// Logs which standbys a new sync record adds and leaves out.
    pub(super) fn report_sync_record(&self, before: &ListedStandbys) {
        let after = self.core.listed_standbys();
        let now = self.context.env.boottime();
        let consequence = self.redundancy(None);
        for (id, replica) in before.0.iter().filter(|(id, _)| !after.contains(id)) {
            let address = self.standby_address(*id);
            match replica.map(|replica| loss_cause(&replica, now)) {
                Some(LossCause::Silent(time)) => {
                    let time = RoundedDuration(time);
                    tracing::warn!(%id, "standby {address} has not acknowledged for {time}: {consequence}");
                }
                Some(LossCause::Stopping) => tracing::warn!(%id, "standby {address} is stopping: {consequence}"),
                // The end of its stream was reported.
                Some(LossCause::Disconnected) | None => {}
            }
        }
        for id in after.iter().filter(|id| before.0.iter().all(|(listed, _)| listed != *id)) {
            tracing::info!(%id, "standby {} is in sync: {consequence}", self.standby_address(*id));
        }
        // The record may list an earlier copy of a standby as well.
        let addresses: BTreeSet<String> = after.iter().map(|id| self.standby_address(*id)).collect();
        let addresses: Vec<String> = addresses.into_iter().collect();
        let listed = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
        tracing::info!("sync record written; standbys in sync: {listed}");
    }

    /// What a failover would lose if the standby `lost` is not counted.
    pub(super) fn redundancy(&self, lost: Option<MemberId>) -> String {
        let listed = self.core.listed_standbys();
        let is_ready = |id: MemberId, replica: &Replica| {
            Some(id) != lost && listed.contains(&id) && replica.is_connected && replica.is_in_sync()
        };
        let ready = self.core.standbys().filter(|(id, replica)| is_ready(*id, replica)).count();
        let is_alone = !self.core.standbys().any(|(id, replica)| Some(id) != lost && replica.is_connected);
        redundancy_text(&self.context.settings.config, ready, is_alone)
    }

    /// Logs a change of etcd's availability, with its consequence for this master.
    pub(super) fn report_etcd(&mut self, event: Option<EtcdEvent>) {
        let now = self.context.env.boottime();
        match event {
            Some(EtcdEvent::NoResponse(error)) => {
                self.etcd_silent_since = Some(now);
                let consequence = outage_text(self.core.outage_limit(now));
                tracing::warn!(%error, "no response from etcd: {consequence}");
            }
            Some(EtcdEvent::RespondsAgain) => {
                let silent = self.etcd_silent_since.take().map_or(Duration::ZERO, |since| now.since(since));
                tracing::info!("etcd responds again after {}", RoundedDuration(silent));
            }
            Some(EtcdEvent::InvalidRecord { key, why }) => {
                tracing::error!("the record {key} in etcd is invalid: {why}");
            }
            Some(EtcdEvent::ValidAgain) => tracing::info!("the records in etcd are valid again"),
            None => {}
        }
    }
}

/// Why a standby was removed from the sync record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossCause {
    /// It has acknowledged nothing for this time.
    Silent(Duration),
    /// Its process has announced its end.
    Stopping,
    Disconnected,
}

fn loss_cause(replica: &Replica, now: Mono) -> LossCause {
    match replica {
        replica if replica.is_leaving => LossCause::Stopping,
        replica if !replica.is_connected => LossCause::Disconnected,
        replica => LossCause::Silent(now.since(replica.progress_at)),
    }
}

/// What a failover loses while `ready` standbys are in sync and connected. `is_alone`: no standby
/// is connected.
fn redundancy_text(config: &HaConfig, ready: usize, is_alone: bool) -> String {
    match (config.ack, ready, config.not_in_sync) {
        (AckMode::Async, 0, _) => {
            "this leader cannot hand over now (--ha-ack async: a failover loses keys)".to_owned()
        }
        (AckMode::Async, ..) => "this leader can hand over (--ha-ack async: a failover loses the last puts)".to_owned(),
        (AckMode::Sync, 0, _) if is_alone => {
            "no standby is connected: if this leader fails now, its keys are lost, unless it restarts with its data directory".to_owned()
        }
        (AckMode::Sync, 0, NotInSyncPolicy::Wait) => {
            "a failover now loses keys: no other master can serve them (--when-not-in-sync wait)".to_owned()
        }
        (AckMode::Sync, 0, NotInSyncPolicy::PromoteAfter(pause)) => {
            let pause = RoundedDuration(pause);
            format!("a failover now loses keys: after {pause}, a standby takes over without the later puts, or without any key")
        }
        (AckMode::Sync, 1, _) => "a failover loses no acknowledged key (1 standby in sync)".to_owned(),
        (AckMode::Sync, n, _) => format!("a failover loses no acknowledged key ({n} standbys in sync)"),
    }
}

/// What an outage of etcd means for a master. `limit` is that of a leader.
fn outage_text(limit: Option<OutageLimit>) -> String {
    match limit {
        None => "this standby cannot be promoted until etcd responds".to_owned(),
        Some(OutageLimit::WhileStandbysRespond) => {
            "this leader serves as long as its standbys in sync respond; no failover is possible until etcd responds"
                .to_owned()
        }
        Some(OutageLimit::WithStandbys(time)) => format!(
            "this leader serves for {} more if its standbys in sync respond; then responses wait until etcd responds",
            RoundedDuration(time)
        ),
        Some(OutageLimit::Lease(time)) => format!(
            "this leader has no standby in sync and serves for {} more; then responses wait until etcd responds",
            RoundedDuration(time)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_election::ha::ReplicaPhase;

    #[test]
    fn the_cause_of_a_loss_is_what_was_observed_last() {
        let replica = Replica {
            phase: ReplicaPhase::Leaving,
            acked: 1,
            progress_at: Mono::from_ms(500),
            promised_until: Mono::ZERO,
            is_connected: true,
            is_leaving: false,
        };
        let now = Mono::from_ms(1_500);
        assert_eq!(loss_cause(&replica, now), LossCause::Silent(Duration::from_secs(1)));
        assert_eq!(loss_cause(&Replica { is_connected: false, ..replica }, now), LossCause::Disconnected);
        assert_eq!(loss_cause(&Replica { is_leaving: true, ..replica }, now), LossCause::Stopping);
    }

    #[test]
    fn the_consequences_depend_on_policy_and_standbys() {
        let wait = HaConfig::default();
        let promote = HaConfig { not_in_sync: NotInSyncPolicy::PromoteAfter(Duration::from_secs(90)), ..wait };
        let own = HaConfig { ack: AckMode::Async, ..wait };
        for (config, ready, part) in [
            (&wait, 0, "now loses keys"),
            (&promote, 0, "after 90 s"),
            (&wait, 1, "loses no acknowledged key (1 standby"),
            (&promote, 2, "loses no acknowledged key (2 standbys"),
            (&own, 0, "cannot hand over"),
            (&own, 1, "can hand over"),
        ] {
            let text = redundancy_text(config, ready, false);
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(redundancy_text(&promote, 0, true).contains("no standby is connected"));
        for (limit, part) in [
            (None, "cannot be promoted"),
            (Some(OutageLimit::WhileStandbysRespond), "as long as its standbys"),
            (Some(OutageLimit::WithStandbys(Duration::from_secs(85))), "serves for 85 s more"),
            (Some(OutageLimit::Lease(Duration::from_millis(1_200))), "serves for 1.2 s more"),
        ] {
            let text = outage_text(limit);
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
