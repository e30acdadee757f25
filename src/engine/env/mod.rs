//! Where time, sockets, wall clock and randomness come from. The shells (servers, clients, benches) take an `Env`;
//! the cores take none, they take `now`.
//!
//! Nothing else in the engine reads a clock or opens a control-plane socket (`.clippy.toml` refuses it). The transfer engine's
//! data plane is the one exception: see `transfer::tcp`.

mod real;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engine::base::{HostPort, Mono, Unix};

pub use real::RealEnv;

/// Where a shell gets sockets, time and randomness from. Cheap to clone.
pub trait Env: Clone + Send + Sync + 'static {
    /// The network.
    type Net: Net;
    /// The network.
    fn net(&self) -> &Self::Net;
    /// Monotonic time.
    fn now(&self) -> Mono;
    /// Wall-clock time, only for what people and other programs read.
    fn unix(&self) -> Unix;
    /// Wait for `duration`.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
    /// A random number.
    fn rng(&self) -> u64;
    /// Keep the calling thread waiting for `duration`. For the few places that wait under no runtime, and so short that going
    /// through one would cost more. Nothing happens where threads are not real: nobody else would run meanwhile.
    fn pause_thread(&self, _duration: Duration) {}
    /// Processor time that the calling thread has used so far; `None` where threads are not real. A system call.
    fn thread_cpu(&self) -> Option<Duration> {
        None
    }
}

/// Stream sockets.
pub trait Net: Clone + Send + Sync + 'static {
    /// A connected stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// A bound listener.
    type Listener: Listener<Stream = Self::Stream>;
    /// A stream on its way from one runtime to another.
    type Detached: Send + 'static;
    /// Connect to `to`.
    fn connect(&self, to: &HostPort) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    /// Bind `at`; port 0 takes a free one.
    fn listen(&self, at: &HostPort) -> impl Future<Output = io::Result<Self::Listener>> + Send;
    /// Take a stream off the runtime it is on.
    ///
    /// # Errors
    /// The system refuses.
    fn detach(stream: Self::Stream) -> io::Result<Self::Detached>;
    /// Put a stream on the runtime that runs this.
    ///
    /// # Errors
    /// The system refuses.
    fn attach(socket: Self::Detached) -> io::Result<Self::Stream>;
    /// From now on [`Net::poll_read_aged`] shall know when bytes came in. Where that cannot be known nothing happens.
    fn note_arrivals(_stream: &Self::Stream) {}
    /// Read as [`AsyncRead::poll_read`] does, and tell how long the last of the bytes had lain unread: the time of their arrival does
    /// not depend on when the program came round to them. Zero where nobody knows.
    fn poll_read_aged(
        stream: &mut Self::Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<Duration>> {
        Pin::new(stream).poll_read(cx, buf).map_ok(|()| Duration::ZERO)
    }
}

/// A bound listener.
pub trait Listener: Send + 'static {
    /// What `accept` gives.
    type Stream;
    /// The next connection and the peer's address, as text.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, String)>> + Send;
    /// The port that was bound.
    fn port(&self) -> u16;
}

/// The processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `work` did not finish within its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct Elapsed(pub Duration);

/// Run `work`, but no longer than `limit`.
///
/// # Errors
/// [`Elapsed`] when the time is up; `work` is dropped then.
pub async fn deadline<E: Env, T>(env: &E, limit: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = env.sleep(limit) => Err(Elapsed(limit)),
    }
}
