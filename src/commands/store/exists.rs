//! `mcctl store exists`.

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::store::unused_flags::UnusedConnectArgs;
use crate::commands::store::{key, stat};
use crate::commands::target::master_target::{MasterArgs, MasterTarget};
use crate::engine::base::text::escaped;
use crate::engine::wire::types::Tenant;

/// Flags of `mcctl store exists`.
#[derive(Debug, clap::Args)]
#[command(before_help = "quiet master admin json")]
#[command(before_long_help = "mcctl store exists a b  # print yes or no for each key\n\
    mcctl store exists -q a && echo found  # report the result only in the exit code")]
pub struct Args {
    /// Object keys
    #[arg(required = true, value_name = "KEY", value_parser = key::parse)]
    keys: Vec<String>,
    /// Print nothing; report the result only in the exit code
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    /// Print one JSON document to stdout
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    master: MasterArgs,
    #[command(flatten)]
    unused: UnusedConnectArgs,
}

#[derive(Serialize)]
struct ExistsDocument<'a> {
    schema: &'static str,
    objects: Vec<KeyPresence<'a>>,
}

#[derive(Serialize)]
struct KeyPresence<'a> {
    key: &'a str,
    exists: bool,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let found = query(&self.master.find().await?, &self.keys).await?;
        let objects = || self.keys.iter().zip(&found).map(|(key, exists)| KeyPresence { key, exists: *exists });
        if self.json {
            output::json(&ExistsDocument { schema: "mcctl.store.exists/1", objects: objects().collect() })?;
        } else if !self.quiet {
            for KeyPresence { key, exists } in objects() {
                output::line(format_args!("{}\t{}", if exists { "yes" } else { "no" }, escaped(key)))?;
            }
        }
        Ok(if found.iter().all(|exists| *exists) { Exit::Done } else { Exit::No })
    }
}

async fn query(master: &MasterTarget, keys: &[String]) -> Result<Vec<bool>, Failure> {
    stat::admin_or_rpc(master, keys, |replicas| replicas.is_some(), async || query_rpc(master, keys).await).await
}

async fn query_rpc(master: &MasterTarget, keys: &[String]) -> Result<Vec<bool>, Failure> {
    let query = keys.iter().map(|key| key.as_str().into()).collect();
    let answers =
        master.calls().batch_exist_key(query, Tenant::DEFAULT).await.map_err(|error| master.failure(&error))?;
    if answers.len() != keys.len() {
        return Err(Failure::unreachable(format!(
            "the master at {} returned {} results for {} keys",
            master.at,
            answers.len(),
            keys.len()
        )));
    }
    let checked = |answer: Result<bool, _>| {
        answer.map_err(|code| Failure::no("the master rejected the request").found(format!("{code}")))
    };
    answers.into_iter().map(checked).collect()
}
