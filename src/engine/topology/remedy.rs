//! What to do about a finding: for `devices` and `doctor`.

use crate::engine::base::ByteSize;
use crate::engine::topology::Finding;

impl Finding {
    /// The next step, where there is one: a sentence without a full stop.
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Finding::Unreadable { .. } => "run it as root to see more".to_owned(),
            Finding::Odd { .. } | Finding::Software { .. } => return None,
            Finding::PortDown { physical, .. } if physical == "Disabled" => {
                "switch the link on: ip link set NETDEV up, or the switch's port".to_owned()
            }
            Finding::PortDown { .. } => {
                "look at cable, transceiver and switch port; on InfiniBand also for a running subnet manager".to_owned()
            }
            Finding::NoGid { .. } => "give its network device an address, and see that it is up".to_owned(),
            Finding::RoceV1Only { .. } => {
                "let its driver make RoCE v2 GIDs, too (firmware and driver settings; mlx4: module parameter roce_mode)"
                    .to_owned()
            }
            Finding::NoIpv4Gid { .. } => "give its network device an IPv4 address".to_owned(),
            Finding::NoUverbs { .. } => "modprobe ib_uverbs".to_owned(),
            Finding::UverbsClosed { node, .. } => {
                format!(
                    "in a container pass it in (docker: --device={node}; Kubernetes: the RDMA resource), else see its mode"
                )
            }
            Finding::Iwarp { .. } => "use tcp, or the device's RoCE mode if it has one".to_owned(),
            Finding::Erdma { .. } => "see that its driver was loaded with compat_mode=1".to_owned(),
            Finding::Efa { .. } => "build Mooncake with EFA and use protocol efa, or use tcp".to_owned(),
            Finding::NoProvider { provider, .. } => {
                format!(
                    "install the package with lib{provider} (Debian: ibverbs-providers; RHEL: libibverbs) or the vendor's drivers"
                )
            }
            Finding::NoVerbsLibrary => {
                "install libibverbs (Debian: libibverbs1 and ibverbs-providers; RHEL: libibverbs)".to_owned()
            }
            Finding::Memlock { hard: None, .. } => {
                "ulimit -l unlimited before the start (systemd: LimitMEMLOCK=infinity)".to_owned()
            }
            Finding::Memlock { soft, hard: Some(hard) } => {
                let raise = if hard > soft {
                    format!(" (this process may raise it to {})", ByteSize(*hard))
                } else {
                    String::new()
                };
                format!(
                    "set it to unlimited where the program is started{raise}: systemd LimitMEMLOCK=infinity, docker --ulimit memlock=-1, \
                 containerd's unit for Kubernetes"
                )
            }
            Finding::FilterNamesNone { .. } => {
                "correct MC_TE_FILTERS: a comma-separated list of device names".to_owned()
            }
            Finding::EmptyGidRow { variable, .. } => format!("unset {variable}, or set it to a row of the table above"),
        };
        Some(text)
    }
}
