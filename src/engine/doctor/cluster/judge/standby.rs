//! The standbys of mcctl's masters.

use crate::cluster::facts::{AdminFacts, ClusterFacts};
use crate::finding;
use mcctl_base::check::{CheckStatus, Severity};
use mcctl_metadata::admin::types::HaStatusReport;

/// What the leader says of its cluster, if it is mcctl's.
pub(super) fn leader_report(facts: &ClusterFacts) -> Option<&HaStatusReport> {
    facts.admins.iter().filter_map(|admin: &AdminFacts| admin.ha.as_ref()).find(|ha| ha.serving)
}

/// A standby can take over without loss.
pub(super) fn ready(facts: &ClusterFacts) -> CheckStatus {
    let Some(leader) = leader_report(facts) else {
        let why = match facts.admins.iter().any(|admin| admin.ha.is_some()) {
            true => "none of the specified masters leads: pass the leader's admin address with --admins",
            false => "no mcctl master with --enable-ha is among the specified masters",
        };
        return CheckStatus::Skipped(why.to_owned());
    };
    let in_sync = leader.standbys.iter().filter(|standby| standby.in_sync).count();
    let mut findings = Vec::new();
    if in_sync == 0 {
        let connected = leader.standbys.iter().filter(|standby| standby.connected).count();
        findings.push(finding(
            "standby-ready",
            Severity::Warning,
            "no standby is in sync: if the leader is lost, calls wait for it, and keys may be lost",
            format!("the leader has {connected} connected standbys, none of them in sync"),
            "start another master with --enable-ha and the same --cluster-id, or look at the standby's log",
        ));
    }
    if let Some(why) = &leader.etcd_error {
        findings.push(finding(
            "standby-ready",
            Severity::Warning,
            "the leader gets no response from etcd: no failover is possible, and without a standby it stops serving",
            why,
            "start etcd, or check the network between the masters and etcd",
        ));
    }
    if findings.is_empty() {
        return CheckStatus::Passed(format!("{in_sync} of {} in sync", leader.standbys.len()));
    }
    CheckStatus::Found(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::facts::test_facts::healthy;
    use mcctl_metadata::admin::types::HaStandbyReport;

    #[test]
    fn a_leader_needs_a_standby_in_sync_and_etcd() {
        let mut facts = healthy();
        assert!(matches!(ready(&facts), CheckStatus::Skipped(_)));
        let standby = |in_sync| HaStandbyReport { connected: true, in_sync, ..HaStandbyReport::default() };
        let report = HaStatusReport { serving: true, standbys: vec![standby(true)], ..HaStatusReport::default() };
        facts.admins[0].ha = Some(report.clone());
        assert!(matches!(ready(&facts), CheckStatus::Passed(_)));
        facts.admins[0].ha = Some(HaStatusReport { standbys: vec![standby(false)], ..report.clone() });
        assert!(matches!(ready(&facts), CheckStatus::Found(found) if found.len() == 1));
        facts.admins[0].ha = Some(HaStatusReport { etcd_error: Some("timeout".to_owned()), ..report });
        assert!(matches!(ready(&facts), CheckStatus::Found(found) if found.len() == 1));
    }
}
