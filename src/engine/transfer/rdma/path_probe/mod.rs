//! Probes every path to a peer, and reports which paths can transfer bytes and at which step the
//! others fail.
//!
//! Each path gets its own queue pairs, so that every step can be distinguished: creating the queue
//! pairs, exchanging their numbers with the peer, connecting them, a zero-byte write (which needs
//! no key and changes nothing), and a read of several packets. If a path may have failed because of
//! the GID, other GID indices on our port are probed too.

mod prober;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::TransferError;
use crate::device_fault::DeviceStep;
use crate::path_probe::{PathProbe, PathProbeFailure, PathProbes, ProbeFailureCause, ProbedDevice, ProbedPath};
use crate::rdma::nic::Nic;
use crate::rdma::path_probe::prober::DeviceProber;
use crate::rdma::peer_view::PeerView;
use crate::rdma::shared::RdmaShared;
use crate::rdma::{gid, open};
use crate::topology::HostTopology;
use crate::topology::gid::{Gid, GidType};
use crate::transport::ControlPlane;
use mcctl_sys::verbs::LinkLayer;
use mcctl_wire::json::{SegmentDescriptor, parse_gid};

/// Maximum number of other GID indices to probe for each of our devices.
const OTHER_ROWS_MAX: usize = 3;
/// Timeout for a request. Longer than a device takes to time out: eight tries of at most 4 * (4.096
/// us << 14) each.
const MOVE_LIMIT: Duration = Duration::from_secs(5);
/// Timeout for a request with another GID index.
const OTHER_MOVE_LIMIT: Duration = Duration::from_secs(2);

impl PathProbeFailure {
    /// Whether our GID may be the cause.
    fn may_be_gid(&self) -> bool {
        match (self.step, self.cause) {
            (DeviceStep::Dial, ProbeFailureCause::Refused) => {
                self.message.contains("RTR") || self.message.contains("GID")
            }
            (DeviceStep::Rtr | DeviceStep::Rts | DeviceStep::Ready, _) => true,
            (DeviceStep::Move, ProbeFailureCause::Completion(status)) => status.is_unanswered(),
            (DeviceStep::Move, _) => true,
            _ => false,
        }
    }
}

impl RdmaShared {
    /// Probes every path to the segment that `descriptor` describes. `limit` applies to each
    /// response from the peer. Setting `stop` skips the remaining paths.
    ///
    /// # Errors
    /// Fails if the descriptor contains no usable device.
    pub(super) fn probe_paths(
        &self,
        descriptor: &SegmentDescriptor,
        control: &dyn ControlPlane,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<PathProbes, TransferError> {
        let view = PeerView::of(descriptor, (self.clock)())?;
        let host = open::host()?;
        let tables: Vec<Vec<Gid>> = self.nics.iter().map(|nic| table(&host, nic)).collect();
        let ends: Vec<ProbedDevice> = self.nics.iter().zip(&tables).map(|(nic, table)| self.end(nic, table)).collect();
        // Devices are probed in parallel. Each device's paths are probed one after another.
        let paths = thread::scope(|scope| {
            let from = |(nic, table): (&Arc<Nic>, &Vec<Gid>)| {
                let view = &view;
                let end = &ends[nic.index];
                let nic = Arc::clone(nic);
                let table = table.clone();
                scope.spawn(move || self.probe_from(&nic, end, &table, view, control, limit, stop))
            };
            let threads: Vec<_> = self.nics.iter().zip(&tables).map(from).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a probe does not panic")).collect()
        });
        Ok(PathProbes { ends, unused: self.unused.clone(), paths })
    }

    /// Describes `nic`'s port, whose GID table is `table`.
    fn end(&self, nic: &Nic, table: &[Gid]) -> ProbedDevice {
        let address = nic.address();
        let port = nic.device.port(nic.port).ok();
        let gid = Ipv6Addr::from(address.gid);
        let unknown =
            || Gid { index: address.gid_index, gid, kind: GidType::Unknown, netdev: None, ipv4: gid.to_ipv4_mapped() };
        ProbedDevice {
            device: nic.name.clone(),
            port: nic.port,
            layer: port.as_ref().map_or(LinkLayer::Unspecified, |port| port.link_layer),
            active_mtu: port.map_or(address.mtu, |port| port.active_mtu.bytes()),
            mtu: address.mtu,
            lid: address.lid,
            gid: table.iter().find(|row| row.index == address.gid_index).cloned().unwrap_or_else(unknown),
            asked: self.settings.choice.gid_index.map(|(variable, _)| variable),
        }
    }

    /// Probes every path from one of our devices.
    #[expect(clippy::too_many_arguments, reason = "the body of a scoped thread")]
    fn probe_from(
        &self,
        nic: &Arc<Nic>,
        end: &ProbedDevice,
        table: &[Gid],
        view: &PeerView,
        control: &dyn ControlPlane,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Vec<ProbedPath> {
        let bench = DeviceProber::new(self, nic);
        let mut paths: Vec<ProbedPath> = Vec::new();
        let mut others_tried = false;
        for (device, remote) in view.descriptor.devices.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(their_gid) = parse_gid(&remote.gid).filter(|_| view.has_device(device)) else { continue };
            let go = |row: &Gid, move_limit: Duration| -> PathProbe {
                let result = bench.as_ref().map_err(Clone::clone);
                let result = result.and_then(|bench| bench.attempt(row, (view, device), control, limit, move_limit));
                let port_state = nic.device.port(nic.port).ok().map(|port| port.state);
                PathProbe { gid: row.clone(), port_state, result }
            };
            // A peer has one handshake port for all of its devices.
            let channel_broken =
                paths.last().filter(|path| path.attempt.is_unreachable()).map(|path| path.attempt.clone());
            let attempt = channel_broken.unwrap_or_else(|| go(&end.gid, MOVE_LIMIT));
            let may_help = attempt.result.as_ref().is_err_and(PathProbeFailure::may_be_gid);
            let mut others = Vec::new();
            if may_help && !std::mem::replace(&mut others_tried, true) {
                let rows = gid::rows(table, None).unwrap_or_default().into_iter();
                let rows = rows.filter(|row| row.index != end.gid.index).take(OTHER_ROWS_MAX);
                others.extend(rows.map(|row| go(row, OTHER_MOVE_LIMIT)));
            }
            let their_gid = Ipv6Addr::from(their_gid);
            paths.push(ProbedPath { end: nic.index, remote: remote.name.clone(), their_gid, attempt, others });
        }
        paths
    }
}

impl PathProbe {
    /// Whether the probe failed because the peer's handshake port did not respond.
    fn is_unreachable(&self) -> bool {
        self.result.as_ref().is_err_and(|failure| failure.cause == ProbeFailureCause::Unreachable)
    }
}

/// Returns the GID table of `nic`'s port, without empty entries.
fn table(host: &HostTopology, nic: &Nic) -> Vec<Gid> {
    let device = host.devices.iter().find(|device| device.name == nic.name);
    device.and_then(|device| device.port(u32::from(nic.port))).map(|port| port.gids.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_sys::verbs::CompletionStatus;

    #[test]
    fn other_gids_are_probed_only_if_the_gid_may_be_the_cause() {
        let failure = |step, cause, message: &str| PathProbeFailure { step, cause, message: message.to_owned() };
        let verb = |errno| ProbeFailureCause::Verb { call: "ibv_modify_qp to RTR", errno };
        for (step, cause, message, may) in [
            (DeviceStep::Rtr, verb(22), "", true),
            (DeviceStep::Init, verb(22), "", false),
            (DeviceStep::Dial, ProbeFailureCause::Refused, "Failed to modify QP to RTR, check mtu, gid", true),
            (DeviceStep::Dial, ProbeFailureCause::Refused, "QP count mismatch", false),
            (DeviceStep::Dial, ProbeFailureCause::Unreachable, "", false),
            (DeviceStep::Move, ProbeFailureCause::Silence(MOVE_LIMIT), "", true),
            (DeviceStep::Move, ProbeFailureCause::Completion(CompletionStatus(12)), "", true),
            (DeviceStep::Move, ProbeFailureCause::Completion(CompletionStatus(10)), "", false),
        ] {
            assert_eq!(failure(step, cause, message).may_be_gid(), may, "{step:?} {cause:?}");
        }
    }
}
