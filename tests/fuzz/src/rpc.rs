//! The master's RPC: frames, every method's arguments and answers.

use mcctl::engine::wire::frame::{self, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader};
use mcctl::engine::wire::method::{Method, transcode};

/// What one connection sends, frame after frame: as the server reads it, then as a client reads answers.
pub fn stream(mut data: &[u8]) {
    let whole = data;
    while let Some((head, rest)) = data.split_first_chunk::<REQUEST_HEADER_BYTES>() {
        let Ok(header) = RequestHeader::decode(head) else { break };
        assert_eq!(RequestHeader::decode(&header.encode()).ok(), Some(header));
        let Some((body, rest)) = rest.split_at_checked(header.length as usize) else { break };
        if let Some(method) = Method::from_id(header.function_id) {
            again(method, body, transcode::request);
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

/// One method's arguments: the first byte chooses the method, and the type hash is put right, so that the fuzzer spends its
/// time behind that check.
pub fn request(data: &[u8]) {
    let Some((method, args)) = pick(data) else { return };
    let body = match method.request_type() {
        Some(info) => [&info.hash().to_le_bytes(), args].concat(),
        None => args.to_vec(),
    };
    again(method, &body, transcode::request);
}

/// One method's answer, chosen likewise.
pub fn response(data: &[u8]) {
    let Some((method, answer)) = pick(data) else { return };
    let body = [&method.response_type().hash().to_le_bytes(), answer].concat();
    again(method, &body, transcode::response);
}

fn pick(data: &[u8]) -> Option<(Method, &[u8])> {
    let (first, rest) = data.split_first()?;
    Some((Method::ALL[usize::from(*first) % Method::ALL.len()], rest))
}

/// What decodes is written again, and what was written decodes to the same.
fn again<E>(method: Method, body: &[u8], transcode: impl Fn(Method, &[u8], bool) -> Result<(String, Vec<u8>), E>) {
    let Ok((shown, written)) = transcode(method, body, false) else { return };
    let Ok((shown_again, with_literal)) = transcode(method, &written, true) else {
        panic!("{method:?}: what was written does not decode")
    };
    assert_eq!(shown, shown_again);
    assert!(transcode(method, &with_literal, false).is_ok(), "{method:?}: with its literal it does not decode");
}
