//! A measurement: a schedule of steps that are executed in order against one or more endpoints.
//!
//! Every type of measurement is a schedule plus an analysis of its passes. A plain run is a single
//! pass. A sweep has one pass per load value. A comparison alternates passes between two endpoints.
//! A ladder has a control step before each pass.

mod caches;
mod control;
mod filler;
mod pass;
mod resume;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::mpsc;

use crate::server::ServerClient;
use crate::server::observed::ShortfallWatcher;
use crate::session::caches::{EndedPass, SessionCaches};
use crate::session::control::{ControlRun, StepResult};
use crate::target::LoadTarget;
use crate::workload::expected_hits::WithExpectedHits;
use crate::workload::{LoadWorkload, WorkloadSubset};
use crate::{Driver, LiveCounters, LoadRun, Pace, Rules, RunLimits, Seed, TimedRequest};
use mcctl_sys::env::{Env, RealEnv};

pub use control::{Control, StepError, StepFailure, Tier};
pub use pass::{FIGURES_MAX, Figure, PassId, PassResult};
pub use resume::PreviousPass;

/// An endpoint and its workload.
pub struct LoadEndpoint {
    /// Name used in reports, such as `A` or `B`.
    pub name: String,
    pub target: LoadTarget,
    /// Conversations to send. Endpoints that are compared have identical workloads.
    pub workload: Box<dyn LoadWorkload + Send>,
    /// Client for the server's other routes (settings, counters, flush), if their use is allowed.
    pub server: Option<ServerClient>,
    /// Upper bound (exclusive) for token IDs in unmeasured requests.
    pub vocabulary: u32,
}

impl LoadEndpoint {
    /// Creates an endpoint whose other routes are not used.
    pub fn new(name: impl Into<String>, target: LoadTarget, workload: Box<dyn LoadWorkload + Send>) -> LoadEndpoint {
        LoadEndpoint { name: name.into(), target, workload, server: None, vocabulary: 32_000 }
    }
}

/// A step in a schedule.
#[derive(Clone, Debug)]
pub enum SessionStep {
    Pass(Box<PassPlan>),
    /// Puts the endpoint's caches into a known state.
    Control(Control),
}

/// Parameters for a measured pass.
#[derive(Clone, Debug)]
pub struct PassPlan {
    /// Name, such as `run`, `first`, `repeat` or `rate 8`.
    pub name: String,
    /// Block number in a comparison, otherwise zero.
    pub block: u32,
    pub part: Range<u32>,
    pub pace: Pace,
    /// Limits that apply to every pace.
    pub rules: Rules,
    /// Nothing is sent after this time.
    pub duration: Duration,
}

impl PassPlan {
    /// The number of conversations that may have a request in flight at the same time, as far as
    /// the plan limits it. A session has several conversations.
    fn at_once(&self) -> usize {
        match &self.pace {
            Pace::Sessions(plan) => plan.live.saturating_mul(4).min(self.part.len()),
            _ => self.part.len(),
        }
    }
}

/// Callbacks during a measurement. All of them are optional.
pub trait Observer {
    /// A pass is starting. It has `conversations` conversations and, unless some fail, `requests`
    /// requests.
    fn pass_started(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<LiveCounters>) {
        let _ = (pass, conversations, requests, live);
    }
    /// A request in a resumed pass had already finished in the interrupted run. Calls
    /// [`Observer::record`] by default.
    fn resumed(&mut self, pass: &PassId, record: &TimedRequest) {
        self.record(pass, record);
    }
    /// A request in the pass has finished.
    fn record(&mut self, pass: &PassId, record: &TimedRequest) {
        let _ = (pass, record);
    }
    /// A pass has ended. The return value decides whether the schedule continues.
    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        let _ = pass;
        AfterPass::Continue
    }
    /// The schedule is complete. The return value extends it; `None` ends the session.
    fn more_steps(&mut self) -> Option<MoreSteps> {
        None
    }
    /// Receives a progress message.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

/// Steps that extend a schedule.
#[derive(Clone, Debug)]
pub struct MoreSteps {
    /// Message about these steps for the progress display.
    pub note: String,
    /// Steps, each with the index of its endpoint.
    pub steps: Vec<(usize, SessionStep)>,
}

/// What to do after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPass {
    Continue,
    /// Skip the rest of the schedule.
    Stop,
}

/// Forwards callbacks to several observers.
pub struct Observers<'a>(pub Vec<&'a mut dyn Observer>);

impl Observer for Observers<'_> {
    fn pass_started(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<LiveCounters>) {
        self.0.iter_mut().for_each(|one| one.pass_started(pass, conversations, requests, live));
    }
    fn resumed(&mut self, pass: &PassId, record: &TimedRequest) {
        self.0.iter_mut().for_each(|one| one.resumed(pass, record));
    }
    fn record(&mut self, pass: &PassId, record: &TimedRequest) {
        self.0.iter_mut().for_each(|one| one.record(pass, record));
    }
    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        let enough = self.0.iter_mut().map(|one| one.pass_ended(pass)).filter(|next| *next == AfterPass::Stop).count();
        if enough > 0 { AfterPass::Stop } else { AfterPass::Continue }
    }
    fn more_steps(&mut self) -> Option<MoreSteps> {
        self.0.iter_mut().find_map(|one| one.more_steps())
    }
    fn note(&mut self, text: &str) {
        self.0.iter_mut().for_each(|one| one.note(text));
    }
}

/// The result of executing a schedule.
#[derive(Debug)]
pub struct SessionResult {
    /// Executed passes, in order.
    pub passes: Vec<PassResult>,
    /// The step that failed. Later steps were not executed.
    pub failed_step: Option<StepError>,
    /// Whether a stop signal ended the schedule early.
    pub stopped: bool,
}

impl SessionResult {
    /// Returns the number of requests aborted because of a bug in mcctl.
    pub fn bugs(&self) -> u64 {
        self.passes.iter().map(|pass| pass.ran.bugs).sum()
    }

    /// Returns whether all requests to at least one endpoint failed. Endpoints with the same name
    /// count as one.
    pub fn has_failed_endpoint(&self) -> bool {
        self.passes.iter().any(|one| {
            let of = || self.passes.iter().filter(|pass| pass.id.side_name == one.id.side_name);
            let succeeded: u64 = of().map(|pass| pass.tally.all.requests).sum();
            succeeded == 0 && of().any(|pass| pass.tally.failed() > 0)
        })
    }
}

/// A measurement to execute.
pub struct Session {
    pub sides: Vec<LoadEndpoint>,
    /// Steps, each with the index of its endpoint.
    pub schedule: VecDeque<(usize, SessionStep)>,
    /// Seed for random choices within passes.
    pub seed: Seed,
    /// Whether to keep the figures of every request (up to [`FIGURES_MAX`] per pass) for paired
    /// analyses.
    pub keep_figures: bool,
}

impl Session {
    /// Returns the maximum number of concurrent connections. HTTP/1 needs one per request in
    /// flight; HTTP/2 requests share connections.
    pub fn connections_max(&self) -> usize {
        let connections = self.schedule.iter().filter_map(|(at, step)| {
            let at_once = match step {
                SessionStep::Pass(plan) => plan.rules.in_flight.min(plan.at_once()),
                SessionStep::Control(Control::Rebuild(in_flight)) => *in_flight as usize,
                SessionStep::Control(_) => return None,
            };
            let protocol = &self.sides.get(*at)?.target.protocol;
            let shares = protocol.http2 && protocol.tls.is_none();
            Some(if shares { at_once.div_ceil(protocol.streams.max(1)) } else { at_once })
        });
        connections.max().unwrap_or(0)
    }

    /// Executes the schedule. After the first `stop`, the current step ends early and no further
    /// steps are executed. After the second one, requests in flight are aborted.
    pub async fn execute<E: Env + Unpin>(
        self,
        env: E,
        stop: &mut mpsc::Receiver<()>,
        observer: &mut dyn Observer,
    ) -> SessionResult {
        self.go_on(env, Vec::new(), stop, observer).await
    }

    /// Calls [`go_on`](Session::go_on) on this host. This function is not generic, so the code of
    /// the connections is compiled with this crate, as one unit, and uses less CPU time per token.
    pub fn go_on_here<'a>(
        self,
        env: RealEnv,
        earlier: Vec<PreviousPass>,
        stop: &'a mut mpsc::Receiver<()>,
        observer: &'a mut dyn Observer,
    ) -> LocalBoxFuture<'a, SessionResult> {
        Box::pin(self.go_on(env, earlier, stop, observer))
    }

    /// Executes the schedule, resuming from the passes of an interrupted run, in order. Requests
    /// that had finished are counted but not sent again.
    pub async fn go_on<E: Env + Unpin>(
        mut self,
        env: E,
        earlier: Vec<PreviousPass>,
        stop: &mut mpsc::Receiver<()>,
        observer: &mut dyn Observer,
    ) -> SessionResult {
        let mut earlier = VecDeque::from(earlier);
        let mut executed = SessionResult { passes: Vec::new(), failed_step: None, stopped: false };
        let mut caches = tokio::select! {
            caches = SessionCaches::probe(&env, &self.sides) => caches,
            Some(()) = stop.recv() => return SessionResult { stopped: true, ..executed },
        };
        let mut steps = 0;
        loop {
            let Some((at, step)) = self.schedule.pop_front() else {
                let Some(MoreSteps { note, steps }) = observer.more_steps() else { break };
                observer.note(&note);
                self.schedule.extend(steps);
                continue;
            };
            let Some(side) = self.sides.get_mut(at) else { continue };
            match step {
                // This step prepared a pass that is already complete.
                SessionStep::Control(_) if earlier.front().is_some_and(|pass| pass.complete) => {}
                SessionStep::Control(step) => {
                    observer.note(&format!("{}: {step}", side.name));
                    steps += 1;
                    let filler = filler::FillerSource { seed: self.seed, step: steps };
                    let server = caches.server(at);
                    let run = ControlRun { env: &env, side, server, caches: &mut caches, filler, step: &step };
                    match run.execute(stop).await {
                        Ok(StepResult::Done(None)) => {}
                        Ok(StepResult::Done(Some(word))) => observer.note(&format!("{}: {word}", side.name)),
                        Ok(StepResult::Stopped) => {
                            executed.stopped = true;
                            break;
                        }
                        Err(error) => {
                            executed.failed_step = Some(error);
                            break;
                        }
                    }
                }
                SessionStep::Pass(plan) => {
                    let seed = self.seed;
                    let keep_figures = self.keep_figures;
                    let before = earlier.pop_front().unwrap_or_default();
                    let run =
                        PassRun { env: &env, side, at, caches: &mut caches, seed, keep_figures, plan: *plan, before };
                    let pass = run.execute(stop, observer).await;
                    let next = observer.pass_ended(&pass);
                    executed.stopped = pass.ran.stopped;
                    executed.passes.push(pass);
                    if next == AfterPass::Stop || executed.stopped {
                        break;
                    }
                }
            }
        }
        executed
    }
}

/// A pass that is ready to start.
struct PassRun<'a, E: Env + Unpin> {
    env: &'a E,
    side: &'a mut LoadEndpoint,
    /// Index of the endpoint.
    at: usize,
    caches: &'a mut SessionCaches,
    seed: Seed,
    keep_figures: bool,
    plan: PassPlan,
    /// What an interrupted run did of this pass.
    before: PreviousPass,
}

impl<E: Env + Unpin> PassRun<'_, E> {
    async fn execute(self, stop: &mut mpsc::Receiver<()>, observer: &mut dyn Observer) -> PassResult {
        let PassRun { env, side, at, caches, seed, keep_figures, plan, before } = self;
        let id = PassId { side: at, side_name: side.name.clone(), name: plan.name, block: plan.block };
        let from = plan.part.start;
        let server = caches.server(at);
        let began = caches.pass_started(env, server).await;
        let trigger = caches.trigger(server);
        let mut with_expected = WithExpectedHits::new(&mut *side.workload, &mut caches.book);
        let part = WorkloadSubset::new(&mut with_expected, plan.part);
        let rest = before.rest(&part.scripts(), from);
        let is_whole = rest.kept.is_empty();
        let mut workload = part.keep(&rest.conversations);
        let numbers = workload.conversations().to_vec();
        let scripts = workload.scripts();
        let conversations = scripts.len();
        let requests = scripts.iter().map(|script| u64::from(script.turns)).sum();
        let sends_until_ms = u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX).into();
        let live = Arc::new(LiveCounters { sends_until_ms, ..LiveCounters::default() });
        observer.pass_started(&id, conversations as u64, requests, &live);
        let driver = Driver::new(scripts, plan.pace.clone(), plan.rules, seed);
        let limits = RunLimits {
            duration: plan.duration.saturating_sub(rest.clock),
            connections: match &plan.pace {
                Pace::Sessions(sessions) => sessions.live,
                _ => usize::MAX,
            }
            .min(plan.rules.in_flight)
            .min(conversations),
        };
        let mut pass = PassResult::new(id);
        for record in &rest.kept {
            pass.add(record, keep_figures);
            observer.resumed(&pass.id, record);
        }
        let mut shortfalls = ShortfallWatcher::default();
        let on_record = |mut record: TimedRequest| {
            // Within a subset, conversations are numbered from zero.
            // A repeated list of sessions has numbers beyond it.
            let number = record.turn.conversation;
            record.turn.conversation = numbers.get(number as usize).copied().unwrap_or(from + number);
            // Use the clock of this run, which the counters also use.
            if shortfalls.add(&record)
                && let Some(trigger) = &trigger
            {
                trigger.fire();
            }
            let record = resume::shift(record, rest.clock);
            pass.add(&record, keep_figures);
            observer.record(&pass.id, &record);
        };
        let target = side.target.clone();
        let run = LoadRun { env: env.clone(), target, workload: &mut workload, driver, limits, live };
        pass.ran = run.execute(stop, on_record).await;
        if matches!(plan.pace, Pace::Sessions(_)) {
            // Sessions may be idle at the start and at the end.
            pass.tally.extend_window(Duration::ZERO, pass.ran.sent_until);
        }
        let ended = EndedPass { server, began, tally: is_whole.then_some(&pass.tally), ran: &pass.ran, shortfalls };
        pass.observed = caches.pass_ended(env, ended).await;
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distribution;
    use crate::answer::Dialect;
    use crate::workload::Synthetic;
    use mcctl_base::HostPort;

    /// An endpoint that receives no requests.
    pub(super) fn side(vocabulary: u32) -> LoadEndpoint {
        let target = LoadTarget::new(HostPort::new("127.0.0.1", 1), Dialect::Generate);
        let one = Distribution::Constant(1.0);
        let mut side = LoadEndpoint::new("A", target, Box::new(Synthetic::new(1, one, one, one, Seed(1))));
        side.vocabulary = vocabulary;
        side
    }
}
