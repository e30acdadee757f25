//! `mcctl serve master`: runs a master with its admin HTTP endpoint and, if enabled, the metadata
//! service. It accepts mooncake_master's flags and configuration files.

use std::path::Path;
use std::time::Duration;

use crate::commands::cli::config_file::{self, CONFIG_BYTES_MAX, Typing};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::flags::nearest;
use crate::commands::cli::gflags::ParsedFlags;
use crate::commands::cli::listen::{ListenAddress, check_collisions};
use crate::commands::cli::logging;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::service_flags::master_flags;
use crate::commands::cli::settings::{Settings, read_text};
use crate::commands::cli::unknown_key;
use crate::commands::serve::access_plan::AccessPlan;
use crate::commands::serve::cluster_plan::ClusterPlan;
use crate::commands::serve::data_directory::DataPlan;
use crate::commands::serve::master_process::MasterPlan;
use crate::commands::serve::{settings_of, start_logging};
use crate::engine::alloc::placement::Strategy;
use crate::engine::base::HostPort;
use crate::engine::master::process::MetadataCleanup;
use crate::engine::master::{EvictionPolicyKind, MasterConfig, StorePolicy};
use crate::engine::rpc::server::default_threads;
use crate::engine::sys::interface;
use crate::engine::wire::Release;

/// Runs a master until it receives SIGINT or SIGTERM.
///
/// # Errors
/// The settings are invalid, or a port cannot be bound.
pub fn run(parsed: &ParsedFlags, log: &logging::LogOptions) -> Outcome {
    let (settings, warnings) = settings(parsed)?;
    let glog = (settings.is_given("minloglevel") || settings.is_given("v"))
        .then(|| logging::from_glog(settings.whole("minloglevel"), settings.whole("v")));
    start_logging(&settings, log, glog)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let env = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let plan = plan(&settings, &env)?;
    // The RPC server has its own threads. This thread serves everything else.
    runtime::block_on(0, async {
        let mut signals = Signals::take_for_service()?;
        let given = settings.given();
        if !given.is_empty() {
            tracing::info!("settings: {}", given.join(", "));
        }
        let mut assembly = plan.start().await?;
        tracing::info!("Master service started on port {}: {}", assembly.rpc.port, assembly.listeners());
        assembly.warn_if_open();
        let signal = tokio::select! {
            signal = signals.next() => signal,
            failure = assembly.work() => {
                // Changes can no longer be stored, so the result of stopping adds nothing.
                let _ = assembly.stop().await;
                return Err(failure);
            }
        };
        tracing::info!("{signal}: Shutdown signal received, exiting gracefully");
        assembly.leave_cluster().await;
        assembly.stop().await.map(|()| Exit::Done)
    })
}

/// The settings, and a warning for each unknown key. Flags override the `--config-path` file, which
/// overrides the defaults.
fn settings(parsed: &ParsedFlags) -> Result<(Settings, Vec<String>), Failure> {
    let flags = settings_of(&master_flags::TABLE, parsed)?;
    let path = flags.text("config_path");
    if path.is_empty() {
        return Ok((flags, Vec::new()));
    }
    let path = Path::new(path);
    let text = read_text(path, "--config-path", CONFIG_BYTES_MAX)?;
    let mut settings = Settings::new(&master_flags::TABLE);
    let file = config_file::parse(&master_flags::TABLE, path, &text, Typing::Strict)?;
    settings.assign_all(&file.assignments)?;
    settings.assign_all(&parsed.assignments)?;
    Ok((settings, unknown_key::settle(&file.unknown, flags.bool("strict_config"))?))
}

/// The configuration that the settings and the environment describe.
fn plan(settings: &Settings, env: &impl Fn(&str) -> Option<String>) -> Result<MasterPlan, Failure> {
    if let Some(protocol) = env("MC_RPC_PROTOCOL").filter(|protocol| protocol != "tcp") {
        return Err(Failure::usage(format!("MC_RPC_PROTOCOL is '{protocol}', but the RPC server supports only tcp"))
            .next("unset MC_RPC_PROTOCOL here and on the clients"));
    }
    let access = AccessPlan::of(settings)?;
    let rpc = rpc_listen(settings, &access)?;
    let listen = |what, host, port| listen(what, settings, &access, (host, port));
    let admin = listen("the admin HTTP endpoint", "metrics_host", "metrics_port");
    let metadata = settings
        .bool("enable_http_metadata_server")
        .then(|| listen("the metadata service", "http_metadata_server_host", "http_metadata_server_port"));
    let listens: Vec<ListenAddress> =
        [Some(rpc.clone()), Some(admin.clone()), metadata.clone()].into_iter().flatten().collect();
    check_collisions(&listens)?;
    let cleanup = match settings.bool("enable_metadata_cleanup_on_timeout") {
        false => MetadataCleanup::Release,
        true if metadata.is_some() => MetadataCleanup::Remove,
        true => match separate_metadata_server(env)? {
            Some(url) => MetadataCleanup::Elsewhere(url),
            None => {
                tracing::warn!(
                    "--enable-metadata-cleanup-on-timeout has no effect: the metadata service is not embedded, and neither \
                     MOONCAKE_TE_META_DATA_SERVER nor the MOONCAKE_CONFIG_PATH file sets an http(s) URL"
                );
                MetadataCleanup::Release
            }
        },
    };
    let mut config = MasterConfig::new(rpc.at.clone());
    let idle = settings.seconds("rpc_conn_timeout_seconds");
    config.idle_timeout = (!idle.is_zero()).then_some(idle);
    config.threads = match settings.whole("rpc_thread_num") {
        0 => default_threads(settings.whole("max_threads")),
        threads => threads,
    };
    config.client_release = client_release(settings.text("client_release"))?;
    config.policy = policy(settings)?;
    // Unlike upstream, only on request: /metrics has more, and a line every ten seconds hides the
    // events.
    let report = settings.bool("enable_metric_reporting");
    let data = DataPlan::of(settings, env)?;
    let cluster = ClusterPlan::of(settings, &rpc.at)?;
    if let (Some(_), Some(metadata)) = (&cluster, &metadata) {
        check_forwarding(settings, &rpc, metadata)?;
    }
    Ok(MasterPlan { config, rpc, admin, metadata, access, cleanup, data, cluster, report })
}

/// The release of clients that have not shown it yet.
fn client_release(version: &str) -> Result<Release, Failure> {
    Release::of_version(version).ok_or_else(|| {
        let known: Vec<&str> = Release::ALL.iter().map(|release| release.name()).collect();
        Failure::usage("--client-release is not a known release of Mooncake")
            .found(version.to_owned())
            .next(format!("use one of {}", known.join(", ")))
    })
}

/// The standbys of a cluster forward writes to the metadata service of the leader.
fn check_forwarding(settings: &Settings, rpc: &ListenAddress, metadata: &ListenAddress) -> Result<(), Failure> {
    if metadata.at.is_loopback() && !rpc.at.is_loopback() {
        return Err(Failure::usage("the other masters cannot reach the metadata service of this one on a loopback address")
            .found(format!("{} and {}", metadata.host_origin, settings.describe("enable_ha")))
            .next("a standby forwards writes to the leader: use --http-metadata-server-host=0.0.0.0, or an address of this host"));
    }
    let writes = settings.text("writes_from");
    if writes != "any" {
        return Err(Failure::usage("the metadata service of a cluster's master must accept writes from other hosts")
            .found(format!("{} and {}", settings.describe("writes_from"), settings.describe("enable_ha")))
            .next("a standby forwards writes to the leader: use --writes-from=any, and --token-file to restrict who may write"));
    }
    Ok(())
}

fn policy(settings: &Settings) -> Result<StorePolicy, Failure> {
    let strategy = match settings.text("allocation_strategy") {
        "free_ratio_first" => Strategy::FreeRatioFirst,
        "local_first" => Strategy::LocalFirst,
        "cxl" => {
            return Err(Failure::usage("--allocation-strategy cxl is not available: CXL memory is not supported")
                .found(settings.describe("allocation_strategy"))
                .next("use random or free_ratio_first"));
        }
        "ssd_free_ratio_first" => {
            tracing::info!(
                "{}: no node has an SSD tier, so all nodes rank equally and the choice is random",
                settings.describe("allocation_strategy")
            );
            Strategy::Random
        }
        _ => Strategy::Random,
    };
    let discard = "put_start_discard_timeout_sec";
    let release = "put_start_release_timeout_sec";
    if settings.seconds(discard) > settings.seconds(release) {
        return Err(Failure::usage("the release timeout for an unfinished put is shorter than its discard timeout")
            .found(format!("{} and {}", settings.describe(discard), settings.describe(release)))
            .next("raise --put-start-release-timeout-sec, or lower --put-start-discard-timeout-sec"));
    }
    let pin = "default_kv_soft_pin_ttl";
    let pin_max = "max_kv_soft_pin_ttl";
    if settings.duration(pin) > settings.duration(pin_max) {
        return Err(Failure::usage("the default soft pin TTL exceeds the maximum")
            .found(format!("{} and {}", settings.describe(pin), settings.describe(pin_max)))
            .next("lower --default-kv-soft-pin-ttl, or raise --max-kv-soft-pin-ttl"));
    }
    if settings.seconds("client_ttl") < CLIENT_TTL_MIN {
        return Err(Failure::usage("clients would expire between heartbeats, which they send every second")
            .found(settings.describe("client_ttl"))
            .next("set --client-ttl to 2 or more"));
    }
    let lease = "default_kv_lease_ttl";
    if settings.duration(lease).is_zero() {
        return Err(Failure::usage(
            "every read would fail with LEASE_EXPIRED (-707): a lease of 0 expires before the data arrives",
        )
        .found(settings.describe(lease))
        .next("set it to 1000 (milliseconds) or more, or remove the flag to use the default of 10s"));
    }
    Ok(StorePolicy {
        lease_ttl: settings.duration("default_kv_lease_ttl"),
        soft_pin_ttl: settings.duration(pin),
        soft_pin_ttl_max: settings.duration(pin_max),
        evict_soft_pinned: settings.bool("allow_evict_soft_pinned_objects"),
        eviction_ratio: settings.number("eviction_ratio"),
        eviction_policy: EvictionPolicyKind::default(),
        watermark: settings.number("eviction_high_watermark_ratio"),
        client_ttl: settings.seconds("client_ttl"),
        put_discard_after: settings.seconds(discard),
        put_release_after: settings.seconds(release),
        strategy,
        seed: 0,
    })
}

/// Upstream's clients send a heartbeat every second.
const CLIENT_TTL_MIN: Duration = Duration::from_secs(2);

fn listen(what: &'static str, settings: &Settings, access: &AccessPlan, (host, port): (&str, &str)) -> ListenAddress {
    let (host, host_origin) = access.host(settings, host);
    ListenAddress { what, at: HostPort::new(host, settings.whole(port)), origin: settings.describe(port), host_origin }
}

fn rpc_listen(settings: &Settings, access: &AccessPlan) -> Result<ListenAddress, Failure> {
    let port = if settings.whole::<u16>("rpc_port") == 0 { "port" } else { "rpc_port" };
    let mut rpc = listen("the master's RPC", settings, access, ("rpc_address", port));
    let name = settings.text("rpc_interface");
    if !name.is_empty() {
        let all = interface::ipv4_addresses().map_err(|error| {
            Failure::host("cannot read the network interface addresses on this host").found(error.to_string())
        })?;
        let Some((_, address)) = all.iter().find(|(interface, _)| interface == name) else {
            let known = all.iter().map(|(interface, _)| interface.as_str());
            let failure =
                Failure::usage(format!("this host has no interface '{name}' with an IPv4 address")).found(format!(
                    "{}; interfaces: {}",
                    settings.describe("rpc_interface"),
                    known.clone().collect::<Vec<_>>().join(", ")
                ));
            return Err(match nearest(name, known) {
                Some(near) => failure.next(format!("did you mean {near}?")),
                None => failure.next("use one of these interfaces, or use --rpc-address"),
            });
        };
        rpc.at.host = address.to_string();
        rpc.host_origin = settings.describe("rpc_interface");
    }
    Ok(rpc)
}

/// URL of a non-embedded metadata service, read from the same variables and file as upstream's
/// master.
fn separate_metadata_server(env: &impl Fn(&str) -> Option<String>) -> Result<Option<String>, Failure> {
    let is_http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
    if let Some(url) = env("MOONCAKE_TE_META_DATA_SERVER") {
        return Ok(Some(url).filter(is_http));
    }
    let Some(path) = env("MOONCAKE_CONFIG_PATH") else { return Ok(None) };
    let text = read_text(Path::new(&path), "MOONCAKE_CONFIG_PATH", CONFIG_BYTES_MAX)?;
    let json: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("{path} is not valid JSON")).found(error.to_string()))?;
    Ok(json.get("metadata_server").and_then(|url| url.as_str()).map(str::to_owned).filter(is_http))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::gflags::{self, NoSources};

    fn planned(args: &[&str]) -> Result<MasterPlan, Failure> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let parsed = gflags::parse(&master_flags::TABLE, &args, &NoSources).expect("well formed");
        settings(&parsed).and_then(|(settings, _)| plan(&settings, &|_| None))
    }

    #[test]
    fn no_flags_are_upstreams_defaults_but_for_the_metrics_line() {
        let plan = planned(&[]).expect("the defaults are consistent");
        assert_eq!(plan.config.policy, StorePolicy::default());
        assert_eq!(
            (plan.rpc.at.to_string(), plan.admin.at.to_string()),
            ("0.0.0.0:50051".to_owned(), "0.0.0.0:9003".to_owned())
        );
        assert!(plan.metadata.is_none() && !plan.report && plan.config.idle_timeout.is_none());
    }

    #[test]
    fn rpc_port_overrides_port() {
        let port = |args: &[&str]| planned(args).expect("well formed").rpc.at.port;
        assert_eq!(port(&["--port=7"]), 7);
        assert_eq!(port(&["--port=7", "--rpc_port=8"]), 8);
        assert_eq!(port(&["--port=0", "--rpc-port=0"]), 0);
    }

    #[test]
    fn flags_override_the_file_which_overrides_defaults() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m.yaml");
        std::fs::write(&path, "default_kv_lease_ttl: 5s\nmetrics_port: 1234\nclient_live_ttl_sec: 60\n")
            .expect("written");
        let path = path.to_str().expect("text");
        let plan = planned(&["--config_path", path, "--metrics_port=9003"]).expect("well formed");
        assert_eq!((plan.rpc.at.port, plan.admin.at.port), (50051, 9003));
        assert_eq!(plan.config.policy.lease_ttl, Duration::from_secs(5));
        assert_eq!(plan.config.policy.client_ttl, Duration::from_secs(60));
    }

    #[test]
    fn bind_sets_the_address_of_every_port_without_a_flag() {
        let args = ["--bind=10.0.0.5", "--enable-http-metadata-server", "--metrics-host=127.0.0.1"];
        let plan = planned(&args).expect("well formed");
        let metadata = plan.metadata.expect("enabled");
        let hosts = [&plan.rpc, &plan.admin, &metadata].map(|listen| listen.at.host.clone());
        assert_eq!(hosts, ["10.0.0.5", "127.0.0.1", "10.0.0.5"]);
        assert_eq!(plan.config.listen.host, "10.0.0.5");
        assert_eq!(planned(&["--bind=10.0.0.5", "--rpc-interface=lo"]).expect("loopback").rpc.at.host, "127.0.0.1");
    }

    #[test]
    fn two_listeners_on_one_port_are_refused() {
        let both = planned(&["--enable_http_metadata_server", "--http_metadata_server_port=9003"]);
        assert!(both.is_err_and(|failure| failure.exit == Exit::Usage && failure.what.contains("9003")));
        assert!(planned(&["--http_metadata_server_port=9003"]).is_ok(), "the service is not enabled");
    }

    #[test]
    fn contradictory_values_are_refused_with_their_flags() {
        let mut errors = String::new();
        for args in [
            &["--put_start_discard_timeout_sec=700"][..],
            &["--default_kv_soft_pin_ttl=48h"],
            &["--client_ttl=0"],
            &["--default_kv_lease_ttl=0"],
            &["--allocation_strategy=cxl"],
            &["--rpc_interface=nosuchif0"],
        ] {
            let failure = planned(args).expect_err("refused");
            assert_eq!(failure.exit, Exit::Usage, "{args:?}");
            // Interfaces differ between hosts.
            if !args[0].contains("interface") {
                errors.push_str(&failure.line());
            }
        }
        insta::assert_snapshot!(errors);
        assert_eq!(planned(&["--rpc_interface=lo"]).expect("loopback").rpc.at.host, "127.0.0.1");
    }
}
