//! The least that a client pays which takes every token's time from the kernel's note of its
//! arrival: epoll, one `recvmsg` a token, and nothing else. No parsing, no histograms, no timers; a
//! stream ends where the last chunk does.
//!
//!   floor --port 31900 [--api generate|chat] [--streams 256] [--waves 3] [--tokens 128]
//!   [--pause-us 1000]
//!
//! All streams of a wave begin at once, over connections that stay. Between two looks it sleeps as
//! long as the generator does when much comes in. Prints a line of JSON; what it costs is for who
//! watches it (overhead.py).

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use mcctl::engine::sys::socket::{enable_rx_timestamps, receive_with_age};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::{number, word};

/// What both routes' streams end with.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn request(chat: bool, tokens: u32) -> Vec<u8> {
    let (path, body) = match chat {
        true => (
            "/v1/chat/completions",
            serde_json::json!({"model": "mock", "stream": true, "max_tokens": tokens,
            "messages": [{"role": "user", "content": "word"}]}),
        ),
        false => (
            "/generate",
            serde_json::json!({"input_ids": [1], "stream": true,
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": true}}),
        ),
    };
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: mock\r\ncontent-type: application/json\r\ncontent-length: ");
    format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes()
}

pub fn main(args: &[String]) {
    let get = |name: &str, or: f64| number(args, name, or);
    let (streams, waves, tokens) =
        (get("--streams", 256.0) as usize, get("--waves", 3.0) as u32, get("--tokens", 128.0) as u32);
    let pause = Duration::from_micros(get("--pause-us", 1000.0) as u64);
    let request = request(word(args, "--api", "generate") == "chat", tokens);
    let port = get("--port", 31900.0) as u16;

    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll");
    let mut connections: Vec<TcpStream> = (0..streams)
        .map(|index| {
            let connection = TcpStream::connect(("127.0.0.1", port)).expect("the mock listens");
            connection.set_nodelay(true).expect("set");
            enable_rx_timestamps(&connection).expect("set");
            let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            epoll.add(&connection, EpollEvent::new(events, index as u64)).expect("added");
            connection
        })
        .collect();
    let start = Instant::now();
    let mut reads = 0_u64;
    let mut bytes = vec![0; 64 << 10];
    let mut events = vec![EpollEvent::empty(); 1024];
    for _ in 0..waves {
        for connection in &mut connections {
            connection.write_all(&request).expect("written");
        }
        let mut open = streams;
        while open > 0 {
            std::thread::sleep(pause);
            let count = epoll.wait(&mut events, EpollTimeout::NONE).expect("events");
            for event in &events[..count] {
                let connection = &connections[event.data() as usize];
                match receive_with_age(connection.as_fd(), &mut bytes) {
                    Ok((count, _age)) => {
                        assert!(
                            0 < count && count < bytes.len(),
                            "a mock that closes, or is far behind: no measurement"
                        );
                        reads += 1;
                        open -= usize::from(bytes[..count].ends_with(LAST_CHUNK));
                    }
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
                }
            }
        }
    }
    let requests = streams as u64 * u64::from(waves);
    let per_second = (requests * u64::from(tokens)) as f64 / start.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({"completed": requests, "reads": reads, "tok_s": per_second}));
}
