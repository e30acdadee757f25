//! Judges the mounted memory: whether it suffices, and whether other hosts can reach it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cluster::facts::{ClusterFacts, ListedSegment};
use crate::cluster::judge::{no_admin, undetailed, unlisted};
use crate::{finding, listed, status};
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::{CheckStatus, Severity};
use mcctl_base::text::counted;
use mcctl_base::{ByteSize, HostPort};
use mcctl_metadata::admin::hosts::segment_host;

/// Minimum useful segment size: the store's alignment. SGLang's ranks reject smaller ones.
const SEGMENT_MIN: u64 = 16 << 20;
/// Tolerated deviation from the plan, in per mille. It allows for rounding to pages and ranks.
const MISSING_PER_MILLE: u64 = 10;

/// At least one segment is mounted, and each has capacity.
pub(super) fn mounted(facts: &ClusterFacts) -> CheckStatus {
    let listing = match &facts.segments {
        None => return CheckStatus::Skipped(no_admin(facts)),
        Some(Err(why)) => {
            return CheckStatus::Found(vec![finding(
                "segments-mounted",
                Severity::Error,
                "the master's segment list is unavailable",
                why,
                match why.to_string() {
                    why if why.contains("HTTP 401") || why.contains("HTTP 403") => {
                        "pass a token with --token-file FILE or MCCTL_TOKEN, and a certificate with --client-cert"
                    }
                    _ => "check the master's log; a standby has no segment list",
                },
            )]);
        }
        Some(Ok(listing)) => listing,
    };
    let mut findings = Vec::new();
    if listing.segments.is_empty() {
        findings.push(finding(
            "segments-mounted",
            Severity::Error,
            "no memory is mounted: every put fails with -200",
            "the segment list is empty",
            "start store nodes, or set SGLang's global_segment_size above 0; check that these processes can reach the master",
        ));
        return CheckStatus::Found(findings);
    }
    if !listing.is_detailed {
        return CheckStatus::Passed(format!(
            "{} (the master is too old to report their sizes)",
            counted(listing.segments.len(), "segment")
        ));
    }
    let total: u64 = listing.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.bytes));
    if let Some(expected) = facts.expected {
        let allowed = expected.0 / 1000 * MISSING_PER_MILLE;
        let evidence =
            format!("{} in {}, planned {expected}", ByteSize(total), counted(listing.segments.len(), "segment"));
        if total.saturating_add(allowed) < expected.0 {
            findings.push(finding(
                "segments-mounted",
                Severity::Error,
                "less memory is mounted than planned",
                evidence,
                "run mcctl status to see which node is missing; SGLang divides its global_segment_size by tp x pp, but store nodes do not",
            ));
        } else if total > expected.0.saturating_add(allowed) {
            findings.push(finding(
                "segments-mounted",
                Severity::Warning,
                "more memory is mounted than planned: hosts may run out of memory",
                evidence,
                "a store node's global_segment_size is per process, SGLang's per server: see mcctl size-hugepages",
            ));
        }
    }
    let small: Vec<&ListedSegment> = listing.segments.iter().filter(|segment| segment.bytes < SEGMENT_MIN).collect();
    if !small.is_empty() {
        findings.push(finding(
            "segments-mounted",
            Severity::Warning,
            format!("{} smaller than 16 MiB and almost unusable", verb(small.len(), "segment")),
            small_evidence(&small),
            "raise global_segment_size: each SGLang rank gets global_segment_size / (tp x pp), rounded down to a multiple of 16 MiB",
        ));
    }
    let going: Vec<String> = listing
        .segments
        .iter()
        .filter(|segment| !matches!(segment.status.as_str(), "" | "OK"))
        .map(|segment| format!("{} {}", segment.name, segment.status))
        .collect();
    if !going.is_empty() {
        findings.push(finding(
            "segments-mounted",
            Severity::Info,
            format!("{} no new objects", if going.len() == 1 { "1 segment accepts" } else { "some segments accept" }),
            listed(&going),
            "no action is needed if a node is being drained; see mcctl status",
        ));
    }
    status(findings, || format!("{} in {}", ByteSize(total), counted(listing.segments.len(), "segment")))
}

fn verb(n: usize, what: &str) -> String {
    format!("{} {}", counted(n, what), if n == 1 { "is" } else { "are" })
}

fn small_evidence(small: &[&ListedSegment]) -> String {
    listed(&small.iter().map(|segment| format!("{} {}", segment.name, ByteSize(segment.bytes))).collect::<Vec<_>>())
}

/// Segment names are unique and name a host that other hosts can reach.
pub(super) fn names(facts: &ClusterFacts) -> CheckStatus {
    if let Some(skipped) = undetailed(facts) {
        return skipped;
    }
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for segment in facts.mounted() {
        owners.entry(&segment.name).or_default().insert(&segment.client);
    }
    let shared: Vec<String> = owners
        .iter()
        .filter(|(_, of)| of.len() > 1)
        .map(|(name, of)| format!("{name} is used by {} clients", of.len()))
        .collect();
    if shared.is_empty() {
        return CheckStatus::Passed(counted(owners.len(), "name"));
    }
    CheckStatus::Found(vec![finding(
        "segment-names",
        Severity::Error,
        "several clients mounted segments under the same name: reads of one client's objects are sent to another client",
        listed(&shared),
        "set MOONCAKE_LOCAL_HOSTNAME to a unique host:port for each process, or to a host name, so that a free port is chosen; if one of \
         them was just restarted, its old client expires after client_ttl (10 s)",
    )])
}

/// The segments of several clients are on several hosts. Otherwise all copies of an object are lost
/// with one host.
pub(super) fn hosts(facts: &ClusterFacts) -> CheckStatus {
    if let Some(skipped) = undetailed(facts) {
        return skipped;
    }
    let names: BTreeSet<&str> = facts.mounted().iter().map(|segment| segment.name.as_str()).collect();
    let hosts: Option<BTreeSet<String>> =
        facts.mounted().iter().map(|segment| segment_host(&segment.host, &segment.name)).collect();
    let Some(hosts) = hosts else {
        return CheckStatus::Skipped("not every segment has a name that identifies its host".to_owned());
    };
    match (hosts.first(), hosts.len()) {
        (Some(host), 1) if names.len() > 1 => CheckStatus::Found(vec![finding(
            "copy-hosts",
            Severity::Info,
            "all copies of an object are on one host: if it fails, the object is lost",
            format!("{} on host {host}", counted(names.len(), "node")),
            "no action is needed with one copy per object; otherwise start nodes on another host, or correct MOONCAKE_HOST_ID",
        )]),
        (_, count) => CheckStatus::Passed(counted(count, "host")),
    }
}

/// Why other hosts cannot connect to an endpoint.
fn unreachable_host(endpoint: &str) -> Option<&'static str> {
    let (host, _) = HostPort::split(endpoint).ok()?;
    let is_everywhere = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    match () {
        () if is_everywhere => Some("unspecified address"),
        () if host_is_loopback(&host) => Some("loopback"),
        () => None,
    }
}

/// Every segment has a transport endpoint that other hosts can reach.
pub(super) fn endpoints(facts: &ClusterFacts) -> CheckStatus {
    if let Some(skipped) = undetailed(facts) {
        return skipped;
    }
    let is_service = facts.metadata.url.is_some();
    let mut bad: Vec<(String, &'static str)> = Vec::new();
    let mut odd: Vec<String> = Vec::new();
    for node in &facts.nodes {
        // With a metadata service the endpoint is a name, and its record contains the address.
        let recorded = node.records.as_ref().and_then(|records| records.rpc_meta.as_ref().ok()).cloned().flatten();
        let called = recorded.map_or_else(|| node.endpoint.clone(), |at| format!("{}:{}", at.host, at.port));
        match unreachable_host(&called) {
            Some(why) => bad.push((node.shown_at(&called), why)),
            None if HostPort::split(&called).is_err() => odd.push(node.shown_at(&called)),
            None => {}
        }
    }
    if bad.is_empty() && odd.is_empty() {
        return CheckStatus::Passed(counted(facts.nodes.len(), "endpoint"));
    }
    let shown: Vec<String> = bad.iter().map(|(at, why)| format!("{at} ({why})")).chain(odd.iter().cloned()).collect();
    let is_everywhere = bad.iter().any(|(_, why)| *why != "loopback") || !odd.is_empty();
    let found = if facts.is_one_host() && !is_everywhere {
        finding(
            "segment-endpoints",
            Severity::Info,
            "the segments have loopback endpoints: correct for a single-host store, but unreachable from other hosts",
            listed(&shown),
            "no action is needed for a single host; \
             with several hosts, set MOONCAKE_LOCAL_HOSTNAME on each host to an address that the others can reach",
        )
    } else {
        finding(
            "segment-endpoints",
            Severity::Error,
            "segments are mounted under addresses that are reachable only from their own host: puts and gets from other hosts fail with -800",
            format!("{}{}", listed(&shown), if is_service { " in the metadata service" } else { "" }),
            "set MOONCAKE_LOCAL_HOSTNAME on each host to an address that the others can reach (default: localhost), and restart",
        )
    };
    CheckStatus::Found(vec![found])
}

/// All segments use the same protocol.
pub(super) fn protocol(facts: &ClusterFacts) -> CheckStatus {
    if let Some(skipped) = undetailed(facts).or_else(|| unlisted(facts)) {
        return skipped;
    }
    let mut by: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for segment in facts.mounted() {
        by.entry(&segment.protocol).or_default().push(&segment.name);
    }
    if by.len() < 2 {
        return CheckStatus::Passed(format!("all use {}", by.keys().next().copied().unwrap_or("nothing")));
    }
    let parts: Vec<String> = by.iter().map(|(protocol, of)| format!("{protocol}: {}", listed(of))).collect();
    CheckStatus::Found(vec![finding(
        "one-protocol",
        Severity::Error,
        "segments use different transports: clients that use one transport fail on the others with -800 (NotSupportedTransport)",
        parts.join("; "),
        "set the same MOONCAKE_PROTOCOL (rdma or tcp) on all nodes and SGLang servers",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::facts::test_facts::healthy;
    use crate::cluster::facts::{MetadataRecords, SegmentListing};

    fn segments(facts: &mut ClusterFacts) -> &mut Vec<ListedSegment> {
        match &mut facts.segments {
            Some(Ok(listing)) => &mut listing.segments,
            _ => panic!("a listing"),
        }
    }

    #[track_caller]
    fn assert_found(status: &CheckStatus, severity: Severity, part: &str) {
        let CheckStatus::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity == severity && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn mounted_memory_is_compared_with_the_plan() {
        let mut facts = healthy();
        assert!(
            matches!(mounted(&facts), CheckStatus::Passed(text) if text == "2 GiB in 2 segments"),
            "{:?}",
            mounted(&facts)
        );
        facts.expected = Some(ByteSize(2 << 30));
        assert!(matches!(mounted(&facts), CheckStatus::Passed(_)));
        facts.expected = Some(ByteSize(8 << 30));
        assert_found(&mounted(&facts), Severity::Error, "less memory is mounted than planned");
        facts.expected = Some(ByteSize(1 << 30));
        assert_found(&mounted(&facts), Severity::Warning, "more memory is mounted than planned");
        segments(&mut facts).clear();
        assert_found(&mounted(&facts), Severity::Error, "no memory is mounted");
    }

    #[test]
    fn a_segment_below_16_mib_is_found() {
        let mut facts = healthy();
        segments(&mut facts)[1].bytes = 16 << 20;
        assert!(matches!(mounted(&facts), CheckStatus::Passed(_)));
        segments(&mut facts)[1].bytes = (16 << 20) - 1;
        assert_found(&mounted(&facts), Severity::Warning, "1 segment is smaller than 16 MiB");
    }

    #[test]
    fn a_loopback_endpoint_is_an_error_unless_the_master_is_local() {
        let mut facts = healthy();
        assert!(matches!(endpoints(&facts), CheckStatus::Passed(_)));
        for bad in ["localhost:16406", "127.0.0.1:15001", "0.0.0.0:15001"] {
            facts.nodes[0].endpoint = bad.to_owned();
            assert_found(&endpoints(&facts), Severity::Error, "only from their own host");
        }
        facts.master = HostPort::new("127.0.0.1", 50_051);
        assert_found(&endpoints(&facts), Severity::Error, "only from their own host");
        facts.nodes[0].endpoint = "localhost:16406".to_owned();
        assert_found(&endpoints(&facts), Severity::Info, "single-host");
    }

    #[test]
    fn with_a_metadata_service_the_recorded_address_counts() {
        let mut facts = healthy();
        facts.metadata.url = Some("http://10.0.0.9:8080/metadata".to_owned());
        facts.nodes[0].endpoint = "localhost:12805".to_owned();
        let record = |host: &str| {
            Some(MetadataRecords { ram: Ok(Some("tcp".to_owned())), rpc_meta: Ok(Some(HostPort::new(host, 15_825))) })
        };
        facts.nodes[0].records = record("10.77.0.1");
        assert!(matches!(endpoints(&facts), CheckStatus::Passed(_)));
        facts.nodes[0].records = record("127.0.0.1");
        assert_found(&endpoints(&facts), Severity::Error, "only from their own host");
    }

    #[test]
    fn different_transports_are_an_error() {
        let mut facts = healthy();
        assert!(matches!(protocol(&facts), CheckStatus::Passed(_)));
        segments(&mut facts)[0].protocol = "rdma".to_owned();
        assert_found(&protocol(&facts), Severity::Error, "different transports");
    }

    #[test]
    fn two_clients_with_one_segment_name_are_an_error() {
        let mut facts = healthy();
        let second = segments(&mut facts)[0].clone();
        segments(&mut facts).push(second);
        assert!(matches!(names(&facts), CheckStatus::Passed(_)));
        segments(&mut facts)[2].client = "9-9".to_owned();
        assert_found(&names(&facts), Severity::Error, "under the same name");
    }

    #[test]
    fn an_old_master_that_lists_only_names_is_judged_by_those() {
        let mut facts = healthy();
        let names_only = ListedSegment { name: "a".to_owned(), endpoint: "a".to_owned(), ..ListedSegment::default() };
        facts.segments = Some(Ok(SegmentListing { segments: vec![names_only], ..SegmentListing::default() }));
        assert!(matches!(mounted(&facts), CheckStatus::Passed(_)));
        assert!(
            matches!(protocol(&facts), CheckStatus::Skipped(_)) && matches!(endpoints(&facts), CheckStatus::Skipped(_))
        );
    }
}
