//! The memory that is mounted: enough of it, and reachable by others?

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::engine::base::addr::host_is_loopback;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::check::{Severity, Status};
use crate::engine::doctor::cluster::facts::{Facts, Segment};
use crate::engine::doctor::cluster::judge::{no_admin, undetailed, unlisted};
use crate::engine::doctor::{finding, listed, plural, status};

/// Below this a segment does not even hold the store's own alignment of a rank: SGLang's ranks refuse it.
const SEGMENT_MIN: u64 = 16 << 20;
/// How much of the plan may be missing, per mille: what rounding to pages and ranks costs.
const MISSING_PER_MILLE: u64 = 10;

/// At least one segment is mounted, and each has capacity.
pub fn mounted(facts: &Facts) -> Status {
    let listing = match &facts.segments {
        None => return Status::Skipped(no_admin(facts)),
        Some(Err(why)) => {
            return Status::Found(vec![finding(
                "segments-mounted",
                Severity::Error,
                "the master does not list its segments",
                why,
                "see the master's log; a standby lists none",
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
            "the list of segments is empty",
            "start store nodes, or give SGLang's ranks a global_segment_size above 0; see whether they could reach the master",
        ));
        return Status::Found(findings);
    }
    if !listing.is_detailed {
        return Status::Passed(format!(
            "{} (the master is too old to tell their sizes)",
            plural(listing.segments.len(), "segment")
        ));
    }
    let total: u64 = listing.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.bytes));
    if let Some(expected) = facts.expected {
        let allowed = expected.0 / 1000 * MISSING_PER_MILLE;
        let evidence =
            format!("{} in {}, planned {expected}", ByteSize(total), plural(listing.segments.len(), "segment"));
        if total.saturating_add(allowed) < expected.0 {
            findings.push(finding(
                "segments-mounted",
                Severity::Error,
                "less memory is mounted than planned",
                evidence,
                "see which node is missing in mcctl status; SGLang divides its global_segment_size by tp x pp, a store node does not",
            ));
        } else if total > expected.0.saturating_add(allowed) {
            findings.push(finding(
                "segments-mounted",
                Severity::Warning,
                "more memory is mounted than planned: hosts may run out of it",
                evidence,
                "a store node's global_segment_size is per process, SGLang's per server: see mcctl size-hugepages",
            ));
        }
    }
    let small: Vec<&Segment> = listing.segments.iter().filter(|segment| segment.bytes < SEGMENT_MIN).collect();
    if !small.is_empty() {
        findings.push(finding(
            "segments-mounted",
            Severity::Warning,
            format!("{} smaller than 16 MiB and of hardly any use", verb(small.len(), "segment")),
            small_evidence(&small),
            "raise global_segment_size: each rank of SGLang gets global_segment_size / (tp x pp), rounded down to 16 MiB",
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
            format!("{} no new objects", if going.len() == 1 { "1 segment takes" } else { "some segments take" }),
            listed(&going),
            "nothing, if a node is being drained; see mcctl status",
        ));
    }
    status(findings, || format!("{} in {}", ByteSize(total), plural(listing.segments.len(), "segment")))
}

fn verb(n: usize, what: &str) -> String {
    format!("{} {}", plural(n, what), if n == 1 { "is" } else { "are" })
}

fn small_evidence(small: &[&Segment]) -> String {
    listed(&small.iter().map(|segment| format!("{} {}", segment.name, ByteSize(segment.bytes))).collect::<Vec<_>>())
}

/// Segment names are unique and name a host that other hosts can reach.
pub fn names(facts: &Facts) -> Status {
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
        .map(|(name, of)| format!("{name} by {} clients", of.len()))
        .collect();
    if shared.is_empty() {
        return Status::Passed(plural(owners.len(), "name"));
    }
    Status::Found(vec![finding(
        "segment-names",
        Severity::Error,
        "several clients mounted segments under one name: objects of one are looked for at the other",
        listed(&shared),
        "give each process its own host:port as MOONCAKE_LOCAL_HOSTNAME, or a host name alone, so that a free port is drawn; if one of \
         them was restarted a moment ago, the old one goes after client_ttl (10 s)",
    )])
}

/// What is wrong with an endpoint for callers on other hosts.
fn unreachable_host(endpoint: &str) -> Option<&'static str> {
    let (host, _) = HostPort::split(endpoint).ok()?;
    let is_everywhere = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    match () {
        () if is_everywhere => Some("every address and none"),
        () if host_is_loopback(&host) => Some("loopback"),
        () => None,
    }
}

/// Every segment has a transport endpoint that other hosts can reach.
pub fn endpoints(facts: &Facts) -> Status {
    if let Some(skipped) = undetailed(facts) {
        return skipped;
    }
    let is_service = facts.metadata.url.is_some();
    let mut bad: Vec<(String, &'static str)> = Vec::new();
    let mut odd: Vec<String> = Vec::new();
    for node in &facts.nodes {
        // With a metadata service the endpoint is a name, and the address stands in its record.
        let recorded = node.records.as_ref().and_then(|records| records.rpc_meta.as_ref().ok()).cloned().flatten();
        let called = recorded.map_or_else(|| node.endpoint.clone(), |at| format!("{}:{}", at.host, at.port));
        match unreachable_host(&called) {
            Some(why) => bad.push((called, why)),
            None if HostPort::split(&called).is_err() => odd.push(called),
            None => {}
        }
    }
    if bad.is_empty() && odd.is_empty() {
        return Status::Passed(plural(facts.nodes.len(), "endpoint"));
    }
    let shown: Vec<String> = bad.iter().map(|(at, why)| format!("{at} ({why})")).chain(odd.iter().cloned()).collect();
    let is_everywhere = bad.iter().any(|(_, why)| *why != "loopback") || !odd.is_empty();
    let found = if facts.is_one_host() && !is_everywhere {
        finding(
            "segment-endpoints",
            Severity::Info,
            "the segments are reached over loopback: right for a store on one host, useless for a second one",
            listed(&shown),
            "nothing on one host; for more, MOONCAKE_LOCAL_HOSTNAME=ADDRESS of each host that others reach",
        )
    } else {
        finding(
            "segment-endpoints",
            Severity::Error,
            "segments are mounted under addresses that only their own host can call: every put and get from elsewhere fails with -800",
            format!("{}{}", listed(&shown), if is_service { " in the metadata service" } else { "" }),
            "set MOONCAKE_LOCAL_HOSTNAME to an address of each host that others reach (it is localhost where unset), and restart",
        )
    };
    Status::Found(vec![found])
}

/// All segments use the same protocol.
pub fn protocol(facts: &Facts) -> Status {
    if let Some(skipped) = undetailed(facts).or_else(|| unlisted(facts)) {
        return skipped;
    }
    let mut by: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for segment in facts.mounted() {
        by.entry(&segment.protocol).or_default().push(&segment.name);
    }
    if by.len() < 2 {
        return Status::Passed(format!("all over {}", by.keys().next().copied().unwrap_or("nothing")));
    }
    let parts: Vec<String> = by.iter().map(|(protocol, of)| format!("{protocol}: {}", listed(of))).collect();
    Status::Found(vec![finding(
        "one-protocol",
        Severity::Error,
        "segments are reached over different transports: clients of one fail with -800 (NotSupportedTransport) at the others",
        parts.join("; "),
        "give every node and every SGLang the same MOONCAKE_PROTOCOL, rdma or tcp",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::cluster::facts::made_up::healthy;
    use crate::engine::doctor::cluster::facts::{Listing, Records};

    fn segments(facts: &mut Facts) -> &mut Vec<Segment> {
        match &mut facts.segments {
            Some(Ok(listing)) => &mut listing.segments,
            _ => panic!("a listing"),
        }
    }

    #[track_caller]
    fn says(status: &Status, severity: Severity, part: &str) {
        let Status::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity == severity && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn no_segment_is_an_error_and_the_sum_is_held_against_the_plan() {
        let mut facts = healthy();
        assert!(
            matches!(mounted(&facts), Status::Passed(text) if text == "2 GiB in 2 segments"),
            "{:?}",
            mounted(&facts)
        );
        facts.expected = Some(ByteSize(2 << 30));
        assert!(matches!(mounted(&facts), Status::Passed(_)));
        facts.expected = Some(ByteSize(8 << 30));
        says(&mounted(&facts), Severity::Error, "less memory is mounted than planned");
        facts.expected = Some(ByteSize(1 << 30));
        says(&mounted(&facts), Severity::Warning, "more memory is mounted than planned");
        segments(&mut facts).clear();
        says(&mounted(&facts), Severity::Error, "no memory is mounted");
    }

    #[test]
    fn a_segment_below_16_mib_is_named() {
        let mut facts = healthy();
        segments(&mut facts)[1].bytes = 16 << 20;
        assert!(matches!(mounted(&facts), Status::Passed(_)));
        segments(&mut facts)[1].bytes = (16 << 20) - 1;
        says(&mounted(&facts), Severity::Warning, "1 segment is smaller than 16 MiB");
    }

    #[test]
    fn a_loopback_endpoint_is_an_error_where_the_master_is_elsewhere_and_right_on_one_host() {
        let mut facts = healthy();
        assert!(matches!(endpoints(&facts), Status::Passed(_)));
        for bad in ["localhost:16406", "127.0.0.1:15001", "0.0.0.0:15001"] {
            facts.nodes[0].endpoint = bad.to_owned();
            says(&endpoints(&facts), Severity::Error, "only their own host can call");
        }
        facts.master = HostPort::new("127.0.0.1", 50_051);
        says(&endpoints(&facts), Severity::Error, "only their own host can call");
        facts.nodes[0].endpoint = "localhost:16406".to_owned();
        says(&endpoints(&facts), Severity::Info, "on one host");
    }

    #[test]
    fn with_a_metadata_service_the_recorded_address_counts_and_not_the_name() {
        let mut facts = healthy();
        facts.metadata.url = Some("http://10.0.0.9:8080/metadata".to_owned());
        facts.nodes[0].endpoint = "localhost:12805".to_owned();
        let record = |host: &str| {
            Some(Records { ram: Ok(Some("tcp".to_owned())), rpc_meta: Ok(Some(HostPort::new(host, 15_825))) })
        };
        facts.nodes[0].records = record("10.77.0.1");
        assert!(matches!(endpoints(&facts), Status::Passed(_)));
        facts.nodes[0].records = record("127.0.0.1");
        says(&endpoints(&facts), Severity::Error, "only their own host can call");
    }

    #[test]
    fn two_transports_are_an_error_and_one_is_not() {
        let mut facts = healthy();
        assert!(matches!(protocol(&facts), Status::Passed(_)));
        segments(&mut facts)[0].protocol = "rdma".to_owned();
        says(&protocol(&facts), Severity::Error, "different transports");
    }

    #[test]
    fn two_clients_of_one_name_are_an_error_and_two_segments_of_one_client_are_not() {
        let mut facts = healthy();
        let second = segments(&mut facts)[0].clone();
        segments(&mut facts).push(second);
        assert!(matches!(names(&facts), Status::Passed(_)));
        segments(&mut facts)[2].client = "9-9".to_owned();
        says(&names(&facts), Severity::Error, "under one name");
    }

    #[test]
    fn an_old_master_that_lists_names_alone_is_judged_by_what_it_tells() {
        let mut facts = healthy();
        let names_only = Segment { name: "a".to_owned(), endpoint: "a".to_owned(), ..Segment::default() };
        facts.segments = Some(Ok(Listing { segments: vec![names_only], ..Listing::default() }));
        assert!(matches!(mounted(&facts), Status::Passed(_)));
        assert!(matches!(protocol(&facts), Status::Skipped(_)) && matches!(endpoints(&facts), Status::Skipped(_)));
    }
}
