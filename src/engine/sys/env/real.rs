//! The real environment: tokio's sockets and timers, the system's clocks and entropy.
#![expect(clippy::disallowed_methods, reason = "the only file where these calls are allowed")]

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, lookup_host};

use crate::env::{AddressFilter, Env, Listener, Net};
use crate::{readiness, socket};
use mcctl_base::{HostPort, Mono, Unix};

/// The operating system's time, sockets and randomness.
#[derive(Clone, Default)]
pub struct RealEnv {
    net: RealNet,
    rng: Arc<SystemRng>,
}

impl RealEnv {
    /// Creates the environment for this process.
    pub fn new() -> RealEnv {
        RealEnv::default()
    }

    /// Creates an environment whose listeners accept only connections that `filter` admits.
    pub fn filtered(filter: AddressFilter) -> RealEnv {
        RealEnv { net: RealNet { filter }, rng: Arc::default() }
    }
}

impl Env for RealEnv {
    type Net = RealNet;

    fn net(&self) -> &RealNet {
        &self.net
    }

    fn now(&self) -> Mono {
        let now = now();
        RECENT.set(Some(now));
        now
    }

    fn recent(&self) -> Mono {
        RECENT.get().unwrap_or_else(now)
    }

    fn boottime(&self) -> Mono {
        boottime()
    }

    fn unix(&self) -> Unix {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Unix(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn address_filter(&self) -> AddressFilter {
        self.net.filter.clone()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn rng(&self) -> u64 {
        self.rng.next()
    }

    fn pause_thread(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn thread_cpu(&self) -> Option<Duration> {
        // Not getrusage: its value lags by up to a timer tick while the thread runs.
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
    }
}

thread_local! {
    /// The last time that the thread has read.
    static RECENT: Cell<Option<Mono>> = const { Cell::new(None) };
}

fn boottime() -> Mono {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    time.map_or_else(|_| now(), |time| Mono::ZERO + time)
}

fn now() -> Mono {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    // Starts at one second, so that times shortly before startup can be represented.
    Mono(1_000_000_000) + ORIGIN.get_or_init(Instant::now).elapsed()
}

/// SplitMix64 over a counter. The standard library obtains the seed from the operating system.
struct SystemRng(AtomicU64);

impl Default for SystemRng {
    fn default() -> SystemRng {
        SystemRng(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }
}

impl SystemRng {
    fn next(&self) -> u64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Length of the accept queue, which the kernel caps at net.core.somaxconn. All ranks in a cluster
/// reconnect at the same time when a master comes back up.
const BACKLOG: i32 = 4096;

/// TCP over the system's network.
#[derive(Clone, Default)]
pub struct RealNet {
    /// Which peers may connect to listeners.
    filter: AddressFilter,
}

impl Net for RealNet {
    type Stream = TcpStream;
    type Listener = RealListener;
    type Detached = std::net::TcpStream;

    async fn connect(&self, to: &HostPort) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn listen(&self, at: &HostPort) -> io::Result<RealListener> {
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the host name has no address");
        for address in lookup_host((at.host.as_str(), at.port)).await? {
            match socket::listen(address, BACKLOG) {
                Ok(listener) => {
                    socket::enable_keepalive(&listener)?;
                    listener.set_nonblocking(true)?;
                    let listener = TcpListener::from_std(listener)?;
                    let port = listener.local_addr()?.port();
                    let filter = self.filter.clone();
                    return Ok(RealListener { listener, port, filter });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn detach(stream: TcpStream) -> io::Result<std::net::TcpStream> {
        stream.into_std()
    }

    fn attach(socket: std::net::TcpStream) -> io::Result<TcpStream> {
        TcpStream::from_std(socket)
    }

    fn is_hung_up(stream: &TcpStream) -> bool {
        readiness::is_hung_up(stream)
    }

    fn note_arrivals(stream: &TcpStream) {
        // If the call fails, all ages are zero, which means "not available".
        let _ = socket::enable_rx_timestamps(stream);
    }

    fn poll_read_aged(
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<Duration>> {
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let mut got = None;
            let tried = stream.try_io(Interest::READABLE, || {
                let unfilled = buf.initialize_unfilled();
                let (count, age) = socket::receive_with_age(stream.as_fd(), unfilled)?;
                got = Some((count, age));
                // A short read means that the socket is empty and that new bytes will trigger an
                // event. Returning `WouldBlock` saves a system call.
                if 0 < count && count < unfilled.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (got, tried) {
                (Some((count, age)), _) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(age));
                }
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, Err(error)) => return Poll::Ready(Err(error)),
                (None, Ok(())) => {}
            }
        }
    }
}

/// A bound TCP listener.
pub struct RealListener {
    listener: TcpListener,
    port: u16,
    filter: AddressFilter,
}

impl RealListener {
    /// Returns the tokio listener, for servers that require one. It does not filter addresses.
    pub fn into_inner(self) -> TcpListener {
        self.listener
    }
}

impl Listener for RealListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, String)> {
        loop {
            let (stream, peer) = self.listener.accept().await?;
            // The data plane uses the same clock for its listeners.
            if self.filter.admits(peer, self.port, boottime()) {
                stream.set_nodelay(true)?;
                return Ok((stream, peer.to_string()));
            }
        }
    }

    fn port(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{getsockopt, sockopt};

    #[test]
    fn the_recent_time_is_the_last_that_the_thread_has_read() {
        let env = RealEnv::new();
        let read = env.now();
        let other = std::thread::spawn(|| RealEnv::new().now()).join().unwrap();
        assert!(other > read && env.recent() == read);
    }

    #[tokio::test]
    async fn accepted_connections_end_when_the_peers_host_is_gone() {
        let mut listener = RealNet::default().listen(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        let _peer = RealNet::default().connect(&HostPort::new("127.0.0.1", listener.port())).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(getsockopt(&accepted, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&accepted, sockopt::TcpUserTimeout).unwrap(), 120_000);
    }

    #[tokio::test]
    async fn a_listener_accepts_only_connections_that_the_filter_admits() {
        let net = RealEnv::filtered(AddressFilter::only("127.0.0.1".parse().unwrap())).net().clone();
        let mut listener = net.listen(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        let from = |address: [u8; 4]| {
            let at = std::net::SocketAddr::from(([127, 0, 0, 1], listener.port()));
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((address, 0).into()).unwrap();
            socket.connect(at)
        };
        let mut other = from([127, 0, 0, 2]).await.unwrap();
        let allowed = from([127, 0, 0, 1]).await.unwrap();
        let (_accepted, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, allowed.local_addr().unwrap().to_string());
        assert!(matches!(tokio::io::AsyncReadExt::read(&mut other, &mut [0]).await, Ok(0) | Err(_)), "closed");
    }

    #[tokio::test]
    async fn many_connections_can_wait_to_be_accepted() {
        let kernel = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most = kernel.trim().parse::<usize>().unwrap().min(400);
        let listener = RealNet::default().listen(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        let at = std::net::SocketAddr::from(([127, 0, 0, 1], listener.port()));
        // When the accept queue is full, a connection is established only after its first packet is
        // retransmitted, a second later.
        let connect = |_| std::net::TcpStream::connect_timeout(&at, Duration::from_millis(900)).unwrap();
        let waiting: Vec<_> = (0..most).map(connect).collect();
        assert_eq!(waiting.len(), most);
    }
}
