//! What the facts of a cluster mean. Pure: a function per check.

mod counters;
mod master;
mod nodes;
mod segments;
mod travel;

use std::time::Duration;

use crate::engine::check::Status;
use crate::engine::doctor::cluster::facts::{Facts, Listing};

pub use master::misnamed;

/// The status of the check `id`, and how long its facts took.
pub fn judge(id: &'static str, facts: &Facts) -> (Status, Duration) {
    let rpc = facts.rpc.took;
    let admins = facts.admins.iter().map(|admin| admin.took).max().unwrap_or_default();
    let listing = match &facts.segments {
        Some(Ok(Listing { took, .. })) => *took,
        _ => Duration::ZERO,
    };
    let dials = facts.nodes.iter().map(|node| node.took).max().unwrap_or_default();
    let journeys = facts.journeys.took;
    match id {
        "master-reached" => (master::reached(facts), rpc),
        "master-health" => (master::health(facts), admins),
        "leader-record" => (master::leader_record(facts), admins),
        "master-release" => (master::release(facts), admins),
        "metadata-survives" => (master::survives(facts), admins),
        "segments-mounted" => (segments::mounted(facts), listing),
        "segment-names" => (segments::names(facts), listing),
        "segment-endpoints" => (segments::endpoints(facts), listing),
        "one-protocol" => (segments::protocol(facts), listing),
        "silent-tcp" => (nodes::silent_tcp(facts), dials),
        "nodes-answer" => (nodes::answer(facts), dials),
        "metadata-records" => (nodes::records(facts), facts.metadata.took),
        "planned-names" => (nodes::planned(facts), facts.metadata.took),
        "clients-alive" => (counters::clients(facts), admins),
        "round-trip" => (travel::round_trip(facts), journeys),
        "tcp-streams" => (travel::streams(facts), journeys),
        "counters-move" => (counters::moved(facts), admins),
        "puts-arrive" => (counters::puts(facts), admins),
        "allocation" => (counters::allocation(facts), admins),
        "ssd-tier" => (counters::ssd(facts), admins),
        "lookup-latency" => (travel::latency(facts), facts.rpc.lookups.iter().sum()),
        // The catalogue's test holds that every line has an arm.
        _ => (Status::Skipped("nothing judges it".to_owned()), Duration::ZERO),
    }
}

/// Why a check that needs the list of segments has none; `None` when it is there.
fn unlisted(facts: &Facts) -> Option<Status> {
    match &facts.segments {
        Some(Ok(listing)) if listing.segments.is_empty() => Some(Status::Skipped("no segment is mounted".to_owned())),
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(Status::Skipped(format!("the master does not list its segments: {why}"))),
        None => Some(Status::Skipped(no_admin(facts))),
    }
}

/// As [`unlisted`], for what only `/get_segments_detail` tells.
fn undetailed(facts: &Facts) -> Option<Status> {
    let why = "the master is older than 0.3.12 and tells the names of segments only";
    unlisted(facts).or_else(|| match &facts.segments {
        Some(Ok(listing)) if !listing.is_detailed => Some(Status::Skipped(why.to_owned())),
        _ => None,
    })
}

fn no_admin(facts: &Facts) -> String {
    match facts.admins.is_empty() {
        true => "the master's admin HTTP is not known: name it with --admin HOST:PORT".to_owned(),
        false => "no master that serves answers on its admin HTTP".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::check::Severity;
    use crate::engine::doctor::cluster::CHECKS;
    use crate::engine::doctor::cluster::facts::made_up::healthy;

    #[test]
    fn every_check_of_the_catalogue_is_judged_and_named_by_what_it_finds() {
        let facts = healthy();
        for check in CHECKS {
            let (status, _) = judge(check.id, &facts);
            assert_ne!(status, Status::Skipped("nothing judges it".to_owned()), "{}", check.id);
            let Status::Found(findings) = status else { continue };
            assert!(findings.iter().all(|finding| finding.id == check.id), "{findings:?}");
        }
    }

    #[test]
    fn a_healthy_cluster_has_nothing_above_info() {
        let facts = healthy();
        for check in CHECKS {
            if let (Status::Found(findings), _) = judge(check.id, &facts) {
                assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{findings:?}");
            }
        }
    }

    #[test]
    fn without_an_admin_http_what_it_tells_is_skipped_and_not_passed() {
        let mut facts = healthy();
        (facts.admins, facts.segments, facts.before, facts.after) = (Vec::new(), None, None, None);
        for id in
            ["segments-mounted", "segment-endpoints", "one-protocol", "clients-alive", "allocation", "master-health"]
        {
            let (status, _) = judge(id, &facts);
            assert!(matches!(&status, Status::Skipped(why) if why.contains("--admin")), "{id}: {status:?}");
        }
    }
}
