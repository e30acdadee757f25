//! The master itself: is it there, does it lead, is it of our release, does it keep what it knows?

use crate::engine::base::HostPort;
use crate::engine::check::{Finding, Severity, Status};
use crate::engine::doctor::cluster::facts::{Admin, Facts, FallKind, RpcState};
use crate::engine::doctor::cluster::judge::no_admin;
use crate::engine::doctor::{finding, listed, plural, shown, status};
use crate::engine::store::client::PROTOCOL_VERSION;

/// Keys whose loss is worth a word.
const KEYS_WORTH: f64 = 1.0;

/// The RPC port of the master accepts connections and answers.
pub fn reached(facts: &Facts) -> Status {
    let at = &facts.master;
    let hang = "clients try for 90 s at their start and are deaf to SIGTERM meanwhile, so they crash-loop";
    let error = |what: String, evidence: String, remedy: String| {
        Status::Found(vec![finding("master-reached", Severity::Error, what, evidence, remedy)])
    };
    match &facts.rpc.state {
        RpcState::Ready(_) => Status::Passed(format!("{at} answers in {}", shown(facts.rpc.took))),
        RpcState::Unresolved(why) if facts.leader.is_some() => error(
            format!("no master is to be found through etcd: {hang}"),
            why.clone(),
            "start mooncake_master --enable_ha=true with this cluster id, and give clients the same MC_STORE_CLUSTER_ID"
                .to_owned(),
        ),
        RpcState::Unresolved(why) => error(
            format!("the master's name {} has no address: {hang}", at.host),
            format!("resolving {}: {why}", at.host),
            "wait until the name is known (DNS, service, hosts file), or give an address as MOONCAKE_MASTER".to_owned(),
        ),
        RpcState::Unconnected(why) => error(
            format!("nobody listens at {at}: {hang}"),
            format!("connecting to {at}: {why}"),
            "start the master first, or give the right address as MOONCAKE_MASTER (a standby does not listen)"
                .to_owned(),
        ),
        RpcState::Silent(why) => error(
            format!("{at} takes connections and does not answer: the process stands still, or something else listens"),
            format!("ServiceReady: {why}"),
            "see the master's processor and state (a stopped process shows T in ps), and restart it".to_owned(),
        ),
        RpcState::Foreign(why) => error(
            format!("{at} does not speak the master's protocol"),
            format!("ServiceReady: {why}"),
            "give the master's RPC port (50051 unless it was chosen), not its admin or metadata port".to_owned(),
        ),
        RpcState::NotReady(why) => error(
            format!("the master at {at} does not serve yet"),
            format!("ServiceReady: {why}"),
            "wait until /health says service_ready: a new leader warms up for 5 s".to_owned(),
        ),
    }
}

/// Whoever should name the master names none: `origin` is what was written and where, `why` what is wrong with it.
pub fn misnamed(origin: &str, why: &str) -> Status {
    let (text, form) = match origin.contains("etcd://") {
        true if origin.ends_with('/') && !origin.ends_with("//") => {
            (origin, "take the slash from its end: etcd://HOST:PORT;HOST:PORT")
        }
        true => (origin, "give etcd://HOST:PORT;HOST:PORT, the servers of etcd"),
        false => (origin, "give HOST:PORT of the master's RPC, such as 10.0.0.1:50051 or [fd00::1]:50051"),
    };
    Status::Found(vec![finding(
        "master-reached",
        Severity::Error,
        "what should name the master is no address: whoever is started with it reaches nobody",
        format!("{text}: {why}"),
        form,
    )])
}

/// The admin port reports that the master is healthy.
pub fn health(facts: &Facts) -> Status {
    if facts.admins.is_empty() {
        return Status::Skipped(no_admin(facts));
    }
    let mut findings: Vec<Finding> = Vec::new();
    let mut add = |severity, what: String, evidence: String, remedy: &str| {
        findings.push(finding("master-health", severity, what, evidence, remedy));
    };
    for admin in &facts.admins {
        if let Err(why) = &admin.health {
            add(
                Severity::Error,
                format!("the admin HTTP of the master at {} does not answer", admin.at),
                format!("GET http://{}/health: {why}", admin.at),
                "start that master, or name its admin port (metrics_port, 9003 unless it was chosen) with --admin HOST:PORT",
            );
        }
    }
    let healthy: Vec<_> = facts.admins.iter().filter_map(|a| a.health.as_ref().ok().map(|h| (&a.at, h))).collect();
    let ready: Vec<&HostPort> = healthy.iter().filter(|(_, h)| h.is_ready).map(|(at, _)| *at).collect();
    let states: Vec<String> =
        healthy.iter().map(|(at, h)| format!("{at} {} {}", h.role, h.state).trim().to_owned()).collect();
    match ready.len() {
        1 => {}
        0 if healthy.is_empty() => {}
        0 => add(
            Severity::Error,
            "no master serves: every lookup and put of every client fails".to_owned(),
            format!("service_ready is false everywhere: {}", listed(&states)),
            "wait for a leader (5 s of lease and 5 s of warm-up); if none comes, see etcd and that all have one --cluster_id",
        ),
        _ => add(
            Severity::Error,
            "more than one master serves: clients of different ones do not see each other's objects".to_owned(),
            format!("service_ready is true at {}", listed(&ready)),
            match facts.admins.iter().any(|admin| admin.is_mcctl == Some(true)) {
                true => "name the masters of one store only: masters of mcctl do not elect a leader",
                false => {
                    "give all masters one --cluster_id and one etcd (--enable_ha=true), or name the masters of one cluster only"
                }
            },
        ),
    }
    let mut leaders: Vec<String> = healthy.iter().filter_map(|(_, h)| h.leader.clone()).collect();
    leaders.sort();
    leaders.dedup();
    if leaders.len() > 1 {
        add(
            Severity::Error,
            "the masters do not agree who leads: they are of different clusters, or cut off from their etcd".to_owned(),
            format!("leader_address: {}", listed(&leaders)),
            "compare --cluster_id and --ha_backend_connstring of all masters, and see whether each reaches etcd",
        );
    }
    if let ([leader], RpcState::Ready(_)) = (&leaders[..], &facts.rpc.state)
        && let Ok(leader) = leader.parse::<HostPort>()
        && leader.port != facts.master.port
    {
        add(
            Severity::Warning,
            "clients are given another master than the one that leads".to_owned(),
            format!("leader_address is {leader}, the master that was named is {}", facts.master),
            "give clients etcd://HOST:PORT of the etcd as master address, so that they follow the leader",
        );
    }
    status(findings, || match healthy.len() {
        1 => format!("{} serves", listed(&ready)),
        n => format!("{} of {} serves, the others stand by", listed(&ready), plural(n, "master")),
    })
}

/// The leader record of the election names this master.
pub fn leader_record(facts: &Facts) -> Status {
    let Some(leader) = &facts.leader else {
        return Status::Skipped("the master was given as an address, not as etcd://".to_owned());
    };
    let others = leader.others.clone();
    let found = match &leader.found {
        Err(why) => finding(
            "leader-record",
            Severity::Error,
            "etcd does not answer: clients find no master, and no standby can take over",
            why,
            "start etcd, or give the right etcd://HOST:PORT;HOST:PORT (no slash at the end)",
        ),
        Ok(None) if !others.is_empty() => finding(
            "leader-record",
            Severity::Error,
            "etcd knows a leader of another cluster id only: clients say 'No master is available in HA backend'",
            format!("there is {}, and no {}", listed(&others), leader.key),
            "give masters (--cluster_id) and clients (MC_STORE_CLUSTER_ID) the same id",
        ),
        Ok(None) => finding(
            "leader-record",
            Severity::Error,
            "etcd names no leader: no master has won the election",
            format!("there is no {}", leader.key),
            "start mooncake_master --enable_ha=true --ha_backend_type=etcd; after a crash the lease of the last one lasts 5 s",
        ),
        Ok(Some(at)) => match at.parse::<HostPort>() {
            Ok(HostPort { host, .. }) if host == "0.0.0.0" || host == "::" => finding(
                "leader-record",
                Severity::Error,
                "the leader published an address that nobody can call",
                format!("{} = {at}", leader.key),
                "start the masters with --rpc_address=ADDRESS of their host: with HA it is what is published",
            ),
            Ok(_) => return Status::Passed(format!("{} = {at}", leader.key)),
            Err(error) => finding(
                "leader-record",
                Severity::Error,
                "the leader's record in etcd is no address",
                format!("{} = {at}: {error}", leader.key),
                "see which program writes that key",
            ),
        },
    };
    Status::Found(vec![found])
}

/// Which release the admin HTTP looks like: the paths that came with 0.3.11 and 0.3.12.
fn release_by_paths(facts: &Facts) -> Option<&'static str> {
    let serving = facts.admins.iter().find(|admin| admin.health.as_ref().is_ok_and(|health| health.is_ready))?;
    let is_detailed = facts.segments.as_ref().and_then(|listing| listing.as_ref().ok()).map(|l| l.is_detailed);
    match (serving.has_role, is_detailed) {
        (Some(false), _) => Some("0.3.10 or older (no /role)"),
        (Some(true), Some(false)) => Some("0.3.11 (no /get_segments_detail)"),
        (Some(true), Some(true)) => Some("0.3.12 or newer"),
        _ => None,
    }
}

/// The release of the master is one that mcctl was tested with.
pub fn release(facts: &Facts) -> Status {
    let RpcState::Ready(version) = &facts.rpc.state else {
        return Status::Skipped("the master does not answer".to_owned());
    };
    let by_paths = release_by_paths(facts);
    let looks = by_paths.map_or(String::new(), |release| format!("; its admin HTTP is that of {release}"));
    let remedy =
        "install one Mooncake release in every image (mooncake_master, SGLang, store nodes), 0.3.13 for this mcctl";
    if version != PROTOCOL_VERSION {
        return Status::Found(vec![finding(
            "master-release",
            Severity::Error,
            "the master is of a release with another protocol: no client of 0.3.13 works with it",
            format!("ServiceReady answers '{version}', 0.3.8 to 0.3.13 answer '{PROTOCOL_VERSION}'{looks}"),
            remedy,
        )]);
    }
    let fall = facts.journeys.made.iter().filter_map(|journey| journey.end.as_ref().err());
    if let Some(fall) = fall.into_iter().find(|fall| fall.kind == FallKind::Release) {
        return Status::Found(vec![finding(
            "master-release",
            Severity::Error,
            "the master is of another release than 0.3.13: clients of the other one start, look keys up, and store nothing (-900)",
            format!("{} fails: {}; ServiceReady said '{version}', as all from 0.3.8 on{looks}", fall.step, fall.words),
            remedy,
        )]);
    }
    if let Some(release) = by_paths.filter(|release| !release.ends_with("newer")) {
        return Status::Found(vec![finding(
            "master-release",
            Severity::Error,
            "the master is older than 0.3.12: clients of 0.3.13 store and read nothing there",
            format!("its admin HTTP is that of {release}"),
            remedy,
        )]);
    }
    match facts.journeys.made.iter().any(|journey| journey.end.is_ok()) {
        true => Status::Passed("it took a put, a get and a remove of 0.3.13".to_owned()),
        false => Status::Skipped(format!(
            "no object was put, and the version '{version}' does not tell 0.3.12 from 0.3.13{}",
            facts.journeys.none.as_ref().map_or(String::new(), |why| format!(": {why}"))
        )),
    }
}

/// The metadata of the master survives a restart.
pub fn survives(facts: &Facts) -> Status {
    let healthy: Vec<&Admin> = facts.admins.iter().filter(|admin| admin.health.is_ok()).collect();
    let Some(serving) = healthy.iter().find(|admin| admin.health.as_ref().is_ok_and(|health| health.is_ready)) else {
        return Status::Skipped(no_admin(facts));
    };
    let keys = serving.metrics.as_ref().and_then(|page| page.sum("master_key_count")).unwrap_or(0.0);
    let is_ha = serving.health.as_ref().is_ok_and(|health| health.leader.is_some());
    let snapshots = serving.summary.as_deref().and_then(snapshots);
    let standbys: Vec<&Admin> = healthy.iter().copied().filter(|admin| admin.at != serving.at).collect();
    let number = |admin: &Admin, name: &str| admin.metrics.as_ref().and_then(|page| page.sum(name)).unwrap_or(0.0);
    // The leader's own last_sequence_id stays 0; only a standby's applied one can be believed.
    let follows = |admin: &&Admin| number(admin, "ha_oplog_applied_sequence_id") > 0.0;
    let mut findings = Vec::new();
    if is_ha && keys >= KEYS_WORTH && !standbys.is_empty() && !standbys.iter().any(follows) {
        findings.push(finding(
            "metadata-survives",
            Severity::Warning,
            "HA is on, but no standby follows the leader's metadata: a fail-over loses every key",
            format!("{keys} keys, and ha_oplog_applied_sequence_id is 0 at {}", listed(&ats(&standbys))),
            "start all masters with --enable_oplog=true (0.3.13, etcd), or accept an empty cache after a fail-over",
        ));
    }
    let failed: Vec<&Admin> = standbys.iter().copied().filter(|a| number(a, "ha_standby_state") == 8.0).collect();
    if !failed.is_empty() {
        findings.push(finding(
            "metadata-survives",
            Severity::Error,
            "a standby has given up following the leader",
            format!("ha_standby_state is 8 (failed) at {}", listed(&ats(&failed))),
            "see that standby's log and its way to etcd, and restart it",
        ));
    }
    let late = standbys.iter().find(|admin| number(admin, "ha_oplog_standby_lag") > LAG_MAX);
    if let Some(late) = late {
        findings.push(finding(
            "metadata-survives",
            Severity::Warning,
            "a standby is far behind the leader: a fail-over now loses what it has not read",
            format!("ha_oplog_standby_lag is {} at {}", number(late, "ha_oplog_standby_lag"), late.at),
            "see etcd's latency and the standby's processor",
        ));
    }
    if let Some((made, bad)) = snapshots
        && bad > made
    {
        findings.push(finding(
            "metadata-survives",
            Severity::Warning,
            "the master's snapshots fail: a restart comes back with old keys, or none",
            format!("Snapshots: Success={made}, Fail={bad}"),
            "see the master's log, the space below MOONCAKE_SNAPSHOT_LOCAL_PATH and --snapshot_child_timeout_seconds",
        ));
    }
    let is_kept = standbys.iter().any(follows);
    if findings.is_empty() && keys >= KEYS_WORTH && !is_kept && !is_ha {
        let (severity, what, remedy) = match (serving.is_mcctl, snapshots) {
            (Some(true), _) => {
                (Severity::Info, EMPTIES, "none yet in mcctl: restart it when an empty cache is acceptable")
            }
            // Seen with 0.3.13.post1, kvcache-ai/Mooncake#3761.
            (_, Some((1.., _))) => (
                Severity::Warning,
                "a restart loses nearly all keys: a restore from a snapshot drops every object whose read lease is over",
                NO_REMEDY,
            ),
            _ => (Severity::Info, EMPTIES, NO_REMEDY),
        };
        let made = snapshots.map_or(0, |(made, _)| made);
        let evidence =
            format!("{keys} keys, no standby, {}", plural(usize::try_from(made).unwrap_or(usize::MAX), "snapshot"));
        findings.push(finding("metadata-survives", severity, what, evidence, remedy));
    }
    status(findings, || match (is_kept, is_ha) {
        (true, _) => "a standby has the metadata".to_owned(),
        (false, true) => "nothing is stored yet".to_owned(),
        (false, false) => format!("one master, {keys} keys"),
    })
}

/// What a restart does to a master whose metadata is in memory only.
const EMPTIES: &str = "a restart of the master empties the cache: its metadata is in memory only";
/// Of a single master of upstream.
const NO_REMEDY: &str = "none for a single master of 0.3.13 (a restore drops what is under no read lease); two masters with \
     --enable_ha=true, --enable_oplog=true and etcd keep the keys that the standby has read";

/// Entries that a standby may be behind.
const LAG_MAX: f64 = 1000.0;

fn ats(admins: &[&Admin]) -> Vec<HostPort> {
    admins.iter().map(|admin| admin.at.clone()).collect()
}

/// `Snapshots: Success=1, Fail=0` of the summary line.
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
    use crate::engine::doctor::cluster::facts::made_up::healthy;
    use crate::engine::doctor::cluster::facts::{Fall, Health, Journey, Leader, Listing};
    use crate::engine::http::Samples;

    fn worst(status: &Status) -> Option<(Severity, String)> {
        let Status::Found(findings) = status else { return None };
        let worst = findings.iter().max_by_key(|finding| finding.severity)?;
        Some((worst.severity, worst.finding.clone()))
    }

    fn says(status: &Status, severity: Severity, part: &str) {
        let found = worst(status).unwrap_or_else(|| panic!("nothing found: {status:?}"));
        assert!(found.0 == severity && found.1.contains(part), "{found:?}");
    }

    fn standby(port: u16, leader: &str, metrics: &str) -> Admin {
        Admin {
            at: HostPort::new("10.0.0.8", port),
            health: Ok(Health {
                role: "standby".to_owned(),
                state: "standby".to_owned(),
                is_ready: false,
                leader: Some(leader.to_owned()),
                view: Some(2),
            }),
            took: Duration::ZERO,
            metrics: Some(Samples::parse(metrics)),
            summary: None,
            has_role: Some(true),
            is_mcctl: Some(false),
        }
    }

    /// A leader that publishes its address, and these standbys.
    fn ha(keys: u32, standbys: Vec<Admin>) -> Facts {
        let mut facts = healthy();
        facts.admins[0].health.as_mut().expect("healthy").leader = Some("10.0.0.9:50051".to_owned());
        facts.admins[0].metrics = Some(Samples::parse(&format!("master_key_count {keys}\n")));
        facts.admins.extend(standbys);
        facts
    }

    #[test]
    fn a_master_that_is_away_is_told_from_a_name_and_from_a_process_that_stands_still() {
        let mut facts = healthy();
        assert!(matches!(reached(&facts), Status::Passed(_)));
        for (state, part) in [
            (RpcState::Unresolved("no such name".to_owned()), "has no address"),
            (RpcState::Unconnected("refused".to_owned()), "nobody listens"),
            (RpcState::Silent("no answer".to_owned()), "does not answer"),
            (RpcState::Foreign("byte 0".to_owned()), "does not speak"),
            (RpcState::NotReady("-1011".to_owned()), "does not serve yet"),
        ] {
            facts.rpc.state = state;
            says(&reached(&facts), Severity::Error, part);
        }
    }

    #[test]
    fn a_name_that_is_no_address_is_an_error_whose_remedy_fits_what_was_written() {
        for (origin, part) in [
            ("MOONCAKE_MASTER=127.0.0.1:99999", "give HOST:PORT"),
            ("MOONCAKE_MASTER=etcd://", "the servers of etcd"),
            ("MOONCAKE_MASTER=etcd://127.0.0.1:1/", "the slash"),
        ] {
            let status = misnamed(origin, "why");
            says(&status, Severity::Error, "no address");
            let Status::Found(findings) = status else { unreachable!("says") };
            assert!(findings[0].remedy.contains(part) && findings[0].evidence.contains(origin), "{findings:?}");
        }
    }

    #[test]
    fn one_master_serves_and_its_standby_is_no_fault() {
        let facts = ha(0, vec![standby(9004, "10.0.0.9:50051", "")]);
        assert!(matches!(health(&facts), Status::Passed(_)), "{:?}", health(&facts));
    }

    #[test]
    fn two_masters_that_serve_none_that_does_and_two_leaders_are_faults() {
        let mut two = ha(0, vec![standby(9004, "10.0.0.9:50051", "")]);
        two.admins[1].health.as_mut().expect("healthy").is_ready = true;
        says(&health(&two), Severity::Error, "more than one master serves");
        let mut none = ha(0, vec![standby(9004, "10.0.0.9:50051", "")]);
        none.admins[0].health.as_mut().expect("healthy").is_ready = false;
        says(&health(&none), Severity::Error, "no master serves");
        let split = ha(0, vec![standby(9004, "10.0.0.7:50051", "")]);
        says(&health(&split), Severity::Error, "do not agree who leads");
        let mut silent = healthy();
        silent.admins[0].health = Err("Connection refused".to_owned());
        says(&health(&silent), Severity::Error, "does not answer");
    }

    #[test]
    fn a_cluster_id_that_is_not_that_of_the_masters_is_seen_in_etcd() {
        let mut facts = healthy();
        assert!(matches!(leader_record(&facts), Status::Skipped(_)));
        let leader = |found, others: &[&str]| {
            Some(Leader {
                key: "mooncake-store/blue/master_view".to_owned(),
                found,
                others: others.iter().map(|key| (*key).to_owned()).collect(),
            })
        };
        facts.leader = leader(Ok(Some("10.0.0.9:50051".to_owned())), &[]);
        assert!(matches!(leader_record(&facts), Status::Passed(_)));
        facts.leader = leader(Ok(None), &["mooncake-store/mooncake_cluster/master_view"]);
        says(&leader_record(&facts), Severity::Error, "another cluster id");
        facts.leader = leader(Ok(None), &[]);
        says(&leader_record(&facts), Severity::Error, "names no leader");
        facts.leader = leader(Ok(Some("0.0.0.0:50051".to_owned())), &[]);
        says(&leader_record(&facts), Severity::Error, "nobody can call");
        facts.leader = leader(Err("connection refused".to_owned()), &[]);
        says(&leader_record(&facts), Severity::Error, "etcd does not answer");
    }

    #[test]
    fn another_release_is_known_by_a_put_that_is_refused_and_by_the_paths_that_are_missing() {
        let facts = healthy();
        assert!(matches!(release(&facts), Status::Passed(_)));
        let mut refused = healthy();
        refused.journeys.made = vec![Journey {
            segment: "a".to_owned(),
            endpoint: "a".to_owned(),
            end: Err(Fall {
                step: "put",
                kind: FallKind::Release,
                words: "refuses BatchPutStart".to_owned(),
                after: Duration::ZERO,
            }),
        }];
        says(&release(&refused), Severity::Error, "another release than 0.3.13");
        let mut old = healthy();
        old.segments = Some(Ok(Listing { is_detailed: false, ..Listing::default() }));
        says(&release(&old), Severity::Error, "older than 0.3.12");
        let mut foreign = healthy();
        foreign.rpc.state = RpcState::Ready("3.0.0".to_owned());
        says(&release(&foreign), Severity::Error, "another protocol");
        let mut untried = healthy();
        untried.journeys.made.clear();
        assert!(matches!(release(&untried), Status::Skipped(_)));
    }

    #[test]
    fn ha_without_an_oplog_loses_the_keys_and_with_one_it_does_not() {
        let lost = ha(5, vec![standby(9004, "10.0.0.9:50051", "ha_oplog_applied_sequence_id 0\n")]);
        says(&survives(&lost), Severity::Warning, "a fail-over loses every key");
        let kept = ha(5, vec![standby(9004, "10.0.0.9:50051", "ha_oplog_applied_sequence_id 20\n")]);
        assert!(matches!(survives(&kept), Status::Passed(_)), "{:?}", survives(&kept));
        let failed = "ha_oplog_applied_sequence_id 20\nha_standby_state 8\n";
        says(&survives(&ha(5, vec![standby(9004, "10.0.0.9:50051", failed)])), Severity::Error, "given up");
        let late = "ha_oplog_applied_sequence_id 20\nha_oplog_standby_lag 5000\n";
        says(&survives(&ha(5, vec![standby(9004, "10.0.0.9:50051", late)])), Severity::Warning, "far behind");
    }

    #[test]
    fn a_restart_of_a_single_master_loses_its_keys_with_and_without_snapshots() {
        let mut facts = healthy();
        facts.admins[0].metrics = Some(Samples::parse("master_key_count 7\n"));
        says(&survives(&facts), Severity::Info, "a restart of the master empties the cache");
        facts.admins[0].summary = Some("x | Snapshots: Success=3, Fail=0}".to_owned());
        says(&survives(&facts), Severity::Warning, "drops every object whose read lease is over");
        facts.admins[0].summary = Some("x | Snapshots: Success=0, Fail=4}".to_owned());
        says(&survives(&facts), Severity::Warning, "snapshots fail");
    }

    #[test]
    fn no_remedy_for_a_master_of_mcctl_names_a_flag_that_it_refuses() {
        let mut facts = healthy();
        facts.admins[0].metrics = Some(Samples::parse("master_key_count 7\n"));
        facts.admins[0].is_mcctl = Some(true);
        let Status::Found(findings) = survives(&facts) else { panic!("found") };
        assert_eq!(findings[0].severity, Severity::Info);
        assert!(!findings[0].remedy.contains("--"), "{findings:?}");
    }
}
