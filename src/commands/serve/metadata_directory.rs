//! The data directory of a metadata service: a part of the master's if it is embedded, or its own.

use std::path::PathBuf;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::spelled;
use crate::commands::cli::settings::Settings;
use crate::commands::serve::data_directory::{DataPlan, NO_CLUSTER, no_boot_id, remedy, without_directory};
use crate::engine::env::RealEnv;
use crate::engine::journal::{
    CommitLogOptions, DataDirPlan, DiskErrorPolicy, ExistingDataChoice, JournalError, ParseDiskErrorPolicyError,
    ParseSyncModeError, SyncMode,
};
use crate::engine::metadata::{KeyParsing, KeySpace, MetadataJournalError, MetadataService, open_data_dir};

/// The data directory of a metadata service, and what chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataDataPlan {
    directory: DataDirPlan,
    /// The flag or variable that names the directory, with its value.
    origin: String,
    /// The service is a part of a master.
    is_embedded: bool,
    options: CommitLogOptions,
}

/// The flags that have an effect only with a data directory.
pub const ONLY_WITH_DATA: [&str; 3] = ["fsync", "on_disk_error", "discard_data"];

impl MetadataDataPlan {
    /// The directory in which an earlier release kept the records of a service embedded in a master
    /// with the data directory `master`.
    pub fn embedded(master: &DataPlan) -> MetadataDataPlan {
        MetadataDataPlan {
            directory: master.data.of_records(),
            origin: master.origin.clone(),
            is_embedded: true,
            options: master.data.options,
        }
    }

    /// The directory that the flags of `serve metadata` describe.
    ///
    /// # Errors
    /// A flag has an invalid value, or no effect.
    pub fn of(settings: &Settings) -> Result<Option<MetadataDataPlan>, Failure> {
        let path = settings.text("data_dir");
        if path.is_empty() {
            return without_directory(settings, &ONLY_WITH_DATA).map(|()| None);
        }
        let invalid = |name: &str, error: String| {
            Failure::usage(format!("{}: {error}", spelled(name))).found(settings.describe(name))
        };
        let sync: SyncMode =
            settings.text("fsync").parse().map_err(|error: ParseSyncModeError| invalid("fsync", error.to_string()))?;
        let on_error: DiskErrorPolicy = settings
            .text("on_disk_error")
            .parse()
            .map_err(|error: ParseDiskErrorPolicyError| invalid("on_disk_error", error.to_string()))?;
        let discard = settings.bool("discard_data");
        let existing = if discard { ExistingDataChoice::Discard } else { ExistingDataChoice::Restore };
        Ok(Some(MetadataDataPlan {
            directory: DataDirPlan { path: PathBuf::from(path), cluster_id: NO_CLUSTER.to_owned(), existing },
            origin: settings.describe("data_dir"),
            is_embedded: false,
            options: CommitLogOptions { sync, on_error, ..CommitLogOptions::default() },
        }))
    }

    /// Starts a service with the records in the directory. Existing data is kept, moved or removed,
    /// as planned.
    ///
    /// # Errors
    /// The directory is in use, belongs to another service, is invalid or damaged, or the disk
    /// reports an error.
    pub fn restore(
        &self,
        env: &RealEnv,
        keys: KeySpace,
        parsing: KeyParsing,
    ) -> Result<MetadataService<RealEnv>, Failure> {
        let dir = open_data_dir(&self.directory, env);
        let dir = dir.map_err(|error| self.failure(&MetadataJournalError::Journal(error)))?;
        let restored = MetadataService::restored(env.clone(), keys, parsing, dir, self.options);
        restored.map(|(service, _)| service).map_err(|error| self.failure(&error))
    }

    /// The message for an error of the disk while the service runs.
    pub fn stopped(&self, error: &JournalError) -> Failure {
        Failure::host("the metadata service stopped, because it cannot write the metadata records")
            .tried(format!("write {} ({})", self.directory.path.display(), self.origin))
            .found(error.to_string())
            .next(format!("{}, then start it again: it restores everything that reached the disk", remedy(error)))
    }

    /// The message for an error at the start.
    pub fn failure(&self, error: &MetadataJournalError) -> Failure {
        let directory = self.directory.path.display();
        let without_records = match self.is_embedded {
            true => format!("remove {directory}: the service then starts without records"),
            false => "add --discard-data once: the service then starts without records".to_owned(),
        };
        let failure = match error {
            MetadataJournalError::Journal(JournalError::OtherCluster { found, .. })
                if self.is_embedded && found == NO_CLUSTER =>
            {
                Failure::usage("the data directory contains that of a separate metadata service (serve metadata)")
                    .next(format!("move {directory} to another place"))
            }
            MetadataJournalError::Journal(JournalError::OtherCluster { found, .. }) => {
                let failure = Failure::usage(format!("the data directory belongs to another service, of '{found}'"));
                match self.is_embedded {
                    true => failure.next(format!("use --cluster-id {found}, or another data directory")),
                    false => failure.next("use another data directory"),
                }
            }
            MetadataJournalError::Journal(JournalError::Locked { .. }) => {
                Failure::host("another process uses the data directory of the metadata records")
                    .next("stop that process, or use another data directory")
            }
            MetadataJournalError::Journal(JournalError::Invalidated { .. }) => Failure::host(
                "the metadata records are out of date: the last service continued in memory after a disk error",
            )
            .next(format!("check the disk, then {without_records}")),
            MetadataJournalError::Journal(JournalError::UnknownFormat { writer, .. }) => {
                Failure::host(format!("the metadata records were written by another version, {writer}"))
                    .next(format!("start {writer}, or {without_records}"))
            }
            MetadataJournalError::Journal(JournalError::BootId { .. }) => no_boot_id(),
            MetadataJournalError::Journal(error @ (JournalError::Storage { .. } | JournalError::LogFull { .. })) => {
                Failure::host("cannot use the data directory of the metadata records").next(remedy(error))
            }
            MetadataJournalError::Journal(JournalError::Corrupt { .. } | JournalError::PayloadTooLarge { .. })
            | MetadataJournalError::Change { .. }
            | MetadataJournalError::Chunk { .. }
            | MetadataJournalError::Digest { .. } => {
                Failure::host("the data directory is damaged, so the metadata records cannot be restored")
                    .next(format!("if the disk returns wrong data, correct it; otherwise {without_records}"))
            }
        };
        failure.tried(format!("open {directory} ({})", self.origin)).found(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::gflags;
    use crate::commands::cli::process_sources::ProcessSources;
    use crate::commands::cli::service_flags::metadata_flags;
    use crate::engine::master::DATA_FORMAT;
    use crate::engine::master::process::MasterDataPlan;

    fn planned(flags: &[(&str, &str)]) -> Result<Option<MetadataDataPlan>, Failure> {
        let args: Vec<String> = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        let parsed = gflags::parse(&metadata_flags::TABLE, &args, &ProcessSources)?;
        let mut settings = Settings::new(&metadata_flags::TABLE);
        settings.assign_all(&parsed.assignments)?;
        MetadataDataPlan::of(&settings)
    }

    #[test]
    fn the_flags_describe_a_directory() {
        assert_eq!(planned(&[]).unwrap(), None);
        let plan = planned(&[("data_dir", "/d"), ("fsync", "always"), ("discard_data", "true")]).unwrap().unwrap();
        assert_eq!((plan.directory.path.to_str(), plan.directory.existing), (Some("/d"), ExistingDataChoice::Discard));
        assert_eq!((plan.options.sync, plan.options.on_error), (SyncMode::Always, DiskErrorPolicy::Stop));
        for flags in [&[("fsync", "always")][..], &[("data_dir", "/d"), ("fsync", "sometimes")]] {
            assert_eq!(planned(flags).unwrap_err().exit, Exit::Usage, "{flags:?}");
        }
    }

    #[test]
    fn an_embedded_service_uses_a_part_of_the_masters_directory() {
        let options = CommitLogOptions {
            sync: SyncMode::Never,
            on_error: DiskErrorPolicy::ContinueMemoryOnly,
            ..CommitLogOptions::default()
        };
        let existing = ExistingDataChoice::SetAside;
        let directory = DataDirPlan { path: "/d".into(), cluster_id: "blue".to_owned(), existing };
        let master = DataPlan {
            data: MasterDataPlan { directory, options, format: DATA_FORMAT },
            origin: "--data-dir /d".to_owned(),
        };
        let plan = MetadataDataPlan::embedded(&master);
        assert_eq!((plan.directory.path.to_str(), &*plan.directory.cluster_id), (Some("/d/metadata"), "blue"));
        assert_eq!((plan.options.sync, plan.options.on_error), (SyncMode::Never, DiskErrorPolicy::ContinueMemoryOnly));
        assert_eq!(plan.directory.existing, ExistingDataChoice::SetAside);
    }
}
