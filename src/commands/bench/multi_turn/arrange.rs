//! What is measured: one run, a comparison, a sweep or a preset, as a session.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{LoadArgs, Phase, Sweep};
use crate::commands::bench::multi_turn::compared::{A_A, Sides};
use crate::commands::bench::multi_turn::kep74;
use crate::commands::bench::multi_turn::preset::Preset;
use crate::commands::bench::multi_turn::reach::all_reached;
use crate::commands::confirm;
use crate::commands::error::Failure;
use crate::commands::output;
use crate::commands::runtime;
use crate::engine::env::{RealEnv, deadline};
use crate::engine::load::compare::{blocks, in_turn};
use crate::engine::load::server::Server;
use crate::engine::load::session::{Control, PassPlan, Session, Side, Step};
use crate::engine::load::workload::Workload;
use crate::engine::load::{Pace, Seed};

/// What is to be looked at when the session is over.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// The passes, no more.
    Run,
    /// Two endpoints.
    Comparison(Sides),
    /// Loads.
    Sweep(Sweep),
    /// The table of KEP-74.
    Kep74,
}

/// A session that was arranged.
pub(super) struct Arranged {
    pub session: Session,
    pub what: What,
    /// What can be doubted before anything was run.
    pub doubts: Vec<String>,
}

/// A server is asked so long whether it empties its caches.
const FLUSH: Duration = Duration::from_secs(30);

/// Times of a trace go from its start to its end, and cannot be cut into blocks or stretched to a load.
const RATE_INSTEAD: &str = "requests came at --request-rate, not at the times of the trace";

impl Args {
    /// What these flags ask for.
    ///
    /// # Errors
    /// They contradict each other.
    pub(super) fn arranged(&self) -> Result<Arranged, Failure> {
        let compares = self.compare.against.is_some() || self.compare.a_a;
        let kep74 = self.preset.preset == Some(Preset::Kep74);
        let sweep = self.sweep.sweep();
        if sweep.is_some() && (compares || kep74) {
            return Err(Failure::usage("a sweep is of one endpoint and no preset's")
                .next("leave out --against, --a-a and --preset kep74, or the sweep"));
        }
        if (sweep.is_some() || kep74) && !self.phases.phases.is_empty() {
            return Err(
                Failure::usage("a sweep and the preset kep74 have phases of their own").next("leave out --phases")
            );
        }
        if kep74 && self.compare.a_a {
            return Err(Failure::usage("the preset kep74 has a table, no noise floor").next("leave out --a-a"));
        }
        if kep74 {
            return self.kep74();
        }
        match sweep {
            Some(sweep) => self.swept(sweep),
            None if compares => self.compared(),
            None => self.run_once(),
        }
    }

    /// The endpoint at `url` (that of `--url` if none), with its conversations made from `seed`; have they times of their own?
    pub(super) fn side(&self, name: &str, url: Option<&str>, seed: Seed) -> Result<(Side, bool), Failure> {
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
        let mut side = Side::new(name, target, workload);
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

    fn run_once(&self) -> Result<Arranged, Failure> {
        let (side, recorded) = self.side("A", None, self.seed())?;
        let conversations = side.workload.scripts().len() as u32;
        let mut plan = self.plan("run", 0, 0..conversations, &self.load);
        if recorded {
            plan.pace = Pace::Recorded;
        }
        let (schedule, sides) = (self.profiled(self.phases.schedule(0, plan)?), vec![side]);
        all_reached(&sides)?;
        self.confirmed(&sides)?;
        let session = Session { sides, schedule, seed: self.seed(), keep_figures: false };
        Ok(Arranged { session, what: What::Run, doubts: Vec::new() })
    }

    /// `schedule`, with the profiler started before each measured pass and stopped after it (`--profile`).
    pub(super) fn profiled(&self, schedule: VecDeque<(usize, Step)>) -> VecDeque<(usize, Step)> {
        let (start, stop) = self.profile.calls();
        let around = |(side, step): (usize, Step)| {
            let call = |control: &Option<Control>| {
                control.clone().filter(|_| matches!(step, Step::Pass(_))).map(|control| (side, Step::Control(control)))
            };
            let (before, after) = (call(&start), call(&stop));
            before.into_iter().chain([(side, step)]).chain(after)
        };
        schedule.into_iter().flat_map(around).collect()
    }

    /// Ask before the caches of `sides` are emptied or overwritten. --flush-cache is not asked about: it names just that.
    ///
    /// # Errors
    /// See [`confirm::destruction`].
    fn confirmed(&self, sides: &[Side]) -> Result<(), Failure> {
        let has = |phases: &[Phase]| self.phases.phases.iter().any(|phase| phases.contains(phase));
        let between = self.compare.against.is_some()
            || self.compare.a_a
            || self.sweep.sweep().is_some()
            || self.preset.preset == Some(Preset::Kep74);
        let flushes = between && self.phases.phases.is_empty() && !self.phases.flush_cache;
        let calls = !self.server.no_server_calls && (flushes || has(&[Phase::Flush, Phase::Clear]));
        if !calls && !has(&[Phase::EvictDevice, Phase::EvictHost]) {
            return Ok(());
        }
        let tiers = if has(&[Phase::Clear]) { "L1, L2 and L3" } else { "L1 and L2" };
        let mut urls: Vec<String> = sides.iter().map(|side| self.endpoint.base_of(&side.target)).collect();
        urls.sort_unstable();
        urls.dedup();
        confirm::destruction(self.confirm.yes, &format!("empties the caches ({tiers}) of {}", urls.join(" and ")))
    }

    /// Can the caches of all `sides` be emptied? They are, where it is asked. A doubt where they cannot.
    fn flushes(&self, sides: &[Side], doubts: &mut Vec<String>) -> Result<bool, Failure> {
        if !self.phases.phases.is_empty() || self.phases.flush_cache {
            // The user says what is done.
            return Ok(false);
        }
        for side in sides {
            let why = match &side.server {
                None => Some("its other routes are not to be used".to_owned()),
                Some(server) => {
                    let asked = runtime::block_on(0, async { Ok(server.flush(&RealEnv::new(), FLUSH).await) })?;
                    asked.err().map(|error| error.to_string())
                }
            };
            if let Some(why) = why {
                doubts.push(format!(
                    "{}: its caches cannot be emptied between passes ({why}): a pass finds what the one before it left",
                    side.name
                ));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What one server is told twice, its L3 remembers the second time, however often L1 and L2 are emptied: a doubt where it is compared
    /// with itself.
    ///
    /// # Errors
    /// It is compared with itself and then with another, which remembers nothing.
    fn remembers(&self, sides: &[Side], doubts: &mut Vec<String>) -> Result<(), Failure> {
        let is_cleared = self.phases.phases.contains(&Phase::Clear);
        let servers: Vec<&Server> = sides.iter().filter_map(|side| side.server.as_ref()).collect();
        let [first, others @ ..] = &servers[..] else { return Ok(()) };
        if is_cleared || !others.iter().any(|other| other.is(first)) {
            return Ok(());
        }
        let told = runtime::block_on(0, async { Ok(deadline(&RealEnv::new(), FLUSH, first.info()).await) })?;
        if !told.is_ok_and(|told| told.is_ok_and(|info| info.is_some_and(|info| info.storage.is_some()))) {
            return Ok(());
        }
        let clear = "--phases flush,clear,first empties it before each block";
        if others.iter().any(|other| !other.is(first)) {
            return Err(Failure::usage("cannot compare A with itself and then with B")
                .found("A's L3 would have all that B never saw")
                .next(clear));
        }
        doubts.push(format!(
            "the server's L3 keeps what a block left there, so that the same block finds it the second time ({clear}): the noise shown \
             is too wide"
        ));
        Ok(())
    }

    /// `plan` with what the phases say before, between and after it.
    fn steps(&self, plan: PassPlan, flush: bool) -> Result<Vec<Step>, Failure> {
        let steps = self.phases.schedule(0, plan)?.into_iter().map(|(_, step)| step);
        Ok(flush.then_some(Step::Control(Control::Flush)).into_iter().chain(steps).collect())
    }

    fn compared(&self) -> Result<Arranged, Failure> {
        let seed = self.seed();
        let (first, recorded) = self.side("A", None, seed)?;
        let mut sides = vec![first];
        if self.compare.a_a {
            let url = self.endpoint.base_of(&sides[0].target);
            sides.push(self.side("A again", Some(&url), seed)?.0);
        }
        if let Some(url) = &self.compare.against {
            sides.push(self.side("B", Some(url), seed)?.0);
        }
        let mut doubts = Vec::new();
        if recorded {
            doubts.push(RATE_INSTEAD.to_owned());
        }
        // A mistake in the phases is told before anybody is asked anything.
        self.steps(self.plan("run", 0, 0..1, &self.load), false)?;
        all_reached(&sides)?;
        self.confirmed(&sides)?;
        let flush = self.flushes(&sides, &mut doubts)?;
        self.remembers(&sides, &mut doubts)?;
        let conversations = sides[0].workload.scripts().len() as u32;
        let blocks = blocks(conversations, self.compare.blocks());
        let turns = |sides: [usize; 2], before: &str| {
            in_turn(sides, &blocks, |block, part| {
                // Each block has arrivals of its own, the same at both endpoints.
                let load = LoadArgs { seed: self.load.seed.wrapping_add(u64::from(block)), ..self.load.clone() };
                let mut steps = self.steps(self.plan("run", block, part.clone(), &load), flush).unwrap_or_default();
                for step in &mut steps {
                    if let Step::Pass(plan) = step {
                        plan.name.insert_str(0, before);
                    }
                }
                steps
            })
        };
        let last = sides.len() - 1;
        let mut schedule = VecDeque::new();
        let floor = (self.compare.a_a && self.compare.against.is_some()).then_some([0, 1]);
        if let Some(floor) = floor {
            schedule.extend(turns(floor, A_A));
        }
        schedule.extend(turns([0, last], ""));
        let session = Session { sides, schedule, seed, keep_figures: true };
        Ok(Arranged { session, what: What::Comparison(Sides { pair: [0, last], floor }), doubts })
    }

    /// The warm-up, where there are no phases.
    fn warm(&self) -> VecDeque<(usize, Step)> {
        let requests = self.phases.warmup_requests.filter(|requests| *requests > 0);
        requests.map(|requests| (0, Step::Control(Control::Warm(requests)))).into_iter().collect()
    }

    fn swept(&self, sweep: Sweep) -> Result<Arranged, Failure> {
        let (word, values) = match &sweep {
            Sweep::Rate(values) => ("rate", values),
            Sweep::Concurrency(values) => ("concurrency", values),
        };
        let (mut sides, mut doubts) = (Vec::new(), Vec::new());
        for index in 0..values.len() as u64 {
            // Words of their own, so that no load finds in a cache what the one before it left there.
            let (side, recorded) = self.side("A", None, Seed(self.load.seed.wrapping_add(index)))?;
            sides.push(side);
            if recorded && doubts.is_empty() {
                doubts.push(RATE_INSTEAD.to_owned());
            }
        }
        // Made-up words are others for each load; those of a dataset are the same.
        let mut unable = Vec::new();
        all_reached(&sides[..1])?;
        self.confirmed(&sides[..1])?;
        let flush = self.flushes(&sides[..1], &mut unable)?;
        if self.workload.dataset.dataset_name.is_some() {
            doubts.append(&mut unable);
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
                schedule.push_back((index, Step::Control(Control::Flush)));
            }
            schedule.push_back((index, Step::Pass(Box::new(plan))));
        }
        let session = Session { sides, schedule, seed: self.seed(), keep_figures: false };
        Ok(Arranged { session, what: What::Sweep(sweep), doubts })
    }

    fn kep74(&self) -> Result<Arranged, Failure> {
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
            // Conversations of their own, where they are made up: an L3 remembers the others whatever is flushed.
            sides.push(self.side(name, *url, Seed(seed.0.wrapping_add(1)))?.0);
        }
        let mut doubts = Vec::new();
        all_reached(&sides)?;
        self.confirmed(&sides)?;
        let flush = self.flushes(&sides, &mut doubts)? || self.phases.flush_cache;
        if self.workload.dataset.dataset_name.is_some() {
            doubts.push(
                "the first turns of the conversations may be those of the passes before: where an L3 remembers them, row Turn 1 is warm"
                    .to_owned(),
            );
        }
        let conversations = |side: usize| sides[side].workload.scripts().len() as u32;
        let mut schedule = self.warm();
        let mut pass = |side: usize, name: &str, flush: bool| {
            if flush {
                schedule.push_back((side, Step::Control(Control::Flush)));
            }
            let plan = self.plan(name, 0, 0..conversations(side), &self.load);
            schedule.push_back((side, Step::Pass(Box::new(plan))));
        };
        let (there, back): (Vec<usize>, Vec<usize>) =
            ((0..endpoints.len()).collect(), (0..endpoints.len()).rev().collect());
        there.iter().for_each(|at| pass(2 * at, kep74::FIRST, flush));
        back.iter().for_each(|at| pass(2 * at, kep74::REPLAY, false));
        there.iter().for_each(|at| pass(2 * at + 1, kep74::TRUE, flush));
        let session = Session { sides, schedule, seed, keep_figures: false };
        Ok(Arranged { session, what: What::Kep74, doubts })
    }
}
