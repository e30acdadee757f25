//! A stream that records when bytes were last transferred. A token's time is the time at which its
//! bytes arrived, not the time at which they were parsed. Where the kernel timestamps arrivals, a
//! token's time does not even depend on when its bytes were read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use mcctl_base::Mono;
use mcctl_sys::env::{Env, Net};

/// Times of the most recent transfers, in nanoseconds on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct StreamTimes {
    arrived: AtomicU64,
    read: AtomicU64,
    wrote: AtomicU64,
}

impl StreamTimes {
    /// When the most recently read bytes arrived.
    pub(super) fn arrived(&self) -> Mono {
        Mono(self.arrived.load(Ordering::Relaxed))
    }

    /// When bytes were last read.
    pub(super) fn read(&self) -> Mono {
        Mono(self.read.load(Ordering::Relaxed))
    }

    /// When bytes were last written.
    pub(super) fn wrote(&self) -> Mono {
        Mono(self.wrote.load(Ordering::Relaxed))
    }
}

/// A stream that records transfer times.
pub(super) struct TimestampedStream<E: Env> {
    stream: <E::Net as Net>::Stream,
    env: E,
    stamps: Arc<StreamTimes>,
}

impl<E: Env> TimestampedStream<E> {
    pub(super) fn new(stream: <E::Net as Net>::Stream, env: E) -> (TimestampedStream<E>, Arc<StreamTimes>) {
        <E::Net as Net>::note_arrivals(&stream);
        let stamps = Arc::new(StreamTimes::default());
        (TimestampedStream { stream, env, stamps: Arc::clone(&stamps) }, stamps)
    }

    fn wrote(&self) {
        self.stamps.wrote.store(self.env.now().0, Ordering::Relaxed);
    }
}

impl<E: Env + Unpin> AsyncRead for TimestampedStream<E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let age = ready!(<E::Net as Net>::poll_read_aged(&mut this.stream, cx, buf));
        let now = this.env.now();
        this.stamps.read.store(now.0, Ordering::Relaxed);
        Poll::Ready(age.map(|age| this.stamps.arrived.store((now - age).0, Ordering::Relaxed)))
    }
}

impl<E: Env + Unpin> AsyncWrite for TimestampedStream<E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_write(cx, buf));
        this.wrote();
        Poll::Ready(done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, parts));
        this.wrote();
        Poll::Ready(done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
