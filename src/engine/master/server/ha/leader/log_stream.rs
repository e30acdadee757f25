//! The changes that a standby lacks, read from the leader's data directory. For a standby that was
//! away, if the tail of the changes no longer has them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::server::ha::leader::stream_part::{PartSender, StreamPart};
use crate::server::ha::leader::tail::TailCursor;
use crate::server::log::MasterLog;
use mcctl_election::ha::message::Changes;
use mcctl_journal::LiveLogReader;
use mcctl_sys::env::{Env, ThreadWork};

/// Pause while the kernel does not have the next change.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
thread_local! {
    /// Number of streams that this thread has begun, for the simulation.
    pub(in crate::server::ha) static STREAMS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The thread that reads the changes.
pub(in crate::server::ha) struct LogStream<E> {
    env: E,
    log: Arc<MasterLog>,
    reader: LiveLogReader,
    /// The last change that is read from the log, and the cursor after it. `None`: it was sent.
    rest: Option<(u64, TailCursor)>,
    parts: PartSender,
}

impl<E: Env> LogStream<E> {
    /// A stream of the changes from number `next` up to `last` from `log`, and its parts. `cursor`
    /// is after `last`.
    pub(crate) fn new(
        env: E,
        log: Arc<MasterLog>,
        next: u64,
        last: u64,
        cursor: TailCursor,
    ) -> (LogStream<E>, mpsc::Receiver<StreamPart>) {
        #[cfg(test)]
        STREAMS.set(STREAMS.get() + 1);
        let (parts, receiver) = PartSender::new();
        let reader = LiveLogReader::new(next);
        (LogStream { env, log, reader, rest: Some((last, cursor)), parts }, receiver)
    }

    /// The next part. `None`: the stream ends, because the log cannot be read.
    fn next_part(&mut self) -> Option<StreamPart> {
        let first = self.reader.next();
        // The standby skips the changes that it has received from the log before.
        if let Some((_, cursor)) = self.rest.take_if(|(last, _)| first > *last) {
            return Some(StreamPart::Tail(cursor));
        }
        let mut changes = Vec::new();
        match self.reader.read(&self.log.writer, |change| Changes::add(&mut changes, change)) {
            Ok(count) => count.map(|_| StreamPart::Changes { first, changes }),
            Err(error) => {
                tracing::warn!(%error, "the log cannot be read for a standby, which receives a snapshot instead");
                self.log.is_unreadable.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Sends a part. Returns false after the last one, or if the stream to the standby has ended.
    fn send(&mut self, part: StreamPart, may_wait: bool) -> bool {
        let is_last = matches!(part, StreamPart::Tail(_));
        self.parts.send(part, may_wait) && !(is_last && self.parts.has_sent())
    }
}

impl<E: Env> ThreadWork for LogStream<E> {
    fn step(&mut self, may_wait: bool) -> bool {
        if let Some(part) = self.parts.take_unsent() {
            return self.send(part, may_wait);
        }
        match self.next_part() {
            Some(StreamPart::Changes { changes, .. }) if changes.is_empty() => {
                self.env.pause_thread(PAUSE);
                !self.parts.is_closed()
            }
            Some(part) => self.send(part, may_wait),
            None => false,
        }
    }
}
