//! Over what bytes are moved: the flags, and the words for a host that cannot.

use crate::commands::error::{Exit, Failure};
use crate::engine::transfer::{Blame, Protocol, RdmaFault, RdmaStep, RdmaWish, TransferError};

/// Flags that say over what bytes are moved.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TransportArgs {
    /// How bytes are moved: tcp or rdma [default: tcp; environment: MOONCAKE_PROTOCOL]
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<String>,
    /// RDMA devices, separated by ',' [default: all that can be used; environment: MOONCAKE_DEVICE]
    #[arg(long, aliases = ["device_name", "rdma-devices", "rdma_devices"], value_name = "NAME,..")]
    pub device_name: Option<String>,
    /// With rdma: use tcp where this host has no RDMA, and say so, instead of giving up
    #[arg(long)]
    pub allow_tcp_fallback: bool,
}

/// Over what bytes are to be moved, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The protocol.
    pub protocol: Protocol,
    /// What to use of the host's RDMA devices.
    pub rdma: RdmaWish,
    /// In the words of who chose it.
    pub origin: String,
}

impl Transport {
    /// TCP, because nobody said anything.
    pub fn tcp() -> Transport {
        Transport { protocol: Protocol::Tcp, rdma: RdmaWish::default(), origin: "default".to_owned() }
    }

    /// `protocol`, as `origin` gave it, over `devices`; and what upstream's own variables make of that. `MC_FORCE_TCP` makes it tcp
    /// (which is told), `MC_MS_FILTERS` says which devices where none are named or `MC_MS_AUTO_DISC` is 1.
    ///
    /// # Errors
    /// There is no such protocol here.
    pub fn new(
        protocol: &str,
        origin: String,
        devices: &str,
        tcp_instead: bool,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Transport, Failure> {
        let word = protocol.trim().to_ascii_lowercase();
        let protocol = word.parse().map_err(|_: TransferError| {
            Failure::usage(format!("'{word}' is no protocol that this release speaks"))
                .found(origin.clone())
                .next("give --protocol tcp or rdma")
        })?;
        if protocol == Protocol::Rdma && env("MC_FORCE_TCP").is_some() {
            tracing::warn!("bytes go over tcp and not rdma ({origin}): MC_FORCE_TCP is set");
            return Ok(Transport { origin: "MC_FORCE_TCP".to_owned(), ..Transport::tcp() });
        }
        let mut rdma = RdmaWish { tcp_instead, ..RdmaWish::parse(devices) };
        let discover = env("MC_MS_AUTO_DISC").is_some_and(|text| text.trim() == "1");
        if rdma.devices.is_empty() || discover {
            rdma.devices = RdmaWish::parse(&env("MC_MS_FILTERS").unwrap_or_default()).devices;
        }
        Ok(Transport { protocol, rdma, origin })
    }
}

impl TransportArgs {
    /// What they say, over what the environment says.
    ///
    /// # Errors
    /// There is no such protocol here.
    pub fn transport(&self, env: impl Fn(&str) -> Option<String>) -> Result<Transport, Failure> {
        let all = &env;
        let env = |name: &str| all(name).filter(|text| !text.trim().is_empty());
        let (protocol, origin) = match &self.protocol {
            Some(word) => (word.clone(), format!("--protocol {word}")),
            None => match env("MOONCAKE_PROTOCOL") {
                Some(word) => {
                    let origin = format!("MOONCAKE_PROTOCOL={word}");
                    (word, origin)
                }
                None => ("tcp".to_owned(), "default".to_owned()),
            },
        };
        let devices = self.device_name.clone().or_else(|| env("MOONCAKE_DEVICE")).unwrap_or_default();
        Transport::new(&protocol, origin, &devices, self.allow_tcp_fallback, all)
    }
}

/// The words for an engine that did not start because of RDMA; `None` for any other error. `origin` is who asked for it.
pub fn failure(error: &TransferError, origin: &str) -> Option<Failure> {
    let failure = match error {
        TransferError::NoRdma { why } => {
            let next =
                "see mcctl devices and mcctl doctor --protocol rdma; or give --protocol tcp, or --allow-tcp-fallback";
            Failure::host("rdma cannot be used on this host, and is not replaced by tcp").found(why.clone()).next(next)
        }
        TransferError::Rdma(fault) => {
            Failure::host("rdma cannot be used").found(fault.to_string()).next(next(fault, "the peer"))
        }
        _ => return None,
    };
    Some(failure.tried(origin))
}

/// The exit code for an RDMA fault towards a peer: this host cannot, or the peer cannot be reached.
pub fn exit(fault: &RdmaFault) -> Exit {
    if fault.blame == Blame::Device { Exit::Host } else { Exit::Unreachable }
}

/// What to do about an RDMA fault towards `peer`.
pub fn next(fault: &RdmaFault, peer: &str) -> String {
    match (fault.remedy, fault.blame, fault.step) {
        (Some(remedy), _, _) => remedy.to_owned(),
        (None, Blame::Device, _) => "see mcctl devices and mcctl doctor --protocol rdma".to_owned(),
        (None, Blame::Peer, RdmaStep::Dial) => format!("see that {peer} is running"),
        (None, Blame::Peer, _) => {
            format!(
                "see that {peer} still runs with its link up, and that the address of its GID can be reached from here (ping -I)"
            )
        }
        (None, Blame::Refusal, RdmaStep::Move) => {
            format!("see that {peer} still has that memory: it may have started anew, or let go of it")
        }
        (None, Blame::Refusal, _) => format!("see the log of {peer}: it answers, and refuses"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &TransportArgs, vars: &[(&str, &str)]) -> Result<Transport, Failure> {
        args.transport(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn flags_come_before_the_environment_and_that_before_tcp() {
        assert_eq!(read(&TransportArgs::default(), &[]), Ok(Transport::tcp()));
        let vars = [("MOONCAKE_PROTOCOL", "RDMA"), ("MOONCAKE_DEVICE", "mlx5_0,mlx5_1")];
        let found = read(&TransportArgs::default(), &vars).unwrap();
        assert_eq!((found.protocol, found.rdma.devices.join(" ")), (Protocol::Rdma, "mlx5_0 mlx5_1".to_owned()));
        assert_eq!(found.origin, "MOONCAKE_PROTOCOL=RDMA");
        let args =
            TransportArgs { protocol: Some("rdma".into()), device_name: Some("rxe0".into()), allow_tcp_fallback: true };
        let found = read(&args, &vars).unwrap();
        assert_eq!((found.rdma.devices.join(" "), found.rdma.tcp_instead), ("rxe0".to_owned(), true));
        let tcp = TransportArgs { protocol: Some("tcp".into()), ..TransportArgs::default() };
        assert_eq!(read(&tcp, &vars).unwrap().protocol, Protocol::Tcp);
    }

    #[test]
    fn upstreams_own_variables_count_too() {
        let rdma = TransportArgs { protocol: Some("rdma".into()), ..TransportArgs::default() };
        let named = TransportArgs { device_name: Some("mlx5_0".into()), ..rdma.clone() };
        let devices = |args: &TransportArgs, vars: &[(&str, &str)]| read(args, vars).unwrap().rdma.devices.join(" ");
        let filter = ("MC_MS_FILTERS", "mlx5_2, mlx5_3");
        assert_eq!(devices(&rdma, &[filter]), "mlx5_2 mlx5_3");
        assert_eq!(devices(&named, &[filter]), "mlx5_0");
        assert_eq!(devices(&named, &[filter, ("MC_MS_AUTO_DISC", "1")]), "mlx5_2 mlx5_3");
        assert_eq!(devices(&named, &[("MC_MS_AUTO_DISC", "0")]), "mlx5_0");
        let forced = read(&named, &[("MC_FORCE_TCP", "")]).unwrap();
        assert_eq!((forced.protocol, forced.origin.as_str()), (Protocol::Tcp, "MC_FORCE_TCP"));
    }

    #[test]
    fn a_protocol_that_is_none_is_named_with_who_gave_it() {
        let failure = read(&TransportArgs::default(), &[("MOONCAKE_PROTOCOL", "efa")]).unwrap_err();
        assert_eq!(failure.what, "'efa' is no protocol that this release speaks");
        assert_eq!(failure.found.as_deref(), Some("MOONCAKE_PROTOCOL=efa"));
    }

    #[test]
    fn a_host_without_rdma_is_told_so_and_what_to_do() {
        let error = TransferError::NoRdma { why: "no RDMA device".to_owned() };
        let failure = failure(&error, "--protocol rdma").unwrap();
        assert_eq!(failure.exit.code(), 4);
        assert_eq!(failure.found.as_deref(), Some("no RDMA device"));
        assert!(super::failure(&TransferError::NoAddress, "").is_none());
    }

    fn fault(blame: Blame, step: RdmaStep, remedy: Option<&'static str>) -> RdmaFault {
        let (device, gid, peer, problem) = ("rxe0".into(), String::new(), String::new(), "it broke".into());
        RdmaFault { device, port: 1, gid, peer, step, problem, blame, remedy }
    }

    #[test]
    fn who_is_to_blame_decides_the_exit_code_and_what_is_known_the_advice() {
        let short = fault(Blame::Device, RdmaStep::Register, Some("raise RLIMIT_MEMLOCK"));
        assert_eq!((exit(&short), next(&short, "the target").as_str()), (Exit::Host, "raise RLIMIT_MEMLOCK"));
        let told = failure(&TransferError::Rdma(short.into()), "--protocol rdma").unwrap();
        assert_eq!((told.exit, told.next.as_deref()), (Exit::Host, Some("raise RLIMIT_MEMLOCK")));
        let gone = fault(Blame::Peer, RdmaStep::Dial, None);
        assert_eq!(
            (exit(&gone), next(&gone, "the target").as_str()),
            (Exit::Unreachable, "see that the target is running")
        );
        let odd = fault(Blame::Refusal, RdmaStep::Dial, None);
        assert_eq!(exit(&odd), Exit::Unreachable);
        let others = [odd, fault(Blame::Device, RdmaStep::Rtr, None), fault(Blame::Peer, RdmaStep::Move, None)];
        assert!(others.iter().all(|fault| !next(fault, "the target").contains("is running")));
    }
}
