//! The bytes under an exchange: a stamped stream, plain or with TLS over it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::engine::env::{Env, Net, deadline};
use crate::engine::load::target::Target;
use crate::engine::load::target::stamped::{Stamped, Stamps};

/// See the module.
pub(super) enum Wire<E: Env + Unpin> {
    Plain(Stamped<E>),
    Tls(Box<TlsStream<Stamped<E>>>),
}

/// A wire, when bytes pass on it, and whether HTTP/2 was agreed upon.
pub(super) struct Opened<E: Env + Unpin> {
    pub(super) wire: Wire<E>,
    pub(super) stamps: Arc<Stamps>,
    pub(super) http2: bool,
}

impl<E: Env + Unpin> Wire<E> {
    /// Connect to `target`, TLS included.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) async fn open(env: &E, target: &Target) -> Result<Opened<E>, String> {
        let opening = async {
            let stream = env.net().connect(&target.at).await.map_err(|error| error.to_string())?;
            let (stream, stamps) = Stamped::new(stream, env.clone());
            let Some(tls) = &target.via.tls else {
                return Ok(Opened { wire: Wire::Plain(stream), stamps, http2: target.via.http2 });
            };
            let name = ServerName::try_from(target.at.host.clone())
                .map_err(|_| format!("'{}' is no name that a certificate can be for", target.at.host))?;
            let connector = TlsConnector::from(tls.config(target.via.http2));
            let stream = connector.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?;
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok(Opened { wire: Wire::Tls(Box::new(stream)), stamps, http2 })
        };
        deadline(env, target.limits.connect, opening).await.map_err(|late| late.to_string())?
    }

    /// Nothing was asked: is there something to read all the same? Then the server has closed the connection, or says what nobody
    /// asked for.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut byte = [0; 1];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

impl<E: Env + Unpin> AsyncRead for Wire<E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl<E: Env + Unpin> AsyncWrite for Wire<E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Wire::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
