//! `mcctl store ls`: keys, in the order in which the master has them.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::commands::admin::Replica;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::store::link::UnusedLinkArgs;
use crate::commands::store::stat;
use crate::commands::target::{Master, MasterArgs};
use crate::engine::base::text::escaped;

/// Which keys, and how to show them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only keys that begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// At most so many keys
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Size in bytes, number of copies and the node of the first one, before each key; with a header
    #[arg(long, short)]
    long: bool,
    /// One JSON document a line: each key as it is (the text form escapes control characters and '\'), then the count
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    master: MasterArgs,
    #[command(flatten)]
    unused: UnusedLinkArgs,
}

#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<&'a [Replica]>,
}

#[derive(Serialize)]
struct Count {
    schema: &'static str,
    keys: usize,
    complete: bool,
}

/// Keys whose sizes are asked for together.
const PAGE: usize = 512;

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let master = self.master.find().await?;
        let (mut shown, mut complete) = (0, true);
        let mut page = Vec::new();
        // With --long the keys are read first: asking for their sizes in between would leave the list waiting half read.
        let admin = master.admin_required().await?;
        let result = admin.keys(|key| {
            if !key.starts_with(&self.prefix) {
                return Ok(ControlFlow::Continue(()));
            }
            if self.limit == Some(shown) {
                complete = false;
                return Ok(ControlFlow::Break(()));
            }
            shown += 1;
            if self.long {
                page.push(key.to_owned());
            } else {
                self.show(key, None)?;
            }
            Ok(ControlFlow::Continue(()))
        });
        result.await?;
        if self.long && !self.json && !page.is_empty() {
            output::line(format_args!("{:>14} {:>6} {:<24} {}", "SIZE", "COPIES", "NODE", "KEY"))?;
        }
        for keys in page.chunks(PAGE) {
            self.show_long(&master, keys).await?;
        }
        if self.json {
            output::json(&Count { schema: "mcctl.store.ls.count/1", keys: shown, complete })?;
        } else if !complete {
            output::say(format!("note: stopped after {shown} keys; there are more"));
        }
        Ok(Exit::Done)
    }

    async fn show_long(&self, master: &Master, keys: &[String]) -> Result<(), Failure> {
        let found = stat::look_up(master, keys).await?;
        // A key that went between the two questions is not shown.
        keys.iter()
            .zip(found)
            .filter_map(|(key, replicas)| Some((key, replicas?)))
            .try_for_each(|(key, all)| self.show(key, Some(&all)))
    }

    fn show(&self, key: &str, replicas: Option<&[Replica]>) -> Result<(), Failure> {
        if self.json {
            return output::json(&Line { schema: "mcctl.store.ls/1", key, replicas });
        }
        let key = escaped(key);
        match replicas.map(|all| (all.len(), all.first())) {
            Some((count, Some(first))) => {
                let endpoint = escaped(&first.endpoint);
                output::line(format_args!("{:>14} {count:>6} {endpoint:<24} {key}", first.bytes))
            }
            Some((count, None)) => output::line(format_args!("{:>14} {count:>6} {:<24} {key}", "-", "-")),
            None => output::line(key),
        }
    }
}
