//! The effect of a master restart on a store's keys.

use crate::engine::lint::findings::Findings;
use crate::engine::lint::model::{Implementation, RuntimeKind};
use crate::engine::lint::settings::{ProcessView, SettingValue};
use crate::engine::lint::view::DeploymentView;
use crate::engine::upstream::{MASTER_FLAGS, UNTESTED_SINCE, find, is_older};

/// The first release with the oplog.
pub const OPLOG_SINCE: Option<&str> = find(MASTER_FLAGS, "enable_oplog").since;

/// Whether `release` of Mooncake has `--enable_oplog`.
pub fn has_oplog(release: Option<&str>) -> bool {
    release.zip(OPLOG_SINCE).is_none_or(|(release, since)| !is_older(release, since))
}

/// Restarting the master loses all keys, or nearly all of them.
pub fn check(view: &DeploymentView<'_>, member: &ProcessView<'_>, out: &mut Findings) {
    if member.process.implementation == Implementation::Mcctl {
        if member.process.runtime != RuntimeKind::File {
            out.info(
                &member.process.place,
                "restarting the master empties the store: metadata is in memory only",
                "mcctl serve master supports neither snapshots nor high availability",
                "no fix yet: restart the master only when an empty cache is acceptable",
            );
        }
        return;
    }
    // If HA is on or may be on, other rules apply.
    if member.master_switch("enable_ha") != Some(false) {
        return;
    }
    let release = view.release(member);
    let remedy = match has_oplog(release.as_deref()) {
        true => {
            "no fix for a single master; two masters with --enable_ha=true, --enable_oplog=true and etcd preserve the keys \
              that the standby has replicated"
        }
        false => "no fix in this release: restart the master only when an empty cache is acceptable",
    };
    // Observed with 0.3.13.post1, see kvcache-ai/Mooncake#3761.
    let is_lossy = release.as_deref().is_none_or(|release| is_older(release, UNTESTED_SINCE));
    match (member.master("enable_snapshot_restore"), member.master_switch("enable_snapshot_restore")) {
        (SettingValue::Is(located), Some(true)) if is_lossy => out.warning(
            &located.place,
            "a restart loses nearly all keys: the restore drops every object whose read lease has expired",
            "enable_snapshot_restore; a read lease lasts default_kv_lease_ttl (10 s) after the last read",
            remedy,
        ),
        (_, Some(true) | None) => {}
        (_, Some(false)) if member.process.runtime != RuntimeKind::File => out.info(
            &member.process.place,
            "restarting the master empties the store: metadata is in memory only",
            "enable_ha is off",
            remedy,
        ),
        _ => {}
    }
}
