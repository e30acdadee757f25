//! Fuzz targets for everything that reads bytes from outside. One program contains all targets, so that it is linked
//! once. `MCCTL_FUZZ_TARGET` selects one. A target is a function of bytes. It must not panic or allocate beyond its
//! bounds, and what it accepts must survive a round trip.
#![no_main]

mod engine;
mod ha;
mod live;
mod load;
mod rpc;
mod seeds;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

/// A name, the function, and its seeds.
type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets. `tests/fuzz/run` reads the names from this table.
const TARGETS: &[Target] = &[
    ("rpc_stream", rpc::stream, seeds::rpc_frames),
    ("rpc_request", rpc::request, seeds::rpc_requests),
    ("rpc_response", rpc::response, seeds::rpc_responses),
    ("handshake", engine::handshake, seeds::handshakes),
    ("segment_json", engine::segment, seeds::documents),
    ("rpc_meta_json", engine::rpc_meta, || vec![br#"{"ip_or_host_name":"10.77.0.1","rpc_port":15825}"#.to_vec()]),
    ("rpc_port", live::rpc_port, seeds::rpc_frames),
    ("handshake_port", live::handshake_port, seeds::handshakes),
    ("data_port", live::data_port, live::data_seeds),
    ("http_port", live::http_port, live::http_seeds),
    ("load_answer", load::answer, load::answer_seeds),
    ("load_stream", load::stream, load::stream_seeds),
    ("ha_stream", ha::stream, ha::stream_seeds),
    ("http_query", http_query, || vec![b"key=mooncake%2Fram%2F127.0.0.1%3A12345&x=+%zz".to_vec()]),
];

/// The target that the variable `MCCTL_FUZZ_TARGET` names.
fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("MCCTL_FUZZ_TARGET").expect("MCCTL_FUZZ_TARGET names the target");
        TARGETS.iter().find(|t| t.0 == name).unwrap_or_else(|| panic!("unknown target {name}"))
    })
}

fuzz_target!(init: seeds::write(chosen().0, &chosen().2()), |data: &[u8]| chosen().1(data));

/// Target: percent-decoding and query parameters.
fn http_query(data: &[u8]) {
    use mcctl::engine::http::{decode, param};
    let text = String::from_utf8_lossy(data);
    if let Some(found) = param(&text, "key") {
        assert!(decode(found).len() <= found.len());
    }
}
