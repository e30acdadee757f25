//! What a restart of the master does to the keys of a store.

use crate::engine::lint::rules::names::older;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Make};
use crate::engine::lint::settings::{Seen, Setting};

/// The release that brought the oplog.
const OPLOG_SINCE: &str = "0.3.13";
/// The first release whose restore was not tried.
const RESTORE_UNTESTED_SINCE: &str = "0.3.14";

/// Does `release` of Mooncake have `--enable_oplog`?
pub fn has_oplog(release: Option<&str>) -> bool {
    release.is_none_or(|release| !older(release, OPLOG_SINCE))
}

/// A restart of the master empties the store, or all but empties it.
pub fn check(view: &View<'_>, seen: &Seen<'_>, out: &mut Findings) {
    if seen.process.make == Make::Mcctl {
        if seen.process.habitat != Habitat::File {
            out.info(
                &seen.process.place,
                "a restart of the master empties the store: its metadata is in memory only",
                "mcctl serve master has neither snapshots nor high availability",
                "none yet: restart it when an empty cache is acceptable",
            );
        }
        return;
    }
    // HA that is on, or may be, has rules of its own.
    if seen.master_switch("enable_ha") != Some(false) {
        return;
    }
    let release = view.release(seen);
    let remedy = match has_oplog(release.as_deref()) {
        true => {
            "none for a single master; two masters with --enable_ha=true, --enable_oplog=true and etcd keep the keys \
             that the standby has read"
        }
        false => "none in this release: restart it when an empty cache is acceptable",
    };
    // Seen with 0.3.13.post1, kvcache-ai/Mooncake#3761.
    let is_lossy = release.as_deref().is_none_or(|release| older(release, RESTORE_UNTESTED_SINCE));
    match (seen.master("enable_snapshot_restore"), seen.master_switch("enable_snapshot_restore")) {
        (Setting::Is(said), Some(true)) if is_lossy => out.warning(
            &said.place,
            "a restart loses nearly all keys: the restore drops every object whose read lease is over",
            "enable_snapshot_restore; a read lease lasts default_kv_lease_ttl (10 s) after the last read",
            remedy,
        ),
        (_, Some(true) | None) => {}
        (_, Some(false)) if seen.process.habitat != Habitat::File => out.info(
            &seen.process.place,
            "a restart of the master empties the store: its metadata is in memory only",
            "enable_ha is off",
            remedy,
        ),
        _ => {}
    }
}
