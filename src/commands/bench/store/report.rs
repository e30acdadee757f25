//! The report of a store benchmark: the JSON document, the tables and the conclusion.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::caveat::{BenchCaveat, render_end};
use crate::commands::bench::store::measure::{MeasuredStore, WarmUp};
use crate::commands::bench::store::{Args, BATCHES_MIN, UNREACHABLE};
use crate::commands::cli::error::Exit;
use crate::commands::cli::runtime::StopSignal;
use crate::commands::cli::table::{self, ReportSection, ReportTable};
use crate::engine::base::ByteSize;
use crate::engine::base::text::counted;
use crate::engine::bench::store::{
    OperationStats, PassKind, SHARED_MEMORY, StoreBenchPlan, StorePass, TransportShare, TransportUse,
};
use crate::engine::load::LatencySummary;

#[derive(Debug, Serialize)]
pub(super) struct StoreReport {
    schema: &'static str,
    master: String,
    prefix: String,
    object_bytes: Vec<u64>,
    objects: u32,
    batch: u32,
    /// Number of clients of each process.
    clients: u32,
    /// Number of processes that ran at the same time.
    ranks: u32,
    /// How often each object was put and read.
    rounds: u32,
    warm_up: WarmUp,
    transport: TransportReport,
    replicas: u64,
    read_ratio: f64,
    zipf: Option<f64>,
    seed: u64,
    verified: bool,
    overfill: bool,
    stopped: bool,
    passes: Vec<StorePassReport>,
    /// The passes of each process, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    per_rank: Vec<Vec<StorePassReport>>,
    /// Number of objects removed at the end; `None` if they were kept or could not be removed.
    removed: Option<i64>,
    #[serde(rename = "doubts")]
    caveats: Vec<BenchCaveat>,
}

#[derive(Debug, Serialize)]
struct StorePassReport {
    name: &'static str,
    seconds: f64,
    cpu_s: f64,
    cpu_us_per_object: Option<f64>,
    cpu_s_per_gb: Option<f64>,
    put: Option<OperationReport>,
    get: Option<OperationReport>,
}

#[derive(Debug, Serialize)]
struct OperationReport {
    batches: u64,
    objects: u64,
    bytes: u64,
    objects_per_s: f64,
    gb_per_s: f64,
    transport: TransportReport,
    /// Latency of whole batches.
    latency: Option<LatencySummary>,
    missing: u64,
    already_there: u64,
    /// Number of objects with fewer replicas than `--replicas`.
    fewer_copies: u64,
    verified: u64,
    failed: u64,
    failures: BTreeMap<String, ErrorReport>,
}

/// Which transport moved the bytes.
#[derive(Debug, Serialize)]
struct TransportReport {
    /// Number of nodes to or from which bytes moved.
    nodes: usize,
    /// The transport with the most bytes comes first.
    used: Vec<TransportShare>,
}

impl TransportReport {
    fn new(transport: &TransportUse) -> TransportReport {
        TransportReport { nodes: transport.nodes(), used: transport.shares() }
    }

    /// Names the transports, with the number of nodes that each reached.
    fn text(&self) -> String {
        let share = |share: &TransportShare| {
            let name = match share.transport.as_str() {
                SHARED_MEMORY => "shared memory",
                "tcp" => "TCP",
                "rdma" => "RDMA",
                other => other,
            };
            format!("{name} ({} of {})", share.nodes, counted(self.nodes, "node"))
        };
        match self.used.as_slice() {
            [] => "none".to_owned(),
            used => used.iter().map(share).collect::<Vec<_>>().join(", "),
        }
    }
}

#[derive(Debug, Serialize)]
struct ErrorReport {
    count: u64,
    first: String,
}

impl OperationReport {
    fn new(pass: &StorePass, done: &OperationStats) -> Option<OperationReport> {
        let failed = done.failures();
        let any = done.objects + done.missing + done.already_existing + failed;
        (any > 0).then(|| OperationReport {
            batches: done.batches,
            objects: done.objects,
            bytes: done.bytes,
            objects_per_s: pass.per_second(done.objects),
            gb_per_s: pass.per_second(done.bytes) / 1e9,
            transport: TransportReport::new(&done.transport),
            latency: done.latency.summary(),
            missing: done.missing,
            already_there: done.already_existing,
            fewer_copies: done.fewer_copies,
            verified: done.verified,
            failed,
            failures: done
                .failed
                .iter()
                .map(|(name, failed)| (name.clone(), ErrorReport { count: failed.count, first: failed.first.clone() }))
                .collect(),
        })
    }
}

impl StorePassReport {
    fn new(pass: &StorePass) -> StorePassReport {
        let gb = (pass.put.bytes + pass.get.bytes) as f64 / 1e9;
        let cpu = pass.cpu.as_secs_f64();
        StorePassReport {
            name: pass.kind.name(),
            seconds: pass.elapsed.as_secs_f64(),
            cpu_s: cpu,
            cpu_us_per_object: pass.cpu_per_object().map(|cpu| cpu.as_secs_f64() * 1e6),
            cpu_s_per_gb: (gb > 0.0).then(|| cpu / gb),
            put: OperationReport::new(pass, &pass.put),
            get: OperationReport::new(pass, &pass.get),
        }
    }

    fn gb_per_s(&self) -> [Option<f64>; 2] {
        [&self.put, &self.get].map(|figures| figures.as_ref().map(|figures| figures.gb_per_s))
    }
}

impl StoreReport {
    /// Creates the report of a run against `master`. `stopped`: the signal that ended the run
    /// early.
    pub(super) fn new(
        args: &Args,
        plan: &StoreBenchPlan,
        master: &str,
        measured: MeasuredStore,
        stopped: Option<StopSignal>,
    ) -> StoreReport {
        let MeasuredStore { passes, ranks, warm_up, rounds, removed } = measured;
        let mut caveats: Vec<BenchCaveat> = stopped.map(|signal| BenchCaveat::Signal { signal }).into_iter().collect();
        match &warm_up {
            WarmUp::Off => caveats.push(BenchCaveat::NoWarmUp),
            WarmUp::Partial { objects, of, errors } => {
                caveats.push(BenchCaveat::PartialWarmUp { objects: *objects, of: *of, errors: errors.join(", ") });
            }
            WarmUp::Done { .. } => {}
        }
        for pass in &passes {
            let name = pass.kind.name();
            for (what, done) in [("put", &pass.put), ("get", &pass.get)] {
                let latencies = done.latency.count();
                if latencies > 0 && latencies < BATCHES_MIN {
                    let operation = if name == what { what.to_owned() } else { format!("{name}: {what}") };
                    caveats.push(BenchCaveat::TooFewStoreBatches { operation, batches: latencies });
                }
                if done.missing > 0 && args.overfill {
                    caveats.push(BenchCaveat::MissingObjects { pass: name, objects: done.missing });
                }
                if done.fewer_copies > 0 {
                    caveats.push(BenchCaveat::FewerCopies {
                        pass: name,
                        fewer: done.fewer_copies,
                        objects: done.objects,
                        replicas: plan.replicas,
                    });
                }
            }
            if pass.kind == PassKind::Mixed && pass.put.objects > 0 && warm_up != WarmUp::Off {
                caveats.push(BenchCaveat::MixedNotWarm { objects: pass.put.objects });
            }
        }
        let removed = removed.unwrap_or_else(|error| {
            caveats.push(BenchCaveat::NotRemoved { error, prefix: plan.prefix.clone() });
            None
        });
        let mut transport = TransportUse::default();
        for pass in &passes {
            transport.add(&pass.put.transport);
            transport.add(&pass.get.transport);
        }
        let per_rank = ranks.iter().map(|passes| passes.iter().map(StorePassReport::new).collect());
        StoreReport {
            schema: "mcctl.bench.store/2",
            master: master.to_owned(),
            prefix: plan.prefix.clone(),
            object_bytes: plan.sizes.clone(),
            objects: plan.objects,
            batch: plan.batch,
            clients: args.clients,
            ranks: args.ranks,
            rounds,
            warm_up,
            transport: TransportReport::new(&transport),
            replicas: plan.replicas,
            read_ratio: plan.read_ratio,
            zipf: plan.zipf,
            seed: plan.seed.0,
            verified: plan.verify,
            overfill: args.overfill,
            stopped: stopped.is_some(),
            passes: passes.iter().map(StorePassReport::new).collect(),
            per_rank: if args.ranks > 1 { per_rank.collect() } else { Vec::new() },
            removed,
            caveats,
        }
    }

    /// Whether a signal ended the run.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns every pass with its operations and figures.
    fn figures(&self) -> impl Iterator<Item = (&StorePassReport, &'static str, &OperationReport)> {
        self.passes.iter().flat_map(move |pass| {
            [("put", &pass.put), ("get", &pass.get)]
                .into_iter()
                .filter_map(move |(what, figures)| Some((pass, what, figures.as_ref()?)))
        })
    }

    /// Returns the number of failed objects. Missing objects count as failed unless `--overfill` is
    /// set.
    fn failures(&self) -> u64 {
        let missing = |figures: &OperationReport| if self.overfill { 0 } else { figures.missing };
        self.figures().map(|(_, _, figures)| figures.failed + missing(figures)).sum()
    }

    /// Returns the exit code: 1 if objects failed or the run was stopped; 3 if nothing was
    /// transferred because the master or a node is unreachable.
    pub(super) fn exit(&self) -> Exit {
        let figures = || self.figures().map(|(_, _, figures)| figures);
        let moved = figures().any(|figures| figures.objects > 0);
        let mut errors = figures().flat_map(|figures| figures.failures.keys()).peekable();
        let is_unreachable =
            !moved && errors.peek().is_some() && errors.all(|name| UNREACHABLE.contains(&name.as_str()));
        if is_unreachable {
            Exit::Unreachable
        } else if self.failures() > 0 || self.stopped {
            Exit::No
        } else {
            Exit::Done
        }
    }

    /// Renders the report, wrapped to `width` columns.
    pub(super) fn text(&self, width: usize) -> String {
        let sizes: Vec<String> = self.object_bytes.iter().map(|bytes| ByteSize(*bytes).to_string()).collect();
        let mut whole = ReportSection::new("");
        let clients = match self.ranks {
            1 => counted(self.clients, "client"),
            ranks => format!("{ranks} ranks with {} each", counted(self.clients, "client")),
        };
        whole.text.push(format!(
            "store at {}: {} of {}{}, {} per batch, {clients} (seed {})",
            self.master,
            counted(self.objects, "object"),
            sizes.join(", "),
            if self.ranks > 1 { " per rank" } else { "" },
            self.batch,
            self.seed,
        ));
        let warm_up = match &self.warm_up {
            WarmUp::Off => "no warm-up".to_owned(),
            WarmUp::Done { objects, bytes } => {
                format!("warmed up with {} ({})", counted(*objects, "object"), ByteSize(*bytes))
            }
            WarmUp::Partial { objects, of, .. } => format!("warmed up with only {objects} of {of} objects"),
        };
        whole.text.push(format!("transport: {}; {warm_up}; {}", self.transport.text(), counted(self.rounds, "round")));
        let mut moved = ReportTable::new(
            "",
            &["pass", "operation", "objects", "objects/s", "GB/s", "CPU us/object", "missing", "failed", "transport"],
        )
        .text_column(1)
        .text_column(8);
        let head = ["pass", "operation", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
        let mut batches = ReportTable::new("Batch latency, ms", &head).text_column(1);
        for (pass, what, figures) in self.figures() {
            moved.row([
                pass.name.to_owned(),
                what.to_owned(),
                figures.objects.to_string(),
                format!("{:.0}", figures.objects_per_s),
                format!("{:.3}", figures.gb_per_s),
                pass.cpu_us_per_object.map_or("-".to_owned(), |cpu| format!("{cpu:.0}")),
                figures.missing.to_string(),
                figures.failed.to_string(),
                figures.transport.text(),
            ]);
            if let Some(latency) = &figures.latency {
                let (ms, maybe) = (
                    |took: Duration| format!("{:.2}", took.as_secs_f64() * 1e3),
                    |took: Option<Duration>| {
                        took.map_or("too few".to_owned(), |took| format!("{:.2}", took.as_secs_f64() * 1e3))
                    },
                );
                batches.row([
                    pass.name.to_owned(),
                    what.to_owned(),
                    latency.count.to_string(),
                    ms(latency.mean),
                    ms(latency.deviation),
                    ms(latency.min),
                    ms(latency.p50),
                    maybe(latency.p90),
                    maybe(latency.p95),
                    maybe(latency.p99),
                    maybe(latency.p999),
                    ms(latency.max),
                ]);
            }
        }
        whole.tables = vec![moved, batches, self.rank_table()];
        let mut text = whole.render(width) + "\n";
        for (pass, what, figures) in self.figures() {
            for (name, failed) in &figures.failures {
                let line = format!("failed: {}: {what}: {} x {name}: {}", pass.name, failed.count, failed.first);
                text.push_str(&table::wrapped_line(&line, width));
            }
            if figures.missing > 0 && !self.overfill {
                let line = format!(
                    "failed: {}: {what}: {} objects not found: they were evicted or never stored (if the store is smaller than the data, \
                     use --overfill)",
                    pass.name, figures.missing
                );
                text.push_str(&table::wrapped_line(&line, width));
            }
        }
        text + &render_end(&self.caveats, &self.answer(), width)
    }

    /// Returns the throughput of each process, if there are several.
    fn rank_table(&self) -> ReportTable {
        let mut head = vec!["rank"];
        let names: Vec<String> = self
            .passes
            .iter()
            .flat_map(|pass| {
                let operations = ["put", "get"].into_iter().zip(pass.gb_per_s()).filter(|(_, rate)| rate.is_some());
                operations.map(move |(what, _)| match pass.name == what {
                    true => format!("{what} GB/s"),
                    false => format!("{}: {what} GB/s", pass.name),
                })
            })
            .collect();
        head.extend(names.iter().map(String::as_str));
        let mut table = ReportTable::new("By rank", &head);
        for (rank, passes) in self.per_rank.iter().enumerate() {
            let rates = self.passes.iter().zip(passes).flat_map(|(all, pass)| {
                all.gb_per_s().into_iter().zip(pass.gb_per_s()).filter(|(all, _)| all.is_some()).map(|(_, one)| one)
            });
            let rates = rates.map(|rate| rate.map_or("-".to_owned(), |rate| format!("{rate:.3}")));
            table.row(std::iter::once(rank.to_string()).chain(rates));
        }
        table
    }

    /// Returns the report's conclusion: puts, gets, and what happened to the objects.
    fn answer(&self) -> Vec<String> {
        let line = |name: &'static str| {
            let figures: Vec<_> = self.figures().filter(|(_, what, _)| *what == name).collect();
            let objects: u64 = figures.iter().map(|(_, _, figures)| figures.objects).sum();
            let best = figures.iter().max_by(|a, b| a.2.gb_per_s.total_cmp(&b.2.gb_per_s))?;
            let p50 = best
                .2
                .latency
                .as_ref()
                .map_or("-".to_owned(), |latency| format!("{:.2} ms", latency.p50.as_secs_f64() * 1e3));
            let over = best.2.transport.text();
            let objects = counted(objects, "object");
            Some(format!("{name}: {objects}, {:.3} GB/s over {over}, batch latency p50 {p50}", best.2.gb_per_s))
        };
        let mut answer: Vec<String> = ["put", "get"].into_iter().filter_map(line).collect();
        let verified: u64 = self.passes.iter().filter_map(|pass| Some(pass.get.as_ref()?.verified)).sum();
        let verified =
            if self.verified { format!("{verified} objects compared byte for byte, ") } else { String::new() };
        let sum = |of: fn(&OperationReport) -> u64| self.figures().map(|(_, _, figures)| of(figures)).sum::<u64>();
        let failed = sum(|figures| figures.failed);
        let missing = sum(|figures| figures.missing);
        let missing = if missing == 0 { String::new() } else { format!("{missing} missing, ") };
        answer.push(match self.removed {
            Some(removed) => format!("{verified}{missing}{failed} failed, {removed} removed"),
            None => format!("{verified}{missing}{failed} failed, objects kept under the prefix {}", self.prefix),
        });
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_names_the_nodes_that_it_reached() {
        let mut used = TransportUse::default();
        assert_eq!(TransportReport::new(&used).text(), "none");
        used.count("tcp", "a", 10);
        assert_eq!(TransportReport::new(&used).text(), "TCP (1 of 1 node)");
        ["a", "b", "c"].iter().for_each(|node| used.count(SHARED_MEMORY, node, 100));
        assert_eq!(TransportReport::new(&used).text(), "shared memory (3 of 3 nodes), TCP (1 of 3 nodes)");
        used.count("rdma", "d", 1000);
        let text = TransportReport::new(&used).text();
        assert_eq!(text, "RDMA (1 of 4 nodes), shared memory (3 of 4 nodes), TCP (1 of 4 nodes)");
    }
}
