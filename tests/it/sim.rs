//! Test environments: a simulated network (virtual time, seeded randomness, turmoil's sockets), and
//! the real one with an adjustable clock or with long time limits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcctl::engine::base::{HostPort, Mono, Unix};
use mcctl::engine::env::{Env, Listener, Net, RealEnv};
use turmoil::net::{TcpListener, TcpStream};

#[derive(Clone)]
pub struct SimEnv {
    net: SimNet,
    rng: Arc<AtomicU64>,
}

impl SimEnv {
    pub fn new(seed: u64) -> SimEnv {
        SimEnv { net: SimNet, rng: Arc::new(AtomicU64::new(seed)) }
    }
}

impl Env for SimEnv {
    type Net = SimNet;

    fn net(&self) -> &SimNet {
        &self.net
    }

    fn now(&self) -> Mono {
        Mono::ZERO + turmoil::elapsed()
    }

    fn unix(&self) -> Unix {
        Unix(i64::try_from(turmoil::elapsed().as_millis()).unwrap())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn rng(&self) -> u64 {
        let step = self.rng.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        (step ^ (step >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

#[derive(Clone)]
pub struct SimNet;

impl Net for SimNet {
    type Stream = TcpStream;
    type Listener = SimListener;
    type Detached = TcpStream;

    async fn connect(&self, to: &HostPort) -> io::Result<TcpStream> {
        TcpStream::connect((to.host.as_str(), to.port)).await
    }

    async fn listen(&self, at: &HostPort) -> io::Result<SimListener> {
        let listener = TcpListener::bind((at.host.as_str(), at.port)).await?;
        Ok(SimListener { port: listener.local_addr()?.port(), listener })
    }

    fn detach(stream: TcpStream) -> io::Result<TcpStream> {
        Ok(stream)
    }

    fn attach(stream: TcpStream) -> io::Result<TcpStream> {
        Ok(stream)
    }
}

pub struct SimListener {
    listener: TcpListener,
    port: u16,
}

impl Listener for SimListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, String)> {
        let (stream, peer) = self.listener.accept().await?;
        Ok((stream, peer.to_string()))
    }

    fn port(&self) -> u16 {
        self.port
    }
}

/// The real environment with clocks that can be advanced.
#[derive(Clone, Default)]
pub struct AdjustableClock {
    real: RealEnv,
    ms: Arc<AtomicU64>,
    suspended_ms: Arc<AtomicU64>,
}

impl AdjustableClock {
    pub fn advance(&self, by: Duration) {
        self.ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }

    /// Advances only the clock that counts while the host is suspended.
    pub fn suspend(&self, time: Duration) {
        self.suspended_ms.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Env for AdjustableClock {
    type Net = <RealEnv as Env>::Net;
    fn net(&self) -> &Self::Net {
        self.real.net()
    }
    fn now(&self) -> Mono {
        self.real.now() + Duration::from_millis(self.ms.load(Ordering::Relaxed))
    }
    fn boottime(&self) -> Mono {
        self.now() + Duration::from_millis(self.suspended_ms.load(Ordering::Relaxed))
    }
    fn unix(&self) -> Unix {
        self.real.unix()
    }
    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration).await;
    }
    fn rng(&self) -> u64 {
        self.real.rng()
    }
}

/// The real environment in which every wait, and so every time limit, is a hundred times as long. A
/// busy machine does not reach it.
#[derive(Clone, Default)]
pub struct PatientEnv {
    real: RealEnv,
}

impl Env for PatientEnv {
    type Net = <RealEnv as Env>::Net;
    fn net(&self) -> &Self::Net {
        self.real.net()
    }
    fn now(&self) -> Mono {
        self.real.now()
    }
    fn unix(&self) -> Unix {
        self.real.unix()
    }
    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration * 100).await;
    }
    fn rng(&self) -> u64 {
        self.real.rng()
    }
}
