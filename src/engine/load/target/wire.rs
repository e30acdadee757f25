//! The byte stream that carries exchanges: timestamped, and either plain or encrypted with TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::target::LoadTarget;
use crate::target::timestamped::{StreamTimes, TimestampedStream};
use mcctl_sys::env::{Elapsed, Env, Net, deadline};

/// A connection to the endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Tcp(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    /// The host is neither a DNS name nor an IP address, so a certificate cannot name it.
    #[error("'{0}' is not a valid host name for TLS")]
    ServerName(String),
    #[error("{}", http2_reason(.0))]
    Http2(#[from] hyper::Error),
    #[error(transparent)]
    Timeout(#[from] Elapsed),
}

/// An HTTP/2 error and its source.
pub(super) fn http2_reason(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// A plain or TLS stream.
pub(super) enum WireStream<E: Env + Unpin> {
    Plain(TimestampedStream<E>),
    Tls(Box<TlsStream<TimestampedStream<E>>>),
}

/// A new connection, its transfer times, and whether HTTP/2 was negotiated.
pub(super) struct NewConnection<E: Env + Unpin> {
    pub(super) wire: WireStream<E>,
    pub(super) stamps: Arc<StreamTimes>,
    pub(super) http2: bool,
}

impl<E: Env + Unpin> WireStream<E> {
    /// Connects to `target`, including the TLS handshake.
    ///
    /// # Errors
    /// The connection or the TLS handshake failed or timed out, or the host is not a valid
    /// certificate name.
    pub(super) async fn open(env: &E, target: &LoadTarget) -> Result<NewConnection<E>, ConnectError> {
        let opening = async {
            let stream = env.net().connect(&target.at).await?;
            let (stream, stamps) = TimestampedStream::new(stream, env.clone());
            let Some(tls) = &target.protocol.tls else {
                return Ok(NewConnection { wire: WireStream::Plain(stream), stamps, http2: target.protocol.http2 });
            };
            let name = ServerName::try_from(target.at.host.clone())
                .map_err(|_| ConnectError::ServerName(target.at.host.clone()))?;
            let connector = TlsConnector::from(tls.config(target.protocol.http2));
            let stream = connector.connect(name, stream).await.map_err(ConnectError::Tls)?;
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok(NewConnection { wire: WireStream::Tls(Box::new(stream)), stamps, http2 })
        };
        deadline(env, target.limits.connect, opening).await?
    }

    /// Whether an idle connection has no bytes to read. Otherwise the server has closed it or sent
    /// unexpected bytes.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0; 1];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

impl<E: Env + Unpin> AsyncRead for WireStream<E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WireStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            WireStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl<E: Env + Unpin> AsyncWrite for WireStream<E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WireStream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            WireStream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WireStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            WireStream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WireStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            WireStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WireStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            WireStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
