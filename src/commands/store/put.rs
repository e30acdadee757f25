//! `mcctl store put`.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::runtime::Signals;
use crate::commands::cli::time_flag::TimeParser;
use crate::commands::store::key;
use crate::commands::store::session::{StoreSession, stopped};
use crate::commands::store::stat::{self, KeyState};
use crate::commands::target::connect::ClientArgs;
use crate::commands::target::master_target::MasterTarget;
use crate::engine::admin::AdminClient;
use crate::engine::admin::hosts::copy_hosts;
use crate::engine::base::text::{Quoted, counted_as, escaped};
use crate::engine::base::time::RoundedDuration;
use crate::engine::base::{ByteSize, ErrorCode, ObjectKey};
use crate::engine::env::RealEnv;
use crate::engine::store::{PutOutcome, StoreClient, StoreError};
use crate::engine::sys::host;
use crate::engine::sys::memory::{Memory, Slice};
use crate::engine::wire::types::{ReplicateConfig, SoftPinAction};

/// Flags of `mcctl store put`.
#[derive(Debug, clap::Args)]
#[command(before_help = "value upsert replicas soft-pin hard-pin master metadata-server protocol json")]
#[command(before_long_help = "mcctl store put greeting --value hello  # store a string\n\
    mcctl store put model/1 weights.bin --replicas 2  # store a file on two segments\n\
    tar c dir | mcctl store put backup --upsert  # store stdin; replace the object if the key exists")]
pub struct Args {
    /// Object key
    #[arg(value_parser = key::parse)]
    key: String,
    /// File to store [default: stdin; '-' means stdin]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Store TEXT instead of a file
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    value: Option<String>,
    /// Replace the object if the key exists
    #[arg(long)]
    upsert: bool,
    /// Number of copies, each on a different segment and, while there is room, on a different host;
    /// exit code 1 if fewer were stored
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    replicas: u64,
    /// Exit with code 0 even if fewer copies than --replicas were stored
    #[arg(long)]
    allow_fewer: bool,
    /// Soft-pin the object for TIME, e.g. 1h, so that it is evicted last [without TIME: the
    /// master's default]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = TimeParser::any())]
    soft_pin: Option<Option<Duration>>,
    /// Never evict the object
    #[arg(long)]
    hard_pin: bool,
    /// Segment to allocate from first
    #[arg(long, value_name = "NAME")]
    segment: Option<String>,
    /// Print one JSON document to stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: ClientArgs,
}

/// The result of a put.
#[derive(Debug)]
enum PutResult {
    Stored {
        replicas: usize,
    },
    /// The key already exists, in this state.
    Exists(KeyState),
    /// The master rejected the arguments.
    InvalidArguments,
}

fn exists(quoted: Quoted<'_>, state: KeyState) -> Failure {
    match state {
        KeyState::Complete => Failure::no(format!("{quoted} already exists and was not changed"))
            .next("replace it with --upsert, or remove it with mcctl store rm"),
        KeyState::Unfinished => Failure::no(format!("another put of {quoted} has not finished; nothing was stored"))
            .next(
                "retry when that put has finished; if its client is no longer running, the master drops the key after \
                 --put-start-discard-timeout-sec, 30 s by default",
            ),
        KeyState::Waiting(time) => Failure::no(format!(
            "{quoted} exists, but it was not changed and cannot be read yet: its node has not called since the master restarted or was replaced"
        ))
        .next(format!(
            "retry in a few seconds, or replace it with --upsert. Without a heartbeat of its node, the master drops the object after {}. mcctl \
             status names the missing nodes",
            RoundedDuration(time)
        )),
        KeyState::Gone => Failure::no(format!(
            "another client put {quoted} first, but the object has since been removed; nothing was stored"
        ))
        .next("retry"),
    }
}

/// Reads all bytes from `input`, called `from` in errors. They may use at most half of the
/// `available` memory, because a buffer is copied when it grows.
fn read_all<R: Read>(from: &str, input: io::Result<R>, available: u64) -> Result<Vec<u8>, Failure> {
    let max = available / 2;
    let too_large = |found: String| {
        Failure::host(format!("{from} does not fit into this host's memory"))
            .tried("read the entire file: an object must be written in full")
            .found(found)
    };
    let mut bytes = Vec::new();
    match input.and_then(|input| input.take(max.saturating_add(1)).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > max => {
            Err(too_large(format!("more than {}, half of the available memory", ByteSize(max))))
        }
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(too_large(error.to_string())),
        Err(error) => Err(Failure::usage(format!("cannot read {from}")).found(error.to_string())),
    }
}

/// A reader that counts its bytes.
struct CountedRead<R> {
    input: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Reads all bytes from `file`, or from stdin. Counts the bytes of a file in `bytes`.
fn read(file: Option<&Path>, bytes: Arc<AtomicU64>) -> Result<Vec<u8>, Failure> {
    let available = host::memory().map_or(u64::MAX, |memory| memory.available);
    match file {
        Some(path) => {
            let input = File::open(path).map(|input| CountedRead { input, bytes });
            read_all(&path.display().to_string(), input, available)
        }
        None => {
            if io::stdin().is_terminal() {
                output::say("reading the value from the terminal; press Ctrl-D to finish");
            }
            read_all("stdin", Ok(io::stdin().lock()), available)
        }
    }
}

/// The hosts of the copies of `key`, if the master's admin HTTP endpoint reports them.
async fn hosts(master: &MasterTarget, key: &str) -> Option<BTreeSet<String>> {
    if master.is_admin_unknown() || !AdminClient::can_query(key) {
        return None;
    }
    let admin = master.admin().ok()?;
    let replicas = admin.replicas(&[key.to_owned()]).await.ok()?.into_iter().next().flatten()?;
    copy_hosts(&replicas, &admin.segments().await.ok()?)
}

#[derive(Serialize)]
struct PutDocument<'a> {
    schema: &'static str,
    key: &'a str,
    bytes: usize,
    stored: bool,
    /// Number of copies stored.
    replicas: usize,
    replicas_requested: u64,
    /// The hosts of the copies, if there are several and their hosts are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<BTreeSet<String>>,
    /// Why nothing or too little was stored; `null` if the put succeeded.
    cause: Option<String>,
    /// What to do about it.
    next: Option<String>,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let bytes = self.read_unless_stopped().await?;
        let len = bytes.len();
        let quoted = Quoted(&self.key);
        if len == 0 {
            return Err(Failure::usage(format!(
                "the value for {quoted} is empty, but the minimum object size is 1 byte"
            ))
            .next("pass a FILE that is not empty, or use --value TEXT"));
        }
        let mut link = StoreSession::open(&self.link).await?;
        let value = Arc::new(Memory::from_vec(bytes)).whole();
        let what = format!("put {quoted}");
        let progress = WorkProgress::start("storing the object", WorkUnit::Time, || 0);
        let mut result = link.attempt(&what, async |client: &StoreClient<RealEnv>| self.put(client, value).await).await;
        if let Ok(PutResult::Exists(state)) = &mut result {
            let master = link.master().clone();
            let query =
                async |client: &StoreClient<RealEnv>| Ok(stat::key_state(&master, client.master(), &self.key).await);
            match link.attempt(&what, query).await {
                Ok(found) => *state = found,
                Err(failure) => result = Err(failure),
            }
        }
        let hosts = match &result {
            Ok(PutResult::Stored { replicas }) if *replicas > 1 => hosts(link.master(), &self.key).await,
            _ => None,
        };
        link.close().await;
        drop(progress);
        let result = result?;
        if let Some(host) = hosts.as_ref().filter(|hosts| hosts.len() == 1).and_then(BTreeSet::first) {
            output::say(format!(
                "warning: all copies of {quoted} are on host {}: if it fails, the object is lost",
                escaped(host)
            ));
        }
        let replicas = match result {
            PutResult::Stored { replicas } => replicas,
            PutResult::Exists(_) => 0,
            PutResult::InvalidArguments => return Err(self.invalid_arguments()),
        };
        let copies = counted_as(replicas, "copy", "copies");
        let failure = match result {
            PutResult::Exists(state) => Some(exists(quoted, state)),
            _ if (replicas as u64) < self.replicas && !self.allow_fewer => Some(self.too_few(&copies)),
            _ => None,
        };
        if self.json {
            let stored = replicas > 0;
            let shown = |text: &String| Failure::shown(text);
            output::json(&PutDocument {
                schema: "mcctl.store.put/1",
                key: &self.key,
                bytes: len,
                stored,
                replicas,
                replicas_requested: self.replicas,
                hosts,
                cause: failure.as_ref().map(|failure| Failure::shown(&failure.what)),
                next: failure.as_ref().and_then(|failure| failure.next.as_ref()).map(shown),
            })?;
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !self.json {
            let of = if (replicas as u64) < self.replicas { format!(" of {}", self.replicas) } else { String::new() };
            output::say(format!("stored {} as {quoted}, {copies}{of}", ByteSize(len as u64)));
        }
        Ok(Exit::Done)
    }

    /// The failure for an object with fewer copies than requested. `copies`: their number.
    fn too_few(&self, copies: &str) -> Failure {
        let quoted = Quoted(&self.key);
        Failure::no(format!("{quoted} was stored with {copies}, but {} were requested", self.replicas))
            .found("no other segment has enough free memory; each copy needs its own segment")
            .next("run mcctl status to list the segments, or use --allow-fewer to accept fewer copies")
    }

    async fn put(&self, client: &StoreClient<RealEnv>, value: Slice) -> Result<PutResult, StoreError> {
        let key = ObjectKey::from(self.key.as_str());
        let config = self.config();
        let put = match self.upsert {
            true => client.upsert(&key, value, &config).await,
            false => client.put(&key, value, &config).await,
        };
        match put {
            Ok(PutOutcome::Stored { replicas }) => Ok(PutResult::Stored { replicas }),
            // The caller then queries the actual state.
            Ok(PutOutcome::AlreadyExists) => Ok(PutResult::Exists(KeyState::Complete)),
            Err(StoreError::Refused { code: ErrorCode::INVALID_PARAMS, .. }) => Ok(PutResult::InvalidArguments),
            Err(error) => Err(error),
        }
    }

    /// The failure for arguments that the master rejected.
    fn invalid_arguments(&self) -> Failure {
        let quoted = Quoted(&self.key);
        match self.soft_pin {
            Some(Some(life)) => Failure::usage(format!(
                "cannot put {quoted}: the master rejected a soft pin of {}",
                show_duration(life)
            ))
            .tried(format!("--soft-pin={}", show_duration(life)))
            .found(ErrorCode::INVALID_PARAMS.to_string())
            .next("use a shorter time: the master's --max-kv-soft-pin-ttl is 24h by default"),
            _ => Failure::no(format!("cannot put {quoted}: the master rejected the arguments"))
                .tried(format!("a key of {} bytes, {} copies", self.key.len(), self.replicas))
                .found(ErrorCode::INVALID_PARAMS.to_string())
                .next("use a shorter key, or fewer --replicas"),
        }
    }

    /// Reads the object's bytes. A signal stops the read, which may block on a terminal or pipe.
    async fn read_unless_stopped(&self) -> Result<Vec<u8>, Failure> {
        if let Some(text) = &self.value {
            return Ok(text.clone().into_bytes());
        }
        let mut signals = Signals::take()?;
        let file = self.file.clone().filter(|path| path.as_os_str() != "-");
        let total = file.as_ref().and_then(|path| path.metadata().ok()).filter(Metadata::is_file);
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&bytes);
        // Not for stdin, which may be the same terminal.
        let _progress = total.map(|data| {
            let unit = WorkUnit::Bytes(Some(data.len()));
            WorkProgress::start("reading the file", unit, move || counter.load(Ordering::Relaxed))
        });
        let reading = tokio::task::spawn_blocking(move || read(file.as_deref(), bytes));
        tokio::select! {
            read = reading => read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
            signal = signals.next() => Err(stopped(signal, &format!("put {}", Quoted(&self.key)))),
        }
    }

    fn config(&self) -> ReplicateConfig {
        let mut config =
            ReplicateConfig { replica_num: self.replicas, with_hard_pin: self.hard_pin, ..ReplicateConfig::default() };
        if let Some(life) = self.soft_pin {
            config.soft_pin_action = SoftPinAction::ENABLE;
            config.soft_pin_ttl_ms = life.map(|life| u64::try_from(life.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(name) = &self.segment {
            config.preferred_segment = name.as_str().into();
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_beyond_half_of_the_available_memory_is_refused() {
        let failure = read_all("/dev/zero", Ok(io::repeat(0)), 1 << 20).expect_err("it does not end");
        assert_eq!(failure.exit, Exit::Host);
        assert!(failure.found.is_some_and(|found| found.contains("512 KiB")));
        assert_eq!(read_all("x", Ok(&b"abc"[..]), 6).expect("it fits"), b"abc");
        assert!(read_all("x", Ok(&b"abcd"[..]), 6).is_err());
    }
}
