//! The simulation: events in order of their time.

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
use super::memory::{Memory, segment_of};
use super::model::Model;
use super::net::RPC_PORT;
use super::node::Node;
use super::operation::Reply;
use super::process::NodeSettings;
use super::records::RecordModel;
use super::report::{Plan, Totals, Violation};
use crate::StorePolicy;
use mcctl_base::rng::Rng;
use mcctl_election::ha::stage::HaStage;
use mcctl_election::ha::{AckMode, HaConfig};
use mcctl_journal::{CommitLogOptions, LogConfig, SimulatedStorage, SyncMode};

/// The simulation. Times are in microseconds.
pub(super) struct World {
    pub now: u64,
    pub rng: Rng,
    pub(super) fabric: Arc<Fabric>,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub etcd: SimEtcd,
    /// Earlier contents of etcd, for a restore.
    etcd_backup: SimEtcd,
    pub is_etcd_up: bool,
    pub cut_etcd: BTreeSet<usize>,
    queue: BinaryHeap<ScheduledEvent>,
    next_event: u64,
    pub(super) memory: Memory,
    pub(super) model: Model,
    pub(super) records: RecordModel,
    /// The segments whose objects may be lost at any time: they were unmounted, or the client sends
    /// no pings.
    pub(super) unsafe_segments: BTreeSet<u64>,
    /// The segments whose memory is no longer served: their processes have ended, or have unmounted
    /// them.
    pub(super) ended_segments: BTreeSet<u64>,
    /// The last number of a client's process or segment.
    pub(super) last_number: u64,
    /// The latest election whose winner has answered.
    pub(super) answered: usize,
    pub last_put: u64,
    pub(super) plan: Plan,
    pub totals: Totals,
    pub(super) violation: Option<Violation>,
    is_traced: bool,
    pub is_crash_planned: bool,
    /// The hand-over after all faults was requested.
    pub(super) is_last_hand_over: bool,
    /// A fault happens when a node next reaches this stage.
    pub(super) planned_stage: Option<HaStage>,
    /// Time at which the last copy that may be elected was lost.
    pub(super) operator_waits_since: Option<u64>,
    /// The last complete copy may be lost: its process has received a request to end, or it was
    /// replaced by one that its leader had not listed yet.
    pub(super) is_copy_lost: bool,
    /// Time of the last crash of a node.
    pub(super) crashed_at: u64,
    /// The requests of candidates whose objects are dropped.
    pub(super) lossy_elections: BTreeSet<u64>,
    /// Writes of the sync record, also by elections, that have not arrived at etcd.
    pub sync_writes: u64,
    /// Number of events, and the sum of their digests, which show whether a run can be repeated.
    pub(super) trail: (u64, u64),
}

/// An event, and its time. The earliest one is the greatest.
struct ScheduledEvent {
    at: Reverse<(u64, u64)>,
    event: Box<Event>,
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

/// After the last fault, and the hold after a lossy promotion, a run continues for this time.
pub(super) const RECOVERY: u64 = 40_000_000;
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
            client_ttl: Duration::from_secs(10),
            put_discard_after: Duration::from_secs(5),
            put_release_after: Duration::from_secs(10),
            ..StorePolicy::default()
        };
        let fabric = Fabric::new(plan.nodes, seed);
        let times = ThreadTimes { work: plan.work, step: plan.slow_disk.max(40_000) };
        let ack = if plan.is_async { AckMode::Async } else { AckMode::Sync };
        let config = HaConfig { ack, not_in_sync: plan.not_in_sync, ..HaConfig::default() };
        let settings = NodeSettings { policy, config, tail: plan.tail };
        let nodes = (0..plan.nodes).map(|nth| {
            // Each clock is up to 5 % too fast or too slow.
            let offset = 1_000_000_000 * (1 + rng.below(10_000) as u64);
            let clock = HostClock { offset, rate: 950 + rng.below(101) as u64 };
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
                let options = CommitLogOptions { sync, log, snapshot_interval, ..CommitLogOptions::default() };
                (SimulatedStorage::new(rng.next()), options)
            });
            Node::new(nth, fabric.clone(), settings.clone(), clock, times, disk)
        });
        let nodes: Vec<Node> = nodes.collect();
        let clients = (1..=plan.clients as u64).map(|nth| Client::new(nth, Rng::new(rng.next()))).collect();
        let mut world = World {
            now: 0,
            rng,
            fabric,
            nodes,
            clients,
            etcd: SimEtcd::default(),
            etcd_backup: SimEtcd::default(),
            is_etcd_up: true,
            cut_etcd: BTreeSet::new(),
            queue: BinaryHeap::new(),
            next_event: 0,
            memory: Memory::default(),
            model: Model::new(plan.clients),
            records: RecordModel::new(seed),
            unsafe_segments: BTreeSet::new(),
            ended_segments: BTreeSet::new(),
            last_number: plan.clients as u64,
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
            planned_stage: None,
            operator_waits_since: None,
            is_copy_lost: false,
            crashed_at: 0,
            lossy_elections: BTreeSet::new(),
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
        if plan.has_records {
            world.after(2000, Event::Records);
        }
        world.after(1000, Event::ExpireLeases);
        world.after(3_000_000, Event::Fault);
        world
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, time: u64, event: Event) {
        self.next_event += 1;
        self.queue.push(ScheduledEvent { at: Reverse((time, self.next_event)), event: Box::new(event) });
    }

    /// The node whose RPC port has this address.
    fn node_at(&self, address: &str) -> Option<usize> {
        (0..self.nodes.len()).find(|nth| address == format!("node-{nth}:{RPC_PORT}"))
    }

    /// Prints what happens, if `MCCTL_HA_TRACE` is set.
    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>9.3} {}", self.now as f64 / 1e6, what());
        }
    }

    /// The delay of a message: usually short.
    pub(super) fn delay(&mut self) -> u64 {
        message_delay(&mut self.rng)
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
            if matches!(*event, Event::Fault) {
                if faults == 0 {
                    let resumed = self.nodes.iter().map(|node| node.paused_until).max().unwrap_or(0);
                    let calm = resumed.max(self.now) + LOSSY_HOLD;
                    end = calm + RECOVERY;
                    self.after(calm + SETTLED - self.now, Event::LastHandOver);
                    self.heal_all();
                    continue;
                }
                faults -= 1;
                if self.plan.is_isolated && self.now >= self.plan.pause {
                    self.check_service()?;
                }
                self.inject();
                // Some faults have no effect, for example because a crash would take the last copy.
                let has_enough = self.totals.effective >= FAULTS_MIN && self.totals.operations() >= OPERATIONS_MIN;
                if faults == 0 && !has_enough && self.now < LONGEST {
                    faults = 1;
                }
                if self.plan.is_isolated {
                    self.after(self.plan.pause, Event::Fault);
                    continue;
                }
                let pause = self.rng.below(2 * usize::try_from(self.plan.pause).expect("small")) as u64;
                let pause = if self.rng.below(4) == 0 { pause / 20 } else { pause };
                self.after(pause, Event::Fault);
                continue;
            }
            let handled = self.handle(*event);
            let violation = self.violation.take();
            self.judge(handled.and(violation.map_or(Ok(()), Err)))?;
        }
        self.totals.elections = self.etcd.elected.len() as u64;
        self.totals.etcd_writes = self.etcd.writes;
        let ended = self.check_end();
        self.judge(ended)
    }

    fn heal_all(&mut self) {
        let cuts = self.fabric.state().cuts.clone();
        for (from, to) in cuts {
            self.heal(Fault::CutOneWay(from, to));
        }
        self.cut_etcd.clear();
        self.planned_stage = None;
        self.is_crash_planned = false;
        self.heal(Fault::EtcdDown);
        for nth in 0..self.nodes.len() {
            if !self.nodes[nth].is_up() {
                self.after(1000, Event::Start(nth));
            }
        }
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
                if self.is_etcd_up {
                    // The clients watch the leader's key.
                    let node = self.etcd.leader().and_then(|key| self.node_at(&key.address));
                    self.clients.iter_mut().for_each(|client| client.leader = node);
                }
                self.recover_as_operator();
                self.after(20_000, Event::ExpireLeases);
            }
            Event::Client(nth) => self.step_client(nth),
            Event::Records => self.step_records(),
            Event::RecordWritten { value, result } => self.end_record_write(value, &result),
            Event::RecordRead { read, found } => self.check_record(read, found)?,
            Event::Write { client, call, until } => self.write(client, call, until),
            Event::Timeout { client, call } => self.fail_call(client, call),
            Event::Request { client, call, node, incarnation, request } => match &self.nodes[node].process {
                Some(process) if self.nodes[node].incarnation == incarnation => {
                    process.receive(client, call, request);
                    self.run_node(node);
                }
                _ => self.fail_call(client, call),
            },
            Event::Forwarded { client, call, address, request } => match self.node_at(&address) {
                Some(node) => {
                    let delay = self.clients[client].delay();
                    let incarnation = self.nodes[node].incarnation;
                    self.after(delay, Event::Request { client, call, node, incarnation, request });
                }
                None => self.fail_call(client, call),
            },
            Event::Changed { node } => self.crash_if_planned(node),
            Event::AllocatedTwice { node, key } => return Err(Violation::AllocatedTwice { node, key }),
            Event::Answered { node, client, call, reply, view } => {
                view.into_iter().for_each(|view| self.check_answer(node, view));
                let delay = self.clients[client].delay();
                self.after(delay, Event::Reply { client, call, reply });
            }
            Event::Closed { client, call, was_processed: true } => self.fail_call(client, call),
            Event::Closed { client, call, was_processed: false } => {
                let delay = self.clients[client].delay();
                self.after(delay, Event::Reply { client, call, reply: Reply::Refused });
            }
            Event::Reply { client, call, reply } => return self.reply(client, call, reply),
            Event::Copy { key, at, oldest, until }
                if self.now < until && !self.ended_segments.contains(&segment_of(at)) =>
            {
                self.totals.reads += 1;
                self.model.check_bytes(&key, oldest, self.memory.read(at))?;
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

    /// Runs the tasks of a process that can continue, unless it is paused, and takes the events
    /// that they cause.
    pub(super) fn run_node(&mut self, nth: usize) {
        let node = &self.nodes[nth];
        if node.paused_until > self.now {
            return;
        }
        let Some(process) = &node.process else { return };
        process.run();
        let stages = process.hub.take_stages();
        self.check_discard(nth);
        self.check_leaders();
        self.take_posted();
        for stage in stages {
            self.note_stage(nth, stage);
        }
    }

    /// etcd loses data. Its contents after that are the next backup.
    pub(super) fn restore_etcd(&mut self) {
        let backup = std::mem::replace(&mut self.etcd_backup, self.etcd.clone());
        self.etcd.restore(&backup, self.now + 2_000_000);
        self.notify_watches();
    }

    /// Takes the events that the processes have added.
    pub(super) fn take_posted(&mut self) {
        let posted = std::mem::take(&mut self.fabric.state().posted);
        for (at, event) in posted {
            self.at(at, event);
        }
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

/// The delay of a message: usually short.
pub(super) fn message_delay(rng: &mut Rng) -> u64 {
    match rng.below(50) {
        0 => rng.below(100_000) as u64,
        _ => 50 + rng.below(1_500) as u64,
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
