//! Targets of the master's RPC: frames, and the arguments and responses of every method.

use mcctl::engine::wire::frame::{self, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader};
use mcctl::engine::wire::method::{Method, transcode};
use mcctl::engine::wire::{MethodLayout, Release};

/// Target: the frames of one connection, read first as the server reads requests, then as a client
/// reads responses.
pub fn stream(mut data: &[u8]) {
    let whole = data;
    while let Some((head, rest)) = data.split_first_chunk::<REQUEST_HEADER_BYTES>() {
        let Ok(header) = RequestHeader::decode(head) else { break };
        assert_eq!(RequestHeader::decode(&header.encode()).ok(), Some(header));
        let Some((body, rest)) = rest.split_at_checked(header.length as usize) else { break };
        if let Some(method) = Method::from_id(header.function_id) {
            let releases = method.releases_of_request(body);
            releases.iter().filter_map(|release| method.layout(release)).for_each(|layout| {
                check_round_trip(method, layout, body, transcode::request);
            });
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

/// Target: the arguments of one method. The first byte selects the method, and its arguments are
/// decoded as those of every release. The type hash is inserted, so that inputs pass that check.
pub fn request(data: &[u8]) {
    let Some((method, args)) = pick(data) else { return };
    for layout in layouts(method) {
        let body = match layout.request() {
            Some(info) => [&info.hash().to_le_bytes(), args].concat(),
            None => args.to_vec(),
        };
        check_round_trip(method, layout, &body, transcode::request);
    }
}

fn layouts(method: Method) -> impl Iterator<Item = &'static MethodLayout> {
    Release::ALL.iter().filter_map(move |release| method.layout(*release))
}

/// Target: the response of one method, selected in the same way.
pub fn response(data: &[u8]) {
    let Some((method, answer)) = pick(data) else { return };
    for layout in layouts(method) {
        let body = [&layout.response().hash().to_le_bytes(), answer].concat();
        check_round_trip(method, layout, &body, transcode::response);
    }
}

fn pick(data: &[u8]) -> Option<(Method, &[u8])> {
    let (first, rest) = data.split_first()?;
    Some((Method::ALL[usize::from(*first) % Method::ALL.len()], rest))
}

/// Encodes what `body` decodes to, and checks that this decodes to the same value.
fn check_round_trip<E>(
    method: Method,
    layout: &MethodLayout,
    body: &[u8],
    transcode: impl Fn(Method, &MethodLayout, &[u8], bool) -> Result<(String, Vec<u8>), E>,
) {
    let release = layout.release();
    let Ok((shown, written)) = transcode(method, layout, body, false) else { return };
    let Ok((shown_after, with_literal)) = transcode(method, layout, &written, true) else {
        panic!("{method:?} in {release}: no round trip")
    };
    assert_eq!(shown, shown_after);
    let again = transcode(method, layout, &with_literal, false);
    assert!(again.is_ok(), "{method:?} in {release}: no round trip with the type literal");
}
