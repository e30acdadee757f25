//! `mcctl store get`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{STOP_MAX, Signals};
use crate::commands::store::destination::Destination;
use crate::commands::store::key;
use crate::commands::store::link::{LinkArgs, stopped};
use crate::commands::store::writing::Writing;
use crate::commands::transport::TransportArgs;
use crate::engine::base::text::Quoted;
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::env::{RealEnv, deadline};
use crate::engine::store::StoreClient;

/// What to read, and where to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Key of the object
    #[arg(value_parser = key::parse)]
    key: String,
    /// File for its bytes, which is written whole or left as it was (or in place, if its directory takes no new file); '-' or
    /// nothing for stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// One JSON document on stdout: size and file, or without --output the value, which must be UTF-8 text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    transport: TransportArgs,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    key: &'a str,
    bytes: u64,
    /// The file that was written.
    output: Option<&'a str>,
    /// The value, where no file was written.
    value: Option<&'a str>,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let destination = Destination::find(self.output.as_deref())?;
        let mut link = self.link.over(&self.transport).connect().await?;
        let key = ObjectKey::from(self.key.as_str());
        let get = async |client: &StoreClient<RealEnv>| client.get(&key).await;
        let bytes = link.attempt(&format!("get {}", Quoted(&self.key)), get).await;
        let signals = link.close().await;
        let bytes = bytes?;
        let size = ByteSize(bytes.len() as u64);
        let to_stdout = matches!(destination, Destination::Stdout);
        if to_stdout && self.json {
            return self.show(&bytes);
        }
        if to_stdout && io::stdout().is_terminal() && std::str::from_utf8(&bytes).is_err() {
            return Err(Failure::usage(format!("{} is not text, and this is a terminal", Quoted(&self.key)))
                .next("give --output FILE, or pipe it"));
        }
        if let Some(note) = destination.note() {
            output::say(note);
        }
        write(Writing::new(destination, bytes), signals).await?;
        let Some(path) = self.output.as_ref().filter(|_| !to_stdout) else { return Ok(Exit::Done) };
        if self.json {
            let output = path.to_string_lossy();
            output::json(&self.document(size.0, Some(&output), None))?;
        } else {
            output::say(format!("wrote {size} to {}", path.display()));
        }
        Ok(Exit::Done)
    }

    /// The value in the document.
    fn show(&self, bytes: &[u8]) -> Outcome {
        let Ok(value) = std::str::from_utf8(bytes) else {
            return Err(Failure::usage(format!("{} is not UTF-8 text, which --json requires", Quoted(&self.key)))
                .next("give --output FILE beside --json"));
        };
        output::json(&self.document(bytes.len() as u64, None, Some(value)))?;
        Ok(Exit::Done)
    }

    fn document<'a>(&'a self, bytes: u64, output: Option<&'a str>, value: Option<&'a str>) -> Document<'a> {
        Document { schema: "mcctl.store.get/1", key: &self.key, bytes, output, value }
    }
}

/// What it may take to remove a file that a disk has not taken in yet.
const REMOVE_MAX: Duration = Duration::from_secs(1);

/// Write, which may wait for a reader or a disk for as long as it likes, unless a signal comes. A write that was done when the
/// signal came is done.
async fn write(writing: Writing, mut signals: Signals) -> Result<(), Failure> {
    let writing = Arc::new(writing);
    let mut running = {
        let writing = Arc::clone(&writing);
        tokio::task::spawn_blocking(move || writing.run())
    };
    let signal = tokio::select! {
        done = &mut running => return done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        signal = signals.next() => signal,
    };
    writing.stop();
    match deadline(&RealEnv::new(), STOP_MAX, running).await {
        Ok(Ok(Ok(()))) => return Ok(()),
        Ok(Ok(Err(_))) => {}
        Ok(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
        Err(_) => {
            let writing = Arc::clone(&writing);
            // What keeps the write from its end may keep this from its end, too.
            let _ = deadline(&RealEnv::new(), REMOVE_MAX, tokio::task::spawn_blocking(move || writing.give_up())).await;
        }
    }
    Err(stopped(signal, "write the object").found(writing.left()))
}
