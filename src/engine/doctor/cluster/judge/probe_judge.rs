//! Judges the results of the probe objects.

use std::time::Duration;

use crate::cluster::facts::{ClusterFacts, ObjectProbe, ProbeFailureKind, ProbeTiming};
use crate::{finding, listed, status};
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::counted;
use mcctl_base::time::RoundedDuration;
use mcctl_base::upstream::mooncake_series;

/// A node this many times slower than the median is reported.
const SLOWER: f64 = 4.0;
/// Throughput above which a node is never reported as slow, in MB/s.
const SLOW_MB_S: f64 = 500.0;
/// Approximate throughput limit of upstream's clients, in MB/s (kvcache-ai/Mooncake#3446). A faster
/// node is not limited to one slice at a time.
const PLATEAU_MB_S: f64 = 1000.0;
/// Minimum speedup of parallel over sequential reads that is reported.
const PARALLEL_GAIN: f64 = 1.5;
/// The p99 lookup latency above which TTFT is affected, and the one above which ranks wait for each
/// other.
const LOOKUP_SLOW: Duration = Duration::from_millis(20);
const LOOKUP_BAD: Duration = Duration::from_millis(200);

fn speed(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

/// Throughput in the slower of the two directions, in MB/s.
fn slower_direction(bytes: u64, moved: &ProbeTiming) -> f64 {
    speed(bytes, moved.put).min(speed(bytes, moved.get))
}

/// A probe object can be put, read back unchanged and removed.
pub(super) fn round_trip(facts: &ClusterFacts) -> CheckStatus {
    let probes = &facts.probes;
    if let Some(why) = &probes.none {
        return CheckStatus::Skipped(why.clone());
    }
    let mut findings: Vec<Finding> = Vec::new();
    for kind in [
        ProbeFailureKind::Transfer,
        ProbeFailureKind::Bytes,
        ProbeFailureKind::NoRoom,
        ProbeFailureKind::Master,
        ProbeFailureKind::Other,
        ProbeFailureKind::Release,
    ] {
        let failures: Vec<String> = probes.made.iter().filter_map(|probe_object| seen(probe_object, kind)).collect();
        if !failures.is_empty() {
            let (severity, what, remedy) = message(kind);
            findings.push(finding("round-trip", severity, what, listed(&failures), remedy));
        }
    }
    let arrived: Vec<(&ObjectProbe, &ProbeTiming)> = probes
        .made
        .iter()
        .filter_map(|probe_object| probe_object.end.as_ref().ok().map(|moved| (probe_object, moved)))
        .collect();
    let elsewhere: Vec<String> = arrived
        .iter()
        .filter(|(probe_object, moved)| {
            !probe_object.endpoint.is_empty() && !moved.stored_at.is_empty() && moved.stored_at != probe_object.endpoint
        })
        .map(|(probe_object, moved)| format!("{}: stored on {}", probe_object.segment, moved.stored_at))
        .collect();
    if !elsewhere.is_empty() {
        findings.push(finding(
            "round-trip",
            Severity::Info,
            "the master stored objects on nodes other than the preferred ones: the preferred segments are full or do not accept new objects",
            listed(&elsewhere),
            "check their usage with mcctl status",
        ));
    }
    if let Some(slow) = straggler(probes.bytes, &arrived) {
        findings.push(slow);
    }
    if !probes.left.is_empty() {
        findings.push(finding(
            "round-trip",
            Severity::Warning,
            "objects created by this check could not be removed",
            listed(&probes.left),
            "mcctl store rm --regex '^mcctl-doctor-' --force; an unfinished put is discarded after put_start_discard_timeout_sec (30 s)",
        ));
    }
    if findings.is_empty() && !probes.skipped.is_empty() && arrived.is_empty() {
        return CheckStatus::Skipped(skipped(facts));
    }
    status(findings, || {
        let speeds: Vec<f64> = arrived.iter().map(|(_, moved)| slower_direction(probes.bytes, moved)).collect();
        let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = speeds.iter().copied().fold(0.0, f64::max);
        let rest = if probes.skipped.is_empty() { String::new() } else { format!("; not probed: {}", skipped(facts)) };
        format!("{} over tcp, {least:.0} to {most:.0} MB/s{rest}", counted(arrived.len(), "node"))
    })
}

fn skipped(facts: &ClusterFacts) -> String {
    listed(&facts.probes.skipped.iter().map(|(name, why)| format!("{name} ({why})")).collect::<Vec<_>>())
}

fn seen(probe_object: &ObjectProbe, kind: ProbeFailureKind) -> Option<String> {
    let failure = probe_object.end.as_ref().err().filter(|failure| failure.kind == kind)?;
    let at = if probe_object.segment.is_empty() { "any node" } else { &probe_object.segment };
    Some(format!("{at}: {} after {}: {}", failure.step, RoundedDuration(failure.after), failure.message))
}

fn message(kind: ProbeFailureKind) -> (Severity, &'static str, &'static str) {
    match kind {
        ProbeFailureKind::Transfer => (
            Severity::Error,
            "transfers to or from nodes fail: puts and gets on these nodes fail with -800",
            "check nodes-answer and segment-endpoints; if both pass, the data port (from 15000-17000) is blocked, or clients and \
             nodes use different --metadata-server values",
        ),
        ProbeFailureKind::Bytes => (
            Severity::Error,
            "the data read back differs from the data written",
            "stop using this store; check whether two processes share a name (segment-names), and report the problem",
        ),
        ProbeFailureKind::NoRoom => (
            Severity::Error,
            "no segment has space for an object of this size (-200)",
            "check usage and sizes with mcctl status; leased objects are not evicted for 10 s",
        ),
        ProbeFailureKind::Master => {
            (Severity::Error, "the master stopped responding", "check master-reached and the master's log")
        }
        ProbeFailureKind::Release => (
            Severity::Error,
            concat!("the master rejects a ", mooncake_series!(), " put"),
            "install the same Mooncake release everywhere: see master-release",
        ),
        ProbeFailureKind::Other => (Severity::Error, "a probe object failed", "see the error in the evidence"),
    }
}

fn straggler(bytes: u64, arrived: &[(&ObjectProbe, &ProbeTiming)]) -> Option<Finding> {
    if arrived.len() < 3 {
        return None;
    }
    let mut speeds: Vec<(f64, &str)> =
        arrived.iter().map(|(probe_object, moved)| (slower_direction(bytes, moved), &*probe_object.segment)).collect();
    speeds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = speeds[speeds.len() / 2].0;
    let (least, name) = speeds[0];
    (least * SLOWER < median && least < SLOW_MB_S).then(|| {
        finding(
            "round-trip",
            Severity::Info,
            "one node is much slower than the others",
            format!("{name}: {least:.0} MB/s; median: {median:.0} MB/s"),
            "run the check again; if the result persists, check that host's load, its network interface and the route to it",
        )
    })
}

/// Parallel reads are not much faster than sequential ones.
pub(super) fn streams(facts: &ClusterFacts) -> CheckStatus {
    let Some(parallel_read) = &facts.probes.parallel_read else {
        let why = match facts.probes.made.iter().any(|probe_object| probe_object.end.is_ok()) {
            true => "the objects for parallel reads do not fit below the eviction watermark, or failed",
            false => "no probe object succeeded",
        };
        return CheckStatus::Skipped(facts.probes.none.clone().unwrap_or_else(|| why.to_owned()));
    };
    let bytes = parallel_read.bytes * u64::from(parallel_read.objects);
    let single = speed(bytes, parallel_read.single);
    let together = speed(bytes, parallel_read.together);
    if single >= PLATEAU_MB_S || together < single * PARALLEL_GAIN {
        return CheckStatus::Passed(format!("{single:.0} MB/s sequential, {together:.0} MB/s parallel"));
    }
    CheckStatus::Found(vec![finding(
        "tcp-streams",
        Severity::Info,
        "a single transfer does not use the available bandwidth, whichever client is used: TCP keeps one slice in flight per transfer",
        format!(
            "{} of {} kB: {single:.0} MB/s sequential, {together:.0} MB/s parallel",
            counted(parallel_read.objects as usize, "object"),
            parallel_read.bytes / 1000
        ),
        "batch more keys per call, or use RDMA; measure with mcctl bench transfer, using more threads and larger blocks",
    )])
}

/// Lookups on the master are not unusually slow.
pub(super) fn latency(facts: &ClusterFacts) -> CheckStatus {
    let mut times = facts.rpc.lookups.clone();
    if times.is_empty() {
        return CheckStatus::Skipped("the master is not responding".to_owned());
    }
    times.sort();
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
        let index = ((times.len() - 1) as f64 * share) as usize;
        times[index]
    };
    let median = at(0.5);
    let worst = at(0.99);
    let evidence =
        format!("{} lookups: median {}, p99 {}", times.len(), RoundedDuration(median), RoundedDuration(worst));
    if worst < LOOKUP_SLOW {
        return CheckStatus::Passed(evidence);
    }
    let severity = if worst >= LOOKUP_BAD { Severity::Warning } else { Severity::Info };
    CheckStatus::Found(vec![finding(
        "lookup-latency",
        severity,
        "the master responds slowly to lookups: with TP, all ranks wait for the slowest one before every prefill",
        evidence,
        "run the master close to its clients, with enough CPUs and at least 4 RPC threads (--rpc_thread_num), and set MC_RPC_TIMEOUT_MS on the \
         clients so that one stuck call does not block a rank for 4 s",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::facts::test_facts::healthy;
    use crate::cluster::facts::{ObjectProbeFailure, ParallelRead};

    #[track_caller]
    fn assert_found(status: &CheckStatus, severity: Severity, part: &str) {
        let CheckStatus::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity == severity && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn every_probe_failure_has_its_own_finding() {
        assert!(matches!(round_trip(&healthy()), CheckStatus::Passed(text) if text.contains("2 nodes over tcp")));
        for (kind, part) in [
            (ProbeFailureKind::Transfer, "transfers to or from nodes fail"),
            (ProbeFailureKind::Bytes, "data read back differs"),
            (ProbeFailureKind::NoRoom, "no segment has space"),
            (ProbeFailureKind::Master, "stopped responding"),
            (ProbeFailureKind::Release, concat!("rejects a ", mooncake_series!(), " put")),
            (ProbeFailureKind::Other, "a probe object failed"),
        ] {
            let mut facts = healthy();
            let failure =
                ObjectProbeFailure { step: "put", kind, message: "why".to_owned(), after: Duration::from_millis(700) };
            facts.probes.made[1].end = Err(failure);
            assert_found(&round_trip(&facts), Severity::Error, part);
        }
        let mut left = healthy();
        left.probes.left = vec!["'mcctl-doctor-1'".to_owned()];
        assert_found(&round_trip(&left), Severity::Warning, "could not be removed");
        let mut full = healthy();
        full.probes.made[0].end.as_mut().expect("arrived").stored_at = "10.0.0.2:15001".to_owned();
        assert_found(&round_trip(&full), Severity::Info, "nodes other than the preferred");
    }

    #[test]
    fn one_slow_node_among_several_is_found() {
        let mut facts = healthy();
        facts.probes.made.push(facts.probes.made[0].clone());
        assert!(matches!(round_trip(&facts), CheckStatus::Passed(_)));
        facts.probes.made[1].end.as_mut().expect("arrived").get = Duration::from_millis(400);
        assert_found(&round_trip(&facts), Severity::Info, "much slower");
    }

    #[test]
    fn faster_parallel_reads_are_reported() {
        let mut facts = healthy();
        let parallel_read = |together| {
            let single = Duration::from_millis(12);
            Some(ParallelRead { objects: 4, bytes: 1 << 20, single, together: Duration::from_millis(together) })
        };
        facts.probes.parallel_read = parallel_read(4);
        assert_found(&streams(&facts), Severity::Info, "one slice in flight");
        facts.probes.parallel_read = parallel_read(11);
        assert!(matches!(streams(&facts), CheckStatus::Passed(_)));
        let fast = ParallelRead { bytes: 16 << 20, ..parallel_read(4).expect("some") };
        facts.probes.parallel_read = Some(fast);
        assert!(matches!(streams(&facts), CheckStatus::Passed(_)), "a single transfer is above upstream's limit");
    }

    #[test]
    fn slow_lookups_are_info_and_very_slow_ones_a_warning() {
        let mut facts = healthy();
        assert!(matches!(latency(&facts), CheckStatus::Passed(_)));
        facts.rpc.lookups = vec![Duration::from_millis(30); 100];
        assert_found(&latency(&facts), Severity::Info, "slowly");
        facts.rpc.lookups = vec![Duration::from_millis(400); 100];
        assert_found(&latency(&facts), Severity::Warning, "slowly");
    }
}
