//! `mcctl serve store`: runs a store node with its REST port. It accepts mooncake_store_service's flags, JSON keys and environment.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::commands::config_file::{self, CONFIG_BYTES_MAX, ConfigFile, Typing};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::flags::{FileKey, ValueKind, parse_bool};
use crate::commands::gflags::ParsedFlags;
use crate::commands::listen::{ListenAddress, check_collisions};
use crate::commands::logging;
use crate::commands::master_target;
use crate::commands::node_failure;
use crate::commands::origin::ValueOrigin;
use crate::commands::origin::{ClientOrigins, NodeOrigins};
use crate::commands::runtime::{self, Signals};
use crate::commands::serve::{settings_of, start_logging};
use crate::commands::service_flags::store_flags;
use crate::commands::settings::{Assignment, Settings, read_text};
use crate::commands::transport::TransportChoice;
use crate::commands::unknown_key;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::env::{Env, RealEnv, deadline, processors, timed};
use crate::engine::metadata::MetadataUri;
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::store::service::{self, StoreService, StoreServiceConfig};
use crate::engine::store::{ClientConfig, NodeConfig, StoreClient};
use crate::engine::sys::interface;

/// Runs a store node until it receives SIGINT or SIGTERM.
///
/// # Errors
/// The settings are invalid, a port cannot be bound, or the master or metadata service is unreachable.
pub fn run(parsed: &ParsedFlags, log: &logging::LogOptions) -> Outcome {
    let env = |name: &str| std::env::var(name).ok();
    let (settings, warnings) = settings(parsed, &env)?;
    start_logging(&settings, log, None)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    runtime::block_on(processors().min(THREADS_MAX), async {
        let mut signals = Signals::take_for_service()?;
        let plan = tokio::select! {
            planned = plan_in_time(settings) => planned?,
            signal = signals.next() => {
                tracing::info!("{signal}: stopping before the node is ready");
                return Ok(Exit::Done);
            }
        };
        plan.check_ports()?;
        let client = &plan.config.node.client;
        warn_of_unknown_name(client);
        let Some(service) = start(&plan, &mut signals).await? else { return Ok(Exit::Done) };
        let memory = service
            .node()
            .segment()
            .map_or_else(|| "no memory".to_owned(), |segment| ByteSize(segment.size).to_string());
        tracing::info!(
            "Store service started successfully on {}: contributes {memory} to the master at {}",
            service.node().name(),
            client.master
        );
        tracing::info!("REST API started on port {}: http://{}", service.rest_at().port, service.rest_at());
        if let Some(at) = service.client_http_at() {
            tracing::info!("client HTTP server started on port {}: http://{at}", at.port);
        }
        let signal = signals.next().await;
        tracing::info!("{signal}: stopping");
        runtime::stop_in_time("the node", service.stop()).await;
        Ok(Exit::Done)
    })
}

/// A store service's configuration, and what its errors name.
#[derive(Debug)]
struct ServicePlan {
    config: StoreServiceConfig,
    origins: NodeOrigins,
    rest: ListenAddress,
    client_http: Option<ListenAddress>,
    /// Warnings about environment variables that do not parse.
    warnings: Vec<String>,
}

impl ServicePlan {
    /// Checks that the HTTP ports differ from each other and from a fixed handshake port (`MC_LEGACY_RPC_PORT_BINDING`).
    ///
    /// # Errors
    /// Two ports are the same.
    fn check_ports(&self) -> Result<(), Failure> {
        let client = &self.config.node.client;
        let mut listens = vec![self.rest.clone()];
        listens.extend(self.client_http.clone());
        listens.extend(client.fixed_handshake_port().map(|port| {
            let origin = format!("--local-hostname {} with MC_LEGACY_RPC_PORT_BINDING", client.local_hostname);
            node_failure::handshake_port(port, origin)
        }));
        check_collisions(&listens)
    }
}

/// Starts the service of `plan`; `None` if a signal arrives before it has started. In this case, its records have been removed.
async fn start(plan: &ServicePlan, signals: &mut Signals) -> Result<Option<StoreService<RealEnv>>, Failure> {
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    let (cancel, cancelled) = oneshot::channel::<()>();
    let cancelled = async move { cancelled.await.unwrap_or_default() };
    let mut starting = pin!(StoreService::start_unless(plan.config.clone(), RealEnv::new(), cancelled));
    let started = tokio::select! {
        started = &mut starting => started,
        signal = signals.next() => {
            tracing::info!("{signal}: stopping before the node is ready");
            // The receiver no longer exists if startup has just completed.
            let _ = cancel.send(());
            let end = async {
                if let Ok(service) = starting.await {
                    service.stop().await;
                }
            };
            runtime::stop_in_time("the node", end).await;
            return Ok(None);
        }
    };
    let ports = (&plan.rest, plan.client_http.as_ref());
    started.map(Some).map_err(|error| node_failure::service(&plan.config, &plan.origins, ports, error))
}

/// The configuration from `settings`. If the node's name depends on the master's address, name resolution is retried until it succeeds: in
/// a cluster that has just started, DNS records may appear late. The time spent on retries counts toward the maximum wait for the master.
async fn plan_in_time(settings: Settings) -> Result<ServicePlan, Failure> {
    let (env, settings) = (RealEnv::new(), Arc::new(settings));
    let (mut waited, mut warned) = (Duration::ZERO, false);
    loop {
        let (shared, max_wait) = (Arc::clone(&settings), max_wait(&settings));
        // The resolver blocks without a time limit.
        let planning = tokio::task::spawn_blocking(move || {
            plan(&shared, |master| interface::address_towards(&master.host, master.port))
        });
        let left = max_wait.saturating_sub(waited).max(RESOLVE_MIN);
        let (planned, took) = timed(&env, deadline(&env, left, planning)).await;
        waited += took;
        let planned = match planned {
            Ok(planned) => planned.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
            Err(_) => Err(Failure::unreachable("cannot resolve the master's host name")
                .tried(settings.describe("master_server_address"))
                .found("the resolver is not responding")
                .next("pass the master's IP address with --master, or fix name resolution on this host")),
        };
        match planned {
            Err(failure) if failure.exit == Exit::Unreachable && waited < max_wait => {
                if !warned {
                    tracing::warn!(found = failure.found, ?max_wait, "{}; retrying", failure.what);
                    warned = true;
                }
                let pause = RETRY.min(max_wait - waited);
                env.sleep(pause).await;
                waited += pause;
            }
            Err(failure) if failure.exit == Exit::Unreachable => {
                let next = failure.next.clone().unwrap_or_default();
                return Err(failure.next(format!("{next}, or set a longer --max-wait-time")));
            }
            Err(failure) => return Err(failure),
            Ok(mut plan) => {
                plan.config.node.client.wait_at_most(max_wait, waited);
                return Ok(plan);
            }
        }
    }
}

/// Warns if this host cannot resolve the node's own name, which other nodes use to connect with P2PHANDSHAKE. It is only a warning,
/// because other hosts may be able to resolve the name. The node does not wait for the resolver.
fn warn_of_unknown_name(client: &ClientConfig) {
    let Ok((host, _)) = HostPort::split(&client.local_hostname) else { return };
    if client.engine.metadata != MetadataUri::P2p {
        return;
    }
    tokio::task::spawn_blocking(move || {
        let Err(error) = interface::resolve(&host) else { return };
        tracing::warn!(
            "cannot resolve the node's own name '{host}' ({error}); if other hosts cannot resolve it, they cannot access this node's \
             memory: set --local-hostname (or MOONCAKE_LOCAL_HOSTNAME) to a name or address that they can reach"
        );
    });
}

fn max_wait(settings: &Settings) -> Duration {
    Duration::from_secs_f64(settings.number("max_wait_time"))
}

/// Minimum timeout for the resolver.
const RESOLVE_MIN: Duration = Duration::from_secs(3);
/// Delay between attempts to resolve a name.
const RETRY: Duration = Duration::from_millis(500);

/// Threads for REST, heartbeats and handshakes. The transfer engine has its own threads.
const THREADS_MAX: usize = 4;

/// The configuration from `settings`. `address_towards` returns this host's address on the route to a master.
fn plan(
    settings: &Settings,
    address_towards: impl Fn(&HostPort) -> io::Result<Option<IpAddr>>,
) -> Result<ServicePlan, Failure> {
    let master_origin = settings.describe("master_server_address");
    let master = match settings.text("master_server_address") {
        "" => {
            return Err(Failure::usage("no master address specified")
                .tried("--master, master_server_address in the configuration file, and MOONCAKE_MASTER")
                .next("pass --master HOST:PORT"));
        }
        text => master_target::address(text, &master_origin, master_target::RPC_PORT)?,
    };
    let text = |name: &str| settings.described(name, settings.text(name).to_owned());
    let env = |name: &str| std::env::var(name).ok();
    let metadata = node_failure::metadata(text("metadata_server"))?.value;
    let fallback = settings.bool("allow_tcp_fallback");
    let transport = TransportChoice::new(text("protocol"), settings.text("device_name"), fallback, env)?;
    let given = settings.text("local_hostname").trim();
    let given = (!given.is_empty()).then_some(given);
    let local_hostname = service::local_hostname(given, &master, &metadata, address_towards)
        .map_err(|error| node_failure::hostname(&error, &text("local_hostname").origin))?;
    let listen = |what, port| ListenAddress {
        what,
        at: HostPort::new(settings.text("host"), settings.whole(port)),
        origin: settings.describe(port),
        host_origin: settings.describe("host"),
    };
    let client_http =
        settings.bool("enable_client_http_server").then(|| listen("the client HTTP server", "client_http_port"));
    let rest = listen("the REST port", "port");
    let described = |name: &str| ValueOrigin::Described(settings.describe(name));
    let origins = NodeOrigins {
        client: ClientOrigins { master: ValueOrigin::Described(master_origin), transport: transport.origin },
        segment: described("global_segment_size"),
        local_buffer: described("local_buffer_size"),
    };
    let mut client = StoreClient::builder(master)
        .metadata(metadata)
        .local_hostname(local_hostname)
        .local_buffer(settings.size("local_buffer_size"))
        .transport(transport.value.protocol, transport.value.options)
        .config();
    client.metrics = client_http.as_ref().and_then(|_| client_metrics(&env));
    let warnings = client.apply_variables(&env);
    client.wait_at_most(max_wait(settings), Duration::ZERO);
    let config = StoreServiceConfig {
        node: NodeConfig { client, segment_bytes: settings.size("global_segment_size") },
        rest: rest.at.clone(),
        client_http: client_http.as_ref().map(|listen| listen.at.clone()),
    };
    Ok(ServicePlan { config, origins, rest, client_http, warnings })
}

/// Metrics for the node's client; `None` with `MC_STORE_CLIENT_METRIC=0`.
fn client_metrics(env: &impl Fn(&str) -> Option<String>) -> Option<Arc<ClientMetrics>> {
    let switch = env("MC_STORE_CLIENT_METRIC");
    let is_on = switch.is_none_or(|text| parse_bool(&text) != Some(false));
    is_on.then(|| Arc::new(ClientMetrics::new(env("MC_STORE_CLUSTER_ID").as_deref())))
}

/// The settings and their warnings. Flags and -D override the file or, without a file, the environment. Like upstream, a file and the
/// environment are never combined. Warnings name unknown keys and the variables that are ignored because of a file.
fn settings(parsed: &ParsedFlags, env: &impl Fn(&str) -> Option<String>) -> Result<(Settings, Vec<String>), Failure> {
    let flags = settings_of(&store_flags::TABLE, parsed)?;
    let file = match flags.text("config") {
        "" => env("MOONCAKE_CONFIG_PATH").filter(|path| !path.is_empty()).map(|path| (path, "MOONCAKE_CONFIG_PATH")),
        path => Some((path.to_owned(), "--config")),
    };
    let variables = from_env(env);
    let mut settings = Settings::new(&store_flags::TABLE);
    let mut unknown = Vec::new();
    let mut warnings = Vec::new();
    match file {
        Some((path, origin)) => {
            let file = from_file(Path::new(&path), origin)?;
            settings.assign_all(&file.assignments)?;
            unknown.extend(file.unknown);
            if !variables.is_empty() {
                let names: Vec<_> = variables.iter().filter_map(|given| given.flag.env).collect();
                warnings.push(format!(
                    "{} ignored, because {origin} specifies a configuration file ({path})",
                    names.join(", ")
                ));
            }
        }
        None => settings.assign_all(&variables)?,
    }
    settings.assign_all(&parsed.assignments)?;
    unknown.extend(parsed.unknown_defines.iter().cloned());
    warnings.extend(unknown_key::settle(&unknown, flags.bool("strict_config"))?);
    Ok((settings, warnings))
}

fn from_env(env: &impl Fn(&str) -> Option<String>) -> Vec<Assignment> {
    let is_store = |flag: &&crate::commands::flags::FlagSpec| {
        !matches!(flag.key, FileKey::None(_)) && flag.kind != ValueKind::Define
    };
    let given = |flag: &'static crate::commands::flags::FlagSpec| {
        let name = flag.env?;
        // An empty variable is treated as unset: upstream's manifests set MOONCAKE_DEVICE="".
        let text = env(name).filter(|text| !text.is_empty())?;
        Some(Assignment { flag, text, origin: ValueOrigin::Env(name.to_owned()) })
    };
    store_flags::TABLE.flags().filter(is_store).filter_map(given).collect()
}

/// Reads a configuration file. Like upstream's store service, it reads a file with an unknown extension as JSON.
fn from_file(path: &Path, origin: &str) -> Result<ConfigFile, Failure> {
    let text = read_text(path, origin, CONFIG_BYTES_MAX)?;
    let known = path.extension().and_then(|ending| ending.to_str());
    let ending = known.filter(|ending| ["yaml", "yml", "json"].contains(ending)).unwrap_or("json");
    config_file::parse_as(&store_flags::TABLE, path, ending, &text, Typing::Loose)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::gflags;
    use crate::commands::settings::read_text;

    struct FileSources;

    impl gflags::FlagSources for FileSources {
        fn read(&self, path: &Path) -> Result<String, Failure> {
            read_text(path, "--flagfile", 1 << 10)
        }

        fn env(&self, _: &str) -> Option<String> {
            None
        }
    }

    fn settle(args: &[&str], env: &[(&str, &str)]) -> Result<(Settings, Vec<String>), Failure> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let parsed = gflags::parse(&store_flags::TABLE, &args, &FileSources)?;
        let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        settings(&parsed, &lookup)
    }

    #[test]
    fn flags_override_the_environment() {
        let env = [("MOONCAKE_MASTER", "m:1"), ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "16Gi"), ("MOONCAKE_DEVICE", "")];
        let (settings, ignored) = settle(&["--master", "n:2"], &env).expect("well formed");
        assert_eq!(settings.describe("master_server_address"), "--master-server-address n:2 (command line)");
        assert_eq!(
            settings.describe("global_segment_size"),
            "--global-segment-size 16 GiB (environment variable MOONCAKE_GLOBAL_SEGMENT_SIZE)"
        );
        assert_eq!(ignored, [""; 0]);
    }

    #[test]
    fn a_file_replaces_the_environment_with_a_warning() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("store.conf");
        std::fs::write(&path, r#"{"local_hostname": "h", "global_segment_size": "1gb"}"#).expect("written");
        let path = path.to_str().expect("text");
        for (args, env) in [
            (vec!["--config", path], vec![("MOONCAKE_MASTER", "m:1")]),
            (vec![], vec![("MOONCAKE_CONFIG_PATH", path), ("MOONCAKE_MASTER", "m:1")]),
        ] {
            let (settings, ignored) = settle(&args, &env).expect("well formed");
            assert_eq!((settings.text("local_hostname"), settings.text("master_server_address")), ("h", ""));
            assert!(ignored[0].starts_with("MOONCAKE_MASTER ignored"), "{ignored:?}");
        }
    }

    #[test]
    fn an_error_names_the_file_as_given() {
        let error = settle(&["--config", "/dev/null"], &[]).expect_err("an empty file");
        assert!(error.what.starts_with("/dev/null "), "{error}");
    }

    #[test]
    fn unknown_keys_are_warnings_or_with_strict_config_errors() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("store.json");
        std::fs::write(&path, r#"{"segment_siez": "1gb", "global_segment_size": "2gb"}"#).expect("written");
        let path = path.to_str().expect("text");
        let (settings, warnings) = settle(&["--config", path, "-Dnope=1"], &[]).expect("only warnings");
        assert_eq!(settings.size("global_segment_size").0, 2 << 30);
        assert!(warnings[0].contains("'segment_siez'") && warnings[1].contains("'nope'"), "{warnings:?}");
        for args in [["--strict-config", "--config", path], ["--strict-config", "-Dnope=1", "-Dprotocol=tcp"]] {
            let error = settle(&args, &[]).expect_err("strict");
            assert_eq!(error.exit, Exit::Usage, "{error}");
        }
    }

    #[test]
    fn client_metrics_are_on_unless_the_variable_disables_them() {
        for (value, counted) in [(None, true), (Some("1"), true), (Some("0"), false), (Some("false"), false)] {
            let env = |name: &str| value.filter(|_| name == "MC_STORE_CLIENT_METRIC").map(str::to_owned);
            assert_eq!(client_metrics(&env).is_some(), counted, "{value:?}");
        }
    }

    #[test]
    fn a_define_and_a_flag_are_applied_in_order() {
        let (settings, _) = settle(&["-Dglobal_segment_size=32mb", "--segment-size=1gb"], &[]).expect("well formed");
        assert_eq!(settings.size("global_segment_size").0, 1 << 30);
        let (settings, _) = settle(&["--segment-size=1gb", "-Dglobal_segment_size=32mb"], &[]).expect("well formed");
        assert_eq!(settings.size("global_segment_size").0, 32 << 20);
    }

    #[test]
    fn an_ill_typed_variable_is_named() {
        let error = settle(&[], &[("MOONCAKE_GLOBAL_SEGMENT_SIZE", "lots")]).expect_err("no size");
        assert!(error.exit == Exit::Usage && error.what.starts_with("MOONCAKE_GLOBAL_SEGMENT_SIZE is 'lots'"));
    }

    fn planned(args: &[&str]) -> Result<ServicePlan, Failure> {
        settle(args, &[]).and_then(|(settings, _)| plan(&settings, |_| Ok(Some(IpAddr::from([10, 0, 0, 7])))))
    }

    fn name(args: &[&str]) -> Option<String> {
        planned(args).map(|plan| plan.config.node.client.local_hostname).ok()
    }

    #[test]
    fn the_default_name_is_the_address_towards_the_master() {
        assert_eq!(name(&["--master=127.0.0.1:50051"]).as_deref(), Some("localhost"));
        assert_eq!(name(&["--master=10.0.0.1:50051"]).as_deref(), Some("10.0.0.7"));
        assert_eq!(name(&["--master=10.0.0.1:50051", "--local-hostname=node-7"]).as_deref(), Some("node-7"));
    }

    #[test]
    fn time_spent_resolving_counts_towards_the_wait() {
        let (settings, _) = settle(&["--master=127.0.0.1:50051", "--max-wait-time=7"], &[]).expect("well formed");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(plan_in_time(settings)).expect("an address").config.node.client;
        assert_eq!(client.max_wait, Duration::from_secs(7));
        assert!(client.waited > Duration::ZERO, "starting and joining a thread takes time");
    }

    #[test]
    fn a_name_that_other_hosts_cannot_reach_is_refused() {
        for hostname in ["localhost", "127.0.0.1:7", "0.0.0.0"] {
            let failure = planned(&["--master=10.0.0.1:1", &format!("--local-hostname={hostname}")]);
            let failure = failure.expect_err(hostname);
            assert!(failure.exit == Exit::Usage && failure.what.contains(&format!("'{hostname}'")), "{failure}");
        }
        // With an HTTP metadata service, the name is only a key.
        let http = "--metadata-server=http://10.0.0.1:8080/metadata";
        let named = name(&["--master=10.0.0.1:1", "--local-hostname=localhost", http]);
        assert_eq!(named.as_deref(), Some("localhost"));
    }

    #[test]
    fn unsupported_and_missing_settings_are_refused() {
        let lines: String = [
            &[][..],
            &["--master=etcd://h:1"],
            &["--master=m", "--protocol=quic"],
            &["--master=m", "--metadata-server=etcd://h:1"],
            &["--master=10.0.0.1:1", "--local-hostname=localhost"],
            &["--master=10.0.0.1:1", "--local-hostname=0.0.0.0"],
        ]
        .iter()
        .map(|args| planned(args).expect_err("refused").line())
        .collect();
        insta::assert_snapshot!(lines);
    }
}
