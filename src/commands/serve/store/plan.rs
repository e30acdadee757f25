//! The configuration of a store node from its settings, and the checks before it starts.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::commands::cli::error::{Exit, Failure};
use crate::commands::cli::flags::parse_bool;
use crate::commands::cli::listen::{ListenAddress, check_collisions};
use crate::commands::cli::origin::{ClientOrigins, NodeOrigins, ValueOrigin};
use crate::commands::cli::settings::Settings;
use crate::commands::failure::node as node_failure;
use crate::commands::serve::access_plan::AccessPlan;
use crate::commands::target::etcd_master::{self, ClusterLeader};
use crate::commands::target::master_target;
use crate::commands::target::shared_memory;
use crate::commands::target::transport::TransportChoice;
use crate::engine::base::HostPort;
use crate::engine::base::time::RoundedDuration;
use crate::engine::env::{Env, RealEnv, deadline, timed};
use crate::engine::metadata::MetadataUri;
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::store::service::StoreServiceConfig;
use crate::engine::store::{ClientConfig, NodeConfig, OnCorruption, StoreClient, service};
use crate::engine::sys::interface;
use crate::engine::transfer::SharedMemorySettings;

/// A store service's configuration, and what its errors name.
#[derive(Debug)]
pub(super) struct ServicePlan {
    pub config: StoreServiceConfig,
    pub origins: NodeOrigins,
    pub rest: ListenAddress,
    pub client_http: Option<ListenAddress>,
    /// Who may connect to the ports, and who may send which HTTP request.
    pub access: AccessPlan,
    /// Warnings about environment variables that do not parse.
    pub warnings: Vec<String>,
}

impl ServicePlan {
    /// Checks that the HTTP ports differ from each other and from a fixed handshake port
    /// (`MC_LEGACY_RPC_PORT_BINDING`).
    ///
    /// # Errors
    /// Two ports are the same.
    pub(super) fn check_ports(&self) -> Result<(), Failure> {
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

/// Minimum timeout for the resolver.
const RESOLVE_MIN: Duration = Duration::from_secs(3);

/// Delay between attempts to resolve a name.
const RETRY: Duration = Duration::from_millis(500);

/// The configuration from `settings`. If the node's name depends on the master's address, name
/// resolution is retried until it succeeds: in a cluster that has just started, DNS records may
/// appear late. The time spent on retries counts toward the maximum wait for the master.
pub(super) async fn plan_in_time(settings: Settings) -> Result<ServicePlan, Failure> {
    let env = RealEnv::new();
    let settings = Arc::new(settings);
    let mut waited = Duration::ZERO;
    let mut warned = false;
    loop {
        let shared = Arc::clone(&settings);
        let max_wait = max_wait(&settings);
        let left = max_wait.saturating_sub(waited).max(RESOLVE_MIN);
        let (leader, took) = timed(&env, leader(&settings, left)).await;
        waited += took;
        // The resolver blocks without a time limit.
        let planning = tokio::task::spawn_blocking(move || {
            plan(&shared, leader?, |master| interface::address_towards(&master.host, master.port))
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
                    tracing::warn!(found = failure.found, max_wait = %RoundedDuration(max_wait), "{}; retrying", failure.what);
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

/// Warns if this host cannot resolve the node's own name, which other nodes use to connect with
/// P2PHANDSHAKE. It is only a warning, because other hosts may be able to resolve the name. The
/// node does not wait for the resolver.
pub(super) fn warn_of_unknown_name(client: &ClientConfig) {
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

/// The leader, if the master's address names etcd. Waits for one at most for `limit`.
async fn leader(settings: &Settings, limit: Duration) -> Result<Option<ClusterLeader>, Failure> {
    match settings.text("master_server_address") {
        text if etcd_master::is_etcd(text) => {
            etcd_master::find(text, &settings.describe("master_server_address"), limit).await.map(Some)
        }
        _ => Ok(None),
    }
}

/// The configuration from `settings`, for the master at their address or for this leader.
/// `address_towards` returns this host's address on the route to a master.
fn plan(
    settings: &Settings,
    leader: Option<ClusterLeader>,
    address_towards: impl Fn(&HostPort) -> io::Result<Option<IpAddr>>,
) -> Result<ServicePlan, Failure> {
    let master_origin = settings.describe("master_server_address");
    let master = match (&leader, settings.text("master_server_address")) {
        (Some(leader), _) => leader.at.clone(),
        (None, "") => {
            return Err(Failure::usage("no master address specified")
                .tried("--master, master_server_address in the configuration file, and MOONCAKE_MASTER")
                .next("pass --master HOST:PORT"));
        }
        (None, text) => master_target::address(text, &master_origin, master_target::RPC_PORT)?,
    };
    let text = |name: &str| settings.described(name, settings.text(name).to_owned());
    let env = |name: &str| std::env::var(name).ok();
    let metadata = node_failure::metadata(text("metadata_server"))?.value;
    let fallback = settings.bool("allow_tcp_fallback");
    let transport = TransportChoice::new(text("protocol"), settings.text("device_name"), fallback, env)?;
    let access = AccessPlan::of(settings)?;
    // Peers reach the node at the address that its ports listen on.
    let bound = access.bind.filter(|address| !address.is_unspecified()).map(|address| address.to_string());
    let given = settings.text("local_hostname").trim();
    let given = (!given.is_empty()).then_some(given).or(bound.as_deref());
    let local_hostname = service::local_hostname(given, &master, &metadata, address_towards)
        .map_err(|error| node_failure::hostname(&error, &text("local_hostname").origin))?;
    let (host, host_origin) = access.host(settings, "host");
    let listen = |what, port| ListenAddress {
        what,
        at: HostPort::new(host.clone(), settings.whole(port)),
        origin: settings.describe(port),
        host_origin: host_origin.clone(),
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
        .leader(leader.map(|leader| leader.followed))
        .metadata(metadata)
        .local_hostname(local_hostname)
        .local_buffer(settings.size("local_buffer_size"))
        .transport(transport.value.protocol, transport.value.options)
        .config();
    client.metrics = client_http.as_ref().and_then(|_| client_metrics(&env));
    if env("MC_TCP_BIND_ADDRESS").is_none_or(|text| text.is_empty()) {
        client.engine.announce_host = bound;
    }
    let warnings = client.apply_variables(&env);
    client.on_corruption = settings.text("on_corruption").parse::<OnCorruption>().unwrap_or_default();
    client.engine.settings.listen_on = access.bind;
    client.engine.settings.shared_memory = SharedMemorySettings {
        enabled: settings.bool("shared_memory"),
        directory: SharedMemorySettings::directory_from(settings.text("shared_memory_socket")),
    };
    shared_memory::check(&client.engine.settings.shared_memory, &settings.describe("shared_memory_socket"))?;
    client.engine.settings.credentials = access.credentials.clone();
    client.wait_at_most(max_wait(settings), Duration::ZERO);
    let config = StoreServiceConfig {
        node: NodeConfig { client, segment_bytes: settings.size("global_segment_size") },
        rest: rest.at.clone(),
        client_http: client_http.as_ref().map(|listen| listen.at.clone()),
        access: access.main_http(),
    };
    Ok(ServicePlan { config, origins, rest, client_http, access, warnings })
}

/// Metrics for the node's client; `None` with `MC_STORE_CLIENT_METRIC=0`.
fn client_metrics(env: &impl Fn(&str) -> Option<String>) -> Option<Arc<ClientMetrics>> {
    let switch = env("MC_STORE_CLIENT_METRIC");
    let is_on = switch.is_none_or(|text| parse_bool(&text) != Some(false));
    is_on.then(|| Arc::new(ClientMetrics::new(env("MC_STORE_CLUSTER_ID").as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::serve::store::settings::tests::settle;

    fn planned(args: &[&str]) -> Result<ServicePlan, Failure> {
        settle(args, &[]).and_then(|(settings, _)| plan(&settings, None, |_| Ok(Some(IpAddr::from([10, 0, 0, 7])))))
    }

    fn name(args: &[&str]) -> Option<String> {
        planned(args).map(|plan| plan.config.node.client.local_hostname).ok()
    }

    #[test]
    fn client_metrics_are_on_unless_the_variable_disables_them() {
        for (value, counted) in [(None, true), (Some("1"), true), (Some("0"), false), (Some("false"), false)] {
            let env = |name: &str| value.filter(|_| name == "MC_STORE_CLIENT_METRIC").map(str::to_owned);
            assert_eq!(client_metrics(&env).is_some(), counted, "{value:?}");
        }
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
    fn bind_applies_to_all_ports_and_to_the_name() {
        let plan = planned(&["--master=10.0.0.1:50051", "--bind=10.0.0.5", "--enable-client-http-server"]);
        let plan = plan.expect("an address");
        let client = &plan.config.node.client;
        assert_eq!((plan.rest.at.host.as_str(), client.local_hostname.as_str()), ("10.0.0.5", "10.0.0.5"));
        assert_eq!(plan.client_http.expect("enabled").at.host, "10.0.0.5");
        assert_eq!(client.engine.settings.listen_on, Some(IpAddr::from([10, 0, 0, 5])));
        assert_eq!(client.engine.announce_host.as_deref(), Some("10.0.0.5"));
        let all = planned(&["--master=10.0.0.1:50051", "--bind=::", "--host=127.0.0.1"]).expect("an address");
        let client = &all.config.node.client;
        assert_eq!((all.rest.at.host.as_str(), client.local_hostname.as_str()), ("127.0.0.1", "10.0.0.7"));
        assert!(
            client.engine.settings.listen_on.is_some_and(|at| at.is_unspecified())
                && client.engine.announce_host.is_none()
        );
    }

    #[test]
    fn shared_memory_is_on_unless_a_flag_turns_it_off() {
        let shared = |args: &[&str]| {
            let plan = planned(&[&["--master=127.0.0.1:1"], args].concat()).expect("well formed");
            let client = plan.config.node.client;
            (client.engine.settings.shared_memory.clone(), client.memory_policy().private)
        };
        assert_eq!(shared(&[]), (SharedMemorySettings::default(), false));
        let off = SharedMemorySettings { enabled: false, directory: Some("/run/shared".into()) };
        assert_eq!(shared(&["--no-shared-memory", "--shared-memory-socket=/run/shared"]), (off, true));
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
            &["--master=redis://h:1"],
            &["--master=m", "--protocol=quic"],
            &["--master=m", "--metadata-server=redis://h:1"],
            &["--master=10.0.0.1:1", "--local-hostname=localhost"],
            &["--master=10.0.0.1:1", "--local-hostname=0.0.0.0"],
        ]
        .iter()
        .map(|args| planned(args).expect_err("refused").line())
        .collect();
        insta::assert_snapshot!(lines);
    }
}
