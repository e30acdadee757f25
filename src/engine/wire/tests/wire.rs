//! Messages of real peers: every frame in `fixtures/wire` decodes, and encodes to the same bytes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use mcctl_wire::frame::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, RpcErrc};
use mcctl_wire::method::transcode;
use mcctl_wire::{ClientRelease, Method, Release, pack::DecodeError};
use proptest::prelude::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/wire")
}

fn fixture(release: Release, name: &str) -> String {
    let path = folder().join(release.name()).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_release_has_the_type_hashes_of_its_master() {
    let mut expected = BTreeSet::new();
    for line in
        std::fs::read_to_string(folder().join("releases.txt")).unwrap().lines().filter(|line| !line.starts_with('#'))
    {
        let [name, first, last, request, response] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let [first, last] = [first, last].map(|name| Release::of_version(name).unwrap());
        for release in Release::ALL.iter().filter(|release| (first..=last).contains(release)) {
            expected.insert(format!("{release} {name} {request} {response}"));
        }
    }
    let mut found = BTreeSet::new();
    for (method, release) in
        Method::ALL.iter().flat_map(|method| Release::ALL.iter().map(move |release| (*method, *release)))
    {
        if let Some(layout) = method.layout(release) {
            let request = layout.request().map_or("-".to_owned(), |t| format!("{:08x}", t.hash()));
            found.insert(format!("{release} {} {request} {:08x}", method.name(), layout.response().hash()));
        }
    }
    let [missing, other]: [Vec<_>; 2] = [&expected - &found, &found - &expected].map(|set| set.into_iter().collect());
    assert_eq!((missing, other), (vec![], vec![]));
}

#[test]
fn every_method_has_the_real_masters_id() {
    let mut named = BTreeSet::new();
    for line in fixture(Release::V0_3_13, "methods.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, id, ..] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let method = *Method::ALL.iter().find(|m| m.name() == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(format!("{:08x}", method.id()), id, "{name}");
        assert_eq!(Method::from_id(method.id()), Some(method));
        named.insert(name.to_owned());
    }
    let missing =
        Method::ALL.iter().filter(|method| method.since() <= Release::V0_3_13 && !named.contains(method.name()));
    assert_eq!(missing.collect::<Vec<_>>(), [&Method::Ping; 0], "not in methods.txt");
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

/// Decodes every frame of a capture as one of `release`, and encodes it again. Returns the number
/// of frames.
fn check_capture(release: Release, name: &str) -> usize {
    let mut asked = std::collections::HashMap::new();
    let mut checked = 0;
    let layout = |method: Method| method.layout(release).unwrap();
    for (is_request, frame) in frames(&fixture(release, name)) {
        let result: Result<(String, Vec<u8>), DecodeError>;
        let (body, what, decoded);
        if is_request {
            let header = RequestHeader::decode(frame[..REQUEST_HEADER_BYTES].try_into().unwrap()).unwrap();
            // 0.3.14 has methods that this table does not contain.
            let Some(method) = Method::from_id(header.function_id) else {
                assert_eq!(release, Release::LATEST, "{name}: an unknown method");
                continue;
            };
            asked.insert(header.seq, method);
            body = &frame[REQUEST_HEADER_BYTES..];
            assert_eq!(body.len(), header.length as usize);
            assert_eq!(frame[..REQUEST_HEADER_BYTES], header.encode());
            let has_literal = body.get(4).is_some_and(|flags| body[0] & 1 != 0 && flags & 4 != 0);
            result = transcode::request(method, layout(method), body, has_literal);
            what = format!("{release} {name}: request {}", method.name());
            decoded = transcode::request(method, layout(method), &result.clone().expect(&what).1, true);
        } else {
            let header = ResponseHeader::decode(frame[..RESPONSE_HEADER_BYTES].try_into().unwrap()).unwrap();
            body = &frame[RESPONSE_HEADER_BYTES..];
            if header.error != RpcErrc::OK || body.len() != header.length as usize {
                continue;
            }
            // Several connections in a capture share sequence numbers, but their answers differ in
            // the type hash.
            let hash = u32::from_le_bytes(body[..4].try_into().unwrap()) & !1;
            let has = |method: &Method| method.layout(release).is_some_and(|layout| layout.response().hash() == hash);
            let method = asked.get(&header.seq).copied().filter(has);
            let Some(method) = method.or_else(|| Method::ALL.iter().copied().find(has)) else {
                panic!("{release} {name}: an answer of unknown type {hash:#x}")
            };
            result = transcode::response(method, layout(method), body, body[4] & 4 != 0);
            what = format!("{release} {name}: response {}", method.name());
            decoded = transcode::response(method, layout(method), &result.clone().expect(&what).1, true);
        }
        let (shown, again) = result.unwrap_or_else(|error| panic!("{what}: {error}"));
        // Messages of 0.3.14 end with fields that are left out, after a total length.
        let has_more = body.get(4).is_some_and(|flags| body[0] & 1 != 0 && flags & 3 != 0);
        assert!(!has_more || release >= Release::V0_3_14, "{what}: a total length");
        if !has_more {
            assert_eq!(again, body, "{what}: {shown}");
        }
        assert_eq!(decoded.unwrap().0, shown, "{what}");
        checked += 1;
    }
    checked
}

#[test]
fn captured_messages_of_every_release_round_trip() {
    let captures = [
        (Release::V0_3_6, "client-httpmeta.hex", 20),
        (Release::V0_3_7, "client-p2phandshake.hex", 50),
        (Release::V0_3_8, "client-p2phandshake.hex", 50),
        (Release::V0_3_9, "client-p2phandshake.hex", 50),
        (Release::V0_3_10_2, "client-p2phandshake.hex", 50),
        (Release::V0_3_11, "client-p2phandshake.hex", 50),
        (Release::V0_3_12, "client-p2phandshake.hex", 50),
        (Release::V0_3_13, "client-p2phandshake.hex", 50),
        (Release::V0_3_13, "client-httpmeta.hex", 50),
        (Release::V0_3_13, "client-master-restart.hex", 70),
        (Release::V0_3_13, "store-service.hex", 18),
        (Release::V0_3_13, "foreign-client.hex", 100),
        (Release::V0_3_14, "client-p2phandshake.hex", 50),
    ];
    for (release, name, least) in captures {
        let checked = check_capture(release, name);
        assert!(checked >= least, "{release} {name}: only {checked} frames");
    }
}

#[test]
fn the_release_of_a_captured_client_is_found() {
    for release in Release::ALL.iter().copied().filter(|release| *release != Release::V0_3_10) {
        let name = if release == Release::V0_3_6 { "client-httpmeta.hex" } else { "client-p2phandshake.hex" };
        let mut client = ClientRelease::new(Release::LATEST);
        for (_, frame) in frames(&fixture(release, name)).into_iter().filter(|(is_request, _)| *is_request) {
            let header = RequestHeader::decode(frame[..REQUEST_HEADER_BYTES].try_into().unwrap()).unwrap();
            if let Some(method) = Method::from_id(header.function_id) {
                client.layout(method, &frame[REQUEST_HEADER_BYTES..], 0, |_| release).expect("a known layout");
            }
        }
        assert!(client.possible().contains(release) && client.possible().iter().count() <= 3, "{release}: {client:?}");
        let reads = Method::BatchGetReplicaList.releases_with_response_of(client.used());
        assert!(reads.contains(release), "{release}: {client:?}");
    }
}

/// A finding of the fuzzer: clients before 0.3.8 write an object in any number of ranges.
#[test]
fn a_replica_without_ranges_round_trips_in_old_releases() {
    let tail = unhex(&format!("0a0a0a141414141454141414000300000008{}0a", "00".repeat(70)));
    let method = Method::ALL[10];
    let layout = method.layout(Release::V0_3_7).expect("a layout");
    let body = [&layout.response().hash().to_le_bytes(), &tail[..]].concat();
    let (shown, again) = transcode::response(method, layout, &body, false).expect("a response");
    assert!(shown.contains("Parts([])"), "{shown}");
    assert_eq!(transcode::response(method, layout, &again, false), Ok((shown, again.clone())));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn arbitrary_bytes_never_panic_and_decoded_values_round_trip(
        index in 0usize..Method::ALL.len(), release in 0usize..Release::ALL.len(), tail in prop::collection::vec(any::<u8>(), 0..200), flags in prop::option::of(0u8..32)
    ) {
        let method = Method::ALL[index];
        for request in [true, false] {
            let Some(layout) = method.layout(Release::ALL[release]) else { continue };
            let Some(info) = (if request { layout.request() } else { Some(layout.response()) }) else { continue };
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
            if let Ok((shown, again)) = transcode(method, layout, &body, true) {
                prop_assert_eq!(transcode(method, layout, &again, true), Ok((shown, again.clone())));
            }
        }
    }
}
