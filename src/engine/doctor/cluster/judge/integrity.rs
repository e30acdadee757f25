//! Judges whether objects can be verified, and whether nodes have read damaged ones.

use crate::cluster::facts::ClusterFacts;
use crate::{finding, status};
use mcctl_base::HostPort;
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::{counted, escaped};
use mcctl_base::upstream::checksum::VARIABLE;
use mcctl_metadata::admin::CompletedWrites;
use mcctl_store::transport_stats::TransportStats;

const ID: &str = "object-integrity";
const VERIFY: &str = "run mcctl store verify --all, and read its report by node";

/// Every write had a checksum, and no node has read bytes that do not match theirs.
pub(super) fn objects(facts: &ClusterFacts) -> CheckStatus {
    let metrics = facts.after.as_ref().or(facts.before.as_ref());
    let writes = metrics.and_then(CompletedWrites::of);
    if writes.is_none() && facts.transports.is_empty() {
        return CheckStatus::Skipped(
            "the master does not count writes by checksum, and no node was specified with --node".to_owned(),
        );
    }
    let mut findings: Vec<Finding> = writes.iter().flat_map(of_writes).collect();
    for (at, stats) in &facts.transports {
        match stats {
            Ok(stats) => findings.extend(of_node(at, stats)),
            Err(why) => findings.push(finding(
                ID,
                Severity::Warning,
                format!("the node at {at} did not report its checksum mismatches"),
                escaped(&why.to_string()),
                "pass the HTTP port of a running mcctl node with --node HOST:PORT",
            )),
        }
    }
    status(findings, || {
        let all = writes.map_or(0, |writes| usize::try_from(writes.with_checksum).unwrap_or(usize::MAX));
        format!(
            "{} with a checksum, {} without mismatches",
            counted(all, "write"),
            counted(facts.transports.len(), "node")
        )
    })
}

fn of_writes(writes: &CompletedWrites) -> Vec<Finding> {
    let mut findings = Vec::new();
    if writes.unchecked_share().is_some() {
        let all = writes.with_checksum.saturating_add(writes.without_checksum);
        findings.push(finding(
            ID,
            Severity::Info,
            "reads cannot detect damage to some objects: they were written without a checksum",
            format!("{} of {all} writes since the master started", writes.without_checksum),
            format!("set {VARIABLE}=1 for the clients of Mooncake's wheel; mcctl lint names them"),
        ));
    }
    if writes.suspicious > 0 {
        findings.push(finding(
            ID,
            Severity::Warning,
            "objects may have wrong bytes: their client started the write again, and ended it over another connection",
            format!("mcctl_master_suspicious_put_ends_total {}", writes.suspicious),
            VERIFY,
        ));
    }
    findings
}

fn of_node(at: &HostPort, stats: &TransportStats) -> Vec<Finding> {
    let mut findings: Vec<Finding> = stats
        .suspect_peers
        .iter()
        .map(|host| {
            finding(
                ID,
                Severity::Error,
                format!("the memory of host {} is suspect", escaped(host)),
                format!("the node at {at} found ten checksum mismatches on it within a minute"),
                "stop the node on that host, and test its memory; EDAC and mcelog list its memory errors",
            )
        })
        .collect();
    findings.extend(stats.peers.iter().filter(|peer| peer.checksum_mismatches > 0).map(|peer| {
        finding(
            ID,
            Severity::Warning,
            format!("objects on {} are damaged", escaped(&peer.segment)),
            format!(
                "checksum mismatches that the node at {at} has found since its start: {}",
                peer.checksum_mismatches
            ),
            VERIFY,
        )
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::facts::test_facts::healthy;
    use mcctl_net::http::Samples;
    use mcctl_store::transport_stats::PeerStats;

    fn with_writes(present: u32, absent: u32, suspicious: u32) -> ClusterFacts {
        let name = "mcctl_master_completed_writes_total";
        let page = format!(
            "{name}{{checksum=\"present\"}} {present}\n{name}{{checksum=\"absent\"}} {absent}\n\
             mcctl_master_suspicious_put_ends_total {suspicious}\n"
        );
        ClusterFacts { after: Some(Samples::parse(&page)), ..healthy() }
    }

    fn severities(status: &CheckStatus) -> Vec<Severity> {
        match status {
            CheckStatus::Found(findings) => findings.iter().map(|finding| finding.severity).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn unchecked_writes_are_info_and_suspicious_ends_are_a_warning() {
        assert!(matches!(objects(&healthy()), CheckStatus::Skipped(_)));
        assert!(matches!(objects(&with_writes(9, 0, 0)), CheckStatus::Passed(_)));
        assert!(matches!(objects(&with_writes(0, 0, 0)), CheckStatus::Passed(_)));
        assert_eq!(severities(&objects(&with_writes(9, 1, 0))), [Severity::Info]);
        assert_eq!(severities(&objects(&with_writes(9, 0, 1))), [Severity::Warning]);
    }

    #[test]
    fn mismatches_of_a_node_are_a_warning_and_a_suspect_host_is_an_error() {
        let peer = |checksum_mismatches| PeerStats {
            segment: "10.0.0.2:12345".to_owned(),
            transport: "tcp".to_owned(),
            state: "up".to_owned(),
            read_bytes: 0,
            written_bytes: 0,
            failures: 0,
            checksum_mismatches,
        };
        let facts = |stats| ClusterFacts { transports: vec![(HostPort::new("10.0.0.1", 8080), stats)], ..healthy() };
        let stats = |mismatches, suspects: &[&str]| TransportStats {
            peers: vec![peer(mismatches)],
            suspect_peers: suspects.iter().map(|host| (*host).to_owned()).collect(),
            ..TransportStats::default()
        };
        assert!(matches!(objects(&facts(Ok(stats(0, &[])))), CheckStatus::Passed(_)));
        assert_eq!(severities(&objects(&facts(Ok(stats(3, &[]))))), [Severity::Warning]);
        let suspect = objects(&facts(Ok(stats(30, &["10.0.0.2"]))));
        assert_eq!(severities(&suspect), [Severity::Error, Severity::Warning]);
        let refused = objects(&facts(Err("Connection refused".to_owned().into())));
        assert_eq!(severities(&refused), [Severity::Warning]);
    }
}
