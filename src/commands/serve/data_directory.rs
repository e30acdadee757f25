//! The data directory of a master: from flags to its plan, and the messages for its errors.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::spelled;
use crate::commands::cli::settings::Settings;
use crate::engine::election::cluster_name;
use crate::engine::journal::{
    CommitLogOptions, DataDirPlan, DiskErrorPolicy, ExistingDataChoice, JournalError, SyncMode,
};
use crate::engine::master::process::MasterDataPlan;
use crate::engine::master::server::MasterDataError;
use crate::engine::master::{DATA_FORMAT, DataFormat};

/// A master's data directory, and what chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPlan {
    pub data: MasterDataPlan,
    /// The flag or variable that names the directory, with its value.
    pub origin: String,
}

/// The cluster in the directory of a metadata service that is a process of its own, so that no
/// master uses it.
pub const NO_CLUSTER: &str = "(metadata service)";

/// The flags of `mcctl up` for the master's data directory.
#[derive(Debug, clap::Args)]
pub struct DataArgs {
    /// Directory for the master's state, to try out a restart. The objects are dropped, because
    /// this process also contains their memory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// When the master's log is synced: always, interval=TIME or never
    #[arg(long, value_name = "MODE", default_value_t, requires = "data_dir")]
    fsync: SyncMode,
    /// After an error of the disk: stop (exit code 4) or continue-memory-only
    #[arg(long, value_name = "POLICY", default_value_t, requires = "data_dir")]
    on_disk_error: DiskErrorPolicy,
    /// Remove the data in the directory at each start with this flag
    #[arg(long, requires = "data_dir")]
    discard_data: bool,
}

impl DataArgs {
    /// The data directory that the flags describe, if there is one.
    pub fn plan(&self) -> Option<DataPlan> {
        let path = self.data_dir.clone()?;
        let existing = if self.discard_data { ExistingDataChoice::Discard } else { ExistingDataChoice::Restore };
        let options =
            CommitLogOptions { sync: self.fsync, on_error: self.on_disk_error, ..CommitLogOptions::default() };
        let origin = format!("--data-dir {}", path.display());
        let cluster_id = CLUSTER_ID.to_owned();
        Some(DataPlan::new(DataDirPlan { path, cluster_id, existing }, options, DATA_FORMAT, origin))
    }
}

/// The default of `--cluster-id`.
const CLUSTER_ID: &str = "mooncake_cluster";

/// The flags that have an effect only with a data directory.
const ONLY_WITH_DATA: [&str; 4] = ["fsync", "on_disk_error", "disk_stall_timeout", "discard_data"];
/// Permitted values of `--disk-stall-timeout`. Below 200 ms, a sync of a healthy disk could count
/// as a stall.
const STALL_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(60);

impl DataPlan {
    fn new(directory: DataDirPlan, options: CommitLogOptions, format: DataFormat, origin: String) -> DataPlan {
        DataPlan { data: MasterDataPlan { directory, options, format }, origin }
    }

    /// The data directory that the flags of `serve master` describe.
    ///
    /// # Errors
    /// The flags contradict each other, or describe a store for snapshots that is not supported.
    pub fn of(settings: &Settings, env: &impl Fn(&str) -> Option<String>) -> Result<Option<DataPlan>, Failure> {
        let snapshots = settings.bool("enable_snapshot");
        let restore = settings.bool("enable_snapshot_restore");
        let given = settings.text("data_dir");
        if snapshots && !given.is_empty() {
            return Err(Failure::usage("--data-dir and --enable-snapshot both choose a data directory")
                .found(format!("{} and {}", settings.describe("data_dir"), settings.describe("enable_snapshot")))
                .next("remove --enable-snapshot: --data-dir also writes snapshots, and a start restores the state"));
        }
        if restore && !snapshots {
            return Err(Failure::usage("--enable-snapshot-restore has an effect only with --enable-snapshot")
                .found(settings.describe("enable_snapshot_restore"))
                .next("add --enable-snapshot, or use --data-dir DIR instead of both"));
        }
        let cluster_id = cluster_name(settings.text("cluster_id")).to_owned();
        let (path, origin) = if snapshots {
            check_snapshot_store(settings)?;
            snapshot_directory(&cluster_id, env)?
        } else if given.is_empty() {
            // A leader sends records to its standbys, with and without a directory.
            let format = (!settings.bool("enable_ha")).then_some("data_format");
            let only_with_data: Vec<&str> = ONLY_WITH_DATA.into_iter().chain(format).collect();
            return without_directory(settings, &only_with_data).map(|()| None);
        } else {
            (PathBuf::from(given), settings.describe("data_dir"))
        };
        let existing = match settings.bool("discard_data") {
            true => ExistingDataChoice::Discard,
            false if snapshots && !restore => ExistingDataChoice::SetAside,
            false => ExistingDataChoice::Restore,
        };
        let invalid = |name: &str, error: String| Failure::usage(error).found(settings.describe(name));
        let sync: SyncMode =
            settings.text("fsync").parse().map_err(|error| invalid("fsync", format!("--fsync: {error}")))?;
        let on_error: DiskErrorPolicy = settings
            .text("on_disk_error")
            .parse()
            .map_err(|error| invalid("on_disk_error", format!("--on-disk-error: {error}")))?;
        let stall_timeout = settings.duration_within("disk_stall_timeout", STALL_TIMEOUTS)?;
        let format = data_format(settings)?;
        let snapshot_interval = settings.seconds("snapshot_interval_seconds");
        let options =
            CommitLogOptions { sync, on_error, stall_timeout, snapshot_interval, ..CommitLogOptions::default() };
        Ok(Some(DataPlan::new(DataDirPlan { path, cluster_id, existing }, options, format, origin)))
    }

    /// The message for an error of the disk while the master runs.
    pub fn stopped(&self, error: &JournalError) -> Failure {
        Failure::host("the master stopped, because it cannot write its data directory")
            .tried(format!("write {} ({})", self.data.directory.path.display(), self.origin))
            .found(error.to_string())
            .next(format!(
                "{}, then start the master again: it restores everything that reached the disk",
                remedy(error)
            ))
    }

    /// The message for an error at the start.
    pub fn failure(&self, error: &MasterDataError) -> Failure {
        let directory = self.data.directory.path.display();
        let failure = match error {
            MasterDataError::Journal(JournalError::OtherCluster { found, .. }) if found == NO_CLUSTER => {
                Failure::usage("the data directory belongs to a metadata service").next("use another data directory")
            }
            MasterDataError::Journal(JournalError::OtherCluster { found, .. }) => {
                let given = format!("--cluster-id {}", self.data.directory.cluster_id);
                return Failure::usage(format!("the data directory belongs to another cluster, '{found}'"))
                    .tried(format!("open {directory} ({}) with {given}", self.origin))
                    .next(format!("use --cluster-id {found}, or another data directory"));
            }
            MasterDataError::Journal(JournalError::Locked { .. }) => {
                Failure::host("another process uses the data directory")
                    .next("stop that master, or use another data directory")
            }
            MasterDataError::Journal(JournalError::Invalidated { .. }) => Failure::host(
                "the data directory is out of date: its last master continued in memory after a disk error",
            )
            .next("check the disk, then add --discard-data once, to start with an empty store"),
            MasterDataError::Journal(JournalError::UnknownFormat { writer, .. }) => unknown_format(writer),
            MasterDataError::Change { writer: Some(writer), source, .. }
            | MasterDataError::Chunk { writer: Some(writer), source, .. }
                if source.is_of_another_version() =>
            {
                unknown_format(writer)
            }
            MasterDataError::Journal(JournalError::BootId { .. }) => no_boot_id(),
            MasterDataError::Journal(error @ (JournalError::Storage { .. } | JournalError::LogFull { .. })) => {
                Failure::host("cannot use the data directory").next(remedy(error))
            }
            MasterDataError::Journal(JournalError::Corrupt { .. } | JournalError::PayloadTooLarge { .. })
            | MasterDataError::Change { .. }
            | MasterDataError::Chunk { .. }
            | MasterDataError::Digest { .. }
            | MasterDataError::Restore(_)
            | MasterDataError::Tables(_) => {
                Failure::host("the data directory is damaged, so the state cannot be restored")
                    .next("if the disk returns wrong data, correct it; otherwise add --discard-data once, to start with an empty store")
            }
        };
        failure.tried(format!("open {directory} ({})", self.origin)).found(error.to_string())
    }
}

/// The format of the records that a master writes.
///
/// # Errors
/// There is no such format.
pub fn data_format(settings: &Settings) -> Result<DataFormat, Failure> {
    let number = settings.whole("data_format");
    DataFormat::from_number(number).ok_or_else(|| {
        Failure::usage(format!("--data-format: there is no format {number}")).found(settings.describe("data_format"))
    })
}

/// Checks the flags of a service without a data directory. The flags `only_with_data` would have no
/// effect.
///
/// # Errors
/// The flag of the directory is empty, or one of these flags is given.
pub fn without_directory(settings: &Settings, only_with_data: &[&str]) -> Result<(), Failure> {
    if settings.is_given("data_dir") {
        return Err(Failure::usage("--data-dir is empty")
            .found(settings.describe("data_dir"))
            .next("set a directory, or remove --data-dir: everything is then only in memory"));
    }
    only_with_data.iter().find(|name| settings.is_given(name)).map_or(Ok(()), |name| {
        Err(Failure::usage(format!("{} has an effect only with a data directory", spelled(name)))
            .found(settings.describe(name))
            .next("add --data-dir DIR"))
    })
}

/// What an operator can do about an error of the disk.
pub fn remedy(error: &JournalError) -> &'static str {
    let JournalError::Storage { cause, .. } = error else { return "free space on the disk" };
    match cause.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => "free space on the disk",
        Some(Errno::EACCES | Errno::EPERM) => "give this user read and write access to the directory and its files",
        Some(Errno::EROFS) => "mount the file system for writing",
        Some(Errno::EMFILE | Errno::ENFILE) => "raise the limit of open files (ulimit -n)",
        Some(Errno::EFBIG) => "raise the limit of the file size (ulimit -f)",
        Some(Errno::EEXIST | Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP | Errno::ENXIO | Errno::ENOENT) => {
            "use a path that is a directory and contains only the master's files"
        }
        _ => "check the state of the disk (dmesg)",
    }
}

/// The failure for a host whose boot ID cannot be read.
pub fn no_boot_id() -> Failure {
    Failure::host("cannot read this host's boot ID, which tells whether the last master's data is complete")
        .next("mount /proc in the container, or start without --data-dir")
}

fn unknown_format(writer: &str) -> Failure {
    Failure::host(format!("the data directory has a format that this version does not know; {writer} wrote it")).next(
        "start the version that wrote it. To use this version, start that one once with a lower --data-format, and stop it with SIGTERM",
    )
}

/// Refuses stores for snapshots that mcctl does not have.
fn check_snapshot_store(settings: &Settings) -> Result<(), Failure> {
    for (name, supported) in [("snapshot_object_store_type", "local"), ("snapshot_catalog_store_type", "embedded")] {
        let value = settings.text(name);
        if !value.is_empty() && value != supported {
            let flag = spelled(name);
            return Err(Failure::usage(format!("{flag} {value} is not supported: the state is kept on a local disk"))
                .found(settings.describe(name))
                .next(format!("use {flag} {supported}")));
        }
    }
    Ok(())
}

/// The directory in which upstream's flags keep the state, and where its name comes from.
fn snapshot_directory(cluster_id: &str, env: &impl Fn(&str) -> Option<String>) -> Result<(PathBuf, String), Failure> {
    let Some(root) = env(SNAPSHOT_PATH).filter(|root| !root.is_empty()) else {
        return Err(Failure::usage(format!("--enable-snapshot needs a directory, but {SNAPSHOT_PATH} is not set"))
            .next(format!("set {SNAPSHOT_PATH}=DIR, or use --data-dir DIR instead of --enable-snapshot")));
    };
    if cluster_id.is_empty() || cluster_id.contains('/') || [".", ".."].contains(&cluster_id) {
        return Err(Failure::usage(format!("--cluster-id '{cluster_id}' cannot be the name of a directory"))
            .next("use a name without '/'"));
    }
    Ok((Path::new(&root).join("mcctl").join(cluster_id), format!("{SNAPSHOT_PATH}={root}")))
}

const SNAPSHOT_PATH: &str = "MOONCAKE_SNAPSHOT_LOCAL_PATH";

/// How long a master with a data directory may take to stop: it writes a last snapshot. A service
/// manager has its own limit.
pub const STOP_WITH_DATA_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::gflags::{self, NoSources};
    use crate::commands::cli::service_flags::master_flags;

    fn planned(args: &[(&str, &str)]) -> Result<Option<DataPlan>, Failure> {
        let args: Vec<String> = args.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        let parsed = gflags::parse(&master_flags::TABLE, &args, &NoSources)?;
        let mut settings = Settings::new(&master_flags::TABLE);
        settings.assign_all(&parsed.assignments)?;
        DataPlan::of(&settings, &|name| (name == SNAPSHOT_PATH).then(|| "/snap".to_owned()))
    }

    #[test]
    fn a_data_directory_restores_by_default() {
        assert_eq!(planned(&[]).unwrap(), None);
        let plan = planned(&[("data_dir", "/d"), ("fsync", "always")]).unwrap().unwrap();
        assert_eq!(
            (plan.data.directory.path.to_str(), plan.data.directory.existing),
            (Some("/d"), ExistingDataChoice::Restore)
        );
        assert_eq!((plan.data.options.sync, &*plan.data.directory.cluster_id), (SyncMode::Always, "mooncake_cluster"));
    }

    #[test]
    fn upstreams_flags_name_a_directory_per_cluster() {
        let plan = planned(&[("enable_snapshot", "true"), ("snapshot_interval_seconds", "7")]).unwrap().unwrap();
        assert_eq!(plan.data.directory.path.to_str(), Some("/snap/mcctl/mooncake_cluster"));
        assert_eq!(plan.data.directory.existing, ExistingDataChoice::SetAside);
        assert_eq!((plan.data.options.sync, plan.data.options.snapshot_interval.as_secs()), (SyncMode::default(), 7));
        let plan = planned(&[("enable_snapshot", "true"), ("enable_snapshot_restore", "true")]).unwrap().unwrap();
        assert_eq!(plan.data.directory.existing, ExistingDataChoice::Restore);
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        let snapshot = ("enable_snapshot", "true");
        for args in [
            &[snapshot, ("data_dir", "/d")][..],
            &[("enable_snapshot_restore", "true")],
            &[("fsync", "always")],
            &[("data_dir", "")],
            &[("data_dir", "/d"), ("fsync", "sometimes")],
            &[snapshot, ("snapshot_object_store_type", "s3")],
            &[snapshot, ("snapshot_catalog_store_type", "redis")],
            &[snapshot, ("cluster_id", "..")],
        ] {
            assert_eq!(planned(args).unwrap_err().exit, Exit::Usage, "{args:?}");
        }
    }
}
