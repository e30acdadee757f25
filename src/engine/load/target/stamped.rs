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

/// Times since the run began, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    read: AtomicU64,
    wrote: AtomicU64,
}

impl Stamps {
    /// When bytes were last read.
    pub(super) fn read(&self) -> Duration {
        Duration::from_nanos(self.read.load(Ordering::Relaxed))
    }

    /// When bytes were last written.
    pub(super) fn wrote(&self) -> Duration {
        Duration::from_nanos(self.wrote.load(Ordering::Relaxed))
    }
}

/// See the module.
pub(super) struct Stamped<S, E> {
    stream: S,
    env: E,
    start: Mono,
    stamps: Arc<Stamps>,
}

impl<S, E: Env> Stamped<S, E> {
    pub(super) fn new(stream: S, env: E, start: Mono) -> (Stamped<S, E>, Arc<Stamps>) {
        let stamps = Arc::new(Stamps::default());
        (Stamped { stream, env, start, stamps: Arc::clone(&stamps) }, stamps)
    }

    fn now(&self) -> u64 {
        self.env.now().since(self.start).as_nanos() as u64
    }
}

impl<S: AsyncRead + Unpin, E: Env + Unpin> AsyncRead for Stamped<S, E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_read(cx, buf));
        this.stamps.read.store(this.now(), Ordering::Relaxed);
        Poll::Ready(done)
    }
}

impl<S: AsyncWrite + Unpin, E: Env + Unpin> AsyncWrite for Stamped<S, E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_write(cx, buf));
        this.stamps.wrote.store(this.now(), Ordering::Relaxed);
        Poll::Ready(done)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
