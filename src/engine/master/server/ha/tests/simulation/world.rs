//! The simulation: events in order of their time, and the checks.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::env::{HostClock, ThreadTimes};
use super::etcd::SimEtcd;
use super::event::Event;
use super::fabric::Fabric;
use super::fault::Fault;
use super::node::Node;
use super::report::{Plan, Totals, Violation};
use crate::engine::base::rng::Rng;
use crate::engine::env::Env;
use crate::engine::ha::HandOverProblem;
use crate::engine::ha::stage::HaStage;
use crate::engine::ha::{AckMode, HaConfig, NotInSyncPolicy};
use crate::engine::journal::{LogConfig, SimulatedStorage, SyncMode};
use crate::engine::master::StorePolicy;
use crate::engine::master::server::DataOptions;

/// The simulation. Times are in microseconds.
pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub(super) fabric: Arc<Fabric>,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub etcd: SimEtcd,
    pub is_etcd_up: bool,
    pub cut_etcd: BTreeSet<usize>,
    queue: BinaryHeap<ScheduledEvent>,
    next_event: u64,
    /// Bytes in the clients' segments: what was written at an address.
    pub memory: BTreeMap<u64, String>,
    /// Acknowledged keys that no client has tried to remove.
    pub acked: BTreeMap<String, AckedPut>,
    /// Keys that were acknowledged, and may be lost because a copy was promoted that may have lacked changes.
    pub dropped: Vec<String>,
    /// Keys to be removed, because the outcome of a call is unknown.
    pub junk: Vec<String>,
    /// The latest election whose winner has answered.
    pub(super) answered: usize,
    pub last_put: u64,
    pub(super) plan: Plan,
    pub totals: Totals,
    pub(super) violation: Option<Violation>,
    is_traced: bool,
    pub is_crash_planned: bool,
    /// The hand-over after all faults was requested.
    is_last_hand_over: bool,
    /// Keys that were acknowledged before may be lost, because a copy was promoted that may have lacked changes.
    pub(super) lost_before: u64,
    /// A fault happens when a node next reaches this stage.
    pub(super) planned_stage: Option<HaStage>,
    /// Writes of the sync record, also by elections, that have not arrived at etcd.
    pub sync_writes: u64,
    /// Number of events, and the sum of their digests, which show whether a run can be repeated.
    pub(super) trail: (u64, u64),
}

/// An acknowledged put: the address of its value, and when the client got the response.
#[derive(Clone, Copy, Debug)]
pub struct AckedPut {
    pub at: u64,
    pub since: u64,
}

/// An event, and its time. The earliest one is the greatest.
struct ScheduledEvent {
    at: Reverse<(u64, u64)>,
    event: Event,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        self.at == other.at
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &ScheduledEvent) -> Ordering {
        self.at.cmp(&other.at)
    }
}

const RECOVERY: u64 = 40_000_000;
/// After a lossy promotion, segments accept no new objects for this time.
const LOSSY_HOLD: u64 = 30_000_000;
/// After this time without faults, all standbys are in sync, and a hand-over succeeds.
const SETTLED: u64 = 20_000_000;
/// Each run has at least this many faults that had an effect.
pub(super) const FAULTS_MIN: u64 = 5;
/// Each run has at least this many acknowledged puts and reads.
pub(super) const OPERATIONS_MIN: u64 = 300;
/// No fault is added after this time.
const LONGEST: u64 = 900_000_000;

impl World {
    pub(super) fn new(seed: u64, plan: Plan) -> World {
        let mut rng = Rng::new(seed);
        let policy = StorePolicy {
            seed: 7,
            lease_ttl: Duration::from_secs(5),
            client_ttl: Duration::from_secs(3600),
            put_discard_after: Duration::from_secs(5),
            put_release_after: Duration::from_secs(10),
            ..StorePolicy::default()
        };
        let fabric = Fabric::new(plan.nodes, seed);
        let times = ThreadTimes { work: plan.work, step: plan.slow_disk.max(40_000) };
        let ack = if plan.is_async { AckMode::Async } else { AckMode::Sync };
        let config = HaConfig { ack, not_in_sync: plan.not_in_sync, ..HaConfig::default() };
        let nodes = (0..plan.nodes).map(|nth| {
            // Each clock is up to 1 % too fast or too slow.
            let offset = 1_000_000_000 * (1 + rng.below(10_000) as u64);
            let clock = HostClock { offset, rate: 990 + rng.below(21) as u64 };
            let disk = plan.has_data.then(|| {
                let sync = match rng.below(3) {
                    _ if plan.slow_disk > 1 => SyncMode::Always,
                    0 => SyncMode::Always,
                    1 => SyncMode::Never,
                    _ => SyncMode::default(),
                };
                // Small files and frequent snapshots, so that both often follow each other.
                let log = LogConfig { file_bytes: 8192 << rng.below(4), ..LogConfig::default() };
                let snapshot_interval = Duration::from_millis(2_000 + rng.below(30_000) as u64);
                let options = DataOptions { sync, log, snapshot_interval, ..DataOptions::default() };
                (SimulatedStorage::new(rng.next()), options)
            });
            Node::new(nth, fabric.clone(), policy.clone(), config, clock, times, disk)
        });
        let nodes: Vec<Node> = nodes.collect();
        let clients = (0..plan.clients).map(|_| Client::new(Rng::new(rng.next()))).collect();
        let mut world = World {
            now: 0,
            rng,
            fabric,
            nodes,
            clients,
            etcd: SimEtcd::default(),
            is_etcd_up: true,
            cut_etcd: BTreeSet::new(),
            queue: BinaryHeap::new(),
            next_event: 0,
            memory: BTreeMap::new(),
            acked: BTreeMap::new(),
            dropped: Vec::new(),
            junk: Vec::new(),
            answered: 0,
            last_put: 0,
            plan,
            totals: Totals {
                slow_disks: u64::from(plan.slow_disk > 1),
                plans: BTreeMap::from([(plan.name(), 1)]),
                ..Totals::default()
            },
            violation: None,
            is_crash_planned: false,
            is_last_hand_over: false,
            lost_before: 0,
            planned_stage: None,
            sync_writes: 0,
            trail: (0, 0),
            is_traced: std::env::var_os("MCCTL_HA_TRACE").is_some(),
        };
        if world.is_traced {
            let _ = tracing_subscriber::fmt().without_time().with_ansi(false).with_target(false).try_init();
        }
        for node in 0..plan.nodes {
            world.after(1 + node as u64, Event::Start(node));
        }
        (0..plan.clients).for_each(|nth| world.after(1000, Event::Client(nth)));
        world.after(1000, Event::ExpireLeases);
        world.after(3_000_000, Event::Fault);
        world
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, time: u64, event: Event) {
        self.next_event += 1;
        self.queue.push(ScheduledEvent { at: Reverse((time, self.next_event)), event });
    }

    /// Prints what happens, if `MCCTL_HA_TRACE` is set.
    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>9.3} {}", self.now as f64 / 1e6, what());
        }
    }

    /// The delay of a message: usually short.
    pub(super) fn delay(&mut self) -> u64 {
        match self.rng.below(50) {
            0 => self.rng.below(100_000) as u64,
            _ => 50 + self.rng.below(1_500) as u64,
        }
    }

    pub(super) fn run(&mut self) -> Result<(), Violation> {
        let mut faults = self.plan.faults;
        let mut end = u64::MAX;
        while let Some(ScheduledEvent { at: Reverse((at, _)), event }) = self.queue.pop() {
            self.now = at;
            self.fabric.set_now(at);
            if at > end {
                break;
            }
            self.trail.0 += 1;
            let mut digest = Rng::new(at ^ kind_of(&event).rotate_left(48));
            self.trail.1 = self.trail.1.wrapping_add(digest.next());
            if matches!(event, Event::Fault) {
                if faults == 0 {
                    let resumed = self.nodes.iter().map(|node| node.paused_until).max().unwrap_or(0);
                    let calm = resumed.max(self.now) + LOSSY_HOLD;
                    end = calm + RECOVERY;
                    self.after(calm + SETTLED - self.now, Event::LastHandOver);
                    self.heal_all();
                    continue;
                }
                faults -= 1;
                self.inject();
                // Some faults have no effect, for example because a crash would take the last copy.
                let has_enough = self.totals.effective >= FAULTS_MIN && self.totals.operations() >= OPERATIONS_MIN;
                if faults == 0 && !has_enough && self.now < LONGEST {
                    faults = 1;
                }
                let pause = self.rng.below(2 * usize::try_from(self.plan.pause).expect("small")) as u64;
                let pause = if self.rng.below(4) == 0 { pause / 20 } else { pause };
                self.after(pause, Event::Fault);
                continue;
            }
            self.handle(event)?;
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.totals.elections = self.etcd.elected.len() as u64;
        self.totals.etcd_writes = self.etcd.writes;
        self.check_end()
    }

    fn heal_all(&mut self) {
        let cuts = self.fabric.state().cuts.clone();
        for (a, b) in cuts {
            self.heal(Fault::CutNodes(a, b));
        }
        self.cut_etcd.clear();
        (self.planned_stage, self.is_crash_planned) = (None, false);
        self.heal(Fault::EtcdDown);
        for nth in 0..self.nodes.len() {
            if !self.nodes[nth].is_up() {
                self.after(1000, Event::Start(nth));
            }
        }
    }

    /// What all parts look like, for the report of a violation.
    fn roles(&self) -> Vec<String> {
        let node = |node: &Node| {
            let view = node.process.as_ref().map(|process| process.hub.view(process.shared.env.boottime()));
            format!("{:?} {view:?}", node.probe())
        };
        let client = |client: &Client| format!("{:?} {:?} {}", client.target, client.request, client.must_register);
        let mut roles: Vec<String> = self.nodes.iter().map(node).collect();
        roles.push(format!("{:?}", self.etcd.observation()));
        roles.extend(self.clients.iter().map(client));
        roles
    }

    fn check_end(&mut self) -> Result<(), Violation> {
        if self.last_put + RECOVERY / 2 < self.now {
            return Err(Violation::NoService { roles: self.roles() });
        }
        let elected = self.etcd.elected.last().map(|election| election.leader);
        let leads = |node: &&Node| node.is_up() && Some(node.probe().0) == elected && node.is_leader();
        let Some(leader) = self.nodes.iter().find(leads).and_then(|node| node.process.as_ref()) else {
            return Err(Violation::NoService { roles: self.roles() });
        };
        for key in &self.dropped {
            let replicas = leader.shared.with_guarded(|guarded, _, _| guarded.state.peek(key.as_bytes()));
            let found = replicas.ok().and_then(|replicas| self.memory.get(&replicas.first()?.address));
            if found.is_some_and(|found| found != key) {
                return Err(Violation::OtherBytes { key: key.clone(), found: found.cloned() });
            }
        }
        for (key, put) in &self.acked {
            let found = leader.shared.with_guarded(|guarded, _, _| guarded.state.peek(key.as_bytes()).is_ok());
            if !found {
                return Err(Violation::Lost { key: key.clone() });
            }
            let found = self.memory.get(&put.at);
            if found != Some(key) {
                return Err(Violation::OtherBytes { key: key.clone(), found: found.cloned() });
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Timer { node, incarnation, number } => {
                let waker = self.fabric.state().timers.remove(&number).flatten();
                if let Some(waker) = waker.filter(|_| incarnation == self.nodes[node].incarnation) {
                    waker.wake();
                    self.run_node(node);
                }
            }
            Event::Packet { connection, side, losses } => {
                let owner = self.fabric.state().connections.get(&connection).map(|it| it.sides[side].0);
                self.fabric.state().arrive(connection, side, losses);
                owner.into_iter().for_each(|node| self.run_node(node));
            }
            Event::Connect { .. } | Event::Connecting { .. } | Event::Connected { .. } => self.connect(event),
            Event::EtcdSend { node, number, request } => self.send_to_etcd(node, number, request),
            Event::Etcd { node, number, request, is_answered } => self.serve_etcd(node, number, request, is_answered),
            Event::EtcdReply { node, number, reply } => {
                if let Some(answer) = self.fabric.state().replies.get_mut(&number) {
                    answer.set(*reply);
                }
                self.run_node(node);
            }
            Event::Watch { node } => {
                {
                    let watch = &mut self.fabric.state().watches[node];
                    watch.changes += 1;
                    watch.waker.take().into_iter().for_each(std::task::Waker::wake);
                }
                self.run_node(node);
            }
            Event::ExpireLeases => {
                if self.is_etcd_up && self.etcd.expire(self.now) {
                    self.trace(|| "etcd: the key expired".to_owned());
                    self.notify_watches();
                }
                self.after(20_000, Event::ExpireLeases);
            }
            Event::Client(nth) => self.step_client(nth),
            Event::Write { client, key, at } => {
                self.write(&key, at);
                self.step_client(client);
            }
            Event::Timeout { client, call } => self.fail_call(client, call),
            Event::Request { client, call, node, request } => match &self.nodes[node].process {
                Some(process) => {
                    process.receive(client, call, request);
                    self.run_node(node);
                }
                None => self.fail_call(client, call),
            },
            Event::Forwarded { client, call, address, request } => {
                match (0..self.nodes.len()).find(|node| address == format!("node-{node}:50051")) {
                    Some(node) => {
                        let delay = self.clients[client].delay();
                        self.after(delay, Event::Request { client, call, node, request });
                    }
                    None => self.fail_call(client, call),
                }
            }
            Event::Changed { node } => self.crash_if_planned(node),
            Event::Answered { node, client, call, reply, view } => {
                self.check_answer(node, view);
                let delay = self.clients[client].delay();
                self.after(delay, Event::Reply { client, call, reply });
            }
            Event::Closed { client, call, was_processed: true } => self.fail_call(client, call),
            Event::Closed { client, call, was_processed: false } => {
                let delay = self.clients[client].delay();
                self.after(delay, Event::Reply { client, call, reply: super::request::Reply::Refused });
            }
            Event::Reply { client, call, reply } => return self.reply(client, call, reply),
            Event::Copy { key, at, until } if self.now < until => {
                self.totals.reads += 1;
                let found = self.memory.get(&at);
                if found != Some(&key) {
                    return Err(Violation::OtherBytes { key, found: found.cloned() });
                }
            }
            Event::Copy { .. } | Event::Fault => {}
            Event::StageFault { node, stage, fault } => self.inject_at_stage(node, stage, fault),
            Event::SteppedDown { node, is_ending, result } => self.end_hand_over(node, is_ending, result)?,
            Event::LastHandOver => self.request_last_hand_over()?,
            Event::Heal(fault) => self.heal(fault),
            Event::FollowUp(fault) => self.apply_fault(fault),
            Event::CrashBusy { node, incarnation } => {
                if incarnation == self.nodes[node].incarnation {
                    self.crash_for_a_while(node);
                }
            }
            Event::EndProcess { node, incarnation } => {
                if incarnation == self.nodes[node].incarnation {
                    self.end_process(node, false);
                }
            }
            Event::Start(nth) => self.start(nth),
            Event::Resume(nth) => self.run_node(nth),
        }
        Ok(())
    }

    /// Runs what can continue in a process, unless it is paused, and takes the events that it causes.
    pub(super) fn run_node(&mut self, nth: usize) {
        let node = &self.nodes[nth];
        if node.paused_until > self.now {
            return;
        }
        let Some(process) = &node.process else { return };
        process.run();
        let stages = process.hub.take_stages();
        let lossy = self.nodes[nth].take_lossy_promotions();
        if lossy > 0 {
            // Keys may be lost by this rule. What can still be read must be right.
            self.trace(|| format!("node {nth} leads and has dropped its objects"));
            self.totals.lossy_promotions += lossy;
            if self.plan.not_in_sync == NotInSyncPolicy::Wait && !self.plan.is_async {
                self.violation = Some(Violation::LossyPromotion { node: nth });
            }
            self.dropped.extend(std::mem::take(&mut self.acked).into_keys());
            self.lost_before = self.now;
        }
        self.check_leaders();
        self.take_posted();
        for stage in stages {
            self.note_stage(nth, stage);
        }
    }

    /// Takes the events that the processes have added.
    pub(super) fn take_posted(&mut self) {
        let posted = std::mem::take(&mut self.fabric.state().posted);
        for (at, event) in posted {
            self.at(at, event);
        }
    }

    /// At most one master can send responses.
    fn check_leaders(&mut self) {
        let mut answering = (0..self.nodes.len()).filter(|nth| self.nodes[*nth].could_answer(self.now));
        if let (Some(one), Some(two)) = (answering.next(), answering.next()) {
            self.violation = Some(Violation::TwoLeaders(one, two));
        }
    }

    /// A hand-over has ended. If its process was asked to end, it does.
    fn end_hand_over(
        &mut self,
        node: usize,
        is_ending: bool,
        result: Result<(), HandOverProblem>,
    ) -> Result<(), Violation> {
        self.trace(|| format!("node {node}: end of a hand-over: {result:?}"));
        let has_handed_over = result.is_ok();
        match result {
            Ok(()) => self.totals.effective += 1,
            Err(problem) if self.is_last_hand_over => {
                return Err(Violation::HandOverFailed { problem, roles: self.roles() });
            }
            Err(problem) => *self.totals.failed_hand_overs.entry(format!("{problem:?}")).or_default() += 1,
        }
        if is_ending {
            self.end_process(node, has_handed_over);
        }
        Ok(())
    }

    /// All standbys must be in sync by now. The leader is asked to hand over.
    fn request_last_hand_over(&mut self) -> Result<(), Violation> {
        let listed = self.etcd.observation().sync.map_or(0, |(sync, _)| sync.in_sync.len());
        let Some(leader) = self.leader().filter(|_| listed + 1 == self.nodes.len()) else {
            return Err(Violation::NotInSync { roles: self.roles() });
        };
        self.is_last_hand_over = true;
        if let Some(process) = &self.nodes[leader].process {
            process.step_down(false);
        }
        self.run_node(leader);
        Ok(())
    }

    /// The master that has sent a response was the last one that has been elected and has answered.
    fn check_answer(&mut self, node: usize, view: u64) {
        let election = self.etcd.elected.iter().rposition(|election| election.view == view).unwrap_or(0);
        if election < self.answered {
            self.violation = Some(Violation::StaleAnswer { node });
        }
        self.answered = self.answered.max(election);
    }

    /// Starts the process of a host.
    fn start(&mut self, nth: usize) {
        if self.nodes[nth].is_up() {
            return;
        }
        let found = self.nodes[nth].start();
        self.take_posted();
        self.totals.reopened += u64::from(found.is_some_and(|(_, last)| last > 0));
        self.trace(|| format!("start of node {nth}: {found:?}"));
        if let Some((member, last)) = found
            && self.nodes[nth].acknowledged.0 == member
            && self.nodes[nth].acknowledged.1 > last
        {
            self.violation = Some(Violation::NotStored { id: member });
        }
        self.run_node(nth);
    }
}

/// A number for the kind of an event.
fn kind_of(event: &Event) -> u64 {
    match event {
        Event::Timer { node, .. } => 1 + *node as u64,
        Event::Packet { connection, .. } => 100 + connection,
        Event::Client(nth) => 10 + *nth as u64,
        Event::Reply { client, .. } => 20 + *client as u64,
        _ => 30,
    }
}
