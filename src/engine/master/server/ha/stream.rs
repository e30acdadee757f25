//! The connection between a leader and a standby: frames are read, and messages are queued for it.

use std::io::ErrorKind;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::apply::ApplyError;
use mcctl_base::time::RoundedDuration;
use mcctl_election::ha::HaMessage;
use mcctl_election::ha::frame::{Frame, FrameKind, StreamFrameError, put_frame, take_frame};
use mcctl_election::ha::message::StreamMessageError;

/// A message for a stream, besides changes and snapshots.
#[derive(Clone, Debug)]
pub(super) enum StreamMessage {
    Control(HaMessage),
    /// The times of the clients' last calls, as the payload of a frame.
    Clients(Arc<[u8]>),
}

impl StreamMessage {
    /// Appends the message as a frame.
    pub(super) fn put(&self, out: &mut Vec<u8>, view: u64, sequence: u64) {
        match self {
            StreamMessage::Control(message) => {
                let mut payload = Vec::new();
                message.encode(&mut payload);
                put_frame(out, FrameKind::Control, view, sequence, &payload);
            }
            StreamMessage::Clients(payload) => put_frame(out, FrameKind::Clients, view, sequence, payload),
        }
    }
}

/// The reasons for the end of a stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the connection ended: {0}")]
    Io(#[from] std::io::Error),
    #[error("the connection was closed")]
    Closed,
    #[error("nothing was received for {}", RoundedDuration(*.0))]
    Silent(std::time::Duration),
    #[error("the peer accepted no data for {}", RoundedDuration(*.0))]
    NotAccepted(std::time::Duration),
    #[error(transparent)]
    Frame(#[from] StreamFrameError),
    #[error(transparent)]
    Message(#[from] StreamMessageError),
    #[error("more than {0} messages wait for the peer")]
    TooManyMessages(usize),
    #[error("a frame came out of order")]
    Order,
    /// The copy may contain a part of a change.
    #[error("the copy cannot continue: {0}")]
    Apply(#[from] ApplyError),
    #[error("{0}")]
    Damaged(String),
    #[error("more than {0} bytes of changes came while the snapshot was stored")]
    TooManyChanges(usize),
    #[error("the changes cannot be written to the data directory")]
    NotStored,
    #[error(transparent)]
    TooOld(#[from] crate::server::ha::leader::tail::CursorTooOld),
    #[error("this master's term has ended")]
    TermEnded,
}

impl StreamError {
    /// Whether the peer has closed the connection. Its process may have ended.
    pub(super) fn has_peer_closed(&self) -> bool {
        match self {
            StreamError::Closed => true,
            // Which one is reported depends on the bytes that were being sent at that moment.
            StreamError::Io(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}

/// Divides the bytes of a connection into frames.
pub(super) struct FrameReader<R> {
    reader: R,
    input: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader that has received nothing yet.
    pub(super) fn new(reader: R) -> FrameReader<R> {
        FrameReader { reader, input: BytesMut::with_capacity(128 << 10) }
    }

    /// The connection, for writing.
    pub(super) fn stream(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Waits for the next frame. No bytes are lost if the future is dropped.
    ///
    /// # Errors
    /// The connection ended, or the bytes are not a frame.
    pub(super) async fn next(&mut self) -> Result<Frame, StreamError> {
        loop {
            if let Some(frame) = take_frame(&mut self.input)? {
                return Ok(frame);
            }
            if self.reader.read_buf(&mut self.input).await? == 0 {
                return Err(StreamError::Closed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_the_peer_closed_may_end_with_different_errors() {
        let io = |kind: ErrorKind| StreamError::Io(kind.into());
        assert!(StreamError::Closed.has_peer_closed());
        assert!(io(ErrorKind::ConnectionReset).has_peer_closed() && io(ErrorKind::BrokenPipe).has_peer_closed());
        assert!(!io(ErrorKind::TimedOut).has_peer_closed() && !StreamError::Order.has_peer_closed());
    }
}
