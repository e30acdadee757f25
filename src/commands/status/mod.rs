//! `mcctl status`: a master's memory, objects, clients, segments and rates, and the transport of
//! nodes. It only reads from HTTP ports and does not change anything.

mod caveats;
mod data_dir;
mod follow;
mod masters;
mod nodes;
mod releases;
mod segments;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::args::{self as parsers, ValueError};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::error_document;
use crate::commands::cli::output;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::table::ListTable;
use crate::commands::cli::time_flag::TimeParser;
use crate::commands::status::caveats::{StatusCaveat, caveats};
use crate::commands::status::data_dir::DataDirStatus;
use crate::commands::status::masters::ClusterMasterStatus;
use crate::commands::status::nodes::{NodeReply, NodeStatus};
use crate::commands::status::segments::SegmentStatusEntry;
use crate::commands::target::discovery;
use crate::commands::target::master_target::{MasterArgs, MasterTarget};
use crate::engine::admin::types::{HaStatusReport, UnknownRequestCount};
use crate::engine::admin::{AdminClient, CompletedWrites, MasterStatus, OperationRates};
use crate::engine::base::text::{counted, escaped};
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::env::{Env, RealEnv};
use crate::engine::metadata::MetadataUri;

/// Flags of `mcctl status`.
#[derive(Debug, clap::Args)]
#[command(before_help = "watch interval node json master admin")]
#[command(before_long_help = "mcctl status  # show the master on this host\n\
    mcctl status --master 10.0.0.1:50051 --watch  # show another master, refreshed every second\n\
    mcctl status --node 10.0.0.2:8081  # also show a node's transport")]
pub struct Args {
    /// Repeat until SIGINT or SIGTERM
    #[arg(long, short)]
    watch: bool,
    /// Interval for measuring rates, and between --watch reports; 0 shows no rates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = TimeParser::any())]
    interval: Duration,
    /// Also show this node's transport, by peer and RDMA device; repeatable
    ///
    /// The port is the node's HTTP port (mcctl serve store --rest-port), 8080 by default.
    #[arg(long = "node", value_name = "HOST[:PORT]", value_parser = node)]
    nodes: Vec<HostPort>,
    /// Print one JSON document to stdout; with --watch, one per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    master: MasterArgs,
}

fn node(text: &str) -> Result<HostPort, ValueError> {
    parsers::endpoint(text, nodes::PORT)
}

/// Time between a client's heartbeats, for mcctl and for the Mooncake wheel.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The responses to one round of requests.
struct StatusSample {
    time: jiff::Timestamp,
    status: MasterStatus,
    nodes: Vec<NodeReply>,
}

#[derive(Debug, Serialize)]
struct StatusDocument<'a> {
    schema: &'static str,
    /// When the responses were received: RFC 3339, UTC.
    time: String,
    admin: String,
    role: &'a str,
    state: &'a str,
    ready: bool,
    /// The masters of the cluster; `null` without high availability.
    masters: Option<Vec<ClusterMasterStatus<'a>>>,
    /// Why the standby that was asked cannot be promoted without loss; `null` if it can, and for a
    /// leader.
    not_promotable: Option<&'a str>,
    /// The last error of etcd, while it does not respond; `null` otherwise, and without high
    /// availability.
    etcd_error: Option<&'a str>,
    /// Milliseconds for which the leader can still serve without etcd; `null` if etcd responds, or
    /// the time is not limited.
    etcd_outage_left_ms: Option<u64>,
    /// Number of keys with which the standby that was asked would lead; `null` for a leader.
    keys_of_copy: Option<u64>,
    used_bytes: u64,
    capacity_bytes: u64,
    keys: u64,
    soft_pinned_keys: u64,
    clients: u64,
    evicted_keys: u64,
    evicted_bytes: u64,
    failed_allocations: u64,
    /// Replicas lost since this master's process started, with nodes that expired, restarted or did
    /// not return; `null` if the master does not count them.
    lost_replicas: Option<u64>,
    /// The file system of the data directory; `null` without one.
    data_dir: Option<DataDirStatus>,
    /// Whether the master continues without its data directory after a disk error; `null` without
    /// one.
    memory_only: Option<bool>,
    /// Rates per second, measured over `interval_ms`.
    rates: Option<OperationRates>,
    interval_ms: Option<u64>,
    /// Writes that clients have completed since the master started, by checksum; `null` if the
    /// master does not count them.
    completed_writes: Option<CompletedWrites>,
    segments: Vec<SegmentStatusEntry<'a>>,
    /// Milliseconds since the last heartbeat, by client ID; `null` if the master does not report
    /// heartbeats (mooncake_master does not).
    heartbeats_ms: Option<BTreeMap<&'a str, u64>>,
    /// The Mooncake releases that each host's clients have shown, the latest last; `null` if the
    /// master does not report them.
    releases: Option<BTreeMap<&'a str, &'a [String]>>,
    /// Requests that the master could not decode, by host and method.
    unknown_requests: &'a [UnknownRequestCount],
    /// The nodes specified with --node.
    nodes: Vec<NodeStatus<'a>>,
}

impl Args {
    /// Prints the status once, or repeatedly with `--watch`.
    ///
    /// # Errors
    /// The master or its admin HTTP endpoint does not respond, or a signal arrives first.
    pub fn run(self) -> Outcome {
        runtime::block_on(0, async {
            let mut signals = Signals::take()?;
            let report = async {
                let master = self.master.find().await?;
                match self.watch && master.leader.is_some() && self.master.admin.is_none() {
                    true => self.follow(master).await,
                    false => self.report(&master, &master.admin_required().await?).await,
                }
            };
            tokio::select! {
                outcome = report => outcome,
                // --watch ends only on a signal.
                signal = signals.next() => match self.watch {
                    true => Ok(Exit::Done),
                    false => Err(Failure::interrupted(format!("{signal}: stopped before the master responded"))),
                },
            }
        })
    }

    async fn report(&self, master: &MasterTarget, admin: &AdminClient) -> Outcome {
        let env = RealEnv::new();
        let pause = if self.watch { self.interval.max(WATCH_MIN) } else { self.interval };
        let mut last = self.sample(&env, master, admin).await?;
        let is_http = match self.json {
            true => false,
            false => discovery::find(master).await.is_some_and(|found| found.metadata != MetadataUri::P2p),
        };
        if pause.is_zero() {
            self.print(admin, &last, None, is_http)?;
            return Ok(exit_of(&last));
        }
        let mut reported = String::new();
        loop {
            env.sleep(pause).await;
            let now = match self.sample(&env, master, admin).await {
                Ok(now) => now,
                // A cluster may have another leader.
                Err(failure) if self.watch && master.leader.is_none() && failure.exit == Exit::Unreachable => {
                    if self.json {
                        error_document::print_line(&failure)?;
                    }
                    if failure.what != reported {
                        failure.report();
                        reported = failure.what;
                    }
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            reported.clear();
            self.print(admin, &now, Some(&last), is_http)?;
            if !self.watch {
                return Ok(exit_of(&now));
            }
            last = now;
        }
    }

    async fn sample(&self, env: &RealEnv, master: &MasterTarget, admin: &AdminClient) -> Result<StatusSample, Failure> {
        let status = MasterStatus::read(env, admin).await.map_err(|error| master.admin_failure(&error))?;
        let nodes = nodes::query(&self.nodes, self.master.timeout, &master.credentials).await?;
        let now = jiff::Timestamp::now();
        let time = now.round(jiff::Unit::Millisecond).unwrap_or(now);
        Ok(StatusSample { time, status, nodes })
    }

    fn print(
        &self,
        admin: &AdminClient,
        now: &StatusSample,
        before: Option<&StatusSample>,
        is_http: bool,
    ) -> Result<(), Failure> {
        let document = document(admin, now, before);
        if self.json {
            return match self.watch {
                true => output::json_line(&document),
                false => output::json(&document),
            };
        }
        let clear = if self.watch && output::is_fancy() { "\x1b[H\x1b[2J" } else { "" };
        output::data(format!("{clear}{}", render(&document, is_http)))
    }
}

/// Whether the master leads, even if it serves nothing at the moment.
fn is_leader(ha: &HaStatusReport) -> bool {
    ["leader", "handing_over"].contains(&&*ha.role)
}

/// Minimum time between --watch reports.
const WATCH_MIN: Duration = Duration::from_millis(100);

/// [`Exit::No`] for a master that neither serves nor could take over, [`Exit::Unreachable`] for a
/// node that returned no figures, which is reported on stderr.
fn exit_of(sample: &StatusSample) -> Exit {
    let failed = sample.nodes.iter().filter_map(|node| Some((&node.at, node.transport.as_ref().err()?)));
    let mut exit = Exit::Done;
    for (node, error) in failed {
        let next = "check that mcctl serve store is running there, and pass its HTTP port with --node HOST:PORT";
        output::say(format!("node {node}: {}; next: {next}", escaped(&error.to_string())));
        exit = Exit::Unreachable;
    }
    let is_ready_standby = sample.status.ha.as_ref().is_some_and(|ha| ha.promotable && ha.etcd_error.is_none());
    if sample.status.health.service_ready || is_ready_standby { exit } else { Exit::No }
}

fn document<'a>(admin: &AdminClient, now: &'a StatusSample, before: Option<&StatusSample>) -> StatusDocument<'a> {
    let StatusSample { status, nodes, .. } = now;
    let before = before.map(|before| &before.status);
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    StatusDocument {
        schema: "mcctl.status/1",
        time: now.time.to_string(),
        admin: admin.at().to_string(),
        role: &status.health.role,
        state: &status.health.ha_state,
        ready: status.health.service_ready,
        masters: status.ha.as_ref().map(masters::of),
        not_promotable: status.ha.as_ref().and_then(|ha| ha.not_promotable.as_deref()),
        etcd_error: status.ha.as_ref().and_then(|ha| ha.etcd_error.as_deref()),
        etcd_outage_left_ms: status.ha.as_ref().and_then(|ha| ha.etcd_outage_left_ms),
        keys_of_copy: status.ha.as_ref().filter(|ha| !ha.serving && !is_leader(ha)).map(|ha| ha.objects),
        used_bytes: status.metric("master_allocated_bytes"),
        capacity_bytes: status.metric("master_total_capacity_bytes"),
        keys: status.metric("master_key_count"),
        soft_pinned_keys: status.metric("master_soft_pin_key_count"),
        clients: status.metric("master_active_clients"),
        evicted_keys: status.metric("master_evicted_key_count"),
        evicted_bytes: status.metric("master_evicted_size_bytes"),
        failed_allocations: status.metric("master_put_start_alloc_failures_total"),
        lost_replicas: status.reported("mcctl_master_lost_replicas_total"),
        data_dir: DataDirStatus::of(status),
        memory_only: status.reported("mcctl_master_memory_only").map(|value| value > 0),
        rates: before.map(|before| status.rates_since(before)),
        interval_ms: before.map(|before| milliseconds(status.at.since(before.at))),
        completed_writes: status.writes,
        segments: segments::of(status),
        heartbeats_ms: status
            .heartbeats
            .as_ref()
            .map(|all| all.iter().map(|(client, age)| (&**client, milliseconds(*age))).collect()),
        releases: status
            .heartbeats
            .is_some()
            .then(|| status.hosts.iter().map(|one| (&*one.host, &*one.releases)).collect()),
        unknown_requests: &status.unknown_requests,
        nodes: nodes.iter().map(NodeStatus::new).collect(),
    }
}

/// The number of heartbeats that a client has missed if its last heartbeat is `age` old.
fn missed(age: Duration) -> u64 {
    // Tolerate half an interval of scheduling delay.
    u64::try_from(age.saturating_sub(HEARTBEAT / 2).as_millis() / HEARTBEAT.as_millis()).unwrap_or(u64::MAX)
}

/// The time since the last heartbeat of the client that owns `segment`.
fn heartbeat(status: &StatusDocument<'_>, segment: &SegmentStatusEntry<'_>) -> Option<Duration> {
    status.heartbeats_ms.as_ref()?.get(segment.client_id).map(|ms| Duration::from_millis(*ms))
}

/// Renders the report. `is_http` means that the nodes use an HTTP metadata service.
fn render(status: &StatusDocument<'_>, is_http: bool) -> String {
    let plural = counted;
    if let Some(standby) = standby_report(status) {
        return standby;
    }
    let (role, state) = match caveats(status).contains(&StatusCaveat::Fenced) {
        true => ("leader", "waiting"),
        false => (status.role, status.state),
    };
    let mut text = format!("master    {} {role} {state}\n", status.admin);
    text.push_str(&masters::render(status.masters.as_deref(), &status.admin, status.keys_of_copy.is_none()));
    if status.segments.is_empty() {
        // A leader that waits does not list them.
        text.push_str(if status.ready {
            "segments  none\n"
        } else {
            "segments  not listed while the master does not serve\n"
        });
    } else {
        text.push_str(&format!("segments  {}\n{}", status.segments.len(), segment_table(status, is_http)));
    }
    text.push_str(&nodes::render(&status.nodes));
    if let (Some(rates), Some(ms)) = (status.rates, status.interval_ms) {
        let rates = format!(
            "put {:.1}, get {:.1}, exist {:.1}, remove {:.1}, evicted {:.1}, heartbeat {:.1} (over {:.1} s)",
            rates.puts,
            rates.gets,
            rates.exists,
            rates.removes,
            rates.evicted_keys,
            rates.heartbeats,
            Duration::from_millis(ms).as_secs_f64(),
        );
        text.push_str(&output::labelled("per s", &rates));
    }
    text.push_str(&format!(
        "evicted   {} ({}); {}\n",
        plural(status.evicted_keys, "key"),
        ByteSize(status.evicted_bytes),
        plural(status.failed_allocations, "failed allocation"),
    ));
    if let Some(lost) = status.lost_replicas.filter(|lost| *lost > 0) {
        let lost = format!(
            "{} since this master's process started, with nodes that expired, restarted or did not return",
            plural(lost, "replica")
        );
        text.push_str(&output::labelled("lost", &lost));
    }
    if let Some(writes) = status.completed_writes
        && let Some(share) = writes.unchecked_share()
    {
        let all = plural(writes.with_checksum.saturating_add(writes.without_checksum), "write");
        text.push_str(&output::labelled("unchecked", &format!("{} of {all} have no checksum", shown_share(share))));
    }
    if let Some(releases) = releases::shown(status) {
        text.push_str(&output::labelled("releases", &releases));
    }
    for caveat in caveats(status) {
        text.push_str(&output::labelled("caveat", &caveat.to_string()));
    }
    let share = percent(status.used_bytes, status.capacity_bytes).map_or(String::new(), |share| format!(" ({share})"));
    text.push_str(&format!(
        "memory    {} of {}{share}\nobjects   {} ({} soft-pinned)\n",
        ByteSize(status.used_bytes),
        ByteSize(status.capacity_bytes),
        plural(status.keys, "key"),
        status.soft_pinned_keys,
    ));
    let ready = if status.ready { "ready" } else { "not ready" };
    text + &format!("status    {ready}, {}\n", plural(status.clients, "client"))
}

/// The report on a standby of a cluster; `None` for another master. A standby has no nodes, and its
/// memory and rates are the leader's.
fn standby_report(status: &StatusDocument<'_>) -> Option<String> {
    let keys = status.keys_of_copy?;
    let masters = status.masters.as_deref()?;
    let mut text = masters::render(Some(masters), &status.admin, false);
    text.push_str(&nodes::render(&status.nodes));
    for caveat in caveats(status) {
        text.push_str(&output::labelled("caveat", &caveat.to_string()));
    }
    let of = masters::leader(masters).map_or_else(|| "no leader".to_owned(), escaped);
    let state = match (status.not_promotable, status.etcd_error) {
        (None, None) => format!("in sync, could take over with {}", counted(keys, "key")),
        (None, Some(_)) => format!("in sync with {}, could not take over without etcd", counted(keys, "key")),
        (Some(_), _) => format!("could not take over without loss, {}", counted(keys, "key")),
    };
    text.push_str(&output::labelled("status", &format!("standby of {of}, {state}")));
    Some(text)
}

/// A share above 0 in percent, never as 0.0 %.
fn shown_share(share: f64) -> String {
    if share < 0.001 { "under 0.1 %".to_owned() } else { format!("{:.1} %", share * 100.0) }
}

fn percent(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| format!("{:.1} %", part as f64 * 100.0 / whole as f64))
}

fn segment_table(status: &StatusDocument<'_>, is_http: bool) -> String {
    let header = ["segment", "size", "used", "%", "endpoint", "protocol", "status", "heartbeat"];
    let mut table = ListTable::new(header, &[1, 2, 3, 7]);
    for segment in &status.segments {
        // In this case, the name is a key in the metadata service. No process listens on its port.
        let (used, capacity) = segment.usage();
        let is_only_name = is_http && segment.te_endpoint == segment.segment_name;
        let heartbeat = heartbeat(status, segment).map_or("-".to_owned(), |age| {
            let mark = if missed(age) >= 2 { " !" } else { "" };
            format!("{:.1} s{mark}", age.as_secs_f64())
        });
        table.row([
            escaped(segment.segment_name),
            ByteSize(segment.size_bytes).to_string(),
            ByteSize(used).to_string(),
            percent(used, capacity).map_or("-".to_owned(), |share| share.trim_end_matches(" %").to_owned()),
            if is_only_name { "(metadata service)".to_owned() } else { escaped(segment.te_endpoint) },
            escaped(segment.protocol),
            escaped(&segment.shown_status()),
            heartbeat,
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::admin::types::{HaStandbyReport, SegmentDetail};
    use crate::engine::store::transport_stats::{PeerStats, TransportStats};

    fn segment(name: &str, client: &str) -> SegmentDetail {
        SegmentDetail {
            segment_name: name.to_owned(),
            segment_id: "1-2".to_owned(),
            client_id: client.to_owned(),
            size_bytes: 16 << 30,
            te_endpoint: name.to_owned(),
            protocol: "tcp".to_owned(),
            status: "OK".to_owned(),
            allocator_used_bytes: 4 << 30,
            allocator_capacity_bytes: 16 << 30,
            ..SegmentDetail::default()
        }
    }

    fn status(segments: &[SegmentDetail]) -> StatusDocument<'_> {
        StatusDocument {
            schema: "mcctl.status/1",
            time: "2026-11-29T12:00:00.25Z".to_owned(),
            admin: "127.0.0.1:9003".to_owned(),
            role: "leader",
            state: "serving",
            ready: true,
            masters: None,
            not_promotable: None,
            etcd_error: None,
            etcd_outage_left_ms: None,
            keys_of_copy: None,
            used_bytes: 4 << 30,
            capacity_bytes: 16 << 30,
            keys: 1,
            soft_pinned_keys: 0,
            clients: 2,
            evicted_keys: 7,
            evicted_bytes: 7 << 20,
            failed_allocations: 0,
            lost_replicas: Some(0),
            data_dir: None,
            memory_only: None,
            rates: Some(OperationRates { puts: 12.34, ..OperationRates::default() }),
            interval_ms: Some(1000),
            completed_writes: None,
            segments: segments.iter().map(SegmentStatusEntry::from).collect(),
            heartbeats_ms: Some([("a", 400), ("b", 7100)].into()),
            releases: None,
            unknown_requests: &[],
            nodes: Vec::new(),
        }
    }

    #[test]
    fn releases_of_the_last_day_follow_the_last_ones() {
        let [first, second] =
            [["0.3.10.post2", "0.3.13.post1"], ["0.3.12.post1", "0.3.13.post1"]].map(|shown| shown.map(str::to_owned));
        let releases = Some([("h1", &first[..]), ("h2", &second[1..])].into());
        let shown = releases::shown(&StatusDocument { releases, ..status(&[]) }).expect("releases");
        let (now, before) = shown.split_once("also in the last day").expect("both parts");
        assert!(now.contains("0.3.13.post1 on 2 hosts") && before.contains("0.3.10.post2"), "{shown}");
        assert_eq!(releases::shown(&status(&[])), None);
    }

    #[test]
    fn a_report_shows_segments_and_ends_with_caveats_and_answer() {
        let segments = [segment("node-1:12345", "a"), segment("node-2:12345", "b"), segment("node-3:12345", "c")];
        let status = status(&segments);
        insta::assert_snapshot!(format!("{}\nHTTP metadata:\n{}", render(&status, false), render(&status, true)));
    }

    #[test]
    fn holds_missing_nodes_and_replaced_clients_are_caveats_with_times() {
        let held = SegmentDetail { held_ms: Some(22_100), ..segment("node-1:12345", "a") };
        let unconfirmed = SegmentDetail {
            unconfirmed_ms: Some(31_000),
            unconfirmed_replicas: Some(812),
            ..segment("node-3:12345", "c")
        };
        let old = segment("node-2:12345", "b");
        let segments = [held.clone(), unconfirmed, old];
        let mut document = status(&segments);
        document.segments[2].replaced_by = Some("d");
        document.segments[2].expires_ms = Some(2_900);
        let text = render(&document, false);
        let mut full = status(&[]);
        full.rates = Some(OperationRates { failed_allocations: 2.0, ..OperationRates::default() });
        let full = caveats(&full);
        assert!(
            full.iter().any(|caveat| matches!(caveat, StatusCaveat::NoMemory { used: 4_294_967_296, .. })),
            "{full:?}"
        );
        let mut alone = status(&segments[..1]);
        alone.rates = Some(OperationRates { failed_allocations: 2.0, ..OperationRates::default() });
        insta::assert_snapshot!(format!("{text}\nalone:\n{}", render(&alone, false)));
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(
            (&json["segments"][0]["held_ms"], &json["segments"][2]["replaced_by"]),
            (&22_100.into(), &"d".into())
        );
    }

    #[test]
    fn an_outage_of_etcd_states_how_long_the_leader_serves() {
        let segments = [segment("node-1:12345", "a")];
        let texts = [(true, None), (true, Some(84_200)), (false, Some(1_300))].map(|(in_sync, left)| {
            let standbys = vec![HaStandbyReport { connected: true, in_sync, ..HaStandbyReport::default() }];
            let report = HaStatusReport { serving: true, standbys, ..HaStatusReport::default() };
            let masters = Some(masters::of(&report));
            let etcd_error = Some("no response from etcd within 1 s");
            caveats(&StatusDocument { masters, etcd_error, etcd_outage_left_ms: left, ..status(&segments) })[0]
                .to_string()
        });
        insta::assert_snapshot!(texts.join("\n"));
    }

    #[test]
    fn a_standby_reads_as_a_standby() {
        let report = |not_promotable: Option<&str>| HaStatusReport {
            role: "standby".to_owned(),
            leader: Some("10.0.0.1:50051".to_owned()),
            in_sync: not_promotable.is_none(),
            not_promotable: not_promotable.map(str::to_owned),
            ..HaStatusReport::default()
        };
        let lagging = Some("not in sync: the leader has not added this copy to the sync record");
        let texts = [(None, None), (lagging, None), (None, Some("no response from etcd"))].map(|(why, etcd_error)| {
            let report = report(why);
            let document = StatusDocument {
                role: "standby",
                state: "standby",
                ready: false,
                masters: Some(masters::of(&report)),
                not_promotable: why,
                etcd_error,
                keys_of_copy: Some(944),
                ..status(&[])
            };
            render(&document, false)
        });
        insta::assert_snapshot!(texts.join("\n"));
    }

    #[test]
    fn a_leader_without_etcd_or_standbys_has_caveats() {
        let leader = |in_sync| HaStatusReport {
            serving: true,
            leader: Some("a:1".to_owned()),
            standbys: vec![HaStandbyReport { connected: true, in_sync, ..HaStandbyReport::default() }],
            ..HaStatusReport::default()
        };
        let segments = [segment("node-1:12345", "a")];
        let found = |in_sync, etcd_error| {
            let report = leader(in_sync);
            let masters = Some(masters::of(&report));
            caveats(&StatusDocument { masters, etcd_error, ..status(&segments) })
        };
        assert_eq!(found(true, None), []);
        assert_eq!(found(false, None), [StatusCaveat::NoStandbyInSync]);
        assert_eq!(
            found(true, Some("late")),
            [StatusCaveat::LeaderWithoutEtcd { error: "late".to_owned(), left: None, has_standby: true }]
        );
    }

    #[test]
    fn a_leader_that_cannot_prove_that_it_leads_is_not_a_standby() {
        let report =
            HaStatusReport { role: "leader".to_owned(), leader: Some("a:1".to_owned()), ..HaStatusReport::default() };
        assert!(is_leader(&report) && !is_leader(&HaStatusReport { role: "standby".to_owned(), ..report.clone() }));
        let segments = [segment("node-1:12345", "a")];
        let masters = Some(masters::of(&report));
        let found = caveats(&StatusDocument { masters, ready: false, memory_only: Some(true), ..status(&segments) });
        assert_eq!(found, [StatusCaveat::Fenced, StatusCaveat::MemoryOnly, StatusCaveat::NoStandbyInSync]);
    }

    #[test]
    fn a_report_shows_the_share_of_unchecked_writes_only_if_there_are_any() {
        let line = |with_checksum, without_checksum| {
            let writes = CompletedWrites { with_checksum, without_checksum, suspicious: 0 };
            let text = render(&StatusDocument { completed_writes: Some(writes), ..status(&[]) }, false);
            text.lines().find_map(|line| line.strip_prefix("unchecked ")).map(str::to_owned)
        };
        assert_eq!(line(30, 10).as_deref(), Some("25.0 % of 40 writes have no checksum"));
        assert_eq!(line(99_999, 1).as_deref(), Some("under 0.1 % of 100000 writes have no checksum"));
        assert_eq!(line(30, 0), None);
        assert_eq!(line(0, 0), None);
    }

    #[test]
    fn lost_replicas_are_shown_if_there_are_any() {
        let line = |lost_replicas| {
            let text = render(&StatusDocument { lost_replicas, ..status(&[]) }, false);
            text.lines().find_map(|line| line.strip_prefix("lost ")).map(|line| line.trim().to_owned())
        };
        let lost = line(Some(2));
        assert_eq!(
            lost.as_deref(),
            Some(
                "2 replicas since this master's process started, with nodes that expired, restarted or did not return"
            )
        );
        assert_eq!((line(Some(0)), line(None)), (None, None));
    }

    #[test]
    fn a_disk_without_room_for_the_next_snapshot_and_the_log_is_a_caveat() {
        let segments = [segment("node-1:12345", "a")];
        let found = |free_bytes| {
            let data_dir = Some(DataDirStatus::new(free_bytes, 900 << 20, 10 << 20));
            caveats(&StatusDocument { data_dir, ..status(&segments) })
        };
        assert_eq!(found(154 << 20), []);
        let almost_full = found((154 << 20) - 1);
        assert!(matches!(almost_full[..], [StatusCaveat::DiskAlmostFull(_)]), "{almost_full:?}");
    }

    #[test]
    fn damaged_objects_and_suspect_hosts_are_caveats() {
        let peer = |segment: &str, checksum_mismatches| PeerStats {
            segment: segment.to_owned(),
            transport: "tcp".to_owned(),
            state: "up".to_owned(),
            read_bytes: 0,
            written_bytes: 0,
            failures: 0,
            checksum_mismatches,
        };
        let figures = TransportStats {
            transport: "tcp".to_owned(),
            peers: vec![peer("10.0.0.2:12345", 12), peer("10.0.0.3:12345", 0)],
            suspect_peers: vec!["10.0.0.2".to_owned()],
            ..TransportStats::default()
        };
        let reply = NodeReply { at: "n:8080".to_owned(), transport: Ok(figures) };
        let writes = CompletedWrites { with_checksum: 7, without_checksum: 0, suspicious: 1 };
        let segments = [segment("10.0.0.2:12345", "a")];
        let document = StatusDocument {
            nodes: vec![NodeStatus::new(&reply)],
            completed_writes: Some(writes),
            ..status(&segments)
        };
        let texts: Vec<String> = caveats(&document).iter().map(StatusCaveat::to_string).collect();
        insta::assert_snapshot!(texts.join("\n"));
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["nodes"][0]["suspect_peers"][0], "10.0.0.2");
        assert_eq!(json["nodes"][0]["peers"][0]["checksum_mismatches"], 12);
        assert_eq!(json["completed_writes"]["without_checksum"], 0);
    }

    #[test]
    fn two_missed_heartbeats_and_missing_segments_are_caveats() {
        let segments = [segment("node-1:12345", "a"), segment("node-2:12345", "b")];
        let missed = StatusCaveat::HeartbeatsMissed {
            segment: "node-2:12345".to_owned(),
            age: Duration::from_secs(7),
            missed: 7,
            expires_s: None,
        };
        assert_eq!(caveats(&status(&segments)), [missed]);
        assert_eq!(caveats(&status(&[])), [StatusCaveat::NoSegments]);
        let ages = [0, 1_400, 1_600, 2_400, 2_600].map(|ms| super::missed(Duration::from_millis(ms)));
        assert_eq!(ages, [0, 0, 1, 1, 2]);
    }
}
