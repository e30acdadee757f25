//! The standbys of a leader: how they catch up, their streams and their acknowledgements.

use std::sync::atomic::Ordering;

use tokio::io::split;

use crate::digest::DIGEST_VERSION;
use crate::record::DataFormat;
use crate::server::ha::disk::HaDisk;
use crate::server::ha::driver::HaDriver;
use crate::server::ha::driver::event::{Acceptance, AnsweredStandby, DriverEvent, OpenedSource};
use crate::server::ha::driver::redundancy::KnownStandby;
use crate::server::ha::handshake::{ContinuedSettings, HandshakeError, Hello, StreamStart, Welcome};
use crate::server::ha::leader::log_stream::LogStream;
use crate::server::ha::leader::replication::{ChangeSender, StreamSource};
use crate::server::ha::leader::snapshot_stream::SnapshotStream;
use crate::server::ha::leader::standby_streams::QUEUE_MAX;
use crate::server::ha::stream::StreamError;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::frame::{Frame, FrameKind};
use mcctl_election::ha::{HaEvent, HaMessage, HistoryId, MemberId};
use mcctl_sys::env::Env;

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Logs that a connection to the port for standbys failed.
    pub(super) fn report_handshake(&mut self, peer: &str, error: &HandshakeError) {
        if self.is_message_due(peer, &error.to_string()) {
            tracing::warn!(%peer, %error, "a connection to the port for standbys was refused");
        }
    }

    /// Decides how a standby catches up.
    pub(super) fn answer_standby(&mut self, peer: &str, hello: &Hello) -> Acceptance {
        let standby = hello.standby;
        let mut welcome = Welcome {
            leader: self.core.me().id,
            history: self.copy.history.unwrap_or(HistoryId(0)),
            view: self.core.status().view,
            start: StreamStart::Changes,
            digest: DIGEST_VERSION,
            metadata: self.context.settings.metadata.clone(),
        };
        if let Some(why) = self.refusal(hello) {
            if self.is_message_due(peer, &why) {
                let address = hello.rpc.clone().unwrap_or_else(|| format!("at {peer}"));
                tracing::warn!(id = %standby, "standby {address} is refused: {why}");
            }
            welcome.start = StreamStart::Refused(why);
            return Acceptance { welcome, opened: None };
        }
        let term = self.context.hub.gate.term();
        // A data directory that was restored from a backup may lack what its copy has acknowledged.
        let acked = self.core.standbys().find(|(id, _)| *id == standby).map_or(0, |(_, replica)| replica.acked);
        let is_prefix = self.copy.includes(hello.history, hello.applied) && hello.applied >= acked;
        let cursor = if is_prefix { self.context.hub.tail.cursor(hello.applied) } else { None };
        if let Some(cursor) = cursor {
            let opened = Some(OpenedSource { source: StreamSource::Tail(cursor), term });
            return Acceptance { welcome, opened };
        }
        if let Some(source) = is_prefix.then(|| self.begin_log(hello.applied + 1)).flatten() {
            return Acceptance { welcome, opened: Some(OpenedSource { source, term }) };
        }
        welcome.start = StreamStart::Snapshot;
        // A copy that will be replaced receives a new ID first.
        let is_replaced = hello.history.is_some() || hello.applied > 0;
        let opened = (!is_replaced).then(|| OpenedSource { source: self.begin_snapshot(term), term });
        Acceptance { welcome, opened }
    }

    /// The reason for which a standby cannot follow; `None` if it can.
    fn refusal(&self, hello: &Hello) -> Option<String> {
        let settings = &self.context.settings;
        let has_records = settings.metadata.is_some() || !self.context.shared.metadata_table().lock().is_empty();
        let own = if has_records { settings.format.max(DataFormat::V3) } else { settings.format };
        let own = own.number();
        if hello.cluster != settings.cluster {
            Some(format!("this is a master of the cluster {}, not of {}", settings.cluster, hello.cluster))
        } else if hello.format < own {
            let theirs = hello.format;
            Some(format!(
                "the leader writes records of format {own}, and release {} reads only up to {theirs}; \
                 upgrade the standbys first",
                hello.release
            ))
        } else if hello.standby == self.core.me().id || !self.context.hub.gate.is_open() {
            Some("this master does not lead".to_owned())
        } else {
            None
        }
    }

    /// Streams the changes from number `next` on from the data directory, if it has them.
    fn begin_log(&mut self, next: u64) -> Option<StreamSource> {
        let hub = &self.context.hub;
        let log = hub.disk.as_ref().and_then(HaDisk::log)?;
        if log.is_unreadable.load(Ordering::Relaxed) || !log.writer.has(next) {
            return None;
        }
        let last = hub.tail.appended();
        let cursor = hub.tail.cursor(last)?;
        let (thread, parts) = LogStream::new(self.context.env.clone(), log, next, last, cursor);
        let running = self.context.env.run_thread(thread);
        self.spawn(running);
        Some(StreamSource::Parts(parts))
    }

    fn begin_snapshot(&mut self, term: u64) -> StreamSource {
        let shared = self.context.shared.clone();
        let tail = self.context.hub.tail.clone();
        let (thread, parts) = SnapshotStream::new(shared, tail, term, self.context.settings.format);
        let running = self.context.env.run_thread(thread);
        self.spawn(running);
        StreamSource::Parts(parts)
    }

    /// Opens the stream to a standby that has received the answer, if the answer permits one.
    pub(super) fn open_standby(&mut self, answered: AnsweredStandby<super::StreamOf<E>>) {
        let AnsweredStandby { peer, hello, acceptance, stream } = answered;
        let standby = hello.standby;
        let own = ContinuedSettings::of(&self.copy.policy);
        if let Some(different) = hello.settings.and_then(|settings| own.difference(&settings))
            && self.is_message_due(&peer, &different)
        {
            let address = hello.rpc.clone().unwrap_or_else(|| format!("at {peer}"));
            tracing::warn!(
                id = %standby,
                different,
                "standby {address} has other settings, which apply after a failover; use the same for all masters"
            );
        }
        let Some(OpenedSource { source, term }) = acceptance.opened else { return };
        let welcome = acceptance.welcome;
        if self.context.hub.gate.term() != term {
            return;
        }
        self.drop_old_addresses();
        self.known.insert(standby, KnownStandby { rpc: hello.rpc, peer, metadata: hello.metadata });
        let address = self.standby_address(standby);
        match welcome.start {
            StreamStart::Changes if matches!(source, StreamSource::Parts(_)) => {
                tracing::info!(
                    id = %standby,
                    change = hello.applied,
                    "standby {address} follows from its last change: it first receives the changes from the log on disk"
                );
            }
            StreamStart::Changes => {
                tracing::info!(id = %standby, change = hello.applied, "standby {address} follows from its last change");
            }
            _ => tracing::info!(id = %standby, "standby {address} follows: it receives a snapshot"),
        }
        let (reader, writer) = split(stream);
        let (number, messages) = self.standbys.open(standby, reader, hello.digest == DIGEST_VERSION);
        let sender = ChangeSender {
            env: self.context.env.clone(),
            hub: self.context.hub.clone(),
            messages,
            source,
            view: welcome.view,
            term,
            has_same_digest: hello.digest == DIGEST_VERSION,
        };
        let events = self.context.events.clone();
        let task = self.spawn(async move {
            let Err(error) = sender.run(writer).await;
            let _ = events.send(DriverEvent::StandbyEnded { stream: number, error });
        });
        self.standbys.set_task(number, task);
        let applied = if welcome.start == StreamStart::Changes { hello.applied } else { 0 };
        self.update(HaEvent::StandbyConnected { id: standby, applied });
    }

    /// Handles a frame of a standby, or the end of its stream.
    pub(super) fn handle_standby_frame(&mut self, number: u64, frame: Result<Frame, StreamError>) {
        let message = frame.and_then(|frame| match frame.kind {
            FrameKind::Control => Ok(HaMessage::decode(&frame.payload)?),
            _ => Err(StreamError::Order),
        });
        match message {
            Ok(message) => {
                if let Some(from) = self.standbys.member(number) {
                    self.update(HaEvent::Received { from, message });
                }
            }
            Err(error) => self.close_standby(number, &error),
        }
    }

    /// Ends a stream to a standby because of this error, unless it has ended before, and informs
    /// the core.
    pub(super) fn close_standby(&mut self, stream: u64, error: &StreamError) {
        self.end_standby(stream, error);
        self.run_core();
    }

    /// Ends the streams for which too many messages wait. The core is informed when it next runs.
    pub(super) fn end_slow_standbys(&mut self, streams: impl IntoIterator<Item = u64>) {
        for stream in streams {
            self.end_standby(stream, &StreamError::TooManyMessages(QUEUE_MAX));
        }
    }

    fn end_standby(&mut self, stream: u64, error: &StreamError) {
        let Some(ended) = self.standbys.close(stream) else { return };
        let standby = ended.standby;
        let address = self.standby_address(standby);
        if self.context.hub.gate.is_fenced(self.context.env.boottime()) {
            tracing::warn!(
                id = %standby,
                %error,
                "standby {address} has disconnected from this master, which cannot prove that it leads"
            );
        } else if self.core.listed_standbys().contains(&standby) {
            let consequence = self.redundancy(Some(standby));
            tracing::warn!(id = %standby, %error, "standby {address} has disconnected: {consequence}");
            self.lost_standbys.insert(standby);
        } else {
            tracing::info!(id = %standby, %error, "standby {address} has disconnected");
        }
        self.events.push_back(HaEvent::StandbyDisconnected { id: standby });
    }

    /// Drops the addresses of masters that are no longer standbys of this leader.
    fn drop_old_addresses(&mut self) {
        let listed: Vec<MemberId> = self.core.standbys().map(|(member, _)| member).collect();
        self.known.retain(|member, _| listed.contains(member));
    }
}
