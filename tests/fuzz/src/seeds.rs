//! Seeds, made of the captured bytes in `fixtures`.

use mcctl::engine::wire::Release;
use mcctl::engine::wire::frame::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader};
use mcctl::engine::wire::method::Method;

use super::fixtures;

/// The frames of every RPC capture, with the direction: true is client to master.
fn frames() -> Vec<(bool, Vec<u8>)> {
    let mut found = Vec::new();
    let releases = Release::ALL.iter().map(|release| fixtures().join("wire").join(release.name()));
    let files = releases.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    for entry in files {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_none_or(|e| e != "hex") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let mut from_client = None;
        for line in text.lines() {
            if line.contains("C->M") || line.contains("M->C") {
                from_client = Some(line.contains("C->M"));
            } else if line.starts_with("15") && line.bytes().all(|b| b.is_ascii_hexdigit() || b == b' ') {
                let digits: Vec<u8> = line.bytes().filter(|b| *b != b' ').collect();
                let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
                if let (Some(from_client), Some(bytes)) = (from_client.take(), digits.chunks(2).map(byte).collect()) {
                    found.push((from_client, bytes));
                }
            }
        }
    }
    found
}

/// Complete frames of both directions.
pub fn rpc_frames() -> Vec<Vec<u8>> {
    frames().into_iter().map(|(_, bytes)| bytes).collect()
}

fn index(method: Method) -> u8 {
    Method::ALL.iter().position(|m| *m == method).map_or(0, |i| i as u8)
}

/// Request bodies after the index of their method, without the type hash.
pub fn rpc_requests() -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = (0..Method::ALL.len() as u8).map(|i| vec![i; 24]).collect();
    for (_, frame) in frames().iter().filter(|(from_client, _)| *from_client) {
        if let Some((head, body)) = frame.split_first_chunk::<REQUEST_HEADER_BYTES>()
            && let Ok(header) = RequestHeader::decode(head)
            && let Some(method) = Method::from_id(header.function_id)
        {
            out.push([&[index(method)], body.get(4..).unwrap_or_default()].concat());
        }
    }
    out
}

/// Response bodies after the index of a method with that response type.
pub fn rpc_responses() -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = (0..Method::ALL.len() as u8).map(|i| vec![i; 24]).collect();
    for (_, frame) in frames().iter().filter(|(from_client, _)| !*from_client) {
        let Some(body) = frame.get(RESPONSE_HEADER_BYTES..).filter(|b| b.len() >= 4) else { continue };
        let hash = u32::from_le_bytes([body[0], body[1], body[2], body[3]]) & !1;
        let is_of = |method: &&Method| !method.releases_of_response(&hash.to_le_bytes()).is_empty();
        for method in Method::ALL.iter().filter(is_of) {
            out.push([&[index(*method)], &body[4..]].concat());
        }
    }
    out
}

/// The JSON documents of the transfer engine.
pub fn documents() -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(fixtures().join("te/segments.txt")).expect("fixtures/te exists");
    text.lines().filter(|l| l.starts_with('{')).map(|l| l.as_bytes().to_vec()).collect()
}

/// The same documents and small ones, as handshake frames of each kind.
pub fn handshakes() -> Vec<Vec<u8>> {
    let small = ["{}", r#"{"name":"a","notify_msg":"b"}"#, r#"{"status":"success"}"#].map(|t| t.as_bytes().to_vec());
    let all = documents().into_iter().chain(small);
    all.flat_map(|json| {
        (0..4u8).map(move |kind| {
            let length = (json.len() + 1) as u64;
            [&length.to_le_bytes()[..], &[kind], &json].concat()
        })
    })
    .collect()
}
