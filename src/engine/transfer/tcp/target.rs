//! The target: serves peers' requests for registered memory.
//!
//! Threads share the listener: a thread that accepts a connection also serves it, and another
//! thread takes its place. So a peer that opens a connection for each request (as releases before
//! 0.3.13 do) causes no hand-over and usually no new thread. The target never closes a well-behaved
//! peer's connection first, because a 0.3.13 initiator would then fail its next request.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::counters::{FlowMeter, TargetCounters};
use crate::ports::{draw, no_port};
use crate::region::Regions;
use crate::tcp::acceptors::{AcceptorPool, OpenConnection};
use crate::tcp::codec::{DONE, FramingVersion, HEADER_BYTES, REFUSED, RequestFrame, STATUS_BYTES, encode_status};
use crate::tcp::connection::RUN_MAX;
use crate::tcp::displacement::{ConnectionActivity, to_displace};
use crate::tcp::receive_buffer::ReceiveBuffer;
use crate::types::OpKind;
use crate::{MonoClock, TransferError};
use mcctl_base::addr::loopback_to_bind;
use mcctl_sys::env::AddressFilter;
use mcctl_sys::socket::{ReceivePart, SendPart};
use mcctl_sys::{Slice, socket};

/// Maximum number of data connections: four from each of about a thousand peers. To admit another
/// connection, one is closed that has not completed a request for some time, if there is any (see
/// [`displacement`](super::displacement)). Otherwise the new one is closed.
pub const CONNECTIONS_MAX: usize = 4096;
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

/// Decides which peers may connect. The clock is also for the times of requests.
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
}

impl TcpTarget {
    /// Listens on a free port in `ports`, on the first of `addresses` that is available. `gate`
    /// decides which peers may connect. A peer that moves no byte for `progress` in the middle of a
    /// request is disconnected. Between requests, a peer may stay silent indefinitely, unless the
    /// number of connections is at its limit.
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
        TcpTarget::start_with(listener, ports, regions, progress, gate, CONNECTIONS_MAX)
    }

    fn start_with(
        listener: TcpListener,
        ports: &RangeInclusive<u16>,
        regions: Arc<RwLock<Regions>>,
        progress: Duration,
        gate: TargetGate,
        connections_max: usize,
    ) -> Result<TcpTarget, TransferError> {
        let unusable = |source| no_port("data plane", ports, 1, source);
        let port = listener.local_addr().map_err(unusable)?.port();
        // Connections inherit the options set on the listener, which saves three system calls per
        // connection.
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

    /// Closes the connections that peers have opened so far, and waits up to `limit` until the
    /// requests in progress on them have ended. Bytes that the kernel has received are still
    /// written; later bytes are not. Connections that are opened afterward are served. Returns the
    /// number of closed connections.
    ///
    /// A connection that a peer opens less than twice the kernel's tick (10 ms) after this call may
    /// be closed, too.
    ///
    /// # Errors
    /// [`TransferError::StillInUse`]. Peers cannot delay a thread whose connection is closed, so
    /// this indicates a problem of this host.
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

/// Returns the addresses to bind, in order of preference: the owner's choice `listen_on`, or the
/// loopback address if the announced `host` is one, or dual-stack, or IPv4 only if IPv6 is
/// unavailable.
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
                    let AcceptedConnection { id, connection, is_served } = accepted;
                    if is_served && let Err(end) = self.serve(&connection.stream, &connection.activity) {
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

    /// Registers an accepted connection, so that the calling thread can serve it. Starts another
    /// thread if none is left to accept. If that fails, refuses the connection, and the caller
    /// continues to accept.
    fn enter(self: &Arc<TargetState>, stream: TcpStream, from: SocketAddr) -> Option<AcceptedConnection> {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed);
        let mut acceptors = self.acceptors();
        if acceptors.stopping {
            return None;
        }
        let alone = acceptors.accepting == 1;
        if alone && acceptors.busy_threads() >= self.connections_max {
            drop(acceptors);
            if !self.displace(from) {
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
        let activity = ConnectionActivity::new(from.ip(), (self.gate.clock)());
        let connection = Arc::new(OpenConnection { stream, activity });
        let is_served = acceptors.enter(id, &connection);
        Some(AcceptedConnection { id, connection, is_served })
    }

    /// Closes a connection that has completed no request for some time, if there is one. The kernel
    /// counts the bytes of requests in progress.
    fn displace(&self, from: SocketAddr) -> bool {
        let open = self.acceptors().connections();
        let now = (self.gate.clock)();
        let usage = |(id, connection): (u64, Arc<OpenConnection>)| {
            connection.activity.usage(id, now, || socket::bytes_moved(&connection.stream).unwrap_or(0))
        };
        let open: Vec<_> = open.into_iter().map(usage).collect();
        let Some((id, since)) = to_displace(&open, from.ip(), self.connections_max, now) else { return false };
        self.acceptors().close(id);
        let displaced = self.displaced.fetch_add(1, Ordering::Relaxed) + 1;
        if displaced.is_power_of_two() {
            tracing::warn!(
                peer = %from,
                displaced,
                limit = self.connections_max,
                seconds_without_request = now.since(since).as_secs(),
                "data connection limit reached; closed a connection without complete requests for another one"
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

    /// Unregisters a connection that has ended. Returns whether the calling thread should accept
    /// again.
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

    /// Serves one connection until its peer closes it. Responses to requests that arrived together
    /// are sent together.
    fn serve(&self, stream: &TcpStream, activity: &ConnectionActivity) -> Result<(), ServeError> {
        let mut inbox = ReceiveBuffer::new();
        let mut answers = ResponseBatch::default();
        let now = || (self.gate.clock)();
        while wait_for_request(stream, &mut inbox)? {
            activity.begins(now());
            while let Some(header) = inbox.header() {
                activity.moved(HEADER_BYTES as u64);
                let reached =
                    self.regions.read().unwrap_or_else(PoisonError::into_inner).reach(header.address, header.size);
                let Some(slice) = reached else {
                    self.rejected.fetch_add(1, Ordering::Relaxed);
                    answers.add(&header, REFUSED, None);
                    self.answer(stream, &mut answers, activity)?;
                    if header.version == FramingVersion::V1 && header.kind == OpKind::Write {
                        // Version 1 has no status: the writer detects the rejection only if the
                        // connection is reset, so force a reset on close.
                        socket::discard_on_close(stream).map_err(ServeError::Socket)?;
                    }
                    return Err(ServeError::Refused(header));
                };
                match header.kind {
                    OpKind::Read => answers.add(&header, DONE, Some(slice)),
                    OpKind::Write => {
                        if answers.bytes > 0 {
                            // Responses to pending reads must be sent before this write changes
                            // their bytes.
                            self.answer(stream, &mut answers, activity)?;
                        }
                        receive_all(stream, &mut inbox, &slice)?;
                        self.meter.wrote(1, header.size);
                        activity.moved(header.size);
                        activity.completes(now());
                        answers.add(&header, DONE, None);
                    }
                }
                if answers.list.len() == RUN_MAX || answers.bytes >= ANSWER_BYTES {
                    self.answer(stream, &mut answers, activity)?;
                }
            }
            self.answer(stream, &mut answers, activity)?;
            activity.rests();
        }
        Ok(())
    }

    fn answer(
        &self,
        stream: &TcpStream,
        answers: &mut ResponseBatch,
        activity: &ConnectionActivity,
    ) -> Result<(), ServeError> {
        let length = |one: &TargetResponse| {
            one.status.map_or(0, |status| status.len()) + one.body.as_ref().map_or(0, Slice::len)
        };
        let total = answers.list.iter().map(length).sum();
        if answers.list.is_empty() {
            return Ok(());
        }
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
        activity.moved(total as u64);
        activity.completes((self.gate.clock)());
        answers.list.clear();
        answers.bytes = 0;
        Ok(())
    }
}

/// A connection that the calling thread has accepted.
struct AcceptedConnection {
    id: u64,
    connection: Arc<OpenConnection>,
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

/// Waits until a whole header has arrived. Returns false if the peer closed the connection between
/// two requests. The wait for the first byte has no time limit.
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
    use crate::types::{Access, RegionKeys};
    use mcctl_base::Mono;
    use mcctl_sys::Memory;
    use std::io::{Read, Write};
    use std::time::Instant;

    /// A clock that tests advance.
    #[derive(Clone)]
    struct TestClock(Arc<AtomicU64>);

    impl TestClock {
        fn new() -> TestClock {
            TestClock(Arc::new(AtomicU64::new(1)))
        }

        fn advance(&self, seconds: u64) {
            self.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        }
    }

    /// A target for a number of threads: one of them waits to accept, each of the others has a
    /// connection.
    fn target(threads_max: usize, clock: &TestClock) -> TcpTarget {
        let clock = clock.clone();
        let clock: MonoClock = Arc::new(move || Mono(clock.0.load(Ordering::Relaxed)));
        gated(TargetGate { filter: AddressFilter::default(), clock }, threads_max)
    }

    fn gated(gate: TargetGate, connections_max: usize) -> TcpTarget {
        let listener = listen(&addresses_to_bind(None, "127.0.0.1"), &(0..=0), &|| 0).unwrap();
        let limit = Duration::from_secs(5);
        TcpTarget::start_with(listener, &(0..=0), Arc::default(), limit, gate, connections_max).unwrap()
    }

    /// A target that serves some memory, and its address.
    fn serving(threads_max: usize, clock: &TestClock) -> (TcpTarget, u64) {
        let target = target(threads_max, clock);
        let memory = Arc::new(Memory::from_vec(vec![7; 8]));
        let address = memory.address();
        target.shared.regions.write().unwrap().insert(memory, Access::Remote, RegionKeys::default()).unwrap();
        (target, address)
    }

    /// Reads a byte of the target's memory, and waits until all connections are between two
    /// requests.
    fn read(target: &TcpTarget, connection: &mut TcpStream, address: u64) {
        let request = RequestFrame { kind: OpKind::Read, version: FramingVersion::V1, address, size: 1 };
        connection.write_all(&request.encode()).unwrap();
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
        until(|| target.shared.acceptors().connections().iter().all(|(_, connection)| connection.activity.is_idle()));
    }

    #[test]
    fn connections_from_other_addresses_are_closed_at_accept() {
        let filter = AddressFilter::only("10.0.0.0/8".parse().unwrap());
        let target = gated(TargetGate { filter, clock: Arc::new(|| Mono(1)) }, 3);
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
    fn connections_that_send_no_request_do_not_lock_out_others() {
        let clock = TestClock::new();
        let target = target(3, &clock);
        let mut strangers = [connect(&target), connect(&target)];
        until(|| target.counters().open == 2);
        // Any number of bytes below a header.
        strangers.iter_mut().for_each(|stranger| stranger.write_all(b"x").unwrap());
        clock.advance(6);
        let honest = connect(&target);
        until(|| target.counters().accepted == 3 && target.counters().open == 2);
        assert_eq!(target.counters().refused, 0);
        let is_open = |stranger: &mut TcpStream| {
            stranger.set_nonblocking(true).unwrap();
            stranger.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        until(|| strangers.iter_mut().map(is_open).filter(|is_open| *is_open).count() == 1);
        drop(honest);
    }

    #[test]
    fn at_the_limit_the_connection_is_closed_whose_last_request_is_oldest() {
        let clock = TestClock::new();
        let (target, memory) = serving(3, &clock);
        let mut first = connect(&target);
        read(&target, &mut first, memory);
        clock.advance(10);
        let mut second = connect(&target);
        read(&target, &mut second, memory);
        clock.advance(59);
        let third = connect(&target);
        assert_eq!(first.read(&mut [0]).unwrap(), 0, "closed");
        until(|| target.counters().open == 2);
        assert_eq!(target.counters().refused, 0);
        drop((second, third));
    }

    #[test]
    fn recently_used_connections_are_kept_at_the_limit() {
        let clock = TestClock::new();
        let (target, memory) = serving(3, &clock);
        let kept = [(); 2].map(|()| {
            let mut connection = connect(&target);
            read(&target, &mut connection, memory);
            connection
        });
        clock.advance(59);
        assert!(matches!(connect(&target).read(&mut [0]), Ok(0) | Err(_)));
        assert_eq!((target.counters().open, target.counters().refused), (2, 1));
        drop(kept);
        until(|| target.counters().open == 0);
    }
}
