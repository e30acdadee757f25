//! The view of a master in a cluster, for reports and metrics.

use std::time::Duration;

use crate::server::ha::driver::HaDriver;
use crate::view::{HaStandbyView, HaView};
use mcctl_election::ElectionBackend;
use mcctl_election::ha::OutageLimit;
use mcctl_sys::env::Env;

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Updates the view of this master, if it may have changed.
    pub(super) fn refresh_view(&mut self) {
        if std::mem::take(&mut self.is_view_old) {
            self.context.hub.set_view(self.view());
        }
    }

    fn view(&self) -> HaView {
        let serving = self.context.hub.gate.is_open();
        let objects = if serving {
            self.context.shared.with_guarded(|guarded, _, _| guarded.state.gauges().keys)
        } else {
            self.copy.objects()
        };
        let status = self.core.status();
        let standbys = self.standby_views();
        let tail = &self.context.hub.tail;
        let slowest = standbys.iter().map(|standby| standby.acked).min();
        let (acked, last) = if serving {
            (slowest.unwrap_or(tail.appended()), tail.appended())
        } else {
            (self.copy.applied, self.leader_last.max(self.copy.applied))
        };
        let leader = if serving { Some(self.core.me().rpc.to_string()) } else { self.core.observed_leader() };
        HaView {
            role: status.role,
            serving,
            view: status.view,
            leader,
            member: Some(self.core.me().id),
            in_sync: status.in_sync,
            acked,
            last,
            lag_bytes: if serving && last > acked { tail.bytes_behind(acked) } else { 0 },
            objects,
            not_promotable: if serving { None } else { self.core.not_promotable(self.keeps_objects()) },
            standbys,
            digests: self.digests,
            backend_error: self.etcd_errors.last().map(ToString::to_string),
            outage_left: if self.etcd_silent_since.is_some() { self.outage_left() } else { None },
            may_lack: self.may_lack.filter(|_| serving),
            dropped_objects: self.dropped_objects,
            promotions: self.promotions,
            demotions: self.demotions,
        }
    }

    /// The time for which this leader can serve while etcd does not respond, if that is limited.
    fn outage_left(&self) -> Option<Duration> {
        match self.core.outage_limit(self.context.env.boottime())? {
            OutageLimit::WhileStandbysRespond => None,
            OutageLimit::WithStandbys(left) | OutageLimit::Lease(left) => Some(left),
        }
    }

    fn standby_views(&self) -> Vec<HaStandbyView> {
        let standbys = self.core.standbys().map(|(member, replica)| HaStandbyView {
            member,
            rpc: self.known.get(&member).and_then(|known| known.rpc.clone()),
            required: replica.is_required(),
            in_sync: replica.is_in_sync(),
            connected: replica.is_connected,
            acked: replica.acked,
        });
        standbys.collect()
    }
}
