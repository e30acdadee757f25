//! A stream that remembers when bytes last passed: the time of a token is that of its bytes' arrival, not of their parsing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engine::base::Mono;
use crate::engine::env::Env;

/// Points of the monotonic clock, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    start: AtomicU64,
    read: AtomicU64,
    wrote: AtomicU64,
}

impl Stamps {
    /// Times count from `start`.
    pub(super) fn starts(&self, start: Mono) {
        self.start.store(start.0, Ordering::Relaxed);
    }

    /// When bytes were last read.
    pub(super) fn read(&self) -> Duration {
        self.since_start(&self.read)
    }

    /// When bytes were last written.
    pub(super) fn wrote(&self) -> Duration {
        self.since_start(&self.wrote)
    }

    fn since_start(&self, stamp: &AtomicU64) -> Duration {
        Mono(stamp.load(Ordering::Relaxed)).since(Mono(self.start.load(Ordering::Relaxed)))
    }
}

/// See the module.
pub(super) struct Stamped<S, E> {
    stream: S,
    env: E,
    stamps: Arc<Stamps>,
}

impl<S, E: Env> Stamped<S, E> {
    pub(super) fn new(stream: S, env: E, start: Mono) -> (Stamped<S, E>, Arc<Stamps>) {
        let stamps = Arc::new(Stamps::default());
        stamps.starts(start);
        (Stamped { stream, env, stamps: Arc::clone(&stamps) }, stamps)
    }
}

impl<S: AsyncRead + Unpin, E: Env + Unpin> AsyncRead for Stamped<S, E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_read(cx, buf));
        this.stamps.read.store(this.env.now().0, Ordering::Relaxed);
        Poll::Ready(done)
    }
}

impl<S: AsyncWrite + Unpin, E: Env + Unpin> AsyncWrite for Stamped<S, E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_write(cx, buf));
        this.stamps.wrote.store(this.env.now().0, Ordering::Relaxed);
        Poll::Ready(done)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
