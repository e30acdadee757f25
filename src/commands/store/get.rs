//! `mcctl store get`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::runtime::{STOP_MAX, Signals};
use crate::commands::store::destination::Destination;
use crate::commands::store::key;
use crate::commands::store::object_write::ObjectWrite;
use crate::commands::store::session::{StoreSession, stopped};
use crate::commands::target::connect::ClientArgs;
use crate::engine::base::text::Quoted;
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::env::{RealEnv, deadline};
use crate::engine::store::StoreClient;

/// Flags of `mcctl store get`.
#[derive(Debug, clap::Args)]
#[command(before_help = "output master metadata-server protocol json")]
#[command(before_long_help = "mcctl store get greeting  # write the object to stdout\n\
    mcctl store get model/1 -o weights.bin  # write the object to a file")]
pub struct Args {
    /// Object key
    #[arg(value_parser = key::parse)]
    key: String,
    /// Write the object to FILE instead of stdout; '-' means stdout
    ///
    /// FILE is either complete or unchanged, even if the command fails. If no temporary file can be
    /// created in FILE's directory, an existing FILE is overwritten in place.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON document to stdout: with --output the size and file, otherwise the value,
    /// which must be UTF-8
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: ClientArgs,
}

#[derive(Serialize)]
struct GetDocument<'a> {
    schema: &'static str,
    key: &'a str,
    bytes: u64,
    /// The file path, with --output.
    output: Option<&'a str>,
    /// The value, without --output.
    value: Option<&'a str>,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let destination = Destination::find(self.output.as_deref())?;
        let mut link = StoreSession::open(&self.link).await?;
        let key = ObjectKey::from(self.key.as_str());
        let get = async |client: &StoreClient<RealEnv>| client.get(&key).await;
        let progress = WorkProgress::start("getting the object", WorkUnit::Time, || 0);
        let bytes = link.attempt(&format!("get {}", Quoted(&self.key)), get).await;
        drop(progress);
        let signals = link.close().await;
        let bytes = bytes?;
        let size = ByteSize(bytes.len() as u64);
        let to_stdout = matches!(destination, Destination::Stdout);
        if to_stdout && self.json {
            return self.show(&bytes);
        }
        if to_stdout && io::stdout().is_terminal() && std::str::from_utf8(&bytes).is_err() {
            return Err(Failure::usage(format!("{} is binary, and stdout is a terminal", Quoted(&self.key)))
                .next("use --output FILE, or redirect stdout"));
        }
        if let Some(note) = destination.note() {
            output::say(note);
        }
        write(ObjectWrite::new(destination, bytes), signals).await?;
        let Some(path) = self.output.as_ref().filter(|_| !to_stdout) else { return Ok(Exit::Done) };
        if self.json {
            let output = path.to_string_lossy();
            output::json(&self.document(size.0, Some(&output), None))?;
        } else {
            output::say(format!("wrote {size} to {}", path.display()));
        }
        Ok(Exit::Done)
    }

    /// Prints the document with the value.
    fn show(&self, bytes: &[u8]) -> Outcome {
        let Ok(value) = std::str::from_utf8(bytes) else {
            return Err(Failure::usage(format!("{} is not UTF-8 text, which --json requires", Quoted(&self.key)))
                .next("add --output FILE"));
        };
        output::json(&self.document(bytes.len() as u64, None, Some(value)))?;
        Ok(Exit::Done)
    }

    fn document<'a>(&'a self, bytes: u64, output: Option<&'a str>, value: Option<&'a str>) -> GetDocument<'a> {
        GetDocument { schema: "mcctl.store.get/1", key: &self.key, bytes, output, value }
    }
}

/// Timeout for removing a temporary file from a stalled disk.
const REMOVE_MAX: Duration = Duration::from_secs(1);

/// Runs the write, which may block on a pipe or a disk, until it completes or a signal arrives. A
/// write that has already completed when the signal arrives counts as success.
async fn write(writing: ObjectWrite, mut signals: Signals) -> Result<(), Failure> {
    let writing = Arc::new(writing);
    let _progress = writing.progress();
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
            // The stall that blocks the write may block the removal too.
            let _ = deadline(&RealEnv::new(), REMOVE_MAX, tokio::task::spawn_blocking(move || writing.abort())).await;
        }
    }
    Err(stopped(signal, "write the object").found(writing.remains()))
}
