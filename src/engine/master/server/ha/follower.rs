//! A standby's stream: it connects to the leader, applies what comes, and acknowledges.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use crate::engine::base::HostPort;
use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::ha::frame::{Frame, FrameKind};
use crate::engine::ha::message::{Changes, ClientPings, SnapshotEnd, StateDigest};
use crate::engine::ha::{HaMessage, HistoryId, MemberInfo};
use crate::engine::journal::JournalError;
use crate::engine::master::record::DATA_FORMAT_NEWEST;
use crate::engine::master::server::ha::copy_note::{CopyNote, CopyStored};
use crate::engine::master::server::ha::disk::HaDisk;
use crate::engine::master::server::ha::driver::HaDriver;
use crate::engine::master::server::ha::gate::GatePhase;
use crate::engine::master::server::ha::handshake::{HANDSHAKE_TIMEOUT, Hello, StreamStart, greet};
use crate::engine::master::server::ha::stream::{FrameReader, StreamError, StreamMessage};

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before the next attempt.
const RETRY: Duration = Duration::from_millis(50);
/// The leader sends pings much more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Maximum time to find out whether the leader's RPC port refuses connections.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// A process that is killed closes its sockets one after the other, so its port may be open a little longer than the stream: number of
/// attempts, and the pause before the next one.
const PROBES: u32 = 5;
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// Follows this leader, until the task is aborted.
pub(super) async fn follow<E: Env, B: ElectionBackend>(driver: &Arc<HaDriver<E, B>>, leader: MemberInfo) {
    let mut last_problem = String::new();
    loop {
        if driver.copy().is_following() {
            let stream = deadline(&driver.env, CONNECT_TIMEOUT, driver.env.net().connect(&leader.replication)).await;
            let problem = match stream {
                Ok(Ok(stream)) => run(driver, &leader, stream).await,
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            if problem != last_problem {
                tracing::warn!(leader = %leader.rpc, problem, "this standby is not connected to the leader; trying again");
                last_problem = problem;
            }
        }
        driver.env.sleep(RETRY).await;
    }
}

/// Follows over one connection. Returns why it ended.
async fn run<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    leader: &MemberInfo,
    mut stream: <E::Net as Net>::Stream,
) -> String {
    let hello = {
        let copy = driver.copy();
        let me = driver.state().core.me().clone();
        let (cluster, release) = (driver.settings.cluster.clone(), env!("CARGO_PKG_VERSION").to_owned());
        let format = DATA_FORMAT_NEWEST.number();
        Hello {
            cluster,
            standby: me.id,
            history: copy.history,
            applied: copy.applied,
            format,
            release,
            rpc: Some(me.rpc.to_string()),
        }
    };
    let greeted = greet(&mut stream, &driver.settings.secret, &hello);
    let welcome = match deadline(&driver.env, HANDSHAKE_TIMEOUT, greeted).await {
        Ok(Ok(welcome)) => welcome,
        Ok(Err(error)) => return error.to_string(),
        Err(elapsed) => return elapsed.to_string(),
    };
    match welcome.start {
        StreamStart::Refused(why) => return format!("the leader refuses: {why}"),
        _ if welcome.leader != leader.id => return "another copy of the leader answers".to_owned(),
        StreamStart::Snapshot if !driver.copy().is_replaceable() => {
            // A copy that is replaced must not be taken for the one in the sync record, so it gets a new ID first.
            tracing::info!("this copy has another history than the leader's, or is too old: it is replaced");
            driver.discard(GatePhase::Closed);
            return "the copy is replaced".to_owned();
        }
        StreamStart::Snapshot => {}
        StreamStart::Changes => {
            if let Err(error) = continue_history(driver, welcome.history).await {
                return error.to_string();
            }
        }
    }
    tracing::info!(leader = %leader.rpc, start = ?welcome.start, change = hello.applied, "following the leader");
    let (link, messages) = mpsc::unbounded_channel();
    driver.state().links.insert(leader.id, link.clone());
    driver.update(|core, _| core.stream_opened(leader.id));
    let (reader, writer) = tokio::io::split(stream);
    let ended = tokio::select! {
        ended = receive(driver, leader, welcome.history, reader) => ended,
        ended = send(writer, messages) => ended,
    };
    let Err(error) = ended;
    {
        let mut state = driver.state();
        if state.links.get(&leader.id).is_some_and(|current| current.same_channel(&link)) {
            state.links.remove(&leader.id);
        }
    }
    drop(driver.copy().cancel_load());
    if let StreamError::Apply(_) | StreamError::Damaged(_) = &error {
        tracing::error!(%error, "the copy of the state cannot be used any more");
        driver.update(|core, now| {
            core.stream_closed(now, false);
            core.copy_damaged();
        });
        return error.to_string();
    }
    let has_ended = match &error {
        StreamError::Closed => true,
        StreamError::Io(error) => error.kind() == ErrorKind::ConnectionReset,
        _ => false,
    };
    let is_gone = has_ended && refuses(driver, &leader.rpc).await;
    driver.update(|core, now| core.stream_closed(now, is_gone));
    error.to_string()
}

/// Whether nothing listens on a port of a host that can be reached.
async fn refuses<E: Env, B>(driver: &HaDriver<E, B>, at: &HostPort) -> bool {
    for _ in 0..PROBES {
        match deadline(&driver.env, PROBE_TIMEOUT, driver.env.net().connect(at)).await {
            Ok(Err(error)) => return error.kind() == ErrorKind::ConnectionRefused,
            Ok(Ok(_)) => driver.env.sleep(PROBE_PAUSE).await,
            Err(_) => return false,
        }
    }
    false
}

async fn receive<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    leader: &MemberInfo,
    history: HistoryId,
    reader: impl tokio::io::AsyncRead + Unpin,
) -> Result<std::convert::Infallible, StreamError> {
    let mut frames = FrameReader::new(reader);
    loop {
        let frame = deadline(&driver.env, SILENCE_MAX, frames.next()).await;
        let frame = frame.map_err(|_| StreamError::Silent(SILENCE_MAX))??;
        handle(driver, leader, history, &frame).await?;
    }
}

/// The changes that follow belong to this history. The data directory notes it before it contains them.
async fn continue_history<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    history: HistoryId,
) -> Result<(), JournalError> {
    let member = driver.state().core.me().id;
    let note = {
        let mut copy = driver.copy();
        copy.is_uncertain = false;
        if copy.history == Some(history) {
            return Ok(());
        }
        CopyNote::new(member, Some(history), copy.history.map(|before| (before, copy.applied)), CopyStored::OnDisk)
    };
    let discarded = driver.copies_discarded();
    driver.use_disk(move |disk, _| disk.store_note(note, true, discarded)).await?;
    let mut copy = driver.copy();
    (copy.history, copy.parent) = (Some(history), copy.history.map(|before| (before, copy.applied)));
    Ok(())
}

async fn handle<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    leader: &MemberInfo,
    history: HistoryId,
    frame: &Frame,
) -> Result<(), StreamError> {
    let now = driver.env.now();
    match frame.kind {
        FrameKind::Control => {
            let message = HaMessage::decode(&frame.payload)?;
            if let HaMessage::Ping { last, .. } = message {
                driver.state().leader_last = last;
            }
            driver.update(|core, now| core.receive(now, leader.id, message));
        }
        FrameKind::Changes => {
            let changes = Changes::decode(&frame.payload)?;
            let log = driver.hub.disk.as_ref().and_then(HaDisk::log);
            let applied = {
                let mut copy = driver.copy();
                if !copy.is_following() {
                    return Ok(());
                }
                if frame.sequence > copy.applied + 1 {
                    return Err(StreamError::Order);
                }
                for (sequence, change) in (frame.sequence..).zip(changes.iter()) {
                    if copy.apply(now, sequence, change)? {
                        driver.hub.tail.append(sequence, change);
                        if let Some(log) = &log {
                            log.append(sequence, change, driver.env.unix());
                        }
                    }
                }
                copy.applied
            };
            if let Some(log) = log
                && !log.store_copied(applied).await
            {
                return Err(StreamError::NotStored);
            }
            driver.update(|core, now| core.applied(now, applied));
        }
        FrameKind::SnapshotChunk => driver.copy().load(now, &frame.payload)?,
        FrameKind::SnapshotEnd => {
            let SnapshotEnd { objects, digest } = SnapshotEnd::decode(&frame.payload)?;
            if !driver.copy().loaded(history, frame.sequence, objects, digest) {
                return Err(StreamError::Damaged("the snapshot differs from the leader's state".to_owned()));
            }
            driver.hub.tail.restart(frame.sequence + 1);
            tracing::info!(objects, change = frame.sequence, "snapshot received from the leader");
            // Nothing is applied in the meantime.
            let (member, last) = (driver.state().core.me().id, frame.sequence);
            let discarded = driver.copies_discarded();
            let begun = driver.use_disk(move |disk, driver| {
                let (now, format) = (driver.env.now(), driver.settings.format);
                let note = {
                    let mut copy = driver.copy();
                    copy.following().map(|standby| standby.begin_snapshot(now, format));
                    copy.note(member)
                };
                let slices = |slots| driver.copy().following()?.snapshot_slots(slots);
                disk.begin(&driver.env, slices, last, note, discarded)
            });
            begun.await.map_err(|_| StreamError::NotStored)?;
            driver.update(|core, now| core.applied(now, frame.sequence));
        }
        FrameKind::Clients => {
            let mut copy = driver.copy();
            for (client, age_ms) in ClientPings::decode(&frame.payload)?.0 {
                copy.heard(client, now - Duration::from_millis(age_ms.into()));
            }
            copy.forget_old_calls(now);
        }
        FrameKind::Digest => {
            let digest = StateDigest::decode(&frame.payload)?;
            if !driver.copy().agrees(frame.sequence, &digest) {
                let what = format!(
                    "the copy differs from the leader's state after change {}, in the object slots from {} on, the segments or the clients",
                    frame.sequence, digest.from
                );
                return Err(StreamError::Damaged(what));
            }
            driver.state().digests += 1;
        }
    }
    Ok(())
}

async fn send(
    mut writer: impl tokio::io::AsyncWrite + Unpin,
    mut messages: mpsc::UnboundedReceiver<StreamMessage>,
) -> Result<std::convert::Infallible, StreamError> {
    let mut out = Vec::new();
    loop {
        let mut message = messages.recv().await.ok_or(StreamError::Closed)?;
        out.clear();
        loop {
            message.put(&mut out, 0, 0);
            match messages.try_recv() {
                Ok(next) => message = next,
                Err(_) => break,
            }
        }
        writer.write_all(&out).await?;
    }
}
