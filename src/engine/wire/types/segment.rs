//! Memory that clients lend.

use crate::engine::base::{ClientId, SegmentId};
use crate::engine::wire::pack::{TextBuf, wire_number, wire_struct};

wire_number! {
    /// Whether the master knows the client's segments.
    pub struct ClientStatus(i32) {
        /// Not said.
        UNDEFINED = 0,
        /// It does.
        OK = 1,
        /// It does not (any more): send `ReMountSegment`.
        NEED_REMOUNT = 2,
    }
}

wire_number! {
    /// Where a segment is in its life.
    pub struct SegmentStatus(i32) {
        /// Not said.
        UNDEFINED = 0,
        /// Mounted.
        OK = 1,
        /// Its objects are being moved away.
        DRAINING = 2,
        /// They have been.
        DRAINED = 3,
        /// Readable until its grace period ends; takes no new objects.
        GRACEFULLY_UNMOUNTING = 4,
        /// Going.
        UNMOUNTING = 5,
    }
}

wire_struct! {
    /// A stretch of a client's memory that the master may fill.
    pub struct Segment {
        /// Its id, chosen by the client.
        pub id: SegmentId,
        /// Its name: the client's `host:port`. Several segments of one client may share it.
        pub name: TextBuf,
        /// Virtual address of its first byte in the client.
        pub base: u64,
        /// Its length, bytes.
        pub size: u64,
        /// What to open with the transfer engine to reach it.
        pub te_endpoint: TextBuf,
        /// `tcp` or `rdma`.
        pub protocol: TextBuf,
        /// Host of the client; may be empty.
        pub host_id: TextBuf,
    }
}

wire_struct! {
    /// A stretch of NVMe-oF storage.
    pub struct NofSegment {
        /// Its id.
        pub id: SegmentId,
        /// Its name.
        pub name: TextBuf,
        /// First byte.
        pub base: u64,
        /// Length, bytes.
        pub size: u64,
        /// How to reach it.
        pub te_endpoint: TextBuf,
    }
}

wire_struct! {
    /// Who mounted an NVMe-oF segment.
    pub struct NofSegmentOwner {
        /// The segment.
        pub segment_id: SegmentId,
        /// Its owner.
        pub client_id: ClientId,
    }
}
