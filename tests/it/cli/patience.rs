//! Time limits of commands with silent, slow or suspended services, and signals during the wait.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::serve::master;
use super::service::Service;
use super::{Run, command, mcctl};
use crate::peer::process::{PATIENCE, wait_until};

/// A server that handles each connection with `answer` while the test runs.
fn server(answer: impl Fn(TcpStream) + Send + Sync + Copy + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    port
}

fn head(stream: &mut TcpStream, length: usize) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n");
}

/// Sends a response one byte at a time, for longer than any time limit.
fn dripping(mut stream: TcpStream) {
    head(&mut stream, 100_000);
    while stream.write_all(b"\n").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Reads requests and never answers.
fn silent(mut stream: TcpStream) {
    let mut request = [0; 4096];
    while stream.read(&mut request).is_ok_and(|read| read > 0) {}
}

/// Sends a list of keys slowly: 12 pieces of 70,000 bytes in three seconds.
fn steady(mut stream: TcpStream) {
    let piece = format!("{}\n", "k".repeat(69_999));
    head(&mut stream, 12 * piece.len());
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(250));
        let _ = stream.write_all(piece.as_bytes());
    }
}

/// Run the program and assert that it takes at least `seconds`.
#[track_caller]
fn timed(args: &[&str], seconds: u64) -> Run {
    let began = Instant::now();
    let run = mcctl(args);
    assert!(began.elapsed() >= Duration::from_secs(seconds), "{:?}: {run:?}", began.elapsed());
    run
}

#[test]
fn a_slow_or_silent_admin_http_is_3_after_the_timeout() {
    for answer in [dripping as fn(TcpStream), silent] {
        let admin = format!("--admin=127.0.0.1:{}", server(answer));
        let run = timed(&["status", "--timeout=1s", &admin], 1);
        let error = run.fails(3);
        assert!(error.contains("GET /health ") && error.contains(" within 1 s"), "{error}");
        let run = timed(&["store", "ls", "--timeout=1s", &admin], 1);
        assert!(run.fails(3).contains("64 KiB of the list within 1 s"), "{run:?}");
    }
}

#[test]
fn a_list_with_progress_may_take_longer_than_the_timeout() {
    let admin = format!("--admin=127.0.0.1:{}", server(steady));
    let run = timed(&["store", "ls", "--timeout=2s", &admin], 2);
    assert_eq!(run.succeeds().lines().count(), 12);
}

#[test]
fn a_suspended_master_is_3_after_the_timeout() {
    let (master, rpc, _) = master(&[]);
    master.signal(Signal::SIGSTOP);
    let run = timed(&["store", "get", "k", "--timeout=2s", &format!("--master=127.0.0.1:{rpc}")], 2);
    master.signal(Signal::SIGCONT);
    assert!(run.fails(3).contains("did not respond in time"), "{run:?}");
}

#[test]
fn a_silent_metadata_service_is_3_after_the_timeout() {
    let (_master, rpc, _) = master(&[]);
    let metadata = format!("--metadata-server=http://127.0.0.1:{}/metadata", server(silent));
    let at = format!("--master=127.0.0.1:{rpc}");
    let run = timed(&["store", "put", "k", "--value=x", "--timeout=1s", &at, &metadata], 1);
    let error = run.fails(3);
    assert!(error.contains("metadata service http://127.0.0.1:") && error.contains(" within 1 s"), "{error}");
}

#[test]
fn a_signal_ends_a_node_whose_metadata_service_is_stuck() {
    let (_master, rpc, _) = master(&[]);
    let at = format!("--master=127.0.0.1:{rpc}");
    let node = |metadata: u16| {
        let metadata = format!("--metadata-server=http://127.0.0.1:{metadata}/metadata");
        let sizes = ["--segment-size=16mb", "--local-buffer-size=0", "--host=127.0.0.1", "--port=0"];
        Service::start(command(&[&["serve", "store", &at, &metadata], &sizes[..]].concat()))
    };
    let mut service = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", "--port=0"]));
    let mut running = node(service.port_after("http://127.0.0.1:"));
    running.line_with("Store service started successfully");
    service.signal(Signal::SIGSTOP);
    assert_eq!(running.stop(Signal::SIGTERM), 0);
    // The same before the node has started.
    let mut starting = node(server(silent));
    starting.line_with("is not responding yet");
    assert_eq!(starting.stop(Signal::SIGTERM), 0);
    service.signal(Signal::SIGCONT);
}

#[test]
fn a_signal_ends_a_client_whose_metadata_service_is_stuck() {
    let (_master, rpc, _) = master(&[]);
    let metadata = format!("--metadata-server=http://127.0.0.1:{}/metadata", server(silent));
    let at = format!("--master=127.0.0.1:{rpc}");
    let mut put = Service::start(command(&[
        "store",
        "put",
        "k",
        "--value=x",
        "--timeout=60s",
        "--log-level=trace",
        &at,
        &metadata,
    ]));
    put.line_with("connected to 127.0.0.1:");
    assert_eq!(put.stop(Signal::SIGINT), 1);
}

#[test]
fn a_signal_ends_a_put_that_waits_for_stdin() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut put = command(&["store", "put", "k", "--master=127.0.0.1:1"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let status = format!("/proc/{}/status", put.id());
        // Both signals are handled before stdin is read.
        wait_until("signal handlers", PATIENCE, || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
            [2, 15].iter().all(|number| caught & (1 << (number - 1)) != 0)
        });
        kill(Pid::from_raw(i32::try_from(put.id()).expect("a pid")), signal).expect("it runs");
        let mut ended = None;
        wait_until("its end", PATIENCE, || {
            ended = put.try_wait().expect("our child");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(1), "{signal}");
    }
}
