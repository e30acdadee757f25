//! The releases of a server's clients, by host: what ended connections have shown, for the first
//! calls of later ones.
//!
//! A client opens and closes connections, and the first call on one may have the same layout in
//! several releases. The server then assumes the release that the client's host has shown last,
//! else [`ServerConfig::client_release`](crate::rpc::ServerConfig::client_release). If the client
//! cannot decode the response, it closes the connection and calls again on another one. That call
//! is answered as another release.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::rpc::host_releases::HostReleases;
use mcctl_base::Mono;
use mcctl_wire::pack::{DecodeError, DecodeFault};
use mcctl_wire::{Assumption, Method, RefusedResponse, Release, Releases};

/// Maximum number of hosts. Beyond it, the host with the oldest record is dropped.
const HOSTS_MAX: usize = 8192;
/// Maximum number of combinations of host and method whose unknown requests are listed. Beyond it,
/// the oldest one is dropped.
const UNKNOWN_MAX: usize = 256;
/// Unknown requests are listed for this long after the last one.
const UNKNOWN_KEPT: Duration = Duration::from_secs(3600);

/// The releases of a server's clients. Clones share the records.
#[derive(Clone, Debug)]
pub struct ClientReleases(Arc<ClientReleasesInner>);

#[derive(Debug)]
struct ClientReleasesInner {
    assumed: Release,
    records: Mutex<ReleaseRecords>,
}

#[derive(Debug, Default)]
struct ReleaseRecords {
    hosts: HashMap<String, HostReleases>,
    /// Requests of an unknown layout, by host and method.
    unknown: BTreeMap<(String, Method), UnknownRequests>,
    /// Their number, including those that are not listed.
    unknown_count: u64,
}

/// Requests whose layout is of no known release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRequests {
    pub host: String,
    pub method: Method,
    pub count: u64,
    /// The time of the last one.
    pub last: Mono,
    /// The type hash of the last one; 0 if it was too short.
    pub hash: u32,
    /// The releases that the host's other requests show; empty if they show none.
    pub probable: Releases,
}

impl ClientReleases {
    /// Without records. `assumed` is the release of a host that has shown nothing.
    pub fn new(assumed: Release) -> ClientReleases {
        ClientReleases(Arc::new(ClientReleasesInner { assumed, records: Mutex::default() }))
    }

    /// The release of a host that has shown nothing.
    pub fn assumed(&self) -> Release {
        self.0.assumed
    }

    fn lock(&self) -> MutexGuard<'_, ReleaseRecords> {
        self.0.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The release of the client at `peer`, one of those in `assumption`.
    pub fn assume(&self, peer: &str, assumption: Assumption, now: Mono) -> Release {
        let possible = assumption.possible;
        let mut records = self.lock();
        let found = records.hosts.get_mut(host(peer)).and_then(|record| record.assume(assumption, now));
        drop(records);
        let assumed = Some(self.0.assumed).filter(|assumed| possible.contains(*assumed));
        found.or(assumed).or(possible.newest()).unwrap_or(self.0.assumed)
    }

    /// Notes what the requests of the client at `peer` have shown.
    pub fn show(&self, peer: &str, possible: Releases, now: Mono) {
        self.with_host(peer, |record| record.show(possible, now));
    }

    /// Notes that the client at `peer` could not decode a response.
    pub fn refuse(&self, peer: &str, response: RefusedResponse, now: Mono) {
        self.with_host(peer, |record| record.refuse(response, now));
    }

    fn with_host(&self, peer: &str, change: impl FnOnce(&mut HostReleases)) {
        let host = host(peer);
        let mut records = self.lock();
        if let Some(record) = records.hosts.get_mut(host) {
            return change(record);
        }
        if records.hosts.len() >= HOSTS_MAX {
            let oldest = records.hosts.iter().min_by_key(|(_, record)| record.changed_at());
            if let Some(oldest) = oldest.map(|(host, _)| host.clone()) {
                records.hosts.remove(&oldest);
            }
        }
        change(records.hosts.entry(host.to_owned()).or_default());
    }

    /// Counts a request of an unknown layout. Returns true for the first one of the host's calls to
    /// this method. `possible` is what the connection has shown.
    pub fn count_unknown(
        &self,
        peer: &str,
        method: Method,
        error: &DecodeError,
        possible: Releases,
        now: Mono,
    ) -> bool {
        let host = host(peer);
        let mut records = self.lock();
        records.unknown_count += 1;
        let shown = records.hosts.get(host).and_then(HostReleases::last);
        let key = (host.to_owned(), method);
        if records.unknown.len() >= UNKNOWN_MAX && !records.unknown.contains_key(&key) {
            let oldest = records.unknown.iter().min_by_key(|(_, found)| found.last).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| records.unknown.remove(&oldest));
        }
        let hash = if let DecodeFault::Hash { found, .. } = error.fault { found } else { 0 };
        let known = if possible == Releases::ALL { shown.unwrap_or(Releases::NONE) } else { possible };
        let entry = records.unknown.entry(key).or_insert_with_key(|(host, method)| UnknownRequests {
            host: host.clone(),
            method: *method,
            count: 0,
            last: now,
            hash,
            probable: known,
        });
        entry.count += 1;
        entry.last = now;
        entry.hash = hash;
        entry.probable = known;
        entry.count == 1
    }

    /// The number of requests of an unknown layout.
    pub fn unknown_count(&self) -> u64 {
        self.lock().unknown_count
    }

    /// The requests of an unknown layout in the last hour, by host and method.
    pub fn unknown(&self, now: Mono) -> Vec<UnknownRequests> {
        let records = self.lock();
        records.unknown.values().filter(|found| now.since(found.last) <= UNKNOWN_KEPT).cloned().collect()
    }

    /// What clients have shown in the last day, by host, the latest last.
    pub fn shown(&self, now: Mono) -> Vec<(String, Vec<Releases>)> {
        let records = self.lock();
        let mut all: Vec<(String, Vec<Releases>)> =
            records.hosts.iter().map(|(host, record)| (host.clone(), record.shown(now))).collect();
        drop(records);
        all.retain(|(_, shown)| !shown.is_empty());
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

/// The host in `host:port`.
pub fn host(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "10.0.0.1:4000";

    fn at(seconds: u64) -> Mono {
        Mono::ZERO + Duration::from_secs(seconds)
    }

    fn response(method: Method, releases: Releases) -> RefusedResponse {
        RefusedResponse { method, releases, is_fresh: false }
    }

    #[test]
    fn a_client_that_ends_after_a_read_changes_nothing() {
        let releases = ClientReleases::new(Release::LATEST);
        let newest = Releases::since(Release::V0_3_13);
        releases.show(PEER, newest, at(0));
        for second in 1..5 {
            let ended = RefusedResponse { is_fresh: true, ..response(Method::GetReplicaList, newest) };
            releases.refuse(PEER, ended, at(second));
            assert_eq!(releases.assume(PEER, reads(false), at(second)), Release::LATEST);
        }
        // A connection of an older client that only reads, twice.
        for (second, release) in [(5, Release::LATEST), (6, Release::V0_3_12)] {
            releases.refuse(PEER, response(Method::GetReplicaList, newest), at(second));
            assert_eq!(releases.assume(PEER, reads(false), at(second)), release);
        }
    }

    fn reads(is_fresh: bool) -> Assumption {
        let possible = Releases::since(Release::V0_3_12);
        Assumption { method: Method::GetReplicaList, possible, is_fresh }
    }

    #[test]
    fn a_host_that_has_shown_nothing_has_the_set_release() {
        let releases = ClientReleases::new(Release::V0_3_12);
        assert_eq!(releases.assume(PEER, reads(true), at(0)), Release::V0_3_12);
        let releases = ClientReleases::new(Release::V0_3_6);
        assert_eq!(releases.assume(PEER, reads(true), at(0)), Release::LATEST);
    }

    #[test]
    fn a_host_has_the_release_that_it_has_shown_last() {
        let releases = ClientReleases::new(Release::LATEST);
        releases.show(PEER, Releases::only(Release::V0_3_12), at(0));
        assert_eq!(releases.assume("10.0.0.1:4001", reads(true), at(1)), Release::V0_3_12);
        assert_eq!(releases.assume("10.0.0.2:4001", reads(true), at(1)), Release::LATEST);
        releases.show(PEER, Releases::only(Release::V0_3_13), at(2));
        assert_eq!(releases.assume(PEER, reads(false), at(3)), Release::V0_3_13);
        releases.show(PEER, Releases::only(Release::V0_3_12), at(4));
        assert_eq!(releases.assume(PEER, reads(false), at(5)), Release::V0_3_12);
        // A new client on a host with several releases.
        assert_eq!(releases.assume(PEER, reads(true), at(5)), Release::LATEST);
    }

    #[test]
    fn a_host_with_clients_of_all_releases_has_several() {
        let releases = ClientReleases::new(Release::LATEST);
        for (second, release) in (0..).zip(Release::ALL.iter().rev()) {
            // The sets that a client shows one after the other.
            for shown in [Releases::since(*release), Releases::only(*release)] {
                releases.show(PEER, shown, at(second));
            }
        }
        assert_eq!(releases.assume(PEER, reads(true), at(20)), Release::LATEST);
    }

    #[test]
    fn records_that_agree_are_combined() {
        let releases = ClientReleases::new(Release::V0_3_12);
        let only = Releases::only;
        let set = |all: &[Release]| all.iter().copied().collect::<Releases>();
        releases.show(PEER, Releases::since(Release::V0_3_8), at(0));
        assert_eq!(
            releases.assume(PEER, reads(false), at(1)),
            Release::V0_3_12,
            "it excludes none of the possible ones"
        );
        releases.show(PEER, only(Release::V0_3_13), at(2));
        // The first calls of a client show little.
        releases.show(PEER, Releases::since(Release::V0_3_8), at(3));
        assert_eq!(releases.assume(PEER, reads(true), at(4)), Release::V0_3_13);
        // A client of 0.3.8, then one of 0.3.9, twice. The put is on another connection than the
        // mount.
        let puts = [Release::V0_3_8, Release::V0_3_9, Release::V0_3_10];
        let put = Assumption { method: Method::PutStart, possible: set(&puts), is_fresh: false };
        let mounted = [Release::V0_3_9, Release::V0_3_10, Release::V0_3_10_2, Release::V0_3_11];
        for round in 0..2 {
            releases.show(PEER, only(Release::V0_3_8), at(10 * round + 10));
            assert_eq!(releases.assume(PEER, put, at(10 * round + 11)), Release::V0_3_8);
            releases.show(PEER, set(&mounted), at(10 * round + 12));
            assert_eq!(releases.assume(PEER, put, at(10 * round + 13)), Release::V0_3_10);
            releases.show(PEER, set(&puts[1..]), at(10 * round + 14));
        }
    }

    #[test]
    fn refusals_add_up_until_a_release_is_left() {
        let releases = ClientReleases::new(Release::LATEST);
        let possible = Releases::ALL.without(Releases::since(Release::V0_3_12));
        let mut assumption = Assumption { method: Method::GetReplicaList, possible, is_fresh: true };
        for _ in 0..2 {
            let mut tried = Vec::new();
            for second in 0..5 {
                let release = releases.assume(PEER, assumption, at(second));
                let refused = Method::GetReplicaList.releases_with_response_of(release);
                releases.refuse(PEER, response(Method::GetReplicaList, refused), at(second));
                assumption.is_fresh = false;
                tried.push(release);
            }
            let order = [Release::V0_3_11, Release::V0_3_10_2, Release::V0_3_8, Release::V0_3_7, Release::V0_3_6];
            assert_eq!(tried, order);
        }
    }

    #[test]
    fn the_call_after_a_refusal_is_answered_as_another_release() {
        let releases = ClientReleases::new(Release::LATEST);
        releases.refuse(PEER, response(Method::GetReplicaList, Releases::since(Release::V0_3_13)), at(0));
        assert_eq!(releases.assume(PEER, reads(false), at(1)), Release::V0_3_12);
        // Another client has started.
        assert_eq!(releases.assume(PEER, reads(true), at(1)), Release::LATEST);
        assert_eq!(releases.assume(PEER, reads(false), at(100)), Release::LATEST);
        let handshake =
            Assumption { method: Method::ServiceReady, possible: Releases::since(Release::V0_3_7), is_fresh: true };
        releases.refuse(PEER, response(Method::ServiceReady, Releases::since(Release::V0_3_8)), at(200));
        assert_eq!(releases.assume(PEER, handshake, at(201)), Release::V0_3_7);
        releases.refuse(PEER, response(Method::ServiceReady, Releases::only(Release::V0_3_7)), at(202));
        assert_eq!(releases.assume(PEER, handshake, at(203)), Release::LATEST);
        releases.show(PEER, Releases::only(Release::V0_3_7), at(204));
        assert_eq!(releases.assume(PEER, handshake, at(205)), Release::LATEST, "the client may be upgraded");
    }

    #[test]
    fn a_set_that_contains_another_one_is_not_listed() {
        let releases = ClientReleases::new(Release::LATEST);
        for (second, shown) in [
            (0, Releases::since(Release::V0_3_7)),
            (1, Releases::only(Release::V0_3_10_2)),
            (2, Releases::since(Release::V0_3_12)),
            (3, Releases::since(Release::V0_3_13)),
        ] {
            releases.show(PEER, shown, at(second));
        }
        let listed = vec![Releases::only(Release::V0_3_10_2), Releases::since(Release::V0_3_13)];
        assert_eq!(releases.shown(at(4)), [("10.0.0.1".to_owned(), listed)]);
    }

    #[test]
    fn the_number_of_hosts_is_limited() {
        let releases = ClientReleases::new(Release::LATEST);
        for index in 0..HOSTS_MAX as u64 + 10 {
            releases.show(&format!("host-{index}:1"), Releases::only(Release::V0_3_9), at(index));
        }
        let shown = releases.shown(at(HOSTS_MAX as u64));
        assert_eq!(shown.len(), HOSTS_MAX);
        assert!(!shown.iter().any(|(host, _)| host == "host-0"));
    }

    #[test]
    fn unknown_requests_are_counted_by_host_and_method() {
        let releases = ClientReleases::new(Release::LATEST);
        let error = DecodeError::from(DecodeFault::Hash { found: 7, expected: 8 });
        releases.show(PEER, Releases::only(Release::V0_3_13), at(0));
        assert!(releases.count_unknown(PEER, Method::PutStart, &error, Releases::ALL, at(1)));
        assert!(!releases.count_unknown("10.0.0.1:4001", Method::PutStart, &error, Releases::ALL, at(1)));
        assert!(releases.count_unknown(PEER, Method::PutEnd, &error, Releases::only(Release::V0_3_9), at(2)));
        let found = releases.unknown(at(3600));
        let [start, end] = &found[..] else { panic!("{found:?}") };
        assert_eq!((start.count, start.hash, start.probable), (2, 7, Releases::only(Release::V0_3_13)));
        assert_eq!(end.probable, Releases::only(Release::V0_3_9));
        assert_eq!(releases.unknown_count(), 3);
        assert_eq!(releases.unknown(at(3602)).len(), 1, "the put is older than an hour");
    }
}
