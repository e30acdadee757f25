//! `mcctl bench transfer`: benchmarks the transfer engine between two processes. It accepts the
//! flags of `transfer_engine_bench`, and either program can be the target or the initiator for the
//! other.

pub mod link;
pub mod upstream;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::commands::bench::caveat::{BenchCaveat, render_end};
use crate::commands::bench::transfer::upstream::UpstreamFlags;
use crate::commands::cli::args;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::origin::Origin;
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::table;
use crate::commands::target::transport::{self, TransportArgs};
use crate::engine::base::ByteSize;
use crate::engine::bench::transfer::{self as bench, TransferBenchError, TransferBenchPlan, TransferBenchResult};
use crate::engine::env::RealEnv;
use crate::engine::load::LatencySummary;
use crate::engine::metadata::MetadataUri;
use crate::engine::sys::{Memory, MemoryError, MemoryPolicy, MemorySource};
use crate::engine::transfer::{
    Access, OpKind, TransferConfig, TransferEngine, TransferError, TransferProtocol, TransferSettings,
};

/// The role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransferRole {
    /// Serve memory until SIGINT or SIGTERM
    Target,
    /// Read or write the target's memory
    Initiator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransferOperation {
    /// Read from the target
    Read,
    /// Write to the target
    Write,
}

/// Transfer engine benchmark.
#[derive(Debug, clap::Args)]
#[command(before_help = "mode segment-id operation block-size batch-size threads duration protocol")]
#[command(before_long_help = "mcctl bench transfer --mode target  # serve memory and print the segment name\n\
    mcctl bench transfer --segment-id 10.0.0.1:15001 --threads 4  # read from that target")]
pub struct Args {
    /// Role of this process
    #[arg(long, value_enum, default_value = "initiator")]
    mode: TransferRole,
    /// Metadata server: P2PHANDSHAKE, or http://HOST:PORT/metadata
    #[arg(long, alias = "metadata_server", default_value = "P2PHANDSHAKE")]
    metadata_server: MetadataUri,
    /// Name of this process; with P2PHANDSHAKE, the host that the peer connects to
    #[arg(long, alias = "local_server_name", default_value = "127.0.0.1", value_name = "NAME")]
    local_server_name: String,
    /// The target's segment: the address it prints after 'listening on', or its name in the
    /// metadata service
    #[arg(long, alias = "segment_id", value_name = "SEGMENT")]
    segment_id: Option<String>,
    /// Direction, from the initiator's point of view
    #[arg(long, value_enum, default_value = "read")]
    operation: TransferOperation,
    /// Size of each operation, in bytes or with a unit (64kb)
    #[arg(long, alias = "block_size", default_value = "65536", value_name = "SIZE")]
    block_size: ByteSize,
    /// Number of operations per batch
    #[arg(long, alias = "batch_size", default_value = "128", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch_size: u32,
    /// Number of threads that submit batches
    #[arg(long, visible_alias = "clients", default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Duration of the run, in seconds
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = args::seconds(86_400))]
    duration: u64,
    /// Size of this process's buffer; at least block size x batch size x threads is allocated
    #[arg(long, alias = "buffer_size", default_value = "1gb", value_name = "SIZE")]
    buffer_size: ByteSize,
    #[command(flatten)]
    transport: TransportArgs,
    #[command(flatten)]
    upstream: UpstreamFlags,
    /// Share memory with a peer on this host that also has this flag, instead of using --protocol
    #[arg(long, alias = "shared_memory")]
    shared_memory: bool,
    /// Verify the data of every batch (throughput and CPU usage include the verification)
    #[arg(long)]
    verify: bool,
    /// Number of decimal places in the report
    #[arg(long, alias = "report_precision", default_value = "2", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    report_precision: u8,
    /// Print the report as one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark as target or initiator.
///
/// # Errors
/// The command line is invalid, a peer is unreachable, or this host lacks a resource.
pub fn run(args: &Args) -> Outcome {
    if args.mode == TransferRole::Initiator && args.segment_id.is_none() {
        return Err(Failure::usage("--mode initiator requires --segment-id").next(
            "set it to the address that the target prints after 'listening on' (with a metadata service: its name), or use --mode target",
        ));
    }
    let lookup = |name: &str| args.upstream.variable(name, |name| std::env::var(name).ok());
    let Origin { value: transport, origin } = args.upstream.transport(&args.transport).transport(lookup)?;
    args.upstream.check(transport.protocol == TransferProtocol::Rdma)?;
    let (mut settings, mut warnings) = TransferSettings::from_env(&lookup);
    let (policy, more) = MemoryPolicy::from_env(&lookup);
    settings.shared_memory.enabled = args.shared_memory;
    let policy = MemoryPolicy { private: !args.shared_memory, ..policy };
    warnings.extend(more);
    for warning in warnings {
        output::say(format_args!("warning: {warning}"));
    }
    let plan = TransferBenchPlan {
        segment: args.segment_id.clone().unwrap_or_default(),
        kind: if args.operation == TransferOperation::Read { OpKind::Read } else { OpKind::Write },
        block_bytes: args.block_size.0,
        batch: args.batch_size as usize,
        threads: args.threads as usize,
        duration: Duration::from_secs(args.duration),
        verify: args.verify,
        batch_limit: BATCH_LIMIT,
    };
    if plan.block_bytes == 0 {
        return Err(Failure::usage("--block-size must be at least 1 byte")
            .next("set --block-size to the transfer size, e.g. 64kb"));
    }
    let bytes = plan.buffer_bytes().ok_or_else(|| {
        Failure::usage("--block-size x --batch-size x --threads is too large").next("lower one of them")
    })?;
    let buffer = MemorySource::new(policy).buffer(bytes.max(args.buffer_size.0)).map_err(|e| no_memory(&e))?;
    let config = TransferConfig {
        local_server_name: args.local_server_name.clone(),
        metadata: args.metadata_server.clone(),
        protocol: transport.protocol,
        announce_host: None,
        transport: transport.options.clone(),
        settings,
    };
    runtime::block_on(1, async {
        // From here on, a signal removes the metadata records before the process exits.
        let mut signals = Signals::take()?;
        let mut starting = pin!(TransferEngine::start(config, RealEnv::new()));
        let engine = tokio::select! {
            started = &mut starting => started.map_err(|error| {
                transport::failure(&error, &origin).unwrap_or_else(|| failed(&error, args))
            })?,
            signal = signals.next() => {
                let end = async {
                    if let Ok(engine) = starting.await {
                        let _ = engine.shutdown().await;
                    }
                };
                runtime::stop_in_time("the transfer engine", end).await;
                return Err(Failure::interrupted(format!("{signal}: stopped before the transfer engine was ready")));
            }
        };
        let outcome = match args.mode {
            TransferRole::Target => target(&engine, buffer, &mut signals, args).await,
            TransferRole::Initiator => tokio::select! {
                outcome = initiator(&engine, buffer, plan, args) => outcome,
                // Shutting down the engine ends the current batches.
                signal = signals.next() => Err(Failure::interrupted(format!("{signal}: stopped before the end of --duration"))),
            },
        };
        if let Some(Err(error)) = runtime::stop_in_time("the transfer engine", engine.shutdown()).await {
            tracing::warn!(%error, "metadata records of this process may remain");
        }
        outcome
    })
}

async fn target(engine: &TransferEngine, buffer: Memory, signals: &mut Signals, args: &Args) -> Outcome {
    let bytes = buffer.len();
    engine.register(&Arc::new(buffer), Access::Remote).await.map_err(|e| failed(&e, args))?;
    let at = engine.handshake();
    let segment = engine.segment_name();
    let data = engine.data_port();
    if args.json {
        let protocol = engine.protocol();
        let schema = "mcctl.bench.transfer.target/1";
        let ready =
            TargetReady { schema, listening: at.to_string(), segment, protocol, data_port: data, buffer_bytes: bytes };
        output::json(&ready)?;
    } else if data == 0 {
        output::line(format_args!("listening on {at} (segment {segment}, {}, {bytes} bytes)", engine.protocol()))?;
    } else {
        output::line(format_args!("listening on {at} (segment {segment}, data port {data}, {bytes} bytes)"))?;
    }
    let signal = signals.next().await;
    let served = engine.counters().served;
    output::say(format_args!(
        "{signal}: served {} reads ({}) and {} writes ({})",
        served.reads,
        ByteSize(served.read_bytes),
        served.writes,
        ByteSize(served.written_bytes)
    ));
    Ok(Exit::Done)
}

async fn initiator(engine: &TransferEngine, buffer: Memory, plan: TransferBenchPlan, args: &Args) -> Outcome {
    let progress = WorkProgress::start("transferring", WorkUnit::Seconds(plan.duration), || 0);
    let report = bench::run(engine, plan, buffer, RealEnv::new()).await.map_err(|e| bench_failed(e, args))?;
    drop(progress);
    let transport = engine.peers().first().map_or_else(|| engine.protocol(), |peer| peer.transport);
    print(&report, transport, args)?;
    Ok(Exit::Done)
}

fn print(report: &TransferBenchResult, protocol: &'static str, args: &Args) -> Result<(), Failure> {
    let gb_s = report.bytes_per_second() / 1e9;
    let latency = report.batch.summary();
    let us = |of: fn(&LatencySummary) -> Option<Duration>| {
        latency.as_ref().and_then(of).map(|took| took.as_secs_f64() * 1e6)
    };
    let p50 = us(|l| Some(l.p50));
    let p99 = us(|l| l.p99);
    let max = us(|l| Some(l.max));
    if args.json {
        return output::json(&TransferReport {
            schema: "mcctl.bench.transfer/1",
            operation: if args.operation == TransferOperation::Read { "read" } else { "write" },
            protocol,
            block_bytes: args.block_size.0,
            batch: args.batch_size,
            threads: args.threads,
            seconds: report.elapsed.as_secs_f64(),
            batches: report.batches,
            bytes: report.bytes,
            gb_per_s: gb_s,
            cpu_s_per_gb: report.cpu_seconds_per_gb(),
            batch_us_p50: p50,
            batch_us_p99: p99,
            batch_us_max: max,
            batch_latency: latency,
            verified: args.verify,
            caveats: caveats(report, args),
        });
    }
    let digits = usize::from(args.report_precision);
    let shown = |us: Option<f64>| us.map_or("too few".to_owned(), |us| format!("{us:.0} us"));
    let answer = [
        format!(
            "Test completed: duration {:.digits$}, batch count {}, throughput {}",
            report.elapsed.as_secs_f64(),
            report.batches,
            args.upstream.rate(report.bytes_per_second(), digits)
        ),
        format!("Batch latency: p50 {}, p99 {}, max {}", shown(p50), shown(p99), shown(max)),
        format!(
            "CPU time of this process: {:.digits$} s/GB{}",
            report.cpu_seconds_per_gb(),
            if args.verify { "; every byte verified" } else { "" }
        ),
    ];
    output::data(render_end(&caveats(report, args), &answer, table::width()))
}

#[derive(Serialize)]
struct TargetReady<'a> {
    schema: &'static str,
    listening: String,
    segment: &'a str,
    protocol: &'static str,
    data_port: u16,
    buffer_bytes: usize,
}

fn caveats(report: &TransferBenchResult, args: &Args) -> Vec<BenchCaveat> {
    let mut caveats = Vec::new();
    if report.batches < BATCHES_MIN {
        caveats.push(BenchCaveat::TooFewTransferBatches { batches: report.batches });
    }
    if args.verify {
        caveats.push(BenchCaveat::IncludesVerify);
    }
    caveats
}

/// Minimum number of batches for latency percentiles.
const BATCHES_MIN: u64 = 30;

#[derive(Serialize)]
struct TransferReport {
    schema: &'static str,
    operation: &'static str,
    protocol: &'static str,
    block_bytes: u64,
    batch: u32,
    threads: u32,
    seconds: f64,
    batches: u64,
    bytes: u64,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    batch_us_p50: Option<f64>,
    /// `None` if there are too few batches.
    batch_us_p99: Option<f64>,
    batch_us_max: Option<f64>,
    batch_latency: Option<LatencySummary>,
    verified: bool,
    #[serde(rename = "doubts")]
    caveats: Vec<BenchCaveat>,
}

/// Timeout for one batch.
const BATCH_LIMIT: Duration = Duration::from_secs(60);

fn bench_failed(error: TransferBenchError, args: &Args) -> Failure {
    match &error {
        TransferBenchError::Transfer(error) => failed(error, args),
        TransferBenchError::TargetTooSmall { .. } => Failure::usage(error.to_string())
            .next("start the target with a larger --buffer-size, or lower --block-size, --batch-size or --threads"),
        TransferBenchError::BufferTooSmall(_) => Failure::usage(error.to_string()).next("raise --buffer-size"),
        TransferBenchError::WrongBytes { .. } => Failure::no(error.to_string()),
        TransferBenchError::Thread(source) => Failure::host(error.to_string()).found(source.to_string()),
    }
}

fn failed(error: &TransferError, args: &Args) -> Failure {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let segment = args.segment_id.as_deref().unwrap_or("the target");
    let failure = match error {
        TransferError::PeerProtocol { .. } => Failure::usage(error.to_string())
            .tried(format!("--segment-id {segment}"))
            .next("set the same --protocol for both processes"),
        TransferError::Name { .. } | TransferError::NameTaken { .. } => {
            Failure::usage(error.to_string()).next("choose another --local-server-name")
        }
        TransferError::Metadata(_) => Failure::unreachable(error.to_string())
            .tried(format!("--metadata-server {}", args.metadata_server))
            .next("check that the metadata service is running at this address"),
        TransferError::UnknownSegment { .. } => Failure::unreachable(error.to_string())
            .next("check that the target uses the same --metadata-server and that --segment-id is its segment"),
        TransferError::Lost { .. } | TransferError::Timeout { .. } | TransferError::Down { .. } => {
            Failure::unreachable(error.to_string()).tried(format!("--segment-id {segment}")).next(
                "check that the target is running and that --segment-id is the address it prints after 'listening on'",
            )
        }
        TransferError::Device(fault) => {
            let failure = Failure::new(transport::exit(fault), error.to_string());
            // A fault without a peer is local, so the segment is irrelevant.
            let failure =
                if fault.peer.is_empty() { failure } else { failure.tried(format!("--segment-id {segment}")) };
            failure.next(transport::next(fault, "the target"))
        }
        TransferError::NoPort { .. } | TransferError::NoAddress => Failure::host(error.to_string()),
        _ => Failure::no(error.to_string()),
    };
    match cause {
        Some(cause) => failure.found(cause),
        None => failure,
    }
}

fn no_memory(error: &MemoryError) -> Failure {
    let failure = Failure::host(error.to_string());
    let failure = match std::error::Error::source(error) {
        Some(cause) => failure.found(cause.to_string()),
        None => failure,
    };
    match error {
        MemoryError::NotEnoughHugePages { .. } | MemoryError::NoSuchPage { .. } => failure.next(
            "reserve more huge pages if the memory suffices, lower --buffer-size, or unset MC_STORE_USE_HUGEPAGE",
        ),
        _ => failure.next("lower --buffer-size, or add memory to this host"),
    }
}
