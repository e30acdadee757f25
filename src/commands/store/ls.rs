//! `mcctl store ls`: lists keys in the order that the master returns them.

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::store::stat::{self, ReplicaEntry};
use crate::commands::store::unused_flags::UnusedConnectArgs;
use crate::commands::target::master_target::{MasterArgs, MasterTarget};
use crate::engine::admin::AdminError;
use crate::engine::base::ByteSize;
use crate::engine::base::text::escaped;

/// Flags of `mcctl store ls`.
#[derive(Debug, clap::Args)]
#[command(before_help = "limit long master admin json")]
#[command(before_long_help = "mcctl store ls session/  # list the keys that begin with session/\n\
    mcctl store ls --long -n 20  # list 20 keys with size, replica count and node")]
pub struct Args {
    /// List only keys that begin with PREFIX
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    #[arg(id = "prefix_flag", long = "prefix", value_name = "PREFIX", hide = true, conflicts_with = "prefix")]
    prefix_flag: Option<String>,
    /// List at most N keys
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Show the size in bytes, the number of copies and the first copy's node, with a header
    #[arg(long, short)]
    long: bool,
    /// Print one JSON document per line: one for each key, unescaped, then one with the count
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    master: MasterArgs,
    #[command(flatten)]
    unused: UnusedConnectArgs,
}

#[derive(Serialize)]
struct KeyDocument<'a> {
    schema: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<Vec<ReplicaEntry<'a>>>,
}

#[derive(Serialize)]
struct CountDocument {
    schema: &'static str,
    keys: usize,
    complete: bool,
}

/// Number of keys per query for sizes and replicas.
const PAGE: usize = 512;

/// Column widths for the long format.
#[derive(Clone, Copy)]
struct LongColumns {
    size: usize,
    copies: usize,
    node: usize,
}

impl LongColumns {
    /// Column widths that leave room for keys on a terminal with `width` columns.
    fn for_width(width: usize) -> LongColumns {
        match width < 80 {
            true => LongColumns { size: 10, copies: 6, node: 15 },
            false => LongColumns { size: 14, copies: 6, node: 24 },
        }
    }

    fn line(self, size: &str, copies: &str, node: &str, key: &str) -> String {
        format!("{size:>0$} {copies:>1$} {node:<2$} {key}", self.size, self.copies, self.node)
    }
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let prefix = self.prefix.as_ref().or(self.prefix_flag.as_ref()).map_or("", String::as_str);
        let master = self.master.find().await?;
        let mut shown = 0;
        let mut complete = true;
        let mut page = Vec::new();
        // With --long, all keys are read first: querying sizes in between would leave the response
        // partly read.
        let admin = master.admin_required().await?;
        let failed = |error: AdminError| master.admin_failure(&error);
        let mut keys = admin.keys().await.map_err(failed)?;
        while let Some(key) = keys.next().await.map_err(failed)? {
            if !key.starts_with(prefix) {
                continue;
            }
            if self.limit == Some(shown) {
                complete = false;
                break;
            }
            shown += 1;
            match self.long {
                true => page.push(key),
                false => self.print(&key)?,
            }
        }
        // Closes the connection if keys are left.
        drop(keys);
        let bytes = self.print_long(&master, &page).await?;
        if self.json {
            output::json(&CountDocument { schema: "mcctl.store.ls.count/1", keys: shown, complete })?;
            return Ok(Exit::Done);
        }
        if !complete {
            output::say(format!("note: stopped after {shown} keys; more keys exist"));
        }
        if self.long {
            let keys = if shown == 1 { "1 key".to_owned() } else { format!("{shown} keys") };
            output::say(format!("{keys}, {}", ByteSize(bytes)));
        }
        Ok(Exit::Done)
    }

    fn print(&self, key: &str) -> Result<(), Failure> {
        match self.json {
            true => output::json_line(&KeyDocument { schema: "mcctl.store.ls/1", key, replicas: None }),
            false => output::line(escaped(key)),
        }
    }

    /// Prints `keys` with sizes and replicas. Returns the sum of the sizes.
    async fn print_long(&self, master: &MasterTarget, keys: &[String]) -> Result<u64, Failure> {
        let columns = LongColumns::for_width(output::terminal_width().unwrap_or(usize::MAX));
        if !self.json && !keys.is_empty() {
            output::line(columns.line("SIZE", "COPIES", "NODE", "KEY"))?;
        }
        let mut bytes = 0;
        for keys in keys.chunks(PAGE) {
            let found = stat::look_up(master, keys).await?;
            // A key that was removed between the two queries is omitted.
            for (key, replicas) in keys.iter().zip(found).filter_map(|(key, replicas)| Some((key, replicas?))) {
                let first = replicas.first();
                bytes += first.map_or(0, |first| first.bytes);
                if self.json {
                    output::json_line(&KeyDocument {
                        schema: "mcctl.store.ls/1",
                        key,
                        replicas: Some(ReplicaEntry::list(&replicas)),
                    })?;
                    continue;
                }
                let size = first.map_or("-".to_owned(), |first| first.bytes.to_string());
                let node = first.map_or("-".to_owned(), |first| escaped(&first.endpoint));
                output::line(columns.line(&size, &replicas.len().to_string(), &node, &escaped(key)))?;
            }
        }
        Ok(bytes)
    }
}
