//! `mcctl status`: what a master holds and does, and what nodes move bytes over. Reads their HTTP only, so it changes nothing.

mod nodes;

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::commands::admin::{Admin, Health, Segment};
use crate::commands::args as parsers;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::status::nodes::{Answer, Node};
use crate::commands::target::MasterArgs;
use crate::engine::base::text::escaped;
use crate::engine::base::{ByteSize, HostPort, Mono};
use crate::engine::env::{Env, RealEnv};

/// What to show, how often.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show it again and again, until a signal
    #[arg(long, short)]
    watch: bool,
    /// Time over which rates are measured, and between two pictures of --watch; 0 shows no rates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parsers::duration)]
    interval: Duration,
    /// Ask this node too (its HTTP port; 8080 where none is written) what it moves bytes over, by peer and RDMA device; may be given
    /// several times
    #[arg(long = "node", value_name = "HOST[:PORT]", value_parser = node)]
    nodes: Vec<HostPort>,
    /// One JSON document on stdout; with --watch one a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    master: MasterArgs,
}

fn node(text: &str) -> Result<HostPort, String> {
    parsers::endpoint(text, nodes::PORT)
}

/// What is asked for once.
struct Sample {
    at: Mono,
    health: Health,
    segments: Vec<Segment>,
    metrics: BTreeMap<String, f64>,
    nodes: Vec<Answer>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    admin: String,
    role: &'a str,
    state: &'a str,
    ready: bool,
    used_bytes: u64,
    capacity_bytes: u64,
    keys: u64,
    soft_pinned_keys: u64,
    clients: u64,
    evicted_keys: u64,
    evicted_bytes: u64,
    failed_allocations: u64,
    /// Per second, over `interval_ms`.
    rates: Option<Rates>,
    interval_ms: Option<u64>,
    segments: &'a [Segment],
    /// Those that were asked.
    nodes: Vec<Node<'a>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Rates {
    puts: f64,
    gets: f64,
    exists: f64,
    removes: f64,
    evicted_keys: f64,
    failed_allocations: f64,
    heartbeats: f64,
}

impl Args {
    /// Show it.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        runtime::block_on(0, async {
            let mut signals = Signals::take()?;
            let found = async { self.show(&self.master.find().await?.admin_required().await?).await };
            tokio::select! {
                outcome = found => outcome,
                // What --watch shows has no end of its own.
                signal = signals.next() => match self.watch {
                    true => Ok(Exit::Done),
                    false => Err(Failure::no(format!("{signal}: stopped before the master had answered"))),
                },
            }
        })
    }

    async fn show(&self, admin: &Admin) -> Outcome {
        let env = RealEnv::new();
        let pause = if self.watch { self.interval.max(WATCH_MIN) } else { self.interval };
        let mut last = self.sample(&env, admin).await?;
        if pause.is_zero() {
            self.picture(admin, &last, None)?;
            return Ok(ready(&last));
        }
        loop {
            env.sleep(pause).await;
            let now = self.sample(&env, admin).await?;
            self.picture(admin, &now, Some(&last))?;
            if !self.watch {
                return Ok(ready(&now));
            }
            last = now;
        }
    }

    async fn sample(&self, env: &RealEnv, admin: &Admin) -> Result<Sample, Failure> {
        let health = admin.health().await?;
        // A standby answers neither.
        let segments = if health.service_ready { admin.segments().await? } else { Vec::new() };
        let (at, metrics) = (env.now(), admin.metrics().await?);
        Ok(Sample { at, health, segments, metrics, nodes: nodes::ask(&self.nodes, self.master.timeout).await? })
    }

    fn picture(&self, admin: &Admin, now: &Sample, before: Option<&Sample>) -> Result<(), Failure> {
        let document = document(admin, now, before);
        if self.json {
            return output::json(&document);
        }
        let clear = if self.watch && output::is_fancy() { "\x1b[H\x1b[2J" } else { "" };
        output::data(format!("{clear}{}", render(&document)))
    }
}

/// The shortest time between two pictures.
const WATCH_MIN: Duration = Duration::from_millis(100);

/// A master that does not serve is a no; a node that does not answer is unreachable.
fn ready(sample: &Sample) -> Exit {
    for (node, answer) in &sample.nodes {
        if let Err(error) = answer {
            let next = "see that mcctl serve store runs there, and give its HTTP port (--port) as --node HOST:PORT";
            output::say(format!("node {node}: {}; next: {next}", escaped(error)));
        }
    }
    match sample.nodes.iter().all(|(_, answer)| answer.is_ok()) {
        _ if !sample.health.service_ready => Exit::No,
        true => Exit::Done,
        false => Exit::Unreachable,
    }
}

fn document<'a>(admin: &Admin, now: &'a Sample, before: Option<&Sample>) -> Document<'a> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts and bytes; the cast saturates")]
    let whole = |name: &str| now.metrics.get(name).map_or(0, |value| *value as u64);
    let span = before.map(|before| now.at.since(before.at));
    Document {
        schema: "mcctl.status/1",
        admin: admin.at().to_string(),
        role: &now.health.role,
        state: &now.health.ha_state,
        ready: now.health.service_ready,
        used_bytes: whole("master_allocated_bytes"),
        capacity_bytes: whole("master_total_capacity_bytes"),
        keys: whole("master_key_count"),
        soft_pinned_keys: whole("master_soft_pin_key_count"),
        clients: whole("master_active_clients"),
        evicted_keys: whole("master_evicted_key_count"),
        evicted_bytes: whole("master_evicted_size_bytes"),
        failed_allocations: whole("master_put_start_alloc_failures_total"),
        rates: before.zip(span).map(|(before, span)| rates(&before.metrics, &now.metrics, span)),
        interval_ms: span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        segments: &now.segments,
        nodes: now.nodes.iter().map(Node::new).collect(),
    }
}

/// What happened per second between two sets of metrics. Batch calls count with their items.
fn rates(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>, span: Duration) -> Rates {
    let grown = |name: &str| {
        let value = |of: &BTreeMap<String, f64>| of.get(name).copied().unwrap_or(0.0);
        // A restart in between makes a counter smaller.
        (value(now) - value(before)).max(0.0) / span.as_secs_f64().max(f64::EPSILON)
    };
    let calls = |one: &str| grown(&format!("master_{one}_requests_total"));
    let items = |batch: &str| grown(&format!("master_batch_{batch}_items_total"));
    Rates {
        puts: calls("put_end") + items("put_end"),
        gets: calls("get_replica_list") + items("get_replica_list"),
        exists: calls("exist_key") + items("exist_key"),
        removes: calls("remove") + calls("remove_by_regex") + calls("remove_all"),
        evicted_keys: grown("master_evicted_key_count"),
        failed_allocations: grown("master_put_start_alloc_failures_total"),
        heartbeats: calls("ping"),
    }
}

fn render(status: &Document<'_>) -> String {
    let plural = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut text = format!(
        "master    {} {} {}\nmemory    {} of {}{}\nobjects   {} ({} soft-pinned)\nclients   {}\nevicted   {} ({}); {}\n",
        status.admin,
        status.role,
        status.state,
        ByteSize(status.used_bytes),
        ByteSize(status.capacity_bytes),
        percent(status.used_bytes, status.capacity_bytes).map_or(String::new(), |share| format!(" ({share})")),
        plural(status.keys, "key"),
        status.soft_pinned_keys,
        status.clients,
        plural(status.evicted_keys, "key"),
        ByteSize(status.evicted_bytes),
        plural(status.failed_allocations, "failed allocation"),
    );
    if let (Some(rates), Some(ms)) = (status.rates, status.interval_ms) {
        text.push_str(&format!(
            "per s     put {:.1}  get {:.1}  exist {:.1}  remove {:.1}  evicted {:.1}  heartbeat {:.1}  (over {:.1} s)\n",
            rates.puts,
            rates.gets,
            rates.exists,
            rates.removes,
            rates.evicted_keys,
            rates.heartbeats,
            Duration::from_millis(ms).as_secs_f64(),
        ));
    }
    if status.segments.is_empty() {
        text.push_str("segments  none: no node has mounted memory, so every put fails\n");
    } else {
        text.push_str(&format!("segments  {}\n{}\n", status.segments.len(), segment_table(status.segments).trim_fmt()));
    }
    text + &nodes::render(&status.nodes)
}

fn percent(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| format!("{:.1} %", part as f64 * 100.0 / whole as f64))
}

fn segment_table(segments: &[Segment]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["segment", "size", "used %", "used", "endpoint", "protocol", "status"]);
    for segment in segments {
        table.add_row([
            escaped(&segment.segment_name),
            ByteSize(segment.size_bytes).to_string(),
            percent(segment.allocator_used_bytes, segment.allocator_capacity_bytes).unwrap_or_default(),
            ByteSize(segment.allocator_used_bytes).to_string(),
            escaped(&segment.te_endpoint),
            escaped(&segment.protocol),
            escaped(&segment.status),
        ]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn rates_count_batch_items_and_survive_a_restart() {
        let before = metrics(&[("master_put_end_requests_total", 10.0), ("master_exist_key_requests_total", 50.0)]);
        let now = metrics(&[
            ("master_put_end_requests_total", 30.0),
            ("master_batch_put_end_items_total", 100.0),
            ("master_exist_key_requests_total", 5.0),
        ]);
        let rates = rates(&before, &now, Duration::from_secs(2));
        assert_eq!((rates.puts, rates.exists), (60.0, 0.0));
    }

    #[test]
    fn the_picture_names_memory_keys_clients_and_each_segment() {
        let segment = Segment {
            segment_name: "node-1:12345".to_owned(),
            segment_id: "1-2".to_owned(),
            client_id: "3-4".to_owned(),
            size_bytes: 16 << 30,
            te_endpoint: "node-1:15000".to_owned(),
            protocol: "tcp".to_owned(),
            status: "OK".to_owned(),
            allocator_used_bytes: 4 << 30,
            allocator_capacity_bytes: 16 << 30,
        };
        let status = Document {
            schema: "mcctl.status/1",
            admin: "127.0.0.1:9003".to_owned(),
            role: "leader",
            state: "serving",
            ready: true,
            used_bytes: 4 << 30,
            capacity_bytes: 16 << 30,
            keys: 1,
            soft_pinned_keys: 0,
            clients: 2,
            evicted_keys: 7,
            evicted_bytes: 7 << 20,
            failed_allocations: 0,
            rates: Some(Rates { puts: 12.34, ..Rates::default() }),
            interval_ms: Some(1000),
            segments: &[segment],
            nodes: Vec::new(),
        };
        insta::assert_snapshot!(render(&status), @r"
        master    127.0.0.1:9003 leader serving
        memory    4 GiB of 16 GiB (25.0 %)
        objects   1 key (0 soft-pinned)
        clients   2
        evicted   7 keys (7 MiB); 0 failed allocations
        per s     put 12.3  get 0.0  exist 0.0  remove 0.0  evicted 0.0  heartbeat 0.0  (over 1.0 s)
        segments  1
         segment         size  used %   used  endpoint      protocol  status
         node-1:12345  16 GiB  25.0 %  4 GiB  node-1:15000  tcp       OK
        ");
    }
}
