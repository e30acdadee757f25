//! Request and response bodies: reads a body within a size limit, and sends one as a whole or page
//! by page.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

/// Produces the pages of a long response. Called for the next page once the client has received the
/// previous one, until it returns `None`. An empty page means "not yet".
pub type PageSource = Box<dyn FnMut() -> Option<Bytes> + Send>;

/// Produces the pieces of a streamed response. Polled for the next piece until it returns `None`.
pub type PieceSource = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Send>;

/// The body of a response.
pub enum ResponseBody {
    Whole(Bytes),
    /// Generated while it is being sent, so that the body is never in memory as a whole and the
    /// state it is read from is not locked during the transfer.
    Paged {
        pages: PageSource,
        /// Set after each page: yield to other tasks before the next one.
        rest: bool,
    },
    /// Each piece is sent as soon as it is available. Dropped when the client disconnects.
    Streamed(PieceSource),
}

impl ResponseBody {
    /// Creates a body that is produced page by page.
    pub fn paged(pages: impl FnMut() -> Option<Bytes> + Send + 'static) -> ResponseBody {
        ResponseBody::Paged { pages: Box::new(pages), rest: false }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            ResponseBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            ResponseBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            ResponseBody::Streamed(pieces) => pieces(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece)))),
            ResponseBody::Paged { rest: rest @ true, .. } => {
                *rest = false;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            ResponseBody::Paged { pages, rest } => match pages() {
                Some(page) if page.is_empty() => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                page => {
                    *rest = true;
                    Poll::Ready(page.map(|page| Ok(Frame::data(page))))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ResponseBody::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Paged { .. } | ResponseBody::Streamed(_) => SizeHint::default(),
        }
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> ResponseBody {
        ResponseBody::Whole(bytes)
    }
}

impl From<String> for ResponseBody {
    fn from(text: String) -> ResponseBody {
        ResponseBody::Whole(Bytes::from(text))
    }
}

impl From<&'static str> for ResponseBody {
    fn from(text: &'static str) -> ResponseBody {
        ResponseBody::Whole(Bytes::from_static(text.as_bytes()))
    }
}

/// Why a request body could not be read.
pub(super) enum BodyError {
    TooLong,
    /// The connection broke, or the framing was invalid.
    Broken,
}

/// Reads the entire body `incoming`, up to `bytes_max` bytes.
pub(super) async fn read(incoming: &mut Incoming, bytes_max: usize) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > bytes_max {
            return Err(BodyError::TooLong);
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(known_length(incoming).saturating_add(first.len() + data.len()).min(bytes_max));
            rest.extend_from_slice(&first);
            first = Bytes::new();
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Returns the number of remaining bytes, if the client announced it.
fn known_length(incoming: &Incoming) -> usize {
    usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX)
}
