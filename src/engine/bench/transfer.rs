//! How fast the transfer engine reads or writes a peer's memory, and what that costs.
//!
//! Threads carry out batches of equal operations one after another, as Mooncake's `transfer_engine_bench` does, each on its own
//! part of both buffers, until the time is up.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::engine::env::Env;
use crate::engine::load::Histogram;
use crate::engine::sys::host::cpu_time;
use crate::engine::sys::{Memory, OutOfRange};
use crate::engine::transfer::{Op, OpKind, RemoteAddr, TransferEngine, TransferError};

/// What to do, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whose memory.
    pub segment: String,
    /// Which way.
    pub kind: OpKind,
    /// Bytes of an operation.
    pub block_bytes: u64,
    /// Operations of a batch.
    pub batch: usize,
    /// Threads that carry out batches.
    pub threads: usize,
    /// How long.
    pub duration: Duration,
    /// Compare the bytes of every batch.
    pub verify: bool,
    /// How long one batch may take.
    pub batch_limit: Duration,
}

impl Plan {
    /// What both buffers must hold at least, bytes; `None` when that is more than can be counted.
    pub fn buffer_bytes(&self) -> Option<u64> {
        self.block_bytes.checked_mul(self.batch as u64)?.checked_mul(self.threads as u64)
    }
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// From the first batch to the last.
    pub elapsed: Duration,
    /// Batches carried out.
    pub batches: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// CPU time of this process meanwhile, all threads.
    pub cpu: Duration,
    /// How long batches took.
    pub batch: Histogram,
}

impl Report {
    /// Bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// CPU seconds per 1e9 bytes.
    pub fn cpu_seconds_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9).max(1e-9)
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The segment cannot be opened, or an operation failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The target offers too little memory.
    #[error(
        "segment {segment} offers {offered} bytes in one piece, but {wanted} are needed (block size x batch size x threads)"
    )]
    TargetTooSmall {
        /// The segment.
        segment: String,
        /// Its largest buffer, bytes.
        offered: u64,
        /// What the plan needs, bytes.
        wanted: u64,
    },
    /// The local buffer is too small.
    #[error(transparent)]
    BufferTooSmall(#[from] OutOfRange),
    /// The bytes that came back are not those that were sent.
    #[error("{kind} of {length} bytes at {address:#x} moved wrong bytes: byte {at} differs")]
    Different {
        /// `read` or `write`.
        kind: &'static str,
        /// Where the operation began in the target.
        address: u64,
        /// Its length, bytes.
        length: u64,
        /// The first byte that differs.
        at: usize,
    },
    /// The host gives no more threads.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
}

/// Carry out `plan` with `buffer` as the local memory. Blocks; not for async threads.
///
/// # Errors
/// Any [`BenchError`]; the first that a thread meets.
pub fn run<E: Env>(
    engine: &TransferEngine,
    plan: &Plan,
    base: u64,
    buffer: &Arc<Memory>,
    env: &E,
) -> Result<Report, BenchError> {
    let threads =
        (0..plan.threads).map(|t| Thread::new(engine, plan, base, buffer, t)).collect::<Result<Vec<_>, _>>()?;
    if plan.verify && plan.kind == OpKind::Read {
        for thread in &threads {
            thread.prepare()?;
        }
    }
    let (began, cpu) = (env.now(), cpu_time());
    let end = began + plan.duration;
    let shares = thread::scope(|scope| {
        let handles: Vec<_> = threads
            .iter()
            .map(|t| thread::Builder::new().name("bench".into()).spawn_scoped(scope, || t.work(end, env)))
            .collect();
        handles.into_iter().map(|h| h?.join().expect("a bench thread does not panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let mut report = Report {
        elapsed: env.now().since(began),
        batches: 0,
        bytes: 0,
        cpu: cpu_time().saturating_sub(cpu),
        batch: Histogram::default(),
    };
    for share in shares {
        report.batches += share.count();
        report.batch.add(&share);
    }
    report.bytes = report.batches * plan.batch as u64 * plan.block_bytes;
    Ok(report)
}

/// Where the plan's range begins in the target: its first buffer that is large enough.
///
/// # Errors
/// It cannot be opened, or has none.
pub async fn target_base(engine: &TransferEngine, plan: &Plan) -> Result<u64, BenchError> {
    let descriptor = engine.open(&plan.segment).await?;
    let wanted = plan.buffer_bytes().unwrap_or(u64::MAX);
    let found = descriptor.buffers.iter().find(|b| b.length >= wanted);
    found.map(|b| b.address).ok_or_else(|| BenchError::TargetTooSmall {
        segment: plan.segment.clone(),
        offered: descriptor.buffers.iter().map(|b| b.length).max().unwrap_or(0),
        wanted,
    })
}

/// One thread's part of the plan.
struct Thread<'a> {
    engine: &'a TransferEngine,
    plan: &'a Plan,
    ops: Vec<Op>,
}

impl<'a> Thread<'a> {
    fn new(
        engine: &'a TransferEngine,
        plan: &'a Plan,
        base: u64,
        buffer: &Arc<Memory>,
        number: usize,
    ) -> Result<Thread<'a>, OutOfRange> {
        let block = usize::try_from(plan.block_bytes).unwrap_or(usize::MAX);
        let op = |i: usize| {
            let offset = (i * plan.threads + number).saturating_mul(block);
            Ok(Op { kind: plan.kind, local: buffer.slice(offset, block)?, remote: RemoteAddr(base + offset as u64) })
        };
        Ok(Thread { engine, plan, ops: (0..plan.batch).map(op).collect::<Result<_, OutOfRange>>()? })
    }

    fn work<E: Env>(&self, end: crate::engine::base::Mono, env: &E) -> Result<Histogram, BenchError> {
        let mut took = Histogram::default();
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

    fn turned(&self, kind: OpKind) -> Vec<Op> {
        self.ops.iter().cloned().map(|op| Op { kind, ..op }).collect()
    }

    /// Fill the target with what reads are compared with.
    fn prepare(&self) -> Result<(), BenchError> {
        self.fill(0)?;
        Ok(self.batch(self.turned(OpKind::Write))?)
    }

    fn before(&self, round: u64) -> Result<(), BenchError> {
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

    fn after(&self, round: u64) -> Result<(), BenchError> {
        if self.plan.kind == OpKind::Read {
            return self.compare("read", 0);
        }
        for op in &self.ops {
            op.local.memory().fill(op.local.offset(), op.local.len(), 0)?;
        }
        self.batch(self.turned(OpKind::Read))?;
        self.compare("write", round)
    }

    fn fill(&self, round: u64) -> Result<(), BenchError> {
        for op in &self.ops {
            op.local.memory().write_at(op.local.offset(), &pattern(op.remote.0, op.local.len(), round))?;
        }
        Ok(())
    }

    fn compare(&self, kind: &'static str, round: u64) -> Result<(), BenchError> {
        for op in &self.ops {
            let (got, expected) = (op.local.to_vec(), pattern(op.remote.0, op.local.len(), round));
            if let Some(at) = got.iter().zip(&expected).position(|(a, b)| a != b) {
                return Err(BenchError::Different { kind, address: op.remote.0, length: got.len() as u64, at });
            }
        }
        Ok(())
    }
}

/// Bytes that tell where and when they belong.
fn pattern(address: u64, len: usize, round: u64) -> Vec<u8> {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |i: u64| (address.wrapping_add(8 * i) ^ round.wrapping_mul(ODD)).wrapping_mul(ODD) | 1;
    (0..len.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes()).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_place_and_round_and_are_never_zero() {
        let one = pattern(4096, 21, 0);
        assert_eq!(one.len(), 21);
        assert_ne!(one, pattern(4104, 21, 0));
        assert_ne!(one, pattern(4096, 21, 1));
        assert!(one.chunks(8).all(|word| word.iter().any(|b| *b != 0)));
    }

    #[test]
    fn the_figures_of_a_report_follow_from_its_parts() {
        let report = Report {
            elapsed: Duration::from_secs(2),
            batches: 10,
            bytes: 4_000_000_000,
            cpu: Duration::from_secs(3),
            batch: Histogram::default(),
        };
        assert_eq!((report.bytes_per_second(), report.cpu_seconds_per_gb()), (2e9, 0.75));
    }
}
