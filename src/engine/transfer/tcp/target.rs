//! The target: serves peers' requests for registered memory.
//!
//! Threads share the listener: a thread that accepts a connection also serves it, and another thread takes its place.
//! So a peer that opens a connection for each request (as releases before 0.3.13 do) causes no hand-over and usually no
//! new thread. The target never closes a well-behaved peer's connection first, because a 0.3.13 initiator would then
//! fail its next request.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::engine::base::addr::loopback_to_bind;
use crate::engine::env::AddressFilter;
use crate::engine::sys::socket::{ReceivePart, SendPart};
use crate::engine::sys::{Slice, socket};
use crate::engine::transfer::counters::{FlowMeter, TargetCounters};
use crate::engine::transfer::ports::{draw, no_port};
use crate::engine::transfer::region::Regions;
use crate::engine::transfer::tcp::acceptors::AcceptorPool;
use crate::engine::transfer::tcp::codec::{DONE, FramingVersion, REFUSED, RequestFrame, STATUS_BYTES, encode_status};
use crate::engine::transfer::tcp::connection::RUN_MAX;
use crate::engine::transfer::tcp::receive_buffer::ReceiveBuffer;
use crate::engine::transfer::types::OpKind;
use crate::engine::transfer::{MonoClock, TransferError};

/// Maximum number of data connections: four from each of about a thousand peers. To admit another connection, the one
/// that has been silent longest is closed, if it has been silent for at least [`SILENT_MIN`]. Otherwise the new one is
/// closed.
pub const CONNECTIONS_MAX: usize = 4096;
/// A connection that has moved no byte for this long may be closed to admit another. A 0.3.13 initiator then fails its
/// next request.
pub const SILENT_MIN: Duration = Duration::from_secs(60);
/// Maximum number of threads waiting to accept a connection.
const ACCEPTING_MAX: usize = 8;
/// Listen backlog. The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Number of ports to try.
const PORT_TRIES: u32 = 500;
/// Stack size of a serving thread: enough for the buffers of one system call, and for logging.
const STACK_BYTES: usize = 128 << 10;
/// How long to wait for threads to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Responses are collected until they contain this many bytes, and are then sent together.
const ANSWER_BYTES: u64 = 256 << 10;
/// Pause after a failed accept (when out of file descriptors, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Decides which peers may connect. The clock is for its log lines.
pub struct TargetGate {
    pub filter: AddressFilter,
    pub clock: MonoClock,
}

/// A listening data plane.
pub struct TcpTarget {
    shared: Arc<TargetState>,
}

struct TargetState {
    listener: TcpListener,
    port: u16,
    gate: TargetGate,
    regions: Arc<RwLock<Regions>>,
    acceptors: Mutex<AcceptorPool>,
    /// Signals that a thread, or a connection that is waited for, has ended.
    ended: Condvar,
    /// Number of callers that wait for connections to end.
    awaited: AtomicU64,
    meter: FlowMeter,
    rejected: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Connections closed to admit others.
    displaced: AtomicU64,
    connections_max: usize,
    silent_min: Duration,
}

impl TcpTarget {
    /// Listens on a free port in `ports`, on the first of `addresses` that is available. `gate` decides which peers may
    /// connect. A peer that moves no byte for `progress` in the middle of a request is
    /// disconnected. Between requests, a peer may stay silent indefinitely.
    ///
    /// # Errors
    /// Fails if no port is free or no thread can be started.
    pub fn start(
        addresses: &[IpAddr],
        ports: &RangeInclusive<u16>,
        rng: &dyn Fn() -> u64,
        regions: Arc<RwLock<Regions>>,
        progress: Duration,
        gate: TargetGate,
    ) -> Result<TcpTarget, TransferError> {
        let listener = listen(addresses, ports, rng)?;
        TcpTarget::start_with(listener, ports, regions, progress, gate, CONNECTIONS_MAX, SILENT_MIN)
    }

    fn start_with(
        listener: TcpListener,
        ports: &RangeInclusive<u16>,
        regions: Arc<RwLock<Regions>>,
        progress: Duration,
        gate: TargetGate,
        connections_max: usize,
        silent_min: Duration,
    ) -> Result<TcpTarget, TransferError> {
        let unusable = |source| no_port("data plane", ports, 1, source);
        let port = listener.local_addr().map_err(unusable)?.port();
        // Connections inherit the options set on the listener, which saves three system calls per connection.
        socket::prepare_listener(&listener, progress).map_err(unusable)?;
        let shared = Arc::new(TargetState {
            listener,
            port,
            gate,
            regions,
            acceptors: Mutex::new(AcceptorPool::with_one_thread()),
            ended: Condvar::new(),
            awaited: AtomicU64::new(0),
            meter: FlowMeter::default(),
            rejected: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            connections_max,
            silent_min,
        });
        spawn(&shared).map_err(unusable)?;
        Ok(TcpTarget { shared })
    }

    /// The port on which the target listens.
    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// Returns the counters for peers' requests.
    pub fn counters(&self) -> TargetCounters {
        TargetCounters {
            flow: self.shared.meter.flow(),
            rejected: self.shared.rejected.load(Ordering::Relaxed),
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            open: self.shared.acceptors().open() as u64,
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }

    /// Closes the connections that peers have opened so far, and waits up to `limit` until the requests in progress on them have ended.
    /// Bytes that the kernel has received are still written; later bytes are not. Connections that are opened afterward are served. Returns
    /// the number of closed connections.
    ///
    /// A connection that a peer opens less than twice the kernel's tick (10 ms) after this call may be closed, too.
    ///
    /// # Errors
    /// [`TransferError::StillInUse`]. Peers cannot delay a thread whose connection is closed, so this indicates a problem of this host.
    pub fn end_inbound(&self, limit: Duration) -> Result<usize, TransferError> {
        let mut acceptors = self.shared.acceptors();
        acceptors.refuse_established();
        let (closed, end) = acceptors.close_all();
        self.shared.awaited.fetch_add(1, Ordering::Relaxed);
        let (acceptors, _) = self
            .shared
            .ended
            .wait_timeout_while(acceptors, limit, |acceptors| acceptors.ending(end) > 0)
            .unwrap_or_else(PoisonError::into_inner);
        self.shared.awaited.fetch_sub(1, Ordering::Relaxed);
        match acceptors.ending(end) {
            0 => Ok(closed),
            connections => Err(TransferError::StillInUse { connections, limit }),
        }
    }

    /// Closes everything and waits up to `STOP_LIMIT` for the threads to end.
    pub fn stop(&self) {
        let mut acceptors = self.shared.acceptors();
        acceptors.stopping = true;
        acceptors.close_all();
        let _ = socket::stop_listening(&self.shared.listener);
        let (acceptors, waited) = self
            .shared
            .ended
            .wait_timeout_while(acceptors, STOP_LIMIT, |acceptors| acceptors.threads > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            tracing::warn!(threads = acceptors.threads, "data plane threads are still running");
        }
    }
}

impl Drop for TcpTarget {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the addresses to bind, in order of preference: the owner's choice `listen_on`, or the loopback address if the
/// announced `host` is one, or dual-stack, or IPv4 only if IPv6 is unavailable.
pub(super) fn addresses_to_bind(listen_on: Option<IpAddr>, host: &str) -> Vec<IpAddr> {
    let any = || vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    listen_on.or_else(|| loopback_to_bind(host)).map_or_else(any, |address| vec![address])
}

/// Listens on a free port in `ports`, on the first of `addresses` that is available.
fn listen(
    addresses: &[IpAddr],
    ports: &RangeInclusive<u16>,
    rng: &dyn Fn() -> u64,
) -> Result<TcpListener, TransferError> {
    let mut source = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORT_TRIES {
        let port = draw(ports, rng());
        for &address in addresses {
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
    Err(no_port("data plane", ports, PORT_TRIES, source))
}

fn spawn(shared: &Arc<TargetState>) -> io::Result<()> {
    let mine = Arc::clone(shared);
    let started =
        thread::Builder::new().name("te-target".into()).stack_size(STACK_BYTES).spawn(move || mine.accept_loop());
    started.map(drop)
}

impl TargetState {
    fn acceptors(&self) -> MutexGuard<'_, AcceptorPool> {
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A serving thread's loop: accept, serve, accept again.
    #[expect(clippy::disallowed_methods, reason = "data plane threads do not use Env")]
    fn accept_loop(self: &Arc<TargetState>) {
        let mut failed = 0u64;
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let TargetGate { filter, clock } = &self.gate;
                    if !filter.admits(from, self.port, clock()) {
                        continue;
                    }
                    let Some(accepted) = self.enter(stream, from) else { continue };
                    let AcceptedConnection { id, stream, is_served } = accepted;
                    if is_served && let Err(end) = self.serve(&stream) {
                        tracing::debug!(peer = %from, %end, "data connection closed");
                    }
                    if !self.leave(id) {
                        return;
                    }
                }
                Err(error) => {
                    let mut acceptors = self.acceptors();
                    if acceptors.stopping {
                        acceptors.accepting -= 1;
                        acceptors.threads -= 1;
                        self.ended.notify_all();
                        return;
                    }
                    drop(acceptors);
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

    /// Registers an accepted connection, so that the calling thread can serve it. Starts another thread if none is left
    /// to accept. If that fails, refuses the connection, and the caller continues to accept.
    fn enter(self: &Arc<TargetState>, stream: TcpStream, from: SocketAddr) -> Option<AcceptedConnection> {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed);
        let mut acceptors = self.acceptors();
        if acceptors.stopping {
            return None;
        }
        let alone = acceptors.accepting == 1;
        if alone && acceptors.busy_threads() >= self.connections_max {
            drop(acceptors);
            if !self.displace_silent(from) {
                self.refuse(from, &"connection limit reached");
                return None;
            }
            acceptors = self.acceptors();
        }
        if alone {
            // Either the new thread accepts in place of this one, or this one continues to accept.
            acceptors.threads += 1;
            drop(acceptors);
            if let Err(error) = spawn(self) {
                self.acceptors().threads -= 1;
                self.refuse(from, &error);
                return None;
            }
            acceptors = self.acceptors();
        } else {
            acceptors.accepting -= 1;
        }
        let stream = Arc::new(stream);
        let is_served = acceptors.enter(id, &stream);
        Some(AcceptedConnection { id, stream, is_served })
    }

    /// Closes the connection that has been silent longest, if it has been silent long enough. The kernel records the
    /// times, so the connections need no bookkeeping.
    fn displace_silent(&self, from: SocketAddr) -> bool {
        let open = self.acceptors().streams();
        let silent = open.into_iter().filter_map(|(id, stream)| Some((socket::silent_for(&stream).ok()?, id)));
        let Some((silent, id)) = silent.max().filter(|(silent, _)| *silent >= self.silent_min) else { return false };
        self.acceptors().close(id);
        let displaced = self.displaced.fetch_add(1, Ordering::Relaxed) + 1;
        if displaced.is_power_of_two() {
            tracing::warn!(
                peer = %from,
                displaced,
                limit = self.connections_max,
                silent_seconds = silent.as_secs(),
                "data connection limit reached; closed the connection that was silent longest"
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

    /// Unregisters a connection that has ended. Returns whether the calling thread should accept again.
    fn leave(&self, id: u64) -> bool {
        let mut acceptors = self.acceptors();
        acceptors.leave(id);
        if self.awaited.load(Ordering::Relaxed) > 0 {
            self.ended.notify_all();
        }
        if acceptors.stopping || acceptors.accepting >= ACCEPTING_MAX {
            acceptors.threads -= 1;
            self.ended.notify_all();
            return false;
        }
        acceptors.accepting += 1;
        true
    }

    /// Serves one connection until its peer closes it. Responses to requests that arrived together are sent together.
    fn serve(&self, stream: &TcpStream) -> Result<(), ServeError> {
        let mut inbox = ReceiveBuffer::new();
        let mut answers = ResponseBatch::default();
        while wait_for_request(stream, &mut inbox)? {
            while let Some(header) = inbox.header() {
                let reached =
                    self.regions.read().unwrap_or_else(PoisonError::into_inner).reach(header.address, header.size);
                let Some(slice) = reached else {
                    self.rejected.fetch_add(1, Ordering::Relaxed);
                    answers.add(&header, REFUSED, None);
                    self.answer(stream, &mut answers)?;
                    if header.version == FramingVersion::V1 && header.kind == OpKind::Write {
                        // Version 1 has no status: the writer detects the rejection only if the connection is reset, so
                        // force a reset on close.
                        socket::discard_on_close(stream).map_err(ServeError::Socket)?;
                    }
                    return Err(ServeError::Refused(header));
                };
                match header.kind {
                    OpKind::Read => answers.add(&header, DONE, Some(slice)),
                    OpKind::Write => {
                        if answers.bytes > 0 {
                            // Responses to pending reads must be sent before this write changes their bytes.
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

    fn answer(&self, stream: &TcpStream, answers: &mut ResponseBatch) -> Result<(), ServeError> {
        let length = |one: &TargetResponse| {
            one.status.map_or(0, |status| status.len()) + one.body.as_ref().map_or(0, Slice::len)
        };
        let total = answers.list.iter().map(length).sum();
        let mut done = 0;
        while done < total {
            let parts = answers.list.iter().flat_map(|one| {
                let status = one.status.as_ref().map(|status| SendPart::Bytes(status));
                status.into_iter().chain(one.body.as_ref().map(SendPart::Memory))
            });
            done += socket::send(stream.as_fd(), parts, done).map_err(ServeError::of)?;
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

/// A connection that the calling thread has accepted.
struct AcceptedConnection {
    id: u64,
    stream: Arc<TcpStream>,
    is_served: bool,
}

/// Responses to send together.
#[derive(Default)]
struct ResponseBatch {
    list: Vec<TargetResponse>,
    /// Number of data bytes in the responses, excluding statuses.
    bytes: u64,
}

struct TargetResponse {
    /// `None` in version 1.
    status: Option<[u8; STATUS_BYTES]>,
    body: Option<Slice>,
}

impl ResponseBatch {
    fn add(&mut self, to: &RequestFrame, code: u32, body: Option<Slice>) {
        let status = (to.version == FramingVersion::V2).then(|| encode_status(code));
        self.bytes += body.as_ref().map_or(0, |body| body.len() as u64);
        self.list.push(TargetResponse { status, body });
    }
}

/// Why a connection ended, unless its peer closed it between two requests.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("the peer requested {} bytes at {:#x}, which are not in memory that it may access", .0.size, .0.address)]
    Refused(RequestFrame),
    #[error("the peer closed the connection in the middle of a request")]
    Truncated,
    #[error("the peer made no progress")]
    Stalled,
    #[error(transparent)]
    Socket(io::Error),
}

impl ServeError {
    fn of(error: io::Error) -> ServeError {
        match error.kind() {
            io::ErrorKind::WouldBlock => ServeError::Stalled,
            _ => ServeError::Socket(error),
        }
    }
}

/// Waits until a whole header has arrived. Returns false if the peer closed the connection between two requests. The
/// wait for the first byte has no time limit.
fn wait_for_request(stream: &TcpStream, inbox: &mut ReceiveBuffer) -> Result<bool, ServeError> {
    while !inbox.has_header() {
        match inbox.receive(stream) {
            Ok(true) => {}
            Ok(false) if inbox.is_empty() => return Ok(false),
            Ok(false) => return Err(ServeError::Truncated),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && inbox.is_empty() => {}
            // A peer that is killed between two requests is not an error.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && inbox.is_empty() => return Ok(false),
            Err(error) => return Err(ServeError::of(error)),
        }
    }
    Ok(true)
}

/// Receives the bytes of a write. The first bytes may have arrived with its header.
fn receive_all(stream: &TcpStream, inbox: &mut ReceiveBuffer, body: &Slice) -> Result<(), ServeError> {
    let mut done = body.copy_from_bytes(inbox.take(body.len()));
    while done < body.len() {
        match socket::receive(stream.as_fd(), [ReceivePart::Memory(body)].into_iter(), done).map_err(ServeError::of)? {
            0 => return Err(ServeError::Truncated),
            n => done += n,
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "data plane sockets and clocks do not use Env")]
mod tests {
    use super::*;
    use crate::engine::base::Mono;
    use std::io::Read;
    use std::time::Instant;

    fn target(connections_max: usize, silent_min: Duration) -> TcpTarget {
        let gate = TargetGate { filter: AddressFilter::default(), clock: Arc::new(|| Mono(1)) };
        gated(gate, connections_max, silent_min)
    }

    fn gated(gate: TargetGate, connections_max: usize, silent_min: Duration) -> TcpTarget {
        let listener = listen(&addresses_to_bind(None, "127.0.0.1"), &(0..=0), &|| 0).unwrap();
        let limit = Duration::from_secs(5);
        TcpTarget::start_with(listener, &(0..=0), Arc::default(), limit, gate, connections_max, silent_min).unwrap()
    }

    #[test]
    fn connections_from_other_addresses_are_closed_at_accept() {
        let filter = AddressFilter::only("10.0.0.0/8".parse().unwrap());
        let target = gated(TargetGate { filter, clock: Arc::new(|| Mono(1)) }, 3, Duration::from_secs(3600));
        for _ in 0..2 {
            assert!(matches!(connect(&target).read(&mut [0]), Ok(0) | Err(_)));
        }
        assert_eq!((target.counters().accepted, target.counters().open), (0, 0));
    }

    fn connect(target: &TcpTarget) -> TcpStream {
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
    fn at_the_limit_the_longest_silent_connection_is_closed() {
        // In addition to the two connections' threads, one thread waits to accept.
        let target = target(3, Duration::from_millis(100));
        let mut first = connect(&target);
        until(|| target.counters().open == 1);
        thread::sleep(Duration::from_millis(50));
        let second = connect(&target);
        until(|| target.counters().open == 2);
        thread::sleep(Duration::from_millis(300));
        let third = connect(&target);
        assert_eq!(first.read(&mut [0]).unwrap(), 0, "closed");
        until(|| target.counters().open == 2);
        assert_eq!(target.counters().refused, 0);
        drop((second, third));
    }

    #[test]
    fn recently_used_connections_are_kept_at_the_limit() {
        let target = target(3, Duration::from_secs(3600));
        let kept = [connect(&target), connect(&target)];
        until(|| target.counters().open == 2);
        assert!(matches!(connect(&target).read(&mut [0]), Ok(0) | Err(_)));
        assert_eq!((target.counters().open, target.counters().refused), (2, 1));
        drop(kept);
        until(|| target.counters().open == 0);
    }
}
