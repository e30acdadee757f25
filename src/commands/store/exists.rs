//! `mcctl store exists`.

use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::store::link::UnusedLinkArgs;
use crate::commands::store::{TENANT, key, stat};
use crate::commands::target::{Master, MasterArgs};
use crate::engine::base::text::escaped;

/// Which keys, and how to answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keys to look for
    #[arg(required = true, value_name = "KEY", value_parser = key::parse)]
    keys: Vec<String>,
    /// Answer by the exit code only
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
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
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let found = ask(&self.master.find().await?, &self.keys).await?;
        let objects = || self.keys.iter().zip(&found).map(|(key, exists)| Object { key, exists: *exists });
        if self.json {
            output::json(&Document { schema: "mcctl.store.exists/1", objects: objects().collect() })?;
        } else if !self.quiet {
            for Object { key, exists } in objects() {
                output::line(format_args!("{}\t{}", if exists { "yes" } else { "no" }, escaped(key)))?;
            }
        }
        Ok(if found.iter().all(|exists| *exists) { Exit::Done } else { Exit::No })
    }
}

async fn ask(master: &Master, keys: &[String]) -> Result<Vec<bool>, Failure> {
    stat::admin_or_rpc(master, keys, |replicas| replicas.is_some(), async || ask_rpc(master, keys).await).await
}

async fn ask_rpc(master: &Master, keys: &[String]) -> Result<Vec<bool>, Failure> {
    let asked = keys.iter().map(|key| key.as_str().into()).collect();
    let answers = master.calls().batch_exist_key(asked, TENANT.into()).await.map_err(|error| master.failure(&error))?;
    if answers.len() != keys.len() {
        return Err(Failure::unreachable(format!(
            "the master at {} answers {} keys, not {}",
            master.at,
            answers.len(),
            keys.len()
        )));
    }
    let read = |answer: Result<bool, _>| answer.map_err(|code| Failure::no(format!("the master refuses: {code}")));
    answers.into_iter().map(read).collect()
}
