//! The order of the steps: a warm-up, rounds of puts, and the second pass.

use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::store::runner::{BenchRunner, together};
use crate::commands::cli::error::Failure;
use crate::engine::bench::store::{PassKind, StopFlag, StoreBenchPlan, StorePass};

/// With this many batches, the p99 is not the maximum.
pub(super) const P99_BATCHES: u64 = 100;
/// No further round of puts begins after this time, unless the number of rounds is given.
const ROUNDS_TIME_MAX: Duration = Duration::from_secs(10);

/// How the plan is executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasureRules {
    /// How often each object is put and read; `None`: until there are [`P99_BATCHES`] batches.
    pub rounds: Option<u32>,
    /// Duration of the second pass.
    pub duration: Option<Duration>,
    pub warm_up: bool,
    /// Leave the objects of the last round in the store.
    pub keep: bool,
    /// Number of processes that ran at the same time.
    pub ranks: u32,
}

/// The warm-up before the measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WarmUp {
    /// Switched off with `--no-warm-up`.
    Off,
    Done {
        objects: u64,
        bytes: u64,
    },
    /// Not all objects were stored.
    Partial {
        objects: u64,
        of: u64,
        /// Names of the errors.
        errors: Vec<String>,
    },
}

/// The results of a run.
pub(super) struct MeasuredStore {
    pub passes: Vec<StorePass>,
    /// The passes of each process.
    pub ranks: Vec<Vec<StorePass>>,
    pub warm_up: WarmUp,
    pub rounds: u32,
    /// Number of objects removed at the end; `None` if they were kept.
    pub removed: Result<Option<i64>, String>,
}

/// Runs all steps. After `stop`, the remaining ones are skipped, except the removal of the objects.
///
/// # Errors
/// The process of a rank ended, or its pipe broke.
pub(super) async fn measure(
    runner: &mut BenchRunner,
    plan: &StoreBenchPlan,
    rules: MeasureRules,
    stop: &StopFlag,
) -> Result<MeasuredStore, Failure> {
    let mut measured = MeasuredStore {
        passes: Vec::new(),
        ranks: vec![Vec::new(); rules.ranks as usize],
        warm_up: WarmUp::Off,
        rounds: 0,
        removed: Ok(None),
    };
    let mut usable = true;
    if rules.warm_up {
        let put = runner.pass(PassKind::Put, 0, None).await?;
        let all = together(put.clone());
        usable = all.as_ref().is_some_and(|all| !all.stored_nothing());
        if usable && !stop.is_set() {
            // Also touches the memory from which this host copies, and into which it reads.
            runner.pass(PassKind::Get, plan.objects, None).await?;
        }
        if let Some(all) = all {
            let objects = all.put.objects;
            let of = u64::from(plan.objects) * u64::from(rules.ranks);
            measured.warm_up = match objects < of {
                true => WarmUp::Partial { objects, of, errors: all.put.failed.into_keys().collect() },
                false => WarmUp::Done { objects, bytes: all.put.bytes },
            };
        }
        if usable {
            // An error is reported at the end, where the objects are removed again.
            usable = runner.remove(false).await?.is_ok();
        } else {
            // Nothing could be stored: a second attempt would only take as long.
            measured.record(put, true);
            measured.rounds = 1;
        }
    }
    if usable {
        puts(runner, plan, rules, stop, &mut measured).await?;
    }
    let stored_nothing = measured.passes.last().is_none_or(StorePass::stored_nothing);
    if !stop.is_set() && !stored_nothing {
        let (kind, goal) = match plan.read_ratio < 1.0 {
            // Its puts need room in the store.
            true => (PassKind::Mixed, plan.objects),
            false => (PassKind::Get, plan.objects.saturating_mul(measured.rounds.max(1))),
        };
        let pass = runner.pass(kind, goal, rules.duration).await?;
        measured.record(pass, true);
    }
    if !rules.keep {
        measured.removed = runner.remove(true).await?.map(Some);
    }
    Ok(measured)
}

/// Runs the rounds of puts. The objects of the last one remain.
async fn puts(
    runner: &mut BenchRunner,
    plan: &StoreBenchPlan,
    rules: MeasureRules,
    stop: &StopFlag,
    measured: &mut MeasuredStore,
) -> Result<(), Failure> {
    loop {
        if stop.is_set() {
            return Ok(());
        }
        let pass = runner.pass(PassKind::Put, plan.objects, None).await?;
        measured.rounds += 1;
        measured.record(pass, measured.rounds == 1);
        let Some(all) = measured.passes.last() else { return Ok(()) };
        let is_last = match rules.rounds {
            Some(rounds) => measured.rounds >= rounds,
            None => all.put.batches >= P99_BATCHES || all.elapsed >= ROUNDS_TIME_MAX,
        };
        // A round that stores nothing new would repeat for ever.
        if is_last || stop.is_set() || all.put.objects == 0 || all.put.failures() > 0 {
            return Ok(());
        }
        if runner.remove(false).await?.is_err() {
            return Ok(());
        }
    }
}

impl MeasuredStore {
    /// Adds the results of each process: a new pass, or another round of the last one.
    fn record(&mut self, passes: Vec<StorePass>, is_new: bool) {
        let add = |list: &mut Vec<StorePass>, pass: StorePass| match list.last_mut().filter(|_| !is_new) {
            Some(last) => last.then(pass),
            None => list.push(pass),
        };
        for (rank, pass) in self.ranks.iter_mut().zip(&passes) {
            add(rank, pass.clone());
        }
        if let Some(all) = together(passes) {
            add(&mut self.passes, all);
        }
    }
}
