//! A service under test: a child process whose output is collected and which is killed with the
//! test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::peer::process::PATIENCE;
use crate::schemas;

pub struct Service {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Service {
    /// Start `command` and collect stdout and stderr.
    pub fn start(mut command: Command) -> Service {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (send, lines) = channel();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
        for stream in streams {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        Service { child, lines, seen: Vec::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Wait for a line that contains `part`, including earlier lines. Returns it.
    #[track_caller]
    pub fn line_with(&mut self, part: &str) -> String {
        if let Some(line) = self.seen.iter().find(|line| line.contains(part)) {
            return line.clone();
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    schemas::document_in(&line).iter().for_each(schemas::is_as_described);
                    self.seen.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no line with '{part}' in time, but: {:#?}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without a line with '{part}': {:#?}", self.seen)
                }
            }
        }
    }

    /// Wait for a line that contains `part`. Returns the port after it.
    #[track_caller]
    pub fn port_after(&mut self, part: &str) -> u16 {
        let line = self.line_with(part);
        let rest = &line[line.find(part).expect("just found") + part.len()..];
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("no port after '{part}' in '{line}'"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.pid()).expect("a pid")), signal).expect("it runs");
    }

    /// Wait until the process exits. Returns its exit code, -1 for a signal.
    #[track_caller]
    pub fn end(&mut self) -> i32 {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < until, "it does not end; so far: {:#?}", self.seen);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All lines, after the process has exited.
    pub fn all_lines(&mut self) -> &[String] {
        self.seen.extend(self.lines.iter());
        &self.seen
    }

    /// All lines until now.
    pub fn all_lines_so_far(&mut self) -> &[String] {
        self.seen.extend(self.lines.try_iter());
        &self.seen
    }

    /// Send `signal` and wait until the process exits. Returns its exit code.
    #[track_caller]
    pub fn stop(&mut self, signal: Signal) -> i32 {
        self.signal(signal);
        self.end()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of a GET.
pub fn get(port: u16, target: &str) -> (u16, String) {
    ask(port, "GET", target, "")
}

/// Status and body of a HEAD.
pub fn head(port: u16, target: &str) -> (u16, String) {
    ask(port, "HEAD", target, "")
}

/// Status of a PUT of `body`.
pub fn put(port: u16, target: &str, body: &str) -> u16 {
    ask(port, "PUT", target, body).0
}

fn ask(port: u16, method: &str, target: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let length = body.len();
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("answered");
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    schemas::document_in(body).iter().for_each(schemas::is_as_described);
    (status, body.to_owned())
}
