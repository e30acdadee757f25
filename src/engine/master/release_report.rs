//! The releases of the clients, for the admin API.

use std::collections::BTreeMap;

use crate::metrics::ExpositionText;
use mcctl_base::Mono;
use mcctl_metadata::admin::types::{HostReleases, UnknownRequestCount};
use mcctl_net::rpc::ClientReleases;

/// The releases of each host's clients, and the requests that could not be decoded.
pub(super) fn release_report(releases: &ClientReleases, now: Mono) -> (Vec<HostReleases>, Vec<UnknownRequestCount>) {
    let hosts = releases
        .shown(now)
        .into_iter()
        .map(|(host, shown)| HostReleases { host, releases: shown.iter().map(ToString::to_string).collect() });
    let unknown = releases.unknown(now).into_iter().map(|found| UnknownRequestCount {
        host: found.host,
        method: found.method.name().to_owned(),
        requests: found.count,
        release: found.probable.to_string(),
    });
    (hosts.collect(), unknown.collect())
}

/// Renders the number of hosts by release, and the number of requests that could not be decoded.
/// Hosts are not labels, because there can be thousands.
pub(super) fn release_exposition(releases: &ClientReleases, now: Mono) -> String {
    let mut out = ExpositionText(String::new());
    let mut hosts: BTreeMap<String, u64> = BTreeMap::new();
    for (_, shown) in releases.shown(now) {
        if let Some(last) = shown.last() {
            *hosts.entry(last.to_string()).or_default() += 1;
        }
    }
    let name = "mcctl_master_client_hosts";
    out.head(name, "Hosts by the Mooncake release that their clients' calls have shown last", "gauge");
    for (release, hosts) in hosts {
        out.labelled(name, "release", &release, hosts);
    }
    let help = "Requests whose Mooncake release this master does not support";
    out.counter("mcctl_master_unknown_requests_total", help, releases.unknown_count());
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_wire::pack::{DecodeError, DecodeFault};
    use mcctl_wire::{Method, Release, Releases};

    #[test]
    fn hosts_are_counted_by_the_last_release_and_unknown_requests_are_counted() {
        let releases = ClientReleases::new(Release::LATEST);
        for (host, release) in [("a:1", Release::V0_3_9), ("a:2", Release::V0_3_12), ("b:1", Release::V0_3_12)] {
            releases.show(host, Releases::only(release), Mono::ZERO);
        }
        let error = DecodeError::from(DecodeFault::Hash { found: 1, expected: 2 });
        releases.count_unknown("a:3", Method::PutStart, &error, Releases::ALL, Mono::ZERO);
        let text = release_exposition(&releases, Mono::ZERO);
        assert!(text.contains("mcctl_master_client_hosts{release=\"0.3.12.post1\"} 2\n"), "{text}");
        assert!(text.contains("mcctl_master_unknown_requests_total 1\n"), "{text}");
        let (hosts, unknown) = release_report(&releases, Mono::ZERO);
        assert_eq!(hosts[0].releases, ["0.3.9", "0.3.12.post1"]);
        assert_eq!((&*unknown[0].host, unknown[0].requests, &*unknown[0].release), ("a", 1, "0.3.12.post1"));
    }
}
