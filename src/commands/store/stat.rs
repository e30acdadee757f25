//! `mcctl store stat`: shows the size and replicas of objects.

use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::table::ListTable;
use crate::commands::store::key;
use crate::commands::store::unused_flags::UnusedConnectArgs;
use crate::commands::target::master_target::{MasterArgs, MasterTarget};
use crate::engine::admin::AdminClient;
use crate::engine::admin::types::MemoryReplica;
use crate::engine::base::text::{Quoted, counted, escaped};
use crate::engine::base::{ByteSize, ErrorCode};
use crate::engine::wire::MasterCalls;
use crate::engine::wire::method::Channel;
use crate::engine::wire::types::{ReplicaDescriptor, ReplicaLocation, ReplicaStatus, Tenant};

/// Flags of `mcctl store stat`.
#[derive(Debug, clap::Args)]
#[command(before_help = "master admin json")]
#[command(before_long_help = "mcctl store stat greeting  # show an object's size and replicas")]
pub struct Args {
    /// Object keys
    #[arg(required = true, value_name = "KEY", value_parser = key::parse)]
    keys: Vec<String>,
    /// Print one JSON document to stdout
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    master: MasterArgs,
    #[command(flatten)]
    unused: UnusedConnectArgs,
}

#[derive(Serialize)]
struct StatDocument<'a> {
    schema: &'static str,
    objects: Vec<ObjectStatEntry<'a>>,
}

#[derive(Serialize)]
struct ObjectStatEntry<'a> {
    key: &'a str,
    exists: bool,
    bytes: Option<u64>,
    replicas: Vec<ReplicaEntry<'a>>,
}

/// A replica in the JSON documents of `store stat` and `store ls`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ReplicaEntry<'a> {
    bytes: u64,
    address: u64,
    protocol: &'a str,
    endpoint: &'a str,
}

impl<'a> ReplicaEntry<'a> {
    pub(super) fn list(replicas: &'a [MemoryReplica]) -> Vec<ReplicaEntry<'a>> {
        let entry = |replica: &'a MemoryReplica| ReplicaEntry {
            bytes: replica.bytes,
            address: replica.address,
            protocol: &replica.protocol,
            endpoint: &replica.endpoint,
        };
        replicas.iter().map(entry).collect()
    }
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let found = look_up(&self.master.find().await?, &self.keys).await?;
        if self.json {
            let objects = self.keys.iter().zip(&found).map(|(key, replicas)| ObjectStatEntry {
                key,
                exists: replicas.is_some(),
                bytes: replicas.as_ref().and_then(|all| all.first()).map(|one| one.bytes),
                replicas: ReplicaEntry::list(replicas.as_deref().unwrap_or_default()),
            });
            output::json(&StatDocument { schema: "mcctl.store.stat/1", objects: objects.collect() })?;
        } else {
            let objects = || self.keys.iter().zip(&found);
            if found.iter().any(Option::is_some) {
                output::data(table(objects()))?;
            }
            for (key, _) in objects().filter(|(_, replicas)| replicas.is_none()) {
                output::say(format!("{}: not found, or the put has not finished", escaped(key)));
            }
            let count = found.iter().flatten().count();
            output::say(format!("found {count} of {}", counted(found.len(), "key")));
        }
        Ok(if found.iter().all(Option::is_some) { Exit::Done } else { Exit::No })
    }
}

/// A table of `objects` with one row per replica.
fn table<'a>(objects: impl Iterator<Item = (&'a String, &'a Option<Vec<MemoryReplica>>)>) -> String {
    let mut table = ListTable::new(["KEY", "BYTES", "SIZE", "NODE", "ADDRESS", "PROTOCOL"], &[1, 2]);
    for (key, replicas) in objects.filter_map(|(key, replicas)| Some((key, replicas.as_ref()?))) {
        if replicas.is_empty() {
            table.row([&*escaped(key), "-", "-", "-", "-", "-"]);
        }
        for replica in replicas {
            table.row([
                escaped(key),
                replica.bytes.to_string(),
                ByteSize(replica.bytes).to_string(),
                escaped(&replica.endpoint),
                format!("0x{:x}", replica.address),
                escaped(&replica.protocol),
            ]);
        }
    }
    table.text()
}

/// The memory replicas of each key; `None` for a key that does not exist.
pub(super) async fn look_up(
    master: &MasterTarget,
    keys: &[String],
) -> Result<Vec<Option<Vec<MemoryReplica>>>, Failure> {
    admin_or_rpc(master, keys, |replicas| replicas, async || look_up_rpc(master, keys).await).await
}

async fn look_up_rpc(master: &MasterTarget, keys: &[String]) -> Result<Vec<Option<Vec<MemoryReplica>>>, Failure> {
    let calls = master.calls();
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let answer = calls.get_replica_list(key.as_str().into(), Tenant::DEFAULT).await;
        match answer.map_err(|error| master.failure(&error))? {
            Ok(list) => found.push(Some(list.replicas.iter().filter_map(memory_replica).collect())),
            Err(ErrorCode::OBJECT_NOT_FOUND | ErrorCode::REPLICA_IS_NOT_READY) => found.push(None),
            Err(code) => {
                return Err(
                    Failure::no(format!("the master rejected the lookup of {}", Quoted(key))).found(code.to_string())
                );
            }
        }
    }
    Ok(found)
}

/// Looks up `keys` with `from_admin` through the admin HTTP endpoint, which grants no lease. If the
/// endpoint is unavailable, `rpc` is used and a note on stderr reports that the RPC grants leases.
pub(super) async fn admin_or_rpc<T>(
    master: &MasterTarget,
    keys: &[String],
    from_admin: impl Fn(Option<Vec<MemoryReplica>>) -> T,
    rpc: impl AsyncFnOnce() -> Result<Vec<T>, Failure>,
) -> Result<Vec<T>, Failure> {
    let reason = if master.is_admin_unknown() {
        format!("the admin address for the master at {} is unknown (set --admin)", master.at)
    } else if !keys.iter().all(|key| AdminClient::can_query(key)) {
        "the admin HTTP endpoint cannot look up a key with a comma".to_owned()
    } else {
        match master.admin()?.replicas(keys).await {
            Ok(found) => return Ok(found.into_iter().map(from_admin).collect()),
            Err(error) => master.admin_failure(&error).what,
        }
    };
    output::say(format!("note: {reason}; using the master's RPC, which grants each existing key a read lease"));
    rpc().await
}

/// The state of a key that already existed when a put started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    /// A complete object. Also used if the master cannot be queried.
    Complete,
    /// A put of the key has not finished.
    Unfinished,
    /// It cannot be read, perhaps because it was restored and its node has not called since. In
    /// this time, missing nodes and their objects are dropped.
    Waiting(Duration),
    Gone,
}

/// The state of `key`, which exists according to the response to a put. The admin HTTP endpoint is
/// used first: the RPC would grant a lease on an existing object, which blocks its removal.
pub(super) async fn key_state<C>(master: &MasterTarget, calls: &MasterCalls<C>, key: &str) -> KeyState
where
    C: Channel,
{
    if AdminClient::can_query(key)
        && let Ok(admin) = master.admin()
        && let Ok(found) = admin.replicas(&[key.to_owned()]).await
        && found.first().is_some_and(Option::is_some)
    {
        return KeyState::Complete;
    }
    match calls.get_replica_list(key.into(), Tenant::DEFAULT).await {
        Ok(Err(ErrorCode::REPLICA_IS_NOT_READY)) => KeyState::Unfinished,
        Ok(Err(ErrorCode::OBJECT_NOT_FOUND)) => missing_node(master).await.map_or(KeyState::Gone, KeyState::Waiting),
        _ => KeyState::Complete,
    }
}

/// The time until the master drops restored segments whose nodes have not called; `None` without
/// such segments, or if it does not report them.
async fn missing_node(master: &MasterTarget) -> Option<Duration> {
    let admin = master.admin().ok()?;
    let segments = admin.segments().await.ok()?;
    segments.iter().filter_map(|segment| segment.unconfirmed_ms).max().map(Duration::from_millis)
}

/// A complete memory replica in the format of the admin HTTP endpoint.
fn memory_replica(replica: &ReplicaDescriptor) -> Option<MemoryReplica> {
    let ReplicaLocation::Memory(buffer) = &replica.location else { return None };
    (replica.status == ReplicaStatus::COMPLETE).then(|| MemoryReplica {
        bytes: buffer.size,
        address: buffer.buffer_address,
        protocol: text(&buffer.protocol.0),
        endpoint: text(&buffer.transport_endpoint.0),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
