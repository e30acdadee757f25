//! Clients' memory segments.

use crate::pack::{TextBuf, wire_number, wire_struct};
use mcctl_base::{ClientId, SegmentId};

wire_number! {
    /// Whether the client's segments are registered with the master.
    pub struct ClientStatus(i32) {
        UNDEFINED = 0,
        OK = 1,
        /// The client's segments are not (or no longer) mounted: send `ReMountSegment`.
        NEED_REMOUNT = 2,
    }
}

wire_number! {
    /// Lifecycle state of a segment.
    pub struct SegmentStatus(i32) {
        UNDEFINED = 0,
        OK = 1,
        /// Its objects are being moved to other segments.
        DRAINING = 2,
        DRAINED = 3,
        /// Readable until its grace period ends; accepts no new objects.
        GRACEFULLY_UNMOUNTING = 4,
        UNMOUNTING = 5,
    }
}

wire_struct! {
    /// A range of a client's memory in which the master may allocate.
    pub struct Segment {
        /// Chosen by the client.
        pub id: SegmentId,
        /// The client's `host:port`. Several of a client's segments may share a name.
        pub name: TextBuf,
        /// First virtual address in the client's process.
        pub base: u64,
        pub size: u64,
        /// Endpoint to which the transfer engine connects. In 0.3.6, it is the name.
        pub te_endpoint: TextBuf [since V0_3_7 else name.clone()],
        /// `tcp` or `rdma`.
        pub protocol: TextBuf [since V0_3_9 else TextBuf::from("tcp")],
        /// The client's host; may be empty.
        pub host_id: TextBuf [since V0_3_12],
    }
}

wire_struct! {
    /// A range of NVMe-oF storage.
    pub struct NofSegment {
        pub id: SegmentId,
        pub name: TextBuf,
        /// Offset of the first byte.
        pub base: u64,
        pub size: u64,
        /// Endpoint of the NVMe-oF storage.
        pub te_endpoint: TextBuf,
    }
}

wire_struct! {
    /// The owner of an NVMe-oF segment.
    pub struct NofSegmentOwner {
        pub segment_id: SegmentId,
        pub client_id: ClientId,
    }
}
