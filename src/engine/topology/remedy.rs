//! The remedies of findings, for `devices` and `doctor`.

use crate::engine::base::ByteSize;
use crate::engine::topology::DeviceFinding;

impl DeviceFinding {
    /// The remedy, if one is known: a sentence without a full stop.
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            DeviceFinding::FileReadError { .. } => "run as root to read it".to_owned(),
            DeviceFinding::Odd { .. } | DeviceFinding::Software { .. } => return None,
            DeviceFinding::PortDown { physical, .. } if physical == "Disabled" => {
                "enable the link: ip link set NETDEV up, or the switch port".to_owned()
            }
            DeviceFinding::PortDown { .. } => {
                "check cable, transceiver and switch port; on InfiniBand also the subnet manager".to_owned()
            }
            DeviceFinding::NoGid { .. } => {
                "assign an address to its network device, and check that it is up".to_owned()
            }
            DeviceFinding::RoceV1Only { .. } => {
                "enable RoCE v2 GIDs in the driver (firmware and driver settings; mlx4: module parameter roce_mode)"
                    .to_owned()
            }
            DeviceFinding::NoIpv4Gid { .. } => "assign an IPv4 address to its network device".to_owned(),
            DeviceFinding::NoUverbs { .. } => "modprobe ib_uverbs".to_owned(),
            DeviceFinding::UverbsClosed { node, .. } => {
                format!(
                    "in a container pass the device in (docker: --device={node}; Kubernetes: the RDMA resource); otherwise check its file mode"
                )
            }
            DeviceFinding::Iwarp { .. } => "use tcp, or the device's RoCE mode if it has one".to_owned(),
            DeviceFinding::Erdma { .. } => "load its driver with compat_mode=1".to_owned(),
            DeviceFinding::Efa { .. } => "build Mooncake with EFA and use protocol efa, or use tcp".to_owned(),
            DeviceFinding::NoProvider { provider, .. } => {
                format!(
                    "install the package that contains lib{provider} (Debian: ibverbs-providers; RHEL: libibverbs) or the vendor's drivers"
                )
            }
            DeviceFinding::NoVerbsLibrary => {
                "install libibverbs (Debian: libibverbs1 and ibverbs-providers; RHEL: libibverbs)".to_owned()
            }
            DeviceFinding::Memlock { hard: None, .. } => {
                "run ulimit -l unlimited before the start (systemd: LimitMEMLOCK=infinity)".to_owned()
            }
            DeviceFinding::Memlock { soft, hard: Some(hard) } => {
                let raise = if hard > soft {
                    format!(" (this process may raise it to {})", ByteSize(*hard))
                } else {
                    String::new()
                };
                format!(
                    "set it to unlimited for the process{raise}: systemd LimitMEMLOCK=infinity, docker --ulimit memlock=-1, \
                 containerd's unit for Kubernetes"
                )
            }
            DeviceFinding::FilterNamesNone { .. } => {
                "correct MC_TE_FILTERS: a comma-separated list of device names".to_owned()
            }
            DeviceFinding::EmptyGidRow { variable, .. } => {
                format!("unset {variable}, or set it to a used index of the table above")
            }
        };
        Some(text)
    }
}
