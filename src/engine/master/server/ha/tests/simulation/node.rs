//! A simulated host: its clock, its disk, and the process of the master on it.

use std::sync::Arc;

use super::env::{HostClock, SimEnv, ThreadTimes};
use super::fabric::Fabric;
use super::process::{NodeSettings, Process};
use crate::DATA_FORMAT;
use crate::server::MasterData;
use crate::server::ha::disk::{FoundCopy, HaDisk, open};
use mcctl_election::ha::stage::HaStage;
use mcctl_election::ha::{HaRole, MemberId};
use mcctl_journal::{CommitLogOptions, Crash, DataDir, DataDirOptions, ExistingData, SimulatedStorage, Uuid};

/// A simulated host, whose processes run one after another.
pub(super) struct Node {
    nth: usize,
    pub process: Option<Process>,
    /// Number of processes before the current one.
    pub incarnation: u64,
    pub paused_until: u64,
    /// The disk, if the masters have data directories, and their options for it.
    disk: Option<(SimulatedStorage, CommitLogOptions)>,
    /// The stage after the last event.
    pub stage: HaStage,
    /// The copy of the process that has ended last, and the last change that it has acknowledged.
    pub acknowledged: (MemberId, u64),
    clock: HostClock,
    times: ThreadTimes,
    settings: NodeSettings,
    /// The copy after the last event.
    pub last_copy: MemberId,
    fabric: Arc<Fabric>,
}

impl Node {
    pub(super) fn new(
        nth: usize,
        fabric: Arc<Fabric>,
        settings: NodeSettings,
        clock: HostClock,
        times: ThreadTimes,
        disk: Option<(SimulatedStorage, CommitLogOptions)>,
    ) -> Node {
        Node {
            nth,
            process: None,
            incarnation: 0,
            paused_until: 0,
            disk,
            stage: HaStage::Following,
            acknowledged: (MemberId(0), 0),
            clock,
            times,
            settings,
            last_copy: MemberId(0),
            fabric,
        }
    }

    /// Starts a process. Returns the copy that it has found, and its last change, if the copy keeps
    /// its ID.
    pub(super) fn start(&mut self) -> Option<(MemberId, u64)> {
        let env = SimEnv::new(self.fabric.clone(), self.nth, self.incarnation, self.clock, self.times);
        self.fabric.state().accepting[self.nth] = Default::default();
        let data = self.open_data(&env);
        let found = data.as_ref().map(|(_, found)| (found.note.member, found.last));
        self.process = Some(Process::start(&env, self.settings.clone(), data));
        found
    }

    fn open_data(&self, env: &SimEnv) -> Option<(HaDisk, FoundCopy)> {
        use mcctl_sys::env::Env;
        let (storage, settings) = self.disk.as_ref()?;
        let new_uuid = Uuid(u128::from(env.rng()));
        let options =
            DataDirOptions { cluster_id: "c", boot_id: storage.boot_id(), new_uuid, existing: ExistingData::Keep };
        let dir = DataDir::open(Arc::new(storage.clone()), &options).expect("the directory is valid");
        let data = MasterData { dir, options: *settings, format: DATA_FORMAT };
        Some(open(data, self.settings.policy.clone(), env, MemberId(env.rng())).expect("the directory is valid"))
    }

    /// Ends the process at once; with `Crash::Power`, also the kernel.
    pub(super) fn crash(&mut self, crash: Crash) {
        // The destructors of a dead process write nothing.
        let probe = self.process.as_ref().map(|process| process.hub.probe());
        let copy = probe.map(|probe| (probe.member, probe.acknowledged)).unwrap_or_default();
        let before = if copy.0 == self.acknowledged.0 { self.acknowledged.1 } else { 0 };
        self.acknowledged = (copy.0, copy.1.max(before));
        self.disk = self.disk.take().map(|(storage, settings)| (storage.crash(crash), settings));
        self.process = None;
        self.last_copy = MemberId(0);
        self.incarnation += 1;
    }

    /// The ID of the copy that it has, or that its next process will find if the power is not lost.
    pub(super) fn member(&self) -> MemberId {
        match &self.process {
            Some(process) => process.hub.probe().member,
            None if self.disk.is_some() => self.acknowledged.0,
            None => MemberId(0),
        }
    }

    /// The copy with objects that it has, or that is in its data directory. After a loss of power,
    /// that one may have got another ID.
    pub(super) fn copy(&self) -> MemberId {
        if self.is_dropping() { MemberId(0) } else { self.member() }
    }

    /// Whether it is a candidate whose copy may lack changes.
    pub(super) fn is_dropping(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.hub.probe().is_dropping)
    }

    pub(super) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The ID of the copy, and what this master is doing.
    pub(super) fn probe(&self) -> (MemberId, HaRole, HaStage) {
        let Some(process) = &self.process else { return (MemberId(0), HaRole::Resetting, HaStage::Ended) };
        let probe = process.hub.probe();
        (probe.member, probe.role, probe.stage)
    }

    /// Whether it could send a response now, if it ran.
    pub(super) fn could_answer(&self) -> bool {
        let now = self.clock.at(self.fabric.now_at(self.nth));
        self.process.as_ref().is_some_and(|process| process.hub.gate.could_answer(now))
    }

    /// Whether it serves clients as the leader.
    pub(super) fn is_leader(&self) -> bool {
        let is_serving = self.process.as_ref().is_some_and(|process| process.hub.gate.term() % 2 == 1);
        is_serving && matches!(self.probe().1, HaRole::Leader | HaRole::HandingOver)
    }
}
