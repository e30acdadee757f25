//! `mcctl store get`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::store::destination::Destination;
use crate::commands::store::key;
use crate::commands::store::link::{LinkArgs, stopped};
use crate::engine::base::text::Quoted;
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::env::RealEnv;
use crate::engine::store::StoreClient;

/// What to read, and where to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Key of the object
    #[arg(value_parser = key::parse)]
    key: String,
    /// File for its bytes, which is written whole or left as it was; '-' or nothing for stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    link: LinkArgs,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let destination = Destination::find(self.output.as_deref())?;
        let mut link = self.link.connect().await?;
        let key = ObjectKey::from(self.key.as_str());
        let get = async |client: &StoreClient<RealEnv>| client.get(&key).await;
        let bytes = link.attempt(&format!("get {}", Quoted(&self.key)), get).await;
        let signals = link.close().await;
        let bytes = bytes?;
        let size = ByteSize(bytes.len() as u64);
        let to_stdout = matches!(destination, Destination::Stdout);
        if to_stdout && io::stdout().is_terminal() && std::str::from_utf8(&bytes).is_err() {
            return Err(Failure::usage(format!("{} is no text, and would spoil this terminal", Quoted(&self.key)))
                .next("give --output FILE, or pipe it"));
        }
        write(destination, bytes, signals).await?;
        if let Some(path) = self.output.filter(|_| !to_stdout) {
            output::say(format!("wrote {size} to {}", path.display()));
        }
        Ok(Exit::Done)
    }
}

/// Write, which may wait for a reader or a disk for as long as it likes, unless a signal comes.
async fn write(destination: Destination, bytes: Vec<u8>, mut signals: Signals) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let mut writing = tokio::task::spawn_blocking(move || destination.write(&bytes, &told));
    tokio::select! {
        done = &mut writing => done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        signal = signals.next() => {
            stop.store(true, Ordering::Relaxed);
            runtime::stop_in_time("the write", writing).await;
            Err(stopped(signal, "write the object"))
        }
    }
}
