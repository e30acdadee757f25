//! A standby connects to the leader, and finds out what it means when the connection ends.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::HostPort;
use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::ha::{HaEvent, HistoryId, MemberInfo};
use crate::engine::journal::JournalError;
use crate::engine::master::record::DATA_FORMAT_NEWEST;
use crate::engine::master::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::engine::master::server::ha::driver::{HaDriver, drop_elsewhere};
use crate::engine::master::server::ha::handshake::{ContinuedSettings, HANDSHAKE_TIMEOUT, Hello, StreamStart, greet};
use crate::engine::master::server::ha::leader::gate::GatePhase;
use crate::engine::master::server::ha::standby::copy_stream::CopyStream;
use crate::engine::master::server::ha::stream::StreamError;

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before the next attempt.
const RETRY: Duration = Duration::from_millis(50);
/// Maximum time to find out whether the leader's RPC port refuses connections.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// A process that is killed closes its sockets one after the other, so its port may be open a little longer than the stream: number of
/// attempts, and the pause before the next one.
const PROBES: u32 = 5;
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// Follows this leader, until the task is aborted.
pub(in crate::engine::master::server::ha) async fn follow<E: Env, B: ElectionBackend>(
    driver: &Arc<HaDriver<E, B>>,
    leader: MemberInfo,
) {
    let mut last_problem = String::new();
    loop {
        if driver.copy().may_connect() {
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
        let settings = Some(ContinuedSettings::of(&copy.policy));
        Hello {
            cluster,
            standby: me.id,
            history: copy.history,
            applied: copy.applied,
            format,
            release,
            rpc: Some(me.rpc.to_string()),
            settings,
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
        _ if welcome.leader != leader.id => return "the leader has restarted with a new copy".to_owned(),
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
    let (link, messages) = driver.state().links.open(leader.id);
    driver.update(HaEvent::StreamOpened { leader: leader.id });
    let copying = CopyStream { driver, leader, history: welcome.history };
    let Err(error) = copying.run(stream, messages).await;
    driver.state().links.close(leader.id, &link);
    let load = driver.copy().cancel_load();
    drop_elsewhere(&driver.env, load);
    if let StreamError::Apply(_) | StreamError::Damaged(_) = &error {
        tracing::error!(%error, "the copy of the state cannot be used any more");
        driver.update(HaEvent::CopyDamaged);
        return error.to_string();
    }
    let is_gone = error.has_peer_closed() && refuses(driver, &leader.rpc).await;
    driver.update(HaEvent::StreamClosed { process_gone: is_gone });
    error.to_string()
}

/// Whether nothing listens on a port of a host that can be reached.
async fn refuses<E: Env, B>(driver: &HaDriver<E, B>, at: &HostPort) -> bool {
    for _ in 0..PROBES {
        match deadline(&driver.env, PROBE_TIMEOUT, driver.env.net().connect(at)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return true,
            // The port was closed during the attempt, or is still open.
            Ok(Err(error)) if error.kind() != ErrorKind::ConnectionReset => return false,
            Ok(_) => driver.env.sleep(PROBE_PAUSE).await,
            Err(_) => return false,
        }
    }
    false
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
