//! `mcctl store rm`.

use serde::Serialize;

use crate::commands::cli::confirm::{self, ConfirmArgs};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::store::key;
use crate::commands::store::unused_flags::UnusedConnectArgs;
use crate::commands::target::master_target::{MasterArgs, MasterTarget};
use crate::engine::base::ErrorCode;
use crate::engine::base::text::{Quoted, counted, escaped};
use crate::engine::wire::types::Tenant;

/// Flags of `mcctl store rm`.
#[derive(Debug, clap::Args)]
#[command(before_help = "regex all force yes master json")]
#[command(before_long_help = "mcctl store rm a b  # remove two objects\n\
    mcctl store rm --regex '^session/42/'  # remove all objects whose key matches\n\
    mcctl store rm --all --force --yes  # empty the store without confirmation")]
pub struct Args {
    /// Object keys
    #[arg(value_name = "KEY", value_parser = key::parse, required_unless_present_any = ["regex", "all"])]
    keys: Vec<String>,
    /// Remove all objects whose keys contain a match for PATTERN (ECMAScript; anchor with ^ and $)
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["keys", "all"])]
    regex: Option<String>,
    /// Remove all objects of the default tenant; asks for confirmation on a terminal, otherwise
    /// --yes is required
    #[arg(long, conflicts_with = "keys")]
    all: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Also remove objects under a read lease
    #[arg(long)]
    force: bool,
    /// Print one JSON document to stdout
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    master: MasterArgs,
    #[command(flatten)]
    unused: UnusedConnectArgs,
}

#[derive(Serialize)]
struct RmDocument<'a> {
    schema: &'static str,
    removed: i64,
    kept: Vec<KeptKey<'a>>,
    /// Number of objects left after `--all`; `null` with keys or a pattern, or if the admin
    /// endpoint does not report it.
    remaining: Option<u64>,
    /// Why an object was not removed; `null` if all were.
    cause: Option<String>,
    /// What to do about it; `null` if nothing helps.
    next: Option<String>,
}

#[derive(Serialize)]
struct KeptKey<'a> {
    key: &'a str,
    code: i32,
    why: String,
}

impl Args {
    /// Whether the command may ask for confirmation. The prompt blocks, so a signal must be able to
    /// kill the process.
    pub(super) fn may_ask(&self) -> bool {
        self.all && !self.confirm.yes
    }

    pub(super) async fn run(self) -> Outcome {
        let master = self.master.find().await?;
        let (removed, kept) = match &self.regex {
            Some(regex) => (self.by_regex(&master, regex).await?, Vec::new()),
            None if self.all => {
                confirm::destruction(self.confirm.yes, &everything(&master).await)?;
                let answer = master.calls().remove_all(self.force, Tenant::DEFAULT).await;
                (answer.map_err(|error| master.failure(&error))?, Vec::new())
            }
            None => self.by_key(&master).await?,
        };
        let remaining = match self.all {
            true => object_count(&master).await,
            false => None,
        };
        let exit = if kept.is_empty() && remaining.is_none_or(|left| left == 0) { Exit::Done } else { Exit::No };
        if !self.json {
            for (key, code) in &kept {
                output::say(format!("{}: not removed: {}", escaped(key), reason(*code)));
            }
            output::say(format!("removed {}", counted(removed, "object")));
            if let Some(left @ 1..) = remaining {
                let force = if self.force { "" } else { "; --force also removes objects under a read lease" };
                output::say(format!("{} left{force}", counted(left, "object")));
            }
            return Ok(exit);
        }
        let (cause, next) = self.not_removed(&kept, remaining);
        let lines = kept.iter().map(|(key, code)| KeptKey { key, code: code.0, why: reason(*code) });
        output::json(&RmDocument {
            schema: "mcctl.store.rm/1",
            removed,
            kept: lines.collect(),
            remaining,
            cause,
            next,
        })?;
        Ok(exit)
    }

    /// Why objects were not removed, and what to do about it.
    fn not_removed(&self, kept: &[(&str, ErrorCode)], remaining: Option<u64>) -> (Option<String>, Option<String>) {
        let force = (!self.force).then(|| "use --force, which also removes objects under a read lease".to_owned());
        let Some((key, code)) = kept.first() else {
            let left = remaining.filter(|left| *left > 0);
            return (left.map(|left| format!("{} left in the store", counted(left, "object"))), left.and(force));
        };
        let cause = match kept.len() {
            1 => format!("{} was not removed: {}", Quoted(key), reason(*code)),
            count => format!(
                "{count} of {} keys were not removed; the first is {}: {}",
                self.keys.len(),
                Quoted(key),
                reason(*code)
            ),
        };
        let next = match *code {
            ErrorCode::OBJECT_NOT_FOUND => Some("list the keys with mcctl store ls".to_owned()),
            ErrorCode::OBJECT_HAS_LEASE => force,
            _ => Some("retry".to_owned()),
        };
        (Some(cause), next)
    }

    async fn by_regex(&self, master: &MasterTarget, regex: &str) -> Result<i64, Failure> {
        let answer = master.calls().remove_by_regex(regex.into(), self.force, Tenant::DEFAULT).await;
        match answer.map_err(|error| master.failure(&error))? {
            Ok(removed) => Ok(removed),
            Err(ErrorCode::INVALID_PARAMS) => {
                Err(Failure::usage(format!("{} is not a valid regular expression for the master", Quoted(regex)))
                    .next("use an ECMAScript pattern, e.g. '^prefix/.*'"))
            }
            Err(code) => Err(Failure::no("the master rejected the removal by pattern").found(code.to_string())),
        }
    }

    async fn by_key(&self, master: &MasterTarget) -> Result<(i64, Vec<(&str, ErrorCode)>), Failure> {
        let calls = master.calls();
        let mut removed = 0;
        let mut kept = Vec::new();
        for key in &self.keys {
            match calls
                .remove(key.as_str().into(), self.force, Tenant::DEFAULT)
                .await
                .map_err(|error| master.failure(&error))?
            {
                Ok(()) => removed += 1,
                Err(code) => kept.push((key.as_str(), code)),
            }
        }
        Ok((removed, kept))
    }
}

/// The number of objects in the store, if the admin endpoint reports it.
async fn object_count(master: &MasterTarget) -> Option<u64> {
    let metrics = master.admin().ok()?.metrics().await.ok()?;
    metrics.sum("master_key_count").map(|count| count as u64)
}

/// The effect of --all, as shown in the confirmation prompt.
async fn everything(master: &MasterTarget) -> String {
    let objects = match object_count(master).await {
        Some(1) => "the only object".to_owned(),
        Some(count) => format!("all {count} objects"),
        None => "all objects".to_owned(),
    };
    format!("removes {objects} from the store at {} ({})", master.at, master.origin)
}

fn reason(code: ErrorCode) -> String {
    let meaning = match code {
        ErrorCode::OBJECT_NOT_FOUND => "the object does not exist",
        ErrorCode::OBJECT_HAS_LEASE => {
            "it is under a read lease, which expires 10 s after the last read by default (the master's --default_kv_lease_ttl); \
             wait, or use --force"
        }
        ErrorCode::REPLICA_IS_NOT_READY => "the put has not finished",
        ErrorCode::OBJECT_HAS_REPLICATION_TASK => "it is being copied or moved",
        _ => return code.to_string(),
    };
    format!("{meaning} ({code})")
}
