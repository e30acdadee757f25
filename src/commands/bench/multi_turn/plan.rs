//! Plans the session for a single run, a comparison, a sweep or a preset.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{LoadArgs, Phase, Sweep};
use crate::commands::bench::multi_turn::comparison::{ComparedSides, SELF_COMPARE};
use crate::commands::bench::multi_turn::kep74;
use crate::commands::bench::multi_turn::preflight::check_all_reachable;
use crate::commands::bench::multi_turn::preset::Preset;
use crate::commands::confirm;
use crate::commands::error::Failure;
use crate::commands::output;
use crate::commands::runtime;
use crate::engine::env::{RealEnv, deadline};
use crate::engine::load::compare::{blocks, in_turn};
use crate::engine::load::server::ServerClient;
use crate::engine::load::session::{Control, LoadEndpoint, PassPlan, Session, SessionStep};
use crate::engine::load::workload::LoadWorkload;
use crate::engine::load::{Pace, Seed};

/// The type of a run, which determines how its passes are analyzed.
#[derive(Clone, Debug)]
pub(super) enum RunKind {
    /// Each pass is reported separately.
    Single,
    Comparison(ComparedSides),
    Sweep(Sweep),
    Kep74,
}

/// A session that is ready to run.
pub(super) struct PlannedRun {
    pub session: Session,
    pub kind: RunKind,
    /// Caveats known before the run.
    pub caveats: Vec<BenchCaveat>,
}

/// Timeout for a flush or settings request before the run.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

impl Args {
    /// Plans the run that the flags describe.
    ///
    /// # Errors
    /// Flags conflict, an endpoint is unreachable, or the user does not confirm.
    pub(super) fn planned_run(&self) -> Result<PlannedRun, Failure> {
        let compares = self.compare.against.is_some() || self.compare.self_compare;
        let kep74 = self.preset.preset == Some(Preset::Kep74);
        let sweep = self.sweep.sweep();
        if sweep.is_some() && (compares || kep74) {
            return Err(Failure::usage("a sweep cannot be combined with a comparison or --preset kep74")
                .next("drop --against, --self-compare and --preset kep74, or drop the sweep flags"));
        }
        if (sweep.is_some() || kep74) && !self.phases.phases.is_empty() {
            return Err(
                Failure::usage("--phases cannot be combined with a sweep or --preset kep74").next("drop --phases")
            );
        }
        if kep74 && self.compare.self_compare {
            return Err(
                Failure::usage("--self-compare cannot be combined with --preset kep74").next("drop --self-compare")
            );
        }
        if kep74 {
            return self.kep74();
        }
        match sweep {
            Some(sweep) => self.sweep_run(sweep),
            None if compares => self.comparison_run(),
            None => self.run_once(),
        }
    }

    /// Returns the endpoint at `url` (if `None`, at `--url`) with conversations generated from `seed`, and whether the
    /// conversations have recorded send times.
    pub(super) fn side(&self, name: &str, url: Option<&str>, seed: Seed) -> Result<(LoadEndpoint, bool), Failure> {
        let mut target = match url {
            None => self.endpoint.target()?,
            Some(url) => self.endpoint.target_of(url)?,
        };
        self.request.apply(&mut target);
        let workload = self.workload.workload(self.endpoint.api, seed)?;
        if url.is_none() && seed == self.seed() {
            workload.notes().iter().for_each(output::say);
        }
        let recorded = workload.is_recorded();
        let timeout = self.phases.flush_cache_timeout.map(Duration::from_secs_f64);
        let server = self.server.server(&self.endpoint, &target, url.is_none())?;
        let server = server.map(|server| server.with_flush_timeout(timeout));
        let workload = self.request.with_adapters(Box::new(workload), target.dialect, seed);
        let mut side = LoadEndpoint::new(name, target, workload);
        (side.server, side.vocabulary) = (server, self.workload.vocab_size);
        Ok((side, recorded))
    }

    pub(super) fn plan(&self, name: &str, block: u32, part: Range<u32>, load: &LoadArgs) -> PassPlan {
        PassPlan {
            name: name.to_owned(),
            block,
            pace: self.pace(load, part.len() as u32),
            part,
            rules: self.workload.dataset.rules(load.rules()),
            duration: load.duration,
        }
    }

    pub(super) fn seed(&self) -> Seed {
        Seed(self.load.seed)
    }

    fn run_once(&self) -> Result<PlannedRun, Failure> {
        let (side, recorded) = self.side("A", None, self.seed())?;
        let conversations = side.workload.scripts().len() as u32;
        let mut plan = self.plan("run", 0, 0..conversations, &self.load);
        if recorded {
            plan.pace = Pace::Recorded;
        }
        let (schedule, sides) = (self.profiled(self.phases.schedule(0, plan)?), vec![side]);
        check_all_reachable(&sides)?;
        self.confirm_cache_changes(&sides)?;
        let session = Session { sides, schedule, seed: self.seed(), keep_figures: false };
        Ok(PlannedRun { session, kind: RunKind::Single, caveats: Vec::new() })
    }

    /// Adds profiler calls before and after each measured pass in `schedule` (`--profile`).
    pub(super) fn profiled(&self, schedule: VecDeque<(usize, SessionStep)>) -> VecDeque<(usize, SessionStep)> {
        let (start, stop) = self.profile.calls();
        let around = |(side, step): (usize, SessionStep)| {
            let call = |control: &Option<Control>| {
                control
                    .clone()
                    .filter(|_| matches!(step, SessionStep::Pass(_)))
                    .map(|control| (side, SessionStep::Control(control)))
            };
            let (before, after) = (call(&start), call(&stop));
            before.into_iter().chain([(side, step)]).chain(after)
        };
        schedule.into_iter().flat_map(around).collect()
    }

    /// Asks for confirmation before flushing or filling the caches of `sides`. `--flush-cache` counts as confirmation.
    ///
    /// # Errors
    /// Same as [`confirm::destruction`].
    fn confirm_cache_changes(&self, sides: &[LoadEndpoint]) -> Result<(), Failure> {
        let has = |phases: &[Phase]| self.phases.phases.iter().any(|phase| phases.contains(phase));
        let flushes_between = self.compare.against.is_some()
            || self.compare.self_compare
            || self.sweep.sweep().is_some()
            || self.preset.preset == Some(Preset::Kep74);
        let flushes = flushes_between && self.phases.phases.is_empty() && !self.phases.flush_cache;
        let calls = !self.server.no_server_calls && (flushes || has(&[Phase::Flush, Phase::Clear]));
        if !calls && !has(&[Phase::EvictDevice, Phase::EvictHost]) {
            return Ok(());
        }
        let tiers = if has(&[Phase::Clear]) { "L1, L2 and L3" } else { "L1 and L2" };
        let mut urls: Vec<String> = sides.iter().map(|side| self.endpoint.base_of(&side.target)).collect();
        urls.sort_unstable();
        urls.dedup();
        confirm::destruction(self.confirm.yes, &format!("flushes the caches ({tiers}) of {}", urls.join(" and ")))
    }

    /// Flushes the caches of all `sides` and returns whether all of them could be flushed. Adds a caveat if one could not.
    fn can_flush(&self, sides: &[LoadEndpoint], caveats: &mut Vec<BenchCaveat>) -> Result<bool, Failure> {
        if !self.phases.phases.is_empty() || self.phases.flush_cache {
            // --phases or --flush-cache determines when the caches are flushed.
            return Ok(false);
        }
        for side in sides {
            let reason = match &side.server {
                None => Some("--no-server-calls".to_owned()),
                Some(server) => {
                    let flushed =
                        runtime::block_on(0, async { Ok(server.flush(&RealEnv::new(), REQUEST_LIMIT).await) })?;
                    flushed.err().map(|error| error.to_string())
                }
            };
            if let Some(reason) = reason {
                caveats.push(BenchCaveat::CachesNotFlushed { side: side.name.clone(), reason });
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks whether cached prompts could be reused through L3. A server that receives the same prompts twice hits L3 the second time,
    /// even if L1 and L2 were flushed. Adds a caveat if a server is only compared with itself.
    ///
    /// # Errors
    /// A server is compared with itself and then with another server, whose L3 does not hold the prompts.
    fn check_storage_reuse(&self, sides: &[LoadEndpoint], caveats: &mut Vec<BenchCaveat>) -> Result<(), Failure> {
        let is_cleared = self.phases.phases.contains(&Phase::Clear);
        let servers: Vec<&ServerClient> = sides.iter().filter_map(|side| side.server.as_ref()).collect();
        let [first, others @ ..] = &servers[..] else { return Ok(()) };
        if is_cleared || !others.iter().any(|other| other.is(first)) {
            return Ok(());
        }
        let info = runtime::block_on(0, async { Ok(deadline(&RealEnv::new(), REQUEST_LIMIT, first.info()).await) })?;
        if !info.is_ok_and(|info| info.is_ok_and(|info| info.is_some_and(|info| info.storage.is_some()))) {
            return Ok(());
        }
        if others.iter().any(|other| !other.is(first)) {
            return Err(Failure::usage("--self-compare with --against requires L3 to be cleared before each block")
                .found("A's L3 keeps the prompts from its first blocks, but B's L3 does not hold them")
                .next("use --phases flush,clear,first"));
        }
        caveats.push(BenchCaveat::StorageKeepsBlocks);
        Ok(())
    }

    /// Returns the phases around `plan`, after a flush if `flush` is set.
    fn steps(&self, plan: PassPlan, flush: bool) -> Result<Vec<SessionStep>, Failure> {
        let steps = self.phases.schedule(0, plan)?.into_iter().map(|(_, step)| step);
        Ok(flush.then_some(SessionStep::Control(Control::Flush)).into_iter().chain(steps).collect())
    }

    fn comparison_run(&self) -> Result<PlannedRun, Failure> {
        let seed = self.seed();
        let (first, recorded) = self.side("A", None, seed)?;
        let mut sides = vec![first];
        if self.compare.self_compare {
            let url = self.endpoint.base_of(&sides[0].target);
            sides.push(self.side("A again", Some(&url), seed)?.0);
        }
        if let Some(url) = &self.compare.against {
            sides.push(self.side("B", Some(url), seed)?.0);
        }
        let mut caveats = Vec::new();
        if recorded {
            caveats.push(BenchCaveat::TraceTimesIgnored);
        }
        // Report invalid phases before sending a request or asking for confirmation.
        self.steps(self.plan("run", 0, 0..1, &self.load), false)?;
        check_all_reachable(&sides)?;
        self.confirm_cache_changes(&sides)?;
        let flush = self.can_flush(&sides, &mut caveats)?;
        self.check_storage_reuse(&sides, &mut caveats)?;
        let conversations = sides[0].workload.scripts().len() as u32;
        let blocks = blocks(conversations, self.compare.blocks());
        let turns = |sides: [usize; 2], before: &str| {
            in_turn(sides, &blocks, |block, part| {
                // Each block has its own arrival times, which are the same at both endpoints.
                let load = LoadArgs { seed: self.load.seed.wrapping_add(u64::from(block)), ..self.load.clone() };
                let mut steps = self.steps(self.plan("run", block, part.clone(), &load), flush).unwrap_or_default();
                for step in &mut steps {
                    if let SessionStep::Pass(plan) = step {
                        plan.name.insert_str(0, before);
                    }
                }
                steps
            })
        };
        let last = sides.len() - 1;
        let mut schedule = VecDeque::new();
        let floor = (self.compare.self_compare && self.compare.against.is_some()).then_some([0, 1]);
        if let Some(floor) = floor {
            schedule.extend(turns(floor, SELF_COMPARE));
        }
        schedule.extend(turns([0, last], ""));
        let session = Session { sides, schedule, seed, keep_figures: true };
        Ok(PlannedRun { session, kind: RunKind::Comparison(ComparedSides { pair: [0, last], floor }), caveats })
    }

    /// Returns the warm-up for a run without phases.
    fn warm(&self) -> VecDeque<(usize, SessionStep)> {
        let requests = self.phases.warmup_requests.filter(|requests| *requests > 0);
        requests.map(|requests| (0, SessionStep::Control(Control::Warm(requests)))).into_iter().collect()
    }

    fn sweep_run(&self, sweep: Sweep) -> Result<PlannedRun, Failure> {
        let (word, values) = match &sweep {
            Sweep::Rate(values) => ("rate", values),
            Sweep::Concurrency(values) => ("concurrency", values),
        };
        let (mut sides, mut caveats) = (Vec::new(), Vec::new());
        for index in 0..values.len() as u64 {
            // Each load has different prompts, so that it does not hit cache entries from the previous load.
            let (side, recorded) = self.side("A", None, Seed(self.load.seed.wrapping_add(index)))?;
            sides.push(side);
            if recorded && caveats.is_empty() {
                caveats.push(BenchCaveat::TraceTimesIgnored);
            }
        }
        // Synthetic prompts differ between loads, but a dataset repeats its prompts, so a failed flush matters only for a dataset.
        let mut flush_caveats = Vec::new();
        check_all_reachable(&sides[..1])?;
        self.confirm_cache_changes(&sides[..1])?;
        let flush = self.can_flush(&sides[..1], &mut flush_caveats)?;
        if self.workload.dataset.dataset_name.is_some() {
            caveats.append(&mut flush_caveats);
        }
        let mut schedule = self.warm();
        for (index, (value, side)) in values.iter().zip(&sides).enumerate() {
            let conversations = side.workload.scripts().len() as u32;
            let mut load = self.load.clone();
            if matches!(sweep, Sweep::Rate(_)) {
                load.request_rate = *value;
            }
            let mut plan = self.plan(&format!("{word} {value}"), 0, 0..conversations, &load);
            if matches!(sweep, Sweep::Concurrency(_)) {
                plan.pace = Pace::Closed { conversations: *value as usize };
                plan.rules.in_flight = *value as usize;
            }
            if flush || self.phases.flush_cache {
                schedule.push_back((index, SessionStep::Control(Control::Flush)));
            }
            schedule.push_back((index, SessionStep::Pass(Box::new(plan))));
        }
        let session = Session { sides, schedule, seed: self.seed(), keep_figures: false };
        Ok(PlannedRun { session, kind: RunKind::Sweep(sweep), caveats })
    }

    fn kep74(&self) -> Result<PlannedRun, Failure> {
        let seed = self.seed();
        let mut one_turn = self.clone();
        one_turn.workload.first_turns();
        let mut sides = Vec::new();
        let endpoints: Vec<(&str, Option<&str>)> = match &self.compare.against {
            None => vec![("A", None)],
            Some(url) => vec![("A", None), ("B", Some(url))],
        };
        for (name, url) in &endpoints {
            sides.push(one_turn.side(name, *url, seed)?.0);
            // Use different synthetic conversations, because L3 keeps the previous ones even after a flush.
            sides.push(self.side(name, *url, Seed(seed.0.wrapping_add(1)))?.0);
        }
        let mut caveats = Vec::new();
        check_all_reachable(&sides)?;
        self.confirm_cache_changes(&sides)?;
        let flush = self.can_flush(&sides, &mut caveats)? || self.phases.flush_cache;
        if self.workload.dataset.dataset_name.is_some() {
            caveats.push(BenchCaveat::FirstTurnsMayBeWarm);
        }
        let conversations = |side: usize| sides[side].workload.scripts().len() as u32;
        let mut schedule = self.warm();
        let mut pass = |side: usize, name: &str, flush: bool| {
            if flush {
                schedule.push_back((side, SessionStep::Control(Control::Flush)));
            }
            let plan = self.plan(name, 0, 0..conversations(side), &self.load);
            schedule.push_back((side, SessionStep::Pass(Box::new(plan))));
        };
        let (forward, backward): (Vec<usize>, Vec<usize>) =
            ((0..endpoints.len()).collect(), (0..endpoints.len()).rev().collect());
        forward.iter().for_each(|at| pass(2 * at, kep74::FIRST, flush));
        backward.iter().for_each(|at| pass(2 * at, kep74::REPLAY, false));
        forward.iter().for_each(|at| pass(2 * at + 1, kep74::CONVERSATIONS, flush));
        let session = Session { sides, schedule, seed, keep_figures: false };
        Ok(PlannedRun { session, kind: RunKind::Kep74, caveats })
    }
}
