//! A peer's segment descriptor, prepared for use.

use std::sync::Arc;

use crate::TransferError;
use crate::device_fault::{Blame, DeviceFault, DeviceStep};
use crate::rdma::PROTOCOL;
use crate::rdma::route::Rails;
use crate::rdma::slices::Spans;
use mcctl_base::Mono;
use mcctl_wire::json::{DeviceDescriptor, SegmentDescriptor, parse_gid};

/// A parsed descriptor of a peer's segment.
pub(super) struct PeerView {
    /// The segment's name, which identifies the handshake port.
    pub(super) segment: String,
    /// The peer's endpoint paths, in the same order as its devices.
    pub(super) paths: Vec<String>,
    pub(super) rails: Rails,
    pub(super) spans: Spans,
    pub(super) descriptor: SegmentDescriptor,
    /// GIDs of the peer's devices. `None` marks an unusable device.
    gids: Vec<Option<[u8; 16]>>,
    pub(super) read: Mono,
}

/// Returns the error for a peer without a usable device in `descriptor`.
fn no_device(descriptor: &SegmentDescriptor) -> TransferError {
    let (problem, remedy) = if descriptor.devices.is_empty() {
        let problem = "the peer announces no RDMA device (its links may be down)".to_owned();
        (problem, "run mcctl devices (or ibv_devinfo -v) on the peer's host to check that its ports are ACTIVE")
    } else {
        let gid = |device: &DeviceDescriptor| {
            format!("the peer's device {} announces the invalid GID '{}'", device.name, device.gid)
        };
        let problems: Vec<String> = descriptor.devices.iter().map(gid).collect();
        (
            problems.join("; "),
            "run mcctl devices (or ibv_devinfo -v) on the peer's host to check that its devices have addresses",
        )
    };
    TransferError::Device(Arc::new(DeviceFault {
        protocol: PROTOCOL,
        device: String::new(),
        port: 0,
        gid: String::new(),
        peer: descriptor.name.clone(),
        step: DeviceStep::Route,
        problem,
        blame: Blame::Refusal,
        remedy: Some(remedy),
    }))
}

/// Formats an endpoint path: `<server>@<device>`.
pub(super) fn nic_path(server: &str, device: &str) -> String {
    format!("{server}@{device}")
}

impl PeerView {
    /// Parses `descriptor`, which was fetched at `now`.
    ///
    /// # Errors
    /// Fails if it contains no usable device.
    pub(super) fn of(descriptor: &SegmentDescriptor, now: Mono) -> Result<PeerView, TransferError> {
        let segment = descriptor.name.clone();
        let server = match descriptor.rdma_server_name.as_str() {
            "" => &descriptor.name,
            server => server,
        };
        let usable = |text: &str| parse_gid(text).filter(|gid| *gid != [0; 16]);
        let gids: Vec<_> = descriptor.devices.iter().map(|device| usable(&device.gid)).collect();
        if gids.iter().all(Option::is_none) {
            return Err(no_device(descriptor));
        }
        Ok(PeerView {
            paths: descriptor.devices.iter().map(|device| nic_path(server, &device.name)).collect(),
            rails: Rails::of(descriptor),
            spans: descriptor.buffers.iter().map(|buffer| (buffer.address, buffer.length)).collect(),
            gids,
            segment,
            descriptor: descriptor.clone(),
            read: now,
        })
    }

    /// Whether `descriptor` has the same content as this view, apart from the timestamp.
    pub(super) fn is(&self, descriptor: &SegmentDescriptor) -> bool {
        let a = &self.descriptor;
        let b = descriptor;
        a.name == b.name
            && a.rdma_server_name == b.rdma_server_name
            && a.devices == b.devices
            && a.buffers == b.buffers
            && a.priority_matrix == b.priority_matrix
    }

    /// Whether the peer's device has a valid GID.
    pub(super) fn has_device(&self, device: usize) -> bool {
        self.gids.get(device).is_some_and(Option::is_some)
    }

    /// Returns the endpoint path for the peer's device `device`.
    pub(super) fn path(&self, device: usize) -> &str {
        self.paths.get(device).map_or(self.segment.as_str(), String::as_str)
    }

    /// Returns the address of a byte that may be read.
    pub(super) fn readable_address(&self) -> Option<u64> {
        self.descriptor.buffers.iter().find(|buffer| !buffer.rkey.is_empty()).map(|buffer| buffer.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_wire::json::RegionDescriptor;

    fn descriptor() -> SegmentDescriptor {
        let device = |name: &str, gid: &str| DeviceDescriptor { name: name.into(), lid: 0, gid: gid.into() };
        SegmentDescriptor {
            name: "10.0.0.1:15000".into(),
            protocol: "rdma".into(),
            devices: vec![
                device("a", "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:01"),
                device("b", "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00"),
            ],
            buffers: vec![RegionDescriptor {
                name: "*".into(),
                address: 4096,
                length: 100,
                rkey: vec![1, 2],
                lkey: vec![1, 2],
            }],
            ..SegmentDescriptor::default()
        }
    }

    #[test]
    fn a_device_without_a_gid_keeps_its_index_but_is_unused() {
        let view = PeerView::of(&descriptor(), Mono::ZERO).unwrap();
        assert_eq!(view.paths, ["10.0.0.1:15000@a", "10.0.0.1:15000@b"]);
        assert!(view.has_device(0) && !view.has_device(1) && !view.has_device(2));
        assert_eq!((view.readable_address(), view.path(9)), (Some(4096), "10.0.0.1:15000"));
    }

    #[test]
    fn a_peer_without_usable_devices_is_reported_with_its_gids() {
        let fault_of = |descriptor: &SegmentDescriptor| match PeerView::of(descriptor, Mono::ZERO).err() {
            Some(TransferError::Device(fault)) => fault,
            other => panic!("{other:?}"),
        };
        let mut none = descriptor();
        none.devices[0].gid = "zz".into();
        let fault = fault_of(&none);
        assert_eq!(
            (fault.step, fault.blame, fault.peer.as_str()),
            (DeviceStep::Route, Blame::Refusal, "10.0.0.1:15000")
        );
        assert!(fault.problem.contains("device a") && fault.problem.contains("'zz'"), "{fault}");
        assert!(fault.problem.contains("device b") && fault.problem.contains("'00:00:"), "{fault}");
        none.devices.clear();
        assert!(fault_of(&none).problem.contains("no RDMA device"), "{}", fault_of(&none));
    }

    #[test]
    fn paths_use_the_rdma_server_name_and_new_keys_are_a_change() {
        let mut other = descriptor();
        other.rdma_server_name = "192.0.2.1:15000".into();
        assert_eq!(PeerView::of(&other, Mono::ZERO).unwrap().paths[0], "192.0.2.1:15000@a");
        let view = PeerView::of(&descriptor(), Mono::ZERO).unwrap();
        let mut later = descriptor();
        later.timestamp = "later".into();
        assert!(view.is(&later));
        later.buffers[0].rkey[0] = 9;
        assert!(!view.is(&later));
    }
}
