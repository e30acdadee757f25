//! Access to time, sockets, wall clock and randomness. Servers, clients and benchmarks take an
//! `Env`; pure code takes `now`.
//!
//! No other code in the engine reads a clock or opens a control-plane socket (`.clippy.toml`
//! enforces it). The transfer engine's data plane is the only exception: see `transfer::tcp`.

pub mod address_filter;
mod real;
mod socket_file;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;

use mcctl_base::time::RoundedDuration;
use mcctl_base::{HostPort, Mono, Unix};

pub use address_filter::AddressFilter;
pub use real::RealEnv;
pub use socket_file::SocketFileListener;

/// Provides sockets, time and randomness. Cheap to clone.
pub trait Env: Clone + Send + Sync + 'static {
    /// The type of this environment's network.
    type Net: Net;
    /// Returns this environment's network.
    fn net(&self) -> &Self::Net;
    /// Returns the monotonic time.
    fn now(&self) -> Mono;
    /// Returns the time that this thread has last read with [`now`](Env::now). This costs about
    /// 1 ns, and reading the clock 20 to 70 ns.
    fn recent(&self) -> Mono {
        self.now()
    }
    /// Returns the time on a monotonic clock that also counts while the host is suspended. Its
    /// origin differs from that of [`now`](Env::now).
    fn boottime(&self) -> Mono {
        self.now()
    }
    /// Returns the wall-clock time. Only for output to people and other programs.
    fn unix(&self) -> Unix;
    /// Returns the filter of the network's listeners, for code with listeners of its own.
    fn address_filter(&self) -> AddressFilter {
        AddressFilter::default()
    }
    /// Waits for `duration` on this environment's clock.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
    /// Returns a random number.
    fn rng(&self) -> u64;
    /// Blocks the calling thread for `duration`. Used for the few short waits outside a runtime,
    /// where starting a runtime would cost more than the wait itself. Does nothing without real
    /// threads, because no other code would run in the meantime.
    fn pause_thread(&self, _duration: Duration) {}
    /// Returns the CPU time used by the calling thread; `None` without real threads. Costs a system
    /// call.
    fn thread_cpu(&self) -> Option<Duration> {
        None
    }
    /// Runs `work`, which blocks or takes long, on another thread. With real threads, it also runs
    /// if the future is dropped. A panic in it continues in the caller.
    fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        end_of(tokio::task::spawn_blocking(work))
    }
    /// Runs `work` on a thread of its own until its last step, also if the future is dropped. A
    /// panic in it continues in the caller.
    fn run_thread(&self, mut work: impl ThreadWork) -> impl Future<Output = ()> + Send + 'static {
        end_of(tokio::task::spawn_blocking(move || while work.step(true) {}))
    }
}

/// Work of a thread, in steps. A simulation without threads does one step after the other.
pub trait ThreadWork: Send + 'static {
    /// Does the next step. If there is nothing to do, waits for some time if `may_wait`, and
    /// otherwise returns. Returns false after the last step.
    fn step(&mut self, may_wait: bool) -> bool;
}

/// Waits for work on another thread.
async fn end_of<T>(running: JoinHandle<T>) -> T {
    match running.await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

/// A network with stream sockets.
pub trait Net: Clone + Send + Sync + 'static {
    /// The type of a connected stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The type of a bound listener.
    type Listener: Listener<Stream = Self::Stream>;
    /// A stream being moved from one runtime to another.
    type Detached: Send + 'static;
    /// Connects a stream to the address `to`.
    fn connect(&self, to: &HostPort) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    /// Binds to `at`; port 0 selects a free port.
    fn listen(&self, at: &HostPort) -> impl Future<Output = io::Result<Self::Listener>> + Send;
    /// Detaches a stream from its runtime.
    ///
    /// # Errors
    /// The system call failed.
    fn detach(stream: Self::Stream) -> io::Result<Self::Detached>;
    /// Attaches a stream to the current runtime.
    ///
    /// # Errors
    /// The system call failed.
    fn attach(socket: Self::Detached) -> io::Result<Self::Stream>;
    /// Whether the peer has closed or reset `stream`. This is known before the bytes that it sent
    /// earlier have been read, and does not depend on what the runtime has already done. Costs a
    /// system call. Always false where the network cannot be queried: then only a read returns the
    /// end of the stream.
    fn is_hung_up(_stream: &Self::Stream) -> bool {
        false
    }
    /// Enables arrival timestamps for [`Net::poll_read_aged`]. Has no effect where timestamps are
    /// not available.
    fn note_arrivals(_stream: &Self::Stream) {}
    /// Reads like [`AsyncRead::poll_read`], and also returns how long the last byte had been
    /// waiting to be read. From this, the caller can compute an arrival time that does not depend
    /// on when the program reads the data. Returns zero where arrival timestamps are not available.
    fn poll_read_aged(
        stream: &mut Self::Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<Duration>> {
        Pin::new(stream).poll_read(cx, buf).map_ok(|()| Duration::ZERO)
    }
}

/// The type of a bound listener.
pub trait Listener: Send + 'static {
    /// The type of an accepted stream.
    type Stream;
    /// Accepts the next connection. The returned string is the peer's address.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, String)>> + Send;
    /// Returns the port that the listener is bound to.
    fn port(&self) -> u16;
}

/// Returns the number of processors available to this process.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The time limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no response within {}", RoundedDuration(*.0))]
pub struct Elapsed(pub Duration);

/// The time to show in a report or a file. It is never used to measure.
pub fn wall_clock<E: Env>(env: &E) -> Unix {
    env.unix()
}

/// Runs `work`, and returns its result and how long it took.
pub async fn timed<E: Env, T>(env: &E, work: impl Future<Output = T>) -> (T, Duration) {
    let began = env.now();
    let done = work.await;
    (done, env.now().since(began))
}

/// Runs `work` for at most `limit`.
///
/// # Errors
/// [`Elapsed`] if the limit is exceeded. `work` is then dropped.
pub async fn deadline<E: Env, T>(env: &E, limit: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = env.sleep(limit) => Err(Elapsed(limit)),
    }
}
