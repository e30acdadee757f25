//! Which peers may connect to a service's ports, and which clients may send which HTTP requests:
//! from the access flags to the engine's types.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::commands::cli::error::Failure;
use crate::commands::cli::settings::Settings;
use crate::commands::serve::access_files;
use crate::commands::target::credentials::CredentialArgs;
use crate::engine::base::HostPort;
use crate::engine::base::cidr::ParseCidrError;
use crate::engine::env::{AddressFilter, RealEnv};
use crate::engine::http::access::{AccessFiles, AccessTexts};
use crate::engine::http::{HttpAccess, HttpCredentials};
use crate::engine::master::process::ProcessAccess;

/// The access to a service. The default allows everything.
#[derive(Clone, Debug, Default)]
pub struct AccessPlan {
    /// Which peers may connect to any port.
    pub filter: AddressFilter,
    /// Which clients may send which requests to the HTTP ports.
    pub http: HttpAccess,
    /// The address from `--bind`.
    pub bind: Option<IpAddr>,
    /// The Unix socket of the service's main HTTP port.
    socket: Option<PathBuf>,
    /// What the service shows to HTTP ports of other services.
    pub credentials: HttpCredentials,
    /// The files with tokens and certificates, and the contents that `http` was made of.
    files: Option<(AccessFiles, AccessTexts)>,
}

impl AccessPlan {
    /// The access that the flags of a service describe.
    ///
    /// # Errors
    /// A flag is invalid or needs another one, or a file cannot be read or is invalid.
    pub fn of(settings: &Settings) -> Result<AccessPlan, Failure> {
        let given = |name: &str| Some(settings.text(name)).filter(|text| !text.is_empty());
        let bind = given("bind").map(|text| {
            unbracketed(text).parse::<IpAddr>().map_err(|_| {
                Failure::usage("--bind is not an IP address")
                    .found(settings.describe("bind"))
                    .next("use an address of this host, such as 10.0.0.5 or ::1, or 0.0.0.0 for all")
            })
        });
        let filter = given("allow_cidr").map(|text| {
            text.parse().map(AddressFilter::only).map_err(|error: ParseCidrError| {
                Failure::usage("--allow-cidr is not a list of networks")
                    .found(error.to_string())
                    .next("separate networks with commas, for example 10.0.0.0/8,127.0.0.1")
            })
        });
        let files = access_files::of(settings)?;
        let (http, texts) = files.access(&RealEnv::new()).map_err(|error| access_files::failure(&error))?;
        Ok(AccessPlan {
            bind: bind.transpose()?,
            filter: filter.transpose()?.unwrap_or_default(),
            http,
            socket: given("http_socket").map(PathBuf::from),
            credentials: CredentialArgs::default().credentials()?,
            files: Some((files, texts)),
        })
    }

    /// The access to a master process.
    pub fn of_process(&self) -> ProcessAccess {
        ProcessAccess {
            env: self.env(),
            http: self.http.clone(),
            socket: self.socket.clone(),
            credentials: self.credentials.clone(),
            files: self.files.clone(),
        }
    }

    /// The access to the service's main HTTP port, which may have a Unix socket.
    pub fn main_http(&self) -> HttpAccess {
        self.http.clone().with_socket(self.socket.as_deref())
    }

    /// The environment whose listeners accept only connections from allowed addresses.
    pub fn env(&self) -> RealEnv {
        RealEnv::filtered(self.filter.clone())
    }

    /// The host for the port whose host flag is `flag`, and what chose it: the flag if it is given,
    /// else `--bind`, else the flag's default.
    pub fn host(&self, settings: &Settings, flag: &str) -> (String, String) {
        match self.bind {
            Some(address) if !settings.is_given(flag) => (address.to_string(), settings.describe("bind")),
            _ => (unbracketed(settings.text(flag)).to_owned(), settings.describe(flag)),
        }
    }

    /// Applies changes of the files with tokens and certificates, as long as the future is polled.
    pub async fn keep_current(&self) -> Infallible {
        match &self.files {
            Some((files, texts)) => files.clone().keep_current(RealEnv::new(), self.http.clone(), texts.clone()).await,
            None => std::future::pending().await,
        }
    }

    /// Logs one warning if a port in `listens` is reachable from other hosts and nothing restricts
    /// who uses it.
    pub fn warn_if_open(&self, listens: &[OpenPort<'_>]) {
        if let Some(warning) = self.warning(listens) {
            tracing::warn!("{warning}");
        }
    }

    fn warning(&self, listens: &[OpenPort<'_>]) -> Option<String> {
        if !self.filter.allows_all() {
            return None;
        }
        // Tokens and certificates protect only HTTP ports.
        let has_tokens = self.files.as_ref().is_some_and(|(files, _)| files.restrict());
        let open = listens.iter().filter(|port| !(port.at.is_loopback() || port.is_http && has_tokens));
        let open: Vec<&OpenPort<'_>> = open.collect();
        let ports: Vec<String> = open.iter().map(|port| format!("{} ({})", port.at.port, port.what)).collect();
        let bind = if self.bind.is_some() { "" } else { "--bind ADDRESS, " };
        let tokens = if open.iter().any(|port| port.is_http) { ", --token-file FILE (HTTP only)" } else { "" };
        (!open.is_empty()).then(|| {
            format!(
                "no access control: any host that reaches port {} can read and change the store. Restrict it with {bind}--allow-cidr \
                 NETWORKS{tokens} or a firewall",
                ports.join(", ")
            )
        })
    }
}

/// A port that a service listens on.
#[derive(Clone, Copy, Debug)]
pub struct OpenPort<'a> {
    pub what: &'a str,
    pub at: &'a HostPort,
    /// It checks tokens and client certificates, if these are set.
    pub is_http: bool,
}

impl<'a> OpenPort<'a> {
    /// A port with HTTP.
    pub fn http(what: &'a str, at: &'a HostPort) -> OpenPort<'a> {
        OpenPort { what, at, is_http: true }
    }

    /// A port with one of Mooncake's own protocols.
    pub fn mooncake(what: &'a str, at: &'a HostPort) -> OpenPort<'a> {
        OpenPort { what, at, is_http: false }
    }
}

/// An IPv6 address may be in brackets.
fn unbracketed(text: &str) -> &str {
    text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::gflags::{self, NoSources};
    use crate::commands::cli::service_flags::metadata_flags;

    fn planned(args: &[&str]) -> Result<(Settings, AccessPlan), Failure> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let parsed = gflags::parse(&metadata_flags::TABLE, &args, &NoSources)?;
        let mut settings = Settings::new(&metadata_flags::TABLE);
        settings.assign_all(&parsed.assignments)?;
        let plan = AccessPlan::of(&settings)?;
        Ok((settings, plan))
    }

    fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> String {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    }

    #[test]
    fn bind_is_the_host_of_ports_without_a_flag_of_their_own() {
        let host = |args: &[&str]| {
            let (settings, plan) = planned(args).expect("valid");
            plan.host(&settings, "host").0
        };
        assert_eq!(host(&[]), "0.0.0.0");
        assert_eq!(host(&["--bind=10.0.0.5"]), "10.0.0.5");
        assert_eq!(host(&["--bind=[::1]"]), "::1");
        assert_eq!(host(&["--bind=10.0.0.5", "--host=127.0.0.1"]), "127.0.0.1");
    }

    #[test]
    fn contradictory_or_invalid_flags_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let empty = file(&dir, "empty", "");
        let bare = file(&dir, "bare", "token-0123456789abcdef\n");
        for args in [
            &["--bind=node-1"][..],
            &["--allow-cidr=10.0.0.5/8"],
            &["--allow-cidr=,"],
            &["--tls-cert=/c"],
            &["--tls-key=/k"],
            &["--client-ca=/c"],
            &["--protect-metrics"],
            &["--writes-from=socket"],
            &["--writes-from=nobody"],
            &["--token-file=/does/not/exist"],
            &[&format!("--token-file={empty}")],
            &[&format!("--token-file={bare}")],
            &[&format!("--tls-cert={empty}"), &format!("--tls-key={empty}")],
        ] {
            let failure = planned(args).err().unwrap_or_else(|| panic!("{args:?} is accepted"));
            assert_eq!(failure.exit, Exit::Usage, "{args:?}");
            assert!(!failure.line().contains("0123456789"), "{failure}");
        }
    }

    #[test]
    fn only_open_ports_beyond_the_loopback_cause_a_warning() {
        let dir = tempfile::tempdir().expect("a folder");
        let tokens = format!("--token-file={}", file(&dir, "tokens", "write writer-0123456789abcdef\n"));
        let warning = |args: &[&str], hosts: [&str; 2]| {
            let ports = [HostPort::new(hosts[0], 1), HostPort::new(hosts[1], 2)];
            let listens = [OpenPort::mooncake("RPC", &ports[0]), OpenPort::http("admin HTTP", &ports[1])];
            planned(args).expect("valid").1.warning(&listens)
        };
        let text = warning(&[], ["0.0.0.0", "127.0.0.1"]).expect("open");
        assert!(text.contains("port 1 (RPC) can") && text.contains("--allow-cidr"), "{text}");
        assert!(
            warning(&["--writes-from=loopback"], ["::", "::"])
                .expect("reads are open")
                .contains("1 (RPC), 2 (admin HTTP)")
        );
        let rpc = warning(&[&tokens], ["0.0.0.0", "0.0.0.0"]).expect("tokens do not protect RPC");
        assert!(rpc.contains("port 1 (RPC) can") && !rpc.contains("--token-file"), "{rpc}");
        for (args, hosts) in [
            (&[][..], ["localhost", "::1"]),
            (&["--allow-cidr=0.0.0.0/0"], ["0.0.0.0", "0.0.0.0"]),
            (&[&tokens], ["127.0.0.1", "0.0.0.0"]),
        ] {
            assert_eq!(warning(args, hosts), None, "{args:?}");
        }
    }
}
