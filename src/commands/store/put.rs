//! `mcctl store put`.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::args as parsers;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::store::link::LinkArgs;
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::env::RealEnv;
use crate::engine::store::{PutOutcome, StoreClient};
use crate::engine::sys::memory::Memory;
use crate::engine::wire::types::{ReplicateConfig, SoftPinAction};

/// What to store, and how it is to be kept.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Key of the object
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
    /// Copies, each on another segment
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    replicas: u64,
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

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    key: &'a str,
    bytes: usize,
    stored: bool,
    replicas: usize,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let bytes = self.read()?;
        let len = bytes.len();
        if len == 0 {
            return Err(Failure::usage(format!(
                "'{}' would have no bytes, and the store keeps objects of one byte and more",
                self.key
            ))
            .next("give a FILE that is not empty, or --value TEXT"));
        }
        let mut link = self.link.connect().await?;
        let (key, config) = (ObjectKey::from(self.key.as_str()), self.config());
        let value = Arc::new(Memory::from_vec(bytes)).whole();
        let put = async |client: &StoreClient<RealEnv>| match self.upsert {
            true => client.upsert(&key, value, &config).await,
            false => client.put(&key, value, &config).await,
        };
        let outcome = link.attempt(&format!("put '{}'", self.key), put).await;
        link.close().await;
        let replicas = match outcome? {
            PutOutcome::Stored { replicas } => replicas,
            PutOutcome::AlreadyExists => 0,
        };
        if self.json {
            let stored = replicas > 0;
            output::json(&Document { schema: "mcctl.store.put/1", key: &self.key, bytes: len, stored, replicas })?;
        }
        if replicas == 0 {
            return Err(Failure::no(format!("'{}' exists already, and was left as it is", self.key))
                .next("--upsert replaces it; mcctl store rm removes it"));
        }
        if !self.json {
            let few = if (replicas as u64) < self.replicas { ", since there are no more segments" } else { "" };
            let copies = if replicas == 1 { "copy" } else { "copies" };
            output::say(format!("stored {} as '{}', {replicas} {copies}{few}", ByteSize(len as u64), self.key));
        }
        Ok(Exit::Done)
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        if let Some(text) = &self.value {
            return Ok(text.clone().into_bytes());
        }
        let mut bytes = Vec::new();
        let (from, read) = match self.file.as_ref().filter(|path| path.as_os_str() != "-") {
            Some(path) => {
                (path.display().to_string(), File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)))
            }
            None => ("stdin".to_owned(), io::stdin().lock().read_to_end(&mut bytes)),
        };
        match read {
            Ok(_) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                Err(Failure::host(format!("{from} does not fit this host's memory")).found(error.to_string()))
            }
            Err(error) => Err(Failure::usage(format!("cannot read {from}")).found(error.to_string())),
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
