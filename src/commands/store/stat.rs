//! `mcctl store stat`: size and replicas.

use serde::Serialize;

use crate::commands::admin::{self, Replica};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::store::link::UnusedLinkArgs;
use crate::commands::store::{TENANT, key};
use crate::commands::target::{Master, MasterArgs};
use crate::engine::base::text::{Quoted, escaped};
use crate::engine::base::{ByteSize, ErrorCode};
use crate::engine::wire::MasterCalls;
use crate::engine::wire::method::Channel;
use crate::engine::wire::types::{Place, ReplicaDescriptor, ReplicaStatus};

/// Which objects, and how to show them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keys to look up
    #[arg(required = true, value_name = "KEY", value_parser = key::parse)]
    keys: Vec<String>,
    /// One JSON document on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    master: MasterArgs,
    #[command(flatten)]
    unused: UnusedLinkArgs,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    objects: Vec<Object<'a>>,
}

#[derive(Serialize)]
struct Object<'a> {
    key: &'a str,
    exists: bool,
    bytes: Option<u64>,
    replicas: &'a [Replica],
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let found = look_up(&self.master.find().await?, &self.keys).await?;
        if self.json {
            let objects = self.keys.iter().zip(&found).map(|(key, replicas)| Object {
                key,
                exists: replicas.is_some(),
                bytes: replicas.as_ref().and_then(|all| all.first()).map(|one| one.bytes),
                replicas: replicas.as_deref().unwrap_or_default(),
            });
            output::json(&Document { schema: "mcctl.store.stat/1", objects: objects.collect() })?;
        } else {
            for (key, replicas) in self.keys.iter().zip(&found) {
                match replicas {
                    Some(replicas) => output::data(show(key, replicas))?,
                    None => output::say(format!("{}: not there, or its put is not finished", escaped(key))),
                }
            }
        }
        Ok(if found.iter().all(Option::is_some) { Exit::Done } else { Exit::No })
    }
}

fn show(key: &str, replicas: &[Replica]) -> String {
    let bytes = replicas.first().map_or(0, |one| one.bytes);
    let mut text = format!("{}\n  size      {bytes} bytes ({})\n", escaped(key), ByteSize(bytes));
    for replica in replicas {
        text.push_str(&format!(
            "  replica   memory at {} address 0x{:x} over {}\n",
            escaped(&replica.endpoint),
            replica.address,
            escaped(&replica.protocol)
        ));
    }
    text
}

/// The memory replicas of each key; `None` for one that is not there.
pub(super) async fn look_up(master: &Master, keys: &[String]) -> Result<Vec<Option<Vec<Replica>>>, Failure> {
    admin_or_rpc(master, keys, |replicas| replicas, async || look_up_rpc(master, keys).await).await
}

async fn look_up_rpc(master: &Master, keys: &[String]) -> Result<Vec<Option<Vec<Replica>>>, Failure> {
    let calls = master.calls();
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let answer = calls.get_replica_list(key.as_str().into(), TENANT.into()).await;
        match answer.map_err(|error| master.failure(&error))? {
            Ok(list) => found.push(Some(list.replicas.iter().filter_map(memory_replica).collect())),
            Err(ErrorCode::OBJECT_NOT_FOUND | ErrorCode::REPLICA_IS_NOT_READY) => found.push(None),
            Err(code) => {
                return Err(
                    Failure::no(format!("the master refuses to look up {}", Quoted(key))).found(code.to_string())
                );
            }
        }
    }
    Ok(found)
}

/// What is known of each of `keys`: `from_admin` of what the admin HTTP says, which grants no lease, or what `rpc` says where that
/// cannot answer. A line on stderr then says that the RPC is asked, and what that changes.
pub(super) async fn admin_or_rpc<T>(
    master: &Master,
    keys: &[String],
    from_admin: impl Fn(Option<Vec<Replica>>) -> T,
    rpc: impl AsyncFnOnce() -> Result<Vec<T>, Failure>,
) -> Result<Vec<T>, Failure> {
    let why = if master.is_admin_unknown() {
        format!("no --admin was given for the master at {}", master.at)
    } else if !keys.iter().all(|key| admin::can_ask(key)) {
        "the admin HTTP cannot be asked for a key with a comma".to_owned()
    } else {
        match master.admin()?.replicas(keys).await {
            Ok(found) => return Ok(found.into_iter().map(from_admin).collect()),
            Err(failure) => failure.what,
        }
    };
    output::say(format!("note: {why}; the master's RPC is asked instead, which gives each key found a read lease"));
    rpc().await
}

/// What is under a key that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// An object, or at least nobody says otherwise.
    Complete,
    /// A put that is not finished.
    Unfinished,
    /// Nothing any more.
    Gone,
}

/// What is under `key`, which has just been found taken. The admin HTTP is asked first, for the RPC gives an object that is there a
/// lease, which would keep it from being removed.
pub(super) async fn presence<C>(master: &Master, calls: &MasterCalls<C>, key: &str) -> Presence
where
    C: Channel,
{
    if !master.is_admin_unknown()
        && admin::can_ask(key)
        && let Ok(admin) = master.admin()
        && let Ok(found) = admin.replicas(&[key.to_owned()]).await
        && found.first().is_some_and(Option::is_some)
    {
        return Presence::Complete;
    }
    match calls.get_replica_list(key.into(), TENANT.into()).await {
        Ok(Err(ErrorCode::REPLICA_IS_NOT_READY)) => Presence::Unfinished,
        Ok(Err(ErrorCode::OBJECT_NOT_FOUND)) => Presence::Gone,
        _ => Presence::Complete,
    }
}

/// A complete replica in memory, as the admin HTTP would show it.
fn memory_replica(replica: &ReplicaDescriptor) -> Option<Replica> {
    let Place::Memory(buffer) = &replica.place else { return None };
    (replica.status == ReplicaStatus::COMPLETE).then(|| Replica {
        bytes: buffer.size,
        address: buffer.buffer_address,
        protocol: text(&buffer.protocol.0),
        endpoint: text(&buffer.transport_endpoint.0),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
