//! What a device and its ports tell of themselves, by the names of `ibv_devinfo -v`.

use std::fmt;

use serde::{Serialize, Serializer};

/// A device that libibverbs lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// For instance `mlx5_0`.
    pub name: String,
    /// Its node GUID, the most significant byte first; 0 where it has none.
    pub guid: u64,
}

/// Attributes of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceAttributes {
    /// Firmware version, the maker's words.
    pub fw_ver: String,
    /// The most significant byte first.
    #[serde(skip)]
    pub node_guid: u64,
    /// The same of the whole adapter.
    #[serde(skip)]
    pub sys_image_guid: u64,
    /// Largest memory region, bytes.
    pub max_mr_size: u64,
    /// Page sizes it can register, as bits.
    pub page_size_cap: u64,
    /// The maker.
    pub vendor_id: u32,
    /// The chip.
    pub vendor_part_id: u32,
    /// The chip's version.
    pub hw_ver: u32,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most work requests of a queue.
    pub max_qp_wr: u32,
    /// Bits of what it can do.
    pub device_cap_flags: u32,
    /// Most stretches of memory in a work request.
    pub max_sge: u32,
    /// The same of a READ.
    pub max_sge_rd: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most READs that a pair answers at a time.
    pub max_qp_rd_atom: u32,
    /// The same of the whole device.
    pub max_res_rd_atom: u32,
    /// Most READs that a pair has under way.
    pub max_qp_init_rd_atom: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most P_Keys.
    pub max_pkeys: u32,
    /// How long it may take to acknowledge: 4.096 us times two to this.
    pub local_ca_ack_delay: u32,
    /// Ports.
    pub phys_port_cnt: u32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
}

/// Attributes of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortAttributes {
    /// Logical state.
    pub state: PortState,
    /// The largest MTU it can do.
    pub max_mtu: Mtu,
    /// The MTU now.
    pub active_mtu: Mtu,
    /// Rows of the GID table.
    pub gid_tbl_len: u32,
    /// Rows of the P_Key table.
    pub pkey_tbl_len: u32,
    /// Largest message, bytes.
    pub max_msg_sz: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The subnet manager's.
    pub sm_lid: u16,
    /// Bits of the LID that choose a path.
    pub lmc: u8,
    /// What carries it.
    pub link_layer: LinkLayer,
    /// Code of the width: 1 is one lane, 2 four, 4 eight, 8 twelve, 16 two.
    pub active_width: u8,
    /// Code of the speed of a lane.
    pub active_speed: u8,
    /// Code of the physical state; 5 is up.
    pub phys_state: u8,
    /// Bits of what it can do.
    pub port_cap_flags: u32,
}

/// How much of a message a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u32);

impl Mtu {
    /// 4096 bytes, the largest.
    pub const MAX: Mtu = Mtu(5);

    /// The library's code, 1 to 5. What a newer library knows beyond is the largest that is known here.
    pub fn from_code(code: u32) -> Mtu {
        Mtu(code.clamp(1, 5))
    }

    /// Of so many bytes: 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        (1..=5).map(Mtu).find(|mtu| mtu.bytes() == bytes)
    }

    /// The library's code.
    pub fn code(self) -> u32 {
        self.0
    }

    /// Bytes.
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
    /// Does it carry data?
    pub fn is_active(self) -> bool {
        self.0 == 4
    }

    /// The kernel's word.
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

/// What carries a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
    /// Something else.
    Unspecified,
}

/// A row of a GID table that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidRow {
    /// Its number.
    pub index: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
    /// The kernel's number of its network device.
    pub netdev_index: Option<u32>,
}

/// What a GID is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE v1.
    RoceV1,
    /// RoCE v2.
    RoceV2,
    /// Unknown here.
    Other(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_a_code_and_a_number_of_bytes() {
        let bytes: Vec<u32> = (1..=5).map(|code| Mtu::from_code(code).bytes()).collect();
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        assert_eq!((Mtu::from_bytes(1024), Mtu::from_bytes(1500), Mtu::from_code(9)), (Some(Mtu(3)), None, Mtu::MAX));
        assert!(Mtu::from_code(3) < Mtu::MAX);
    }
}
