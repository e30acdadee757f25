//! The results of a pass, which add up over rounds and over processes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::TransportUse;
use mcctl_load::LatencyHistogram;
use mcctl_store::StoreError;

/// An error, with the number of objects that failed because of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorCount {
    pub count: u64,
    /// Message from the first failure.
    pub first: String,
    /// The first failure, if the store reported it to this process.
    #[serde(skip)]
    pub error: Option<StoreError>,
}

/// Results for the puts or the gets in a pass.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OperationStats {
    /// Number of batches that transferred at least one object.
    pub batches: u64,
    pub objects: u64,
    pub bytes: u64,
    /// Objects not found when read: evicted, or never stored.
    pub missing: u64,
    /// Objects not put because the key already existed.
    pub already_existing: u64,
    /// Objects with fewer replicas than requested because too few nodes had free space.
    pub fewer_copies: u64,
    /// Objects whose data was compared and matched.
    pub verified: u64,
    /// Failed objects by error name.
    pub failed: BTreeMap<String, ErrorCount>,
    pub latency: LatencyHistogram,
    /// How the bytes moved.
    pub transport: TransportUse,
}

impl OperationStats {
    /// Returns the number of failed objects.
    pub fn failures(&self) -> u64 {
        self.failed.values().map(|failed| failed.count).sum()
    }

    /// Adds the results of another client, round or process.
    pub fn add(&mut self, other: OperationStats) {
        self.batches += other.batches;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.missing += other.missing;
        self.already_existing += other.already_existing;
        self.fewer_copies += other.fewer_copies;
        self.verified += other.verified;
        for (name, failed) in other.failed {
            let mine = self.failed.entry(name).or_insert(ErrorCount { count: 0, ..failed.clone() });
            mine.count += failed.count;
        }
        self.latency.add(&other.latency);
        self.transport.add(&other.transport);
    }
}

/// The operations in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PassKind {
    Put,
    Get,
    Mixed,
}

impl PassKind {
    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            PassKind::Put => "put",
            PassKind::Get => "get",
            PassKind::Mixed => "mixed",
        }
    }
}

/// Results for one pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StorePass {
    pub kind: PassKind,
    /// Time from the start of the pass to the end of its last batch. The sum, if the pass has
    /// several rounds.
    pub elapsed: Duration,
    /// Start and end of the last round on the monotonic clock of the host.
    pub window: (Duration, Duration),
    /// CPU time of all processes during the pass, over all threads.
    pub cpu: Duration,
    pub put: OperationStats,
    pub get: OperationStats,
}

impl StorePass {
    /// Returns the CPU time per transferred object.
    pub fn cpu_per_object(&self) -> Option<Duration> {
        let objects = u32::try_from(self.put.objects + self.get.objects).ok().filter(|objects| *objects > 0);
        objects.map(|objects| self.cpu / objects)
    }

    /// Returns `amount` per second of the pass.
    pub fn per_second(&self, amount: u64) -> f64 {
        amount as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns whether no object was put, nor existed already.
    pub fn stored_nothing(&self) -> bool {
        self.put.objects == 0 && self.put.already_existing == 0
    }

    /// Adds a later round of the same pass.
    pub fn then(&mut self, round: StorePass) {
        self.elapsed += round.elapsed;
        self.window = round.window;
        self.add(round);
    }

    /// Adds the same pass of another process, which ran at the same time. The pass lasts from the
    /// first start to the last end.
    pub fn beside(&mut self, other: StorePass) {
        self.window = (self.window.0.min(other.window.0), self.window.1.max(other.window.1));
        self.elapsed = self.window.1.saturating_sub(self.window.0);
        self.add(other);
    }

    fn add(&mut self, other: StorePass) {
        self.cpu += other.cpu;
        self.put.add(other.put);
        self.get.add(other.get);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(from: u64, to: u64, objects: u64) -> StorePass {
        let ms = Duration::from_millis;
        StorePass {
            kind: PassKind::Put,
            elapsed: ms(to - from),
            window: (ms(from), ms(to)),
            cpu: ms(5),
            put: OperationStats { objects, ..OperationStats::default() },
            get: OperationStats::default(),
        }
    }

    #[test]
    fn rounds_add_up_and_processes_share_a_window() {
        let mut rounds = pass(0, 100, 10);
        rounds.then(pass(500, 600, 10));
        assert_eq!((rounds.elapsed, rounds.put.objects, rounds.cpu.as_millis()), (Duration::from_millis(200), 20, 10));
        let mut ranks = pass(1000, 1100, 10);
        ranks.beside(pass(1010, 1150, 10));
        ranks.beside(pass(990, 1090, 10));
        assert_eq!((ranks.elapsed, ranks.put.objects), (Duration::from_millis(160), 30));
        assert!((ranks.per_second(30) - 187.5).abs() < 1e-6);
        assert!(!ranks.stored_nothing() && pass(0, 1, 0).stored_nothing());
    }
}
