//! Device and port attributes, named as in `ibv_devinfo -v`.

use std::fmt;

use serde::{Serialize, Serializer};

/// A device listed by libibverbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    /// The name that libibverbs lists, for example `mlx5_0`.
    pub name: String,
    /// Node GUID, most significant byte first. 0 if the device has none.
    pub guid: u64,
}

/// The attributes of a device, from `ibv_query_device`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceAttributes {
    /// Firmware version, in the vendor's format.
    pub fw_ver: String,
    /// Node GUID, most significant byte first.
    #[serde(skip)]
    pub node_guid: u64,
    /// GUID of the whole adapter.
    #[serde(skip)]
    pub sys_image_guid: u64,
    /// Largest memory region, in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, as a bit mask.
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    /// Maximum number of work requests per queue.
    pub max_qp_wr: u32,
    /// Bits of `enum ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    /// Maximum number of SGEs per work request.
    pub max_sge: u32,
    /// Maximum number of SGEs per READ.
    pub max_sge_rd: u32,
    pub max_cq: u32,
    /// Maximum number of completion queue entries.
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    /// Maximum number of concurrent incoming READs per queue pair.
    pub max_qp_rd_atom: u32,
    /// Maximum number of concurrent incoming READs per device.
    pub max_res_rd_atom: u32,
    /// Maximum number of concurrent outgoing READs per queue pair.
    pub max_qp_init_rd_atom: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    pub max_pkeys: u32,
    /// Maximum acknowledgement delay: 4.096 us times two to the power of this value.
    pub local_ca_ack_delay: u32,
    pub phys_port_cnt: u32,
    pub num_comp_vectors: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortAttributes {
    pub state: PortState,
    /// The largest supported MTU.
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    /// Size of the GID table.
    pub gid_tbl_len: u32,
    /// Size of the P_Key table.
    pub pkey_tbl_len: u32,
    /// Maximum size of a message, in bytes.
    pub max_msg_sz: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    pub sm_lid: u16,
    /// LID mask control: number of LID bits that select a path.
    pub lmc: u8,
    pub link_layer: LinkLayer,
    /// Width code: 1 is 1x, 2 is 4x, 4 is 8x, 8 is 12x, 16 is 2x.
    pub active_width: u8,
    /// Speed code per lane.
    pub active_speed: u8,
    /// Physical state code. 5 is LinkUp.
    pub phys_state: u8,
    /// Bits of `enum ibv_port_cap_flags`.
    pub port_cap_flags: u32,
}

/// A path MTU: the maximum payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u32);

impl Mtu {
    /// 4096 bytes, the largest MTU.
    pub const MAX: Mtu = Mtu(5);

    /// Converts the library's code, 1 to 5. Larger codes from a newer library are clamped to 5.
    pub fn from_code(code: u32) -> Mtu {
        Mtu(code.clamp(1, 5))
    }

    /// Converts a number of bytes: 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        (1..=5).map(Mtu).find(|mtu| mtu.bytes() == bytes)
    }

    /// The value of `enum ibv_mtu`.
    pub fn code(self) -> u32 {
        self.0
    }

    /// The MTU in bytes.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.bytes())
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Logical state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState(pub u32);

impl PortState {
    /// Whether the port carries data.
    pub fn is_active(self) -> bool {
        self.0 == 4
    }

    /// The kernel's name for the state.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "NOP",
            1 => "DOWN",
            2 => "INIT",
            3 => "ARMED",
            4 => "ACTIVE",
            5 => "ACTIVE_DEFER",
            _ => "unknown",
        }
    }
}

impl Serialize for PortState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LinkLayer {
    InfiniBand,
    Ethernet,
    Unspecified,
}

/// A used entry in a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    pub index: u32,
    pub gid: [u8; 16],
    pub kind: VerbsGidKind,
    /// The kernel's index for the GID's network device.
    pub netdev_index: Option<u32>,
}

/// Type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsGidKind {
    Infiniband,
    RoceV1,
    RoceV2,
    Other(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_convert_to_bytes() {
        let bytes: Vec<u32> = (1..=5).map(|code| Mtu::from_code(code).bytes()).collect();
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        assert_eq!((Mtu::from_bytes(1024), Mtu::from_bytes(1500), Mtu::from_code(9)), (Some(Mtu(3)), None, Mtu::MAX));
        assert!(Mtu::from_code(3) < Mtu::MAX);
    }
}
