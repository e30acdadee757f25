//! The masters of a cluster, as the one that was asked sees them.

use serde::Serialize;

use crate::commands::cli::table::ListTable;
use crate::engine::admin::types::HaStatusReport;
use crate::engine::base::text::escaped;

/// A master of the cluster.
#[derive(Debug, Serialize)]
pub(super) struct ClusterMasterStatus<'a> {
    /// `host:port` of its RPC port; `null` if the leader does not have it yet, and for the standby
    /// that was asked.
    address: Option<&'a str>,
    role: &'a str,
    /// Whether it has every acknowledged change; `null` for the leader.
    in_sync: Option<bool>,
    /// Changes that it does not have yet.
    lag_changes: u64,
}

/// The masters that `report` names: all of them, if it is the leader's. A standby knows the leader
/// and itself.
pub(super) fn of(report: &HaStatusReport) -> Vec<ClusterMasterStatus<'_>> {
    let leader = report.leader.as_deref().map(|address| ClusterMasterStatus {
        address: Some(address),
        role: "leader",
        in_sync: None,
        lag_changes: 0,
    });
    let standbys = report.standbys.iter().map(|standby| ClusterMasterStatus {
        address: standby.address.as_deref(),
        role: if standby.connected { "standby" } else { "disconnected" },
        in_sync: Some(standby.in_sync),
        lag_changes: report.last_sequence.saturating_sub(standby.acked_sequence),
    });
    let is_leader = ["leader", "handing_over"].contains(&&*report.role);
    let itself = (!report.serving && !is_leader).then_some(ClusterMasterStatus {
        address: None,
        role: &report.role,
        in_sync: Some(report.in_sync),
        lag_changes: report.lag_records,
    });
    leader.into_iter().chain(standbys).chain(itself).collect()
}

/// The RPC address of the leader, if one is known.
pub(super) fn leader<'a>(masters: &[ClusterMasterStatus<'a>]) -> Option<&'a str> {
    masters.iter().find(|master| master.role == "leader").and_then(|master| master.address)
}

/// Whether a standby has every acknowledged change.
pub(super) fn has_standby_in_sync(masters: &[ClusterMasterStatus<'_>]) -> bool {
    masters.iter().any(|master| master.in_sync == Some(true) && master.role != "disconnected")
}

/// A table of the masters; empty without a cluster. Only a leader has connections to all of them.
/// `admin` is the admin address of the master that was asked.
pub(super) fn render(masters: Option<&[ClusterMasterStatus<'_>]>, admin: &str, is_leader: bool) -> String {
    let Some(masters) = masters else { return String::new() };
    let count = if is_leader { masters.len().to_string() } else { "(as known to this standby)".to_owned() };
    let mut table = ListTable::new(["master", "role", "in sync", "lag"], &[3]);
    for master in masters {
        table.row([
            match master.address {
                Some(address) => escaped(address),
                None if is_leader => "unknown address".to_owned(),
                None => format!("this one (admin {admin})"),
            },
            escaped(master.role),
            match master.in_sync {
                None => "-".to_owned(),
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
            },
            master.lag_changes.to_string(),
        ]);
    }
    format!("masters   {count}\n{}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::admin::types::HaStandbyReport;

    #[test]
    fn a_leader_lists_its_standbys_and_a_standby_itself() {
        let standby = HaStandbyReport {
            address: Some("b:1".to_owned()),
            connected: true,
            in_sync: true,
            acked_sequence: 7,
            ..HaStandbyReport::default()
        };
        let leader = Some("a:1".to_owned());
        let report = HaStatusReport {
            serving: true,
            leader: leader.clone(),
            last_sequence: 9,
            standbys: vec![standby],
            ..HaStatusReport::default()
        };
        let masters = of(&report);
        let seen: Vec<_> = masters.iter().map(|m| (m.address, m.role, m.in_sync, m.lag_changes)).collect();
        assert_eq!(seen, [(Some("a:1"), "leader", None, 0), (Some("b:1"), "standby", Some(true), 2)]);
        let report = HaStatusReport { leader, role: "standby".to_owned(), lag_records: 3, ..HaStatusReport::default() };
        assert!(render(Some(&masters), "b:9003", true).starts_with("masters   2\n"));
        let seen: Vec<_> = of(&report).iter().map(|m| (m.role.to_owned(), m.in_sync, m.lag_changes)).collect();
        assert_eq!(seen, [("leader".to_owned(), None, 0), ("standby".to_owned(), Some(false), 3)]);
        assert!(!render(Some(&of(&report)), "b:9003", false).starts_with("masters   2"), "there may be more");
        assert_eq!(render(None, "b:9003", true), "");
    }
}
