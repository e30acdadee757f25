//! Targets: the stream between masters.

use bytes::BytesMut;
use mcctl::engine::ha::HaMessage;
use mcctl::engine::ha::frame::{FrameKind, put_frame, take_frame};
use mcctl::engine::ha::message::{Changes, ClientPings, SnapshotEnd};

/// Target: frames from the network, and payloads in a valid frame.
pub fn stream(data: &[u8]) {
    let mut input = BytesMut::from(data);
    while let Ok(Some(_)) = take_frame(&mut input) {}
    let mut bytes = Vec::new();
    put_frame(&mut bytes, FrameKind::Changes, 1, 2, data);
    let frame = take_frame(&mut BytesMut::from(&bytes[..])).unwrap().unwrap();
    assert_eq!(frame.payload, data);
    payload(data);
}

fn payload(data: &[u8]) {
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        bytes
    };
    if let Ok(message) = HaMessage::decode(data) {
        assert_eq!(HaMessage::decode(&encoded(&|out| message.encode(out))), Ok(message));
    }
    if let Ok(changes) = Changes::decode(data) {
        let again = encoded(&|out| {
            Changes::begin(out, changes.written);
            changes.iter().for_each(|change| Changes::add(out, change));
        });
        assert_eq!(again, data);
    }
    if let Ok(end) = SnapshotEnd::decode(data) {
        assert_eq!(encoded(&|out| end.encode(out)), data);
    }
    if let Ok(pings) = ClientPings::decode(data) {
        assert_eq!(encoded(&|out| pings.encode(out)), data);
    }
}

/// A frame, and one payload of each kind.
pub fn stream_seeds() -> Vec<Vec<u8>> {
    let mut frame = Vec::new();
    let mut changes = Vec::new();
    let mut pings = Vec::new();
    put_frame(&mut frame, FrameKind::Control, 1, 2, &[4]);
    Changes::begin(&mut changes, mcctl::engine::base::Unix(1));
    Changes::add(&mut changes, b"change");
    ClientPings(vec![(mcctl::engine::base::ClientId(1, 2), 3)]).encode(&mut pings);
    vec![frame, changes, pings, vec![1; 25], vec![4]]
}
