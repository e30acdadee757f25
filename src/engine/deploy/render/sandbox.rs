//! The user and the sandbox of a systemd unit.
//!
//! Masters, store nodes and metadata proxies run without privileges, and may only use what they
//! need. Engines and routers are not restricted: they load Python modules, compile kernels and open
//! GPUs.

use crate::error::invalid_value;
use crate::render::quoting;
use crate::{ComponentRole, DeployError, DeploymentSpec, ImageSource, ProcessPlan};

/// The system user of processes that keep files, if `host.user` is empty.
pub(crate) const FILE_OWNER: &str = "mcctl";

/// The user of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitUser<'a> {
    /// `host.user`.
    Named(&'a str),
    /// [`FILE_OWNER`]. A dynamic user's files would be below /var/lib/private, and not on a file
    /// system that is mounted at their path.
    FileOwner,
    /// A user that exists as long as the process runs.
    Dynamic,
    Root,
}

impl<'a> UnitUser<'a> {
    /// `host.user`, or else the least privileged user that can run the process.
    pub(super) fn of(spec: &'a DeploymentSpec, plan: &ProcessPlan) -> UnitUser<'a> {
        // A dynamic user could not read files of access control that only their owner may read.
        let keeps_files =
            plan.data.is_some() || plan.mounts.iter().any(|mount| mount.writes) || !plan.access.is_empty();
        match spec.host.user.as_str() {
            "" if !is_restricted(plan) => UnitUser::Root,
            "" if keeps_files => UnitUser::FileOwner,
            "" => UnitUser::Dynamic,
            name => UnitUser::Named(name),
        }
    }

    /// The owner of the directories that the unit creates.
    pub(super) fn name(self) -> &'a str {
        match self {
            UnitUser::Named(name) => name,
            UnitUser::FileOwner => FILE_OWNER,
            UnitUser::Dynamic | UnitUser::Root => "root",
        }
    }

    /// The setting of the unit. `None` for root, which is the default.
    pub(super) fn setting(self) -> Option<String> {
        match self {
            UnitUser::Named(_) | UnitUser::FileOwner => Some(format!("User={}", self.name().replace('%', "%%"))),
            UnitUser::Dynamic => Some("DynamicUser=yes".to_owned()),
            UnitUser::Root => None,
        }
    }
}

/// Whether the process is a master, a store node or a metadata proxy.
pub(crate) fn is_restricted(plan: &ProcessPlan) -> bool {
    matches!(plan.role, ComponentRole::Master | ComponentRole::MetadataProxy | ComponentRole::Store)
}

/// Settings that all restricted units have.
const ALWAYS: &[&str] = &[
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "ProtectProc=invisible",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "PrivateTmp=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "SystemCallArchitectures=native",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
];

/// The sandbox of a unit, one setting or comment per line. Empty for engines and routers.
pub(crate) fn settings(plan: &ProcessPlan) -> Vec<String> {
    if !is_restricted(plan) {
        return Vec::new();
    }
    let mut lines = vec!["# The sandbox: docs/deployment-file.md explains each exception.".to_owned()];
    lines.extend(ALWAYS.iter().map(|&setting| setting.to_owned()));
    lines.extend(capabilities(plan));
    lines.extend(files(plan));
    lines.extend(devices(plan));
    lines.extend(system_calls(plan));
    lines
}

/// No capabilities, apart from the one for a privileged port.
fn capabilities(plan: &ProcessPlan) -> Vec<String> {
    let (comment, value) = match plan.ports.iter().find(|port| port.number < PRIVILEGED_BELOW) {
        Some(port) => (Some(format!("# For port {}.", port.number)), "CAP_NET_BIND_SERVICE"),
        None => (None, ""),
    };
    let settings = ["CapabilityBoundingSet", "AmbientCapabilities"].map(|key| format!("{key}={value}"));
    comment.into_iter().chain(settings).collect()
}

/// Ports below this one require a capability.
const PRIVILEGED_BELOW: u16 = 1024;

/// The directories that the process may write to. systemd adds `StateDirectory=`.
fn files(plan: &ProcessPlan) -> Vec<String> {
    let written = plan.mounts.iter().filter(|mount| mount.writes).map(|mount| &mount.path);
    let written: Vec<&String> = written.chain(plan.data.as_ref().map(|data| &data.path)).collect();
    let mut read = plan.access.iter().map(|file| &file.path);
    let in_home =
        written.iter().any(|path| is_in_home(path)) || read.any(|path| is_in_home(path)) || program_is_in_home(plan);
    let mut lines = vec![format!("ProtectHome={}", if in_home { "read-only" } else { "yes" })];
    let others = written.into_iter().filter(|path| below_state(path).is_none());
    lines.extend(others.map(|path| format!("ReadWritePaths={}", quoting::unit_path(path))));
    lines
}

/// The value of `StateDirectory` for the directory `path`, if it is below /var/lib.
pub(crate) fn below_state(path: &str) -> Option<&str> {
    path.strip_prefix("/var/lib/").map(|below| below.trim_end_matches('/')).filter(|below| !below.is_empty())
}

/// No devices, apart from those for RDMA.
fn devices(plan: &ProcessPlan) -> Vec<String> {
    let lines: &[&str] = match plan.resources.rdma {
        true => &["# RDMA opens /dev/infiniband.", "DevicePolicy=closed", "DeviceAllow=char-infiniband* rw"],
        false => &["PrivateDevices=yes"],
    };
    lines.iter().map(|&line| line.to_owned()).collect()
}

/// The system calls that are allowed, and whether memory may become executable.
fn system_calls(plan: &ProcessPlan) -> Vec<String> {
    let lines: &[&str] = match (plan.image == ImageSource::Mcctl, plan.resources.rdma) {
        (true, false) => &["SystemCallFilter=~@privileged @resources"],
        // The call only queries the NUMA node of a page, to choose the device next to it.
        (true, true) => &["SystemCallFilter=~@privileged @resources", "SystemCallFilter=move_pages"],
        (false, _) => &["# Upstream's programs set NUMA policies and affinities.", "SystemCallFilter=~@privileged"],
    };
    let mut all = vec!["SystemCallFilter=@system-service"];
    all.extend(lines);
    if plan.image == ImageSource::Mcctl {
        all.push("MemoryDenyWriteExecute=yes");
    }
    all.into_iter().map(str::to_owned).collect()
}

/// Directories that `ProtectHome=` hides, and that usually only their owner may read.
const HOMES: [&str; 3] = ["/home/", "/root/", "/run/user/"];

fn is_in_home(path: &str) -> bool {
    HOMES.iter().any(|home| path.starts_with(home))
}

fn program_is_in_home(plan: &ProcessPlan) -> bool {
    plan.argv.first().is_some_and(|program| is_in_home(program))
}

/// Checks that an unprivileged user can run the program.
///
/// # Errors
/// The program of a master or node is in a home directory, and `host.user` is empty.
pub(crate) fn check_program(spec: &DeploymentSpec, plan: &ProcessPlan) -> Result<(), DeployError> {
    if is_restricted(plan) && program_is_in_home(plan) && spec.host.user.is_empty() {
        let why = format!(
            "required, because host.bin_dir is in a home directory ({}): set it to the owner, or install {} elsewhere",
            spec.host.bin_dir,
            plan.argv[0].rsplit('/').next().unwrap_or_default()
        );
        return Err(invalid_value("host.user", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_plan::tests::bare;
    use crate::{DataVolume, HostMount, NamedPort};

    fn has(plan: &ProcessPlan, setting: &str) -> bool {
        settings(plan).iter().any(|line| line == setting)
    }

    fn data(path: &str) -> Option<DataVolume> {
        Some(DataVolume { name: "a".to_owned(), path: path.to_owned(), bytes: 1, volume_bytes: 1 })
    }

    #[test]
    fn engines_and_routers_are_not_restricted() {
        for role in [ComponentRole::Server, ComponentRole::Prefill, ComponentRole::Decode, ComponentRole::Router] {
            let plan = ProcessPlan { role, ..bare() };
            assert!(settings(&plan).is_empty());
            assert_eq!(UnitUser::of(&DeploymentSpec::default(), &plan), UnitUser::Root);
        }
    }

    #[test]
    fn processes_that_keep_files_have_a_static_user() {
        let mut spec = DeploymentSpec::default();
        assert_eq!(UnitUser::of(&spec, &bare()), UnitUser::Dynamic);
        let with_data = ProcessPlan { data: data("/var/lib/a"), ..bare() };
        assert_eq!(UnitUser::of(&spec, &with_data), UnitUser::FileOwner);
        let mounts = vec![HostMount { path: "/mnt/a".to_owned(), writes: true }];
        assert_eq!(UnitUser::of(&spec, &ProcessPlan { mounts, ..bare() }), UnitUser::FileOwner);
        spec.host.user = "kv".to_owned();
        assert_eq!(UnitUser::of(&spec, &with_data), UnitUser::Named("kv"));
    }

    #[test]
    fn only_directories_outside_var_lib_are_listed_as_writable() {
        assert!(has(&ProcessPlan { data: data("/data/kv"), ..bare() }, "ReadWritePaths=/data/kv"));
        let below = settings(&ProcessPlan { data: data("/var/lib/kv"), ..bare() });
        assert!(below.iter().all(|line| !line.starts_with("ReadWritePaths=")), "{below:?}");
    }

    #[test]
    fn home_directories_are_hidden_unless_the_process_uses_them() {
        assert!(has(&bare(), "ProtectHome=yes"));
        assert!(has(&ProcessPlan { data: data("/home/kv/data"), ..bare() }, "ProtectHome=read-only"));
        let plan = ProcessPlan { argv: vec!["/root/bin/mcctl".to_owned()], ..bare() };
        assert!(has(&plan, "ProtectHome=read-only"));
    }

    #[test]
    fn devices_are_opened_only_for_rdma() {
        assert!(has(&bare(), "PrivateDevices=yes"));
        let mut plan = ProcessPlan { image: ImageSource::Mcctl, ..bare() };
        plan.resources.rdma = true;
        assert!(!has(&plan, "PrivateDevices=yes") && has(&plan, "DeviceAllow=char-infiniband* rw"));
        assert!(has(&plan, "SystemCallFilter=move_pages"));
    }

    #[test]
    fn a_privileged_port_adds_one_capability() {
        assert!(has(&bare(), "CapabilityBoundingSet="));
        let ports = vec![NamedPort { name: "rest", number: 80, key: "nodes.rest_port" }];
        let plan = ProcessPlan { ports, ..bare() };
        assert!(has(&plan, "CapabilityBoundingSet=CAP_NET_BIND_SERVICE"));
        assert!(has(&plan, "AmbientCapabilities=CAP_NET_BIND_SERVICE"));
    }

    #[test]
    fn a_program_in_a_home_directory_requires_a_user() {
        let plan = ProcessPlan { argv: vec!["/home/kv/bin/mcctl".to_owned()], ..bare() };
        let mut spec = DeploymentSpec::default();
        assert!(check_program(&spec, &plan).is_err());
        spec.host.user = "kv".to_owned();
        assert!(check_program(&spec, &plan).is_ok());
    }
}
