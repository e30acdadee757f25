//! Which master a command talks to, and how long it waits: flags, then environment, then the usual place.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::commands::admin::{self, Admin};
use crate::commands::args;
use crate::commands::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::env::RealEnv;
use crate::engine::metadata::discovery;
use crate::engine::rpc::{CallError, RpcClient, Timeouts};
use crate::engine::wire::MasterCalls;

/// The RPC port where nobody chose another.
pub const RPC_PORT: u16 = 50051;
/// A connection is there sooner than this or not at all.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Is it this host that has no descriptor for another connection, whoever is at the other end?
fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

/// Flags that name a master.
#[derive(Clone, Debug, clap::Args)]
pub struct MasterArgs {
    /// RPC address of the master [default: 127.0.0.1:50051; environment: MOONCAKE_MASTER]
    #[arg(long, value_name = "HOST:PORT")]
    pub master: Option<String>,
    /// Admin HTTP address of the master [default: port 9003 at the master's host, if it belongs to this master; environment for the
    /// port: MOONCAKE_MASTER_METRICS_PORT]
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Longest wait for an answer of the master, its admin HTTP or the metadata service, and for the bytes of an object; a list of
    /// keys may take longer in all, as long as this time brings 64 KiB of it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = args::limit)]
    pub timeout: Duration,
}

/// A master, and who chose it.
#[derive(Clone, Debug)]
pub struct Master {
    /// Its RPC address.
    pub at: HostPort,
    /// Who chose that.
    pub origin: String,
    /// Longest wait for an answer.
    pub timeout: Duration,
    admin: HostPort,
    admin_origin: String,
    /// Nobody named the admin HTTP, and the usual port may be another master's: the RPC port is not the usual one.
    is_admin_unknown: bool,
}

impl MasterArgs {
    /// The master that these flags and the environment name.
    ///
    /// # Errors
    /// An address is not one.
    pub fn resolve(&self) -> Result<Master, Failure> {
        self.resolve_with(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
    }

    /// The master that these flags and the environment name, with its admin port found where neither names it: the usual one is used
    /// if it belongs to this master, see [`discovery::is_admin_of`].
    ///
    /// # Errors
    /// As [`resolve`](MasterArgs::resolve).
    pub async fn find(&self) -> Result<Master, Failure> {
        let mut master = self.resolve()?;
        if master.is_admin_unknown && discovery::is_admin_of(&master.admin, &master.at, master.timeout).await {
            master.is_admin_unknown = false;
            master.admin_origin = format!("port {} belongs to the master at {}", admin::PORT, master.at);
        }
        Ok(master)
    }

    fn resolve_with(&self, env: impl Fn(&str) -> Option<String>) -> Result<Master, Failure> {
        let (text, origin) = match &self.master {
            Some(text) => (text.clone(), format!("--master {text}")),
            None => match env("MOONCAKE_MASTER") {
                Some(text) => (text.clone(), format!("MOONCAKE_MASTER={text}")),
                None => (format!("127.0.0.1:{RPC_PORT}"), "default address".to_owned()),
            },
        };
        let at = address(&text, &origin, RPC_PORT)?;
        // The environment's port is that of the environment's master, not of any that a flag names.
        let environments = env("MOONCAKE_MASTER").unwrap_or_else(|| format!("127.0.0.1:{RPC_PORT}"));
        let is_environments = args::endpoint(&environments, RPC_PORT).is_ok_and(|master| master == at);
        let named_port = env("MOONCAKE_MASTER_METRICS_PORT");
        let is_admin_unknown =
            self.admin.is_none() && if named_port.is_some() { !is_environments } else { at.port != RPC_PORT };
        let metrics_port = named_port.filter(|_| is_environments);
        let (admin, admin_origin) = match (&self.admin, metrics_port) {
            (Some(text), _) => {
                let origin = format!("--admin {text}");
                (address(text, &origin, admin::PORT)?, origin)
            }
            (None, Some(port)) => {
                let origin = format!("MOONCAKE_MASTER_METRICS_PORT={port}");
                let port = port.trim().parse();
                let port = port.map_err(|_| Failure::usage(format!("{origin}: a port from 0 to 65535 is expected")))?;
                (HostPort::new(at.host.clone(), port), origin)
            }
            (None, None) => {
                (HostPort::new(at.host.clone(), admin::PORT), format!("the usual port at the host of {origin}"))
            }
        };
        Ok(Master { at, origin, timeout: self.timeout, admin, admin_origin, is_admin_unknown })
    }
}

/// `text`, which `origin` gave, as an address; `port` where none is written.
///
/// # Errors
/// It is none, or names a master in a way that is not there yet.
pub fn address(text: &str, origin: &str, port: u16) -> Result<HostPort, Failure> {
    if let Some((scheme, _)) = text.split_once("://").filter(|(scheme, _)| *scheme != "http") {
        return Err(Failure::usage(format!(
            "{origin}: {scheme}:// (a master found through {scheme}) is not there yet"
        ))
        .next("give HOST:PORT of the master"));
    }
    let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    args::endpoint(text, port).map_err(|found| Failure::usage(format!("{origin} is not an address")).found(found))
}

impl Master {
    /// Is its admin HTTP not named, while the usual one may belong to another master?
    pub fn is_admin_unknown(&self) -> bool {
        self.is_admin_unknown
    }

    /// Its admin HTTP.
    ///
    /// # Errors
    /// It [is not known](Master::is_admin_unknown), or see [`Admin::new`].
    pub fn admin(&self) -> Result<Admin, Failure> {
        if self.is_admin_unknown {
            return Err(Failure::usage(format!("no admin address was given for the master at {}", self.at))
                .tried(format!("{}; the usual admin port, {}", self.origin, self.admin))
                .found("nothing there that belongs to this master")
                .next(format!(
                    "give --admin HOST:PORT: the master's --metrics_port, {} by default (environment: MOONCAKE_MASTER_METRICS_PORT)",
                    admin::PORT
                )));
        }
        Admin::new(self.admin.clone(), self.admin_origin.clone(), self.timeout)
    }

    /// Its RPC. Must be called on a runtime.
    pub fn calls(&self) -> MasterCalls<RpcClient<RealEnv>> {
        MasterCalls(RpcClient::new(RealEnv::new(), self.at.clone(), self.timeouts()))
    }

    /// How long its RPC is waited for.
    pub fn timeouts(&self) -> Timeouts {
        Timeouts { connect: self.timeout.min(CONNECT_MAX), call: self.timeout }
    }

    /// Its admin HTTP, for a command that cannot work without it.
    ///
    /// # Errors
    /// As [`admin`](Master::admin). If the admin address is unknown because the master does not answer, the error is that it does not
    /// answer.
    pub async fn admin_required(&self) -> Result<Admin, Failure> {
        if self.is_admin_unknown {
            // Any answer shows that the master runs, even a refusal.
            drop(self.calls().service_ready().await.map_err(|error| self.failure(&error))?);
        }
        self.admin()
    }

    /// What a call that has no answer means to the user.
    pub fn failure(&self, error: &CallError) -> Failure {
        let failure = match error {
            CallError::Connect { source, .. } if is_out_of_files(source) => {
                return Failure::host("this process has no file descriptor left for a connection")
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
            CallError::TooLarge { .. } => Failure::usage(error.to_string()),
            other => Failure::unreachable(format!("the master at {} gives no usable answer", self.at))
                .found(other.to_string()),
        };
        failure
            .tried(format!("call {} ({})", self.at, self.origin))
            .next("start the master (mcctl serve master), or name the right one with --master HOST:PORT")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;

    fn resolve(
        master: Option<&str>,
        admin: Option<&str>,
        env: &[(&str, &str)],
    ) -> Result<(String, String, String), String> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let args = MasterArgs { master: owned(master), admin: owned(admin), timeout: Duration::from_secs(1) };
        let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        match args.resolve_with(lookup) {
            Ok(master) => Ok((master.at.to_string(), master.admin.to_string(), master.origin)),
            Err(failure) => Err(failure.what),
        }
    }

    fn found(at: &str, admin: &str, origin: &str) -> Result<(String, String, String), String> {
        Ok((at.to_owned(), admin.to_owned(), origin.to_owned()))
    }

    #[test]
    fn a_process_without_descriptors_blames_itself_and_not_the_master() {
        let args = MasterArgs { master: Some("m:1".to_owned()), admin: None, timeout: Duration::from_secs(1) };
        let master = args.resolve().expect("an address");
        let connect = |source: io::Error| CallError::Connect { address: HostPort::new("m", 1), source: source.into() };
        let failure = master.failure(&connect(io::Error::from_raw_os_error(Errno::EMFILE as i32)));
        assert_eq!(failure.exit, Exit::Host);
        assert_eq!(master.failure(&connect(io::ErrorKind::ConnectionRefused.into())).exit, Exit::Unreachable);
    }

    #[test]
    fn a_flag_is_stronger_than_the_environment_and_both_than_the_usual_place() {
        let env = [("MOONCAKE_MASTER", "m:1"), ("MOONCAKE_MASTER_METRICS_PORT", "7")];
        assert_eq!(resolve(None, None, &[]), found("127.0.0.1:50051", "127.0.0.1:9003", "default address"));
        assert_eq!(resolve(None, None, &env), found("m:1", "m:7", "MOONCAKE_MASTER=m:1"));
        assert_eq!(resolve(Some("[::1]:2"), Some("http://a:3/"), &env), found("[::1]:2", "a:3", "--master [::1]:2"));
        assert_eq!(resolve(Some("n"), None, &[]), found("n:50051", "n:9003", "--master n"));
    }

    #[test]
    fn an_admin_port_is_guessed_only_for_the_usual_rpc_port() {
        let unknown = |master: Option<&str>, admin: Option<&str>, port: Option<&str>| {
            let args = MasterArgs {
                master: master.map(str::to_owned),
                admin: admin.map(str::to_owned),
                timeout: Duration::from_secs(1),
            };
            let env = |name: &str| match name {
                "MOONCAKE_MASTER" => Some("a:1".to_owned()),
                _ => port.map(str::to_owned),
            };
            args.resolve_with(env).expect("addresses").is_admin_unknown()
        };
        assert!(!unknown(Some("a"), None, None) && !unknown(Some("a:50051"), None, None));
        assert!(unknown(None, None, None) && unknown(Some("a:1"), None, None));
        assert!(!unknown(Some("a:1"), Some("a:2"), None));
        // The environment's port is said of the environment's master.
        assert!(!unknown(None, None, Some("2")) && !unknown(Some("a:1"), None, Some("2")));
        assert!(unknown(Some("b:1"), None, Some("2")) && unknown(Some("a:50051"), None, Some("2")));
    }

    #[test]
    fn what_is_no_address_names_where_it_came_from() {
        assert_eq!(resolve(Some("a:b"), None, &[]), Err("--master a:b is not an address".to_owned()));
        assert!(
            resolve(None, None, &[("MOONCAKE_MASTER", "etcd://a:1")]).expect_err("etcd").contains("is not there yet")
        );
    }
}
