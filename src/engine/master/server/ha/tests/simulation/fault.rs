//! Faults: crashes, pauses, cuts and outages.

use super::client::CLIENT_SILENCE;
use super::event::Event;
use super::world::World;
use mcctl_election::ha::NotInSyncPolicy;
use mcctl_election::ha::stage::HaStage;
use mcctl_journal::Crash;

/// A fault. [`World::apply_fault`] decides how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// A process ends, and another one starts.
    Crash(usize),
    /// The leader ends right after its next change.
    CrashBusy,
    /// A standby leaves: it sends its leader a message, and ends.
    Leave(usize),
    Pause(usize),
    CutNodes(usize, usize),
    /// Packets from the first node to the second one are held back.
    CutOneWay(usize, usize),
    /// The connections between two nodes are reset.
    Reset(usize, usize),
    CutEtcd(usize),
    EtcdDown,
    StepDown,
    /// The leader's process receives a request to end: it hands over, and ends.
    End,
    /// A crash, a pause or a cut when a master next reaches this stage.
    AtStage(HaStage),
    /// A host and its clock stand still for a time. Outside the assumptions.
    StopClock(usize),
    /// etcd returns to its earlier contents, or is empty. Outside the assumptions.
    RestoreEtcd,
    /// A client's process does not run for a time.
    StopClient(usize),
    /// A client's process ends, and another one starts.
    RestartClient(usize),
}

impl Fault {
    fn name(self) -> String {
        format!("{self:?}").split('(').next().unwrap_or("").to_owned()
    }

    /// The node that it hits.
    fn node(self) -> Option<usize> {
        match self {
            Fault::Crash(nth)
            | Fault::Pause(nth)
            | Fault::StopClock(nth)
            | Fault::CutEtcd(nth)
            | Fault::CutNodes(nth, _)
            | Fault::CutOneWay(nth, _)
            | Fault::Reset(nth, _) => Some(nth),
            _ => None,
        }
    }
}

impl World {
    /// Injects a random fault, half of the time at the leader.
    pub(super) fn inject(&mut self) {
        let nodes = self.nodes.len();
        let a = self.rng.below(nodes);
        let b = self.rng.below(nodes);
        // Half of the faults hit the leader.
        let a = self.leader().filter(|_| self.rng.below(2) == 0).unwrap_or(a);
        let b = if a == b { (a + 1) % nodes } else { b };
        let client = self.rng.below(self.plan.clients);
        let fault = match self.rng.below(26) {
            24 => Fault::CutOneWay(a, b),
            25 => Fault::CutOneWay(b, a),
            _ if self.plan.is_outside && self.rng.below(5) == 0 => Fault::StopClock(a),
            _ if self.plan.is_outside && self.rng.below(8) == 0 => Fault::RestoreEtcd,
            22 => Fault::StopClient(client),
            23 => Fault::RestartClient(client),
            _ if self.plan.is_async && self.rng.below(2) == 0 => self.harmless_fault(a, b),
            0..2 => Fault::Crash(a),
            2 => Fault::Leave(a),
            12..15 => Fault::CrashBusy,
            15..22 => Fault::AtStage(HaStage::ALL[self.rng.below(HaStage::ALL.len())]),
            3..5 => Fault::Pause(a),
            5..7 => Fault::CutNodes(a, b),
            7..9 => Fault::CutEtcd(a),
            9 => Fault::EtcdDown,
            10 => Fault::End,
            _ => Fault::StepDown,
        };
        *self.totals.faults.entry(fault.name()).or_default() += 1;
        self.apply_fault(fault);
    }

    /// A fault after which no other master is elected without a hand-over.
    fn harmless_fault(&mut self, a: usize, b: usize) -> Fault {
        match self.rng.below(8) {
            0 if self.rng.below(2) == 0 => Fault::CutOneWay(a, b),
            0 => Fault::CutNodes(a, b),
            1 => Fault::Reset(a, b),
            2..5 => {
                // The hand-over is interrupted, and repeated.
                let wait = self.rng.below(100_000) as u64;
                self.after(wait, Event::FollowUp(Fault::Reset(a, b)));
                let wait = wait + self.rng.below(1_500_000) as u64;
                self.after(wait, Event::FollowUp(Fault::StepDown));
                Fault::StepDown
            }
            _ => Fault::StepDown,
        }
    }

    pub(super) fn apply_fault(&mut self, fault: Fault) {
        self.trace(|| format!("fault {fault:?}"));
        let long = |world: &mut World, max_ms: usize| 50_000 + world.rng.below(max_ms * 1000) as u64;
        match fault {
            Fault::Crash(nth) => {
                self.crash_for_a_while(nth);
            }
            Fault::Leave(nth) => {
                if let Some(process) = &self.nodes[nth].process {
                    process.leave();
                    self.run_node(nth);
                }
                let wait = self.rng.below(20_000) as u64;
                let incarnation = self.nodes[nth].incarnation;
                self.after(wait, Event::EndProcess { node: nth, incarnation });
            }
            Fault::CrashBusy => self.is_crash_planned = true,
            Fault::Pause(nth) => {
                self.totals.effective += 1;
                let length = if self.rng.below(2) == 0 { long(self, 800) } else { long(self, 30_000) };
                let until = self.nodes[nth].paused_until.max(self.now + length);
                self.nodes[nth].paused_until = until;
                self.after(until - self.now, Event::Resume(nth));
            }
            Fault::StopClock(nth) => {
                self.totals.effective += 1;
                let length = long(self, 30_000);
                let until = self.now + length;
                self.fabric.stop_clock(nth, length.min(self.fabric.now_at(nth)));
                self.nodes[nth].paused_until = self.nodes[nth].paused_until.max(until);
                self.after(length, Event::Resume(nth));
            }
            Fault::RestoreEtcd => {
                self.totals.effective += 1;
                self.restore_etcd();
            }
            Fault::CutNodes(a, b) => {
                self.totals.effective += 1;
                self.fabric.state().cuts.extend([(a, b), (b, a)]);
                let length = long(self, 8_000);
                self.after(length, Event::Heal(fault));
            }
            Fault::CutOneWay(from, to) => {
                self.totals.effective += 1;
                self.fabric.state().cuts.insert((from, to));
                let length = long(self, 8_000);
                self.after(length, Event::Heal(fault));
            }
            Fault::Reset(a, b) => {
                self.totals.effective += 1;
                self.fabric.state().reset(self.now, a, b);
                self.take_posted();
            }
            Fault::CutEtcd(nth) => {
                self.totals.effective += 1;
                self.cut_etcd.insert(nth);
                let length = long(self, 15_000);
                self.after(length, Event::Heal(fault));
            }
            Fault::EtcdDown => {
                self.totals.effective += 1;
                self.is_etcd_up = false;
                let length = long(self, 15_000);
                self.after(length, Event::Heal(fault));
            }
            Fault::StepDown => {
                if let Some(nth) = self.leader()
                    && let Some(process) = &self.nodes[nth].process
                {
                    process.step_down(false);
                    self.run_node(nth);
                }
            }
            Fault::End => {
                if let Some(nth) = self.leader()
                    && let Some(process) = &self.nodes[nth].process
                {
                    process.step_down(true);
                    self.run_node(nth);
                }
            }
            Fault::AtStage(stage) => self.planned_stage = Some(stage),
            Fault::StopClient(nth) => {
                self.totals.effective += 1;
                let length = if self.rng.below(2) == 0 { long(self, 3_000) } else { long(self, 25_000) };
                let client = &mut self.clients[nth];
                client.stopped_until = client.stopped_until.max(self.now + length);
                let segment = client.segment;
                if length > CLIENT_SILENCE {
                    self.lose_segment(segment);
                }
            }
            Fault::RestartClient(nth) => {
                self.totals.effective += 1;
                self.restart_client(nth);
            }
        }
    }

    /// The node that serves as the leader.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|nth| self.nodes[*nth].is_leader())
    }

    /// A node has reached a stage. If it is the planned one, it, or another node, will have a fault
    /// within two milliseconds.
    pub(super) fn note_stage(&mut self, nth: usize, stage: HaStage) {
        if std::mem::replace(&mut self.nodes[nth].stage, stage) == stage || self.planned_stage != Some(stage) {
            return;
        }
        self.planned_stage = None;
        let nodes = self.nodes.len();
        let at = if self.rng.below(3) == 0 { self.rng.below(nodes) } else { nth };
        let fault = match self.rng.below(6) {
            0..3 => Fault::Crash(at),
            3 => Fault::Pause(at),
            4 => Fault::CutNodes(at, (at + 1) % nodes),
            _ => Fault::CutEtcd(at),
        };
        let wait = self.rng.below(2_000) as u64;
        self.after(wait, Event::StageFault { node: nth, stage, fault });
    }

    /// Injects a fault that was planned for a stage, and counts it if the node is still at this
    /// stage.
    pub(super) fn inject_at_stage(&mut self, node: usize, stage: HaStage, fault: Fault) {
        let is_there = self.nodes[node].probe().2 == stage;
        let before = self.totals.effective;
        self.apply_fault(fault);
        if is_there && self.totals.effective > before {
            let place = if fault.node() == Some(node) { "there" } else { "elsewhere" };
            *self.totals.stages.entry(stage).or_default().entry(format!("{} {place}", fault.name())).or_default() += 1;
        }
    }

    /// A leader has changed something. If a crash is planned for that, it ends a little later.
    pub(super) fn crash_if_planned(&mut self, nth: usize) {
        if self.is_crash_planned && self.nodes[nth].is_leader() {
            self.is_crash_planned = false;
            let wait = self.rng.below(4_000) as u64;
            let incarnation = self.nodes[nth].incarnation;
            self.after(wait, Event::CrashBusy { node: nth, incarnation });
        }
    }

    /// Ends a process, if that is permitted, and starts another one later.
    pub(super) fn crash_for_a_while(&mut self, nth: usize) {
        let is_power_lost = !self.plan.has_data || self.rng.below(4) == 0;
        if if is_power_lost { self.may_crash(nth) } else { self.nodes[nth].is_up() } {
            self.totals.effective += 1;
            self.trace(|| format!("crash of node {nth} {:?}, power lost: {is_power_lost}", self.nodes[nth].probe()));
            if is_power_lost {
                let is_silent = self.rng.below(3) == 0;
                self.fabric.state().lose_packets(nth, is_silent);
            }
            self.crashed_at = self.now;
            self.nodes[nth].crash(if is_power_lost { Crash::Power } else { Crash::Kill });
            self.take_posted();
            let away = 50_000 + self.rng.below(5_000_000) as u64;
            self.after(away, Event::Start(nth));
        }
    }

    /// Ends a process that has received a request to end, and starts another one later. If its copy
    /// is the last one and no hand-over has begun, it takes longer to end.
    pub(super) fn end_process(&mut self, nth: usize, has_begun: bool) {
        if !has_begun && !self.may_crash(nth) {
            let incarnation = self.nodes[nth].incarnation;
            return self.after(500_000, Event::EndProcess { node: nth, incarnation });
        }
        if self.nodes[nth].is_up() {
            self.totals.effective += 1;
            self.crashed_at = self.now;
            self.nodes[nth].crash(Crash::Kill);
            self.take_posted();
            let away = 50_000 + self.rng.below(5_000_000) as u64;
            self.after(away, Event::Start(nth));
        }
    }

    /// A process may crash only if another copy has everything, because an acknowledged change
    /// cannot survive the loss of all copies.
    pub(super) fn may_crash(&self, nth: usize) -> bool {
        let Some(sync) = self.etcd.sync() else { return false };
        let has_all = |other: &usize| {
            let node = &self.nodes[*other];
            *other != nth && node.is_up() && sync.includes(node.probe().0)
        };
        // A write on its way may remove the other copy from the record.
        let is_other_left = self.sync_writes == 0 && (0..self.nodes.len()).any(|other| has_all(&other));
        // If copies are promoted that may lack changes, the last one may be lost.
        let may_lose = self.plan.not_in_sync != NotInSyncPolicy::Wait && nth.is_multiple_of(2);
        self.nodes[nth].is_up() && (is_other_left || may_lose)
    }

    /// Ends a fault that lasts for a time.
    pub(super) fn heal(&mut self, fault: Fault) {
        self.trace(|| format!("end of {fault:?}"));
        match fault {
            Fault::CutNodes(a, b) => {
                self.fabric.state().cuts.retain(|cut| *cut != (a, b) && *cut != (b, a));
                self.release_held(a, b);
            }
            Fault::CutOneWay(from, to) => {
                self.fabric.state().cuts.remove(&(from, to));
                self.release_held(from, to);
            }
            Fault::CutEtcd(nth) => {
                self.cut_etcd.remove(&nth);
            }
            Fault::EtcdDown => {
                if !self.is_etcd_up {
                    self.is_etcd_up = true;
                    self.etcd.extend_all(self.now + 2_000_000);
                }
            }
            Fault::Crash(_)
            | Fault::Leave(_)
            | Fault::CrashBusy
            | Fault::Pause(_)
            | Fault::StopClock(_)
            | Fault::RestoreEtcd
            | Fault::Reset(..)
            | Fault::StepDown
            | Fault::End
            | Fault::AtStage(_)
            | Fault::StopClient(_)
            | Fault::RestartClient(_) => {}
        }
    }
}
