//! Targets of the transfer engine: handshake frames and JSON documents.

use mcctl::engine::wire::json::{
    ConnectionMessage, HEADER_BYTES, HandshakeFrame, NotifyMessage, RpcMeta, SegmentDescriptor, payload_len,
};

/// Size limit of the handshake port, bytes (upstream's default).
const LIMIT: usize = 1 << 20;

/// Target: the frame of one connection to the handshake port, and the messages in it.
pub fn handshake(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(length) = payload_len(*head, LIMIT) else { return };
    let Some(payload) = rest.get(..length) else { return };
    let frame = HandshakeFrame::split(payload);
    let _ = frame.kind();
    if frame.json().len() + HEADER_BYTES + 2 <= LIMIT {
        let written = frame.encode();
        let (head, rest) = written.split_first_chunk::<HEADER_BYTES>().expect("a frame has a head");
        assert_eq!(payload_len(*head, LIMIT).ok(), Some(rest.len()));
    }
    if let Ok(message) = NotifyMessage::from_json(frame.json()) {
        assert_eq!(NotifyMessage::from_json(message.to_json().as_bytes()).ok().as_ref(), Some(&message));
    }
    if let Ok(message) = ConnectionMessage::from_json(frame.json()) {
        assert_eq!(ConnectionMessage::from_json(message.to_json().as_bytes()).ok().as_ref(), Some(&message));
    }
    segment(frame.json());
}

/// Target: segment descriptors of peers.
pub fn segment(data: &[u8]) {
    let Ok(Some(found)) = SegmentDescriptor::from_json(data) else { return };
    for b in &found.buffers {
        assert!(b.covers(b.address, b.length));
        assert!(!b.covers(b.address, b.length.saturating_add(1)) || b.length == u64::MAX);
        let _ = (b.covers(u64::MAX, 2), b.covers(b.address.wrapping_sub(1), 1), found.buffer(b.address, 0));
    }
    let again = SegmentDescriptor::from_json(found.to_json().as_bytes());
    assert!(matches!(again, Ok(Some(_))), "the document cannot be read back: {again:?}");
}

/// Target: `rpc_meta` records of a metadata service.
pub fn rpc_meta(data: &[u8]) {
    if let Ok(found) = RpcMeta::from_json(data) {
        assert_eq!(RpcMeta::from_json(found.to_json().as_bytes()).ok().as_ref(), Some(&found));
    }
}
