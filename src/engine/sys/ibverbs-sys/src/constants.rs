//! Values of the C enumerations. Values returned by the library are plain numbers, because a newer
//! library may define more values.

use std::ops::{BitAnd, BitOr, BitOrAssign};

/// Declares an enumeration as a module of numbers.
macro_rules! numbers {
    ($( $(#[$doc:meta])* mod $name:ident { $($value:ident = $number:expr,)* } )*) => { $(
        $(#[$doc])*
        pub mod $name {
            /// The type of the values.
            pub type Type = u32;
            $(
                #[doc = concat!("`", stringify!($value), "`.")]
                pub const $value: Type = $number;
            )*
        }
    )* };
}

/// Declares an enumeration of flag bits.
macro_rules! bits {
    ($( $(#[$doc:meta])* struct $name:ident { $($value:ident = $bit:expr,)* } )*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl $name {
            $(
                #[doc = concat!("`", stringify!($value), "`.")]
                pub const $value: $name = $name(1 << $bit);
            )*
        }

        impl BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = $name;
            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }
    )* };
}

/// GID table entry types.
pub type ibv_gid_type = u32;
pub const IBV_GID_TYPE_IB: ibv_gid_type = 0;
pub const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = 1;
/// RoCE v2, which is sent over UDP/IP.
pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = 2;

/// Unspecified port link layer.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

numbers! {
    /// Codes of `ibv_port_attr::active_mtu` and `ibv_qp_attr::path_mtu`.
    mod ibv_mtu {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }
    /// Values of the field `ibv_port_attr::state`.
    mod ibv_port_state {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
    /// Types of the events that `ibv_get_async_event` returns.
    mod ibv_event_type {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12,
        IBV_EVENT_SM_CHANGE = 13,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18,
        IBV_EVENT_WQ_FATAL = 19,
    }
    /// Values of the field `ibv_wc::status`.
    mod ibv_wc_status {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
    /// Work completion opcodes, for the work requests used here.
    mod ibv_wc_opcode {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
    }
    mod ibv_qp_type {
        IBV_QPT_RC = 2,
        IBV_QPT_UC = 3,
        IBV_QPT_UD = 4,
    }
    /// Values of the field `ibv_qp_attr::qp_state`.
    mod ibv_qp_state {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6,
        IBV_QPS_UNKNOWN = 7,
    }
    /// Values of the field `ibv_send_wr::opcode`.
    mod ibv_wr_opcode {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_SEND = 2,
        IBV_WR_RDMA_READ = 4,
    }
}

bits! {
    /// Access flags for memory regions and queue pairs.
    struct ibv_access_flags {
        IBV_ACCESS_LOCAL_WRITE = 0,
        IBV_ACCESS_REMOTE_WRITE = 1,
        IBV_ACCESS_REMOTE_READ = 2,
        IBV_ACCESS_REMOTE_ATOMIC = 3,
        IBV_ACCESS_RELAXED_ORDERING = 20,
    }
    /// Flags that select queue pair attributes.
    struct ibv_qp_attr_mask {
        IBV_QP_STATE = 0,
        IBV_QP_ACCESS_FLAGS = 3,
        IBV_QP_PKEY_INDEX = 4,
        IBV_QP_PORT = 5,
        IBV_QP_AV = 7,
        IBV_QP_PATH_MTU = 8,
        IBV_QP_TIMEOUT = 9,
        IBV_QP_RETRY_CNT = 10,
        IBV_QP_RNR_RETRY = 11,
        IBV_QP_RQ_PSN = 12,
        IBV_QP_MAX_QP_RD_ATOMIC = 13,
        IBV_QP_MIN_RNR_TIMER = 15,
        IBV_QP_SQ_PSN = 16,
        IBV_QP_MAX_DEST_RD_ATOMIC = 17,
        IBV_QP_CAP = 19,
        IBV_QP_DEST_QPN = 20,
    }
    /// Bits of the field `ibv_send_wr::send_flags`.
    struct ibv_send_flags {
        IBV_SEND_FENCE = 0,
        IBV_SEND_SIGNALED = 1,
        IBV_SEND_SOLICITED = 2,
        IBV_SEND_INLINE = 3,
    }
}
