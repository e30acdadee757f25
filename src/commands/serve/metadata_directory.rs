//! The data directory of a metadata service: a part of the master's if it is embedded, or its own.

use std::path::PathBuf;
use std::sync::Arc;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::spelled;
use crate::commands::cli::settings::Settings;
use crate::commands::serve::data_directory::{
    DataPlan, ExistingDataChoice, NO_CLUSTER, boot_id, file_name_of, remedy, without_directory,
};
use crate::engine::env::{Env, RealEnv, wall_clock};
use crate::engine::journal::{
    DataDir, DataDirOptions, DiskErrorPolicy, DiskStorage, ExistingData, JournalError, ParseDiskErrorPolicyError,
    ParseSyncModeError, SyncMode, Uuid,
};
use crate::engine::metadata::{
    KeyParsing, KeySpace, METADATA_DIRECTORY, MetadataJournalError, MetadataJournalOptions, MetadataService,
};

/// The data directory of a metadata service, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataDataPlan {
    path: PathBuf,
    /// The flag or variable that names the directory, with its value.
    origin: String,
    /// The cluster of the embedding master. `None`: the service is a process of its own.
    cluster_id: Option<String>,
    existing: ExistingDataChoice,
    options: MetadataJournalOptions,
}

/// The flags that have an effect only with a data directory.
const ONLY_WITH_DATA: [&str; 3] = ["fsync", "on_disk_error", "discard_data"];

impl MetadataDataPlan {
    /// The directory of the service that is embedded in a master with the data directory `master`.
    pub fn embedded(master: &DataPlan) -> MetadataDataPlan {
        let (sync, on_error) = (master.options.sync, master.options.on_error);
        MetadataDataPlan {
            path: master.path.join(METADATA_DIRECTORY),
            origin: master.origin.clone(),
            cluster_id: Some(master.cluster_id.clone()),
            existing: master.existing,
            options: MetadataJournalOptions { sync, on_error, ..MetadataJournalOptions::default() },
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
        Ok(Some(MetadataDataPlan {
            path: PathBuf::from(path),
            origin: settings.describe("data_dir"),
            cluster_id: None,
            existing: if discard { ExistingDataChoice::Discard } else { ExistingDataChoice::Restore },
            options: MetadataJournalOptions { sync, on_error, ..MetadataJournalOptions::default() },
        }))
    }

    /// Starts a service with the records in the directory. Existing data is kept, moved or removed, as planned.
    ///
    /// # Errors
    /// The directory is in use, belongs to another service, is invalid or damaged, or the disk reports an error.
    pub fn restore(
        &self,
        env: &RealEnv,
        keys: KeySpace,
        parsing: KeyParsing,
    ) -> Result<MetadataService<RealEnv>, Failure> {
        let dir = self.open(env, boot_id()?).map_err(|error| self.failure(&MetadataJournalError::Journal(error)))?;
        let restored = MetadataService::restored(env.clone(), keys, parsing, dir, self.options);
        restored.map(|(service, _)| service).map_err(|error| self.failure(&error))
    }

    fn open(&self, env: &RealEnv, boot_id: Uuid) -> Result<DataDir, JournalError> {
        let storage = Arc::new(DiskStorage::open(&self.path)?);
        let date = file_name_of(wall_clock(env));
        let options = DataDirOptions {
            cluster_id: self.cluster_id.as_deref().unwrap_or(NO_CLUSTER),
            boot_id,
            new_uuid: Uuid(u128::from(env.rng()) << 64 | u128::from(env.rng())),
            existing: match self.existing {
                ExistingDataChoice::Restore => ExistingData::Keep,
                ExistingDataChoice::SetAside => ExistingData::SetAside { date: &date },
                ExistingDataChoice::Discard => ExistingData::Discard,
            },
        };
        DataDir::open(storage, &options)
    }

    /// The message for an error of the disk while the service runs.
    pub fn stopped(&self, error: &JournalError) -> Failure {
        let what = if self.cluster_id.is_some() { "the master" } else { "the metadata service" };
        Failure::host(format!("{what} stopped, because it cannot write the metadata records"))
            .tried(format!("write {} ({})", self.path.display(), self.origin))
            .found(error.to_string())
            .next(format!("{}, then start it again: it restores everything that reached the disk", remedy(error)))
    }

    /// The message for an error at the start.
    fn failure(&self, error: &MetadataJournalError) -> Failure {
        let directory = self.path.display();
        let without_records = match self.cluster_id {
            Some(_) => format!("remove {directory}: the service then starts without records"),
            None => "add --discard-data once: the service then starts without records".to_owned(),
        };
        let failure = match error {
            MetadataJournalError::Journal(JournalError::OtherCluster { found, .. }) => {
                let failure = Failure::usage(format!("the data directory belongs to another service, of '{found}'"));
                match &self.cluster_id {
                    Some(_) => failure.next(format!("use --cluster-id {found}, or another data directory")),
                    None => failure.next("use another data directory"),
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
            MetadataJournalError::Journal(error @ (JournalError::Storage { .. } | JournalError::LogFull { .. })) => {
                Failure::host("cannot use the data directory of the metadata records").next(remedy(error))
            }
            MetadataJournalError::Thread(_) => Failure::host("cannot start the metadata service"),
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
    use crate::engine::master::server::DataOptions;

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
        assert_eq!((plan.path.to_str(), plan.existing), (Some("/d"), ExistingDataChoice::Discard));
        assert_eq!((plan.options.sync, plan.options.on_error), (SyncMode::Always, DiskErrorPolicy::Stop));
        for flags in [&[("fsync", "always")][..], &[("data_dir", "/d"), ("fsync", "sometimes")]] {
            assert_eq!(planned(flags).unwrap_err().exit, Exit::Usage, "{flags:?}");
        }
    }

    #[test]
    fn an_embedded_service_uses_a_part_of_the_masters_directory() {
        let options = DataOptions {
            sync: SyncMode::Never,
            on_error: DiskErrorPolicy::ContinueMemoryOnly,
            ..DataOptions::default()
        };
        let master = DataPlan {
            path: "/d".into(),
            origin: "--data-dir /d".to_owned(),
            cluster_id: "blue".to_owned(),
            existing: ExistingDataChoice::SetAside,
            options,
        };
        let plan = MetadataDataPlan::embedded(&master);
        assert_eq!((plan.path.to_str(), plan.cluster_id.as_deref()), (Some("/d/metadata"), Some("blue")));
        assert_eq!((plan.options.sync, plan.options.on_error), (SyncMode::Never, DiskErrorPolicy::ContinueMemoryOnly));
        assert_eq!(plan.existing, ExistingDataChoice::SetAside);
    }
}
