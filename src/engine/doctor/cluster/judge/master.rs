//! Judges the master: whether it is reachable, leads, runs a compatible release, and keeps its
//! metadata.

use crate::cluster::etcd;
use crate::cluster::facts::{AdminFacts, ClusterFacts, ProbeFailureKind, RpcState};
use crate::cluster::judge::no_admin;
use crate::{Fact, finding, listed, status};
use mcctl_base::HostPort;
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::counted;
use mcctl_base::time::RoundedDuration;
use mcctl_base::upstream::PROTOCOL_VERSION;
use mcctl_wire::{Release, Releases};

/// Minimum number of keys whose loss is reported.
const KEYS_WORTH: f64 = 1.0;

/// What clients do without a master.
const HANG: &str = "clients retry for 90 s at startup and ignore SIGTERM meanwhile, so they crash-loop";
/// What to do if etcd cannot be read.
const ETCD_REMEDY: &str = "start etcd, or correct its address, etcd://HOST:PORT;HOST:PORT; for TLS or users, write https:// and set the ETCDCTL_ variables";

fn unreached(what: String, evidence: String, remedy: String) -> CheckStatus {
    CheckStatus::Found(vec![finding("master-reached", Severity::Error, what, evidence, remedy)])
}

/// The status without the address of a master in etcd, because of `why`.
fn without_leader(record: Option<&Fact<Option<String>>>, why: &str) -> CheckStatus {
    let (what, remedy) = match record {
        Some(Err(_)) => ("the leader's address cannot be read from etcd", ETCD_REMEDY),
        Some(Ok(Some(value))) if etcd::is_warming(value) => {
            ("the leader is not ready yet", "run doctor again: a new leader warms up for up to 5 s")
        }
        Some(Ok(Some(_))) => {
            ("the leader's record in etcd is not an address", "identify the program that writes that key")
        }
        Some(Ok(None)) | None => (
            "no master is registered in etcd",
            "start the masters with --enable-ha, this etcd and this cluster ID, and set the same MC_STORE_CLUSTER_ID on clients",
        ),
    };
    unreached(format!("{what}: {HANG}"), why.to_owned(), remedy.to_owned())
}

/// The master's RPC port accepts connections and responds.
pub(super) fn reached(facts: &ClusterFacts) -> CheckStatus {
    let at = &facts.master;
    let hang = HANG;
    let error = unreached;
    match &facts.rpc.state {
        RpcState::Ready(_) => CheckStatus::Passed(format!("{at} responds in {}", RoundedDuration(facts.rpc.took))),
        RpcState::Unknown(why) => without_leader(facts.leader.as_ref().map(|leader| &leader.found), why),
        RpcState::Unresolved(why) if facts.leader.is_some() => error(
            format!("the leader's host name {} does not resolve: {hang}", at.host),
            format!("resolving {}: {why}", at.host),
            "wait until the name resolves (DNS, hosts file), or set --rpc_address of the masters to IP addresses"
                .to_owned(),
        ),
        RpcState::Unresolved(why) => error(
            format!("the master's host name {} does not resolve: {hang}", at.host),
            format!("resolving {}: {why}", at.host),
            "wait until the name resolves (DNS, service, hosts file), or set MOONCAKE_MASTER to an IP address"
                .to_owned(),
        ),
        RpcState::Unconnected(why) => error(
            format!("no process is listening on {at}: {hang}"),
            format!("connecting to {at}: {why}"),
            "start the master first, or correct MOONCAKE_MASTER (a standby does not listen)".to_owned(),
        ),
        RpcState::Silent(why) => error(
            format!(
                "{at} accepts connections but does not respond: the process is stalled, or another program is listening there"
            ),
            format!("ServiceReady: {why}"),
            "check the master's CPU and process state (a stopped process shows T in ps), and restart it".to_owned(),
        ),
        RpcState::Closed(why) => error(
            format!("the master at {at} does not serve: it is a standby, or not ready"),
            format!("ServiceReady: {why}"),
            "specify etcd://HOST:PORT, or the address of the leader (mcctl status --admin HOST:9003 shows it)"
                .to_owned(),
        ),
        RpcState::Foreign(why) => error(
            format!("{at} does not use the master's RPC protocol"),
            format!("ServiceReady: {why}"),
            "use the master's RPC port (default 50051), not its admin or metadata port".to_owned(),
        ),
        RpcState::NotReady(why) => error(
            format!("the master at {at} is not ready to serve"),
            format!("ServiceReady: {why}"),
            "wait until /health reports service_ready: a new leader warms up for 5 s".to_owned(),
        ),
    }
}

/// Reports an invalid master address: `origin` is the setting with its value, and `why` is the
/// error.
pub(crate) fn misnamed(origin: &str, why: &str) -> CheckStatus {
    let (text, form) = match origin.contains("etcd://") {
        true if origin.ends_with('/') && !origin.ends_with("//") => {
            (origin, "remove the trailing slash: etcd://HOST:PORT;HOST:PORT")
        }
        true => (origin, "use etcd://HOST:PORT;HOST:PORT with the etcd servers"),
        false => (origin, "use the master's RPC address HOST:PORT, such as 10.0.0.1:50051 or [fd00::1]:50051"),
    };
    CheckStatus::Found(vec![finding(
        "master-reached",
        Severity::Error,
        "the master address is invalid: clients started with it cannot connect",
        format!("{text}: {why}"),
        form,
    )])
}

/// The admin port reports that the master is healthy.
pub(super) fn health(facts: &ClusterFacts) -> CheckStatus {
    if facts.admins.is_empty() {
        return CheckStatus::Skipped(no_admin(facts));
    }
    let mut findings: Vec<Finding> = Vec::new();
    let mut add = |severity, what: String, evidence: String, remedy: &str| {
        findings.push(finding("master-health", severity, what, evidence, remedy));
    };
    for admin in &facts.admins {
        if let Err(why) = &admin.health {
            add(
                Severity::Error,
                format!("the master's admin HTTP endpoint at {} is not responding", admin.at),
                format!("GET http://{}/health: {why}", admin.at),
                "start that master, or pass its admin address (metrics_port, default 9003) with --admin HOST:PORT",
            );
        }
    }
    let healthy: Vec<_> = facts.admins.iter().filter_map(|a| a.health.as_ref().ok().map(|h| (&a.at, h))).collect();
    let ready: Vec<&HostPort> = healthy.iter().filter(|(_, h)| h.service_ready).map(|(at, _)| *at).collect();
    let states: Vec<String> =
        healthy.iter().map(|(at, h)| format!("{at} {} {}", h.role, h.ha_state).trim().to_owned()).collect();
    match ready.len() {
        1 => {}
        0 if healthy.is_empty() => {}
        0 => add(
            Severity::Error,
            "no master is serving: all lookups and puts fail".to_owned(),
            format!("service_ready is false on all masters: {}", listed(&states)),
            "wait for a leader (up to 10 s with mooncake_master); if none appears, check etcd and that all masters have the same --cluster-id",
        ),
        _ => add(
            Severity::Error,
            "more than one master is serving: clients of different masters cannot read each other's objects".to_owned(),
            format!("service_ready is true at {}", listed(&ready)),
            match facts.admins.iter().any(|admin| admin.is_mcctl == Some(true)) {
                true => {
                    "specify the masters of only one store, or start them with --enable-ha, the same --cluster-id and the same etcd"
                }
                false => {
                    "use the same --cluster_id and etcd for all masters (--enable_ha=true), or specify only the masters of one cluster"
                }
            },
        ),
    }
    let mut leaders: Vec<String> = healthy.iter().filter_map(|(_, h)| h.leader_address.clone()).collect();
    leaders.sort();
    leaders.dedup();
    if leaders.len() > 1 {
        add(
            Severity::Error,
            "the masters report different leaders: they belong to different clusters, or cannot reach etcd".to_owned(),
            format!("leader_address: {}", listed(&leaders)),
            "compare --cluster_id and --ha_backend_connstring of all masters, and check that each can reach etcd",
        );
    }
    if let ([leader], RpcState::Ready(_)) = (&leaders[..], &facts.rpc.state)
        && let Ok(leader) = leader.parse::<HostPort>()
        && leader.port != facts.master.port
    {
        add(
            Severity::Warning,
            "the configured master is not the leader".to_owned(),
            format!("leader_address is {leader}, the configured master is {}", facts.master),
            "set the clients' master address to etcd://HOST:PORT, so that they follow the leader",
        );
    }
    status(findings, || match healthy.len() {
        1 => format!("{} is serving", listed(&ready)),
        n => format!("{} of {} is serving; the others are standbys", listed(&ready), counted(n, "master")),
    })
}

/// The leader record of the election names this master.
pub(super) fn leader_record(facts: &ClusterFacts) -> CheckStatus {
    let Some(leader) = &facts.leader else {
        return CheckStatus::Skipped("the master is specified by address, not as etcd://".to_owned());
    };
    let others = leader.others.clone();
    let found = match &leader.found {
        Err(why) => finding(
            "leader-record",
            Severity::Error,
            "etcd cannot be read: with this address, clients cannot find a master",
            why,
            ETCD_REMEDY,
        ),
        Ok(None) if !others.is_empty() => finding(
            "leader-record",
            Severity::Error,
            "etcd has a leader only for another cluster id: clients report 'No master is available in HA backend'",
            format!("found {}, but not {}", listed(&others), leader.key),
            "set the same id on masters (--cluster_id) and clients (MC_STORE_CLUSTER_ID)",
        ),
        Ok(None) => finding(
            "leader-record",
            Severity::Error,
            "etcd has no leader: no master has won the election",
            format!("{} does not exist", leader.key),
            "start the masters with --enable-ha and this etcd; after a crash, the lease of mooncake_master lasts 5 s, that of mcctl's master 2 s",
        ),
        Ok(Some(value)) if etcd::is_warming(value) => finding(
            "leader-record",
            Severity::Warning,
            "the leader is not ready yet",
            format!("{} = {value}", leader.key),
            "run doctor again: a new leader warms up for up to 5 s",
        ),
        Ok(Some(at)) => match at.parse::<HostPort>() {
            Ok(HostPort { host, .. }) if host == "0.0.0.0" || host == "::" => finding(
                "leader-record",
                Severity::Error,
                "the leader published an unspecified address, which clients cannot connect to",
                format!("{} = {at}", leader.key),
                "start each master with --rpc_address=ADDRESS of its host: with HA, that address is published",
            ),
            Ok(_) => return CheckStatus::Passed(format!("{} = {at}", leader.key)),
            Err(error) => finding(
                "leader-record",
                Severity::Error,
                "the leader's record in etcd is not an address",
                format!("{} = {at}: {error}", leader.key),
                "identify the program that writes that key",
            ),
        },
    };
    CheckStatus::Found(vec![found])
}

/// The master's release is known, and it accepts a put.
pub(super) fn release(facts: &ClusterFacts) -> CheckStatus {
    let RpcState::Ready(version) = &facts.rpc.state else {
        return CheckStatus::Skipped("the master is not responding".to_owned());
    };
    let (first, last) = (Release::FIRST, Release::LATEST);
    let error = |what: &str, evidence: String| {
        let remedy = format!(
            "install a release from {first} to {last} in every image (mooncake_master, SGLang, store nodes), or a newer mcctl"
        );
        CheckStatus::Found(vec![finding("master-release", Severity::Error, what.to_owned(), evidence, remedy)])
    };
    let has_version = facts.rpc.release.is_none_or(|release| release >= Release::V0_3_8);
    if has_version && version != PROTOCOL_VERSION {
        return error(
            "the master's release uses a protocol that mcctl does not know",
            format!("ServiceReady returned '{version}', but 0.3.8 to {last} return '{PROTOCOL_VERSION}'"),
        );
    }
    let failure = facts.probes.made.iter().filter_map(|probe_object| probe_object.end.as_ref().err());
    if let Some(failure) = failure.into_iter().find(|failure| failure.kind == ProbeFailureKind::Release) {
        return error(
            "the master's release is unknown: clients of another release start and look up keys, but store nothing (-900)",
            format!("{} fails: {}; ServiceReady returned '{version}'", failure.step, failure.message),
        );
    }
    let is_mcctl = facts.admins.iter().any(|admin| admin.is_mcctl == Some(true));
    CheckStatus::Passed(match facts.rpc.release {
        _ if is_mcctl => format!("mcctl, for clients from {first} to {last}"),
        Some(release) => {
            let fit: Releases = Release::ALL.iter().copied().filter(|other| other.works_with(release)).collect();
            format!("{release}; its clients and nodes must be of {fit}")
        }
        None => format!("the protocol version is '{version}'"),
    })
}

/// The master's metadata survives a restart.
pub(super) fn survives(facts: &ClusterFacts) -> CheckStatus {
    let healthy: Vec<&AdminFacts> = facts.admins.iter().filter(|admin| admin.health.is_ok()).collect();
    let Some(serving) = healthy.iter().find(|admin| admin.health.as_ref().is_ok_and(|health| health.service_ready))
    else {
        return CheckStatus::Skipped(no_admin(facts));
    };
    let keys = serving.metrics.as_ref().and_then(|page| page.sum("master_key_count")).unwrap_or(0.0);
    let is_ha = serving.health.as_ref().is_ok_and(|health| health.leader_address.is_some());
    let snapshots = serving.summary.as_deref().and_then(snapshots);
    let standbys: Vec<&AdminFacts> = healthy.iter().copied().filter(|admin| admin.at != serving.at).collect();
    let number = |admin: &AdminFacts, name: &str| admin.metrics.as_ref().and_then(|page| page.sum(name)).unwrap_or(0.0);
    // The leader's own last_sequence_id stays 0; only a standby's applied id is reliable.
    let follows = |admin: &&AdminFacts| {
        admin.ha.as_ref().is_some_and(|ha| ha.in_sync) || number(admin, "ha_oplog_applied_sequence_id") > 0.0
    };
    let mut findings = Vec::new();
    if is_ha && serving.ha.is_none() && keys >= KEYS_WORTH && !standbys.is_empty() && !standbys.iter().any(follows) {
        findings.push(finding(
            "metadata-survives",
            Severity::Warning,
            "HA is enabled, but no standby replicates the leader's metadata: a failover loses all keys",
            format!("{}, and ha_oplog_applied_sequence_id is 0 at {}", counted(keys, "key"), listed(&ats(&standbys))),
            "start all masters with --enable_oplog=true (0.3.13, etcd), or accept an empty cache after a failover",
        ));
    }
    let failed: Vec<&AdminFacts> = standbys.iter().copied().filter(|a| number(a, "ha_standby_state") == 8.0).collect();
    if !failed.is_empty() {
        findings.push(finding(
            "metadata-survives",
            Severity::Error,
            "a standby no longer replicates from the leader",
            format!("ha_standby_state is 8 (failed) at {}", listed(&ats(&failed))),
            "check that standby's log and its connection to etcd, and restart it",
        ));
    }
    let late = standbys.iter().find(|admin| number(admin, "ha_oplog_standby_lag") > LAG_MAX);
    if let Some(late) = late {
        findings.push(finding(
            "metadata-survives",
            Severity::Warning,
            "a standby lags far behind the leader: a failover now loses the entries that the standby has not applied",
            format!("ha_oplog_standby_lag is {} at {}", number(late, "ha_oplog_standby_lag"), late.at),
            "check etcd's latency and the standby's CPU",
        ));
    }
    let directory = data_directory(serving);
    findings.extend(directory.iter().filter_map(DirectoryCounters::finding));
    if let Some((made, bad)) = snapshots
        && bad > made
    {
        findings.push(finding(
            "metadata-survives",
            Severity::Warning,
            "the master's snapshots fail: a restart restores old keys or none",
            format!("Snapshots: Success={made}, Fail={bad}"),
            "check the master's log, free space in MOONCAKE_SNAPSHOT_LOCAL_PATH and --snapshot_child_timeout_seconds",
        ));
    }
    let has_standby = serving.ha.as_ref().is_some_and(|ha| ha.standbys.iter().any(|standby| standby.in_sync));
    let is_kept = directory.is_some() || has_standby || standbys.iter().any(follows);
    if findings.is_empty() && keys >= KEYS_WORTH && !is_kept && !is_ha {
        let (severity, what, remedy) = match (serving.is_mcctl, snapshots) {
            (Some(true), _) => (Severity::Info, EMPTIES, "start it with --data-dir=DIR"),
            // Observed with 0.3.13.post1; see kvcache-ai/Mooncake#3761.
            (_, Some((1.., _))) => (
                Severity::Warning,
                "a restart loses nearly all keys: restoring a snapshot drops every object whose read lease has expired",
                NO_REMEDY,
            ),
            _ => (Severity::Info, EMPTIES, NO_REMEDY),
        };
        let made = snapshots.map_or(0, |(made, _)| made);
        let evidence = format!(
            "{}, no standby, {}",
            counted(keys, "key"),
            counted(usize::try_from(made).unwrap_or(usize::MAX), "snapshot")
        );
        findings.push(finding("metadata-survives", severity, what, evidence, remedy));
    }
    status(findings, || match (is_kept, is_ha) {
        (true, _) if directory.is_some() => format!("{}, and the master has a data directory", counted(keys, "key")),
        (true, _) => "a standby replicates the metadata".to_owned(),
        (false, true) => "nothing is stored yet".to_owned(),
        (false, false) => format!("one master, {}", counted(keys, "key")),
    })
}

/// The effect of restarting a master that keeps its metadata in memory only.
const EMPTIES: &str = "restarting the master empties the cache: its metadata is in memory only";
/// The remedy for a single upstream master.
const NO_REMEDY: &str = "run mcctl serve master --data-dir=DIR, which keeps the keys; two masters with --enable_ha=true, \
     --enable_oplog=true and etcd keep those that the standby has applied";

/// What mcctl's master reports about its data directory.
struct DirectoryCounters {
    snapshots: f64,
    failures: f64,
    is_memory_only: bool,
}

/// The counters of the data directory; `None` if the master has none.
fn data_directory(admin: &AdminFacts) -> Option<DirectoryCounters> {
    let metrics = admin.metrics.as_ref()?;
    Some(DirectoryCounters {
        snapshots: metrics.sum("mcctl_master_snapshots_total")?,
        failures: metrics.sum("mcctl_master_snapshot_failures_total").unwrap_or(0.0),
        is_memory_only: metrics.sum("mcctl_master_memory_only").is_some_and(|on| on > 0.0),
    })
}

impl DirectoryCounters {
    fn finding(&self) -> Option<Finding> {
        let (what, evidence, remedy) = if self.is_memory_only {
            (
                "restarting the master empties the cache: it continues without its data directory after a disk error",
                "mcctl_master_memory_only is 1".to_owned(),
                "check the disk; then, at a quiet time, restart the master with --discard-data once",
            )
        } else if self.failures > self.snapshots {
            (
                "the master's snapshots fail: its log grows, and a restart takes longer",
                format!("{} snapshots written, {} failed", self.snapshots, self.failures),
                "check the master's log, and its disk with mcctl doctor --data-dir DIR",
            )
        } else {
            return None;
        };
        Some(finding("metadata-survives", Severity::Warning, what, evidence, remedy))
    }
}

/// Maximum number of entries that a standby may lag behind.
const LAG_MAX: f64 = 1000.0;

fn ats(admins: &[&AdminFacts]) -> Vec<HostPort> {
    admins.iter().map(|admin| admin.at.clone()).collect()
}

/// Parses `Snapshots: Success=1, Fail=0` from the summary.
fn snapshots(summary: &str) -> Option<(u64, u64)> {
    let (_, rest) = summary.split_once("Snapshots: Success=")?;
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    let (_, failed) = rest.split_once("Fail=")?;
    Some((number(rest)?, number(failed)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::facts::test_facts::healthy;
    use crate::cluster::facts::{LeaderRecord, ObjectProbe, ObjectProbeFailure};
    use mcctl_metadata::admin::types::MasterHealth;
    use mcctl_net::http::Samples;

    fn worst(status: &CheckStatus) -> Option<(Severity, String)> {
        let CheckStatus::Found(findings) = status else { return None };
        let worst = findings.iter().max_by_key(|finding| finding.severity)?;
        Some((worst.severity, worst.finding.clone()))
    }

    fn assert_found(status: &CheckStatus, severity: Severity, part: &str) {
        let found = worst(status).unwrap_or_else(|| panic!("nothing found: {status:?}"));
        assert!(found.0 == severity && found.1.contains(part), "{found:?}");
    }

    fn standby(port: u16, leader: &str, metrics: &str) -> AdminFacts {
        AdminFacts {
            at: HostPort::new("10.0.0.8", port),
            health: Ok(MasterHealth {
                status: "ok".to_owned(),
                role: "standby".to_owned(),
                ha_state: "standby".to_owned(),
                service_ready: false,
                leader_address: Some(leader.to_owned()),
                view_version: Some(2),
            }),
            took: Duration::ZERO,
            metrics: Some(Samples::parse(metrics)),
            summary: None,
            has_role: Some(true),
            is_mcctl: Some(false),
            ha: None,
        }
    }

    /// A leader that publishes its address, and the given standbys.
    fn ha(keys: u32, standbys: Vec<AdminFacts>) -> ClusterFacts {
        let mut facts = healthy();
        facts.admins[0].health.as_mut().expect("healthy").leader_address = Some("10.0.0.9:50051".to_owned());
        facts.admins[0].metrics = Some(Samples::parse(&format!("master_key_count {keys}\n")));
        facts.admins.extend(standbys);
        facts
    }

    #[test]
    fn unresolved_unreachable_and_stalled_masters_are_distinguished() {
        let mut facts = healthy();
        assert!(matches!(reached(&facts), CheckStatus::Passed(_)));
        for (state, part) in [
            (RpcState::Unresolved("no such name".to_owned()), "does not resolve"),
            (RpcState::Unconnected("refused".to_owned()), "no process is listening"),
            (RpcState::Silent("no response".to_owned()), "does not respond"),
            (RpcState::Closed("closed by the peer".to_owned()), "it is a standby"),
            (RpcState::Foreign("byte 0".to_owned()), "does not use"),
            (RpcState::NotReady("-1011".to_owned()), "not ready to serve"),
        ] {
            facts.rpc.state = state;
            assert_found(&reached(&facts), Severity::Error, part);
        }
    }

    #[test]
    fn unreadable_absent_and_invalid_leader_records_are_distinguished() {
        let value = |text: &str| Ok(Some(text.to_owned()));
        for (found, part) in [
            (Err("connection refused".into()), "cannot be read from etcd"),
            (Ok(None), "no master is registered"),
            (value("garbage"), "is not an address"),
            (value("__mooncake_service_warming__:7"), "not ready"),
        ] {
            let mut facts = healthy();
            facts.leader = Some(LeaderRecord { key: "k".to_owned(), found, others: Vec::new() });
            facts.rpc.state = RpcState::Unknown("why".to_owned());
            assert_found(&reached(&facts), Severity::Error, part);
            facts.rpc.state = RpcState::Unresolved("no such name".to_owned());
            assert_found(&reached(&facts), Severity::Error, "does not resolve");
        }
    }

    #[test]
    fn an_invalid_master_address_has_a_matching_remedy() {
        for (origin, part) in [
            ("MOONCAKE_MASTER=127.0.0.1:99999", "RPC address HOST:PORT"),
            ("MOONCAKE_MASTER=etcd://", "the etcd servers"),
            ("MOONCAKE_MASTER=etcd://127.0.0.1:1/", "trailing slash"),
        ] {
            let status = misnamed(origin, "why");
            assert_found(&status, Severity::Error, "is invalid");
            let CheckStatus::Found(findings) = status else { unreachable!() };
            assert!(findings[0].remedy.contains(part) && findings[0].evidence.contains(origin), "{findings:?}");
        }
    }

    #[test]
    fn one_serving_master_with_a_standby_passes() {
        let facts = ha(0, vec![standby(9004, "10.0.0.9:50051", "")]);
        assert!(matches!(health(&facts), CheckStatus::Passed(_)), "{:?}", health(&facts));
    }

    #[test]
    fn two_serving_masters_none_and_two_leaders_are_errors() {
        let mut two = ha(0, vec![standby(9004, "10.0.0.9:50051", "")]);
        two.admins[1].health.as_mut().expect("healthy").service_ready = true;
        assert_found(&health(&two), Severity::Error, "more than one master is serving");
        let mut none = ha(0, vec![standby(9004, "10.0.0.9:50051", "")]);
        none.admins[0].health.as_mut().expect("healthy").service_ready = false;
        assert_found(&health(&none), Severity::Error, "no master is serving");
        let split = ha(0, vec![standby(9004, "10.0.0.7:50051", "")]);
        assert_found(&health(&split), Severity::Error, "report different leaders");
        let mut silent = healthy();
        silent.admins[0].health = Err("Connection refused".into());
        assert_found(&health(&silent), Severity::Error, "is not responding");
    }

    #[test]
    fn a_wrong_cluster_id_is_detected_in_etcd() {
        let mut facts = healthy();
        assert!(matches!(leader_record(&facts), CheckStatus::Skipped(_)));
        let leader = |found, others: &[&str]| {
            Some(LeaderRecord {
                key: "mooncake-store/blue/master_view".to_owned(),
                found,
                others: others.iter().map(|key| (*key).to_owned()).collect(),
            })
        };
        facts.leader = leader(Ok(Some("10.0.0.9:50051".to_owned())), &[]);
        assert!(matches!(leader_record(&facts), CheckStatus::Passed(_)));
        facts.leader = leader(Ok(None), &["mooncake-store/mooncake_cluster/master_view"]);
        assert_found(&leader_record(&facts), Severity::Error, "another cluster id");
        facts.leader = leader(Ok(None), &[]);
        assert_found(&leader_record(&facts), Severity::Error, "has no leader");
        facts.leader = leader(Ok(Some("0.0.0.0:50051".to_owned())), &[]);
        assert_found(&leader_record(&facts), Severity::Error, "unspecified address");
        facts.leader = leader(Err("connection refused".into()), &[]);
        assert_found(&leader_record(&facts), Severity::Error, "etcd cannot be read");
        facts.leader = leader(Ok(Some("__mooncake_service_warming__:7".to_owned())), &[]);
        assert_found(&leader_record(&facts), Severity::Warning, "not ready");
    }

    #[test]
    fn the_release_is_reported_and_a_refused_put_reveals_an_unknown_one() {
        let facts = healthy();
        assert!(matches!(release(&facts), CheckStatus::Passed(_)));
        let mut refused = healthy();
        refused.probes.made = vec![ObjectProbe {
            segment: "a".to_owned(),
            endpoint: "a".to_owned(),
            end: Err(ObjectProbeFailure {
                step: "put",
                kind: ProbeFailureKind::Release,
                message: "refuses BatchPutStart".to_owned(),
                after: Duration::ZERO,
            }),
        }];
        assert_found(&release(&refused), Severity::Error, "is unknown");
        let mut old = healthy();
        old.rpc.release = Some(Release::V0_3_10_2);
        assert!(matches!(release(&old), CheckStatus::Passed(found) if found.starts_with("0.3.10.post2")));
        let mut without_version = healthy();
        without_version.rpc.state = RpcState::Ready(String::new());
        without_version.rpc.release = Some(Release::V0_3_6);
        assert!(matches!(release(&without_version), CheckStatus::Passed(_)));
        let mut foreign = healthy();
        foreign.rpc.state = RpcState::Ready("3.0.0".to_owned());
        assert_found(&release(&foreign), Severity::Error, "does not know");
    }

    #[test]
    fn ha_without_an_oplog_loses_the_keys() {
        let lost = ha(5, vec![standby(9004, "10.0.0.9:50051", "ha_oplog_applied_sequence_id 0\n")]);
        assert_found(&survives(&lost), Severity::Warning, "a failover loses all keys");
        let kept = ha(5, vec![standby(9004, "10.0.0.9:50051", "ha_oplog_applied_sequence_id 20\n")]);
        assert!(matches!(survives(&kept), CheckStatus::Passed(_)), "{:?}", survives(&kept));
        let failed = "ha_oplog_applied_sequence_id 20\nha_standby_state 8\n";
        assert_found(
            &survives(&ha(5, vec![standby(9004, "10.0.0.9:50051", failed)])),
            Severity::Error,
            "no longer replicates",
        );
        let late = "ha_oplog_applied_sequence_id 20\nha_oplog_standby_lag 5000\n";
        assert_found(
            &survives(&ha(5, vec![standby(9004, "10.0.0.9:50051", late)])),
            Severity::Warning,
            "lags far behind",
        );
    }

    #[test]
    fn restart_of_a_single_master_loses_its_keys() {
        let mut facts = healthy();
        facts.admins[0].metrics = Some(Samples::parse("master_key_count 7\n"));
        assert_found(&survives(&facts), Severity::Info, "restarting the master empties the cache");
        facts.admins[0].summary = Some("x | Snapshots: Success=3, Fail=0}".to_owned());
        assert_found(&survives(&facts), Severity::Warning, "restoring a snapshot drops");
        facts.admins[0].summary = Some("x | Snapshots: Success=0, Fail=4}".to_owned());
        assert_found(&survives(&facts), Severity::Warning, "snapshots fail");
    }

    #[test]
    fn remedies_for_mcctl_masters_name_no_unsupported_flag() {
        let mut facts = healthy();
        facts.admins[0].metrics = Some(Samples::parse("master_key_count 7\n"));
        facts.admins[0].is_mcctl = Some(true);
        let CheckStatus::Found(findings) = survives(&facts) else { panic!("found") };
        assert_eq!(findings[0].severity, Severity::Info);
        assert!(findings[0].remedy.contains("--data-dir") && !findings[0].remedy.contains("--enable"), "{findings:?}");
    }

    #[test]
    fn a_master_with_a_data_directory_keeps_its_keys() {
        let mut facts = healthy();
        facts.admins[0].is_mcctl = Some(true);
        let mut with = |more: &str| {
            let text = format!("master_key_count 7\nmcctl_master_snapshots_total 1\n{more}\n");
            facts.admins[0].metrics = Some(Samples::parse(&text));
            survives(&facts)
        };
        let passed = with("mcctl_master_memory_only 0");
        assert!(matches!(&passed, CheckStatus::Passed(seen) if seen.contains("data directory")), "{passed:?}");
        assert_found(&with("mcctl_master_memory_only 1"), Severity::Warning, "without its data directory");
        assert_found(&with("mcctl_master_snapshot_failures_total 3"), Severity::Warning, "snapshots fail");
    }
}
