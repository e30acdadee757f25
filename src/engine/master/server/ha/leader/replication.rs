//! A leader's stream to a standby: a snapshot if needed, then changes as they are made.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::ha::frame::{FrameKind, put_frame};
use crate::engine::ha::message::Changes;
use crate::engine::ha::{HaEvent, HaMessage, HistoryId, MemberId};
use crate::engine::master::server::ha::driver::HaDriver;
use crate::engine::master::server::ha::handshake::{
    ContinuedSettings, HANDSHAKE_TIMEOUT, Hello, LeaderHandshake, StreamStart, Welcome,
};
use crate::engine::master::server::ha::leader::snapshot_stream::{SnapshotPart, SnapshotStream};
use crate::engine::master::server::ha::leader::tail::{TailCursor, TailKind};
use crate::engine::master::server::ha::stream::{FrameReader, StreamError, StreamMessage};

/// Changes are written once this many bytes are buffered.
const WRITE_BYTES: usize = 256 << 10;
/// A standby answers pings much more often than this.
const STANDBY_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Where a stream gets its frames from.
enum StreamSource {
    Snapshot(mpsc::Receiver<SnapshotPart>),
    Tail(TailCursor),
}

/// Serves a connection from a standby. `permit` is returned when the handshake has ended.
pub(in crate::engine::master::server::ha) async fn serve_standby<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    mut stream: <E::Net as Net>::Stream,
    peer: &str,
    permit: OwnedSemaphorePermit,
) {
    let is_due = |message: &str| driver.state().repeated_messages.is_due(driver.env.now(), peer, message);
    let begun = LeaderHandshake::begin(&mut stream, &driver.settings.secret);
    let handshake = match deadline(&driver.env, HANDSHAKE_TIMEOUT, begun).await {
        Ok(Ok(handshake)) => handshake,
        Ok(Err(error)) => {
            if is_due(&error.to_string()) {
                tracing::warn!(%peer, %error, "a connection to the port for standbys was refused");
            }
            return;
        }
        Err(_) => return,
    };
    let standby = handshake.hello.standby;
    let (welcome, source) = accept(driver, &handshake.hello);
    if let StreamStart::Refused(why) = &welcome.start
        && is_due(why)
    {
        tracing::info!(%peer, %standby, why, "a standby was refused");
    }
    let finished = handshake.finish(&mut stream, &driver.settings.secret, &welcome);
    if !matches!(deadline(&driver.env, HANDSHAKE_TIMEOUT, finished).await, Ok(Ok(()))) {
        return;
    }
    drop(permit);
    let own = ContinuedSettings::of(&driver.copy().policy);
    if let Some(different) = handshake.hello.settings.and_then(|standby| own.difference(&standby))
        && is_due(&different)
    {
        tracing::warn!(%peer, %standby, different, "a standby has other settings, which apply after a failover; use the same for all masters");
    }
    let Some((source, term)) = source else { return };
    tracing::info!(%peer, %standby, start = ?welcome.start, change = handshake.hello.applied, "a standby follows");
    let (link, messages) = {
        let mut state = driver.state();
        if driver.hub.gate.term() != term {
            return;
        }
        state.addresses.extend(handshake.hello.rpc.clone().map(|rpc| (standby, rpc)));
        state.links.open(standby)
    };
    let applied = if welcome.start == StreamStart::Changes { handshake.hello.applied } else { 0 };
    driver.update(HaEvent::StandbyConnected { id: standby, applied });
    let (reader, writer) = tokio::io::split(stream);
    let ended = tokio::select! {
        biased;
        ended = receive(driver, standby, reader) => ended,
        ended = send(driver, writer, messages, source, (welcome.view, term)) => ended,
    };
    let Err(error) = ended;
    tracing::info!(%peer, %standby, %error, "the stream to a standby ended");
    let is_current = driver.state().links.close(standby, &link);
    if is_current && driver.hub.gate.term() == term {
        driver.update(HaEvent::StandbyDisconnected { id: standby });
        driver.state().drop_old_addresses();
    }
}

/// Decides how a standby catches up.
fn accept<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    hello: &Hello,
) -> (Welcome, Option<(StreamSource, u64)>) {
    let (leader, view) = {
        let state = driver.state();
        (state.core.me().id, state.core.status().view)
    };
    let history = driver.copy().history.unwrap_or(HistoryId(0));
    let refuse = |why: String| (Welcome { leader, history, view, start: StreamStart::Refused(why) }, None);
    let term = driver.hub.gate.term();
    let cluster = &driver.settings.cluster;
    if &hello.cluster != cluster {
        return refuse(format!("this is a master of the cluster {cluster}, not of {}", hello.cluster));
    }
    let own = driver.settings.format.number();
    if hello.format < own {
        let theirs = hello.format;
        return refuse(format!(
            "the leader writes records of format {own}, and release {} reads only up to {theirs}; upgrade the standbys first",
            hello.release
        ));
    }
    if hello.standby == leader || !driver.hub.gate.is_open() {
        return refuse("this master does not lead".to_owned());
    }
    // A data directory that was restored from a backup may lack what its copy has acknowledged.
    let acked = driver.state().core.standbys().find(|(id, _)| *id == hello.standby).map_or(0, |(_, it)| it.acked);
    let is_prefix = driver.copy().includes(hello.history, hello.applied) && hello.applied >= acked;
    let cursor = if is_prefix { driver.hub.tail.cursor(hello.applied) } else { None };
    match cursor {
        Some(cursor) => {
            (Welcome { leader, history, view, start: StreamStart::Changes }, Some((StreamSource::Tail(cursor), term)))
        }
        // A copy that is replaced gets a new ID first.
        None if hello.history.is_some() || hello.applied > 0 => {
            (Welcome { leader, history, view, start: StreamStart::Snapshot }, None)
        }
        None => {
            let (shared, tail) = (driver.shared.clone(), driver.hub.tail.clone());
            let (thread, parts) = SnapshotStream::new(shared, tail, term, driver.settings.format);
            driver.spawn(driver.env.run_thread(thread));
            (
                Welcome { leader, history, view, start: StreamStart::Snapshot },
                Some((StreamSource::Snapshot(parts), term)),
            )
        }
    }
}

async fn receive<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    standby: MemberId,
    reader: impl AsyncRead + Unpin,
) -> Result<std::convert::Infallible, StreamError> {
    let mut frames = FrameReader::new(reader);
    loop {
        let frame = deadline(&driver.env, STANDBY_SILENCE_MAX, frames.next()).await;
        let frame = frame.map_err(|_| StreamError::Silent(STANDBY_SILENCE_MAX))??;
        if frame.kind != FrameKind::Control {
            return Err(StreamError::Order);
        }
        let message = HaMessage::decode(&frame.payload)?;
        driver.update(HaEvent::Received { from: standby, message });
    }
}

async fn send<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    mut writer: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<StreamMessage>,
    mut source: StreamSource,
    (view, term): (u64, u64),
) -> Result<std::convert::Infallible, StreamError> {
    let mut announced = driver.hub.tail.subscribe();
    let (mut out, mut payload) = (Vec::new(), Vec::new());
    loop {
        if driver.hub.gate.term() != term {
            return Err(StreamError::TermEnded);
        }
        out.clear();
        loop {
            match messages.try_recv() {
                Ok(message) => message.put(&mut out, view, 0),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(StreamError::Closed),
            }
        }
        match &mut source {
            StreamSource::Snapshot(parts) => match parts.try_recv() {
                Ok(part) => source = put_part(&mut out, view, part).unwrap_or(source),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(StreamError::Closed),
            },
            StreamSource::Tail(cursor) => {
                announced.mark_unchanged();
                while out.len() < WRITE_BYTES {
                    payload.clear();
                    Changes::begin(&mut payload, driver.env.unix());
                    let header = payload.len();
                    let Some(part) = cursor.read(&mut payload)? else { break };
                    match part.kind {
                        TailKind::Changes => put_frame(&mut out, FrameKind::Changes, view, part.sequence, &payload),
                        TailKind::Digest => {
                            put_frame(&mut out, FrameKind::Digest, view, part.sequence, &payload[header..]);
                        }
                    }
                }
            }
        }
        if out.is_empty() {
            // What comes next is put above, so that its order is kept.
            tokio::select! {
                biased;
                message = messages.recv() => message.ok_or(StreamError::Closed)?.put(&mut out, view, 0),
                part = next_part(&mut source) => {
                    let part = part.ok_or(StreamError::Closed)?;
                    source = put_part(&mut out, view, part).unwrap_or(source);
                }
                Ok(()) = announced.changed(), if matches!(source, StreamSource::Tail(_)) => {}
            }
        }
        let written = deadline(&driver.env, STANDBY_SILENCE_MAX, writer.write_all(&out)).await;
        written.map_err(|_| StreamError::NotAccepted(STANDBY_SILENCE_MAX))??;
    }
}

async fn next_part(source: &mut StreamSource) -> Option<SnapshotPart> {
    match source {
        StreamSource::Snapshot(parts) => parts.recv().await,
        StreamSource::Tail(_) => std::future::pending().await,
    }
}

/// Appends a part of a snapshot. Returns the next source at its end.
fn put_part(out: &mut Vec<u8>, view: u64, part: SnapshotPart) -> Option<StreamSource> {
    match part {
        SnapshotPart::Chunk { last, records } => {
            put_frame(out, FrameKind::SnapshotChunk, view, last, &records);
            None
        }
        SnapshotPart::End { last, end, cursor } => {
            let mut payload = Vec::new();
            end.encode(&mut payload);
            put_frame(out, FrameKind::SnapshotEnd, view, last, &payload);
            Some(StreamSource::Tail(cursor))
        }
    }
}
