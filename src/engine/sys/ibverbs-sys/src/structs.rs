//! The C structures. Structures that only the library allocates are declared up to the last field
//! that is read here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::constants::{
    ibv_event_type, ibv_mtu, ibv_port_state, ibv_qp_state, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

/// A number in network byte order.
pub type __be64 = u64;

/// Implements `Default` for structures that are valid if all bytes are zero.
macro_rules! zero_is_default {
    ($($name:ident)*) => { $(
        impl Default for $name {
            fn default() -> $name {
                // SAFETY: all fields are numbers, arrays of numbers and raw pointers, for which
                // zeros are valid.
                unsafe { std::mem::zeroed() }
            }
        }
    )* };
}

zero_is_default! {
    ibv_gid ibv_gid_entry ibv_device_attr ibv_port_attr ibv_global_route ibv_ah_attr ibv_qp_cap ibv_qp_init_attr ibv_qp_attr ibv_sge
    ibv_send_wr ibv_send_wr_immediate ibv_send_wr_remote ibv_send_wr_xrc ibv_send_wr_rest ibv_async_event ibv_wc
}

/// A GID: 16 bytes that identify a port.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global,
}

/// The two halves of a GID.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_global {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}

/// An entry in a GID table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    /// A constant of the type `ibv_gid_type`.
    pub gid_type: u32,
    /// Index of the network device. 0 if there is none.
    pub ndev_ifindex: u32,
}

/// A device. Fields after the last one read here are omitted.
#[repr(C)]
pub struct ibv_device {
    pub _ops: [Option<unsafe extern "C" fn()>; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    /// The device file below `/dev/infiniband`, for example `uverbs0`.
    pub dev_name: [c_char; 64],
}

/// An entry in a context's function table that is not called here.
pub type ibv_unused_op = Option<unsafe extern "C" fn()>;

/// A context's function table, in the same order as in C. Fields that begin with `_` are not called
/// here.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_context_ops {
    pub _before_poll_cq: [ibv_unused_op; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _before_post_send: [ibv_unused_op; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _after_post_recv: [ibv_unused_op; 5],
}

/// An open device. Fields after the last one read here are omitted.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    /// Descriptor for asynchronous events.
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// The result of `ibv_query_device`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: u32,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The parameter type in the declaration of `ibv_query_port`: the beginning of an
/// [`ibv_port_attr`].
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}

/// The result of `ibv_query_port`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_port_attr {
    pub state: ibv_port_state::Type,
    pub max_mtu: ibv_mtu::Type,
    pub active_mtu: ibv_mtu::Type,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// A protection domain. Only its address is used.
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// A memory region with its keys.
#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// A shared receive queue. None of its fields are read here.
#[repr(C)]
pub struct ibv_srq {
    _opaque: [u8; 0],
}

/// A channel for completion events.
#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// A completion queue. Fields after the last one read here are omitted.
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// A work completion. If the work request failed, only `wr_id`, `status`, `vendor_err` and `qp_num`
/// are valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// The global routing header of an address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// Address handle attributes: the path to a queue pair's peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// Queue pair capabilities: queue lengths, SGEs per request, inline bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Initial queue pair attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// The attributes of a queue pair, for `ibv_modify_qp` and `ibv_query_qp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state::Type,
    pub cur_qp_state: ibv_qp_state::Type,
    pub path_mtu: ibv_mtu::Type,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// A queue pair. Fields after the last one read here are omitted.
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state::Type,
}

/// A scatter/gather element: a range of local memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A work request for the send queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode::Type,
    /// Flags of the type `ibv_send_flags`.
    pub send_flags: c_uint,
    /// C's first unnamed union, with the name that the `ibverbs` crate uses.
    pub __bindgen_anon_1: ibv_send_wr_immediate,
    pub wr: ibv_send_wr_remote,
    pub qp_type: ibv_send_wr_xrc,
    /// C's second unnamed union.
    pub __bindgen_anon_2: ibv_send_wr_rest,
}

/// A work request's immediate data.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_immediate {
    pub imm_data: u32,
    pub invalidate_rkey: u32,
}

/// A work request's remote operand.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_remote {
    pub rdma: ibv_send_wr_rdma,
    /// Makes the union as large as in C.
    pub atomic: ibv_send_wr_atomic,
}

/// A range of the peer's memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// The operand of an atomic operation. Unused.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The operand for another queue pair type. Unused.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_xrc {
    pub remote_srqn: u32,
}

/// Memory windows and segmentation. Unused; has the same size as in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_rest {
    pub _words: [u64; 6],
}

/// A receive request. mcctl never posts one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

/// The object that an asynchronous event refers to.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub port_num: c_int,
}

/// An asynchronous device event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    pub element: ibv_async_event_element,
    pub event_type: ibv_event_type::Type,
}
