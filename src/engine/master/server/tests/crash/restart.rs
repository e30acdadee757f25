//! The life of a process: its start from the directory, its work and its end.

use std::sync::Arc;
use std::time::Duration;

use super::env::CrashEnv;
use super::process::Process;
use super::recovered::RecoveredData;
use super::world::{CLIENT_TTL, DISCARD, LEASE, NODES, RELEASE, World};
use crate::server::data::{self, MasterData, MasterDataError, RestoredMaster};
use crate::server::log::{self, MasterLog};
use crate::server::shared::MasterShared;
use crate::{DATA_FORMAT, DATA_FORMAT_NEWEST, StorePolicy};
use mcctl_journal::{
    CommitLogOptions, Crash, DataDir, DataDirOptions, DiskErrorPolicy, ExistingData, JournalError, LogConfig, SyncMode,
    Uuid,
};
use mcctl_sys::env::Env;

/// A state behind its lock, and its log.
type StartedMaster = (MasterShared<CrashEnv>, Arc<MasterLog>);

impl World {
    pub(super) fn policy(&self) -> StorePolicy {
        let ms = Duration::from_millis;
        StorePolicy {
            lease_ttl: ms(self.lease),
            soft_pin_ttl: ms(2_500),
            client_ttl: ms(CLIENT_TTL),
            put_discard_after: ms(DISCARD),
            put_release_after: ms(RELEASE),
            watermark: 0.8,
            eviction_ratio: 0.2,
            seed: 1 + self.starts,
            ..StorePolicy::default()
        }
    }

    fn choose_options(&mut self) {
        let sync = match self.rng.below(3) {
            0 => SyncMode::Always,
            1 => SyncMode::default(),
            _ => SyncMode::Never,
        };
        let on_error = [DiskErrorPolicy::Stop, DiskErrorPolicy::ContinueMemoryOnly][self.rng.below(2)];
        let file_bytes = 1024 + 512 * self.rng.below(6) as u64;
        let log = LogConfig { file_bytes, buffer_bytes: [2 << 10, 64 << 10][self.rng.below(2)] };
        let snapshot_interval = Duration::from_millis(500 + self.rng.below(2_000) as u64);
        // Processes of neighbouring releases, in any order.
        self.format = [DATA_FORMAT, DATA_FORMAT_NEWEST][self.rng.below(2)];
        self.options = CommitLogOptions { sync, on_error, snapshot_interval, log, ..CommitLogOptions::default() };
        self.disk_delay = [1, 2, 8][self.rng.below(3)];
        self.lease = if self.chance(3) { LEASE / 2 } else { LEASE };
    }

    /// One process, until it ends.
    pub(super) fn live(&mut self) {
        self.choose_options();
        let count: u64 = self.storage.operations().values().sum();
        let most = if self.chance(4) { 16 } else { 250 };
        self.storage.stop_at(count + 1 + self.rng.below(most) as u64);
        if self.chance(15) {
            self.add_fault(0);
        }
        let env = CrashEnv::new(&self.clock, self.wall_clock);
        let Some((shared, log)) = self.start(&env) else {
            self.counts.count("interrupted starts");
            return self.crash(None);
        };
        let mut process = Process::new(&shared, &log);
        self.serve(&mut process);
        // The process is dead, so dropping its parts changes nothing on the disk.
        self.crash(Some(&mut process));
    }

    /// Opens the directory. `None`: the process ends.
    pub(super) fn open(&mut self) -> Option<DataDir> {
        let existing = match (self.gives_up_data, self.chance(2)) {
            (true, true) => ExistingData::SetAside { date: "2026-01-01" },
            (true, false) => ExistingData::Discard,
            (false, _) => ExistingData::Keep,
        };
        let boot_id = self.storage.boot_id();
        let new_uuid = Uuid(77 + u128::from(self.starts));
        let options = DataDirOptions { cluster_id: "cluster", boot_id, new_uuid, existing };
        match DataDir::open(Arc::new(self.storage.clone()), &options) {
            Ok(dir) => {
                assert!(self.gives_up_data || !self.is_invalid, "a directory without the last changes was opened");
                if self.gives_up_data {
                    self.forget_data();
                }
                Some(dir)
            }
            Err(JournalError::Storage { .. }) => None,
            Err(error) if self.may_be_invalid && is_of_marker(&error) => {
                self.counts.count("refused starts");
                self.gives_up_data = true;
                None
            }
            Err(error) => panic!("the directory is refused: {error}"),
        }
    }

    fn start(&mut self, env: &CrashEnv) -> Option<StartedMaster> {
        let dir = self.open()?;
        let found = RecoveredData::read(&dir, &self.policy())?;
        self.check_recovered(&found);
        let mut data = MasterData { dir, options: self.options, format: self.format };
        self.first_change_boot = self.storage.boot_id();
        self.trace.is_complete = self.options.sync == SyncMode::Always;
        let restored = match data::restore(&mut data, self.policy(), env) {
            Ok(restored) => restored,
            Err(MasterDataError::Journal(JournalError::Storage { .. })) => return None,
            Err(error) => panic!("the data is refused: {error}"),
        };
        if std::mem::take(&mut self.fails_reads) {
            self.storage.set_fault(None);
        }
        self.check_restored(&found, &restored, &data.dir, env);
        self.may_be_invalid = false;
        self.starts += 1;
        if self.starts > 1 {
            self.counts.count("restarts");
        }
        let RestoredMaster { state, writer, found, .. } = restored;
        let log = Arc::new(MasterLog::new(data, writer, &found, env.now()));
        Some((MasterShared::new(state, Some(log.clone()), None, env.clone()), log))
    }

    /// Serves until the process dies or must end, or for some steps.
    fn serve(&mut self, process: &mut Process<'_>) {
        if self.starts == 1 || self.nodes.iter().all(|node| node.segments.is_empty()) {
            for nth in 0..NODES {
                self.mount(process, nth);
            }
        }
        // Most nodes confirm their segments right after the start.
        if !self.chance(4) {
            (0..=self.rng.below(NODES)).for_each(|nth| self.ping(process, nth));
        }
        for _ in 0..10 + self.rng.below(130) {
            self.step(process);
            if self.is_dead() {
                return;
            }
            if process.has_failed() {
                return self.counts.count("ends after disk errors");
            }
        }
        if self.chance(3) {
            self.stop(process);
        } else {
            // Some readers have leases at the restart.
            (0..6).for_each(|_| self.get(process));
            self.commit_some(process, true);
        }
    }

    /// The process receives SIGTERM.
    fn stop(&mut self, process: &mut Process<'_>) {
        self.commit_some(process, true);
        let mut turns = 0;
        while process.has_responses() && !self.is_dead() && !process.has_failed() {
            turns += 1;
            let writer = &process.log.writer;
            let stored = (writer.appended(), writer.flushed(), writer.durable());
            assert!(
                turns < 1_000,
                "a response waits although nothing is left to store: {stored:?} {:?}",
                self.options.sync
            );
            process.run_log_thread();
            self.poll_responses(process);
            self.commit_some(process, true);
        }
        process.log.stop_threads();
        self.end_snapshot_thread(process);
        if process.log.has_failed() || self.is_dead() {
            return;
        }
        // No response follows. The last change may be on the disk even if the call fails.
        self.trace.is_complete = true;
        if log::complete_log(process.shared, process.log).is_err() {
            return;
        }
        let guarded = process.shared.guarded.lock().expect("no panic");
        self.trace.push(Vec::new(), process.shared.env.unix(), &guarded.state);
        assert_eq!(self.trace.count(), process.log.writer.durable());
        self.counts.count("clean ends");
    }

    /// The process has ended or dies now, and the host may lose power.
    fn crash(&mut self, process: Option<&mut Process<'_>>) {
        let crash = if self.chance(2) { Crash::Kill } else { Crash::Power };
        if let (Some(operation), Some(file)) = (self.storage.stopped_at(), self.storage.stopped_in()) {
            self.counts.count_stop(operation, &file, crash);
        }
        if let Some(process) = process {
            let log = process.log;
            if self.is_memory_only {
                self.counts.count("continued in memory");
                self.is_invalid = true;
            } else {
                self.promised.kill = self.promised.kill.max(log.writer.flushed());
                self.promised.power_loss = self.promised.power_loss.max(log.writer.durable());
            }
            self.may_be_invalid |= log.has_failed() && log.options.on_error == DiskErrorPolicy::ContinueMemoryOnly;
            self.counts.count_many("disk errors", u64::from(log.has_failed() && !self.is_dead()));
            self.storage = self.storage.crash(crash);
            self.lose_responses(process);
        } else {
            self.storage = self.storage.crash(crash);
        }
        self.is_memory_only = false;
        self.crashes += 1;
        self.counts.count(if crash == Crash::Kill { "kills" } else { "power losses" });
        if crash == Crash::Power {
            self.promised.kill = self.promised.power_loss;
            let durable = self.promised.power_loss;
            for write in &mut self.finished {
                write.must_be_kept &= write.survives_power_loss || write.sequence <= durable;
            }
            self.trace.boot = self.storage.boot_id();
            if self.chance(8) {
                self.wall_clock += 20_000 - self.rng.below(40_000) as i64;
            }
        }
        let away = if self.chance(2) { 1_500 } else { 100 };
        self.clock.advance(self.rng.below(away) as u64);
    }

    /// Handles the loss of the data. Nodes and clients start again, because the new state does not
    /// contain their objects.
    fn forget_data(&mut self) {
        self.trace.changes.clear();
        self.finished.clear();
        self.unknown_ends.clear();
        self.readers.clear();
        self.writers.clear();
        self.busy.clear();
        self.promised = super::world::PromisedChanges::default();
        self.is_invalid = false;
        self.may_be_invalid = false;
        self.gives_up_data = false;
        self.nodes = (0..NODES).map(|_| self.new_node(100)).collect();
    }
}

/// Whether a directory is refused because it is marked as invalid, or because a process was
/// interrupted while it marked it.
fn is_of_marker(error: &JournalError) -> bool {
    match error {
        JournalError::Invalidated { .. } => true,
        JournalError::Corrupt { file, .. } => file == "validity",
        _ => false,
    }
}
