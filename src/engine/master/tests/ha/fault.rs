//! Faults: crashes, pauses, cuts and outages.

use super::event::Event;
use super::world::World;

/// A fault, and when it ends if it does not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process ends and another one starts.
    Crash(usize),
    /// The leader ends right after its next change.
    CrashBusy,
    /// A standby tells its leader that it leaves, and ends.
    Leave(usize),
    Pause(usize),
    CutNodes(usize, usize),
    CutEtcd(usize),
    EtcdDown,
    StepDown,
}

impl World {
    /// Injects a random fault, half of the time at the leader.
    pub(super) fn inject(&mut self) {
        let nodes = self.nodes.len();
        let (a, b) = (self.rng.below(nodes), self.rng.below(nodes));
        let leader = (0..nodes).find(|nth| self.nodes[*nth].is_up && self.nodes[*nth].is_leader());
        // Half of the faults hit the leader.
        let a = leader.filter(|_| self.rng.below(2) == 0).unwrap_or(a);
        let long = |world: &mut World, max_ms: usize| 50_000 + world.rng.below(max_ms * 1000) as u64;
        let fault = match self.rng.below(15) {
            0..2 => Fault::Crash(a),
            2 => Fault::Leave(a),
            12.. => Fault::CrashBusy,
            3..5 => Fault::Pause(a),
            5..7 => Fault::CutNodes(a, if a == b { (a + 1) % nodes } else { b }),
            7..9 => Fault::CutEtcd(a),
            9 => Fault::EtcdDown,
            _ => Fault::StepDown,
        };
        *self.totals.faults.entry(format!("{fault:?}").split('(').next().unwrap_or("").to_owned()).or_default() += 1;
        self.trace(|| format!("fault {fault:?}"));
        match fault {
            Fault::Crash(nth) => {
                self.crash_for_a_while(nth);
            }
            Fault::Leave(nth) => {
                self.nodes[nth].core.leave();
                self.perform(nth);
                let (wait, incarnation) = (self.rng.below(20_000) as u64, self.nodes[nth].incarnation);
                self.after(wait, Event::CrashBusy { node: nth, incarnation });
            }
            Fault::CrashBusy => self.is_crash_planned = true,
            Fault::Pause(nth) => {
                self.totals.effective += 1;
                let length = if self.rng.below(2) == 0 { long(self, 800) } else { long(self, 30_000) };
                self.nodes[nth].paused_until = self.nodes[nth].paused_until.max(self.now + length);
            }
            Fault::CutNodes(a, b) => {
                self.totals.effective += 1;
                self.cut_nodes.insert((a.min(b), a.max(b)));
                let length = long(self, 8_000);
                self.after(length, Event::Heal(fault));
                // A stream that makes no progress for two seconds ends.
                self.after(2_000_000, Event::EndCutStreams(a.min(b), a.max(b)));
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
                if let Some(nth) = leader {
                    let now = self.nodes[nth].clock(self.now);
                    self.totals.effective += u64::from(self.nodes[nth].core.step_down(now));
                    self.perform(nth);
                }
            }
        }
    }

    /// Ends a process, if that is permitted, and starts another one later.
    pub(super) fn crash_for_a_while(&mut self, nth: usize) {
        let is_power_lost = !self.plan.has_data || self.rng.below(4) == 0;
        if if is_power_lost { self.may_crash(nth) } else { self.nodes[nth].is_up } {
            self.totals.effective += 1;
            self.power_lost[nth] = is_power_lost;
            self.crash(nth);
            let away = 50_000 + self.rng.below(5_000_000) as u64;
            self.after(away, Event::Start(nth));
        }
    }

    /// A process may crash only if another copy has everything, because an acknowledged change cannot survive the loss of all copies.
    fn may_crash(&self, nth: usize) -> bool {
        let Some((sync, _)) = self.etcd.observation().sync else { return false };
        let has_all =
            |other: &usize| *other != nth && self.nodes[*other].is_up && sync.includes(self.nodes[*other].id());
        // A write on its way may remove the other copy from the record.
        self.nodes[nth].is_up && self.sync_writes == 0 && (0..self.nodes.len()).any(|other| has_all(&other))
    }

    /// Ends a fault that lasts for a time.
    pub(super) fn heal(&mut self, fault: Fault) {
        self.trace(|| format!("end of {fault:?}"));
        match fault {
            Fault::CutNodes(a, b) => {
                self.cut_nodes.remove(&(a.min(b), a.max(b)));
                self.release_held(a.min(b), a.max(b));
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
            Fault::Crash(_) | Fault::Leave(_) | Fault::CrashBusy | Fault::Pause(_) | Fault::StepDown => {}
        }
    }
}
