//! Bodies: reading one within a bound, and answering with a whole one or page by page.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

/// The pages of a long answer: called for the next one when the peer has taken the last, until it gives `None`. An empty page
/// is none yet.
pub type Pages = Box<dyn FnMut() -> Option<Bytes> + Send>;

/// The pieces of an answer that comes about while it is sent: polled for the next one until there is none.
pub type Pieces = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Send>;

/// The body of an answer.
pub enum Body {
    /// All of it.
    Whole(Bytes),
    /// Made as it is sent, so that neither the memory nor the state behind it is held for the length of the transfer.
    Paged {
        /// Where the pages come from.
        pages: Pages,
        /// Was the last poll answered with a page? Then others have their turn first.
        rest: bool,
    },
    /// Each piece is sent as soon as it is there. Dropped when the peer is gone.
    Streamed(Pieces),
}

impl Body {
    /// A body that is made page by page.
    pub fn paged(pages: impl FnMut() -> Option<Bytes> + Send + 'static) -> Body {
        Body::Paged { pages: Box::new(pages), rest: false }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Streamed(pieces) => pieces(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece)))),
            Body::Paged { rest: rest @ true, .. } => {
                *rest = false;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Body::Paged { pages, rest } => match pages() {
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
        matches!(self, Body::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Paged { .. } | Body::Streamed(_) => SizeHint::default(),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::Whole(bytes)
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body::Whole(Bytes::from(text))
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Body::Whole(Bytes::from_static(text.as_bytes()))
    }
}

/// Why a request's body was not read.
pub(super) enum BodyError {
    /// Longer than allowed.
    TooLong,
    /// The connection broke, or the framing was wrong.
    Broken,
}

/// The whole of `incoming`, at most `bytes_max`.
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

/// How much is still to come, as far as the peer has said so.
fn known_length(incoming: &Incoming) -> usize {
    usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX)
}
