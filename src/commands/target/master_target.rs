//! The master that a command uses and the timeout for its calls: from flags, then the environment,
//! then defaults.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::commands::cli::args;
use crate::commands::cli::error::Failure;
use crate::commands::cli::time_flag::TimeParser;
use crate::commands::failure::admin::failure;
use crate::commands::target::credentials::CredentialArgs;
use crate::commands::target::etcd_master;
use crate::engine::admin::{self, AdminClient, AdminError};
use crate::engine::base::HostPort;
use crate::engine::base::text::masked_address;
use crate::engine::env::RealEnv;
use crate::engine::http::HttpCredentials;
use crate::engine::metadata::discovery;
use crate::engine::rpc::{CallError, ConnectionError, RpcClient, ServerAddress, Timeouts, master_calls};
use crate::engine::upstream::ports;
use crate::engine::wire::frame::FrameError;
use crate::engine::wire::{MasterCalls, Method};

/// A master's default RPC port.
pub const RPC_PORT: u16 = ports::MASTER_RPC;

/// Whether `error` means that this process or host has no file descriptors left. The peer is not at
/// fault in this case.
fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

/// Flags that select a master.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MasterArgs {
    /// Master RPC address, or etcd://HOST:PORT of a cluster of masters [default: 127.0.0.1:50051;
    /// environment: MOONCAKE_MASTER]
    #[arg(long, value_name = "HOST:PORT")]
    pub master: Option<String>,
    /// Master admin HTTP address [default: port 9003 on the master's host; environment:
    /// MOONCAKE_MASTER_METRICS_PORT]
    ///
    /// The default is used only if the admin port belongs to this master. The environment variable
    /// sets the port.
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Timeout for each call and for each object transfer
    ///
    /// The timeout applies to responses from the master, its admin HTTP endpoint and the metadata
    /// service. Listing keys may take longer, provided that at least 64 KiB arrives in each timeout
    /// interval.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = TimeParser::limit())]
    pub timeout: Duration,
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

/// A master and the origin of its address.
#[derive(Clone, Debug)]
pub struct MasterTarget {
    pub at: HostPort,
    /// With several masters: the one that leads, which is followed. `at` is where it was first.
    pub leader: Option<ServerAddress>,
    pub origin: String,
    /// Maximum wait for a response.
    pub timeout: Duration,
    /// What is shown to the master's HTTP ports.
    pub credentials: HttpCredentials,
    admin: HostPort,
    admin_origin: String,
    /// True if no admin address is set and the default admin port may belong to another master,
    /// because the RPC port is not the default.
    is_admin_unknown: bool,
}

impl MasterArgs {
    /// The master that these flags and the environment select.
    ///
    /// # Errors
    /// An address is invalid.
    pub fn resolve(&self) -> Result<MasterTarget, Failure> {
        self.resolve_with(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
    }

    /// The master that these flags and the environment select. If no admin address is set, the
    /// default admin port is used if it belongs to this master, see [`discovery::is_admin_of`].
    ///
    /// # Errors
    /// An address is invalid.
    pub async fn find(&self) -> Result<MasterTarget, Failure> {
        let mut master = match self.etcd_address() {
            None => self.resolve()?,
            Some((text, origin)) => {
                let leader = etcd_master::find(&text, &origin, self.timeout).await?;
                let origin = format!("the leader in {origin}");
                let found = self.resolve_leader(&text, &leader.at, |name| std::env::var(name).ok())?;
                MasterTarget { origin, leader: Some(leader.followed), ..found }
            }
        };
        if master.is_admin_unknown
            && discovery::is_admin_of(&master.admin, &master.at, master.timeout, &master.credentials).await
        {
            master.is_admin_unknown = false;
            master.admin_origin = format!("port {} belongs to the master at {}", admin::PORT, master.at);
        }
        Ok(master)
    }

    /// The address of etcd and its origin, if these flags or the environment name etcd.
    fn etcd_address(&self) -> Option<(String, String)> {
        let flag = self.master.clone().map(|text| (format!("--master {text}"), text));
        let variable = || std::env::var("MOONCAKE_MASTER").ok().map(|text| (format!("MOONCAKE_MASTER={text}"), text));
        let (origin, text) = flag.or_else(variable)?;
        etcd_master::is_etcd(&text).then_some((text, origin))
    }

    /// The leader at `at`, found through the address of etcd `text`. If the environment has the
    /// same address of etcd, its admin port is that of all masters of the cluster.
    fn resolve_leader(
        &self,
        text: &str,
        at: &HostPort,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<MasterTarget, Failure> {
        let found = MasterArgs { master: Some(at.to_string()), ..self.clone() };
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        found.resolve_with(|name| match (name, env(name)) {
            ("MOONCAKE_MASTER", Some(value)) if value == text => Some(at.to_string()),
            (_, value) => value,
        })
    }

    fn resolve_with(&self, env: impl Fn(&str) -> Option<String>) -> Result<MasterTarget, Failure> {
        let (text, origin) = match &self.master {
            Some(text) => (text.clone(), format!("--master {text}")),
            None => match env("MOONCAKE_MASTER") {
                Some(text) => (text.clone(), format!("MOONCAKE_MASTER={text}")),
                None => (format!("127.0.0.1:{RPC_PORT}"), "default address".to_owned()),
            },
        };
        let at = address(&text, &origin, RPC_PORT)?;
        // The environment's port belongs to the environment's master, not to a master selected by a
        // flag.
        let env_master = env("MOONCAKE_MASTER").unwrap_or_else(|| format!("127.0.0.1:{RPC_PORT}"));
        let is_env_master = args::endpoint(&env_master, RPC_PORT).is_ok_and(|master| master == at);
        let env_port = env("MOONCAKE_MASTER_METRICS_PORT");
        let is_admin_unknown =
            self.admin.is_none() && if env_port.is_some() { !is_env_master } else { at.port != RPC_PORT };
        let metrics_port = env_port.filter(|_| is_env_master);
        let (admin, admin_origin) = match (&self.admin, metrics_port) {
            (Some(text), _) => {
                let origin = format!("--admin {text}");
                (address(text, &origin, admin::PORT)?, origin)
            }
            (None, Some(port)) => {
                let origin = format!("MOONCAKE_MASTER_METRICS_PORT={port}");
                let port = port.trim().parse();
                let port = port.map_err(|_| Failure::usage(format!("{origin}: expected a port from 0 to 65535")))?;
                (HostPort::new(at.host.clone(), port), origin)
            }
            (None, None) => (
                HostPort::new(at.host.clone(), admin::PORT),
                format!("default admin port, on the host of the master: {origin}"),
            ),
        };
        let timeout = self.timeout;
        let credentials = self.credentials.credentials_with(env)?;
        Ok(MasterTarget { at, leader: None, origin, timeout, credentials, admin, admin_origin, is_admin_unknown })
    }
}

/// Parses `text`, a value from `origin`, as an address. The port defaults to `port`. In an error, a
/// password is masked.
///
/// # Errors
/// The string is not an address, or it uses a scheme such as etcd:// that mcctl does not support.
pub fn address(text: &str, origin: &str, port: u16) -> Result<HostPort, Failure> {
    let origin = origin.replace(text, &masked_address(text));
    if let Some((scheme, _)) = text.split_once("://").filter(|(scheme, _)| *scheme != "http") {
        return Err(Failure::usage(format!("{origin}: finding the master through {scheme}:// is not supported"))
            .next("use the master's HOST:PORT"));
    }
    let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    args::endpoint(text, port)
        .map_err(|error| Failure::usage(format!("{origin} is not a valid address")).found(error.to_string()))
}

impl MasterTarget {
    /// Whether no admin address is set and the default admin port may belong to another master.
    pub fn is_admin_unknown(&self) -> bool {
        self.is_admin_unknown
    }

    /// The address of the master's admin HTTP endpoint, unless it [is
    /// unknown](MasterTarget::is_admin_unknown).
    pub fn admin_at(&self) -> Option<&HostPort> {
        (!self.is_admin_unknown).then_some(&self.admin)
    }

    /// A client for the master's admin HTTP endpoint.
    /// [`admin_failure`](MasterTarget::admin_failure) explains its errors.
    ///
    /// # Errors
    /// The admin address [is unknown](MasterTarget::is_admin_unknown), or the HTTP client cannot be
    /// set up.
    pub fn admin(&self) -> Result<AdminClient, Failure> {
        if self.is_admin_unknown {
            return Err(Failure::usage(format!("unknown admin address for the master at {}", self.at))
                .tried(format!("{}; the default admin address, {}", self.origin, self.admin))
                .found("this master's admin HTTP endpoint is not on the default port")
                .next(format!(
                    "pass --admin HOST:PORT; the port is the master's --metrics_port, {} by default (environment: \
                     MOONCAKE_MASTER_METRICS_PORT)",
                    admin::PORT
                )));
        }
        AdminClient::with_credentials(self.admin.clone(), self.timeout, &self.credentials)
            .map_err(|error| Failure::host("cannot set up an HTTP client").found(error.to_string()))
    }

    /// The failure for a call to the master's admin HTTP endpoint.
    pub fn admin_failure(&self, error: &AdminError) -> Failure {
        failure(error, &self.admin_origin)
    }

    /// An RPC client for the master. Must be called within an async runtime.
    pub fn calls(&self) -> MasterCalls<RpcClient<RealEnv>> {
        let server = self.leader.clone().unwrap_or_else(|| self.at.clone().into());
        master_calls(RealEnv::new(), server, self.timeout)
    }

    /// Timeouts for RPC calls to the master.
    pub fn timeouts(&self) -> Timeouts {
        Timeouts::within(self.timeout)
    }

    /// A client for the master's admin HTTP endpoint, for commands that require it.
    ///
    /// # Errors
    /// The same as [`admin`](MasterTarget::admin). If the admin address is unknown because the
    /// master does not respond, the failure reports the unreachable master.
    pub async fn admin_required(&self) -> Result<AdminClient, Failure> {
        if self.is_admin_unknown {
            // Any response shows that the master is running, even an error.
            drop(self.calls().service_ready().await.map_err(|error| self.failure(&error))?);
        }
        self.admin()
    }

    /// The failure for a call without a usable response.
    pub fn failure(&self, error: &CallError) -> Failure {
        let failure = match error {
            CallError::Connect { source, .. } if is_out_of_files(source) => {
                return Failure::host("this process has no file descriptors left for a connection")
                    .tried(format!("call {} ({})", self.at, self.origin))
                    .found(source.to_string())
                    .next("raise the limit: ulimit -n 65536");
            }
            CallError::Connect { source, .. } => {
                Failure::unreachable(format!("cannot reach the master at {}", self.at)).found(source.to_string())
            }
            CallError::ConnectTimeout { limit, .. } => {
                Failure::unreachable(format!("cannot reach the master at {}", self.at))
                    .found(format!("no connection within {}", args::show_duration(*limit)))
            }
            CallError::NoLeader { .. } => Failure::unreachable("no master leads")
                .found(error.to_string())
                .next("look at the masters' logs, and check that etcd answers"),
            CallError::TooLarge { .. } => Failure::usage(error.to_string()),
            CallError::Timeout { .. } => Failure::unreachable(format!(
                "the master at {} did not respond in time",
                self.at
            ))
            .found(format!("{error}; the call may still be executed"))
            .next("check whether the master is suspended or overloaded, or waits for etcd, or set a longer --timeout"),
            CallError::Closed { why: ConnectionError::Frame(FrameError::Magic { .. }), .. } => {
                Failure::unreachable(format!("{} is not a master's RPC port", self.at))
                    .found(error.to_string())
                    .next("pass the master's RPC port with --master HOST:PORT (its HTTP port belongs in --admin)")
            }
            CallError::Closed { address, method, why } if !matches!(why, ConnectionError::Frame(_)) => {
                self.closed(address, *method).found(format!("{error}{}", effect(*method, why)))
            }
            other => Failure::unreachable(format!("invalid response from the master at {}", self.at))
                .found(other.to_string()),
        };
        let failure = failure.tried(format!("call {} ({})", self.at, self.origin));
        if failure.next.is_some() {
            return failure;
        }
        failure.next("start a store (mcctl up, or mcctl serve master), or pass its address with --master HOST:PORT")
    }

    /// The failure for a call to the master at `address` without a response, because the connection
    /// ended. A standby closes connections.
    fn closed(&self, address: &HostPort, method: Method) -> Failure {
        let leader =
            "use --master etcd://HOST:PORT, or the address of the leader (mcctl status --admin HOST:9003 shows it)";
        match (method, &self.leader) {
            (method, None) if is_first_call(method) => {
                Failure::unreachable(format!("the master at {address} does not serve: it is a standby, or not ready"))
                    .next(leader)
            }
            (_, None) => Failure::unreachable(format!("the connection to the master at {address} was lost"))
                .next(format!("run the command again. If this master is a standby, {leader}")),
            (_, Some(_)) => Failure::unreachable(format!("the connection to the master at {address} was lost"))
                .next("run the command again: it uses the master that leads then"),
        }
    }
}

/// Whether `method` has no effect and is only called before the calls of a command: it shows whether
/// the master is ready, or its release ([`ReleaseProbe`](crate::engine::wire::ReleaseProbe)).
fn is_first_call(method: Method) -> bool {
    matches!(method, Method::ServiceReady | Method::BatchProbeKey)
}

/// Whether the master may have executed a call without a response, for an error message.
fn effect(method: Method, why: &ConnectionError) -> &'static str {
    match (method, why) {
        (method, _) if is_first_call(method) => "",
        (_, ConnectionError::ClosedBeforeWrite) => "; the call was not executed",
        _ => "; the call may have been executed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    /// Address, admin address and origin of the resolved master.
    type Resolved = Result<(String, String, String), Failure>;

    fn resolve(master: Option<&str>, admin: Option<&str>, env: &[(&str, &str)]) -> Resolved {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let args = MasterArgs {
            master: owned(master),
            admin: owned(admin),
            timeout: Duration::from_secs(1),
            ..MasterArgs::default()
        };
        let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        let master = args.resolve_with(lookup)?;
        Ok((master.at.to_string(), master.admin.to_string(), master.origin))
    }

    fn found(at: &str, admin: &str, origin: &str) -> Resolved {
        Ok((at.to_owned(), admin.to_owned(), origin.to_owned()))
    }

    #[test]
    fn missing_file_descriptors_are_the_hosts_fault() {
        let args = MasterArgs {
            master: Some("m:1".to_owned()),
            admin: None,
            timeout: Duration::from_secs(1),
            ..MasterArgs::default()
        };
        let master = args.resolve().expect("an address");
        let connect = |source: io::Error| CallError::Connect { address: HostPort::new("m", 1), source: source.into() };
        let failure = master.failure(&connect(io::Error::from_raw_os_error(Errno::EMFILE as i32)));
        assert_eq!(failure.exit, Exit::Host);
        assert_eq!(master.failure(&connect(io::ErrorKind::ConnectionRefused.into())).exit, Exit::Unreachable);
    }

    #[test]
    fn a_suspended_master_and_another_protocol_get_their_own_advice() {
        let args = MasterArgs {
            master: Some("m:1".to_owned()),
            admin: None,
            timeout: Duration::from_secs(1),
            ..MasterArgs::default()
        };
        let master = args.resolve().expect("an address");
        let address = HostPort::new("m", 1);
        let method = Method::ServiceReady;
        let limit = Duration::from_secs(1);
        let late = master.failure(&CallError::Timeout { address: address.clone(), method, limit });
        assert!(late.exit == Exit::Unreachable && late.next.expect("advice").contains("--timeout"));
        let why = ConnectionError::Frame(FrameError::Magic { found: b'H' });
        let http = master.failure(&CallError::Closed { address, method, why });
        assert!(http.exit == Exit::Unreachable && http.next.expect("advice").contains("--admin"));
    }

    #[test]
    fn a_standby_and_a_lost_connection_get_their_own_advice() {
        let args = MasterArgs {
            master: Some("m:1".to_owned()),
            admin: None,
            timeout: Duration::from_secs(1),
            ..MasterArgs::default()
        };
        let mut master = args.resolve().expect("an address");
        let address = HostPort::new("m", 1);
        let closed = |method| {
            let why = ConnectionError::ClosedByPeer;
            CallError::Closed { address: address.clone(), method, why }
        };
        for first in [Method::ServiceReady, Method::BatchProbeKey] {
            let standby = master.failure(&closed(first));
            assert!(standby.exit == Exit::Unreachable && standby.what.contains("standby"), "{standby}");
        }
        let lost = master.failure(&closed(Method::PutStart));
        assert!(lost.exit == Exit::Unreachable && lost.what.contains("was lost"), "{lost}");
        assert!(lost.found.expect("evidence").contains("may have been executed"));
        let (_sender, followed) = tokio::sync::watch::channel(Some(address.clone()));
        master.leader = Some(ServerAddress::Leader(followed));
        let lost = master.failure(&closed(Method::ServiceReady));
        assert!(lost.what.contains("was lost") && !lost.next.expect("advice").contains("etcd://"));
    }

    #[test]
    fn flags_override_the_environment_which_overrides_defaults() {
        let env = [("MOONCAKE_MASTER", "m:1"), ("MOONCAKE_MASTER_METRICS_PORT", "7")];
        assert_eq!(resolve(None, None, &[]), found("127.0.0.1:50051", "127.0.0.1:9003", "default address"));
        assert_eq!(resolve(None, None, &env), found("m:1", "m:7", "MOONCAKE_MASTER=m:1"));
        assert_eq!(resolve(Some("[::1]:2"), Some("http://a:3/"), &env), found("[::1]:2", "a:3", "--master [::1]:2"));
        assert_eq!(resolve(Some("n"), None, &[]), found("n:50051", "n:9003", "--master n"));
    }

    #[test]
    fn the_admin_port_is_guessed_only_for_the_default_rpc_port() {
        let unknown = |master: Option<&str>, admin: Option<&str>, port: Option<&str>| {
            let args = MasterArgs {
                master: master.map(str::to_owned),
                admin: admin.map(str::to_owned),
                timeout: Duration::from_secs(1),
                ..MasterArgs::default()
            };
            let env = |name: &str| match name {
                "MOONCAKE_MASTER" => Some("a:1".to_owned()),
                "MOONCAKE_MASTER_METRICS_PORT" => port.map(str::to_owned),
                _ => None,
            };
            args.resolve_with(env).expect("addresses").is_admin_unknown()
        };
        assert!(!unknown(Some("a"), None, None) && !unknown(Some("a:50051"), None, None));
        assert!(unknown(None, None, None) && unknown(Some("a:1"), None, None));
        assert!(!unknown(Some("a:1"), Some("a:2"), None));
        // The environment's port belongs to the environment's master.
        assert!(!unknown(None, None, Some("2")) && !unknown(Some("a:1"), None, Some("2")));
        assert!(unknown(Some("b:1"), None, Some("2")) && unknown(Some("a:50051"), None, Some("2")));
    }

    #[test]
    fn the_admin_port_of_the_environment_applies_to_the_leader_of_its_cluster() {
        let args = MasterArgs { master: None, admin: None, timeout: Duration::from_secs(1), ..MasterArgs::default() };
        let at = HostPort::new("a", 7);
        let resolved = |text: &str| {
            let env = |name: &str| match name {
                "MOONCAKE_MASTER" => Some("etcd://e:1".to_owned()),
                "MOONCAKE_MASTER_METRICS_PORT" => Some("9004".to_owned()),
                _ => None,
            };
            let master = args.resolve_leader(text, &at, env).expect("an address");
            (master.at.clone(), master.admin_at().map(HostPort::to_string))
        };
        assert_eq!(resolved("etcd://e:1"), (at.clone(), Some("a:9004".to_owned())));
        assert_eq!(resolved("etcd://other:1"), (at.clone(), None));
    }

    #[test]
    fn a_wrong_address_is_refused_with_its_origin() {
        for (master, env, origin) in [
            (Some("a:b"), &[][..], "--master a:b"),
            (None, &[("MOONCAKE_MASTER", "etcd://a:1")], "MOONCAKE_MASTER=etcd://a:1"),
        ] {
            let failure = resolve(master, None, env).expect_err(origin);
            assert!(failure.exit == Exit::Usage && failure.what.starts_with(origin), "{failure}");
        }
    }
}
