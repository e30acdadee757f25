//! A master's part in its cluster, for `/ha_status` and the metrics.

use crate::metrics::ExpositionText;
use crate::view::HaView;
use mcctl_metadata::admin::types::{HaStandbyReport, HaStatusReport};

const LAG_HELP: &str = "Changes of the leader that this standby, or the slowest standby of this leader, lacks";

/// The document of `/ha_status?format=json`.
pub(super) fn ha_status(ha: HaView) -> HaStatusReport {
    let standbys = ha.standbys.iter().map(|standby| HaStandbyReport {
        member: standby.member.to_string(),
        address: standby.rpc.clone(),
        connected: standby.connected,
        in_sync: standby.in_sync,
        required: standby.required,
        acked_sequence: standby.acked,
    });
    HaStatusReport {
        schema: HaStatusReport::SCHEMA.to_owned(),
        role: ha.role.name().to_owned(),
        serving: ha.serving,
        view: ha.view,
        leader: ha.leader,
        member: ha.member.map(|member| member.to_string()).unwrap_or_default(),
        in_sync: ha.in_sync,
        acked_sequence: ha.acked,
        last_sequence: ha.last,
        lag_records: ha.last.saturating_sub(ha.acked),
        lag_bytes: ha.lag_bytes,
        objects: ha.objects,
        promotable: !ha.serving && ha.not_promotable.is_none(),
        not_promotable: ha.not_promotable,
        standbys: standbys.collect(),
        digests_compared: ha.digests,
        may_lack_records: ha.may_lack,
        dropped_objects: ha.dropped_objects,
        etcd_error: ha.backend_error,
        etcd_outage_left_ms: ha.outage_left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        data_dir_free_bytes: None,
    }
}

/// The metrics of a master in a cluster. A master without high availability has none of them.
pub(super) fn ha_exposition(ha: &HaView) -> String {
    let mut out = ExpositionText(String::new());
    // A standby that has ended stays in the sync record until a response waits for it.
    let in_sync = ha.standbys.iter().filter(|standby| standby.in_sync && standby.connected).count() as u64;
    let promotable = !ha.serving && ha.not_promotable.is_none();
    out.gauge("mcctl_ha_serving", "1 if this master leads and serves clients", u64::from(ha.serving));
    out.gauge("mcctl_ha_view", "Create revision of the leader's key in etcd", ha.view);
    out.gauge("mcctl_ha_promotable", "1 if this standby can be promoted without loss", u64::from(promotable));
    out.gauge(
        "mcctl_ha_standbys_in_sync",
        "The leader's standbys that are connected and have everything it acknowledged",
        in_sync,
    );
    out.gauge("mcctl_ha_standbys", "The leader's standbys that are connected or waited for", ha.standbys.len() as u64);
    out.counter("mcctl_ha_changes_total", "Number of the leader's last change", ha.last);
    out.counter(
        "mcctl_ha_acked_changes_total",
        "Number of the last change that this standby, or the slowest standby of this leader, has",
        ha.acked,
    );
    out.gauge("mcctl_ha_lag_changes", LAG_HELP, ha.last.saturating_sub(ha.acked));
    out.gauge("mcctl_ha_lag_bytes", "Bytes that the slowest standby of this leader does not have", ha.lag_bytes);
    out.gauge(
        "mcctl_ha_etcd_unreachable",
        "1 if the last request to etcd failed",
        u64::from(ha.backend_error.is_some()),
    );
    out.counter("mcctl_ha_digests_total", "Digests of the leader that agreed with this standby's copy", ha.digests);
    out.counter("mcctl_ha_promotions_total", "Number of times that this process has become the leader", ha.promotions);
    out.counter(
        "mcctl_ha_dropped_objects_total",
        "Objects that this process dropped at promotions, because its copy may have lacked changes",
        ha.dropped_objects,
    );
    out.counter(
        "mcctl_ha_demotions_total",
        "Times that this process stopped serving because another master was elected",
        ha.demotions,
    );
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::HaStandbyView;
    use mcctl_election::ha::MemberId;

    #[test]
    fn lag_and_promotability_are_computed() {
        let standby = HaStandbyView {
            member: MemberId(2),
            rpc: Some("b:1".to_owned()),
            required: true,
            in_sync: true,
            connected: true,
            acked: 7,
        };
        let leader = HaView { serving: true, acked: 7, last: 9, standbys: vec![standby], ..HaView::default() };
        let status = ha_status(leader.clone());
        assert_eq!((status.lag_records, status.promotable), (2, false));
        assert_eq!(
            (&*status.standbys[0].member, status.standbys[0].address.as_deref()),
            ("0000000000000002", Some("b:1"))
        );
        let lines = ha_exposition(&leader);
        for line in ["mcctl_ha_lag_changes 2", "mcctl_ha_standbys_in_sync 1", "mcctl_ha_promotable 0"] {
            assert!(lines.lines().any(|found| found == line), "{line}\n{lines}");
        }
        assert!(ha_status(HaView::default()).promotable);
    }
}
