//! The target: serves the requests of peers on registered memory.
//!
//! Threads take turns at the listener: one that gets a connection serves it, and another takes its place. A peer that opens a
//! connection per request (releases before 0.3.13) so costs no hand-over, and mostly no new thread. A connection is never closed
//! first while its peer behaves, since 0.3.13 initiators fail the next request when it is.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::engine::base::addr::loopback_to_bind;
use crate::engine::sys::socket::{Incoming, Outgoing};
use crate::engine::sys::{Slice, socket};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::counters::{Meter, TargetFigures};
use crate::engine::transfer::region::Regions;
use crate::engine::transfer::tcp::codec::{DONE, Header, REFUSED, STATUS_BYTES, Version, encode_status};
use crate::engine::transfer::tcp::inbox::Inbox;
use crate::engine::transfer::tcp::lane::RUN_MAX;
use crate::engine::transfer::transport::OpKind;

/// Most data connections at a time: four lanes from each of a thousand peers. For one more the connection is closed that has been silent
/// longest, if that is [`SILENT_MIN`] at least; otherwise the new one is.
pub const CONNECTIONS_MAX: usize = 4096;
/// A connection that moved no byte for this long may be closed for another. A 0.3.13 initiator fails its next request then.
pub const SILENT_MIN: Duration = Duration::from_secs(60);
/// Threads that stay at the listener when their connection is over.
const ACCEPTING_MAX: usize = 8;
/// Connections that may wait to be accepted; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Ports that are tried.
const PORT_TRIES: u32 = 500;
/// A serving thread's stack: it holds the parts of one system call, and logs.
const STACK_BYTES: usize = 128 << 10;
/// How long threads may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Bytes that are answered together, if no single answer has more.
const ANSWER_BYTES: u64 = 256 << 10;
/// The pause after a failed accept (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening data plane.
pub struct Target {
    shared: Arc<Shared>,
}

struct Shared {
    listener: TcpListener,
    port: u16,
    regions: Arc<RwLock<Regions>>,
    turns: Mutex<Turns>,
    ended: Condvar,
    meter: Meter,
    rejected: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Connections that were closed for others.
    displaced: AtomicU64,
    connections_max: usize,
    silent_min: Duration,
}

/// Who is at the listener, and who serves.
#[derive(Default)]
struct Turns {
    threads: usize,
    accepting: usize,
    open: HashMap<u64, Arc<TcpStream>>,
    /// Threads whose connection was closed for another, and which have not noticed yet.
    displaced: usize,
    stopping: bool,
}

impl Target {
    /// Listen on a free port of `ports`, on all addresses of both families. A peer that moves no byte for `progress` in the midst
    /// of a request is dropped; between requests it may be silent for ever.
    ///
    /// # Errors
    /// No port is free, or no thread can be started.
    pub fn start(
        host: &str,
        ports: &RangeInclusive<u16>,
        rng: &dyn Fn() -> u64,
        regions: Arc<RwLock<Regions>>,
        progress: Duration,
    ) -> Result<Target, TransferError> {
        Target::start_with(host, ports, rng, regions, progress, CONNECTIONS_MAX, SILENT_MIN)
    }

    fn start_with(
        host: &str,
        ports: &RangeInclusive<u16>,
        rng: &dyn Fn() -> u64,
        regions: Arc<RwLock<Regions>>,
        progress: Duration,
        connections_max: usize,
        silent_min: Duration,
    ) -> Result<Target, TransferError> {
        let listener = listen(host, ports, rng)?;
        let unusable = |source: io::Error| TransferError::NoPort {
            what: "data plane",
            first: *ports.start(),
            last: *ports.end(),
            tries: 1,
            source: Arc::new(source),
        };
        let port = listener.local_addr().map_err(unusable)?.port();
        // What is set on the listener holds for its connections, which saves three system calls for each.
        socket::prepare_listener(&listener, progress).map_err(unusable)?;
        let shared = Arc::new(Shared {
            listener,
            port,
            regions,
            turns: Mutex::new(Turns { threads: 1, accepting: 1, ..Turns::default() }),
            ended: Condvar::new(),
            meter: Meter::default(),
            rejected: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            connections_max,
            silent_min,
        });
        spawn(&shared).map_err(unusable)?;
        Ok(Target { shared })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// What peers did so far.
    pub fn figures(&self) -> TargetFigures {
        TargetFigures {
            flow: self.shared.meter.flow(),
            rejected: self.shared.rejected.load(Ordering::Relaxed),
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            open: self.shared.turns().open.len() as u64,
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }

    /// Close everything and wait, with a bound, for the threads to end.
    pub fn stop(&self) {
        let mut turns = self.shared.turns();
        turns.stopping = true;
        for stream in turns.open.values() {
            // One that is closed already needs no closing.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let _ = socket::stop_listening(&self.shared.listener);
        let (turns, waited) = self
            .shared
            .ended
            .wait_timeout_while(turns, STOP_LIMIT, |turns| turns.threads > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            tracing::warn!(threads = turns.threads, "data plane threads are still running");
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A listener on a free port of `ports`: dual-stack, or IPv4 where there is no IPv6; on the loopback alone when `host`, which is
/// what is announced, is one.
fn listen(host: &str, ports: &RangeInclusive<u16>, rng: &dyn Fn() -> u64) -> Result<TcpListener, TransferError> {
    let (first, last) = (*ports.start(), *ports.end());
    let mut source = io::Error::from(io::ErrorKind::AddrInUse);
    let any = || vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let addresses = loopback_to_bind(host).map_or_else(any, |loopback| vec![loopback]);
    for _ in 0..PORT_TRIES {
        let port = draw(ports, rng());
        for &address in &addresses {
            match socket::listen(SocketAddr::new(address, port), BACKLOG) {
                Ok(listener) => return Ok(listener),
                Err(error) => {
                    let taken = error.kind() == io::ErrorKind::AddrInUse;
                    source = error;
                    if taken {
                        break;
                    }
                }
            }
        }
    }
    Err(TransferError::NoPort { what: "data plane", first, last, tries: PORT_TRIES, source: Arc::new(source) })
}

/// A port of `ports` by a random number.
pub(in crate::engine::transfer) fn draw(ports: &RangeInclusive<u16>, random: u64) -> u16 {
    let span = u64::from(ports.end().saturating_sub(*ports.start())) + 1;
    ports.start() + u16::try_from(random % span).expect("below the span, which is at most 65536")
}

fn spawn(shared: &Arc<Shared>) -> io::Result<()> {
    let mine = Arc::clone(shared);
    let started =
        thread::Builder::new().name("te-target".into()).stack_size(STACK_BYTES).spawn(move || mine.take_turns());
    started.map(drop)
}

impl Shared {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life: accept, serve, accept again.
    #[expect(clippy::disallowed_methods, reason = "the data plane's threads are real, whatever the Env")]
    fn take_turns(self: &Arc<Shared>) {
        let mut failed = 0u64;
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let Some((id, stream)) = self.enter(stream, from) else { continue };
                    if let Err(end) = self.serve(&stream) {
                        tracing::debug!(peer = %from, %end, "data connection closed");
                    }
                    if !self.leave(id) {
                        return;
                    }
                }
                Err(error) => {
                    let mut turns = self.turns();
                    if turns.stopping {
                        turns.accepting -= 1;
                        turns.threads -= 1;
                        self.ended.notify_all();
                        return;
                    }
                    drop(turns);
                    let usual =
                        [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted];
                    if !usual.contains(&error.kind()) {
                        failed += 1;
                        if failed.is_power_of_two() {
                            tracing::warn!(port = self.port, %error, failed, "cannot accept a data connection");
                        }
                        thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
        }
    }

    /// Leave the listener with a connection. When nobody else is at it, somebody is sent; when nobody can be, the connection is
    /// refused and we stay.
    fn enter(self: &Arc<Shared>, stream: TcpStream, from: SocketAddr) -> Option<(u64, Arc<TcpStream>)> {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed);
        let mut turns = self.turns();
        if turns.stopping {
            return None;
        }
        let alone = turns.accepting == 1;
        if alone && turns.threads.saturating_sub(turns.displaced) >= self.connections_max {
            drop(turns);
            if !self.displace_silent(from) {
                self.refuse(from, &"the bound on connections is reached");
                return None;
            }
            turns = self.turns();
        }
        if alone {
            // The new thread has our place at the listener from here on, or we keep it.
            turns.threads += 1;
            drop(turns);
            if let Err(error) = spawn(self) {
                self.turns().threads -= 1;
                self.refuse(from, &error);
                return None;
            }
            turns = self.turns();
        } else {
            turns.accepting -= 1;
        }
        let stream = Arc::new(stream);
        turns.open.insert(id, Arc::clone(&stream));
        if turns.stopping {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        Some((id, stream))
    }

    /// Close the connection that has been silent longest, if that is long enough. The kernel has the times, so that connections pay nothing
    /// for this.
    fn displace_silent(&self, from: SocketAddr) -> bool {
        let open: Vec<(u64, Arc<TcpStream>)> =
            self.turns().open.iter().map(|(id, stream)| (*id, Arc::clone(stream))).collect();
        let silent = open.into_iter().filter_map(|(id, stream)| Some((socket::silent_for(&stream).ok()?, id)));
        let Some((silent, id)) = silent.max().filter(|(silent, _)| *silent >= self.silent_min) else { return false };
        let mut turns = self.turns();
        // It may have ended by itself meanwhile, which is as good.
        if let Some(stream) = turns.open.remove(&id) {
            turns.displaced += 1;
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        drop(turns);
        let displaced = self.displaced.fetch_add(1, Ordering::Relaxed) + 1;
        if displaced.is_power_of_two() {
            tracing::warn!(
                peer = %from,
                displaced,
                limit = self.connections_max,
                silent_seconds = silent.as_secs(),
                "data connection limit reached: closed the connection silent longest"
            );
        }
        true
    }

    fn refuse(&self, from: SocketAddr, reason: &dyn std::fmt::Display) {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused.is_power_of_two() {
            tracing::warn!(peer = %from, refused, limit = self.connections_max, %reason, "data connection refused");
        }
    }

    /// Come back from a connection; stay?
    fn leave(&self, id: u64) -> bool {
        let mut turns = self.turns();
        if turns.open.remove(&id).is_none() {
            turns.displaced = turns.displaced.saturating_sub(1);
        }
        if turns.stopping || turns.accepting >= ACCEPTING_MAX {
            turns.threads -= 1;
            self.ended.notify_all();
            return false;
        }
        turns.accepting += 1;
        true
    }

    /// Serve one connection until its peer closes it. Requests that arrived together are answered together.
    fn serve(&self, stream: &TcpStream) -> Result<(), End> {
        let mut inbox = Inbox::new();
        let mut answers = Answers::default();
        while wait_for_request(stream, &mut inbox)? {
            while let Some(header) = inbox.header() {
                let reached =
                    self.regions.read().unwrap_or_else(PoisonError::into_inner).reach(header.address, header.size);
                let Some(slice) = reached else {
                    self.rejected.fetch_add(1, Ordering::Relaxed);
                    answers.add(&header, REFUSED, None);
                    self.answer(stream, &mut answers)?;
                    if header.version == Version::V1 && header.kind == OpKind::Write {
                        // Without a status, a connection that is reset is how a writer learns of it, and its bytes are read.
                        socket::discard_on_close(stream).map_err(End::Socket)?;
                    }
                    return Err(End::Refused(header));
                };
                match header.kind {
                    OpKind::Read => answers.add(&header, DONE, Some(slice)),
                    OpKind::Write => {
                        if answers.bytes > 0 {
                            // These are to be read as they were before this write.
                            self.answer(stream, &mut answers)?;
                        }
                        receive_all(stream, &mut inbox, &slice)?;
                        self.meter.wrote(1, header.size);
                        answers.add(&header, DONE, None);
                    }
                }
                if answers.list.len() == RUN_MAX || answers.bytes >= ANSWER_BYTES {
                    self.answer(stream, &mut answers)?;
                }
            }
            self.answer(stream, &mut answers)?;
        }
        Ok(())
    }

    fn answer(&self, stream: &TcpStream, answers: &mut Answers) -> Result<(), End> {
        let length =
            |one: &Answer| one.status.map_or(0, |status| status.len()) + one.body.as_ref().map_or(0, Slice::len);
        let total = answers.list.iter().map(length).sum();
        let mut done = 0;
        while done < total {
            let parts = answers.list.iter().flat_map(|one| {
                let status = one.status.as_ref().map(|status| Outgoing::Bytes(status));
                status.into_iter().chain(one.body.as_ref().map(Outgoing::Memory))
            });
            done += socket::send(stream.as_fd(), parts, done).map_err(End::of)?;
        }
        let reads = answers.list.iter().filter(|one| one.body.is_some()).count() as u64;
        if reads > 0 {
            self.meter.read(reads, answers.bytes);
        }
        answers.list.clear();
        answers.bytes = 0;
        Ok(())
    }
}

/// What is to be sent, all at once.
#[derive(Default)]
struct Answers {
    list: Vec<Answer>,
    /// Bytes of memory in it.
    bytes: u64,
}

struct Answer {
    /// None in version 1.
    status: Option<[u8; STATUS_BYTES]>,
    body: Option<Slice>,
}

impl Answers {
    fn add(&mut self, to: &Header, code: u32, body: Option<Slice>) {
        let status = (to.version == Version::V2).then(|| encode_status(code));
        self.bytes += body.as_ref().map_or(0, |body| body.len() as u64);
        self.list.push(Answer { status, body });
    }
}

/// Why a connection ended before its peer closed it between two requests.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer asked for {} bytes at {:#x}, which are not in memory that it may reach", .0.size, .0.address)]
    Refused(Header),
    #[error("the peer closed the connection in the midst of a request")]
    Truncated,
    #[error("the peer moved no byte for too long")]
    Stalled,
    #[error(transparent)]
    Socket(io::Error),
}

impl End {
    fn of(error: io::Error) -> End {
        match error.kind() {
            io::ErrorKind::WouldBlock => End::Stalled,
            _ => End::Socket(error),
        }
    }
}

/// Wait until a whole header is there; false when the peer has closed between two requests. Waits for its first byte without a limit.
fn wait_for_request(stream: &TcpStream, inbox: &mut Inbox) -> Result<bool, End> {
    while !inbox.has_header() {
        match inbox.receive(stream) {
            Ok(true) => {}
            Ok(false) if inbox.is_empty() => return Ok(false),
            Ok(false) => return Err(End::Truncated),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && inbox.is_empty() => {}
            // A peer that is killed between two requests is no news.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && inbox.is_empty() => return Ok(false),
            Err(error) => return Err(End::of(error)),
        }
    }
    Ok(true)
}

/// Receive the bytes of a write, of which the first ones came with its header.
fn receive_all(stream: &TcpStream, inbox: &mut Inbox, body: &Slice) -> Result<(), End> {
    let mut done = body.copy_from_bytes(inbox.take(body.len()));
    while done < body.len() {
        match socket::receive(stream.as_fd(), [Incoming::Memory(body)].into_iter(), done).map_err(End::of)? {
            0 => return Err(End::Truncated),
            n => done += n,
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the data plane's sockets and clocks are real")]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::Instant;

    fn target(connections_max: usize, silent_min: Duration) -> Target {
        let limit = Duration::from_secs(5);
        Target::start_with("127.0.0.1", &(0..=0), &|| 0, Arc::default(), limit, connections_max, silent_min).unwrap()
    }

    fn connect(target: &Target) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", target.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn until(mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_connection_silent_longest_gives_way_when_all_are_taken() {
        // A thread waits at the listener beside two connections'.
        let target = target(3, Duration::from_millis(100));
        let mut first = connect(&target);
        until(|| target.figures().open == 1);
        thread::sleep(Duration::from_millis(50));
        let second = connect(&target);
        until(|| target.figures().open == 2);
        thread::sleep(Duration::from_millis(300));
        let third = connect(&target);
        assert_eq!(first.read(&mut [0]).unwrap(), 0, "closed");
        until(|| target.figures().open == 2);
        assert_eq!(target.figures().refused, 0);
        drop((second, third));
    }

    #[test]
    fn connections_that_were_used_lately_are_kept_and_the_new_one_is_refused() {
        let target = target(3, Duration::from_secs(3600));
        let kept = [connect(&target), connect(&target)];
        until(|| target.figures().open == 2);
        assert!(matches!(connect(&target).read(&mut [0]), Ok(0) | Err(_)));
        assert_eq!((target.figures().open, target.figures().refused), (2, 1));
        drop(kept);
        until(|| target.figures().open == 0);
    }
}
