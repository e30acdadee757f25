//! A damaged snapshot at the end of a run: the older one and the log must replace it.

use super::env::CrashEnv;
use super::recovered::RecoveredData;
use super::world::World;
use crate::server::data::{self, MasterData};
use mcctl_journal::{JournalStorage, SyncMode};

/// Size of a snapshot's trailer with its header.
const TRAILER_BYTES: usize = 33;

impl World {
    /// Damages the newest snapshot, and starts from what remains.
    pub(super) fn damage(&mut self) {
        if self.may_be_invalid || self.gives_up_data {
            return;
        }
        let before = {
            let dir = self.open().expect("the disk works");
            let found = RecoveredData::read(&dir, &self.policy()).expect("the disk works");
            self.check_recovered(&found);
            self.check_each_change();
            found.state
        };
        let names = self.storage.list().expect("the disk works");
        let Some(newest) = names.iter().rfind(|name| name.starts_with("snapshot-")) else { return };
        let mut bytes = self.storage.contents(newest).expect("it exists");
        match self.rng.below(3) {
            0 => bytes.truncate(bytes.len() - TRAILER_BYTES),
            1 => bytes.truncate(self.rng.below(bytes.len())),
            _ => {
                let at = self.rng.below(bytes.len());
                bytes[at] ^= 1 << self.rng.below(8);
            }
        }
        self.storage.damage(newest, bytes);
        let dir = self.open().expect("the disk works");
        let found = RecoveredData::read(&dir, &self.policy()).expect("the disk works");
        assert_eq!((found.report.damaged_snapshots.len(), found.state), (1, before));
        let mut data = MasterData { dir, options: self.options, format: self.format };
        data.options.sync = SyncMode::Always;
        let env = CrashEnv::new(&self.clock, self.wall_clock);
        let restored = data::restore(&mut data, self.policy(), &env);
        let restored = restored.unwrap_or_else(|error| panic!("a damaged snapshot is not replaced: {error}"));
        assert_eq!(restored.report.restored, before.counts);
        self.counts.count("replaced snapshots");
    }
}
