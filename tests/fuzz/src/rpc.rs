//! Targets of the master's RPC: frames, and the arguments and responses of every method.

use mcctl::engine::wire::frame::{self, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader};
use mcctl::engine::wire::method::{Method, transcode};

/// Target: the frames of one connection, read first as the server reads requests, then as a client
/// reads responses.
pub fn stream(mut data: &[u8]) {
    let whole = data;
    while let Some((head, rest)) = data.split_first_chunk::<REQUEST_HEADER_BYTES>() {
        let Ok(header) = RequestHeader::decode(head) else { break };
        assert_eq!(RequestHeader::decode(&header.encode()).ok(), Some(header));
        let Some((body, rest)) = rest.split_at_checked(header.length as usize) else { break };
        if let Some(method) = Method::from_id(header.function_id) {
            check_round_trip(method, body, transcode::request);
        }
        let Some(rest) = rest.get(header.attachment as usize..) else { break };
        data = rest;
    }
    if let Some((head, rest)) = whole.split_first_chunk::<RESPONSE_HEADER_BYTES>()
        && let Ok(header) = ResponseHeader::decode(head)
    {
        assert_eq!(ResponseHeader::decode(&header.encode()).ok(), Some(header));
        let _ = frame::error_message(rest);
    }
}

/// Target: the arguments of one method. The first byte selects the method. The type hash is
/// inserted, so that inputs pass that check.
pub fn request(data: &[u8]) {
    let Some((method, args)) = pick(data) else { return };
    let body = match method.request_type() {
        Some(info) => [&info.hash().to_le_bytes(), args].concat(),
        None => args.to_vec(),
    };
    check_round_trip(method, &body, transcode::request);
}

/// Target: the response of one method, selected in the same way.
pub fn response(data: &[u8]) {
    let Some((method, answer)) = pick(data) else { return };
    let body = [&method.response_type().hash().to_le_bytes(), answer].concat();
    check_round_trip(method, &body, transcode::response);
}

fn pick(data: &[u8]) -> Option<(Method, &[u8])> {
    let (first, rest) = data.split_first()?;
    Some((Method::ALL[usize::from(*first) % Method::ALL.len()], rest))
}

/// Encodes what `body` decodes to, and checks that this decodes to the same value.
fn check_round_trip<E>(
    method: Method,
    body: &[u8],
    transcode: impl Fn(Method, &[u8], bool) -> Result<(String, Vec<u8>), E>,
) {
    let Ok((shown, written)) = transcode(method, body, false) else { return };
    let Ok((shown_after, with_literal)) = transcode(method, &written, true) else {
        panic!("{method:?}: no round trip")
    };
    assert_eq!(shown, shown_after);
    assert!(transcode(method, &with_literal, false).is_ok(), "{method:?}: no round trip with the type literal");
}
