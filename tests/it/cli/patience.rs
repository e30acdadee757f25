//! How long a command waits for services that are silent, slow or stopped, and how soon a signal ends it all the same.

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

/// A server that does `answer` with each connection, for as long as the test runs.
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

/// Takes a question and sends one byte of an answer after the other, for longer than anybody waits.
fn dripping(mut stream: TcpStream) {
    head(&mut stream, 100_000);
    while stream.write_all(b"\n").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Takes a question and says nothing.
fn silent(mut stream: TcpStream) {
    let mut request = [0; 4096];
    while stream.read(&mut request).is_ok_and(|read| read > 0) {}
}

/// A list of keys that comes slowly, but comes: 12 pieces of 70,000 bytes in three seconds.
fn steady(mut stream: TcpStream) {
    let piece = format!("{}\n", "k".repeat(69_999));
    head(&mut stream, 12 * piece.len());
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(250));
        let _ = stream.write_all(piece.as_bytes());
    }
}

#[track_caller]
fn timed(args: &[&str], seconds: std::ops::Range<u64>) -> Run {
    let began = Instant::now();
    let run = mcctl(args);
    assert!(seconds.contains(&began.elapsed().as_secs()), "{:?}: {run:?}", began.elapsed());
    run
}

#[test]
fn an_admin_http_that_drips_is_3_after_the_timeout() {
    for (answer, found) in
        [(dripping as fn(TcpStream), "no whole answer within 1 s"), (silent, "no whole answer within 1 s")]
    {
        let admin = format!("--admin=127.0.0.1:{}", server(answer));
        let run = timed(&["status", "--timeout=1s", &admin], 1..8);
        let said = run.fails(3);
        assert!(said.contains("does not answer in time; tried: GET /health ") && said.contains(found), "{said}");
        let run = timed(&["store", "ls", "--timeout=1s", &admin], 1..8);
        assert!(run.fails(3).contains("found: neither 64 KiB of the list nor its end within 1 s"), "{run:?}");
    }
}

#[test]
fn a_list_that_goes_on_may_take_longer_than_the_timeout() {
    let admin = format!("--admin=127.0.0.1:{}", server(steady));
    let run = timed(&["store", "ls", "--timeout=1s", &admin], 2..20);
    assert_eq!(run.succeeds().lines().count(), 12);
}

#[test]
fn a_master_that_is_stopped_is_waited_for_as_long_as_the_timeout_says() {
    let (master, rpc, _) = master(&[]);
    master.signal(Signal::SIGSTOP);
    let run = timed(&["store", "get", "k", "--timeout=2s", &format!("--master=127.0.0.1:{rpc}")], 2..10);
    master.signal(Signal::SIGCONT);
    assert!(run.fails(3).contains("ServiceReady was not answered by 127.0.0.1:"), "{run:?}");
}

#[test]
fn a_metadata_service_that_is_silent_is_3_after_the_timeout() {
    let (_master, rpc, _) = master(&[]);
    let metadata = format!("--metadata-server=http://127.0.0.1:{}/metadata", server(silent));
    let at = format!("--master=127.0.0.1:{rpc}");
    let run = timed(&["store", "put", "k", "--value=x", "--timeout=1s", &at, &metadata], 1..6);
    let said = run.fails(3);
    assert!(said.starts_with("error: cannot use the metadata service http://127.0.0.1:"), "{said}");
    assert!(said.contains(" within 1s"), "{said}");
}

#[test]
fn a_signal_ends_a_node_in_time_whose_metadata_service_is_stuck() {
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
    let began = Instant::now();
    assert_eq!(running.stop(Signal::SIGTERM), 0);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // The same before it has started.
    let mut starting = node(server(silent));
    starting.line_with("does not answer yet");
    let began = Instant::now();
    assert_eq!(starting.stop(Signal::SIGTERM), 0);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    service.signal(Signal::SIGCONT);
}

#[test]
fn a_signal_ends_a_client_in_time_whose_metadata_service_is_stuck() {
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
    let began = Instant::now();
    assert_eq!(put.stop(Signal::SIGINT), 1);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
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
        // Both signals are taken over before stdin is read.
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
