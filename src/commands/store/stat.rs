//! `mcctl store stat`: size and replicas.

use serde::Serialize;

use crate::commands::admin::{self, Replica};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::store::TENANT;
use crate::commands::target::{Master, MasterArgs};
use crate::engine::base::{ByteSize, ErrorCode};
use crate::engine::wire::types::{Place, ReplicaDescriptor, ReplicaStatus};

/// Which objects, and how to show them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keys to look up
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// One JSON document on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    master: MasterArgs,
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
        let found = look_up(&self.master.resolve()?, &self.keys).await?;
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
                    None => output::say(format!("{key}: not there, or its put is not finished")),
                }
            }
        }
        Ok(if found.iter().all(Option::is_some) { Exit::Done } else { Exit::No })
    }
}

fn show(key: &str, replicas: &[Replica]) -> String {
    let bytes = replicas.first().map_or(0, |one| one.bytes);
    let mut text = format!("{key}\n  size      {bytes} bytes ({})\n", ByteSize(bytes));
    for replica in replicas {
        text.push_str(&format!(
            "  replica   memory at {} address 0x{:x} over {}\n",
            replica.endpoint, replica.address, replica.protocol
        ));
    }
    text
}

/// The memory replicas of each key; `None` for one that is not there.
pub(super) async fn look_up(master: &Master, keys: &[String]) -> Result<Vec<Option<Vec<Replica>>>, Failure> {
    if let Some(found) = ask_admin(master, keys).await? {
        return Ok(found);
    }
    let calls = master.calls();
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let answer = calls.get_replica_list(key.as_str().into(), TENANT.into()).await;
        match answer.map_err(|error| master.failure(&error))? {
            Ok(list) => found.push(Some(list.replicas.iter().filter_map(memory_replica).collect())),
            Err(ErrorCode::OBJECT_NOT_FOUND | ErrorCode::REPLICA_IS_NOT_READY) => found.push(None),
            Err(code) => {
                return Err(Failure::no(format!("the master refuses to look up '{key}'")).found(code.to_string()));
            }
        }
    }
    Ok(found)
}

/// The same from the admin HTTP, which grants no lease; `None` where it cannot answer. A line on stderr then says that the RPC is
/// asked, and what that changes.
pub(super) async fn ask_admin(master: &Master, keys: &[String]) -> Result<Option<Vec<Option<Vec<Replica>>>>, Failure> {
    let why = if master.is_admin_unknown() {
        format!("no --admin was given for the master at {}", master.at)
    } else if !keys.iter().all(|key| admin::can_ask(key)) {
        "the admin HTTP cannot be asked for an empty key or one with a comma".to_owned()
    } else {
        match master.admin()?.replicas(keys).await {
            Ok(found) => return Ok(Some(found)),
            Err(failure) => failure.what,
        }
    };
    output::say(format!("note: {why}; the master's RPC is asked instead, which gives each key found a read lease"));
    Ok(None)
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
