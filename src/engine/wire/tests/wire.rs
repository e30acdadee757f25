//! Messages of real peers: every frame in `fixtures/wire` decodes, and encodes to the same bytes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use mcctl_wire::frame::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, RpcErrc};
use mcctl_wire::method::transcode;
use mcctl_wire::{Method, pack::DecodeError};
use proptest::prelude::*;

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/wire/0.3.13.post1").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_method_has_the_real_masters_id_and_type_hashes() {
    let mut named = BTreeSet::new();
    for line in fixture("methods.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, id, request, response] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let method = *Method::ALL.iter().find(|m| m.name() == name).unwrap_or_else(|| panic!("no {name}"));
        let hash = method.request_type().map_or("-".to_owned(), |t| format!("{:08x}", t.hash()));
        assert_eq!(
            (format!("{:08x}", method.id()), hash, format!("{:08x}", method.response_type().hash())),
            (id.to_owned(), request.to_owned(), response.to_owned()),
            "{name}"
        );
        assert_eq!(Method::from_id(method.id()), Some(method));
        named.insert(name.to_owned());
    }
    let missing: Vec<&str> = Method::ALL.iter().map(|m| m.name()).filter(|name| !named.contains(*name)).collect();
    assert_eq!(missing, [""; 0], "not in methods.txt");
}

/// The frames of one capture: direction and bytes. Truncated ones (`…`) are skipped.
fn frames(text: &str) -> Vec<(bool, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut request = None;
    for line in text.lines() {
        if line.contains("C->M") || line.contains("M->C") {
            request = Some(line.contains("C->M"));
        } else if line.starts_with("15")
            && line.bytes().all(|b| b.is_ascii_hexdigit() || b == b' ')
            && let Some(request) = request.take()
        {
            frames.push((request, unhex(line)));
        }
    }
    frames
}

fn check_capture(name: &str, least: usize) {
    let mut asked = std::collections::HashMap::new();
    let mut checked = 0;
    for (is_request, frame) in frames(&fixture(name)) {
        let result: Result<(String, Vec<u8>), DecodeError>;
        let (body, what);
        if is_request {
            let header = RequestHeader::decode(frame[..REQUEST_HEADER_BYTES].try_into().unwrap()).unwrap();
            let method = Method::from_id(header.function_id).expect("a known method");
            asked.insert(header.seq, method);
            body = &frame[REQUEST_HEADER_BYTES..];
            assert_eq!(body.len(), header.length as usize);
            assert_eq!(frame[..REQUEST_HEADER_BYTES], header.encode());
            result = transcode::request(method, body, body.get(4) == Some(&4));
            what = format!("{name}: request {}", method.name());
        } else {
            let header = ResponseHeader::decode(frame[..RESPONSE_HEADER_BYTES].try_into().unwrap()).unwrap();
            body = &frame[RESPONSE_HEADER_BYTES..];
            if header.error != RpcErrc::OK || body.len() != header.length as usize {
                continue;
            }
            // Several connections in a capture share sequence numbers, but their answers differ in
            // the type hash.
            let hash = u32::from_le_bytes(body[..4].try_into().unwrap()) & !1;
            let method = asked.get(&header.seq).copied().filter(|m| m.response_type().hash() == hash);
            let Some(method) =
                method.or_else(|| Method::ALL.iter().copied().find(|m| m.response_type().hash() == hash))
            else {
                panic!("{name}: an answer of unknown type {hash:#x}")
            };
            result = transcode::response(method, body, body[4] & 4 != 0);
            what = format!("{name}: response {}", method.name());
        }
        let (shown, again) = result.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(again, body, "{what}: {shown}");
        checked += 1;
    }
    assert!(checked >= least, "{name}: only {checked} frames");
}

#[test]
fn captured_messages_with_peer_handshakes_round_trip() {
    check_capture("client-p2phandshake.hex", 50);
}

#[test]
fn captured_messages_with_a_metadata_server_round_trip() {
    check_capture("client-httpmeta.hex", 50);
}

#[test]
fn captured_messages_over_a_master_restart_round_trip() {
    check_capture("client-master-restart.hex", 70);
}

#[test]
fn captured_messages_of_the_store_service_round_trip() {
    check_capture("store-service.hex", 18);
}

#[test]
fn canonical_requests_accepted_by_the_real_master_round_trip() {
    check_capture("foreign-client.hex", 100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn arbitrary_bytes_never_panic_and_decoded_values_round_trip(
        index in 0usize..Method::ALL.len(), tail in prop::collection::vec(any::<u8>(), 0..200), flags in prop::option::of(0u8..32)
    ) {
        let method = Method::ALL[index];
        for request in [true, false] {
            let Some(info) = (if request { method.request_type() } else { Some(method.response_type()) }) else { continue };
            let mut body = (info.hash() | u32::from(flags.is_some())).to_le_bytes().to_vec();
            if let Some(flags) = flags {
                body.push(flags);
                if flags & 4 != 0 {
                    body.extend_from_slice(info.literal());
                    body.push(0);
                }
            }
            body.extend_from_slice(&tail);
            let transcode = if request { transcode::request } else { transcode::response };
            if let Ok((shown, again)) = transcode(method, &body, true) {
                prop_assert_eq!(transcode(method, &again, true), Ok((shown, again.clone())));
            }
        }
    }
}
