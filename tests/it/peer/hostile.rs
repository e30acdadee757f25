//! Malformed input on the ports of running programs: it is refused, other requests continue, and
//! claimed lengths do not cause allocations.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::cluster::{Cluster, Make, Metadata};
use super::payload::payload;
use super::process::{PATIENCE, Process, http_get};

/// A request without arguments: `ServiceReady` with sequence number 7.
const SERVICE_READY: [u8; 20] = [0x15, 0, 0, 0, 7, 0, 0, 0, 0x56, 0xbb, 0x81, 0x7b, 0, 0, 0, 0, 0, 0, 0, 0];
/// Memory growth above what the valid requests of these tests need, KiB.
const GROWTH_MAX_KB: u64 = 64 << 10;

fn connect(port: u16) -> TcpStream {
    let s = TcpStream::connect(("127.0.0.1", port)).unwrap();
    s.set_read_timeout(Some(PATIENCE)).unwrap();
    s.set_write_timeout(Some(PATIENCE)).unwrap();
    s
}

/// Send `bytes` and return the response until the peer closes; `None` if it does not close within
/// [`PATIENCE`].
fn send(port: u16, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut s = connect(port);
    // The peer may close after the first byte.
    let _ = s.write_all(bytes);
    let _ = s.shutdown(Shutdown::Write);
    let mut back = Vec::new();
    let mut buf = [0u8; 4096];
    loop {
        match s.read(&mut buf) {
            Ok(0) => return Some(back),
            Ok(n) => back.extend_from_slice(&buf[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            Err(_) => return Some(back),
        }
    }
}

fn master_answers(port: u16) {
    let mut s = connect(port);
    s.write_all(&SERVICE_READY).unwrap();
    let mut head = [0u8; 16];
    s.read_exact(&mut head).unwrap();
    assert_eq!((head[0], head[2], head[4]), (0x15, 0, 7), "magic, no error, our sequence number");
}

fn rss_kb(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn request(function: u32, length: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = SERVICE_READY.to_vec();
    frame[8..12].copy_from_slice(&function.to_le_bytes());
    frame[12..16].copy_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

#[test]
fn the_master_survives_malformed_requests() {
    const EXIST_KEY: &str = "ExistKey";
    let function = mcctl::engine::wire::Method::ALL.iter().find(|m| m.name() == EXIST_KEY).unwrap().id();
    let mut cluster = Cluster::start(Make::Ours, Make::Real, Metadata::P2p, 0, 0);
    let rpc = cluster.master.rpc;
    master_answers(rpc);
    let before = rss_kb(&cluster.master.process);
    // HTTP, TLS, zeros, another version, another serialisation: closed without a response.
    let mut strangers: Vec<Vec<u8>> = vec![b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), vec![0; 64]];
    strangers.push(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".to_vec());
    for at in [1, 2] {
        let mut frame = SERVICE_READY.to_vec();
        frame[at] = 9;
        strangers.push(frame);
    }
    for bytes in &strangers {
        let back = send(rpc, bytes).expect("the connection is closed");
        assert!(back.is_empty(), "answered {back:02x?} to {:02x?}", &bytes[..8]);
    }
    // A length above the limit is refused. A length below it is not allocated before the bytes
    // arrive.
    assert!(send(rpc, &request(function, u32::MAX, b"")).expect("closed").is_empty());
    let held: Vec<TcpStream> = (0..32)
        .map(|_| {
            let mut s = connect(rpc);
            s.write_all(&request(function, 60 << 20, &[1; 1000])).unwrap();
            s
        })
        .collect();
    master_answers(rpc);
    assert!(rss_kb(&cluster.master.process) < before + GROWTH_MAX_KB, "memory grows with claimed lengths");
    drop(held);
    // A wrong type hash and an unknown method are answered with an error. The connection stays
    // open.
    let mut s = connect(rpc);
    for (function, body, error) in [(function, &b"\x01\x02\x03\x04"[..], 4), (0xdead_beef, &b""[..], 11)] {
        s.write_all(&request(function, body.len() as u32, body)).unwrap();
        let mut head = [0u8; 16];
        s.read_exact(&mut head).unwrap();
        assert_eq!(head[2], error, "coro_rpc's error number");
        let mut rest = vec![0; u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize];
        s.read_exact(&mut rest).unwrap();
    }
    // Truncated frames.
    for cut in 1..SERVICE_READY.len() {
        assert!(send(rpc, &SERVICE_READY[..cut]).expect("closed").is_empty());
    }
    // Random bytes, some of which begin like a frame.
    for seed in 0..64u64 {
        let mut bytes = payload(seed, 200 + seed as usize * 37);
        if seed % 2 == 0 {
            bytes[..4].copy_from_slice(&[0x15, 0, 0, 0]);
            bytes[8..12].copy_from_slice(&function.to_le_bytes());
            bytes[12..16].copy_from_slice(&100u32.to_le_bytes());
            bytes[16..20].fill(0);
        }
        send(rpc, &bytes).expect("closed");
    }
    master_answers(rpc);
    // The HTTP ports.
    for port in [cluster.master.admin, cluster.master.metadata] {
        for bytes in [
            &SERVICE_READY[..],
            &payload(5, 3000),
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /metadata?key=a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            send(port, bytes).expect("the connection is closed");
        }
    }
    assert_eq!(http_get(cluster.master.admin, "/health").unwrap().0, 200);
    assert_eq!(http_get(cluster.master.metadata, "/health").unwrap().0, 200);
    assert!(rss_kb(&cluster.master.process) < before + GROWTH_MAX_KB);
    assert!(cluster.master.process.stop().success());
    let log = cluster.master.process.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// The JSON response of a handshake port to a request of this kind.
fn handshake(port: u16, kind: u8, json: &str) -> String {
    let mut s = connect(port);
    s.write_all(&(json.len() as u64 + 1).to_le_bytes()).unwrap();
    s.write_all(&[&[kind], json.as_bytes()].concat()).unwrap();
    let mut head = [0u8; 8];
    s.read_exact(&mut head).unwrap();
    let mut answer = vec![0; u64::from_le_bytes(head) as usize];
    s.read_exact(&mut answer).unwrap();
    String::from_utf8(answer[1..].to_vec()).unwrap()
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn a_node_survives_malformed_requests() {
    let mut cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 << 20);
    let detail = http_get(cluster.master.admin, "/get_segments_detail").unwrap().1;
    let detail: serde_json::Value = serde_json::from_str(&detail).unwrap();
    let segment = &detail["segments"][0];
    let shake: u16 = segment["te_endpoint"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    let base = u64::from_str_radix(segment["base_address"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    let size = segment["size_bytes"].as_u64().unwrap();
    let described: serde_json::Value = serde_json::from_str(&handshake(shake, 1, "{}")).unwrap();
    let data = described["tcp_data_port"].as_u64().unwrap() as u16;
    let mut client = cluster.client("client", 0, 64 << 20);
    assert_eq!(client.put("before", 1, 1 << 20), 0);
    let before = rss_kb(&cluster.nodes[0].process);
    // The handshake port: other protocols, claimed lengths, invalid JSON, deep JSON, random bytes.
    let deep = [&3001u64.to_le_bytes()[..], &[1], "[".repeat(3000).as_bytes()].concat();
    let mut strangers: Vec<Vec<u8>> =
        vec![b"GET / HTTP/1.1\r\n\r\n".to_vec(), SERVICE_READY.to_vec(), vec![0; 64], vec![0xff; 64], deep];
    strangers.push([&(1u64 << 40).to_le_bytes()[..], &[1]].concat());
    for kind in 0..6u8 {
        strangers.push([&5u64.to_le_bytes()[..], &[kind], b"nono"].concat());
    }
    strangers.extend((0..64).map(|seed| payload(900 + seed, 50 + seed as usize * 31)));
    for bytes in &strangers {
        assert!(send(shake, bytes).is_some(), "open after {:02x?}", &bytes[..8]);
    }
    let claimed: Vec<TcpStream> = (0..32)
        .map(|_| {
            let mut s = connect(shake);
            s.write_all(&(1u64 << 20).to_le_bytes()).unwrap();
            s
        })
        .collect();
    assert!(handshake(shake, 3, "{}").contains("success"), "a probe is answered meanwhile");
    drop(claimed);
    // The data port: ranges outside the segment by a byte, by overflow, and of length 0.
    let header = |address: u64, length: u64, opcode: u8| {
        let mut h = [0u8; 24];
        h[..8].copy_from_slice(&length.to_le_bytes());
        h[8..16].copy_from_slice(&address.to_le_bytes());
        h[16] = opcode;
        h
    };
    for (address, length) in [
        (0, 8),
        (base - 1, 8),
        (base - 8, 8),
        (base + size, 1),
        (base + size - 7, 8),
        (base, size + 1),
        (base, u64::MAX),
        (u64::MAX - 3, 8),
        (u64::MAX, u64::MAX),
    ] {
        for opcode in [0x00, 0x80, 0x01, 0x81] {
            let back = send(data, &[&header(address, length, opcode)[..], &[0xEE; 64]].concat()).expect("closed");
            assert!(back.len() <= 8, "{} bytes of memory for {address:#x}+{length:#x}, opcode {opcode:#x}", back.len());
        }
    }
    let read = send(data, &header(base, 16, 0x80)).expect("answered");
    assert_eq!(read.len(), 8 + 16, "a range inside is served: status and bytes");
    for seed in 0..64u64 {
        send(data, &payload(7000 + seed, 10 + seed as usize * 29));
    }
    for cut in 1..24 {
        send(data, &header(base, 16, 0x81)[..cut]).expect("closed");
    }
    // The REST port.
    for bytes in
        [&SERVICE_READY[..], &payload(5, 3000), b"PUT /api/put HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"]
    {
        send(cluster.nodes[0].rest, bytes);
    }
    assert_eq!(http_get(cluster.nodes[0].rest, "/health").unwrap().0, 200);
    assert!(rss_kb(&cluster.nodes[0].process) < before + GROWTH_MAX_KB, "memory grows with malformed input");
    // Stored objects are intact, and the node continues.
    assert_eq!(client.get("before", 1, 1 << 20), (1 << 20, true));
    assert_eq!(client.put("after", 2, 1 << 20), 0);
    assert_eq!(client.get("after", 2, 1 << 20), (1 << 20, true));
    client.close();
    assert!(cluster.nodes[0].process.stop().success());
    let log = cluster.nodes[0].process.log();
    assert!(!log.contains("panicked"), "{log}");
}
