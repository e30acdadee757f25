//! `mcctl serve store`: mooncake_store_service's flags, JSON keys and environment to a store node with its REST port.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::commands::config_file::{self, CONFIG_BYTES_MAX, ConfigFile, Typing};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::flags::{Key, Kind, parse_bool};
use crate::commands::gflags::Parsed;
use crate::commands::listen::Listen;
use crate::commands::logging;
use crate::commands::runtime::{self, Signals};
use crate::commands::serve::node::{self, NodePlan, NodePorts, RunningNode};
use crate::commands::serve::{settings_of, start_logging, store_flags};
use crate::commands::settings::{Assignment, Origin, Settings, read_text};
use crate::commands::target;
use crate::commands::transport::Transport;
use crate::commands::unknown_key;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::env::{Env, RealEnv, deadline, processors};
use crate::engine::metadata::MetadataUri;
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::sys::interface;

/// Run a store node until a signal ends it.
///
/// # Errors
/// What the user has to know.
pub fn run(parsed: &Parsed, log: &logging::Options) -> Outcome {
    let env = |name: &str| std::env::var(name).ok();
    let (settings, warnings) = settings(parsed, &env)?;
    start_logging(&settings, log, None)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    runtime::block_on(processors().min(THREADS_MAX), async {
        let mut signals = Signals::take_for_service()?;
        let (plan, ports) = tokio::select! {
            planned = plan_in_time(settings) => planned?,
            signal = signals.next() => {
                tracing::info!("{signal}: stopping before the node was ready");
                return Ok(Exit::Done);
            }
        };
        node::check_ports(&plan, &ports)?;
        warn_of_unknown_name(&plan);
        let stop = async {
            let signal = signals.next().await;
            tracing::info!("{signal}: stopping before the node was ready");
        };
        let Some(node) = RunningNode::start(&plan, &ports, stop).await? else { return Ok(Exit::Done) };
        let lent =
            node.node.segment().map_or_else(|| "no memory".to_owned(), |segment| ByteSize(segment.size).to_string());
        tracing::info!(
            "Store service started successfully on {}: lends {lent} to the master at {}",
            node.node.name(),
            plan.master
        );
        tracing::info!("REST API started on port {}: http://{}", node.rest_at().port, node.rest_at());
        if let Some(at) = node.client_http_at() {
            tracing::info!("client HTTP server started on port {}: http://{at}", at.port);
        }
        let signal = signals.next().await;
        tracing::info!("{signal}: stopping");
        runtime::stop_in_time("the node", node.stop()).await;
        Ok(Exit::Done)
    })
}

/// What `settings` mean, once the master's name can be resolved if this node's own name hangs on that: in a cluster that has just
/// started, names come later. They are waited for as the master itself is, and together with it no longer.
async fn plan_in_time(settings: Settings) -> Result<(NodePlan, NodePorts), Failure> {
    let (env, settings) = (RealEnv::new(), Arc::new(settings));
    let began = env.now();
    let mut told = false;
    loop {
        let (mine, max_wait) = (Arc::clone(&settings), max_wait(&settings));
        // The resolver blocks, and knows no deadline of ours.
        let planning = tokio::task::spawn_blocking(move || {
            plan(&mine, |master| interface::address_towards(&master.host, master.port))
        });
        let left = max_wait.saturating_sub(env.now().since(began)).max(RESOLVE_MIN);
        let planned = match deadline(&env, left, planning).await {
            Ok(planned) => planned.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
            Err(_) => Err(Failure::unreachable("cannot reach the master: its name is not resolved")
                .tried(settings.describe("master_server_address"))
                .found("the resolver does not answer")
                .next("give its address as --master, or see why this host cannot resolve the name")),
        };
        let waited = env.now().since(began);
        match planned {
            Err(failure) if failure.exit == Exit::Unreachable && waited < max_wait => {
                if !told {
                    tracing::warn!(found = failure.found, ?max_wait, "{}; waiting for it", failure.what);
                    told = true;
                }
                env.sleep(RETRY.min(max_wait - waited)).await;
            }
            Err(failure) if failure.exit == Exit::Unreachable => {
                let next = failure.next.clone().unwrap_or_default();
                return Err(failure.next(format!("{next}, or wait longer with --max-wait-time")));
            }
            Err(failure) => return Err(failure),
            Ok((plan, ports)) => return Ok((NodePlan { waited, ..plan }, ports)),
        }
    }
}

/// With P2PHANDSHAKE others call the node by its name. That this host does not know it may only mean that others know more. Nobody
/// waits for the resolver.
fn warn_of_unknown_name(plan: &NodePlan) {
    let Ok((host, _)) = HostPort::split(&plan.local_hostname) else { return };
    if plan.metadata != MetadataUri::P2p {
        return;
    }
    tokio::task::spawn_blocking(move || {
        let Err(error) = interface::resolve(&host) else { return };
        tracing::warn!(
            "this host cannot resolve the node's own name '{host}' ({error}): if other hosts cannot, either, every read and write of \
             this node's memory fails; give --local-hostname (or MOONCAKE_LOCAL_HOSTNAME) a name or address that they can call"
        );
    });
}

fn max_wait(settings: &Settings) -> Duration {
    Duration::from_secs_f64(settings.number("max_wait_time"))
}

/// What a resolver that is well may take.
const RESOLVE_MIN: Duration = Duration::from_secs(3);
/// Time between two tries to resolve a name.
const RETRY: Duration = Duration::from_millis(500);

/// Threads for REST, heartbeats and handshakes; bytes are moved by others.
const THREADS_MAX: usize = 4;

/// What `settings` mean on a host that uses `address_towards` a master.
fn plan(
    settings: &Settings,
    address_towards: impl Fn(&HostPort) -> io::Result<Option<IpAddr>>,
) -> Result<(NodePlan, NodePorts), Failure> {
    let master_origin = settings.describe("master_server_address");
    let master = match settings.text("master_server_address") {
        "" => {
            return Err(Failure::usage("no master is named")
                .tried("--master, master_server_address in the configuration file, and MOONCAKE_MASTER")
                .next("give --master HOST:PORT"));
        }
        text => target::address(text, &master_origin, target::RPC_PORT)?,
    };
    let metadata = node::metadata(settings.text("metadata_server"), settings.describe("metadata_server"))?;
    let devices = settings.text("device_name");
    let transport = Transport::new(
        settings.text("protocol"),
        settings.describe("protocol"),
        devices,
        settings.bool("allow_tcp_fallback"),
        |name| std::env::var(name).ok(),
    )?;
    let given = settings.text("local_hostname").trim();
    let given = (!given.is_empty()).then(|| (given, settings.describe("local_hostname")));
    let listen = |what, port| Listen {
        what,
        at: HostPort::new(settings.text("host"), settings.whole(port)),
        origin: settings.describe(port),
        host_origin: settings.describe("host"),
    };
    let client_http =
        settings.bool("enable_client_http_server").then(|| listen("the client HTTP server", "client_http_port"));
    let metrics = client_http.as_ref().and_then(|_| client_metrics(&|name| std::env::var(name).ok()));
    let plan = NodePlan {
        local_hostname: node::local_hostname(given, &master, &metadata, address_towards)?,
        master,
        master_origin,
        metadata,
        segment: settings.size("global_segment_size"),
        segment_origin: settings.describe("global_segment_size"),
        local_buffer: settings.size("local_buffer_size"),
        local_buffer_origin: settings.describe("local_buffer_size"),
        transport,
        announce_host: None,
        max_wait: max_wait(settings),
        waited: Duration::ZERO,
        metrics,
    };
    Ok((plan, NodePorts { rest: listen("the REST port", "port"), client_http }))
}

/// Where the use of the node's client is counted; nowhere with `MC_STORE_CLIENT_METRIC=0`.
fn client_metrics(env: &impl Fn(&str) -> Option<String>) -> Option<Arc<ClientMetrics>> {
    let switch = env("MC_STORE_CLIENT_METRIC");
    let is_on = switch.is_none_or(|text| parse_bool(&text) != Some(false));
    is_on.then(|| Arc::new(ClientMetrics::new(env("MC_STORE_CLUSTER_ID").as_deref())))
}

/// Flags and -D over a file or, when there is none, the environment, over defaults. The file and the environment are never mixed,
/// as in the original. Warnings name variables that a file displaces, and unknown keys.
fn settings(parsed: &Parsed, env: &impl Fn(&str) -> Option<String>) -> Result<(Settings, Vec<String>), Failure> {
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
                warnings.push(format!("{} not used: {origin} names a file ({path})", names.join(", ")));
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
    let is_store =
        |flag: &&crate::commands::flags::Flag| !matches!(flag.key, Key::None(_)) && flag.kind != Kind::Define;
    let given = |flag: &'static crate::commands::flags::Flag| {
        let name = flag.env?;
        // An empty variable is as good as none, except that upstream's manifests set MOONCAKE_DEVICE="".
        let text = env(name).filter(|text| !text.is_empty())?;
        Some(Assignment { flag, text, origin: Origin::Env(name.to_owned()) })
    };
    store_flags::TABLE.flags().filter(is_store).filter_map(given).collect()
}

/// The store service reads JSON whatever the file is called.
fn from_file(path: &Path, origin: &str) -> Result<ConfigFile, Failure> {
    let text = read_text(path, origin, CONFIG_BYTES_MAX)?;
    let known = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml" || ending == "json");
    let named: PathBuf = if known { path.to_owned() } else { path.with_added_extension("json") };
    config_file::parse(&store_flags::TABLE, &named, &text, Typing::Loose)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::gflags;
    use crate::commands::settings::read_text;

    struct NoWorld;

    impl gflags::World for NoWorld {
        fn read(&self, path: &Path) -> Result<String, Failure> {
            read_text(path, "--flagfile", 1 << 10)
        }

        fn env(&self, _: &str) -> Option<String> {
            None
        }
    }

    fn settle(args: &[&str], env: &[(&str, &str)]) -> Result<(Settings, Vec<String>), Failure> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let parsed = gflags::parse(&store_flags::TABLE, &args, &NoWorld)?;
        let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        settings(&parsed, &lookup)
    }

    #[test]
    fn flags_are_stronger_than_the_environment() {
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
    fn a_file_replaces_the_environment_and_a_note_says_so() {
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
            assert!(ignored[0].starts_with("MOONCAKE_MASTER not used"), "{ignored:?}");
        }
    }

    #[test]
    fn unknown_keys_are_warnings_and_errors_with_strict_config() {
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
    fn client_metrics_are_counted_unless_the_variable_disables_them() {
        for (value, counted) in [(None, true), (Some("1"), true), (Some("0"), false), (Some("false"), false)] {
            let env = |name: &str| value.filter(|_| name == "MC_STORE_CLIENT_METRIC").map(str::to_owned);
            assert_eq!(client_metrics(&env).is_some(), counted, "{value:?}");
        }
    }

    #[test]
    fn a_define_and_a_flag_count_in_their_order() {
        let (settings, _) = settle(&["-Dglobal_segment_size=32mb", "--segment-size=1gb"], &[]).expect("well formed");
        assert_eq!(settings.size("global_segment_size").0, 1 << 30);
        let (settings, _) = settle(&["--segment-size=1gb", "-Dglobal_segment_size=32mb"], &[]).expect("well formed");
        assert_eq!(settings.size("global_segment_size").0, 32 << 20);
    }

    #[test]
    fn an_ill_typed_variable_is_named() {
        let error = settle(&[], &[("MOONCAKE_GLOBAL_SEGMENT_SIZE", "lots")]).expect_err("no size");
        assert!(error.what.starts_with("MOONCAKE_GLOBAL_SEGMENT_SIZE is 'lots', but a size"));
    }

    fn planned(args: &[&str]) -> Result<NodePlan, Failure> {
        settle(args, &[])
            .and_then(|(settings, _)| plan(&settings, |_| Ok(Some(IpAddr::from([10, 0, 0, 7])))))
            .map(|(plan, _)| plan)
    }

    fn name(args: &[&str]) -> Result<String, String> {
        planned(args).map(|plan| plan.local_hostname).map_err(|failure| failure.what)
    }

    #[test]
    fn a_node_without_a_name_takes_one_that_its_master_can_reach() {
        assert_eq!(name(&["--master=127.0.0.1:50051"]), Ok("localhost".to_owned()));
        assert_eq!(name(&["--master=10.0.0.1:50051"]), Ok("10.0.0.7".to_owned()));
        assert_eq!(name(&["--master=10.0.0.1:50051", "--local-hostname=node-7"]), Ok("node-7".to_owned()));
    }

    #[test]
    fn what_resolving_takes_is_kept_even_if_nobody_was_told_to_wait() {
        let (settings, _) = settle(&["--master=127.0.0.1:50051", "--max-wait-time=7"], &[]).expect("well formed");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (plan, _) = runtime.block_on(plan_in_time(settings)).expect("an address");
        assert_eq!(plan.max_wait, Duration::from_secs(7));
        assert!(plan.waited > Duration::ZERO, "a thread was started and waited for");
    }

    #[test]
    fn a_name_that_other_hosts_cannot_call_is_refused() {
        let refused = |name: &str| Err(format!("other hosts cannot reach this node as '{name}'"));
        assert_eq!(name(&["--master=10.0.0.1:1", "--local-hostname=localhost"]), refused("localhost"));
        assert_eq!(name(&["--master=10.0.0.1:1", "--local-hostname=127.0.0.1:7"]), refused("127.0.0.1:7"));
        assert_eq!(name(&["--master=10.0.0.1:1", "--local-hostname=0.0.0.0"]), refused("0.0.0.0"));
        // With an HTTP metadata service the name is only a key.
        let http = "--metadata-server=http://10.0.0.1:8080/metadata";
        assert_eq!(name(&["--master=10.0.0.1:1", "--local-hostname=localhost", http]), Ok("localhost".to_owned()));
    }

    #[test]
    fn what_a_node_cannot_do_without_or_with_is_refused() {
        for (args, what) in [
            (&[][..], "no master is named"),
            (
                &["--master=etcd://h:1"],
                "--master-server-address etcd://h:1 (command line): etcd:// (a master found through etcd) is not there yet",
            ),
            (&["--master=m", "--protocol=quic"], "'quic' is no protocol that this release speaks"),
            (&["--master=m", "--metadata-server=etcd://h:1"], "the metadata service cannot be used"),
        ] {
            assert_eq!(planned(args).expect_err(what).what, what);
        }
    }
}
