//! Processes of a test: with a log, bounded waits, and killed with the test.

use std::fs::File;
use std::future::Future;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Time limit of everything that must happen at some time: starts, answers, stops, changes of
/// state. It only turns a hang into a failure, so it is far above what a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A port without a listener, below the ephemeral range and outside the ranges of the wheel's
/// clients (12300-14300, 15000-17000). Each port is returned once per test run.
pub fn free_port() -> u16 {
    const FIRST: u32 = 17_100;
    const SPAN: u32 = 15_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..SPAN {
        let n = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
        let port = (FIRST + n % SPAN) as u16;
        // A host without IPv6 refuses ::1 with another error.
        let taken = |host: &str| TcpListener::bind((host, port)).is_err_and(|e| e.kind() == ErrorKind::AddrInUse);
        if !taken("0.0.0.0") && !taken("::1") {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + SPAN);
}

/// Call `done` until it returns true.
///
/// # Panics
/// After `limit`, with `what` in the message.
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "{what}: not reached within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As [`wait_until`], for a condition that awaits.
///
/// # Panics
/// After `limit`, with `what` in the message.
#[track_caller]
pub fn wait_until_async(what: &str, limit: Duration, mut done: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Instant::now() + limit;
        while !done().await {
            assert!(Instant::now() < end, "waited {limit:?} in vain for {what} at {caller}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Awaits `work`, which must not hang.
///
/// # Panics
/// After [`PATIENCE`], with `what` in the message.
pub async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain for {what}"))
}

/// Status and body of `GET path` from an HTTP server on loopback.
pub fn http_get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    http(port, "GET", path, "")
}

/// Status and body of a request to an HTTP server on loopback. It uses HTTP/1.0, so the body ends
/// with the connection.
pub fn http(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut s = TcpStream::connect(("127.0.0.1", port))?;
    s.set_read_timeout(Some(PATIENCE))?;
    write!(s, "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut all = Vec::new();
    let mut buf = [0u8; 65536];
    // From a server that keeps the connection open, only Content-Length bytes are read.
    loop {
        let n = s.read(&mut buf)?;
        all.extend_from_slice(&buf[..n]);
        let text = String::from_utf8_lossy(&all);
        let Some((head, rest)) = text.split_once("\r\n\r\n") else {
            if n == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        };
        let length =
            head.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|(_, v)| v.trim().parse::<usize>().ok());
        if n == 0 || length.is_some_and(|l| rest.len() >= l) {
            let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
            return Ok((status, rest.to_owned()));
        }
    }
}

/// A process in its own group. Dropping this value kills the group.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Start `command` with stdout and stderr appended to `dir/name.log`.
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0).current_dir(dir);
        let child = command.spawn().unwrap_or_else(|e| panic!("{name}: {command:?}: {e}"));
        Self { name: name.to_owned(), child, log }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Wait for the first log line that contains `text`.
    ///
    /// # Panics
    /// The process ends, or [`PATIENCE`] passes, before such a line.
    pub fn wait_line(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.child.try_wait().unwrap();
            if let Some(line) = self.log().lines().find(|l| l.contains(text)) {
                return line.to_owned();
            }
            assert!(status.is_none(), "{} ended with {status:?} before it wrote {text:?}", self.name);
            assert!(Instant::now() < end, "{} did not write {text:?}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Wait until `port` on loopback accepts connections.
    ///
    /// # Panics
    /// The process ends, or [`PATIENCE`] passes, before that.
    pub fn wait_port(&mut self, port: u16) {
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let status = self.child.try_wait().unwrap();
            assert!(status.is_none(), "{} ended with {status:?} before port {port} opened", self.name);
            assert!(Instant::now() < end, "{} never opened port {port}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process is still running.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Send a signal to the process group.
    pub fn signal(&self, signal: Signal) {
        // The group may have just ended.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Send SIGSTOP and wait until all threads are stopped.
    pub fn suspend(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.pid());
        wait_until("every thread to stop", PATIENCE, || {
            let states = std::fs::read_dir(&tasks)
                .unwrap()
                .map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
            // Format: pid (name) state ... A thread that has ended counts as stopped.
            states
                .map(Result::unwrap_or_default)
                .all(|s| s.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
        });
    }

    /// Resume the process with SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kill the process with SIGKILL and wait for its end.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }

    /// Send SIGTERM and wait for the exit status.
    ///
    /// # Panics
    /// The process does not end within [`PATIENCE`].
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended(PATIENCE)
    }

    /// Wait at most `limit` for the exit status.
    ///
    /// # Panics
    /// The process does not end within `limit`.
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "{} did not end within {limit:?}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {} ({} lines, the last 40)", self.name, lines.len());
            for line in &lines[lines.len().saturating_sub(40)..] {
                eprintln!("{line}");
            }
        }
    }
}

/// Run `command` until it ends. Returns its status and log. Panics after `limit`.
pub fn run(name: &str, command: Command, dir: &Path, limit: Duration) -> (ExitStatus, String) {
    let mut p = Process::start(name, command, dir);
    let status = p.ended(limit);
    (status, p.log())
}

/// A process that reads one command per line. Its answers are the stdout lines that begin with `@`.
pub struct Dialogue {
    process: Process,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Dialogue {
    /// Start `command` with stderr in `dir/name.log`.
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).process_group(0).current_dir(dir);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {command:?}: {e}"));
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix('@') {
                    // The receiver is gone when the test has ended.
                    let _ = send.send(answer.to_owned());
                }
            }
        });
        Self { process: Process { name: name.to_owned(), child, log }, stdin, answers }
    }

    pub fn send(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap_or_else(|e| panic!("{}: {e}", self.process.name));
    }

    /// Wait for the next answer.
    ///
    /// # Panics
    /// No answer arrives within `limit`, or the process ends.
    pub fn receive(&mut self, limit: Duration) -> serde_json::Value {
        match self.answers.recv_timeout(limit) {
            Ok(line) => serde_json::from_str(&line).unwrap(),
            Err(RecvTimeoutError::Timeout) => panic!("{} did not answer within {limit:?}", self.process.name),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended: {:?}", self.process.name, self.process.child.try_wait())
            }
        }
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
