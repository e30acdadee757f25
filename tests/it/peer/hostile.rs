//! Bytes that no peer sends, at the ports of running programs: what is refused is refused, the rest goes on, and memory does
//! not follow the lengths that strangers claim.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::cluster::{Cluster, Make, Metadata};
use super::payload::payload;
use super::process::{Process, http_get};

/// A request without arguments: `ServiceReady` with sequence number 7.
const SERVICE_READY: [u8; 20] = [0x15, 0, 0, 0, 7, 0, 0, 0, 0x56, 0xbb, 0x81, 0x7b, 0, 0, 0, 0, 0, 0, 0, 0];
/// More than any honest work of these tests takes.
const GROWTH_MAX_KB: u64 = 64 << 10;

fn connect(port: u16) -> TcpStream {
    let s = TcpStream::connect(("127.0.0.1", port)).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    s.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    s
}

/// Sends `bytes` and no more; what comes back until the other side closes. `None`: it did not close within 10 s.
fn send(port: u16, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut s = connect(port);
    // it may close on the first byte
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
fn the_master_survives_what_is_no_rpc() {
    const EXIST_KEY: &str = "ExistKey";
    let function = mcctl::engine::wire::Method::ALL.iter().find(|m| m.name() == EXIST_KEY).unwrap().id();
    let mut cluster = Cluster::start(Make::Ours, Make::Real, Metadata::P2p, 0, 0);
    let rpc = cluster.master.rpc;
    master_answers(rpc);
    let before = rss_kb(&cluster.master.process);
    // HTTP, TLS, zeros, another version, another serialisation: closed without a byte
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
    // a length far above the limit is refused before anything is allocated; one within is not allocated before it came
    assert!(send(rpc, &request(function, u32::MAX, b"")).expect("closed").is_empty());
    let held: Vec<TcpStream> = (0..32)
        .map(|_| {
            let mut s = connect(rpc);
            s.write_all(&request(function, 60 << 20, &[1; 1000])).unwrap();
            s
        })
        .collect();
    master_answers(rpc);
    assert!(rss_kb(&cluster.master.process) < before + GROWTH_MAX_KB, "memory follows lengths that are only claimed");
    drop(held);
    // a wrong type hash and an unknown method are answered with an error, on a connection that stays
    let mut s = connect(rpc);
    for (function, body, error) in [(function, &b"\x01\x02\x03\x04"[..], 4), (0xdead_beef, &b""[..], 11)] {
        s.write_all(&request(function, body.len() as u32, body)).unwrap();
        let mut head = [0u8; 16];
        s.read_exact(&mut head).unwrap();
        assert_eq!(head[2], error, "coro_rpc's error number");
        let mut rest = vec![0; u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize];
        s.read_exact(&mut rest).unwrap();
    }
    // frames cut anywhere
    for cut in 1..SERVICE_READY.len() {
        assert!(send(rpc, &SERVICE_READY[..cut]).expect("closed").is_empty());
    }
    // random bytes, some of which begin like a frame
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
    // the HTTP ports likewise
    for port in [cluster.master.admin, cluster.master.metadata] {
        for bytes in [
            &SERVICE_READY[..],
            &payload(5, 3000),
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /metadata?key=a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            let t = Instant::now();
            send(port, bytes);
            assert!(t.elapsed() < Duration::from_secs(10), "a stranger is held for {:?}", t.elapsed());
        }
    }
    assert_eq!(http_get(cluster.master.admin, "/health").unwrap().0, 200);
    assert_eq!(http_get(cluster.master.metadata, "/health").unwrap().0, 200);
    assert!(rss_kb(&cluster.master.process) < before + GROWTH_MAX_KB);
    assert!(cluster.master.process.stop().success());
    let log = cluster.master.process.log();
    assert!(!log.contains("panicked"), "{log}");
}
