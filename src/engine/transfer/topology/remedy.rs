//! Remedies for findings, used by `devices` and `doctor`.

use crate::topology::DeviceFinding;
use mcctl_base::ByteSize;

impl DeviceFinding {
    /// Returns the remedy, if one is known, as a sentence without a trailing period.
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            DeviceFinding::FileReadError { .. } => "run as root to read the file".to_owned(),
            DeviceFinding::Odd { .. } | DeviceFinding::Software { .. } => return None,
            DeviceFinding::PortDown { physical, .. } if physical == "Disabled" => {
                "enable the link (ip link set NETDEV up) or the switch port".to_owned()
            }
            DeviceFinding::PortDown { .. } => {
                "check the cable, transceiver and switch port; on InfiniBand, also check the subnet manager".to_owned()
            }
            DeviceFinding::NoGid { .. } => {
                "assign an address to the port's network device, and check that the network device is up".to_owned()
            }
            DeviceFinding::RoceV1Only { .. } => {
                "enable RoCE v2 GIDs in the driver (firmware and driver settings; mlx4: module parameter roce_mode)"
                    .to_owned()
            }
            DeviceFinding::NoIpv4Gid { .. } => "assign an IPv4 address to the port's network device".to_owned(),
            DeviceFinding::NoUverbs { .. } => "run modprobe ib_uverbs".to_owned(),
            DeviceFinding::UverbsClosed { node, .. } => {
                format!(
                    "in a container, add the device (docker: --device={node}; Kubernetes: the RDMA resource); \
                     otherwise check the file's permissions"
                )
            }
            DeviceFinding::Iwarp { .. } => "use tcp, or the device's RoCE mode if it has one".to_owned(),
            DeviceFinding::Erdma { .. } => "load the eRDMA driver with compat_mode=1".to_owned(),
            DeviceFinding::Efa { .. } => "build Mooncake with EFA support and use protocol efa, or use tcp".to_owned(),
            DeviceFinding::NoProvider { provider, .. } => {
                format!(
                    "install the package that contains lib{provider} (Debian: ibverbs-providers; RHEL: libibverbs) or the vendor's drivers"
                )
            }
            DeviceFinding::NoVerbsLibrary => {
                "install libibverbs (Debian: libibverbs1 and ibverbs-providers; RHEL: libibverbs)".to_owned()
            }
            DeviceFinding::Memlock { hard: None, .. } => {
                "run ulimit -l unlimited before starting the process (systemd: LimitMEMLOCK=infinity)".to_owned()
            }
            DeviceFinding::Memlock { soft, hard: Some(hard) } => {
                let raise = if hard > soft {
                    format!(" (this process may raise it to {})", ByteSize(*hard))
                } else {
                    String::new()
                };
                format!(
                    "set the limit to unlimited for the process{raise}: systemd LimitMEMLOCK=infinity, docker --ulimit memlock=-1, \
                 containerd's systemd unit for Kubernetes"
                )
            }
            DeviceFinding::FilterNamesNone { .. } => {
                "fix MC_TE_FILTERS: it must be a comma-separated list of device names".to_owned()
            }
            DeviceFinding::EmptyGidRow { variable, .. } => {
                format!("unset {variable}, or set it to a used index from the table above")
            }
        };
        Some(text)
    }
}
