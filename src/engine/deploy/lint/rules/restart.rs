//! The effect of a master restart on a store's keys.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, RuntimeKind};
use crate::lint::rules::data_dir::{MasterData, data_of};
use crate::lint::settings::{ProcessView, SettingValue};
use crate::lint::view::DeploymentView;
use mcctl_base::upstream::{MASTER_FLAGS, UNTESTED_SINCE, find, is_older};

/// The first release with the oplog.
pub(super) const OPLOG_SINCE: Option<&str> = find(MASTER_FLAGS, "enable_oplog").since;

/// Whether `release` of Mooncake has `--enable_oplog`.
pub(super) fn has_oplog(release: Option<&str>) -> bool {
    release.zip(OPLOG_SINCE).is_none_or(|(release, since)| !is_older(release, since))
}

/// Restarting the master loses all keys, or nearly all of them.
pub(super) fn check(view: &DeploymentView<'_>, member: &ProcessView<'_>, out: &mut Findings) {
    if member.process.implementation == Implementation::Mcctl {
        // `data-dir` and `data-dir-flags` check the directory.
        if member.process.runtime != RuntimeKind::File && matches!(data_of(member), MasterData::Memory) {
            let finding = match member.master_switch("enable_ha") {
                Some(false) => "restarting the master empties the store: its state is in memory only",
                Some(true) => "the store is empty after all masters have stopped: their state is in memory only",
                None => return,
            };
            out.info(
                &member.process.place,
                finding,
                "data_dir is not set",
                "set --data-dir to a directory on a local disk",
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
            "run mcctl serve master --data-dir=DIR, which keeps the keys; two masters with --enable_ha=true, --enable_oplog=true and etcd \
             preserve those that the standby has replicated"
        }
        false => "run mcctl serve master --data-dir=DIR, which keeps the keys",
    };
    let snapshots = member.master_switch("enable_snapshot");
    let place = match member.master("enable_snapshot") {
        SettingValue::Is(located) => located.place,
        _ => member.process.place.clone(),
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
        (_, Some(false)) if is_lossy && snapshots == Some(true) => out.warning(
            &place,
            "a restart loses all keys although the master writes snapshots",
            "enable_snapshot without enable_snapshot_restore; a restore would drop every object whose read lease has expired",
            remedy,
        ),
        (_, Some(true) | None) => {}
        (_, Some(false)) if member.process.runtime != RuntimeKind::File => out.info(
            &member.process.place,
            "restarting the master empties the store: its state is in memory only",
            "enable_ha is off",
            remedy,
        ),
        _ => {}
    }
}
