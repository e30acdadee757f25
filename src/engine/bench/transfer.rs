//! Transfer engine benchmark: throughput, latency and CPU cost of reading or writing a peer's
//! memory.
//!
//! Threads run batches of identical operations until the duration has elapsed, as Mooncake's
//! `transfer_engine_bench` does. Each thread uses its own section of each buffer.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mcctl_load::LatencyHistogram;
use mcctl_sys::env::Env;
use mcctl_sys::host::cpu_time;
use mcctl_sys::{Memory, OutOfRange};
use mcctl_transfer::{Access, Op, OpKind, RemoteAddr, TransferEngine, TransferError};

/// The plan for a run.
#[derive(Clone, Debug)]
pub struct TransferBenchPlan {
    pub segment: String,
    pub kind: OpKind,
    pub block_bytes: u64,
    pub batch: usize,
    pub threads: usize,
    pub duration: Duration,
    /// Verify the data of every batch.
    pub verify: bool,
    /// Timeout for one batch.
    pub batch_limit: Duration,
}

impl TransferBenchPlan {
    /// Returns the minimum size of each buffer in bytes; `None` on overflow.
    pub fn buffer_bytes(&self) -> Option<u64> {
        self.block_bytes.checked_mul(self.batch as u64)?.checked_mul(self.threads as u64)
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct TransferBenchResult {
    /// Time from the start of the first batch to the end of the last.
    pub elapsed: Duration,
    pub batches: u64,
    pub bytes: u64,
    /// CPU time of this process during the run, over all threads.
    pub cpu: Duration,
    pub batch: LatencyHistogram,
}

impl TransferBenchResult {
    /// Returns the throughput in bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns CPU seconds per 1e9 bytes.
    pub fn cpu_seconds_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9).max(1e-9)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TransferBenchError {
    /// The segment cannot be opened, or an operation failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The target's buffers are too small.
    #[error(
        "the largest buffer in segment {segment} has {offered} bytes; {wanted} are required (block size x batch size x threads)"
    )]
    TargetTooSmall {
        segment: String,
        /// Size of the largest buffer in bytes.
        offered: u64,
        /// Number of bytes that the plan requires.
        wanted: u64,
    },
    /// The local buffer is too small.
    #[error(transparent)]
    BufferTooSmall(#[from] OutOfRange),
    #[error("verification failed: {kind} of {length} bytes at {address:#x} differs at offset {at}")]
    WrongBytes {
        /// `read` or `write`.
        kind: &'static str,
        /// Address of the operation in the target's memory.
        address: u64,
        /// Length of the operation in bytes.
        length: u64,
        /// Offset of the first byte that differs.
        at: usize,
    },
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
}

/// Registers `buffer` as the local memory and runs `plan` on blocking threads.
///
/// # Errors
/// The segment cannot be opened, the buffer cannot be registered, or an operation failed.
pub async fn run<E: Env>(
    engine: &TransferEngine,
    plan: TransferBenchPlan,
    buffer: Memory,
    env: E,
) -> Result<TransferBenchResult, TransferBenchError> {
    let base = target_base(engine, &plan).await?;
    let buffer = Arc::new(buffer);
    // Register the buffer once, as upstream does. Otherwise, the RDMA transport registers the
    // buffer again for every operation.
    engine.register(&buffer, Access::Local).await?;
    let engine = engine.clone();
    let work = move || run_blocking(&engine, &plan, base, &buffer, &env);
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(TransferBenchError::Transfer(TransferError::Stopped)))
}

/// Runs `plan` with `buffer` as the local memory. `base` is the address of the target's memory.
///
/// # Errors
/// The first [`TransferBenchError`] from any thread.
fn run_blocking<E: Env>(
    engine: &TransferEngine,
    plan: &TransferBenchPlan,
    base: u64,
    buffer: &Arc<Memory>,
    env: &E,
) -> Result<TransferBenchResult, TransferBenchError> {
    let threads =
        (0..plan.threads).map(|t| BenchThread::new(engine, plan, base, buffer, t)).collect::<Result<Vec<_>, _>>()?;
    if plan.verify && plan.kind == OpKind::Read {
        for thread in &threads {
            thread.prepare()?;
        }
    }
    let began = env.now();
    let cpu = cpu_time();
    let end = began + plan.duration;
    let shares = thread::scope(|scope| {
        let handles: Vec<_> = threads
            .iter()
            .map(|t| thread::Builder::new().name("bench".into()).spawn_scoped(scope, || t.work(end, env)))
            .collect();
        handles.into_iter().map(|h| h?.join().expect("a bench thread does not panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let mut report = TransferBenchResult {
        elapsed: env.now().since(began),
        batches: 0,
        bytes: 0,
        cpu: cpu_time().saturating_sub(cpu),
        batch: LatencyHistogram::default(),
    };
    for share in shares {
        report.batches += share.count();
        report.batch.add(&share);
    }
    report.bytes = report.batches * plan.batch as u64 * plan.block_bytes;
    Ok(report)
}

/// Returns the address of the target's first buffer that is large enough for the plan.
///
/// # Errors
/// The segment cannot be opened, or it has no such buffer.
async fn target_base(engine: &TransferEngine, plan: &TransferBenchPlan) -> Result<u64, TransferBenchError> {
    let descriptor = engine.open(&plan.segment).await?;
    let wanted = plan.buffer_bytes().unwrap_or(u64::MAX);
    let found = descriptor.buffers.iter().find(|b| b.length >= wanted);
    found.map(|b| b.address).ok_or_else(|| TransferBenchError::TargetTooSmall {
        segment: plan.segment.clone(),
        offered: descriptor.buffers.iter().map(|b| b.length).max().unwrap_or(0),
        wanted,
    })
}

/// The operations of one thread.
struct BenchThread<'a> {
    engine: &'a TransferEngine,
    plan: &'a TransferBenchPlan,
    ops: Vec<Op>,
}

impl<'a> BenchThread<'a> {
    fn new(
        engine: &'a TransferEngine,
        plan: &'a TransferBenchPlan,
        base: u64,
        buffer: &Arc<Memory>,
        number: usize,
    ) -> Result<BenchThread<'a>, OutOfRange> {
        let block = usize::try_from(plan.block_bytes).unwrap_or(usize::MAX);
        let op = |i: usize| {
            let offset = (i * plan.threads + number).saturating_mul(block);
            Ok(Op { kind: plan.kind, local: buffer.slice(offset, block)?, remote: RemoteAddr(base + offset as u64) })
        };
        Ok(BenchThread { engine, plan, ops: (0..plan.batch).map(op).collect::<Result<_, OutOfRange>>()? })
    }

    fn work<E: Env>(&self, end: mcctl_base::Mono, env: &E) -> Result<LatencyHistogram, TransferBenchError> {
        let mut took = LatencyHistogram::default();
        let mut now = env.now();
        let mut round = 0;
        while now < end {
            if self.plan.verify {
                self.before(round)?;
            }
            let began = env.now();
            self.batch(self.ops.clone())?;
            now = env.now();
            took.record(now.since(began), 1);
            if self.plan.verify {
                self.after(round)?;
                now = env.now();
            }
            round += 1;
        }
        Ok(took)
    }

    fn batch(&self, ops: Vec<Op>) -> Result<(), TransferError> {
        self.engine.submit(&self.plan.segment, ops, self.plan.batch_limit).wait().into_iter().collect()
    }

    fn with_kind(&self, kind: OpKind) -> Vec<Op> {
        self.ops.iter().cloned().map(|op| Op { kind, ..op }).collect()
    }

    /// Writes the expected bytes to the target before verified reads.
    fn prepare(&self) -> Result<(), TransferBenchError> {
        self.fill(0)?;
        Ok(self.batch(self.with_kind(OpKind::Write))?)
    }

    fn before(&self, round: u64) -> Result<(), TransferBenchError> {
        match self.plan.kind {
            OpKind::Write => self.fill(round),
            OpKind::Read => {
                for op in &self.ops {
                    op.local.memory().fill(op.local.offset(), op.local.len(), 0)?;
                }
                Ok(())
            }
        }
    }

    fn after(&self, round: u64) -> Result<(), TransferBenchError> {
        if self.plan.kind == OpKind::Read {
            return self.compare("read", 0);
        }
        for op in &self.ops {
            op.local.memory().fill(op.local.offset(), op.local.len(), 0)?;
        }
        self.batch(self.with_kind(OpKind::Read))?;
        self.compare("write", round)
    }

    fn fill(&self, round: u64) -> Result<(), TransferBenchError> {
        for op in &self.ops {
            op.local.memory().write_at(op.local.offset(), &pattern(op.remote.0, op.local.len(), round))?;
        }
        Ok(())
    }

    fn compare(&self, kind: &'static str, round: u64) -> Result<(), TransferBenchError> {
        for op in &self.ops {
            let got = op.local.to_vec();
            let expected = pattern(op.remote.0, op.local.len(), round);
            if let Some(at) = got.iter().zip(&expected).position(|(a, b)| a != b) {
                return Err(TransferBenchError::WrongBytes {
                    kind,
                    address: op.remote.0,
                    length: got.len() as u64,
                    at,
                });
            }
        }
        Ok(())
    }
}

/// Returns bytes that depend on `address` and `round`. No 8-byte word is zero.
fn pattern(address: u64, len: usize, round: u64) -> Vec<u8> {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |i: u64| (address.wrapping_add(8 * i) ^ round.wrapping_mul(ODD)).wrapping_mul(ODD) | 1;
    (0..len.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes()).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_depend_on_address_and_round_and_are_never_zero() {
        let one = pattern(4096, 21, 0);
        assert_eq!(one.len(), 21);
        assert_ne!(one, pattern(4104, 21, 0));
        assert_ne!(one, pattern(4096, 21, 1));
        assert!(one.chunks(8).all(|word| word.iter().any(|b| *b != 0)));
    }

    #[test]
    fn rates_are_computed_from_bytes_and_times() {
        let report = TransferBenchResult {
            elapsed: Duration::from_secs(2),
            batches: 10,
            bytes: 4_000_000_000,
            cpu: Duration::from_secs(3),
            batch: LatencyHistogram::default(),
        };
        assert_eq!((report.bytes_per_second(), report.cpu_seconds_per_gb()), (2e9, 0.75));
    }
}
