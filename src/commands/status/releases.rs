//! The Mooncake releases of the clients.

use std::collections::BTreeMap;

use crate::commands::status::StatusDocument;
use crate::engine::base::text::{counted, escaped};

/// Releases with at most this many hosts are shown with their names.
const NAMED_HOSTS_MAX: usize = 3;

/// The hosts by the release that their clients have shown last, and the others that they have shown
/// in the last day; `None` if no client has shown one.
pub(super) fn shown(status: &StatusDocument<'_>) -> Option<String> {
    let mut by_release: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut others: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (host, releases) in status.releases.as_ref()? {
        if let Some((last, before)) = releases.split_last() {
            by_release.entry(last).or_default().push(host);
            before.iter().for_each(|release| others.entry(release).or_default().push(host));
        }
    }
    let is_mixed = by_release.len() > 1;
    let one = |(release, hosts): (&str, Vec<&str>)| {
        let count = counted(hosts.len(), "host");
        match is_mixed && hosts.len() <= NAMED_HOSTS_MAX {
            true => format!("{} on {count} ({})", escaped(release), escaped(&hosts.join(", "))),
            false => format!("{} on {count}", escaped(release)),
        }
    };
    let mut all: Vec<String> = by_release.into_iter().map(one).collect();
    if !others.is_empty() {
        let others: Vec<String> = others.into_iter().map(one).collect();
        all.push(format!("also in the last day: {}", others.join(", ")));
    }
    (!all.is_empty()).then(|| all.join("; "))
}
