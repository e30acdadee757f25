//! High availability of a master: from flags to its part in a cluster.

use std::path::Path;
use std::time::Duration;

use crate::commands::cli::error::Failure;
use crate::commands::cli::settings::{Settings, read_text};
use crate::commands::cli::times;
use crate::commands::serve::data_directory::data_format;
use crate::commands::target::etcd_access;
use crate::engine::base::HostPort;
use crate::engine::election::{EtcdElection, cluster_name};
use crate::engine::etcd::EtcdOptions;
use crate::engine::ha::{AckMode, HaConfig, NotInSyncPolicy};
use crate::engine::master::server::{HaSecret, HaSettings};
use crate::engine::sys::interface;

/// How a master takes part in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    pub settings: HaSettings,
    pub etcd: EtcdOptions,
}

/// A request to etcd takes at most this long.
const ETCD_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a cluster's name, in bytes. Masters send it in their handshake.
const CLUSTER_BYTES_MAX: usize = 255;
/// Maximum size of the file with the secret, and minimum length of the secret, in bytes.
const SECRET_BYTES_MAX: u64 = 4096;
const SECRET_BYTES_MIN: usize = 16;

/// The flags that have an effect only with `--enable-ha`.
const ONLY_WITH_HA: [&str; 8] = [
    "ha_backend_type",
    "ha_backend_connstring",
    "etcd_endpoints",
    "ha_port",
    "ha_ack",
    "ha_standby_timeout",
    "ha_secret_file",
    "when_not_in_sync",
];

impl ClusterPlan {
    /// The cluster that the flags of `serve master` describe; `None` without `--enable-ha`. `rpc`
    /// is where the master listens.
    ///
    /// # Errors
    /// The flags contradict each other, or a file cannot be read.
    pub fn of(settings: &Settings, rpc: &HostPort) -> Result<Option<ClusterPlan>, Failure> {
        if !settings.bool("enable_ha") {
            for name in ONLY_WITH_HA.into_iter().filter(|name| settings.is_given(name)) {
                tracing::warn!("{} has no effect without --enable-ha", settings.describe(name));
            }
            return Ok(None);
        }
        check_combination(settings)?;
        if interface::is_unspecified(&rpc.host) {
            return Err(Failure::usage(
                "--rpc-address must be an address that clients and the other masters can reach",
            )
            .found(settings.describe("rpc_address"))
            .next("set --rpc-address to an address of this host; it is published in etcd"));
        }
        let etcd = endpoints(settings)?;
        check_reachable(settings, rpc, &etcd)?;
        let config = HaConfig {
            ack: if settings.text("ha_ack") == "async" { AckMode::Async } else { AckMode::Sync },
            standby_timeout: standby_timeout(settings)?,
            not_in_sync: when_not_in_sync(settings)?,
            ..HaConfig::default()
        };
        let settings = HaSettings {
            config,
            cluster: cluster(settings)?,
            host: rpc.host.clone(),
            listen: HostPort::new(rpc.host.clone(), settings.whole("ha_port")),
            secret: secret(settings)?,
            format: data_format(settings)?,
            metadata: None,
        };
        Ok(Some(ClusterPlan { settings, etcd }))
    }

    /// The election's records in etcd.
    ///
    /// # Errors
    /// The certificates or the login in the environment are not valid, or TLS cannot be set up on
    /// this host.
    pub fn election(&self) -> Result<EtcdElection, Failure> {
        Ok(EtcdElection::new(etcd_access::client(self.etcd.clone())?, &self.settings.cluster))
    }
}

fn check_combination(settings: &Settings) -> Result<(), Failure> {
    if settings.bool("enable_snapshot") {
        return Err(Failure::usage(
            "a master of a cluster keeps its copy of the state with --data-dir, not with --enable-snapshot",
        )
        .found(format!("{} and {}", settings.describe("enable_ha"), settings.describe("enable_snapshot")))
        .next("use --data-dir DIR instead of --enable-snapshot, or neither: a standby keeps the state in its memory"));
    }
    Ok(())
}

/// A loopback address is different on each host, so it is allowed only if all masters must be on
/// etcd's host.
fn check_reachable(settings: &Settings, rpc: &HostPort, etcd: &EtcdOptions) -> Result<(), Failure> {
    let is_local = etcd.endpoints.iter().all(|endpoint| endpoint.at.is_loopback());
    if !rpc.is_loopback() || is_local {
        return Ok(());
    }
    Err(Failure::usage("--rpc-address is a loopback address, which clients and masters on other hosts cannot reach")
        .found(format!("{}, and etcd on another host", settings.describe("rpc_address")))
        .next("set --rpc-address to an address of this host that the other hosts can reach"))
}

fn endpoints(settings: &Settings) -> Result<EtcdOptions, Failure> {
    let backend = settings.text("ha_backend_type");
    if !backend.is_empty() && backend != "etcd" {
        return Err(Failure::usage(format!("mcctl elects a leader only with etcd, not with {backend}"))
            .found(settings.describe("ha_backend_type"))
            .next("use --ha-backend-type=etcd"));
    }
    let connstring = "ha_backend_connstring";
    let endpoints = "etcd_endpoints";
    let (name, next) = match settings.text(connstring) {
        "" => (endpoints, "set --etcd-endpoints"),
        _ => (connstring, "correct --ha-backend-connstring, which overrides --etcd-endpoints"),
    };
    EtcdOptions::parse(settings.text(name), ETCD_TIMEOUT).map_err(|error| {
        Failure::usage("--enable-ha needs the addresses of etcd")
            .tried(settings.describe(name))
            .found(error.to_string())
            .next(format!("{next}, for example 10.0.0.1:2379;10.0.0.2:2379"))
    })
}

/// The cluster's name, which is part of keys in etcd, log lines and handshakes.
fn cluster(settings: &Settings) -> Result<String, Failure> {
    let name = cluster_name(settings.text("cluster_id"));
    let problem = match name {
        _ if name.trim_matches('/').is_empty() => "is empty".to_owned(),
        _ if name.len() > CLUSTER_BYTES_MAX => format!("is longer than {CLUSTER_BYTES_MAX} bytes"),
        _ if name.contains(char::is_control) => "contains a control character".to_owned(),
        _ => return Ok(name.to_owned()),
    };
    Err(Failure::usage(format!("with --enable-ha, --cluster-id must be a name; it {problem}"))
        .found(settings.describe("cluster_id"))
        .next("use letters, digits, '-', '_' and '.', and the same ID for all masters of the cluster"))
}

fn standby_timeout(settings: &Settings) -> Result<Duration, Failure> {
    settings.duration_within("ha_standby_timeout", Duration::from_millis(300)..=Duration::from_secs(60))
}

fn when_not_in_sync(settings: &Settings) -> Result<NotInSyncPolicy, Failure> {
    let invalid = |what: &str| {
        Failure::usage(what)
            .found(settings.describe("when_not_in_sync"))
            .next("use wait, or a time, for example promote-after=90s")
    };
    let unknown = || invalid("invalid value for --when-not-in-sync");
    let text = settings.text("when_not_in_sync");
    if text == "wait" {
        return Ok(NotInSyncPolicy::Wait);
    }
    let time = text.strip_prefix("promote-after=").ok_or_else(unknown)?;
    if let Some(warning) = times::unit_warning("promote-after", time, "s") {
        tracing::warn!("{}: {warning}", settings.describe("when_not_in_sync"));
    }
    let time = if time.ends_with(|last: char| last.is_ascii_digit()) { format!("{time}s") } else { time.to_owned() };
    let time = times::parse(&time).map_err(|_| unknown())?;
    // Shorter times would pass before a leader that lost etcd is fenced.
    if (Duration::from_secs(3)..=Duration::from_secs(86_400)).contains(&time) {
        Ok(NotInSyncPolicy::PromoteAfter(time))
    } else {
        Err(invalid("the time in --when-not-in-sync must be between 3s and 24h"))
    }
}

fn secret(settings: &Settings) -> Result<HaSecret, Failure> {
    let path = settings.text("ha_secret_file");
    if path.is_empty() {
        tracing::warn!(
            "without --ha-secret-file, every host that reaches the port for standbys can read the state: allow only the other masters"
        );
        return Ok(HaSecret::none());
    }
    let text = read_text(Path::new(path), "--ha-secret-file", SECRET_BYTES_MAX)?;
    let secret = text.trim();
    if secret.len() < SECRET_BYTES_MIN {
        return Err(Failure::usage(format!("the secret is shorter than {SECRET_BYTES_MIN} bytes"))
            .found(settings.describe("ha_secret_file"))
            .next(format!("write a random one: openssl rand -hex 32 > {path}")));
    }
    Ok(HaSecret::new(secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::gflags::{self, NoSources};
    use crate::commands::cli::service_flags::master_flags;

    /// The plan for these flags of a master that listens on `host`, with a valid etcd unless they
    /// contain another one.
    fn planned(host: &str, args: &[(&str, &str)]) -> Result<ClusterPlan, Failure> {
        let given = [("enable_ha", "true"), ("etcd_endpoints", "127.0.0.1:2379")];
        let args: Vec<String> = given.iter().chain(args).map(|(name, value)| format!("--{name}={value}")).collect();
        let parsed = gflags::parse(&master_flags::TABLE, &args, &NoSources)?;
        let mut settings = Settings::new(&master_flags::TABLE);
        settings.assign_all(&parsed.assignments)?;
        ClusterPlan::of(&settings, &HostPort::new(host, 1)).map(|plan| plan.expect("--enable-ha is set"))
    }

    #[test]
    fn an_address_that_is_published_is_specified() {
        assert!(planned("127.0.0.1", &[]).is_ok());
        for host in ["0.0.0.0", "0", "00.0.0.0", "::", "::0", "0:0:0:0:0:0:0:0", ""] {
            assert_eq!(planned(host, &[]).expect_err(host).exit, Exit::Usage, "{host}");
        }
    }

    #[test]
    fn one_slash_at_the_end_of_a_cluster_id_is_ignored() {
        for (id, name) in [("blue", "blue"), ("blue/", "blue"), ("blue//", "blue/"), ("a/b", "a/b")] {
            assert_eq!(planned("127.0.0.1", &[("cluster_id", id)]).expect(id).settings.cluster, name);
        }
    }

    #[test]
    fn a_cluster_id_that_is_not_a_name_is_refused() {
        assert!(planned("127.0.0.1", &[("cluster_id", &"x".repeat(255))]).is_ok());
        for id in ["", "/", "//", "a\nb", &"x".repeat(256)] {
            assert_eq!(planned("127.0.0.1", &[("cluster_id", id)]).expect_err(id).exit, Exit::Usage, "{id}");
        }
    }

    #[test]
    fn a_wrong_list_of_etcd_servers_is_reported_for_its_flag() {
        for (flag, spelled) in
            [("etcd_endpoints", "set --etcd-endpoints"), ("ha_backend_connstring", "correct --ha-backend-connstring")]
        {
            let failure = planned("127.0.0.1", &[(flag, "a b:1")]).expect_err(flag);
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.next.expect("advice").starts_with(spelled), "{flag}");
        }
    }
}
