//! A command's transport (tcp or rdma): flags, and errors for hosts and peers without RDMA.

use std::fmt;

use crate::commands::cli::error::{Exit, Failure};
use crate::commands::cli::origin::{self, Origin};
use crate::engine::transfer::{Blame, DeviceFault, DeviceStep, TransferError, TransferProtocol, TransportOptions};

/// Flags that select the transport.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TransportArgs {
    /// Transport: tcp or rdma [default: tcp; environment: MOONCAKE_PROTOCOL]
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<String>,
    /// RDMA devices, comma-separated [default: all usable devices; environment: MOONCAKE_DEVICE]
    #[arg(long, aliases = ["device_name", "rdma-devices", "rdma_devices"], value_name = "NAME,..")]
    pub device_name: Option<String>,
    /// With rdma: if this host has no RDMA device, log a warning and use tcp instead of failing
    #[arg(long)]
    pub allow_tcp_fallback: bool,
}

/// The selected transport. Its [`Origin`] is the flag or variable that selected the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportChoice {
    pub protocol: TransferProtocol,
    /// The RDMA device selection on this host.
    pub options: TransportOptions,
}

impl TransportChoice {
    /// Returns TCP with default options.
    pub fn tcp() -> TransportChoice {
        TransportChoice { protocol: TransferProtocol::Tcp, options: TransportOptions::default() }
    }

    /// The transport for `protocol` and `devices`, with upstream's variables applied.
    /// `MC_FORCE_TCP` selects tcp and logs a warning. `MC_MS_FILTERS` selects the devices if
    /// `devices` is empty or `MC_MS_AUTO_DISC` is 1.
    ///
    /// # Errors
    /// The protocol is neither tcp nor rdma.
    pub fn new(
        protocol: Origin<String>,
        devices: &str,
        allow_tcp_fallback: bool,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Origin<TransportChoice>, Failure> {
        let Origin { value: word, origin } = protocol;
        let word = word.trim().to_ascii_lowercase();
        let protocol = word.parse().map_err(|_: TransferError| {
            Failure::usage(format!("unsupported protocol '{word}'"))
                .found(origin.to_string())
                .next(format!("use --protocol {}", TransferProtocol::names()))
        })?;
        if protocol == TransferProtocol::Rdma && env("MC_FORCE_TCP").is_some() {
            tracing::warn!("using tcp instead of rdma ({origin}), because MC_FORCE_TCP is set");
            return Ok(Origin::described(TransportChoice::tcp(), "MC_FORCE_TCP"));
        }
        let mut options = TransportOptions { allow_tcp_fallback, ..TransportOptions::parse(devices) };
        let discover = env("MC_MS_AUTO_DISC").is_some_and(|text| text.trim() == "1");
        if options.devices.is_empty() || discover {
            options.devices = TransportOptions::parse(&env("MC_MS_FILTERS").unwrap_or_default()).devices;
        }
        Ok(Origin { value: TransportChoice { protocol, options }, origin })
    }
}

impl TransportArgs {
    /// The transport that the flags select or, if they are not set, the environment selects.
    ///
    /// # Errors
    /// The protocol is neither tcp nor rdma.
    pub fn transport(&self, env: impl Fn(&str) -> Option<String>) -> Result<Origin<TransportChoice>, Failure> {
        let all = &env;
        let env = |name: &str| all(name).filter(|text| !text.trim().is_empty());
        let protocol = origin::flag_or_variable(self.protocol.as_deref(), "--protocol", "MOONCAKE_PROTOCOL", env);
        let protocol = protocol.unwrap_or_else(|| Origin::default("tcp".to_owned()));
        let devices = self.device_name.clone().or_else(|| env("MOONCAKE_DEVICE")).unwrap_or_default();
        TransportChoice::new(protocol, &devices, self.allow_tcp_fallback, all)
    }
}

/// The failure for an engine that did not start because of RDMA; `None` for any other error.
/// `origin` is the flag or variable that selected rdma.
pub fn failure(error: &TransferError, origin: impl fmt::Display) -> Option<Failure> {
    let failure = match error {
        TransferError::Unavailable { protocol, why } => {
            let check = format!("run mcctl devices and mcctl doctor --protocol {protocol}");
            Failure::host(format!("this host cannot use {protocol}, and fallback to tcp is not allowed"))
                .found(why.clone())
                .next(format!("{check}; or use --protocol tcp or --allow-tcp-fallback"))
        }
        TransferError::Device(fault) => {
            Failure::host("cannot use rdma").found(fault.to_string()).next(next(fault, "the peer"))
        }
        _ => return None,
    };
    Some(failure.tried(origin.to_string()))
}

/// The exit code for an RDMA fault: [`Exit::Host`] if the local device is at fault, otherwise
/// [`Exit::Unreachable`].
pub fn exit(fault: &DeviceFault) -> Exit {
    if fault.blame == Blame::Device { Exit::Host } else { Exit::Unreachable }
}

/// The fix for an RDMA fault with `peer`.
pub fn next(fault: &DeviceFault, peer: &str) -> String {
    match (fault.remedy, fault.blame, fault.step) {
        (Some(remedy), _, _) => remedy.to_owned(),
        (None, Blame::Device, _) => "run mcctl devices and mcctl doctor --protocol rdma".to_owned(),
        (None, Blame::Peer, DeviceStep::Dial) => format!("check that {peer} is running"),
        (None, Blame::Peer, _) => {
            format!(
                "check that {peer} is running, that its link is up, and that this host can reach its GID's address (ping -I)"
            )
        }
        (None, Blame::Refusal, DeviceStep::Move) => {
            format!("check whether {peer} has restarted or unmounted that memory")
        }
        (None, Blame::Refusal, _) => format!("check the log on {peer}: it rejected the connection"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &TransportArgs, vars: &[(&str, &str)]) -> Result<Origin<TransportChoice>, Failure> {
        args.transport(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn flags_override_the_environment_and_tcp_is_the_default() {
        assert_eq!(read(&TransportArgs::default(), &[]), Ok(Origin::default(TransportChoice::tcp())));
        let vars = [("MOONCAKE_PROTOCOL", "RDMA"), ("MOONCAKE_DEVICE", "mlx5_0,mlx5_1")];
        let found = read(&TransportArgs::default(), &vars).unwrap();
        assert_eq!(
            (found.value.protocol, found.value.options.devices.join(" ")),
            (TransferProtocol::Rdma, "mlx5_0 mlx5_1".to_owned())
        );
        assert_eq!(found.origin.to_string(), "MOONCAKE_PROTOCOL=RDMA");
        let args =
            TransportArgs { protocol: Some("rdma".into()), device_name: Some("rxe0".into()), allow_tcp_fallback: true };
        let found = read(&args, &vars).unwrap().value;
        assert_eq!((found.options.devices.join(" "), found.options.allow_tcp_fallback), ("rxe0".to_owned(), true));
        let tcp = TransportArgs { protocol: Some("tcp".into()), ..TransportArgs::default() };
        assert_eq!(read(&tcp, &vars).unwrap().value.protocol, TransferProtocol::Tcp);
    }

    #[test]
    fn upstream_variables_select_protocol_and_devices() {
        let rdma = TransportArgs { protocol: Some("rdma".into()), ..TransportArgs::default() };
        let named = TransportArgs { device_name: Some("mlx5_0".into()), ..rdma.clone() };
        let devices =
            |args: &TransportArgs, vars: &[(&str, &str)]| read(args, vars).unwrap().value.options.devices.join(" ");
        let filter = ("MC_MS_FILTERS", "mlx5_2, mlx5_3");
        assert_eq!(devices(&rdma, &[filter]), "mlx5_2 mlx5_3");
        assert_eq!(devices(&named, &[filter]), "mlx5_0");
        assert_eq!(devices(&named, &[filter, ("MC_MS_AUTO_DISC", "1")]), "mlx5_2 mlx5_3");
        assert_eq!(devices(&named, &[("MC_MS_AUTO_DISC", "0")]), "mlx5_0");
        let forced = read(&named, &[("MC_FORCE_TCP", "")]).unwrap();
        assert_eq!(
            (forced.value.protocol, forced.origin.to_string()),
            (TransferProtocol::Tcp, "MC_FORCE_TCP".to_owned())
        );
    }

    #[test]
    fn an_unknown_protocol_is_refused_with_its_origin() {
        let failure = read(&TransportArgs::default(), &[("MOONCAKE_PROTOCOL", "efa")]).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.what.contains("'efa'"), "{failure}");
        assert_eq!(failure.found.as_deref(), Some("MOONCAKE_PROTOCOL=efa"));
    }

    #[test]
    fn a_host_without_rdma_has_exit_code_4() {
        let error = TransferError::Unavailable { protocol: "rdma", why: "no RDMA device".to_owned() };
        let failure = failure(&error, "--protocol rdma").unwrap();
        assert_eq!(failure.exit.code(), 4);
        assert_eq!(failure.found.as_deref(), Some("no RDMA device"));
        assert!(super::failure(&TransferError::NoAddress, "").is_none());
    }

    fn fault(blame: Blame, step: DeviceStep, remedy: Option<&'static str>) -> DeviceFault {
        let device = "rxe0".into();
        let gid = String::new();
        let peer = String::new();
        let problem = "it broke".into();
        DeviceFault { protocol: "rdma", device, port: 1, gid, peer, step, problem, blame, remedy }
    }

    #[test]
    fn the_faulty_side_selects_exit_code_and_advice() {
        let short = fault(Blame::Device, DeviceStep::Register, Some("raise RLIMIT_MEMLOCK"));
        assert_eq!((exit(&short), next(&short, "the target").as_str()), (Exit::Host, "raise RLIMIT_MEMLOCK"));
        let failure = failure(&TransferError::Device(short.into()), "--protocol rdma").unwrap();
        assert_eq!((failure.exit, failure.next.as_deref()), (Exit::Host, Some("raise RLIMIT_MEMLOCK")));
        let gone = fault(Blame::Peer, DeviceStep::Dial, None);
        assert_eq!(exit(&gone), Exit::Unreachable);
        assert!(next(&gone, "the target").ends_with("the target is running"));
        let odd = fault(Blame::Refusal, DeviceStep::Dial, None);
        assert_eq!(exit(&odd), Exit::Unreachable);
        let others = [odd, fault(Blame::Device, DeviceStep::Rtr, None), fault(Blame::Peer, DeviceStep::Move, None)];
        assert!(others.iter().all(|fault| next(fault, "the target") != next(&gone, "the target")));
    }
}
