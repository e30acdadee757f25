//! A stream with several owners: its reader, its writer, and the client that checks whether it is
//! closed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that can be cloned. At most one task may read from the clones, and one may write.
pub(super) struct SharedStream<S>(Arc<Mutex<S>>);

impl<S> SharedStream<S> {
    /// Shares `stream`. It is closed when the last clone is dropped.
    pub(super) fn new(stream: S) -> SharedStream<S> {
        SharedStream(Arc::new(Mutex::new(stream)))
    }

    /// Locks the stream. The reader and the writer hold the lock only while they are polled.
    pub(super) fn lock(&self) -> MutexGuard<'_, S> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Clone for SharedStream<S> {
    fn clone(&self) -> SharedStream<S> {
        SharedStream(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SharedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SharedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(cx)
    }
}
