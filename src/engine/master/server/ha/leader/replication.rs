//! A leader's stream to a standby: a snapshot or changes from the log if needed, then changes as
//! they are made.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use crate::server::ha::HaHub;
use crate::server::ha::leader::standby_streams::STANDBY_SILENCE_MAX;
use crate::server::ha::leader::stream_part::StreamPart;
use crate::server::ha::leader::tail::{TailCursor, TailKind};
use crate::server::ha::stream::{StreamError, StreamMessage};
use mcctl_election::ha::frame::{FrameKind, put_frame};
use mcctl_election::ha::message::Changes;
use mcctl_sys::env::{Env, deadline};

/// Changes are written once this many bytes are buffered.
const WRITE_BYTES: usize = 256 << 10;

/// The source of a stream's frames.
pub(in crate::server::ha) enum StreamSource {
    /// A snapshot, or changes from the log. The tail follows.
    Parts(mpsc::Receiver<StreamPart>),
    Tail(TailCursor),
}

/// The sending of changes to a standby.
pub(in crate::server::ha) struct ChangeSender<E> {
    pub env: E,
    pub hub: Arc<HaHub>,
    pub messages: mpsc::Receiver<StreamMessage>,
    pub source: StreamSource,
    /// The leader's view, for the frames.
    pub view: u64,
    /// The term in which the stream began.
    pub term: u64,
    /// The standby computes digests like this release. Otherwise, it receives none.
    pub has_same_digest: bool,
}

impl<E: Env> ChangeSender<E> {
    /// Sends frames until the connection, the queue of messages or the term ends.
    pub(crate) async fn run(mut self, mut writer: impl AsyncWrite + Unpin) -> Result<Infallible, StreamError> {
        let mut announced = self.hub.tail.subscribe();
        let mut out = Vec::new();
        let mut payload = Vec::new();
        loop {
            if self.hub.gate.term() != self.term {
                return Err(StreamError::TermEnded);
            }
            out.clear();
            self.put_messages(&mut out)?;
            if matches!(self.source, StreamSource::Tail(_)) {
                announced.mark_unchanged();
            }
            self.put_source(&mut out, &mut payload)?;
            if out.is_empty() {
                // The next frames are appended above, so that their order is kept.
                tokio::select! {
                    biased;
                    message = self.messages.recv() => {
                        message.ok_or(StreamError::Closed)?.put(&mut out, self.view, 0);
                    }
                    part = next_part(&mut self.source) => {
                        self.put_part(&mut out, part.ok_or(StreamError::Closed)?);
                    }
                    Ok(()) = announced.changed(), if matches!(self.source, StreamSource::Tail(_)) => {}
                }
            }
            let written = deadline(&self.env, STANDBY_SILENCE_MAX, writer.write_all(&out)).await;
            written.map_err(|_| StreamError::NotAccepted(STANDBY_SILENCE_MAX))??;
        }
    }

    /// Appends the messages that wait.
    fn put_messages(&mut self, out: &mut Vec<u8>) -> Result<(), StreamError> {
        loop {
            match self.messages.try_recv() {
                Ok(message) => message.put(out, self.view, 0),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(StreamError::Closed),
            }
        }
    }

    /// Appends the frames that the source has now. `payload` is a buffer.
    fn put_source(&mut self, out: &mut Vec<u8>, payload: &mut Vec<u8>) -> Result<(), StreamError> {
        let cursor = match &mut self.source {
            StreamSource::Tail(cursor) => cursor,
            StreamSource::Parts(parts) => match parts.try_recv() {
                Ok(part) => {
                    self.put_part(out, part);
                    return Ok(());
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(StreamError::Closed),
            },
        };
        while out.len() < WRITE_BYTES {
            payload.clear();
            Changes::begin(payload, self.env.unix());
            let header = payload.len();
            let Some(part) = cursor.read(payload)? else { break };
            match part.kind {
                TailKind::Changes => put_frame(out, FrameKind::Changes, self.view, part.sequence, payload),
                TailKind::Digest if !self.has_same_digest => {}
                TailKind::Digest => put_frame(out, FrameKind::Digest, self.view, part.sequence, &payload[header..]),
            }
        }
        Ok(())
    }

    /// Appends a part, or continues with the tail.
    fn put_part(&mut self, out: &mut Vec<u8>, part: StreamPart) {
        let mut payload = Vec::new();
        match part {
            StreamPart::Snapshot { last, records } => {
                put_frame(out, FrameKind::SnapshotChunk, self.view, last, &records);
            }
            StreamPart::SnapshotEnd { last, end } => {
                end.encode(&mut payload);
                put_frame(out, FrameKind::SnapshotEnd, self.view, last, &payload);
            }
            StreamPart::Changes { first, changes } => {
                Changes::begin(&mut payload, self.env.unix());
                payload.extend_from_slice(&changes);
                put_frame(out, FrameKind::Changes, self.view, first, &payload);
            }
            StreamPart::Tail(cursor) => self.source = StreamSource::Tail(cursor),
        }
    }
}

async fn next_part(source: &mut StreamSource) -> Option<StreamPart> {
    match source {
        StreamSource::Parts(parts) => parts.recv().await,
        StreamSource::Tail(_) => std::future::pending().await,
    }
}
