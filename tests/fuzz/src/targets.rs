//! Fuzz targets for everything that reads bytes from outside. A target is a function of bytes. It
//! must not panic or allocate beyond its bounds, and what it accepts must survive a round trip. The
//! integration tests call each target with damaged seeds.

mod engine;
mod ha;
mod live;
mod load;
mod rpc;
mod seeds;
mod traces;

use std::path::{Path, PathBuf};

/// A name, the function, and its seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets. `tests/fuzz/run` reads the names from this table.
pub const TARGETS: &[Target] = &[
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
    ("trace", traces::read, traces::seeds),
    ("http_query", http_query, || vec![b"key=mooncake%2Fram%2F127.0.0.1%3A12345&x=+%zz".to_vec()]),
];

/// Target: percent-decoding and query parameters.
fn http_query(data: &[u8]) {
    use mcctl::engine::http::{decode, param};
    let text = String::from_utf8_lossy(data);
    if let Some(found) = param(&text, "key") {
        assert!(decode(found).len() <= found.len());
    }
}

/// The project's folder of fixtures. The package of the caller is the project itself, or the one in
/// `tests/fuzz`.
fn fixtures() -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("fixtures"));
    folders.into_iter().find(|folder| folder.join("wire").is_dir()).expect("fixtures/wire exists")
}
