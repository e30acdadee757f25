//! Closes connections whose peer stops reading.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::HttpLimits;
use crate::http::connection_slot::ConnectionSlot;
use mcctl_sys::env::Env;

/// Responses up to this size are written in one piece.
const JOIN_BYTES_MAX: usize = 2 << 10;

/// A stream whose peer must read at least `least` bytes in each period of `limit` while bytes are
/// waiting to be sent.
pub(super) struct StallLimitedStream<E, S> {
    stream: S,
    env: E,
    slot: Arc<ConnectionSlot>,
    limit: Duration,
    least: u64,
    /// End of the current period. `None` until a byte has to wait.
    period: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Number of bytes that the peer has read in this period.
    moved: u64,
}

impl<E: Env, S> StallLimitedStream<E, S> {
    pub(super) fn new(stream: S, env: E, slot: Arc<ConnectionSlot>, limits: &HttpLimits) -> StallLimitedStream<E, S> {
        let least = least_in(limits.stall, limits.least_rate);
        StallLimitedStream { stream, env, slot, limit: limits.stall, least, period: None, moved: 0 }
    }

    /// Returns `progress` unchanged if it is ready. Otherwise, fails if a period ended in which the
    /// peer read too few bytes.
    fn watch(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(taken) = progress {
            if let Ok(bytes) = taken {
                self.moved += bytes as u64;
                self.slot.touch(self.env.now());
            }
            return Poll::Ready(taken);
        }
        loop {
            let period = self.period.get_or_insert_with(|| {
                self.moved = 0;
                let env = self.env.clone();
                let limit = self.limit;
                Box::pin(async move { env.sleep(limit).await })
            });
            ready!(period.as_mut().poll(cx));
            if self.moved < self.least {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.period = None;
        }
    }
}

// No field is structurally pinned.
impl<E, S: Unpin> Unpin for StallLimitedStream<E, S> {}

impl<E: Env, S: AsyncRead + Unpin> AsyncRead for StallLimitedStream<E, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<E: Env, S: AsyncWrite + Unpin> AsyncWrite for StallLimitedStream<E, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // The head and body of a short response are copied into one buffer, because copying costs
        // less than a vectored write.
        let total = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        let mut joined = [0; JOIN_BYTES_MAX];
        let progress = match joined.get_mut(..total) {
            Some(joined) => {
                let mut rest = &mut *joined;
                for buf in bufs {
                    let (piece, after) = rest.split_at_mut(buf.len());
                    piece.copy_from_slice(buf);
                    rest = after;
                }
                Pin::new(&mut self.stream).poll_write(cx, joined)
            }
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        };
        self.watch(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // No more bytes are waiting for the peer.
        self.period = None;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Returns how many bytes a client must read in each `period`, at least one.
fn least_in(period: Duration, rate: u64) -> u64 {
    let ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
    (ms.saturating_mul(rate) / 1000).max(1)
}
