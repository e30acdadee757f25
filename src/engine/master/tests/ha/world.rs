//! The simulation: events in order of their time, and the checks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use super::client::Client;
use super::etcd::SimEtcd;
use super::event::Event;
use super::fault::Fault;
use super::node::{Node, StateCopy};
use super::report::{Plan, Totals, Violation};
use super::stream::Stream;
use crate::engine::base::rng::Rng;
use crate::engine::ha::stage::HaStage;
use crate::engine::ha::{AckMode, HaAction, HaEvent, MemberId};
use crate::engine::master::StorePolicy;

/// The simulation. Times are in microseconds.
pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub etcd: SimEtcd,
    pub is_etcd_up: bool,
    pub cut_etcd: BTreeSet<usize>,
    pub cut_nodes: BTreeSet<(usize, usize)>,
    pub(super) streams: BTreeMap<u64, Stream>,
    /// Streams that have ended, for the events that tell it.
    pub(super) ended: BTreeMap<u64, Stream>,
    pub(super) next_stream: u64,
    pub(super) next_id: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, Event>,
    next_event: u64,
    /// Bytes in the clients' segments: what was written at an address.
    pub memory: BTreeMap<u64, String>,
    /// Acknowledged keys, and the address of their value.
    pub acked: BTreeMap<String, u64>,
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
    /// A fault happens when a node next reaches this stage.
    pub(super) planned_stage: Option<HaStage>,
    /// The hosts that lost power, until their processes start again.
    pub power_lost: Vec<bool>,
    /// Writes of the sync record, also by elections, that have not arrived at etcd.
    pub sync_writes: u64,
}

const RECOVERY: u64 = 40_000_000;
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
        let nodes = (0..plan.nodes).map(|nth| {
            // Clock rates differ by up to 1 %.
            let (offset, rate) = (1_000_000_000 * rng.below(10_000) as u64, 990 + rng.below(21) as u64);
            Node::new(nth, MemberId(nth as u64 + 1), policy.clone(), AckMode::Sync, offset + 1_000_000_000, rate)
        });
        let nodes: Vec<Node> = nodes.collect();
        let mut world = World {
            now: 0,
            rng,
            nodes,
            clients: (0..plan.clients).map(|_| Client::default()).collect(),
            etcd: SimEtcd::default(),
            is_etcd_up: true,
            cut_etcd: BTreeSet::new(),
            cut_nodes: BTreeSet::new(),
            streams: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_stream: 0,
            next_id: 100,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            next_event: 0,
            memory: BTreeMap::new(),
            acked: BTreeMap::new(),
            junk: Vec::new(),
            answered: 0,
            last_put: 0,
            plan,
            totals: Totals { slow_disks: u64::from(plan.slow_disk > 1), ..Totals::default() },
            violation: None,
            is_crash_planned: false,
            planned_stage: None,
            power_lost: vec![false; plan.nodes],
            sync_writes: 0,
            is_traced: std::env::var_os("MCCTL_HA_TRACE").is_some(),
        };
        for node in 0..plan.nodes {
            world.after(1 + node as u64, Event::Tick { node, incarnation: 0 });
        }
        (0..plan.clients).for_each(|nth| world.after(1000, Event::Client(nth)));
        world.after(1000, Event::ExpireLeases);
        world.after(3_000_000, Event::Fault);
        world
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.next_event += 1;
        self.queue.push(Reverse((self.now + delay, self.next_event)));
        self.events.insert(self.next_event, event);
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
        while let Some(Reverse((at, number))) = self.queue.pop() {
            self.now = at;
            if at > end {
                break;
            }
            let Some(event) = self.events.remove(&number) else { continue };
            if matches!(event, Event::Fault) {
                if faults == 0 {
                    let resumed = self.nodes.iter().map(|node| node.paused_until).max().unwrap_or(0);
                    end = resumed.max(self.now) + RECOVERY;
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
        for (a, b) in self.cut_nodes.clone() {
            self.heal(Fault::CutNodes(a, b));
        }
        self.cut_etcd.clear();
        self.heal(Fault::EtcdDown);
        for nth in 0..self.nodes.len() {
            if !self.nodes[nth].is_up {
                self.after(1000, Event::Start(nth));
            }
        }
    }

    fn check_end(&mut self) -> Result<(), Violation> {
        let roles = |world: &World| {
            let role = |node: &Node| {
                let left = node.core.fence().since(node.clock(world.now));
                let waiting = node.pending.iter().map(|it| it.needs).collect::<Vec<u64>>();
                format!(
                    "{:?} {:?} applied {} {left:?} waiting {waiting:?}",
                    node.id(),
                    node.core.status(),
                    node.applied
                )
            };
            let mut roles: Vec<String> = world.nodes.iter().map(role).collect();
            roles.push(format!("{:?}", world.etcd.observation()));
            roles.push(format!("{:?}", world.streams));
            let client = |client: &Client| format!("{:?} {:?} {}", client.target, client.request, client.must_register);
            roles.extend(world.clients.iter().map(client));
            roles
        };
        if self.last_put + RECOVERY / 2 < self.now {
            return Err(Violation::NoService { roles: roles(self) });
        }
        let elected = self.etcd.elected.last().copied();
        let leads = |nth: &usize| {
            self.nodes[*nth].is_up && Some(self.nodes[*nth].id()) == elected && self.nodes[*nth].is_leader()
        };
        let Some(leader) = (0..self.nodes.len()).find(leads) else {
            return Err(Violation::NoService { roles: roles(self) });
        };
        let leader = &mut self.nodes[leader];
        for (key, at) in &self.acked {
            let StateCopy::Active(state) = &mut leader.copy else { continue };
            if state.peek(key.as_bytes()).is_err() {
                return Err(Violation::Lost { key: key.clone() });
            }
            let found = self.memory.get(at);
            if found != Some(key) {
                return Err(Violation::OtherBytes { key: key.clone(), found: found.cloned() });
            }
        }
        Ok(())
    }

    /// The node to which an event belongs, if it is a node's.
    fn node_of(&self, event: &Event) -> Option<(usize, Option<u64>)> {
        match event {
            Event::Tick { node, incarnation }
            | Event::Timeout { node, incarnation, .. }
            | Event::EtcdReply { node, incarnation, .. }
            | Event::Watch { node, incarnation }
            | Event::Connect { node, incarnation }
            | Event::Closed { node, incarnation, .. }
            | Event::CrashBusy { node, incarnation }
            | Event::ChangesHeld { node, incarnation }
            | Event::Stored { node, incarnation, .. }
            | Event::Prepared { node, incarnation, .. } => Some((*node, Some(*incarnation))),
            Event::Request { node, .. } => Some((*node, None)),
            Event::Packet { stream, to_leader, .. } => {
                let stream = self.streams.get(stream)?;
                Some((if *to_leader { stream.leader } else { stream.standby }, None))
            }
            _ => None,
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        if let Some((nth, incarnation)) = self.node_of(&event) {
            let node = &self.nodes[nth];
            if incarnation.is_some_and(|it| it != node.incarnation) {
                return Ok(());
            }
            if !node.is_up {
                if let Event::Request { client, call, .. } = event {
                    self.fail_call(client, call);
                }
                return Ok(());
            }
            if node.paused_until > self.now {
                let wait = node.paused_until - self.now;
                self.nodes[nth].deferred.push(event);
                self.after(wait, Event::Resume(nth));
                return Ok(());
            }
            self.resume(nth);
            self.handle_at(nth, event);
            return Ok(());
        }
        match event {
            Event::Etcd { node, incarnation, action, sent, is_answered } => {
                self.serve_etcd(node, incarnation, action, sent, is_answered);
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
            Event::CallTimeout { client, call } => self.fail_call(client, call),
            Event::Reply { client, call, reply } => return self.reply(client, call, reply),
            Event::Copy { key, at, until } if self.now < until => {
                self.totals.reads += 1;
                let found = self.memory.get(&at);
                if found != Some(&key) {
                    return Err(Violation::OtherBytes { key, found: found.cloned() });
                }
            }
            Event::StageFault { node, stage, fault } => self.inject_at_stage(node, stage, fault),
            Event::Heal(fault) => self.heal(fault),
            Event::EndCutStreams(a, b) => self.end_cut_streams(a, b),
            Event::Start(nth) => self.start(nth),
            Event::Resume(nth) => match self.nodes[nth].paused_until {
                until if until > self.now => self.after(until - self.now, Event::Resume(nth)),
                _ => self.resume(nth),
            },
            _ => {}
        }
        Ok(())
    }

    /// Handles the events that came during a pause, in their order.
    fn resume(&mut self, nth: usize) {
        for event in std::mem::take(&mut self.nodes[nth].deferred) {
            let incarnation = self.node_of(&event).and_then(|(_, incarnation)| incarnation);
            if self.nodes[nth].is_up && incarnation.is_none_or(|it| it == self.nodes[nth].incarnation) {
                self.handle_at(nth, event);
            }
        }
    }

    fn handle_at(&mut self, nth: usize, event: Event) {
        let now = self.nodes[nth].clock(self.now);
        match event {
            Event::Tick { node, incarnation } => {
                if self.nodes[nth].is_leader() && !self.nodes[nth].is_holding {
                    self.run_background(nth);
                }
                let pause = 20_000 + self.rng.below(20_000) as u64;
                self.after(pause, Event::Tick { node, incarnation });
            }
            Event::Timeout { number, .. } => self.time_out(nth, number),
            Event::EtcdReply { action, sent, outcome, lease, seen, .. } => {
                self.etcd_replied(nth, action, sent, outcome, lease, *seen);
            }
            Event::Watch { .. } => self.send_to_etcd(nth, HaAction::Observe),
            Event::Connect { .. } => self.connect(nth),
            Event::CrashBusy { node, .. } => return self.crash_for_a_while(node),
            Event::ChangesHeld { .. } => {
                let last = self.nodes[nth].applied;
                self.nodes[nth].handle(now, HaEvent::ChangesHeld { last });
            }
            Event::Closed { stream, process_gone, .. } => self.stream_ended(nth, stream, process_gone),
            Event::Stored { copy, last, .. } => {
                let node = &mut self.nodes[nth];
                if node.id() == copy && last <= node.applied {
                    node.stored = node.stored.max(last);
                    if matches!(node.copy, StateCopy::Standby(_)) && !node.is_preparing {
                        let last = node.stored;
                        node.handle(now, HaEvent::Applied { last });
                    }
                }
            }
            Event::Prepared { lossy, .. } => {
                let hold = if lossy || self.nodes[nth].is_uncertain { Duration::from_secs(30) } else { Duration::ZERO };
                let ready = self.nodes[nth].prepare(now, hold);
                self.nodes[nth].handle(now, HaEvent::Prepared { ready });
            }
            Event::Request { client, call, request, .. } => self.serve_request(nth, client, call, &request),
            Event::Packet { stream, to_leader, packet } => self.receive_packet(nth, stream, to_leader, packet),
            _ => {}
        }
        self.perform(nth);
        self.note_stage(nth);
    }
}
