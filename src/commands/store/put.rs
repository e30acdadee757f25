//! `mcctl store put`.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::args as parsers;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::Signals;
use crate::commands::store::key;
use crate::commands::store::link::{self, LinkArgs};
use crate::commands::store::stat::{self, Presence};
use crate::commands::transport::TransportArgs;
use crate::engine::base::text::Quoted;
use crate::engine::base::{ByteSize, ErrorCode, ObjectKey};
use crate::engine::env::RealEnv;
use crate::engine::store::{PutOutcome, StoreClient, StoreError};
use crate::engine::sys::host;
use crate::engine::sys::memory::{Memory, Slice};
use crate::engine::wire::types::{ReplicateConfig, SoftPinAction};

/// What to store, and how it is to be kept.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Key of the object
    #[arg(value_parser = key::parse)]
    key: String,
    /// File with its bytes; '-' or nothing for stdin
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The bytes themselves
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    value: Option<String>,
    /// Replace an object that is there
    #[arg(long)]
    upsert: bool,
    /// Copies, each on another segment. Exit code 1 when fewer were stored
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    replicas: u64,
    /// Exit code 0 even if fewer copies than --replicas were stored
    #[arg(long)]
    allow_fewer: bool,
    /// Evict it last, for so long [without a time: as long as the master does by default]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "", require_equals = true, value_parser = soft_pin)]
    soft_pin: Option<SoftPin>,
    /// Never evict it
    #[arg(long)]
    hard_pin: bool,
    /// Name of a segment to try first
    #[arg(long, value_name = "NAME")]
    segment: Option<String>,
    /// One JSON document on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

/// What became of the put.
#[derive(Debug)]
enum Became {
    Stored {
        replicas: usize,
    },
    /// The key is taken, by this.
    Taken(Presence),
    /// The master does not take the arguments.
    Misfit,
}

fn taken(quoted: Quoted<'_>, by: Presence) -> Failure {
    match by {
        Presence::Complete => Failure::no(format!("{quoted} exists already, and was left as it is"))
            .next("--upsert replaces it; mcctl store rm removes it"),
        Presence::Unfinished => Failure::no(format!(
            "another put of {quoted} is unfinished, so nothing was stored and nothing can be read yet"
        ))
        .next(
            "try again when it is finished; when its writer has gone, the master lets go of the key after a while \
                    (--put-start-discard-timeout-sec, 30 s unless it was changed)",
        ),
        Presence::Gone => Failure::no(format!(
            "{quoted} was taken when it was to be put, and is not there any more; nothing was stored"
        ))
        .next("try again"),
    }
}

/// A soft pin's life, if one was given.
#[derive(Clone, Copy, Debug)]
struct SoftPin(Option<Duration>);

fn soft_pin(text: &str) -> Result<SoftPin, String> {
    match text {
        "" => Ok(SoftPin(None)),
        text => parsers::duration(text).map(|life| SoftPin(Some(life))),
    }
}

/// All bytes of `input`, which is called `from`, if `room` bytes hold them twice: once grown, once while they grow.
fn read_all<R: Read>(from: &str, input: io::Result<R>, room: u64) -> Result<Vec<u8>, Failure> {
    let most = room / 2;
    let too_large = |found: String| {
        Failure::host(format!("{from} does not fit this host's memory"))
            .tried("read it whole, since an object is put in one piece")
            .found(found)
    };
    let mut bytes = Vec::new();
    match input.and_then(|input| input.take(most.saturating_add(1)).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > most => {
            Err(too_large(format!("more than {}, half of what is available", ByteSize(most))))
        }
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(too_large(error.to_string())),
        Err(error) => Err(Failure::usage(format!("cannot read {from}")).found(error.to_string())),
    }
}

/// All bytes of `file`, or of stdin.
fn read(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let room = host::memory().map_or(u64::MAX, |memory| memory.available);
    match file {
        Some(path) => read_all(&path.display().to_string(), File::open(path), room),
        None => {
            if io::stdin().is_terminal() {
                output::say("reading the value from the terminal; Ctrl-D ends it");
            }
            read_all("stdin", Ok(io::stdin().lock()), room)
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    key: &'a str,
    bytes: usize,
    stored: bool,
    /// Copies that were stored.
    replicas: usize,
    replicas_requested: u64,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let bytes = self.read_unless_stopped().await?;
        let len = bytes.len();
        let quoted = Quoted(&self.key);
        if len == 0 {
            return Err(Failure::usage(format!(
                "{quoted} would have no bytes, and the store keeps objects of one byte and more"
            ))
            .next("give a FILE that is not empty, or --value TEXT"));
        }
        let mut link = self.link.over(&self.transport).connect().await?;
        let value = Arc::new(Memory::from_vec(bytes)).whole();
        let what = format!("put {quoted}");
        let mut became = link.attempt(&what, async |client: &StoreClient<RealEnv>| self.put(client, value).await).await;
        if let Ok(Became::Taken(by)) = &mut became {
            let master = link.master().clone();
            let ask =
                async |client: &StoreClient<RealEnv>| Ok(stat::presence(&master, client.master(), &self.key).await);
            match link.attempt(&what, ask).await {
                Ok(found) => *by = found,
                Err(failure) => became = Err(failure),
            }
        }
        link.close().await;
        let became = became?;
        let replicas = match became {
            Became::Stored { replicas } => replicas,
            Became::Taken(_) => 0,
            Became::Misfit => return Err(self.misfit()),
        };
        if self.json {
            let stored = replicas > 0;
            output::json(&Document {
                schema: "mcctl.store.put/1",
                key: &self.key,
                bytes: len,
                stored,
                replicas,
                replicas_requested: self.replicas,
            })?;
        }
        if let Became::Taken(by) = became {
            return Err(taken(quoted, by));
        }
        let copies = format!("{replicas} {}", if replicas == 1 { "copy" } else { "copies" });
        if (replicas as u64) < self.replicas && !self.allow_fewer {
            return Err(Failure::no(format!("{quoted} was stored with {copies}; {} were requested", self.replicas))
                .found("no other segment has room: each copy needs a segment of its own")
                .next("mcctl status lists the segments; --allow-fewer accepts fewer copies"));
        }
        if !self.json {
            let of = if (replicas as u64) < self.replicas { format!(" of {}", self.replicas) } else { String::new() };
            output::say(format!("stored {} as {quoted}, {copies}{of}", ByteSize(len as u64)));
        }
        Ok(Exit::Done)
    }

    async fn put(&self, client: &StoreClient<RealEnv>, value: Slice) -> Result<Became, StoreError> {
        let (key, config) = (ObjectKey::from(self.key.as_str()), self.config());
        let put = match self.upsert {
            true => client.upsert(&key, value, &config).await,
            false => client.put(&key, value, &config).await,
        };
        match put {
            Ok(PutOutcome::Stored { replicas }) => Ok(Became::Stored { replicas }),
            // What is there is asked for next.
            Ok(PutOutcome::AlreadyExists) => Ok(Became::Taken(Presence::Complete)),
            Err(StoreError::Refused { code: ErrorCode::INVALID_PARAMS, .. }) => Ok(Became::Misfit),
            Err(error) => Err(error),
        }
    }

    /// What the master does not take of what was asked for.
    fn misfit(&self) -> Failure {
        let quoted = Quoted(&self.key);
        match self.soft_pin {
            Some(SoftPin(Some(life))) => {
                Failure::usage(format!("cannot put {quoted}: the master does not give a soft pin of this length"))
                    .tried(format!("--soft-pin={}", parsers::show_duration(life)))
                    .found(ErrorCode::INVALID_PARAMS.to_string())
                    .next("ask for less: 24h is the most unless the master's --max-kv-soft-pin-ttl says otherwise")
            }
            _ => Failure::no(format!("cannot put {quoted}: the master does not take what was asked for"))
                .tried(format!("a key of {} bytes, {} copies", self.key.len(), self.replicas))
                .found(ErrorCode::INVALID_PARAMS.to_string())
                .next("try a shorter key, or fewer --replicas"),
        }
    }

    /// The object's bytes. A signal ends the wait for them: a terminal or a pipe may bring none.
    async fn read_unless_stopped(&self) -> Result<Vec<u8>, Failure> {
        if let Some(text) = &self.value {
            return Ok(text.clone().into_bytes());
        }
        let mut signals = Signals::take()?;
        let file = self.file.clone().filter(|path| path.as_os_str() != "-");
        let reading = tokio::task::spawn_blocking(move || read(file.as_deref()));
        tokio::select! {
            read = reading => read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
            signal = signals.next() => Err(link::stopped(signal, &format!("put {}", Quoted(&self.key)))),
        }
    }

    fn config(&self) -> ReplicateConfig {
        let mut config =
            ReplicateConfig { replica_num: self.replicas, with_hard_pin: self.hard_pin, ..ReplicateConfig::default() };
        if let Some(SoftPin(life)) = self.soft_pin {
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
    fn an_input_without_end_is_refused_once_it_exceeds_half_of_what_is_available() {
        let failure = read_all("/dev/zero", Ok(io::repeat(0)), 1 << 20).expect_err("it does not end");
        assert_eq!(failure.exit, Exit::Host);
        assert_eq!(failure.found.as_deref(), Some("more than 512 KiB, half of what is available"));
        assert_eq!(read_all("x", Ok(&b"abc"[..]), 6).expect("it fits"), b"abc");
        assert!(read_all("x", Ok(&b"abcd"[..]), 6).is_err());
    }
}
