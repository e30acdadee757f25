//! A measurement: a schedule of steps against one endpoint or several, carried out in order.
//!
//! Every way to measure is a schedule and a look at what its passes brought: a plain run is one pass, a sweep is a pass per rate, a
//! comparison is passes that take turns between two endpoints, a ladder is passes with a control step before each.

mod before;
mod caches;
mod control;
mod filler;
mod pass;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::engine::env::Env;
use crate::engine::load::server::Server;
use crate::engine::load::server::observed::Shortfalls;
use crate::engine::load::session::caches::Caches;
use crate::engine::load::session::control::Performed;
use crate::engine::load::target::Target;
use crate::engine::load::workload::foreseen::Foreseen;
use crate::engine::load::workload::{Left, Part, Workload};
use crate::engine::load::{Bounds, Driver, Live, Pace, Record, Rules, Seed, run};

pub use before::Before;
pub use control::{Control, ControlError, Tier};
pub use pass::{FIGURES_MAX, Figure, Pass, PassId};

/// An endpoint, and the conversations that are had with it.
pub struct Side {
    /// What it is called in the report: `A`, `B`.
    pub name: String,
    /// Where it is.
    pub target: Target,
    /// What is said to it. Two sides that are compared have equal ones.
    pub workload: Box<dyn Workload + Send>,
    /// Its other routes, where they are to be used: what it is, what it counts, how its caches are emptied.
    pub server: Option<Server>,
    /// Token ids are drawn below this, where requests are made up that are not measured.
    pub vocabulary: u32,
}

impl Side {
    /// An endpoint of which nothing but answers is known.
    pub fn new(name: impl Into<String>, target: Target, workload: Box<dyn Workload + Send>) -> Side {
        Side { name: name.into(), target, workload, server: None, vocabulary: 32_000 }
    }
}

/// One step of a schedule.
#[derive(Clone, Debug)]
pub enum Step {
    /// A measured run.
    Pass(Box<PassPlan>),
    /// Something that puts the endpoint's caches into a known state.
    Control(Control),
}

/// What a measured run does.
#[derive(Clone, Debug)]
pub struct PassPlan {
    /// What it is called: `run`, `first`, `repeat`, `rate 8`.
    pub name: String,
    /// Which block of a comparison it is; zero elsewhere.
    pub block: u32,
    /// Which conversations.
    pub part: Range<u32>,
    /// When they come.
    pub pace: Pace,
    /// Bounds that hold at every pace.
    pub rules: Rules,
    /// Nothing more is sent after this.
    pub duration: Duration,
}

/// Who watches a measurement. All of it is optional.
pub trait Observer {
    /// A pass begins; it has so many conversations and, unless some fail, so many requests.
    fn begins(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<Live>) {
        let _ = (pass, conversations, requests, live);
    }
    /// A request of it ended in the interrupted run that is gone on with: to most observers a request like any other.
    fn before(&mut self, pass: &PassId, record: &Record) {
        self.record(pass, record);
    }
    /// A request of it ended.
    fn record(&mut self, pass: &PassId, record: &Record) {
        let _ = (pass, record);
    }
    /// A pass is over. What is left of the schedule is done if this says so.
    fn ended(&mut self, pass: &Pass) -> Next {
        let _ = pass;
        Next::GoOn
    }
    /// A word about what goes on.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

/// What comes after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next step.
    GoOn,
    /// Nothing: enough is known.
    Enough,
}

/// Several observers as one.
pub struct Observers<'a>(pub Vec<&'a mut dyn Observer>);

impl Observer for Observers<'_> {
    fn begins(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<Live>) {
        self.0.iter_mut().for_each(|one| one.begins(pass, conversations, requests, live));
    }
    fn before(&mut self, pass: &PassId, record: &Record) {
        self.0.iter_mut().for_each(|one| one.before(pass, record));
    }
    fn record(&mut self, pass: &PassId, record: &Record) {
        self.0.iter_mut().for_each(|one| one.record(pass, record));
    }
    fn ended(&mut self, pass: &Pass) -> Next {
        let enough = self.0.iter_mut().map(|one| one.ended(pass)).filter(|next| *next == Next::Enough).count();
        if enough > 0 { Next::Enough } else { Next::GoOn }
    }
    fn note(&mut self, text: &str) {
        self.0.iter_mut().for_each(|one| one.note(text));
    }
}

/// What a schedule left.
#[derive(Debug)]
pub struct Executed {
    /// The passes that ran, in order.
    pub passes: Vec<Pass>,
    /// The step that could not be done; nothing after it ran.
    pub broke: Option<ControlError>,
    /// Was it told to stop before its end?
    pub stopped: bool,
}

/// A measurement to carry out.
pub struct Session {
    /// The endpoints.
    pub sides: Vec<Side>,
    /// The steps: the index of a side, and what is done there.
    pub schedule: VecDeque<(usize, Step)>,
    /// Random choices of passes come from it.
    pub seed: Seed,
    /// Keep a figure of every request (at most [`FIGURES_MAX`] a pass), for analyses that pair them.
    pub keep_figures: bool,
}

impl Session {
    /// Carry out the schedule. When `stop` comes, the step in hand ends early and nothing follows; when it comes again, what is in flight
    /// is given up.
    pub async fn execute<E: Env + Unpin>(
        self,
        env: E,
        stop: &mut mpsc::Receiver<()>,
        observer: &mut dyn Observer,
    ) -> Executed {
        self.go_on(env, Vec::new(), stop, observer).await
    }

    /// The same, going on from what an interrupted run left of its passes, in order: what ended there is not asked again, and counts.
    pub async fn go_on<E: Env + Unpin>(
        mut self,
        env: E,
        earlier: Vec<Before>,
        stop: &mut mpsc::Receiver<()>,
        observer: &mut dyn Observer,
    ) -> Executed {
        let mut earlier = VecDeque::from(earlier);
        let mut executed = Executed { passes: Vec::new(), broke: None, stopped: false };
        let mut caches = tokio::select! {
            caches = Caches::look(&env, &self.sides) => caches,
            Some(()) = stop.recv() => return Executed { stopped: true, ..executed },
        };
        let mut steps = 0;
        while let Some((at, step)) = self.schedule.pop_front() {
            let Some(side) = self.sides.get_mut(at) else { continue };
            match step {
                // It prepared a pass that is over.
                Step::Control(_) if earlier.front().is_some_and(|pass| pass.complete) => {}
                Step::Control(step) => {
                    observer.note(&format!("{}: {step}", side.name));
                    steps += 1;
                    let by = filler::By { seed: self.seed, step: steps };
                    match control::perform(&env, (side, caches.server(at)), &mut caches, by, &step, stop).await {
                        Ok(Performed::Done(None)) => {}
                        Ok(Performed::Done(Some(word))) => observer.note(&format!("{}: {word}", side.name)),
                        Ok(Performed::Stopped) => {
                            executed.stopped = true;
                            break;
                        }
                        Err(error) => {
                            executed.broke = Some(error);
                            break;
                        }
                    }
                }
                Step::Pass(plan) => {
                    let before = earlier.pop_front().unwrap_or_default();
                    let plan = (*plan, before);
                    let pass =
                        pass(&env, (side, at), plan, &mut caches, self.seed, self.keep_figures, stop, observer).await;
                    let next = observer.ended(&pass);
                    executed.stopped = pass.ran.stopped;
                    executed.passes.push(pass);
                    if next == Next::Enough || executed.stopped {
                        break;
                    }
                }
            }
        }
        executed
    }
}

/// Carry out one pass.
#[expect(clippy::too_many_arguments, reason = "each is another thing of the session's")]
async fn pass<E: Env + Unpin>(
    env: &E,
    (side, at): (&mut Side, usize),
    (plan, before): (PassPlan, Before),
    caches: &mut Caches,
    seed: Seed,
    keep_figures: bool,
    stop: &mut mpsc::Receiver<()>,
    observer: &mut dyn Observer,
) -> Pass {
    let id = PassId { side: at, side_name: side.name.clone(), name: plan.name, block: plan.block };
    let from = plan.part.start;
    let server = caches.server(at);
    let began = caches.begins(env, server).await;
    let bell = caches.bell(server);
    let mut foreseen = Foreseen::new(&mut *side.workload, &mut caches.book);
    let mut part = Part::new(&mut foreseen, plan.part);
    let rest = before.rest(&part.scripts(), from);
    let is_whole = rest.kept.is_empty();
    let places = rest.conversations.clone();
    let mut workload = Left::new(&mut part, rest.conversations);
    let scripts = workload.scripts();
    let (conversations, requests) = (scripts.len(), scripts.iter().map(|script| u64::from(script.turns)).sum());
    let live = Arc::new(Live::default());
    observer.begins(&id, conversations as u64, requests, &live);
    let driver = Driver::new(scripts, plan.pace, plan.rules, seed);
    let bounds = Bounds {
        duration: plan.duration.saturating_sub(rest.clock),
        connections: plan.rules.in_flight.min(conversations),
    };
    let mut pass = Pass::new(id);
    for record in &rest.kept {
        pass.add(record, keep_figures);
        observer.before(&pass.id, record);
    }
    let mut falls = Shortfalls::default();
    let told = |mut record: Record| {
        // Inside a part, and what is left of it, conversations count from zero.
        let place = places.get(record.turn.conversation as usize).copied().unwrap_or_default();
        record.turn.conversation = from + place;
        // On this run's own clock, as the counters are.
        if falls.add(&record)
            && let Some(bell) = &bell
        {
            bell.ring();
        }
        let record = before::later(record, rest.clock);
        pass.add(&record, keep_figures);
        observer.record(&pass.id, &record);
    };
    let ran = run(env.clone(), side.target.clone(), &mut workload, driver, bounds, live, stop, told).await;
    pass.ran = ran;
    let tally = is_whole.then_some(&pass.tally);
    pass.observed = caches.ends(env, server, began, (tally, &pass.ran), falls).await;
    pass
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::HostPort;
    use crate::engine::load::Distribution;
    use crate::engine::load::answer::Dialect;
    use crate::engine::load::target::{Limits, Via};
    use crate::engine::load::workload::Synthetic;

    /// An endpoint that is asked nothing.
    pub(super) fn side(vocabulary: u32) -> Side {
        let target = Target {
            at: HostPort::new("127.0.0.1", 1),
            path: "/generate".to_owned(),
            dialect: Dialect::Generate,
            model: String::new(),
            temperature: 0.0,
            top_p: None,
            stream: true,
            ignore_eos: true,
            extra: serde_json::Map::new(),
            headers: hyper::HeaderMap::new(),
            via: Via::default(),
            limits: Limits::default(),
        };
        let one = Distribution::Constant(1.0);
        let mut side = Side::new("A", target, Box::new(Synthetic::new(1, one, one, one, Seed(1))));
        side.vocabulary = vocabulary;
        side
    }
}
