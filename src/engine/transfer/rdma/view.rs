//! A peer's descriptor, made ready for use.

use std::sync::Arc;

use crate::engine::base::Mono;
use crate::engine::transfer::TransferError;
use crate::engine::transfer::rdma::fault::{Blame, RdmaFault, RdmaStep};
use crate::engine::transfer::rdma::route::Rails;
use crate::engine::transfer::rdma::slices::Spans;
use crate::engine::wire::json::{Device, SegmentDescriptor, parse_gid};

/// What we know of a segment.
pub(super) struct View {
    /// Its name: by it its handshake port is found.
    pub(super) segment: String,
    /// Its ends of connections, in the order of its devices.
    pub(super) paths: Vec<String>,
    pub(super) rails: Rails,
    /// Its registered memory.
    pub(super) spans: Spans,
    pub(super) descriptor: SegmentDescriptor,
    /// Of its devices; `None` for one that it cannot use.
    gids: Vec<Option<[u8; 16]>>,
    pub(super) read: Mono,
}

/// None of the devices that `descriptor` announces can be used.
fn no_device(descriptor: &SegmentDescriptor) -> TransferError {
    let (problem, remedy) = if descriptor.devices.is_empty() {
        let problem = "it announces no device: all of its links may be down".to_owned();
        (problem, "see with mcctl devices (or ibv_devinfo -v) at the peer whether its ports are ACTIVE")
    } else {
        let gid =
            |device: &Device| format!("its device {} has the GID '{}', which is no address", device.name, device.gid);
        let problems: Vec<String> = descriptor.devices.iter().map(gid).collect();
        (
            problems.join("; "),
            "see with mcctl devices (or ibv_devinfo -v) at the peer whether its devices have addresses",
        )
    };
    TransferError::Rdma(Arc::new(RdmaFault {
        device: String::new(),
        port: 0,
        gid: String::new(),
        peer: descriptor.name.clone(),
        step: RdmaStep::Route,
        problem,
        blame: Blame::Refusal,
        remedy: Some(remedy),
    }))
}

/// An end of a connection: `<server>@<device>`.
pub(super) fn nic_path(server: &str, device: &str) -> String {
    format!("{server}@{device}")
}

impl View {
    /// What `descriptor` says, which was read at `now`.
    ///
    /// # Errors
    /// It has no device that can be used.
    pub(super) fn of(descriptor: &SegmentDescriptor, now: Mono) -> Result<View, TransferError> {
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
        Ok(View {
            paths: descriptor.devices.iter().map(|device| nic_path(server, &device.name)).collect(),
            rails: Rails::of(descriptor),
            spans: descriptor.buffers.iter().map(|buffer| (buffer.address, buffer.length)).collect(),
            gids,
            segment,
            descriptor: descriptor.clone(),
            read: now,
        })
    }

    /// Does `descriptor` say the same?
    pub(super) fn is(&self, descriptor: &SegmentDescriptor) -> bool {
        let (a, b) = (&self.descriptor, descriptor);
        a.name == b.name
            && a.rdma_server_name == b.rdma_server_name
            && a.devices == b.devices
            && a.buffers == b.buffers
            && a.priority_matrix == b.priority_matrix
    }

    /// Can its device be used, as far as it says?
    pub(super) fn has_device(&self, device: usize) -> bool {
        self.gids.get(device).is_some_and(Option::is_some)
    }

    /// Its end of a connection to its device `device`.
    pub(super) fn path(&self, device: usize) -> &str {
        self.paths.get(device).map_or(self.segment.as_str(), String::as_str)
    }

    /// The address of some byte that may be read.
    pub(super) fn some_byte(&self) -> Option<u64> {
        self.descriptor.buffers.iter().find(|buffer| !buffer.rkey.is_empty()).map(|buffer| buffer.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::wire::json::Buffer;

    fn descriptor() -> SegmentDescriptor {
        let device = |name: &str, gid: &str| Device { name: name.into(), lid: 0, gid: gid.into() };
        SegmentDescriptor {
            name: "10.0.0.1:15000".into(),
            protocol: "rdma".into(),
            devices: vec![
                device("a", "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:01"),
                device("b", "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00"),
            ],
            buffers: vec![Buffer { name: "*".into(), address: 4096, length: 100, rkey: vec![1, 2], lkey: vec![1, 2] }],
            ..SegmentDescriptor::default()
        }
    }

    #[test]
    fn a_device_without_an_address_keeps_its_place_and_is_not_used() {
        let view = View::of(&descriptor(), Mono::ZERO).unwrap();
        assert_eq!(view.paths, ["10.0.0.1:15000@a", "10.0.0.1:15000@b"]);
        assert!(view.has_device(0) && !view.has_device(1) && !view.has_device(2));
        assert_eq!((view.some_byte(), view.path(9)), (Some(4096), "10.0.0.1:15000"));
    }

    #[test]
    fn who_has_no_device_that_can_be_used_is_told_with_its_devices_and_their_addresses() {
        let told = |descriptor: &SegmentDescriptor| View::of(descriptor, Mono::ZERO).err().unwrap().to_string();
        let mut none = descriptor();
        none.devices[0].gid = "zz".into();
        let text = "rdma to 10.0.0.1:15000: its device a has the GID 'zz', which is no address; its device b has the GID \
                    '00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00', which is no address while finding a way to the peer";
        assert_eq!(told(&none), text);
        none.devices.clear();
        assert!(told(&none).contains("it announces no device"), "{}", told(&none));
    }

    #[test]
    fn another_name_for_rdma_is_in_the_paths_and_a_new_key_is_a_change() {
        let mut other = descriptor();
        other.rdma_server_name = "192.0.2.1:15000".into();
        assert_eq!(View::of(&other, Mono::ZERO).unwrap().paths[0], "192.0.2.1:15000@a");
        let view = View::of(&descriptor(), Mono::ZERO).unwrap();
        let mut later = descriptor();
        later.timestamp = "later".into();
        assert!(view.is(&later));
        later.buffers[0].rkey[0] = 9;
        assert!(!view.is(&later));
    }
}
