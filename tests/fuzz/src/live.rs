//! Targets that are live ports: a real server in this process, with one connection per input. Each
//! input must end in bounded time, and the server must serve the next one.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::{AddressFilter, Env, Listener, Net, RealEnv};
use mcctl::engine::master::{MasterConfig, MasterServer};
use mcctl::engine::metadata::{KeySpace, MetadataService};
use mcctl::engine::sys::Memory;
use mcctl::engine::transfer::Access;
use mcctl::engine::transfer::handshake::{HandshakeHandler, HandshakeLimits, serve};
use mcctl::engine::transfer::region::Regions;
use mcctl::engine::transfer::tcp::{HEADER_BYTES, RequestFrame, TargetGate, TcpTarget};
use mcctl::engine::transfer::types::RegionKeys;
use mcctl::engine::wire::json::{ConnectionMessage, NotifyMessage};
use tokio::runtime::Runtime;

/// Sends `data` and reads until the server closes the connection. The sending side is then shut
/// down, so a server that waits for more bytes reads the end of the stream. A server that keeps the
/// connection open is a finding.
fn exchange(port: u16, data: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(3))).expect("a time limit");
    stream.set_write_timeout(Some(Duration::from_secs(3))).expect("a time limit");
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(data);
    let _ = stream.shutdown(Shutdown::Write);
    let mut back = Vec::new();
    match Read::by_ref(&mut stream).take(64 << 20).read_to_end(&mut back) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the server keeps the connection open")
        }
        _ => back,
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let new = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    RUNTIME.get_or_init(new)
}

const REGION_BYTES: usize = 1 << 16;

/// Target: the data port. An address whose upper half is zero counts from the region's start, so
/// that many inputs reach it.
pub fn data_port(data: &[u8]) {
    static TARGET: OnceLock<(TcpTarget, Arc<Memory>)> = OnceLock::new();
    let (target, memory) = TARGET.get_or_init(|| {
        let memory = Arc::new(Memory::from_vec(vec![7; REGION_BYTES]));
        let mut regions = Regions::default();
        regions.insert(memory.clone(), Access::Remote, RegionKeys::default()).expect("the first region");
        let regions = Arc::new(RwLock::new(regions));
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let env = RealEnv::new();
        let gate = TargetGate { filter: AddressFilter::default(), clock: Arc::new(move || env.now()) };
        let target = TcpTarget::start(&addresses, &(20_000..=30_000), &|| 0, regions, Duration::from_secs(2), gate)
            .expect("a port");
        (target, memory)
    });
    let mut sent = data.to_vec();
    if let Some(head) = sent.first_chunk_mut::<HEADER_BYTES>()
        && head[12..16] == [0; 4]
    {
        let at = u64::from_le_bytes([head[8], head[9], head[10], head[11], 0, 0, 0, 0]);
        head[8..16].copy_from_slice(&memory.address().wrapping_add(at).to_le_bytes());
        let header = RequestFrame::decode(head);
        let inside = at <= REGION_BYTES as u64 && header.size <= REGION_BYTES as u64 - at;
        let before = target.counters();
        let back = exchange(target.port(), &sent);
        assert!(inside || back.len() <= 8, "{} bytes for a range that is not registered", back.len());
        let after = target.counters();
        assert!(
            inside
                || after.flow.reads + after.flow.writes == before.flow.reads + before.flow.writes
                || header.size == 0
        );
    } else {
        exchange(target.port(), &sent);
    }
}

/// Seeds: reads and writes of both framings.
pub fn data_seeds() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for opcode in [0u8, 1, 0x80, 0x81] {
        for (at, size) in [(0u64, 16u64), (65_520, 16), (65_521, 16), (0, 65_536), (0, u64::MAX), (1 << 31, 4)] {
            let mut one = [&size.to_le_bytes()[..], &at.to_le_bytes(), &[opcode, 0, 0, 0, 0, 0, 0, 0]].concat();
            one.extend_from_slice(&[0xAB; 16]);
            out.push(one.clone());
            out.push([one.clone(), one].concat());
        }
    }
    out
}

/// An engine with one segment.
struct FuzzEngine;

impl HandshakeHandler for FuzzEngine {
    fn segment(&self) -> Option<String> {
        Some(
            r#"{"buffers":[],"name":"fuzz","protocol":"tcp","tcp_data_port":1,"tcp_proto_version":2,"timestamp":""}"#
                .to_owned(),
        )
    }
    fn on_connection(&self, request: ConnectionMessage) -> ConnectionMessage {
        ConnectionMessage { reply_msg: request.peer_nic_path, ..ConnectionMessage::default() }
    }
    fn on_message(&self, message: NotifyMessage) -> bool {
        message.name.len().is_multiple_of(2)
    }
}

/// Target: bytes sent to a live handshake port.
pub fn handshake_port(data: &[u8]) {
    static PORT: OnceLock<u16> = OnceLock::new();
    let port = PORT.get_or_init(|| {
        runtime().block_on(async {
            let env = RealEnv::new();
            let listener = env.net().listen(&HostPort::new("127.0.0.1", 0)).await.expect("a port");
            let port = listener.port();
            let limits = HandshakeLimits { step: Duration::from_secs(1), ..HandshakeLimits::default() };
            tokio::spawn(serve(env, listener, Arc::new(FuzzEngine), limits));
            port
        })
    });
    exchange(*port, data);
}

/// Target: the master's RPC port, with a real master state.
pub fn rpc_port(data: &[u8]) {
    static MASTER: OnceLock<MasterServer<RealEnv>> = OnceLock::new();
    let master = MASTER.get_or_init(|| {
        let config = MasterConfig { threads: 1, ..MasterConfig::new(HostPort::new("127.0.0.1", 0)) };
        runtime().block_on(MasterServer::start(config, RealEnv::new())).expect("a port")
    });
    exchange(master.rpc_port(), data);
}

/// Target: the metadata service, and with it the HTTP server that all HTTP ports use.
pub fn http_port(data: &[u8]) {
    static PORT: OnceLock<u16> = OnceLock::new();
    let port = PORT.get_or_init(|| {
        let service = MetadataService::new(RealEnv::new(), KeySpace::default());
        let running = runtime().block_on(service.start(&HostPort::new("127.0.0.1", 0))).expect("a port");
        let port = running.at().port;
        std::mem::forget((service, running));
        port
    });
    exchange(*port, data);
}

/// Seeds: requests of real engines, and malformed ones.
pub fn http_seeds() -> Vec<Vec<u8>> {
    [
        "GET /metadata?key=mooncake%2Fram%2Fa HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "PUT /metadata?key=mooncake%2Fram%2Fa HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        "PUT /metadata?key=mooncake%2Frpc_meta%2Fa HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "DELETE /metadata?key=a HTTP/1.0\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
        "POST /metadata HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n",
    ]
    .map(|t| t.as_bytes().to_vec())
    .to_vec()
}
