//! What the objects that went through the nodes showed.

use std::time::Duration;

use crate::engine::check::{Finding, Severity, Status};
use crate::engine::doctor::cluster::facts::{Facts, FallKind, Journey, Moved};
use crate::engine::doctor::{finding, listed, plural, shown, status};

/// A node that is so many times slower than the median one stands out.
const SLOWER: f64 = 4.0;
/// Below this speed of the slowest node, slower ones are worth a word, MB/s.
const SLOW_MB_S: f64 = 500.0;
/// Upstream's clients stop at about this (kvcache-ai/Mooncake#3446); who is above it is not held up by one slice at a time.
const PLATEAU_MB_S: f64 = 1000.0;
/// So much faster several objects have to be than one, before the difference is worth a word.
const LANES_GAIN: f64 = 1.5;
/// A lookup's 99th percentile from which on time to first token is felt, and from which on ranks wait for each other.
const LOOKUP_SLOW: Duration = Duration::from_millis(20);
const LOOKUP_BAD: Duration = Duration::from_millis(200);

fn speed(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

/// The one way of both that is slower, MB/s.
fn slower_way(bytes: u64, moved: &Moved) -> f64 {
    speed(bytes, moved.put).min(speed(bytes, moved.get))
}

/// A probe object can be put, read back unchanged and removed.
pub fn round_trip(facts: &Facts) -> Status {
    let journeys = &facts.journeys;
    if let Some(why) = &journeys.none {
        return Status::Skipped(why.clone());
    }
    let mut findings: Vec<Finding> = Vec::new();
    for kind in
        [FallKind::Transfer, FallKind::Bytes, FallKind::NoRoom, FallKind::Master, FallKind::Other, FallKind::Release]
    {
        let fallen: Vec<String> = journeys.made.iter().filter_map(|journey| seen(journey, kind)).collect();
        if !fallen.is_empty() {
            let (severity, what, remedy) = words(kind);
            findings.push(finding("round-trip", severity, what, listed(&fallen), remedy));
        }
    }
    let arrived: Vec<(&Journey, &Moved)> =
        journeys.made.iter().filter_map(|journey| journey.end.as_ref().ok().map(|moved| (journey, moved))).collect();
    let elsewhere: Vec<String> = arrived
        .iter()
        .filter(|(journey, moved)| {
            !journey.endpoint.is_empty() && !moved.landed.is_empty() && moved.landed != journey.endpoint
        })
        .map(|(journey, moved)| format!("{}: it went to {}", journey.segment, moved.landed))
        .collect();
    if !elsewhere.is_empty() {
        findings.push(finding(
            "round-trip",
            Severity::Info,
            "the master put objects on other nodes than the preferred ones, whose segments are full or do not take any",
            listed(&elsewhere),
            "see mcctl status for how full they are",
        ));
    }
    if let Some(slow) = straggler(journeys.bytes, &arrived) {
        findings.push(slow);
    }
    if !journeys.left.is_empty() {
        findings.push(finding(
            "round-trip",
            Severity::Warning,
            "objects of this check could not be taken back",
            listed(&journeys.left),
            "mcctl store rm --regex '^mcctl-doctor-' --force; an unfinished put is forgotten after put_start_discard_timeout_sec (30 s)",
        ));
    }
    if findings.is_empty() && !journeys.skipped.is_empty() && arrived.is_empty() {
        return Status::Skipped(skipped(facts));
    }
    status(findings, || {
        let speeds: Vec<f64> = arrived.iter().map(|(_, moved)| slower_way(journeys.bytes, moved)).collect();
        let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = speeds.iter().copied().fold(0.0, f64::max);
        let rest = if journeys.skipped.is_empty() { String::new() } else { format!("; not tried: {}", skipped(facts)) };
        format!("{} over tcp, {least:.0} to {most:.0} MB/s{rest}", plural(arrived.len(), "node"))
    })
}

fn skipped(facts: &Facts) -> String {
    listed(&facts.journeys.skipped.iter().map(|(name, why)| format!("{name} ({why})")).collect::<Vec<_>>())
}

fn seen(journey: &Journey, kind: FallKind) -> Option<String> {
    let fall = journey.end.as_ref().err().filter(|fall| fall.kind == kind)?;
    let at = if journey.segment.is_empty() { "any node" } else { &journey.segment };
    Some(format!("{at}: {} after {}: {}", fall.step, shown(fall.after), fall.words))
}

fn words(kind: FallKind) -> (Severity, &'static str, &'static str) {
    match kind {
        FallKind::Transfer => (
            Severity::Error,
            "nodes do not move the bytes: puts and gets there fail with -800",
            "see nodes-answer and segment-endpoints; if both pass, the data port is closed (it is drawn from 15000-17000), or clients and \
             nodes use different --metadata-server",
        ),
        FallKind::Bytes => (
            Severity::Error,
            "other bytes came back than were put",
            "stop using this store; see whether two processes have one name (segment-names), and report it",
        ),
        FallKind::NoRoom => (
            Severity::Error,
            "no segment has room for an object of this size (-200)",
            "see mcctl status: how full they are, how large; what is under a lease is not evicted for 10 s",
        ),
        FallKind::Master => {
            (Severity::Error, "the master stopped answering", "see master-reached, and the master's log")
        }
        FallKind::Release => (
            Severity::Error,
            "the master does not take a put of 0.3.13",
            "install one Mooncake release everywhere: see master-release",
        ),
        FallKind::Other => (Severity::Error, "an object did not come back", "see the words of the error"),
    }
}

fn straggler(bytes: u64, arrived: &[(&Journey, &Moved)]) -> Option<Finding> {
    if arrived.len() < 3 {
        return None;
    }
    let mut speeds: Vec<(f64, &str)> =
        arrived.iter().map(|(journey, moved)| (slower_way(bytes, moved), &*journey.segment)).collect();
    speeds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = speeds[speeds.len() / 2].0;
    let (least, name) = speeds[0];
    (least * SLOWER < median && least < SLOW_MB_S).then(|| {
        finding(
            "round-trip",
            Severity::Info,
            "one node is much slower than the others",
            format!("{name} {least:.0} MB/s, the median {median:.0} MB/s"),
            "run it again; if it stays, see that host's load, its interface and whether it is reached over the right network",
        )
    })
}

/// Puts from several streams at once succeed.
pub fn streams(facts: &Facts) -> Status {
    let Some(lanes) = &facts.journeys.lanes else {
        let why = match facts.journeys.made.iter().any(|journey| journey.end.is_ok()) {
            true => "several objects at once have no room below the watermark of eviction, or did not come back",
            false => "no object came back",
        };
        return Status::Skipped(facts.journeys.none.clone().unwrap_or_else(|| why.to_owned()));
    };
    let bytes = lanes.bytes * u64::from(lanes.objects);
    let (single, together) = (speed(bytes, lanes.single), speed(bytes, lanes.together));
    if single >= PLATEAU_MB_S || together < single * LANES_GAIN {
        return Status::Passed(format!("{single:.0} MB/s one by one, {together:.0} MB/s at once"));
    }
    Status::Found(vec![finding(
        "tcp-streams",
        Severity::Info,
        "one transfer at a time does not use what the way to the node gives, with any client: TCP has one slice in flight per transfer",
        format!(
            "{} of {} kB: {single:.0} MB/s one by one, {together:.0} MB/s at once",
            plural(lanes.objects as usize, "object"),
            lanes.bytes / 1000
        ),
        "batch more keys per call, or use RDMA; mcctl bench transfer measures it properly, with more threads and larger blocks",
    )])
}

/// The round trip of a probe object is not unusually slow.
pub fn latency(facts: &Facts) -> Status {
    let mut times = facts.rpc.lookups.clone();
    if times.is_empty() {
        return Status::Skipped("the master does not answer".to_owned());
    }
    times.sort();
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
        let index = ((times.len() - 1) as f64 * share) as usize;
        times[index]
    };
    let (median, worst) = (at(0.5), at(0.99));
    let evidence = format!("{} lookups: median {}, p99 {}", times.len(), shown(median), shown(worst));
    if worst < LOOKUP_SLOW {
        return Status::Passed(evidence);
    }
    let severity = if worst >= LOOKUP_BAD { Severity::Warning } else { Severity::Info };
    Status::Found(vec![finding(
        "lookup-latency",
        severity,
        "the master answers lookups slowly: with TP all ranks wait for the slowest, before every prefill",
        evidence,
        "give the master processors and at least 4 RPC threads (--rpc_thread_num), keep it near, and set MC_RPC_TIMEOUT_MS for the \
         clients so that one stuck call does not hold a rank for 4 s",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::cluster::facts::made_up::healthy;
    use crate::engine::doctor::cluster::facts::{Fall, Lanes};

    #[track_caller]
    fn says(status: &Status, severity: Severity, part: &str) {
        let Status::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity == severity && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn every_way_to_fail_has_its_own_words() {
        assert!(matches!(round_trip(&healthy()), Status::Passed(text) if text.contains("2 nodes over tcp")));
        for (kind, part) in [
            (FallKind::Transfer, "do not move the bytes"),
            (FallKind::Bytes, "other bytes came back"),
            (FallKind::NoRoom, "no segment has room"),
            (FallKind::Master, "stopped answering"),
            (FallKind::Release, "does not take a put"),
            (FallKind::Other, "did not come back"),
        ] {
            let mut facts = healthy();
            let fall = Fall { step: "put", kind, words: "why".to_owned(), after: Duration::from_millis(700) };
            facts.journeys.made[1].end = Err(fall);
            says(&round_trip(&facts), Severity::Error, part);
        }
        let mut left = healthy();
        left.journeys.left = vec!["'mcctl-doctor-1'".to_owned()];
        says(&round_trip(&left), Severity::Warning, "could not be taken back");
        let mut full = healthy();
        full.journeys.made[0].end.as_mut().expect("arrived").landed = "10.0.0.2:15001".to_owned();
        says(&round_trip(&full), Severity::Info, "other nodes than the preferred");
    }

    #[test]
    fn one_slow_node_among_several_stands_out_and_an_even_field_does_not() {
        let mut facts = healthy();
        facts.journeys.made.push(facts.journeys.made[0].clone());
        assert!(matches!(round_trip(&facts), Status::Passed(_)));
        facts.journeys.made[1].end.as_mut().expect("arrived").get = Duration::from_millis(400);
        says(&round_trip(&facts), Severity::Info, "much slower");
    }

    #[test]
    fn several_objects_at_once_that_are_faster_than_one_are_worth_a_word() {
        let mut facts = healthy();
        let lanes = |together| {
            let single = Duration::from_millis(12);
            Some(Lanes { objects: 4, bytes: 1 << 20, single, together: Duration::from_millis(together) })
        };
        facts.journeys.lanes = lanes(4);
        says(&streams(&facts), Severity::Info, "one transfer at a time");
        facts.journeys.lanes = lanes(11);
        assert!(matches!(streams(&facts), Status::Passed(_)));
        let fast = Lanes { bytes: 16 << 20, ..lanes(4).expect("some") };
        facts.journeys.lanes = Some(fast);
        assert!(matches!(streams(&facts), Status::Passed(_)), "one alone has more than upstream's plateau");
    }

    #[test]
    fn slow_lookups_are_a_word_and_very_slow_ones_a_warning() {
        let mut facts = healthy();
        assert!(matches!(latency(&facts), Status::Passed(_)));
        facts.rpc.lookups = vec![Duration::from_millis(30); 100];
        says(&latency(&facts), Severity::Info, "slowly");
        facts.rpc.lookups = vec![Duration::from_millis(400); 100];
        says(&latency(&facts), Severity::Warning, "slowly");
    }
}
