//! Judges the facts of a cluster: one pure function per check.

mod counters;
mod integrity;
mod master;
mod nodes;
mod probe_judge;
mod segments;
mod standby;

use std::time::Duration;

use crate::cluster::facts::{ClusterFacts, SegmentListing};
use mcctl_base::check::CheckStatus;

pub(super) use master::misnamed;

/// The status of the check `id`, and how long gathering its facts took.
pub(super) fn judge(id: &'static str, facts: &ClusterFacts) -> (CheckStatus, Duration) {
    let rpc = facts.rpc.took;
    let admins = facts.admins.iter().map(|admin| admin.took).max().unwrap_or_default();
    let listing = match &facts.segments {
        Some(Ok(SegmentListing { took, .. })) => *took,
        _ => Duration::ZERO,
    };
    let dials = facts.nodes.iter().map(|node| node.took).max().unwrap_or_default();
    let probes = facts.probes.took;
    match id {
        "master-reached" => (master::reached(facts), rpc),
        "master-health" => (master::health(facts), admins),
        "leader-record" => (master::leader_record(facts), admins),
        "standby-ready" => (standby::ready(facts), admins),
        "master-release" => (master::release(facts), admins),
        "known-requests" => (counters::known_requests(facts), admins),
        "metadata-survives" => (master::survives(facts), admins),
        "segments-mounted" => (segments::mounted(facts), listing),
        "segment-names" => (segments::names(facts), listing),
        "segment-endpoints" => (segments::endpoints(facts), listing),
        "copy-hosts" => (segments::hosts(facts), listing),
        "one-protocol" => (segments::protocol(facts), listing),
        "silent-tcp" => (nodes::silent_tcp(facts), dials),
        "nodes-answer" => (nodes::answer(facts), dials),
        "metadata-records" => (nodes::records(facts), facts.metadata.took),
        "planned-names" => (nodes::planned(facts), facts.metadata.took),
        "clients-alive" => (counters::clients(facts), admins),
        "round-trip" => (probe_judge::round_trip(facts), probes),
        "tcp-streams" => (probe_judge::streams(facts), probes),
        "counters-move" => (counters::moved(facts), admins),
        "puts-arrive" => (counters::puts(facts), admins),
        "allocation" => (counters::allocation(facts), admins),
        "object-integrity" => (integrity::objects(facts), admins),
        "ssd-tier" => (counters::ssd(facts), admins),
        "lookup-latency" => (probe_judge::latency(facts), facts.rpc.lookups.iter().sum()),
        // A test asserts that every check in this group has a match arm.
        _ => (CheckStatus::Skipped("not implemented".to_owned()), Duration::ZERO),
    }
}

/// Why the segment list is unavailable; `None` if it is available.
fn unlisted(facts: &ClusterFacts) -> Option<CheckStatus> {
    match &facts.segments {
        Some(Ok(listing)) if listing.segments.is_empty() => {
            Some(CheckStatus::Skipped("no segment is mounted".to_owned()))
        }
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(CheckStatus::Skipped(format!("the master's segment list is unavailable: {why}"))),
        None => Some(CheckStatus::Skipped(no_admin(facts))),
    }
}

/// Like [`unlisted`], but for checks that need `/get_segments_detail`.
fn undetailed(facts: &ClusterFacts) -> Option<CheckStatus> {
    let why = "the master is older than 0.3.12 and lists only segment names";
    unlisted(facts).or_else(|| match &facts.segments {
        Some(Ok(listing)) if !listing.is_detailed => Some(CheckStatus::Skipped(why.to_owned())),
        _ => None,
    })
}

fn no_admin(facts: &ClusterFacts) -> String {
    match facts.admins.is_empty() {
        true if facts.leader.is_some() => {
            "the masters' admin HTTP addresses are unknown: pass --admins HOST:PORT,HOST:PORT".to_owned()
        }
        true => "the master's admin HTTP address is unknown: pass --admin HOST:PORT".to_owned(),
        false => "no serving master responds on its admin HTTP port".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::CHECKS;
    use crate::cluster::facts::test_facts::healthy;
    use mcctl_base::check::Severity;

    #[test]
    fn every_check_is_judged_and_findings_carry_its_id() {
        let facts = healthy();
        for check in CHECKS {
            let (status, _) = judge(check.id, &facts);
            assert_ne!(status, CheckStatus::Skipped("not implemented".to_owned()), "{}", check.id);
            let CheckStatus::Found(findings) = status else { continue };
            assert!(findings.iter().all(|finding| finding.id == check.id), "{findings:?}");
        }
    }

    #[test]
    fn a_healthy_cluster_has_nothing_above_info() {
        let facts = healthy();
        for check in CHECKS {
            if let (CheckStatus::Found(findings), _) = judge(check.id, &facts) {
                assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{findings:?}");
            }
        }
    }

    #[test]
    fn checks_that_need_the_admin_http_are_skipped_without_it() {
        let mut facts = healthy();
        facts.admins = Vec::new();
        facts.segments = None;
        facts.before = None;
        facts.after = None;
        for id in
            ["segments-mounted", "segment-endpoints", "one-protocol", "clients-alive", "allocation", "master-health"]
        {
            let (status, _) = judge(id, &facts);
            assert!(matches!(&status, CheckStatus::Skipped(why) if why.contains("--admin")), "{id}: {status:?}");
        }
    }
}
